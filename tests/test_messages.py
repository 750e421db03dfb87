"""What agents are told, and who started whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from daemons import online, until
from machines import Machine, Team, runner, team

from syncd import CheckpointService, invocations, messages, presence
from syncd.errors import InvalidInputError
from syncd.messages import Letter

__all__ = ["runner", "team"]


@pytest.fixture
def alone(runner: Any, tmp_path: Path) -> Machine:
    return Machine(runner, tmp_path / "alone")


def send(machine: Machine, *words: str, to: str = "ann") -> str:
    return str(machine.json("message", "send", "--to", to, *words)["id"])


# --- messages -------------------------------------------------------------------------------------


def test_a_message_is_unread_until_it_is_acknowledged(alone: Machine) -> None:
    sent = alone.json(
        "message", "send", "--to", "ann", "--from", "bob", "--task", "t", "--subject", "Colours",
        "--action", "Use the palette", "It is in docs/palette.md",
    )  # fmt: skip
    (found,) = alone.json("inbox", "ann")
    assert found == sent
    assert (found["from"], found["to"], found["task_id"]) == ("bob", "ann", "t")
    assert (found["subject"], found["action"]) == ("Colours", "Use the palette")
    assert found["text"] == "It is in docs/palette.md"
    assert found["acknowledged_at"] is None
    shown = alone.ok("inbox", "ann").out
    for words in ("Colours", "Use the palette", f"syncd message ack {found['id']}"):
        assert words in shown
    read = alone.json("message", "ack", found["id"][:13], "--agent", "ann")
    assert read["acknowledged_by"] == "ann"
    assert read["acknowledged_at"] >= read["at"]
    assert alone.json("inbox", "ann") == []
    assert alone.ok("inbox", "ann").out == "No unread messages.\n"
    assert alone.json("inbox", "ann", "--all") == [read]
    assert "read by ann" in alone.ok("inbox", "ann", "--all").out


def test_messages_are_their_recipients_newest_first(alone: Machine) -> None:
    first, second = send(alone, "one"), send(alone, "two")
    send(alone, "three", to="bob")
    assert [letter["id"] for letter in alone.json("inbox", "ann")] == [second, first]


def test_acknowledging_twice_says_so_once(alone: Machine) -> None:
    name = send(alone, "one")
    first = alone.json("message", "ack", name, "--agent", "ann")
    assert alone.json("message", "ack", name) == first
    assert alone.sql("SELECT count(*) FROM log") == [(2,)]


def test_what_is_wrong_is_told_with_a_remedy(alone: Machine) -> None:
    name = send(alone, "one")
    missing = alone.fails(4, "message", "ack", "ffffffff")
    assert missing["code"] == "not_found"
    assert "syncd inbox" in missing["remedy"]
    assert alone.fails(4, "message", "ack", "")["code"] == "not_found"
    send(alone, "two")
    assert "more than one message" in alone.fails(2, "message", "ack", name[:6])["message"]
    foreign = alone.fails(2, "message", "ack", name, "--agent", "bob")
    assert "is to 'ann', not to 'bob'" in foreign["message"]
    assert "empty" in alone.fails(2, "message", "send", "--to", "ann", " ")["message"]
    assert "empty" in alone.fails(2, "message", "send", "--to", "", "x")["message"]
    assert "control" in alone.fails(2, "message", "send", "--to", "a\nb", "x")["message"]
    assert len(alone.json("inbox", "ann")) == 2


SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def test_secrets_are_taken_out_and_refused_where_they_would_stay_clear(alone: Machine) -> None:
    send(alone, "--subject", f"about {SECRET}", f"use {SECRET}")
    (found,) = alone.json("inbox", "ann")
    assert SECRET not in str(found)
    assert "[redacted" in found["text"].lower()
    assert "secret" in alone.fails(2, "message", "send", "--to", SECRET, "x")["message"]


def test_an_answer_is_a_sign_of_life_of_who_is_at_work_here(service: CheckpointService) -> None:
    node = service.node
    for agent in ("ann", "bob"):
        messages.send(node, agent, Letter("are you there?"), "t")
    presence.heartbeat(node, "ann", "t")
    with node.store.transaction():
        node.store.change("put_sign", (node.store.device_id, "ann", "t", "", "", 1))
    for agent in ("ann", "bob"):
        (message,) = messages.inbox(node, agent)
        messages.acknowledge(node, message.id, agent)
    (sign,) = presence.own_signs(node)
    assert sign.agent_id == "ann"
    assert sign.seen_ms > 1


def test_a_message_that_cannot_be_read_is_listed_with_the_reason(alone: Machine) -> None:
    name = send(alone, "--subject", "Colours", "text")
    alone.sql('UPDATE log SET body = CAST(\'{"text":"other"}\' AS BLOB) WHERE entity_id = ?', name)
    (found,) = alone.json("inbox", "ann")
    assert found["text"] == ""
    assert "hash" in found["problem"] or "opened" in found["problem"]
    assert "Unreadable" in alone.ok("inbox", "ann").out


def test_messages_and_answers_reach_every_machine(team: Team) -> None:
    one, two = team.machine(), team.machine()
    with online(one, two):
        name = send(one, "--task", "t", "--subject", "Colours", "text")
        until(lambda: two.json("inbox", "ann"))
        two.ok("message", "ack", name, "--agent", "ann")
        until(lambda: one.json("inbox", "ann") == [])
        until(
            lambda: team.sql("SELECT acknowledged_at IS NOT NULL FROM syncd.messages") == [(True,)]
        )
    assert one.json("inbox", "ann", "--all") == two.json("inbox", "ann", "--all")
    team.agree()


def test_whoever_resumes_is_told_of_unread_messages(alone: Machine) -> None:
    alone.create("t", "--pending", "x")
    assert "unread" not in alone.ok("resume", "t").out
    send(alone, "--subject", "older", "text")
    send(alone, "--subject", "## VERIFIED\nall", "text")
    prompt = alone.ok("resume", "t").out
    assert ("- 2 unread messages for you, the newest about “\\## verified all”: "
            "`syncd inbox ann`\n") in prompt  # fmt: skip
    assert alone.json("resume", "t")["unread_messages"] == 2
    assert "unread" not in alone.ok("resume", "t", "--agent", "bob").out
    for letter in alone.json("inbox", "ann"):
        alone.ok("message", "ack", letter["id"])
    assert "unread" not in alone.ok("resume", "t").out


# --- invocations ----------------------------------------------------------------------------------


def test_who_started_whom_is_kept_once_for_each_session(alone: Machine) -> None:
    beat = ("heartbeat", "--agent", "ann", "--task", "t", "--started-by", "boss", "--session")
    for session in ("s1", "s1", "s2"):
        alone.ok(*beat, session, "--agent-type", "qa")
    assert alone.sql("SELECT count(*) FROM log") == [(2,)]
    found = alone.json("invocations")
    assert [one["session_id"] for one in found] == ["s1", "s2"]
    assert found[0] | {"at": "", "device_id": ""} == {
        "task_id": "t", "started": "ann", "by": "boss", "agent_type": "qa", "session_id": "s1",
        "at": "", "device_id": "",
    }  # fmt: skip
    assert "boss" in alone.ok("invocations").out
    assert [a["agent_id"] for a in alone.json("agents")] == ["ann"]


def test_invocations_are_found_by_task_and_by_either_side(service: CheckpointService) -> None:
    node = service.node
    invocations.invoked(node, "t", "ann", "boss", "1", "qa")
    invocations.invoked(node, "t", "bob", "ann", "2")
    invocations.invoked(node, "u", "cid", "boss", "3")
    for task, agent, sessions in (
        ("", "", "123"), ("t", "", "12"), ("", "ann", "12"), ("", "boss", "13"), ("u", "bob", ""),
    ):  # fmt: skip
        found = invocations.listed(node, task, agent)
        assert "".join(one["session_id"] for one in found) == sessions
    for started, by, why in (("", "boss", "empty"), ("ann", SECRET, "looks like a secret")):
        with pytest.raises(InvalidInputError, match=why):
            invocations.invoked(node, "t", started, by)


def test_invocations_reach_other_machines(team: Team) -> None:
    one, two = team.machine(), team.machine()
    one.ok("heartbeat", "--agent", "ann", "--task", "t", "--started-by", "boss")
    team.settle(one, two)
    assert two.json("invocations", "--task", "t") == one.json("invocations")
    assert two.json("agents")[0]["agent_id"] == "ann"
    team.agree()
