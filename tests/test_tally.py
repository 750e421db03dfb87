"""What status tells of everything without looking at everything is what a look at it would tell."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import tallies
from counts import full
from devices import Team, Timed, cloud, crew
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncd import (
    CheckpointService,
    agents,
    liveness,
    presence,
    projection,
    tally,
    tasks,
    tenure,
)
from syncd.errors import CheckpointError
from syncd.exchange import Exchange, Head
from syncd.node import Node
from syncd.status import status

__all__ = ["cloud", "crew"]

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
SPANS = (1, MINUTE, 20 * MINUTE, 45 * MINUTE, 2 * 60 * MINUTE, DAY, 6 * DAY, 8 * DAY, 30 * DAY)
ELSEWHERE = "elsewhere"


class Step(NamedTuple):
    """What happens, and three choices."""

    what: str
    a: int
    b: int
    c: int


class History(Timed):
    def play(self, step: Step) -> None:
        try:
            getattr(self, step.what)(f"task {step.a % 6}", f"agent {step.b % 3}", step.c)
        except CheckpointError:  # a task that another holds: said to the user
            return

    def write(self, task: str, agent: str, c: int) -> None:
        status = ("in_progress", "in_progress", "in_progress", "blocked")[c % 4]
        self.service.create_checkpoint(task, agent, {"status": status})

    def update(self, task: str, agent: str, c: int) -> None:
        if found := self.node.store.current_id(task):
            self.service.update_checkpoint(found, {"execution_state": {"current_focus": str(c)}})

    def finalize(self, task: str, agent: str, c: int) -> None:
        if found := self.node.store.current_id(task):
            self.service.finalize_checkpoint(found, "complete")

    def describe(self, task: str, agent: str, c: int) -> None:
        word = ("in_progress", "complete", "")[c % 3]
        tasks.change(self.node, task, status=word)

    def heartbeat(self, task: str, agent: str, c: int) -> None:
        presence.heartbeat(self.node, agent, task if c % 3 else "")

    def ended(self, task: str, agent: str, c: int) -> None:
        presence.ended(self.node, agent, task if c % 2 else "")

    def ended_elsewhere(self, task: str, agent: str, c: int) -> None:
        """A device may speak of another's agents."""
        store = self.node.store
        head = Head(*store.own_head())
        with store.transaction():
            hlc = presence.transition(self.node, task, agent, store.device_id, "ended").hlc
            told = "UPDATE log SET device_id = ? WHERE seq = (SELECT MAX(seq) FROM log)"
            store.connection.execute(told, (ELSEWHERE,))
            Exchange(store).put_anchor(head, hlc)

    def foreign(self, task: str, agent: str, c: int) -> None:
        with self.node.store.transaction():
            sign = (ELSEWHERE, agent, task, "", "", self.now - SPANS[c % len(SPANS)])
            self.node.store.change("put_sign", sign)
            self.node.store.change("put_state", ("presence_as_of", str(self.now)))
            self.node.store.change("put_state", ("skew_ms", str((c % 5 - 2) * 40 * MINUTE)))

    def scan(self, task: str, agent: str, c: int) -> None:
        liveness.scan(self.node)

    def take(self, task: str, agent: str, c: int) -> None:
        subject = self.node.store.current_id(task) or "nothing"
        tenure.take(self.node, task, subject, agent, ("agent 0", self.node.store.device_id), 0)

    def later(self, task: str, agent: str, c: int) -> None:
        self.now += SPANS[c % len(SPANS)]

    def earlier(self, task: str, agent: str, c: int) -> None:
        self.now -= SPANS[c % len(SPANS)]

    def keep(self, task: str, agent: str, c: int) -> None:
        tally.keep(self.node)

    def rebuild(self, task: str, agent: str, c: int) -> None:
        projection.rebuild(self.node.store)


