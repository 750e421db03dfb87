"""Whatever happens in whatever order, all devices and the replica end up with the same.

Histories are lists of small numbers: each step says what happens, to which device, and two choices
that it makes. Hypothesis turns a failing one into one in which nearly nothing happens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple

import pytest
import tallies
from counts import full
from devices import AFTER, BEFORE, Device, Team, cloud, team
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replicas import Cloud
from sameness import assert_the_same

from syncd import CheckpointService, conflicts, exchange, retention, sealing, tally, tasks, tenure
from syncd.errors import CheckpointError, ReplicaUnreachableError
from syncd.replica import device as replica_device

__all__ = ["cloud"]

HISTORIES = full(4, 500)
MOST_DEVICES = 5
HOUR = 3_600_000
SKEWS = (0, 0, 3 * HOUR, -3 * HOUR, 10 * 365 * 24 * HOUR)


class Step(NamedTuple):
    """What happens, to whom, and two choices."""

    what: str
    who: int
    a: int
    b: int


@pytest.fixture(scope="module", autouse=True)
def _small_batches() -> Iterator[None]:
    """So that few entries make many batches and pages, each of which can be cut off, and many
    tallies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "BATCH_ROWS", 3)
        patch.setattr(replica_device, "PAGE_ROWS", 4)
        patch.setattr(tally, "_FEW", 4)
        patch.setattr(tally, "_MANY", 12)
        yield


