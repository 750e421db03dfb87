"""One seed from its beginning to its end."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import closing
from typing import NamedTuple

from sameness import assert_the_same

from soak.actions import Actions
from soak.faults import Faults
from soak.ground import Ground
from soak.invariants import CONVERGE, LOST, PROVE, Watcher
from soak.machine import Machine
from soak.schedule import Plan, Step
from soak.world import SURPRISE, BrokenError, World, world_of
from syncd import conflicts, proof
from syncd.daemon.exchanger import ONLINE
from syncd.errors import SyncdError

_ROUNDS = 40
_ROUND_MS = 61_000


class Failure(NamedTuple):
    """After which step what did not hold; -1 for the end."""

    step: int
    invariant: str
    found: str


class Played(NamedTuple):
    plan: Plan
    operations: int
    faults: Counter[str]
    entries: int
    digest: str
    failure: Failure | None
    history: tuple[str, ...]


def play(plan: Plan, ground: Ground) -> Played:
    with world_of(plan, ground) as world:
        game = _Game(world)
        failure = game.run()
        operations = sum(not step.is_fault for step in plan.steps)
        history = tuple(game.history)
        digest = "" if failure else _digest(world)
        return Played(plan, operations, world.faults, game.entries, digest, failure, history)


def _digest(world: World) -> str:
    """Of all logs: the same seed ends with the same, byte for byte."""
    text = "SELECT seq, chain, effective_hlc, cloud_seq, refused, purged FROM log ORDER BY seq"
    logs = [(machine.home.name, machine.rows(text)) for machine in world.machines]
    return hashlib.sha256(repr(logs).encode()).hexdigest()


class _Game:
    def __init__(self, world: World) -> None:
        self.world = world
        self.actions = Actions(world)
        self.faults = Faults(world, self.actions)
        self.watcher = Watcher(world)
        self.entries = 0
        self.history: list[str] = []

    def run(self) -> Failure | None:
        number = -1
        try:
            for step in self.world.plan.steps:
                number = step.number
                self._take(step)
                self.world.move_on()
                self.watcher.look()
            number = -1
            self._end()
        except BrokenError as broken:
            return Failure(number, broken.invariant, str(broken))
        except (Exception, AssertionError) as error:  # noqa: BLE001 (it is the finding)
            import traceback

            told = traceback.format_exc()
            return Failure(number, SURPRISE, f"{SURPRISE}: {error!r}\n{told}")
        return None

    def _take(self, step: Step) -> None:
        world = self.world
        world.pass_time(step.wait_ms)
        machine = world.machines[step.who % len(world.machines)]
        happen = getattr(self.faults if step.is_fault else self.actions, step.what)
        said = ""
        try:
            with world.acting(machine):
                happen(machine, step.a, step.b)
        except SyncdError as error:
            said = f": {error.message}"
            world.told(error, machine, step.what)
        finally:
            self.history.append(f"{step}  {machine.home.name}{said}")

    # --- the end ----------------------------------------------------------------------------------

    def _end(self) -> None:
        """Nothing goes wrong any more: the daemons alone bring everything everywhere."""
        self.world.calm()
        for machine in self.world.machines:
            machine.wire.land()
        self._settle()
        self._decide()
        self._recover()
        self._decide()  # of those that were sent again, too
        self._settle()
        self.watcher.look()
        self._compare()

    def _settle(self) -> None:
        for _ in range(_ROUNDS):
            self.world.pass_time(_ROUND_MS)
            for machine in self.world.machines:
                machine.tick()
            self.watcher.look()
            last = self.world.ground.last()
            if all(self._rests(machine, last) for machine in self.world.machines):
                return
        told = "; ".join(
            f"{m.home.name}: {m.exchange.pending_count()} to send, at {m.exchange.cursor()[0]},"
            f" {m.exchanger.cloud.last_error}"
            for m in self.world.machines
        )
        raise BrokenError(CONVERGE, f"after {_ROUNDS} minutes the replica is at {last}; {told}")

    def _rests(self, machine: Machine, last: int) -> bool:
        """Its daemon has just met the replica; a number alone may be one of a history that the
        replica has forgotten."""
        with self.world.acting(machine):
            waiting = machine.exchange.pending_count()
        met = machine.exchanger.cloud.state == ONLINE
        return met and not waiting and self.watcher.cursor(machine) == last

    def _recover(self) -> None:
        """What the replica and the machine that wrote it have both lost, others have: they may
        send it once the administrator has opened recovery."""
        if all(machine_proof(machine).ok for machine in self.world.machines):
            return
        if not self.world.faults["replica_restore"]:
            lacks = {m.home.name: machine_proof(m) for m in self.world.machines}
            raise BrokenError(PROVE, f"{lacks}")
        for machine in self.world.machines:
            if kept := set(machine_proof(machine).missing_in_cloud) & machine.own_entries():
                raise BrokenError(PROVE, f"{machine.home.name} has not sent {sorted(kept)} again")
        ground = self.world.ground
        ground.cloud.admin.set_recovery(ground.organization, is_open=True)
        for machine in self.world.machines:
            with self.world.acting(machine), closing(machine.line()) as line:
                proof.repair(machine.node.engine(line))

    def _decide(self) -> None:
        """The one thing that waits for a person here: purges that a legal hold has kept out."""
        for machine in self.world.machines:
            with self.world.acting(machine):
                for entry in conflicts.quarantined(machine.node, "open"):
                    if entry["reason"].endswith("its task is on legal hold"):
                        conflicts.drop(machine.node, entry["entry_id"])

    def _compare(self) -> None:
        told = {
            name: body for machine in self.world.machines for name, body in machine.told.items()
        } | self.world.returning
        fresh = self.world.join(self.world.home(), self.world.login(), 0)
        with self.world.acting(fresh):
            fresh.sync()
        try:
            found = assert_the_same(
                self.world.machines, self.world.ground.sql, self.world.ground.organization
            )
        except AssertionError as error:
            raise BrokenError(CONVERGE, str(error)) from None
        self.entries = len(found)
        for machine in self.world.machines:
            if not machine_proof(machine).ok:
                raise BrokenError(PROVE, f"{machine.home.name}: {machine_proof(machine)}")
        gone = _refused(fresh) | (_purged(fresh) & {n for n, body in found.items() if body is None})
        lost = {name for name, body in told.items() if found.get(name) != body and name not in gone}
        if lost:
            raise BrokenError(LOST, f"{sorted(lost)}")


def _refused(machine: Machine) -> set[str]:
    return {row[0] for row in machine.rows("SELECT entry_id FROM log WHERE refused IS NOT NULL")}


def _purged(machine: Machine) -> set[str]:
    """What somebody wanted to be gone, and the replica has agreed to."""
    text = (
        "SELECT n.value FROM log l, json_each(l.meta, '$.entries') n"
        " WHERE l.entity = 'purge' AND l.refused IS NULL"
    )
    return {row[0] for row in machine.rows(text)}


def machine_proof(machine: Machine) -> proof.Proof:
    with machine.world.acting(machine):
        return proof.prove(machine.exchange, machine.line())
