"""What users, agents and daemons do, one thing a step."""

from __future__ import annotations

from typing import Any

from soak.machine import Machine
from soak.world import World
from syncd import CheckpointService, conflicts, messages, offering, offers, retention, tasks, tenure
from syncd.offering import Wish
from syncd.offers import Taker


class Noted:
    """Keeps what a user's call has written, once it has returned without an error."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __enter__(self) -> CheckpointService:
        self._before = self._machine.rows("SELECT coalesce(max(seq), 0) FROM log")[0][0]
        return self._machine.service

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        machine = self._machine
        machine.written()
        if error is None and not machine.disk.dead:
            text = "SELECT entry_id, body FROM log WHERE seq > ? AND cloud_seq IS NULL"
            connection = machine.node.store.connection
            machine.told.update(connection.execute(text, (self._before,)).fetchall())


class Actions:
    def __init__(self, world: World) -> None:
        self.world = world

    def checkpoint(self, machine: Machine, choice: int) -> str:
        found = machine.rows("SELECT id FROM checkpoints ORDER BY hlc DESC, id DESC LIMIT 30")
        return str(found[choice % len(found)][0]) if found else ""

    # --- checkpoints ------------------------------------------------------------------------------

    def create(self, machine: Machine, a: int, b: int) -> None:
        """Now and then below a parent that is not the newest."""
        with Noted(machine) as service:
            parent = self.checkpoint(machine, a) if b % 3 == 0 else None
            service.create_checkpoint(f"task {a % 2}", f"agent {b % 3}", parent=parent)

    def create_named(self, machine: Machine, a: int, b: int) -> None:
        """An id of the user's own, which may be in use elsewhere, for another task even."""
        name = f"named {a % 4}"
        if b % 5 == 0:
            machines = self.world.machines
            name = self.checkpoint(machines[a % len(machines)], b) or name
        with Noted(machine) as service:
            service.create_checkpoint(f"task {b % 2}", "agent 0", checkpoint_id=name)

    def update(self, machine: Machine, a: int, b: int) -> None:
        if found := self.checkpoint(machine, a % 8):
            changes: dict[str, Any] = {"execution_state": {"current_focus": f"focus {b}"}}
            if b % 4 == 0:
                changes["recovery"] = {"last_successful_state": self.checkpoint(machine, b)}
            with Noted(machine) as service:
                service.update_checkpoint(found, changes)

    def finalize(self, machine: Machine, a: int, b: int) -> None:
        if found := self.checkpoint(machine, a):
            with Noted(machine) as service:
                service.finalize_checkpoint(found, ("complete", "failed")[b % 2])

    def link(self, machine: Machine, a: int, b: int) -> None:
        parent, child = self.checkpoint(machine, a), self.checkpoint(machine, b)
        if parent and child:
            with Noted(machine) as service:
                service.link_checkpoints(parent, child)

    def describe_task(self, machine: Machine, a: int, b: int) -> None:
        with Noted(machine) as service:
            if b % 2:
                tasks.add(service.node, f"task {a % 2}", title=f"title {b}")
            else:
                tasks.change(service.node, f"task {a % 2}", budget=b + 1)

    def resolve(self, machine: Machine, a: int, b: int) -> None:
        if found := conflicts.everything(machine.node, "open"):
            decide = (conflicts.restore, conflicts.dismiss)[b % 2]
            with Noted(machine) as service:
                decide(service.node, found[a % len(found)].id)

    def write_beside(self, machine: Machine, a: int, b: int) -> None:
        """Another program of the same home, which is gone again after that."""
        kept = machine.node, machine.service
        machine.node, machine.service = machine.program()
        try:
            self.create(machine, a, b)
        finally:
            machine.node.close()
            machine.node, machine.service = kept

    # --- what must go -----------------------------------------------------------------------------

    def erase(self, machine: Machine, a: int, b: int) -> None:
        found = self.checkpoint(machine, a)
        if found and self._has_met_the_replica(machine):
            with Noted(machine) as service:
                retention.erase(service.node, found, f"reason {b}")

    def retain(self, machine: Machine, a: int, b: int) -> None:
        if not self._has_met_the_replica(machine):
            return
        policy = ("revisions:1", "revisions:2", "legal_hold", "default")[b % 4]
        with Noted(machine) as service:
            tasks.change(service.node, f"task {a % 2}", retention=policy)
            retention.run(service.node)

    def _has_met_the_replica(self, machine: Machine) -> bool:
        """Before that, a purge counts at once: a copy of the home may still have the body, and a
        hold at the replica keeps that one."""
        return bool(machine.exchange.state("organization"))

    # --- hand-offs --------------------------------------------------------------------------------

    def claim(self, machine: Machine, a: int, b: int) -> None:
        """Somebody takes a task over, perhaps from the same place as another elsewhere."""
        task, agent = f"task {a % 2}", f"agent {b % 3}"
        subject = machine.node.store.current_id(task) or f"handoff {b % 3}"
        giver = (f"agent {a % 3}", self.world.machines[0].node.store.device_id)
        with Noted(machine) as service:
            held = tenure.take(service.node, task, subject, agent, giver, 0)
            if b % 4 == 0:
                self.world.released(held.claim.entry_id)
                tenure.release(service.node, task, held.claim.entry_id)

    def offer(self, machine: Machine, a: int, b: int) -> None:
        with Noted(machine) as service:
            offering.request(service, f"task {a % 2}", Wish())

    def accept(self, machine: Machine, a: int, b: int) -> None:
        if ready := offers.ready(offers.everything(machine.node)):
            offer = ready[a % len(ready)]
            with Noted(machine) as service:
                offers.accept(service.node, offer.id, Taker(f"agent {b % 3}"), 0)

    def contend(self, machine: Machine, a: int, b: int) -> None:
        """Two take the same offer while neither can ask the replica."""
        other = self.world.machines[b % len(self.world.machines)]
        for each in {machine: 0, other: 1}:
            before, each.wire.down = each.wire.down, True
            with self.world.asking(each, "accept"):
                self.accept(each, a, b)
            each.wire.down = before

    def acknowledge(self, machine: Machine, a: int, b: int) -> None:
        found = [o for o in offers.everything(machine.node) if o.state == offers.ACCEPTED]
        if found:
            with Noted(machine) as service:
                offers.acknowledge(service.node, found[a % len(found)].id)

    def heartbeat(self, machine: Machine, a: int, b: int) -> None:
        with Noted(machine) as service:
            service.heartbeat(f"agent {b % 3}", f"task {a % 2}", ended=b % 5 == 0)

    def message(self, machine: Machine, a: int, b: int) -> None:
        with Noted(machine) as service:
            inbox = messages.inbox(service.node, f"agent {b % 3}")
            if inbox and a % 2:
                messages.acknowledge(service.node, inbox[0].id)
            else:
                letter = messages.Letter(f"text {a}")
                messages.send(service.node, f"agent {b % 3}", letter, f"task {a % 2}")

    # --- exchanges --------------------------------------------------------------------------------

    def sync(self, machine: Machine, a: int, b: int) -> None:
        push, pull = ((True, True), (True, True), (True, False), (False, True))[a % 4]
        machine.sync(push=push, pull=pull)

    def tick(self, machine: Machine, a: int, b: int) -> None:
        machine.tick()

    def wait(self, machine: Machine, a: int, b: int) -> None:
        """Time has passed, and every daemon has had its turn."""
        order = list(self.world.machines)
        self.world.chance.shuffle(order)
        for other in order:
            other.tick()

    def copy(self, machine: Machine, a: int, b: int) -> None:
        machine.backup = machine.copy(self.world.place / f"copy {machine.number}.db")

    def back_up_replica(self, machine: Machine, a: int, b: int) -> None:
        for other in self.world.machines:
            other.wire.land()
        self.world.ground.back_up()