class History:
    """Devices to which things happen, and what their users were told is written."""

    def __init__(self, made: Team, skews: list[int]) -> None:
        self.team = made
        self.devices = [made.device(skew) for skew in skews]
        self.alone: set[Device] = set()
        self.told: dict[str, bytes] = {}
        self.doomed: set[str] = set()
        self._copies: dict[Device, Any] = {}
        self._rotated: set[Device] = set()

    def play(self, step: Step) -> None:
        device = self.devices[step.who % len(self.devices)]
        happen: Callable[[Device, int, int], None] = getattr(self, step.what)
        with suppress(CheckpointError):  # a finalized checkpoint, an id in use: said to the user
            happen(device, step.a, step.b)
        assert not (problems := device.problems()), (step, problems)
        tallies.assert_it_is_true(device.node)

    # --- what users do --------------------------------------------------------------------------

    def nothing(self, device: Device, a: int, b: int) -> None:
        pass

    def create(self, device: Device, a: int, b: int) -> None:
        """Now and then below a parent that is not the newest."""
        with self._noting(device.service) as service:
            parent = self._checkpoint(device, a) if b % 3 == 0 else None
            service.create_checkpoint(f"task {a % 2}", f"agent {b % 3}", parent=parent)

    def create_named(self, device: Device, a: int, b: int) -> None:
        """An id of the user's own, which may be in use elsewhere, for another task even."""
        with self._noting(device.service) as service:
            name = f"named {a % 4}"
            if b % 5 == 0:
                name = self._checkpoint(self.devices[a % len(self.devices)], b) or name
            service.create_checkpoint(f"task {b % 2}", "agent", checkpoint_id=name)

    def update(self, device: Device, a: int, b: int) -> None:
        if found := self._checkpoint(device, a):
            changes: dict[str, Any] = {"execution_state": {"current_focus": f"focus {b}"}}
            if b % 4 == 0:
                changes["recovery"] = {"last_successful_state": self._checkpoint(device, b)}
            with self._noting(device.service) as service:
                service.update_checkpoint(found, changes)

    def finalize(self, device: Device, a: int, b: int) -> None:
        if found := self._checkpoint(device, a):
            with self._noting(device.service) as service:
                service.finalize_checkpoint(found, ("complete", "failed")[b % 2])

    def link(self, device: Device, a: int, b: int) -> None:
        parent, child = self._checkpoint(device, a), self._checkpoint(device, b)
        if parent and child:
            with self._noting(device.service) as service:
                service.link_checkpoints(parent, child)

    def describe_task(self, device: Device, a: int, b: int) -> None:
        with self._noting(device.service) as service:
            if b % 2:
                tasks.add(service.node, f"task {a % 2}", title=f"title {b}")
            else:
                tasks.change(service.node, f"task {a % 2}", budget=b)

    def resolve(self, device: Device, a: int, b: int) -> None:
        found = conflicts.everything(device.node, "open")
        if found:
            decide = (conflicts.restore, conflicts.dismiss)[b % 2]
            with self._noting(device.service) as service:
                decide(service.node, found[a % len(found)].id)

    def claim(self, device: Device, a: int, b: int) -> None:
        """Somebody takes a task over, perhaps from the same place as another elsewhere."""
        task = f"task {a % 2}"
        with self._noting(device.service) as service:
            subject = device.node.store.current_id(task) or f"handoff {b % 3}"
            giver = (f"agent {a % 3}", self.devices[b % len(self.devices)].node.store.device_id)
            held = tenure.take(service.node, task, subject, f"agent {b % 3}", giver, 0)
            if b % 4 == 0:
                tenure.release(service.node, task, held.claim.entry_id)

    def erase(self, device: Device, a: int, b: int) -> None:
        found = self._checkpoint(device, a)
        if found and self._has_met_the_replica(device):
            self.doomed |= {row[0] for row in device.node.store.rows("bodies_of", (found,))}
            with self._noting(device.service) as service:
                retention.erase(service.node, found, f"reason {b}")

    def retain(self, device: Device, a: int, b: int) -> None:
        if not self._has_met_the_replica(device):
            return
        with self._noting(device.service) as service:
            policy = ("revisions:1", "revisions:2", "legal_hold", "default")[b % 4]
            tasks.change(service.node, f"task {a % 2}", retention=policy)
            self.doomed |= {doomed.entry_id for doomed in retention.plan(service.node)}
            retention.run(service.node)

    def _has_met_the_replica(self, device: Device) -> bool:
        """Before that, a purge counts at once: a copy of the home may still have the body, and a
        hold at the replica keeps that one."""
        return bool(device.exchange.state("organization"))

    # --- syncing, and what comes in between -----------------------------------------------------

    def exchange(self, device: Device, a: int, b: int) -> None:
        if device not in self.alone:
            push, pull = ((True, True), (True, False), (False, True))[a % 3]
            device.sync(push=push, pull=pull)

    def cut(self, device: Device, a: int, b: int) -> None:
        """The connection ends before one of the calls, or after it was done but not answered."""
        device.replica.arm(a % 20 + 1, (BEFORE, AFTER)[b % 2])
        with suppress(ReplicaUnreachableError):
            self.exchange(device, b, a)
        device.replica.disarm()

    def meanwhile(self, device: Device, a: int, b: int) -> None:
        """Another process of the same home writes, or another device syncs, during a sync."""
        others = [other for other in self.devices if other is not device]
        events = (
            partial(self._write_beside, device, a),
            partial(self._write_beside, device, a),
            partial(self.exchange, others[a % len(others)], b, a),
        )
        device.replica.arm(a % 12 + 1, (BEFORE, AFTER)[b % 2], events[b % len(events)])
        self.exchange(device, b, a)
        device.replica.disarm()

    def _write_beside(self, device: Device, a: int) -> None:
        service = CheckpointService(home=device.home)
        with self._noting(service):
            service.create_checkpoint(f"task {a % 2}", "beside")
            if a % 2 and (found := self._checkpoint(device, a)):
                with suppress(CheckpointError):
                    service.update_checkpoint(found, {"execution_state": {"current_focus": "b"}})
        service.close()

    def part(self, device: Device, a: int, b: int) -> None:
        self.alone.add(device)

    def meet(self, device: Device, a: int, b: int) -> None:
        self.alone.discard(device)

    # --- disasters ------------------------------------------------------------------------------

    def set_clock(self, device: Device, a: int, b: int) -> None:
        device.skew_ms = SKEWS[a % len(SKEWS)]

    def copy(self, device: Device, a: int, b: int) -> None:
        self._copies[device] = device.copy(self.team.place / f"copy {id(device)}.db")

    def restore(self, device: Device, a: int, b: int) -> None:
        """What was only on this disk after the copy is gone: nobody can bring that back."""
        if device in self._copies and not self._claimed_twice(device):
            before = device.entry_ids()
            device.restore(self._copies[device])
            gone = before - device.entry_ids() - self.at_replica()
            for other in self.devices:
                gone -= other.entry_ids()
            for entry_id in gone:
                del self.told[entry_id]

    def clone(self, device: Device, a: int, b: int) -> None:
        if len(self.devices) < MOST_DEVICES:
            self.devices.append(self.team.joined(device.clone(self.team.home(), image=bool(a % 2))))

    def rotate(self, device: Device, a: int, b: int) -> None:
        """Another key. A copy that is brought back afterwards has an id whose key is gone."""
        if self._shared(device, device.entry_ids()):
            return
        self._rotated.add(device)
        with self._noting(device.service) as service:
            sealing.rotate_signing(service.node, f"reason {a}")

    def _claimed_twice(self, device: Device) -> bool:
        """Whether an entry would go under one id here, since its key is gone, and under another on
        a copy of the home that has it signed: that looks like an attack, and is in quarantine
        until somebody decides."""
        with closing(sqlite3.connect(self._copies[device])) as copy:
            entries = {row[0] for row in copy.execute("SELECT entry_id FROM log")}
        return device in self._rotated and self._shared(device, entries)

    def _shared(self, device: Device, entries: set[str]) -> bool:
        """Whether some of these are on another device too, and not at the replica."""
        unsent = entries - self.at_replica()
        return any(unsent & other.entry_ids() for other in self.devices if other is not device)

    # --- what is there --------------------------------------------------------------------------

    def _checkpoint(self, device: Device, choice: int) -> str:
        found = device.rows("SELECT id FROM checkpoints ORDER BY hlc DESC, id DESC")
        return str(found[choice % len(found)][0]) if found else ""

    def _noting(self, service: CheckpointService) -> _Noted:
        return _Noted(self.told, service)

    def at_replica(self) -> set[str]:
        rows = self.team.sql("SELECT entry_id::text FROM syncd.log WHERE organization_id = %s")
        return {entry_id for (entry_id,) in rows}


