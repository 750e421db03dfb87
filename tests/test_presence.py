"""Who is alive, as far as can be known: by heartbeats and checkpoints, here and on other machines;
and what follows from silence, once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from daemons import ann, bob, daemon_of, online, status, until
from devices import Device, Team, Timed, cloud, crew
from machines import Machine, runner, team
from machines import Team as Machines

from syncd import (
    CheckpointService,
    agents,
    clock,
    facts,
    liveness,
    messages,
    presence,
    rotation,
    sealing,
    tasks,
    tenure,
)
from syncd.daemon import desktop, housekeeping
from syncd.entry import AGENT
from syncd.errors import InvalidInputError, KeyChangedError
from syncd.node import Node
from syncd.status import status as told

__all__ = ["ann", "bob", "cloud", "crew", "runner", "team"]

MINUTE, DAY = 60_000, 24 * 60 * 60_000


class Place(Timed):
    def later(self, ms: int) -> Place:
        self.now += ms
        return self

    def write(self, task: str = "t", agent: str = "ann", **state: Any) -> str:
        written = self.service.create_checkpoint(task, agent, state)
        return str(written.metadata.checkpoint_id)

    def states(self, *, everything: bool = False) -> dict[tuple[str, str], str]:
        found = agents.listed(self.node, everything=everything)
        return {(a["agent_id"], a["task_id"]): a["state"] for a in found}

    def scan(self) -> list[str]:
        return [f"{event.kind} {event.agent}" for event in liveness.scan(self.node)]

    def recorded(self) -> list[str]:
        return [fact.meta["state"] for fact in facts.every(self.node, AGENT)]

    def entries(self) -> int:
        return int((self.node.store.row("counts_here") or (0,))[0])

    def notices(self) -> list[str]:
        document = told(self.node)
        assert document["verdict"] == "ok"
        return [notice["what"] for notice in document["notices"]]

    def foreign(self, agent: str, task: str, age_ms: int, device: str = "elsewhere") -> None:
        """What the replica would have told just now of another device."""
        with self.node.store.transaction():
            sign = (device, agent, task, "", "", self.now - age_ms)
            self.node.store.change("put_sign", sign)
            self.node.store.change("put_state", ("presence_as_of", str(self.now)))


@pytest.fixture
def place(home: Path) -> Iterator[Place]:
    made = Place(home)
    yield made
    made.node.close()


# --- signs of life --------------------------------------------------------------------------------


def test_a_heartbeat_is_a_row_and_no_entry(place: Place) -> None:
    presence.heartbeat(place.node, "ann", "t", "qa", "s1")
    assert place.entries() == 0
    (found,) = agents.listed(place.node)
    assert found == {
        "agent_id": "ann", "task_id": "t", "agent_type": "qa", "session_id": "s1",
        "device_id": place.node.store.device_id, "state": "active", "why": "",
        "last_seen": clock.iso(place.now), "age_s": 0.0,
        "next_expected": clock.iso(place.now + 15 * MINUTE), "warned_since": None,
        "crashed_since": None,
    }  # fmt: skip


def test_type_and_session_stay_until_others_are_named(place: Place) -> None:
    presence.heartbeat(place.node, "ann", "t", "qa", "s1")
    presence.heartbeat(place.node, "ann", "t", session="s2")
    presence.heartbeat(place.later(MINUTE).node, "ann", "t")
    (found,) = agents.listed(place.node)
    assert (found["agent_type"], found["session_id"], found["age_s"]) == ("qa", "s2", 0.0)


def test_a_heartbeat_a_moment_after_another_is_not_written(place: Place) -> None:
    """A hook gives one at every use of a tool; a sixtieth of the interval is 15 seconds."""
    first = presence.heartbeat(place.node, "ann", "t")
    assert presence.heartbeat(place.later(14_999).node, "ann", "t") == first
    assert presence.heartbeat(place.later(1).node, "ann", "t").seen_ms == place.now
    place.later(-MINUTE)  # the clock was set back: the new time counts
    assert presence.heartbeat(place.node, "ann", "t").seen_ms == place.now


@pytest.mark.parametrize(
    ("agent", "task", "session", "why"),
    [
        ("", "t", "", "the agent id is empty"),
        ("a\nb", "t", "", "control character"),
        ("a", "t\0", "", "control character"),
        ("a", "t", "x" * 513, "513 characters"),
        ("ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "t", "", "looks like a secret"),
    ],
)
def test_names_that_others_must_not_see_or_cannot_read_are_refused(
    place: Place, agent: str, task: str, session: str, why: str
) -> None:
    with pytest.raises(InvalidInputError, match=why):
        presence.heartbeat(place.node, agent, task, session=session)
    assert agents.listed(place.node) == []


@pytest.mark.parametrize(
    ("ms", "state"),
    [
        (30 * MINUTE - 1, "active"), (30 * MINUTE, "active"), (30 * MINUTE + 1, "warning"),
        (60 * MINUTE - 1, "warning"), (60 * MINUTE, "warning"), (60 * MINUTE + 1, "crashed"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by", ["heartbeat", "checkpoint", "new version"])
def test_the_thresholds_are_strict(place: Place, by: str, ms: int, state: str) -> None:
    if by == "heartbeat":
        presence.heartbeat(place.node, "ann", "t")
    else:
        written = place.write()
        if by == "new version":
            changes = {"execution_state": {"current_focus": "x"}}
            place.later(3 * DAY).service.update_checkpoint(written, changes)
    assert place.later(ms).states() == {("ann", "t"): state}


def test_the_thresholds_are_settings(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HEARTBEAT", "1"), ("WARNING", "2"), ("CRASHED", "3.5")):
        monkeypatch.setenv(f"SYNCD_LIVENESS_{name}_MINUTES", value)
    place.node.reload()
    presence.heartbeat(place.node, "ann", "t")
    for ms, state in ((2 * MINUTE, "active"), (1, "warning"), (MINUTE * 3 // 2, "crashed")):
        assert place.later(ms).states() == {("ann", "t"): state}


def test_the_newest_of_heartbeat_and_checkpoint_counts(place: Place) -> None:
    presence.heartbeat(place.node, "ann", "t")
    place.later(40 * MINUTE).write()
    assert place.later(29 * MINUTE).states() == {("ann", "t"): "active"}
    presence.heartbeat(place.later(10 * MINUTE).node, "ann", "t")
    assert place.later(29 * MINUTE).states() == {("ann", "t"): "active"}


def test_a_heartbeat_without_a_task_speaks_for_all_of_the_agents_tasks(place: Place) -> None:
    for task in ("one", "two"):
        place.write(task)
    presence.heartbeat(place.later(50 * MINUTE).node, "ann")
    assert place.states() == {("ann", "one"): "active", ("ann", "two"): "active"}
    presence.heartbeat(place.node, "bob")
    assert place.states()["bob", ""] == "active"


# --- of whom nothing is expected ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"status": "waiting"}, "waiting"), ({"status": "blocked"}, "blocked"),
        ({"status": "escalated"}, "escalated"), ({"status": "complete"}, "complete"),
        ({"status": "failed"}, "failed"), ({"phase": "handoff"}, "handoff"),
    ],
)  # fmt: skip
def test_nobody_waits_for_an_agent_that_says_it_does_not_go_on(
    place: Place, state: dict[str, str], why: str
) -> None:
    place.write(**state)
    assert place.states(everything=True) == {}, "of this one there is nothing but its word"
    presence.heartbeat(place.node, "ann", "t")
    assert place.states() == {("ann", "t"): "active"}, "it lives, and may say so"
    assert place.later(2 * 60 * MINUTE).states() == {}
    (found,) = agents.listed(place.node, everything=True)
    assert (found["state"], found["why"]) == ("idle", why)
    assert place.scan() == []


def test_nobody_waits_for_the_agents_of_a_task_that_is_done_or_rests(place: Place) -> None:
    for task in ("complete", "failed", "waiting"):
        place.write(task)
        presence.heartbeat(place.node, "ann", task)
        tasks.change(place.node, task, status=task)
    place.write("never heard of", "cid")
    tasks.change(place.node, "never heard of", status="blocked")
    presence.heartbeat(place.node, "ann", "by another")
    place.write("by another", "bob", status="complete")
    assert place.later(2 * 60 * MINUTE).states() == {}
    assert place.scan() == []


def test_nobody_waits_for_an_agent_that_has_lost_its_task(place: Place) -> None:
    written = place.write()
    presence.heartbeat(place.node, "ann", "t")
    giver = ("ann", place.node.store.device_id)
    tenure.take(place.later(MINUTE).node, "t", written, "bob", giver, 0)
    assert place.later(2 * 60 * MINUTE).states() == {}
    assert place.states(everything=True) == {("ann", "t"): "idle"}
    assert place.scan() == []


def test_nobody_waits_for_an_agent_that_goes_on_elsewhere(place: Place) -> None:
    place.write()
    place.later(2 * 60 * MINUTE).foreign("ann", "t", 1_000)
    found = agents.listed(place.node, everything=True)
    assert [(a["state"], a["why"]) for a in found] == [("active", ""), ("idle", "elsewhere")]
    assert place.scan() == []


def test_nobody_waits_for_agents_of_long_ago(place: Place) -> None:
    """Whoever has old tasks lying about is not told of a hundred crashes."""
    place.write()
    presence.heartbeat(place.node, "bob", "u")
    place.later(7 * DAY + 1)
    assert place.states() == {}
    assert place.scan() == []
    assert told(place.node)["agents"] == {"active": 0, "warning": 0, "stale": 0}


# --- the end --------------------------------------------------------------------------------------


def test_an_agent_that_has_ended_is_not_missed(place: Place) -> None:
    presence.heartbeat(place.node, "ann", "t")
    presence.heartbeat(place.node, "ann", "u")
    presence.ended(place.node, "ann", "t")
    assert place.states(everything=True) == {("ann", "u"): "active"}
    assert place.entries() == 0, "it had written nothing that says it goes on"
    presence.ended(place.node, "ann")
    assert place.states(everything=True) == {}


def test_that_it_has_ended_is_an_entry_where_its_checkpoint_says_otherwise(place: Place) -> None:
    place.write()
    presence.heartbeat(place.node, "ann", "t")
    presence.ended(place.node, "ann", "t")
    assert place.recorded() == ["ended"]
    assert place.states() == {}
    assert place.states(everything=True) == {("ann", "t"): "ended"}
    assert place.later(2 * 60 * MINUTE).scan() == []
    presence.heartbeat(place.node, "ann", "t")
    assert place.states() == {("ann", "t"): "active"}
    assert place.later(61 * MINUTE).scan() == ["warned ann", "crashed ann"]


# --- what follows from silence --------------------------------------------------------------------


def test_one_who_is_silent_is_warned_once_in_its_inbox(place: Place) -> None:
    place.write("a task")
    assert place.later(30 * MINUTE).scan() == []
    before = place.entries()
    assert place.later(1).scan() == ["warned ann"]
    assert place.scan() == []
    assert place.later(20 * MINUTE).scan() == []
    assert place.entries() == before + 2
    (message,) = messages.inbox(place.node, "ann")
    letter = messages.document(place.node, message)
    assert (letter["from"], letter["task_id"]) == ("syncd", "a task")
    assert "30 minutes" in letter["subject"]
    assert "`syncd heartbeat --agent ann --task 'a task'`" in letter["action"]
    assert "15 minutes" in letter["text"]
    assert "60 minutes" in letter["text"]
    assert letter["acknowledge"] == f"syncd message ack {message.id} --agent ann"
    (found,) = agents.listed(place.node)
    assert found["warned_since"] == message.fact.at
    assert found["crashed_since"] is None
    assert place.notices() == []


def test_one_who_stays_silent_is_presumed_to_have_crashed_and_the_user_is_told(
    place: Place,
) -> None:
    place.write()
    assert place.later(31 * MINUTE).scan() == ["warned ann"]
    assert tasks.show(place.node, "t")["reassign"] is False
    assert place.later(29 * MINUTE).scan() == []
    assert place.later(1).scan() == ["crashed ann"]
    assert place.scan() == place.later(DAY).scan() == []
    assert place.recorded() == ["warned", "crashed"]
    assert tasks.show(place.node, "t")["reassign"] is True
    assert [task["reassign"] for task in tasks.everything(place.node)] == [True]
    (notice,) = place.notices()
    assert notice.startswith("ann on task t is presumed to have crashed: no sign of life since 20")
    (found,) = agents.listed(place.node)
    assert found["warned_since"] < found["crashed_since"]


def test_one_who_is_heard_again_has_recovered_and_can_be_warned_again(place: Place) -> None:
    place.write()
    place.later(31 * MINUTE).scan()
    place.later(30 * MINUTE).scan()
    presence.heartbeat(place.node, "ann", "t")
    assert place.scan() == ["recovered ann"]
    assert place.scan() == []
    assert tasks.show(place.node, "t")["reassign"] is False
    assert place.notices() == []
    (found,) = agents.listed(place.node)
    assert found["warned_since"] is found["crashed_since"] is None
    assert place.later(31 * MINUTE).scan() == ["warned ann"]
    assert len(messages.inbox(place.node, "ann")) == 2


def test_one_who_was_heard_and_fell_silent_again_unseen_is_warned_anew(place: Place) -> None:
    place.write()
    place.later(61 * MINUTE).scan()
    presence.heartbeat(place.node, "ann", "t")
    place.later(40 * MINUTE)  # the daemon did not run
    assert place.scan() == ["recovered ann"]
    assert place.scan() == ["warned ann"]


@pytest.mark.parametrize("how", ["another is at work", "taken over", "complete", "archived"])
def test_a_task_that_somebody_goes_on_with_is_not_marked(place: Place, how: str) -> None:
    written = place.write()
    assert place.later(61 * MINUTE).scan() == ["warned ann", "crashed ann"]
    here = place.node.store.device_id
    if how == "another is at work":
        presence.heartbeat(place.node, "bob", "t")
    elif how == "taken over":
        tenure.take(place.node, "t", written, "bob", ("ann", here), 0)
    elif how == "archived":
        presence.transition(place.node, "t", "ann", here, "archived")
    else:
        place.write(agent="bob", status="complete")
    assert tasks.show(place.node, "t")["reassign"] is False
    assert place.scan() == []
    if how != "another is at work":
        assert place.notices() == []


def test_what_is_left_of_an_agent_is_shown_as_it_was_archived(place: Place) -> None:
    place.write()
    place.later(61 * MINUTE).scan()
    presence.transition(place.node, "t", "ann", place.node.store.device_id, "archived")
    assert place.states() == {}
    assert place.states(everything=True) == {("ann", "t"): "archived"}


@pytest.mark.parametrize(
    ("age", "found"),
    [
        (32 * MINUTE, []), (32 * MINUTE + 1, ["warned ann"]),
        (62 * MINUTE, ["warned ann"]), (62 * MINUTE + 1, ["warned ann", "crashed ann"]),
    ],
)  # fmt: skip
def test_other_machines_agents_get_two_minutes_more(
    place: Place, age: int, found: list[str]
) -> None:
    place.foreign("ann", "t", age)
    assert place.scan() == found


def test_what_the_agents_own_machine_has_said_is_not_taken_back_by_another(place: Place) -> None:
    """It is a little ahead of what others know."""
    presence.transition(place.node, "t", "ann", "elsewhere", "warned")
    for age in (31 * MINUTE, 30 * MINUTE - 1_000, 28 * MINUTE + 1):
        place.foreign("ann", "t", age)
        assert place.scan() == []
    place.foreign("ann", "t", 28 * MINUTE)
    assert place.scan() == ["recovered ann"]


def test_whoever_cannot_be_heard_is_not_taken_for_silent(place: Place) -> None:
    """The replica was last asked an hour ago: it knows more than this machine."""
    place.foreign("ann", "t", 20 * MINUTE)
    assert not agents.overdue(place.later(-6 * MINUTE).node)
    assert agents.overdue(place.later(60 * MINUTE).node)
    assert place.states() == {("ann", "t"): "active"}
    assert place.scan() == []
    place.foreign("ann", "t", 63 * MINUTE)
    assert place.scan() == ["warned ann", "crashed ann"]
    assert not agents.overdue(place.node), "nobody asks for ever after one that is gone"


# --- claims that lost -----------------------------------------------------------------------------


def test_a_claim_that_lost_is_told_to_the_agent_and_the_user_once(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    written = one.service.create_checkpoint("t", "ann").metadata.checkpoint_id
    crew.settle()
    giver = ("ann", one.node.store.device_id)
    for device, agent in ((one, "bob"), (two, "cid")):
        tenure.take(device.node, "t", str(written), agent, giver, 0)
    crew.settle()
    assert [event.kind for event in liveness.scan(one.node)] == []
    (event,) = liveness.scan(two.node)
    assert (event.kind, event.agent, event.task_id) == ("lost", "cid", "t")
    assert liveness.scan(two.node) == []
    (message,) = messages.inbox(two.node, "cid")
    assert "Task t is another's" in messages.document(two.node, message)["subject"]
    for device, count in ((one, 0), (two, 1)):
        found = liveness.notices(device.node, agents.everybody(device.node))
        assert len([n for n in found if "another came first" in n["what"]]) == count
    messages.acknowledge(two.node, message.id)
    assert liveness.notices(two.node, agents.everybody(two.node)) == []


# --- other machines -------------------------------------------------------------------------------


def met(*devices: Device) -> None:
    """Everybody tells, and hears what the last one told."""
    for device in (*devices, *devices):
        device.sync()
        agents.exchange(device.node, device.engine, agents.own_signs(device.node))


def seen_by(device: Device) -> dict[tuple[str, str], tuple[str, float]]:
    found = agents.listed(device.node)
    return {(a["agent_id"], a["task_id"]): (a["state"], a["age_s"]) for a in found}


@pytest.mark.parametrize("hours", [-3, 0, 3])
@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_no_clock_but_the_replicas_counts_between_machines(
    crew: Team, whose: str, hours: int
) -> None:
    one, two = crew.device(), crew.device()
    (one if whose == "theirs" else two).skew_ms = hours * 60 * MINUTE
    presence.heartbeat(one.node, "ann", "t", "qa", "s")
    one.service.create_checkpoint("u", "bob")
    met(one, two)
    found = seen_by(two)
    assert {name: state for name, (state, _) in found.items()} == {
        ("ann", "t"): "active", ("bob", "u"): "active",
    }  # fmt: skip
    assert found["ann", "t"][1] < 30
    crew.sql("UPDATE syncd.agents SET seen_at = seen_at - interval '63 minutes'"
             " WHERE agent_id = %s AND organization_id = %s", "ann")  # fmt: skip
    two.replica.presence(two.node.store.device_id, [])
    agents.exchange(two.node, two.engine, [])
    assert [event.kind for event in liveness.scan(two.node)] == ["warned", "crashed"]


def test_who_was_connected_before_the_key_changed_says_nothing_under_the_new_id(crew: Team) -> None:
    """Which the replica does not know yet: it would be refused as another's."""
    device = crew.device()
    engine = device.engine
    engine.sync()
    sealing.rotate_signing(device.node)
    with pytest.raises(KeyChangedError):
        engine.report()
    with pytest.raises(KeyChangedError):
        agents.exchange(device.node, engine, [])
    device.sync()
    agents.exchange(device.node, device.engine, [])


