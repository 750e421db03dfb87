"""What goes wrong, one thing a step. Whatever lasts ends some steps later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from functools import partial
from typing import NamedTuple

from soak import release
from soak.actions import Actions, Noted
from soak.machine import Machine
from soak.network import CUT_AFTER, CUT_BEFORE, DELAY, DUPLICATE, HELD, LATE, Fault
from soak.world import MOST_MACHINES, SURPRISE, BrokenError, World
from syncd import facts, sealing
from syncd.daemon import exchanger
from syncd.sql import POSTGRES_NEEDED, SQLITE_VERSION, queries

_MINUTE, _HOUR = 60_000, 3_600_000
_JUMPS = (0, 4 * _MINUTE, -20 * _MINUTE, 3 * _HOUR, -3 * _HOUR, 10 * 365 * 24 * _HOUR)
_DRIFTS = (0.001, -0.001, 0.05, -0.05, 0.5)
# A server gives up a statement that has waited so long for a lock.
_LOCK_WAIT_MS = 20_000
# How often a restore is put off that would leave what only a person can put right.
_TRIES = 4


class _Home(NamedTuple):
    """The entries of a home with their device ids, which devices it has been, and of which entries
    it does not know that the replica has had them."""

    entries: set[tuple[str, str]]
    own: set[str]
    untold: set[str]

    @classmethod
    def of(cls, connection: sqlite3.Connection) -> _Home:
        entries = set(connection.execute("SELECT entry_id, device_id FROM log"))
        own = {row[0] for row in connection.execute(queries()["own_ids"])}
        untold = connection.execute("SELECT entry_id FROM log WHERE batch IS NULL")
        return cls(entries, own, {row[0] for row in untold})


def _orphaned(homes: Collection[_Home], at_replica: set[tuple[str, str]]) -> bool:
    """Whether the replica and whoever wrote it would both have forgotten something that others
    have, or under which id it was sent. Whoever then writes on gives the same numbers to something
    else; to put that right is an administrator's business, before anybody writes."""
    kept = {entry for home in homes for entry in home.entries if entry[1] in home.own}
    return any(entry not in at_replica | kept for home in homes for entry in home.entries)


def _owned_twice(homes: dict[Machine, _Home], at_replica: set[tuple[str, str]]) -> bool:
    """Whether copies of a home, with a login or an id each, would send the same again, and one of
    them as something that the replica never had: it refuses whichever comes second."""
    claims: dict[str, set[tuple[str, str]]] = {}
    for machine, home in homes.items():
        for entry, device in home.entries - at_replica:
            if device in home.own:
                claims.setdefault(entry, set()).add((machine.login.dsn, device))
    untold = set[str]().union(*(home.untold for home in homes.values()))
    return any(len(each) > 1 and entry in untold for entry, each in claims.items())


def _jump(present_ms: int, choice: int) -> int:
    others = [ms for ms in _JUMPS if ms != present_ms]
    return others[choice % len(others)]