class _Noted:
    """Keeps what a user's call has written, once it has returned without an error."""

    def __init__(self, told: dict[str, bytes], service: CheckpointService) -> None:
        self._told = told
        self._service = service
        self._connection = service.node.store.connection

    def __enter__(self) -> CheckpointService:
        found = self._connection.execute("SELECT coalesce(max(seq), 0) FROM log")
        self._before = found.fetchone()[0]
        return self._service

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            text = "SELECT entry_id, body FROM log WHERE seq > ? AND cloud_seq IS NULL"
            self._told.update(self._connection.execute(text, (self._before,)).fetchall())


# --- what must be the same ----------------------------------------------------------------------


def assert_all_is_there(history: History) -> None:
    """Everywhere the same, and that is what users were told is written."""
    made = history.team
    made.device().sync()
    bodies = assert_the_same(made.devices, made.cloud.sql, made.organization_id)
    gone = {entry for entry, body in bodies.items() if body is None}
    assert gone <= history.doomed, "only what somebody asked to purge is purged"
    refused = {
        row[0] for row in made.devices[-1].rows("SELECT entry_id FROM log WHERE refused > ''")
    }
    told = {entry: body for entry, body in history.told.items() if entry not in gone | refused}
    assert {entry: bodies.get(entry) for entry in told} == told


# --- histories ----------------------------------------------------------------------------------

# The first is what a shrunken history is made of; what is listed twice happens more often.
WHATS = (
    "nothing", "create", "create", "create", "create_named", "create_named", "update", "update",
    "update", "finalize", "erase", "erase", "retain", "retain", "link", "describe_task",
    "resolve", "resolve", "claim", "claim", "exchange", "exchange", "exchange", "exchange",
    "exchange", "cut", "cut", "meanwhile", "meanwhile", "part", "meet", "set_clock", "copy",
    "restore", "clone", "rotate", "rotate",
)  # fmt: skip
steps = st.builds(
    Step, st.sampled_from(WHATS), st.integers(0, 4), st.integers(0, 60), st.integers(0, 60)
)
skews = st.lists(st.sampled_from(SKEWS), min_size=2, max_size=4)


@settings(
    max_examples=HISTORIES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
@given(skews=skews, steps=st.lists(steps, min_size=60, max_size=80))
def test_all_devices_and_the_replica_converge_and_no_version_is_lost(
    cloud: Cloud, skews: list[int], steps: list[Step]
) -> None:
    with team(cloud) as made:
        history = History(made, skews)
        for step in steps:
            history.play(step)
        made.settle()
        assert_all_is_there(history)
