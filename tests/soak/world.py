"""The world of one seed: machines, the replica, and the only clock there is."""

from __future__ import annotations

import logging
import random
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import folder

from soak.disk import shim
from soak.expected import is_expected
from soak.ground import Ground
from soak.machine import Machine, blank
from soak.network import Executor, Wire
from soak.schedule import Plan
from syncd import clock, disk, entry, exchange, seal, sync, tenure
from syncd.daemon import exchanger
from syncd.errors import SyncdError
from syncd.keychain import END_TO_END, DataKey
from syncd.replica import device as replica_device
from syncd.replica.login import Login

_BEGIN_MS = 1_800_000_000_000
MOST_MACHINES = 5
ONE_HOLDER = "a task that was claimed has one holder"
SURPRISE = "nothing fails in a way that nobody foresaw"


class BrokenError(AssertionError):
    """An invariant does not hold: which one, and what was found."""

    def __init__(self, invariant: str, found: str) -> None:
        super().__init__(f"{invariant}: {found}")
        self.invariant = invariant


class World:
    """What there is. Everything in it happens in one thread, one thing after the other."""

    def __init__(self, plan: Plan, ground: Ground, place: Path) -> None:
        self.plan = plan
        self.ground = ground
        self.place = place
        self.now_ms = _BEGIN_MS
        # For what is decided while things happen; the schedule has its own.
        self.chance = random.Random(f"world {plan.seed}")
        self._ids = random.Random(f"ids {plan.seed}")
        self.machines: list[Machine] = []
        self.faults: Counter[str] = Counter()
        self.events: list[str] = []
        self.replica_skew_ms = 0
        self.restored = 0
        # Numbers and batches of histories that the replica has forgotten.
        self.gone: set[tuple[int, str]] = set()
        self.calls = 0
        # What a restored machine has lost and the replica has.
        self.returning: dict[str, bytes] = {}
        # What everybody's homes seal with, the newest last; carried from each to each by hand.
        self.keys: list[DataKey] = []
        if plan.encryption == END_TO_END:
            self.add_key()
        self._granted: dict[str, tuple[str, str]] = {}
        self._released: set[str] = set()
        self._acting: list[Machine] = []
        self._logins: list[Login] = []
        self._lasting: list[tuple[int, Callable[[], None]]] = []
        self._homes = 0

    # --- time -------------------------------------------------------------------------------------

    @contextmanager
    def acting(self, machine: Machine) -> Iterator[None]:
        """Until this ends, the clock on the wall is this machine's."""
        self._acting.append(machine)
        try:
            yield
        finally:
            self._acting.pop()

    def wall_ns(self) -> int:
        ms = self._acting[-1].wall_ms() if self._acting else self.now_ms
        return ms * 1_000_000

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def reached_replica(self) -> None:
        self.calls += 1
        self.ground.set_clock(self.now_ms + self.replica_skew_ms)

    # --- what happens -----------------------------------------------------------------------------

    def struck(self, fault: str) -> None:
        self.faults[fault] += 1
        self.events.append(fault)

    def told(self, error: SyncdError, machine: Machine, what: str = "") -> None:
        """Somebody was told of an error: a user by an action, or the daemon."""
        if not is_expected(error, machine, what):
            who = what or "the daemon"
            raise BrokenError(
                SURPRISE, f"{machine.home.name}, {who}: {type(error).__name__}: {error.message}"
            ) from error

    @contextmanager
    def asking(self, machine: Machine, what: str) -> Iterator[None]:
        """A user does something on a machine, whatever comes of it."""
        with self.acting(machine):
            try:
                yield
            except SyncdError as error:
                self.told(error, machine, what)

    def announced(self, by: Wire) -> None:
        for machine in self.machines:
            wire = machine.wire
            if wire is not by and wire.daemon is not None and not wire.deaf:
                wire.news = True

    def granted(self, subject: str, claim: str, who: str) -> None:
        """Somebody has the replica's word that a claim holds: nobody may ever have it for another,
        unless that one was let go."""
        if claim in self._released:
            return
        before, whom = self._granted.setdefault(subject, (claim, who))
        if before == claim:
            return
        if before not in self._released:
            raise BrokenError(
                ONE_HOLDER,
                f"{subject} is held by claim {before} ({whom} says), and by {claim} ({who} says)",
            )
        self._granted[subject] = claim, who

    def released(self, *claims: str) -> None:
        self._released.update(claims)

    def new_history(self) -> None:
        """The replica was restored: numbers are given out anew, and with them what was claimed."""
        self.restored += 1
        self.gone |= {(row[0], row[1]) for row in self.ground.log()}
        self._granted = {}

    def lasting(self, steps: int, end: Callable[[], None]) -> None:
        """Something that ends after so many more steps."""
        self._lasting.append((steps, end))

    def move_on(self) -> None:
        """One step later."""
        waiting, self._lasting = self._lasting, []
        for left, end in waiting:
            if left > 1:
                self._lasting.append((left - 1, end))
            else:
                end()

    def calm(self) -> None:
        """All that lasts ends."""
        waiting, self._lasting = self._lasting, []
        for _, end in waiting:
            end()

    def add_key(self) -> None:
        made_at = clock.iso(self.now_ms)
        self.keys.append(DataKey.of(self._ids.randbytes(32), END_TO_END, made_at))
        for machine in self.machines:
            machine.take_keys()

    # --- machines ---------------------------------------------------------------------------------

    def login(self) -> Login:
        self._logins.append(self.ground.login())
        return self._logins[-1]

    def revoke(self, login: Login) -> None:
        self._logins.remove(login)
        self.ground.revoke(login)
        self.ground.forget(login.dsn)

    def home(self) -> Path:
        self._homes += 1
        return self.place / f"home {self._homes}"

    def join(self, home: Path, login: Login, skew_ms: int) -> Machine:
        self.machines.append(Machine(self, len(self.machines), home, login, skew_ms))
        return self.machines[-1]

    def _begin(self) -> None:
        self.ground.clear()
        self.reached_replica()
        for skew in self.plan.skews:
            self.join(self.home(), self.login(), skew)

    def _end(self) -> None:
        for machine in self.machines:
            machine.wire.lose()
            machine.leave()
        self.ground.give_back(self._logins)

    # --- the laws of this world -------------------------------------------------------------------

    def _new_key(self) -> seal.SigningKey:
        return seal.SigningKey(Ed25519PrivateKey.from_private_bytes(self._ids.randbytes(32)))

    def _free(self, home: Path) -> int:
        full = any(machine.disk.full for machine in self.machines if machine.home == home)
        return 0 if full else 10**12

    def _laws(self) -> list[tuple[Any, str, Any]]:
        wall = types.SimpleNamespace(time_ns=self.wall_ns)
        steady = types.SimpleNamespace(monotonic=self.monotonic, sleep=lambda _seconds: None)
        executor = type("Executor", (Executor,), {"world": self})
        return [
            (clock, "time", wall),
            (entry, "time", wall),
            (entry, "os", types.SimpleNamespace(urandom=self._ids.randbytes)),
            (seal.SigningKey, "new", self._new_key),
            # Says the same every time, and takes longer than all else in the check of an entry.
            (seal, "_valid", cache(seal._valid)),
            (sync, "time", steady),
            (sync, "ThreadPoolExecutor", executor),
            (exchanger, "time", steady),
            (exchanger, "random", self.chance),
            (tenure, "time", steady),
            (disk, "free", self._free),
            (exchange, "BATCH_ROWS", self.plan.batch_rows),
            (replica_device, "PAGE_ROWS", self.plan.page_rows),
        ]


@contextmanager
def world_of(plan: Plan, ground: Ground) -> Iterator[World]:
    """A new one, in which nothing is real but the code."""
    blank()  # before the laws hold: only the first seed of a process makes it
    logger = logging.getLogger("syncd")
    before = logger.level
    with ExitStack() as stack:
        place = stack.enter_context(folder())
        world = World(plan, ground, place)
        for law in world._laws():
            stack.enter_context(patch.object(*law))
        stack.enter_context(shim().in_place())
        stack.callback(logger.setLevel, before)
        logger.setLevel(logging.CRITICAL)
        stack.callback(world._end)
        world._begin()
        yield world