WHATS = (
    "write", "write", "write", "write", "update", "finalize", "describe", "heartbeat", "heartbeat",
    "ended", "ended_elsewhere", "foreign", "scan", "scan", "take", "later", "later", "later",
    "earlier", "keep", "keep", "rebuild",
)  # fmt: skip
numbers = st.integers(0, 60)
steps = st.builds(Step, st.sampled_from(WHATS), numbers, numbers, numbers)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few entries are many."""
    monkeypatch.setattr(tally, "_FEW", 4)
    monkeypatch.setattr(tally, "_MANY", 12)


@settings(max_examples=full(6, 1_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(steps, min_size=30, max_size=60))
def test_it_says_what_a_look_at_everything_says(steps: list[Step]) -> None:
    with TemporaryDirectory() as home:
        history = History(Path(home))
        with closing(history.node):
            for step in steps:
                history.play(step)
                tallies.assert_it_is_true(history.node)


@pytest.fixture
def history(home: Path) -> Iterator[History]:
    made = History(home)
    with closing(made.node):
        yield made


def made_anew(node: Node) -> None:
    with node.store.transaction():
        node.store.change("forget_tally")
    tally.keep(node)


def test_who_is_presumed_to_have_crashed_is_missed_however_long_ago_that_was(
    history: History,
) -> None:
    history.write("t", "ann", 0)
    history.now += 2 * 60 * MINUTE
    liveness.scan(history.node)
    history.now += 30 * DAY
    made_anew(history.node)
    assert [agent.recorded for agent in tally.read(history.node).agents] == ["crashed"]
    tallies.assert_it_is_true(history.node)


def test_who_was_forgotten_by_a_wrong_clock_is_expected_by_the_right_one(history: History) -> None:
    history.write("t", "ann", 0)
    history.now += 30 * DAY
    made_anew(history.node)
    assert tally.read(history.node).agents == []
    history.now -= 30 * DAY
    assert [agent.state for agent in tally.read(history.node).agents] == ["active"]
    tallies.assert_it_is_true(history.node)


def test_whom_another_device_says_to_have_ended_is_judged_by_todays_difference_of_clocks(
    history: History,
) -> None:
    history.write("t", "ann", 0)
    history.ended_elsewhere("t", "ann", 0)
    made_anew(history.node)
    with history.node.store.transaction():
        history.node.store.change("put_state", ("skew_ms", str(-MINUTE)))
    assert status(history.node)["agents"]["active"] == 1
    tallies.assert_it_is_true(history.node)


def test_a_time_that_the_replica_has_cut_short_is_looked_at_again(crew: Team) -> None:
    device = crew.device(3 * 60 * MINUTE)
    device.service.create_checkpoint("t", "ann")
    made_anew(device.node)
    assert status(device.node)["agents"]["active"] == 1
    device.sync()
    assert status(device.node)["agents"]["stale"] == 1
    tallies.assert_it_is_true(device.node)


@pytest.fixture
def node(home: Path) -> Iterator[Node]:
    with closing(CheckpointService(home=home)) as service:
        for number in range(20):
            service.create_checkpoint(f"task {number % 3}", "ann")
        yield service.node


def kept(node: Node) -> Any:
    return node.store.row("state", ("tally",))


def test_it_is_written_only_after_so_many_entries(node: Node) -> None:
    status(node)
    first = kept(node)
    service = CheckpointService(node=node)
    for _ in range(4):
        service.create_checkpoint("task 0", "ann")
        assert status(node)["local"]["cursor"] == node.store.row("newest")[0]  # type: ignore[index]
        assert kept(node) == first
    service.create_checkpoint("task 0", "ann")
    assert status(node)["local"]["checkpoints"] == 25
    assert kept(node) != first


def test_who_cannot_write_it_looks_at_everything_and_waits_for_nobody(node: Node) -> None:
    with closing(sqlite3.connect(node.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        document = status(node)
        assert time.monotonic() - began < 5
    assert document["local"]["checkpoints"] == 20
    assert document["agents"] == {"active": 1, "warning": 0, "stale": 0}
    assert kept(node) is None


def test_what_is_long_over_is_not_looked_at_again(node: Node) -> None:
    """Three tasks, one agent at work: it is judged by the newest of them."""
    status(node)
    assert [agent.sign.agent_id for agent in tally.read(node).agents] == ["ann"]
    assert len(agents.everybody(node)) == 3
    presence.ended(node, "ann")
    made_anew(node)
    assert tally.read(node).agents == []


def test_an_agent_whose_newest_task_is_done_is_judged_by_the_one_before(history: History) -> None:
    history.write("before", "ann", 0)
    history.now += MINUTE
    history.write("newest", "ann", 0)
    made_anew(history.node)
    history.finalize("newest", "ann", 0)
    assert status(history.node)["agents"]["active"] == 1
    tallies.assert_it_is_true(history.node)


def test_it_asks_the_database_no_more_often_for_many_agents_than_for_one(node: Node) -> None:
    """Nor for many that wrote since it was kept."""
    few = asked_by_status(node)
    service = CheckpointService(node=node)
    for number in range(40):
        service.create_checkpoint(f"task {number}", f"agent {number}")
    made_anew(node)
    assert asked_by_status(node) == few
    assert status(node)["agents"]["active"] == 40
    service.create_checkpoint("task 0", "ann")
    one = asked_by_status(node)
    for agent in ("bea", "cas"):
        service.create_checkpoint(f"of {agent}", agent)
    assert asked_by_status(node) == one
    assert status(node)["agents"]["active"] == 42


def asked_by_status(node: Node) -> int:
    """Once the tally is as it is kept."""
    status(node)
    statements: list[str] = []
    node.store.connection.set_trace_callback(statements.append)
    status(node)
    node.store.connection.set_trace_callback(None)
    return len(statements)