@pytest.mark.parametrize("hours", [0, 3])
def test_where_only_a_checkpoint_is_known_it_is_dated_by_the_replicas_clock_too(
    crew: Team, hours: int
) -> None:
    one, two = crew.device(), crew.device()
    two.skew_ms = hours * 60 * MINUTE
    one.service.create_checkpoint("u", "bob")
    crew.settle()
    with two.node.store.transaction():
        two.exchange.put_state("skew_ms", str(two.skew_ms))
    state, age = seen_by(two)["bob", "u"]
    assert (state, age < 30) == ("active", True)


def test_who_has_ended_is_gone_everywhere(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    for task in ("t", "u"):
        presence.heartbeat(one.node, "ann", task)
    met(one, two)
    assert {*seen_by(two)} == {("ann", "t"), ("ann", "u")}
    presence.ended(one.node, "ann", "t")
    met(one, two)
    assert {*seen_by(two)} == {*seen_by(one)} == {("ann", "u")}
    assert crew.sql("SELECT task_id FROM syncd.agents WHERE organization_id = %s") == [("u",)]


def test_several_machines_that_find_out_at_once_send_one_message(crew: Team) -> None:
    one, two, three = crew.device(), crew.device(), crew.device()
    presence.heartbeat(one.node, "ann", "t")
    met(one, two, three)
    crew.sql("UPDATE syncd.agents SET seen_at = seen_at - interval '33 minutes'"
             " WHERE organization_id = %s")  # fmt: skip
    for device in (two, three):
        agents.exchange(device.node, device.engine, [])
        assert [event.kind for event in liveness.scan(device.node)] == ["warned"]
    crew.settle()
    for device in crew.devices:
        assert len(messages.inbox(device.node, "ann")) == 1
        assert device.problems() == []
    assert crew.sql("SELECT count(*) FROM syncd.messages WHERE organization_id = %s") == [(1,)]
    for device in (two, three):
        assert liveness.scan(device.node) == []


def test_a_device_under_another_id_is_the_same_machine(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    presence.heartbeat(one.node, "ann", "t")
    one.service.create_checkpoint("t", "ann")
    met(one, two)
    rotation.change(one.exchange, one.home / "keys", "tester", "")
    crew.sql("UPDATE syncd.agents SET seen_at = seen_at - interval '63 minutes'"
             " WHERE organization_id = %s")  # fmt: skip
    presence.heartbeat(one.node, "ann", "t")
    met(one, two)
    for device in (one, two):
        assert seen_by(device)["ann", "t"][0] == "active"
        assert liveness.scan(device.node) == []


def test_an_auditor_hears_and_says_nothing(team: Machines, ann: Machine) -> None:
    with team.administration() as admin:
        login = admin.add_member(team.organization_id, "eve", "auditor", "laptop")
    eve = team.machine(str(login.dsn))
    ann.ok("heartbeat", "--agent", "ann", "--task", "t")
    eve.ok("heartbeat", "--agent", "eve", "--task", "t")
    ann.sync()
    eve.sync()
    assert {a["agent_id"] for a in eve.json("agents")} == {"ann", "eve"}
    ann.sync()
    assert {a["agent_id"] for a in ann.json("agents")} == {"ann"}


# --- daemons --------------------------------------------------------------------------------------

# A minute of the real thing in a second and a half.
FAST = {
    "SYNCD_LIVENESS_HEARTBEAT_MINUTES": "0.02",
    "SYNCD_LIVENESS_WARNING_MINUTES": "0.03",
    "SYNCD_LIVENESS_CRASHED_MINUTES": "0.06",
}


def state_at(machine: Machine, agent: str) -> str | None:
    found = machine.json("agents", "--all")
    return next((str(a["state"]) for a in found if a["agent_id"] == agent), None)


def test_a_machine_that_dies_with_its_agent_is_missed_on_the_other(
    team: Machines, ann: Machine, bob: Machine
) -> None:
    for machine in (ann, bob):
        machine.environment.update(FAST)
    with online(ann, bob) as (a, _):
        ann.ok("heartbeat", "--agent", "ann", "--task", "t", "--session", "s")
        until(lambda: state_at(bob, "ann"))
        (found,) = bob.json("agents", "--task", "t")
        assert (found["session_id"], found["device_id"]) == ("s", ann.state("device_id"))
        a.process.kill()
        until(lambda: status(bob)["notices"])
        (notice,) = status(bob)["notices"]
        assert notice["what"].startswith("ann on task t is presumed to have crashed")
        until(lambda: "crashed" in [fact.meta["state"] for fact in recorded_at(bob)])
        assert bob.json("task", "show", "t")["reassign"]
    shown = bob.ok("status").out
    assert "- ann on task t is presumed to have crashed" in shown
    assert "1 presumed to have crashed" in shown
    assert "in_progress, reassign" in bob.ok("task", "list").out
    assert "presumed to have crashed: another may take over" in bob.ok("task", "show", "t").out
    assert bob.json("task", "list")[0]["reassign"] is True
    (letter,) = bob.json("inbox", "ann")
    assert letter["from"] == "syncd"
    # Both machines may have noticed the silence before the one was killed.
    kinds = groupby(fact.meta["state"] for fact in recorded_at(bob))
    assert [kind for kind, _ in kinds] == ["warned", "crashed"]


def recorded_at(machine: Machine) -> list[facts.Fact]:
    with closing(Node(machine.home)) as node:
        return facts.every(node, AGENT)


def test_a_daemon_warns_its_own_agents_and_hears_them_again(ann: Machine, tmp_path: Path) -> None:
    alone = Machine(ann._runner, tmp_path / "alone", **FAST)
    alone.ok("init")
    with daemon_of(alone) as d:
        d.ready()
        alone.create("t")
        until(lambda: alone.json("inbox", "ann"))
        until(lambda: d.events("stale scan"))
        alone.ok("message", "ack", alone.json("inbox", "ann")[0]["id"], "--agent", "ann")
        alone.ok("heartbeat", "--agent", "ann", "--task", "t")
        until(lambda: "recovered" in [f.meta["state"] for f in recorded_at(alone)])
        assert alone.json("inbox", "ann") == [] or len(recorded_at(alone)) > 2


def spoken(team: Machines) -> int:
    """How often the replica was told of signs of life, or asked for them."""
    calls = "SELECT calls FROM pg_stat_user_functions WHERE funcname = 'presence'"
    return int(team.sql(calls)[0][0])


def test_a_daemon_hears_at_once_what_a_machine_without_one_says(ann: Machine, bob: Machine) -> None:
    ann.ok("init")
    with online(bob):
        ann.ok("heartbeat", "--agent", "eve", "--task", "t")
        ann.sync()
        until(lambda: "eve" in [a["agent_id"] for a in bob.json("agents", "--all")])


def test_a_daemon_tells_who_comes_and_goes_at_once_and_who_is_still_there_now_and_then(
    team: Machines, ann: Machine, bob: Machine
) -> None:
    team.sql(f"ALTER DATABASE \"{team.database}\" SET track_functions = 'all'")
    with online(ann, bob):
        ann.ok("heartbeat", "--agent", "ann", "--task", "t")
        until(lambda: state_at(bob, "ann"))
        time.sleep(2.5)  # so long the one before keeps it back, and the server its statistics
        before = spoken(team)
        for _ in range(5):
            ann.sql("UPDATE presence SET seen_ms = seen_ms + 1")
            time.sleep(0.3)
        time.sleep(1.5)
        assert spoken(team) == before
        ann.ok("heartbeat", "--agent", "ann", "--ended")
        until(lambda: not team.sql("SELECT 1 FROM syncd.agents"))
        until(lambda: state_at(bob, "ann") is None)


# --- the desktop ----------------------------------------------------------------------------------


def notifier(folder: Path, body: str) -> dict[str, str]:
    """A desktop, as far as the daemon can see."""
    folder.mkdir()
    program = folder / "notify-send"
    program.write_text(f"#!{sys.executable}\nimport pathlib, sys, time\n{body}\n")
    program.chmod(0o755)
    return {"PATH": str(folder), "DISPLAY": ":0"}


SHOWN = "pathlib.Path(__file__).with_name('shown').write_text('\\n'.join(sys.argv[1:]))"


@pytest.mark.skipif(sys.platform == "darwin", reason="notify-send is Linux's")
def test_the_user_is_told_on_the_desktop_of_a_crash_and_of_nothing_else(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in notifier(tmp_path / "bin", SHOWN).items():
        monkeypatch.setenv(name, value)
    shown = tmp_path / "bin" / "shown"
    place.write(agent="--x")
    place.later(31 * MINUTE)
    assert housekeeping.stale_agents(place.node) == {"warned": ["--x (t)"]}
    assert not shown.exists()
    place.write("u", "bob")
    place.later(61 * MINUTE)
    assert housekeeping.stale_agents(place.node)["crashed"]
    words = shown.read_text().splitlines()
    assert words[-2] == "syncd"
    assert words[-1].endswith("is presumed to have crashed. And 1 more: syncd status")


@pytest.mark.skipif(sys.platform == "darwin", reason="notify-send is Linux's")
@pytest.mark.parametrize("body", ["time.sleep(60)", "sys.exit(1)", "raise Exception"])
def test_a_desktop_that_hangs_or_fails_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    for name, value in notifier(tmp_path / "bin", body).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(desktop, "_SECONDS", 0.3)
    desktop.notify("title", "text")


@pytest.mark.skipif(sys.platform == "darwin", reason="notify-send is Linux's")
def test_without_a_desktop_there_is_nobody_to_tell(tmp_path: Path) -> None:
    here = notifier(tmp_path / "bin", SHOWN)
    assert desktop.command("a", "b", here)[-3:] == ["--", "a", "b"]
    assert desktop.command("a", "b", {"PATH": here["PATH"]}) == []
    assert desktop.command("a", "b", {**here, "PATH": "/nonexistent"}) == []


# --- the command line and the library -------------------------------------------------------------


def test_the_library_gives_signs_of_life_too(service: CheckpointService) -> None:
    service.heartbeat("ann", "t", agent_type="qa", session="s", started_by="boss")
    (found,) = agents.listed(service.node)
    assert (found["agent_id"], found["agent_type"], found["session_id"]) == ("ann", "qa", "s")
    service.heartbeat("ann", "t", ended=True)
    assert agents.listed(service.node) == []


def test_a_heartbeat_loads_nothing_that_it_does_not_need(home: Path) -> None:
    words = ["heartbeat", "--agent", "ann", "--task", "t"]
    heavy = ("pydantic", "psycopg", "apscheduler", "sqlite_utils", "cryptography", "rich",
             "syncd.facts", "syncd.redaction")  # fmt: skip
    program = (
        f"import sys; sys.argv[1:] = {words!r}\nfrom syncd.cli import main\n"
        f"try: main()\nexcept SystemExit as stop: print(stop.code, [n for n in {heavy!r} if n in "
        "sys.modules])"
    )
    for _ in range(2):  # the first one makes the home
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.fixture
def alone(runner: Any, tmp_path: Path) -> Machine:
    return Machine(runner, tmp_path / "alone")


def test_the_commands_say_who_is_at_work(alone: Machine) -> None:
    first = alone.json("heartbeat", "--agent", "ann", "--task", "t", "--agent-type", "qa")
    assert first["state"] == "active"
    assert first["next_expected"] > first["last_seen"]
    alone.create("u", "--status", "waiting")
    alone.ok("heartbeat", "--agent", "bob", "--task", "v")
    assert {a["agent_id"] for a in alone.json("agents")} == {"ann", "bob"}
    assert [a["agent_id"] for a in alone.json("agents", "--task", "v")] == ["bob"]
    alone.skew_ms = 61 * MINUTE
    shown = alone.ok("agents").out
    assert shown.count("presumed crashed") == 2
    said = alone.ok("heartbeat", "--agent", "bob", "--task", "v", "--ended").out
    assert said == "bob has ended.\n"
    assert alone.json("agents", "--task", "v") == []
    assert alone.ok("agents", "--task", "v").out == "Nobody is at work.\n"


def test_an_agent_must_be_named(alone: Machine) -> None:
    error = alone.fails(2, "heartbeat", "--task", "t")
    assert "--agent" in error["message"]
    assert alone.ok("heartbeat", SYNCD_AGENT="ann", SYNCD_TASK="t").out.startswith("ann is alive")