class Faults:
    def __init__(self, world: World, actions: Actions) -> None:
        self.world = world
        self.actions = actions

    # --- the network ------------------------------------------------------------------------------

    def cut_before(self, machine: Machine, a: int, b: int) -> None:
        self._strike(machine, Fault(CUT_BEFORE), a, b)

    def cut_after(self, machine: Machine, a: int, b: int) -> None:
        self._strike(machine, Fault(CUT_AFTER), a, b)

    def duplicate(self, machine: Machine, a: int, b: int) -> None:
        self._strike(machine, Fault(DUPLICATE), a, b)

    def delay(self, machine: Machine, a: int, b: int) -> None:
        """Meanwhile another machine has its turn, or another program writes here."""
        self._strike(machine, Fault(DELAY, partial(self._meanwhile, machine, a, b)), a, b)

    def late(self, machine: Machine, a: int, b: int) -> None:
        """It arrives when its sender has gone on already, but not later than a server waits."""
        self._strike(machine, Fault(LATE), 0, b)
        given_up = self.world.now_ms + _LOCK_WAIT_MS

        def arrive() -> None:
            machine.wire.land() if self.world.now_ms <= given_up else machine.wire.lose()

        self.world.lasting(1 + a % 4, arrive)

    def held(self, machine: Machine, a: int, b: int) -> None:
        """The server has done it, and commits, or does not, while others have their turns."""
        self._strike(machine, Fault(HELD), 0, b)
        self.world.lasting(1 + a % 6, machine.wire.land if b % 4 else machine.wire.lose)

    def _strike(self, machine: Machine, fault: Fault, a: int, b: int) -> None:
        """At one of the next calls of an exchange; at the first if there are fewer."""
        self._quietly(self.actions.create, machine, a, b)
        for calls in (1 + a % 9, 1):
            machine.wire.arm(fault, calls)
            self._quietly(self._exchange, machine, b)
            if machine.wire.disarm():
                return

    def _exchange(self, machine: Machine, b: int) -> None:
        if b % 3 == 0:
            machine.exchanger.want(exchanger.HURRY)
            machine.tick()
        else:
            machine.sync()

    def _meanwhile(self, machine: Machine, a: int, b: int) -> None:
        self.world.pass_time((5, 1_500, 70_000)[a % 3])
        others = [other for other in self.world.machines if other is not machine]
        other = others[b % len(others)]
        if a % 2:
            self._quietly(self.actions.sync, other, b, a)
        else:
            self._quietly(self.actions.write_beside, machine, a, b)

    def _quietly(self, do: Callable[..., object], machine: Machine, *choices: int) -> None:
        with self.world.asking(machine, do.__name__):
            do(machine, *choices)

    def offline(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("offline")
        machine.wire.down = True
        self.world.lasting(4 + a % 30, partial(setattr, machine.wire, "down", False))

    def lost_news(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("lost_news")
        machine.wire.deaf = True
        self.world.lasting(10 + a % 40, partial(setattr, machine.wire, "deaf", False))

    # --- the machine ------------------------------------------------------------------------------

    def power_loss(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("power_loss")
        self._die_during(machine, a, b)
        machine.reboot(self.world.chance)

    def killed(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("killed")
        self._die_during(machine, a, b)
        machine.reboot(None)

    def _die_during(self, machine: Machine, a: int, b: int) -> None:
        """At one of the next writes; if there are fewer, after all of them."""
        do = (self.actions.create, self.actions.update, self.actions.sync, self._tick,
              self.actions.sync, self._rotate)[b % 6]  # fmt: skip
        machine.disk.fail_after(1 + a % 40)
        try:
            self._quietly(do, machine, a, b)
        except BrokenError:
            raise
        except Exception:
            if not machine.disk.dead:
                raise

    def _tick(self, machine: Machine, a: int, b: int) -> None:
        machine.exchanger.want(exchanger.HURRY)
        machine.tick()

    def disk_full(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("disk_full")
        machine.disk.full = True
        self._quietly(self.actions.create, machine, a, b)
        self._quietly(self._exchange, machine, b)
        self.world.lasting(1 + a % 12, partial(setattr, machine.disk, "full", False))

    def clock_jump(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("clock_jump")
        machine.skew_ms = _jump(machine.skew_ms, a)
        machine.exchanger.hurry()

    def clock_drift(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("clock_drift")
        machine.skew_ms = machine.wall_ms() - self.world.now_ms
        machine.born, machine.drift = self.world.now_ms, _DRIFTS[a % len(_DRIFTS)]

    def replica_clock_jump(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("replica_clock_jump")
        self.world.replica_skew_ms = _jump(self.world.replica_skew_ms, a)

    # --- copies -----------------------------------------------------------------------------------

    def clone(self, machine: Machine, a: int, b: int) -> None:
        """The home copied to another machine, with the same login or, if nothing in it waits to be
        sent by both, one of its own."""
        if len(self.world.machines) == MOST_MACHINES or machine.revoked:
            return
        self.world.struck("clone")
        home = self.world.home()
        machine.copied_to(home, image=bool(a % 2))
        apart = b % 3 == 0 and not self._unsent(machine.entry_ids())
        login = self.world.login() if apart else machine.login
        copy = self.world.join(home, login, machine.skew_ms)
        copy.rotated = machine.rotated
        copy.told = dict(machine.told)

    def device_restore(self, machine: Machine, a: int, b: int) -> None:
        if machine.backup is None:
            self.actions.copy(machine, a, b)
            self.world.lasting(5 + a % 20, partial(self._restore, machine))
        else:
            self._restore(machine)

    def _restore(self, machine: Machine, tries: int = _TRIES) -> None:
        """What was only on this disk after the copy is gone: nobody can bring that back."""
        assert machine.backup
        with closing(sqlite3.connect(machine.backup)) as copy:
            before = _Home.of(copy)
        homes = {m: _Home.of(m.inspector) for m in self.world.machines} | {machine: before}
        at_replica = {(row[2], row[3]) for row in self.world.ground.log()}
        if (
            self._claimed_twice(machine, before)
            or _orphaned(homes.values(), at_replica)
            or _owned_twice(homes, at_replica)
        ):
            if tries:
                self.world.lasting(8, partial(self._restore, machine, tries - 1))
            return
        self.world.struck("device_restore")
        machine.wire.land()
        machine.restore(machine.backup)
        left, sent = machine.entry_ids(), {name for name, _ in at_replica}
        lost = {name: body for name, body in machine.told.items() if name not in left}
        machine.told = {name: body for name, body in machine.told.items() if name in left}
        self.world.returning |= {name: body for name, body in lost.items() if name in sent}

    def replica_restore(self, machine: Machine, a: int, b: int) -> None:
        if self.world.ground.has_backup():
            self._restore_replica()
        else:
            self.actions.back_up_replica(machine, a, b)
            self.world.lasting(5 + a % 30, self._restore_replica)

    def _restore_replica(self, tries: int = _TRIES) -> None:
        """The server is stopped for that: what was under way is lost, and so are connections. Not
        while a machine waits for a new login: it could not send again what others have of it."""
        homes = {machine: _Home.of(machine.inspector) for machine in self.world.machines}
        kept, purges = self.world.ground.kept()
        waiting = any(machine.revoked for machine in self.world.machines)
        if waiting or purges or _orphaned(homes.values(), kept) or _owned_twice(homes, kept):
            if purges:
                self.world.ground.back_up()
            if tries:
                self.world.lasting(8, partial(self._restore_replica, tries - 1))
            return
        self.world.struck("replica_restore")
        self.world.new_history()
        for machine in self.world.machines:
            machine.wire.lose()
            machine.unplug()
        self.world.ground.restore()
        left = {entry for home in homes.values() for entry in home.entries} | kept
        names = {name for name, _ in left}
        returning = self.world.returning
        self.world.returning = {name: returning[name] for name in returning.keys() & names}

    # --- people -----------------------------------------------------------------------------------

    def revoke(self, machine: Machine, a: int, b: int) -> None:
        """All machines with this login are refused, until each is given one of its own."""
        login = machine.login
        concerned = [other for other in self.world.machines if other.login is login]
        if machine.revoked or any(self._shared(m, m.entry_ids()) for m in concerned):
            return
        self.world.struck("revoke")
        for other in concerned:
            other.revoked = True
            other.wire.lose()
            other.unplug()
            self.world.lasting(5 + a % 25, partial(self._admit, other))
        self.world.revoke(login)

    def _admit(self, machine: Machine) -> None:
        machine.login, machine.revoked = self.world.login(), False
        machine.exchanger.want(exchanger.RELOAD)

    def rotate(self, machine: Machine, a: int, b: int) -> None:
        if self._rotate(machine, a, b):
            self.world.struck("rotate")

    def _rotate(self, machine: Machine, a: int, b: int) -> bool:
        """Another key, to seal with or to sign with. A copy that is brought back after the latter
        has an id whose key is gone."""
        if self.world.keys and b % 3 == 0:
            self.world.add_key()
            return True
        if self._shared(machine, machine.entry_ids()):
            return False
        machine.rotated = True
        with Noted(machine) as service:
            sealing.rotate_signing(service.node, f"reason {a}")
        if b % 2:  # else the daemon finds out when it next sends something
            machine.exchanger.want(exchanger.RELOAD)
        return True

    def _claimed_twice(self, machine: Machine, before: _Home) -> bool:
        """Whether an entry would go under one id here, since its key is gone, and under another on
        a copy of the home that has it signed: that looks like an attack, and is in quarantine
        until somebody decides."""
        return machine.rotated and self._shared(machine, {entry for entry, _ in before.entries})

    def _shared(self, machine: Machine, entries: set[str]) -> bool:
        """Whether some of these are on another machine too, and not at the replica."""
        unsent = self._unsent(entries)
        others = (other for other in self.world.machines if other is not machine)
        return any(unsent & other.entry_ids() for other in others)

    def _unsent(self, entries: set[str]) -> set[str]:
        return entries - {row[2] for row in self.world.ground.log()}

    # --- versions ---------------------------------------------------------------------------------

    def older_replica(self, machine: Machine, a: int, b: int) -> None:
        """The devices were upgraded first. They do with the release before; with one that is older
        still they wait for the administrator."""
        version = release.BEFORE_PUSH if b % 4 else POSTGRES_NEEDED - 1
        self.world.struck("older_replica")
        self.world.ground.be_older(version)
        self._begin_anew(20 + a % 80 if b % 4 else 3 + a % 10)

    def newer_replica(self, machine: Machine, a: int, b: int) -> None:
        self.world.struck("newer_replica")
        self.world.ground.be_newer()
        self._begin_anew(20 + a % 80)

    def _begin_anew(self, steps: int) -> None:
        """The server was stopped for that, and is again when it is brought up to date."""
        self._unplug_all()
        self.world.lasting(steps, self._bring_up_to_date)

    def _bring_up_to_date(self) -> None:
        self.world.ground.be_of_today()
        self._unplug_all()

    def _unplug_all(self) -> None:
        for machine in self.world.machines:
            machine.unplug()

    def newer_device(self, machine: Machine, a: int, b: int) -> None:
        """What the next release may write: a kind of entry, a field, nobody knows here."""
        self.world.struck("newer_device")
        with Noted(machine) as service:
            task, told = f"task {a % 2}", {"novel": [a, {"deep": b}]}
            facts.record(service.node, "novelty", task, told, {"text": f"text {b}"})
            service.create_checkpoint(task, "agent 0", x_novel=told)

    def older_home(self, machine: Machine, a: int, b: int) -> None:
        """A release before this one has used the home until now."""
        self.world.struck("older_home")
        machine.disk.full = False
        machine.close()
        version = release.HOME_VERSIONS[a % len(release.HOME_VERSIONS)]
        with closing(sqlite3.connect(machine.home / "context.db", isolation_level=None)) as home:
            home.executescript(release.older_home(version))
        machine.open()
        machine.node.store  # noqa: B018 (brings it up to date)
        if machine.rows("PRAGMA user_version") != [(SQLITE_VERSION,)]:
            raise BrokenError(SURPRISE, f"{machine.home.name} stays at schema {version}")
