"""Tasks that wait for somebody, and tasks whose work went on in several places."""

from __future__ import annotations

from typing import Any

import devices
import machines
import pytest
import resuming
from machines import Machine

from syncd import CheckpointService, conflicts, facts, tasks, tenure
from syncd.entry import CHOICE
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointNotFoundError,
    InvalidInputError,
    UsageError,
)

runner = machines.runner
cloud = devices.cloud
crew = devices.crew
TOKEN = "ghp_0123456789abcdefghijABCDEFGHIJ012345"


def prompt(service: CheckpointService) -> str:
    return resuming.resume(service).prompt


# --- who decides, and when ----------------------------------------------------------------------


def test_an_escalation_says_who_has_to_decide_what_and_a_resumed_agent_is_told(
    service: CheckpointService,
) -> None:
    resuming.saved(service)
    shown = tasks.escalate(service.node, "t", "Eve", "no licence", "buy one or not")
    assert shown["status"] == "escalated"
    assert {**shown["escalation"], "at": "", "by": ""} == {
        "to": "Eve", "reason": "no licence", "decision_needed": "buy one or not", "at": "",
        "by": "",
    }  # fmt: skip
    told = prompt(service)
    assert "The task is escalated" in told
    assert "Escalated to Eve: no licence; buy one or not" in resuming.part(told, "Blocked")[0]


def test_a_resolution_lets_the_work_go_on_and_the_resumed_agent_is_told(
    service: CheckpointService,
) -> None:
    resuming.saved(service)
    tasks.escalate(service.node, "t", "Eve", "no licence", "buy one or not")
    shown = tasks.resolve(service.node, "t", "bought", "Eve")
    assert shown["status"] == "in_progress"
    assert "escalation" not in shown
    assert {**shown["resolution"], "at": ""} == {
        "original_blocker": "no licence", "resolution": "bought", "resolved_by": "Eve", "at": "",
    }  # fmt: skip
    assert resuming.part(prompt(service), "Blocked") == [
        "- Resolved by Eve: no licence. bought"
    ]  # fmt: skip
    resuming.saved(service)
    assert "Resolved by Eve" in prompt(service)


def test_what_else_is_said_of_a_task_stays(service: CheckpointService) -> None:
    tasks.add(service.node, "t", title="Title", budget=7)
    tasks.escalate(service.node, "t", "Eve", "why", "what")
    tasks.change(service.node, "t", title="Other")
    shown = tasks.show(service.node, "t")
    assert (shown["title"], shown["budget"], shown["escalation"]["to"]) == ("Other", 7, "Eve")


def test_a_deferred_task_is_due_when_its_time_has_come(service: CheckpointService) -> None:
    resuming.saved(service)
    shown = tasks.defer(service.node, "t", "2999-01-31T09:00+01:00", "waits for the release")
    assert shown["status"] == "waiting"
    assert shown["deferred"]["due"] is False
    assert "deferred until 2999-01-31T09:00+01:00 (waits for the release)" in prompt(service)
    shown = tasks.defer(service.node, "t", "2001-01-31T09:00+01:00")
    assert shown["deferred"]["due"] is True
    assert "that time has come" in prompt(service)
    assert tasks.defer(service.node, "t")["deferred"]["due"] is False
    assert "deferred" not in tasks.resolve(service.node, "t", "released")


@pytest.mark.parametrize(
    "call",
    [
        lambda node: tasks.defer(node, "t", "tomorrow"),
        lambda node: tasks.escalate(node, "t", " ", "why", "what"),
        lambda node: tasks.escalate(node, "t", "Eve", "", "what"),
        lambda node: tasks.resolve(node, "t", " "),
    ],
)
def test_what_says_nothing_is_refused(service: CheckpointService, call: Any) -> None:
    resuming.saved(service)
    before = tasks.show(service.node, "t")
    with pytest.raises(InvalidInputError):
        call(service.node)
    assert tasks.show(service.node, "t") == before


def test_secrets_are_taken_out_of_these_texts(service: CheckpointService) -> None:
    resuming.saved(service)
    tasks.escalate(service.node, "t", "Eve", f"token {TOKEN}", TOKEN)
    tasks.resolve(service.node, "t", f"use {TOKEN}")
    tasks.defer(service.node, "t", reason=TOKEN)
    bodies = service.node.store.connection.execute("SELECT body FROM log").fetchall()
    assert not any(TOKEN.encode() in body for (body,) in bodies)
    assert TOKEN not in str(tasks.show(service.node, "t"))


def test_the_command_line(runner: machines.Runner, service: CheckpointService) -> None:
    resuming.saved(service)
    machine = Machine(runner, service.node.home)
    words = ("--to", "Eve", "--reason", "no licence", "--decision", "buy one or not")
    assert machine.json("task", "escalate", "t", *words)["status"] == "escalated"
    shown = machine.ok("task", "show", "t").out
    assert "Escalated   to Eve" in shown
    assert "To decide   buy one or not" in shown
    machine.ok("task", "resolve", "t", "--resolution", "bought", "--by", "Eve")
    assert "Resolved    by Eve: bought (no licence)" in machine.ok("task", "show", "t").out
    machine.ok("task", "defer", "t", "--until", "2001-01-31T09:00Z")
    assert "due now" in machine.ok("task", "show", "t").out
    assert "waiting, due" in machine.ok("task", "list").out
    assert machine.fails(2, "task", "defer", "t", "--until", "soon")["remedy"]
    assert machine.fails(4, "task", "defer", "nothing")["code"] == "not_found"


