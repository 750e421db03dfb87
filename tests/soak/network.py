"""The way to the replica, and what happens on it.

Every call of a device goes through its wire. What is armed there strikes at one of the next calls:
the connection is cut before the call or after it was done, the call is made twice, it takes long,
it arrives when nobody waits for it any more, or the server does it and is slow to commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from syncd.errors import ReplicaUnreachableError, SyncdError
from syncd.replica import Replica
from syncd.sql import replica_queries

if TYPE_CHECKING:
    from soak.world import World

CUT_BEFORE, CUT_AFTER, DUPLICATE, DELAY = "cut_before", "cut_after", "duplicate", "delay"
LATE, HELD = "late", "held"
_PUSH = "push"


class Fault(NamedTuple):
    """`event` is what happens during a call that takes long."""

    kind: str
    event: Callable[[], None] = lambda: None

    @property
    def concerns(self) -> str:
        """Only what changes something at the replica can come too late to be told of."""
        return _PUSH if self.kind in (LATE, HELD) else ""


class InFlight(NamedTuple):
    """A call that its caller has given up. With a connection, the server has done it there and
    not committed."""

    dsn: str
    values: tuple[Any, ...]
    held: psycopg.Connection[Any] | None

    def arrive(self, connection: psycopg.Connection[Any]) -> None:
        """What the server makes of it is nobody's news."""
        try:
            if self.held is not None:
                self.held.commit()
            else:
                connection.execute(replica_queries()[_PUSH], self.values, binary=True)
        except psycopg.Error:
            pass

    def fail(self) -> None:
        if self.held is not None and not self.held.closed:
            self.held.rollback()


class Wire:
    """One machine's way to the replica."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = False
        self.news = False
        self.deaf = False
        self.in_flight: list[InFlight] = []
        self.daemon: Line | None = None
        self._fault: Fault | None = None
        self._left = 0

    def arm(self, fault: Fault, calls: int) -> None:
        self._fault, self._left = fault, calls

    def disarm(self) -> bool:
        """Whether it had struck."""
        struck, self._fault = self._fault is None, None
        return struck

    def due(self, query: str) -> Fault | None:
        fault = self._fault
        if fault is None or (fault.concerns and fault.concerns != query):
            return None
        self._left -= 1
        if self._left > 0:
            return None
        self._fault = None
        return fault

    def land(self) -> None:
        """What is on its way arrives."""
        waiting, self.in_flight = self.in_flight, []
        for call in waiting:
            self.world.reached_replica()
            call.arrive(self.world.ground.connection(call.dsn))

    def lose(self) -> None:
        """The server was stopped: nothing of that was ever done."""
        waiting, self.in_flight = self.in_flight, []
        for call in waiting:
            call.fail()


class Line(Replica):
    """One connection, as far as its user knows. Below it, one is shared and never closed."""

    def __init__(self, wire: Wire, dsn: str) -> None:
        super().__init__(dsn)
        self._wire = wire
        self._broken = False

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._wire.world.ground.connection(self._dsn)

    @property
    def password(self) -> str:
        return ""

    def close(self) -> None:
        self._broken = True
        if self._wire.daemon is self:
            self._wire.daemon = None

    def cut(self) -> None:
        self._broken = True

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        wire = self._wire
        wire.world.reached_replica()
        self._check()
        fault = wire.due(query)
        if fault is None:
            found = self._done(query, *values)
        else:
            wire.world.struck(fault.kind)
            found = self._struck(fault, query, *values)
        if query == "announce" and found[0][0] == 0:
            wire.world.announced(wire)
        return found

    def _check(self) -> None:
        if self._broken or self._wire.down:
            self._break()

    def _break(self) -> None:
        self._broken = True
        raise ReplicaUnreachableError("the simulation has cut the connection")

    def _done(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return super().rows(query, *values)

    def _struck(self, fault: Fault, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if fault.kind == DUPLICATE:
            self._done(query, *values)
        elif fault.kind == DELAY:
            fault.event()
            self._check()
        elif fault.kind == CUT_AFTER:
            self._done(query, *values)
            self._break()
        elif fault.kind in (LATE, HELD):
            self._abandon(fault.kind, values)
            self._break()
        else:
            self._break()
        return self._done(query, *values)

    def _abandon(self, kind: str, values: tuple[Any, ...]) -> None:
        held = None
        if kind == HELD:
            held = self._wire.world.ground.idle(self._dsn)
            try:
                held.execute(self._sql[_PUSH], values, binary=True)
            except psycopg.Error:
                held.rollback()
                return
        self._wire.in_flight.append(InFlight(self._dsn, values, held))

    # --- news -------------------------------------------------------------------------------------

    def listen(self, channel: str) -> bool:
        self._wire.world.reached_replica()
        self._check()
        self._wire.daemon, self._wire.news = self, False
        return True

    def fileno(self) -> int:
        return -1

    def news(self) -> bool:
        self._check()
        heard, self._wire.news = self._wire.news, False
        return heard


class Promise:
    """What a thread would do: at once, or when somebody wants to know what came of it."""

    def __init__(self, work: Callable[..., Any], values: tuple[Any, ...], *, eager: bool) -> None:
        self._work, self._values = work, values
        self._done = False
        self._found: Any = None
        self._error: Exception | None = None
        if eager:
            self.finish()

    def finish(self) -> None:
        if self._done:
            return
        self._done = True
        try:
            self._found = self._work(*self._values)
        except SyncdError as error:
            self._error = error

    def result(self) -> Any:
        self.finish()
        if self._error is not None:
            raise self._error
        return self._found


class Executor:
    """Stands in for a pool of one thread. The world decides which of both goes first."""

    world: World

    def __init__(self, _workers: int) -> None:
        self._promises: list[Promise] = []

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        for promise in self._promises:
            promise.finish()

    def submit(self, work: Callable[..., Any], *values: Any) -> Promise:
        eager = self.world.chance.random() < 0.5
        self._promises.append(Promise(work, values, eager=eager))
        return self._promises[-1]