# --- where the work stands ----------------------------------------------------------------------


def heads(service: CheckpointService, **options: Any) -> list[str]:
    return [head["checkpoint_id"] for head in tasks.heads(service.node, "t", **options)]


def forked(crew: devices.Team) -> tuple[devices.Device, devices.Device, str, str]:
    """Two machines went on from the same checkpoint; the second one is the newest."""
    one, two = crew.device(), crew.device()
    resuming.saved(one.service)
    crew.settle()
    first = resuming.saved(one.service, execution_state={"completed_items": ["first"]})
    resuming.saved(two.service)
    second = resuming.saved(two.service, execution_state={"completed_items": ["second"]})
    crew.settle()
    return one, two, first, second


@pytest.mark.parametrize("older", [True, False])
def test_a_chosen_head_goes_on_and_the_others_are_decided_against_everywhere(
    crew: devices.Team, older: bool
) -> None:
    one, two, first, second = forked(crew)
    chosen, other = (first, second) if older else (second, first)
    assert heads(one.service) == [second, first]
    done = conflicts.choose(one.node, chosen, "t")
    assert done["decided_against"] == [other]
    crew.settle()
    for device in (one, two):
        assert conflicts.everything(device.node, "open") == []
        (head,) = heads(device.service)
        assert head == done["current"] == device.node.store.current_id("t")
        assert other in heads(device.service, decided=True)
        assert "went on in" not in prompt(device.service)
        content = device.service.get_checkpoint(head)
        assert content.execution_state.completed_items == ["first" if older else "second"]
        assert (head == chosen) == (not older)
        assert head == chosen or content.recovery.last_successful_state == chosen
        assert device.problems() == []


def test_what_a_fenced_off_writer_left_is_marked_and_can_be_chosen(
    service: CheckpointService,
) -> None:
    start = resuming.saved(service)
    mine = ("ann", service.node.store.device_id)
    tenure.take(service.node, "t", start, "bob", mine, 0)
    branch = resuming.saved(service, execution_state={"completed_items": ["late"]})
    newest = resuming.saved(service, metadata={"agent_id": "bob"})
    listed = {head["checkpoint_id"]: head["fenced"] for head in tasks.heads(service.node, "t")}
    assert listed == {newest: False, branch: True}
    done = conflicts.choose(service.node, branch)
    assert heads(service) == [done["current"]]
    assert service.node.store.current_id("t") == done["current"]
    current = service.get_checkpoint(done["current"])
    assert current.execution_state.completed_items == ["late"]
    assert (current.metadata.handoff_from, current.recovery.last_successful_state) == (
        "ann", branch)  # fmt: skip


def test_the_holders_head_can_be_chosen_though_the_branch_is_newer(crew: devices.Team) -> None:
    one, two = crew.device(), crew.device()
    start = resuming.saved(one.service)
    crew.settle()
    tenure.take(two.node, "t", start, "bob", ("ann", one.node.store.device_id), 0)
    crew.settle()
    held = resuming.saved(two.service, metadata={"agent_id": "bob"})
    two.sync()
    branch = resuming.saved(one.service)
    crew.settle()
    assert [conflict.entity_id for conflict in conflicts.everything(one.node, "open")] == [held]
    assert conflicts.choose(two.node, held)["current"] == held
    crew.settle()
    for device in (one, two):
        assert heads(device.service) == [held]
        assert heads(device.service, decided=True) == [branch, held]
        assert conflicts.everything(device.node, "open") == []


def test_what_goes_on_after_it_was_decided_against_is_listed_again(
    service: CheckpointService,
) -> None:
    start = resuming.saved(service)
    left = resuming.saved(service, parent=start)
    right = resuming.saved(service, parent=start)
    conflicts.choose(service.node, right)
    assert heads(service) == [right]
    more = resuming.saved(service, parent=left)
    assert heads(service) == [more, right]


def test_a_choice_must_be_an_intact_head_of_its_task(service: CheckpointService) -> None:
    start = resuming.saved(service)
    left, right = (resuming.saved(service, parent=start) for _ in range(2))
    before = service.node.store.connection.execute("SELECT COUNT(*) FROM log").fetchone()
    with pytest.raises(UsageError, match="is no head"):
        conflicts.choose(service.node, start)
    with pytest.raises(CheckpointNotFoundError):
        conflicts.choose(service.node, left, "another")
    service.node.store.connection.execute("UPDATE log SET body = x'' WHERE entry_id = ?", (left,))
    with pytest.raises(CheckpointCorruptionError):
        conflicts.choose(service.node, left)
    assert service.node.store.connection.execute("SELECT COUNT(*) FROM log").fetchone() == before
    assert not facts.concerning(service.node, CHOICE, right)


def test_choosing_on_the_command_line(runner: machines.Runner, service: CheckpointService) -> None:
    start = resuming.saved(service)
    left, right = (resuming.saved(service, parent=start) for _ in range(2))
    machine = Machine(runner, service.node.home)
    assert machine.fails(2, "task", "choose", "t", left, right)["code"] == "usage"
    done = machine.json("task", "choose", "t", left)
    assert done["decided_against"] == [right]
    assert [head["checkpoint_id"] for head in machine.json("task", "heads", "t")] == [
        done["current"]]  # fmt: skip
    assert "decided against" in machine.ok("task", "heads", "t", "--all").out
    service.node.store.connection.execute("UPDATE log SET body = x'' WHERE entry_id = ?", (right,))
    assert machine.fails(5, "task", "choose", right)["code"] == "corrupt"
