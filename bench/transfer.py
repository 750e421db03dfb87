"""Push and pull, side by side with the least that could move the same rows.

Everybody takes a turn in each round, on fresh databases and homes. A ratio is taken within a
round, so that a slow moment of the machine hits both of its sides.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import bare
from bench.device import Device, copied
from bench.disk import connection
from bench.measure import turn
from bench.server import Database, Server

COPY, COPY_PLAIN = "COPY with GIN", "COPY without GIN"
PUSH, PUSH_CROWDED = "syncd push", "syncd push, crowded server"
FETCH = "SELECT + executemany"
PULL, PULL_CROWDED = "syncd pull", "syncd pull, crowded server"
# For each line, the line whose speed it is held against.
REFERENCES = {
    COPY: COPY, COPY_PLAIN: COPY, PUSH: COPY, PUSH_CROWDED: PUSH,
    FETCH: FETCH, PULL: FETCH, PULL_CROWDED: PULL,
}  # fmt: skip

Rows = Sequence[tuple[str, str]]
# Made ready by entering it; what it yields is timed.
Turn = Callable[[], AbstractContextManager[Callable[[], object]]]


class Transfer(NamedTuple):
    """Seconds per line, round by round."""

    entries: int
    seconds: dict[str, list[float]]

    def median(self, line: str) -> float:
        return statistics.median(self.seconds[line])

    def per_second(self, line: str) -> float:
        return self.entries / self.median(line)

    def speeds(self, line: str, reference: str = "") -> list[float]:
        """How many times as fast as its reference, round by round."""
        held_against = self.seconds[reference or REFERENCES[line]]
        pairs = zip(held_against, self.seconds[line], strict=True)
        return [theirs / ours for theirs, ours in pairs]

    def speed(self, line: str, reference: str = "") -> float:
        return statistics.median(self.speeds(line, reference))


class Servers(NamedTuple):
    plain: Server
    crowded: Server

    @contextmanager
    def databases(self) -> Iterator[tuple[Database, Database]]:
        with self.plain.database() as plain, self.crowded.database() as crowded:
            yield plain, crowded

    def settle(self) -> None:
        """Write out what earlier turns left, so that nobody pays for another's."""
        for server in self:
            server.settle()
        os.sync()


def measured(servers: Servers, home: Path, rounds: int, tell: Callable[[str], None]) -> Transfer:
    """`home` holds the entries, none of them sent."""
    with closing(connection(home / "context.db")) as opened:
        rows = bare.bodies(opened)
    seconds: dict[str, list[float]] = {line: [] for line in REFERENCES}
    for number in range(rounds):
        tell(f"sync: round {number + 1} of {rounds}")
        with servers.databases() as (plain, crowded):
            pushes, pulls = _pushes(plain, crowded, home, rows), _pulls(plain, crowded, home, rows)
            for line, take in [*turn(pushes, number), *turn(pulls, number)]:
                seconds[line].append(_seconds(take, servers))
    return Transfer(len(rows), seconds)


def _seconds(take: Turn, servers: Servers) -> float:
    with take() as run:
        servers.settle()
        started = time.perf_counter()
        run()
        return time.perf_counter() - started


# --- to the server ------------------------------------------------------------------------------


def _pushes(plain: Database, crowded: Database, home: Path, rows: Rows) -> list[tuple[str, Turn]]:
    return [
        (COPY, partial(_copying, plain, rows, gin=True)),
        (PUSH, partial(_pushing, plain, home)),
        (COPY_PLAIN, partial(_copying, plain, rows, gin=False)),
        (PUSH_CROWDED, partial(_pushing, crowded, home)),
    ]


@contextmanager
def _copying(place: Database, rows: Rows, *, gin: bool) -> Iterator[Callable[[], object]]:
    with closing(place.bare()) as opened:
        name = bare.make_table(opened, gin=gin)
        yield partial(bare.copy, opened, name, rows)
        _assert_all(bare.rows_in(opened, name), rows)


@contextmanager
def _pushing(place: Database, home: Path) -> Iterator[Callable[[], object]]:
    there = home.with_name("pushing")
    with _discarded(there), closing(Device(copied(home, there), place.writer)) as device:
        yield device.push
        _assert_all(device.standing().device_seq, range(device.entries()))


# --- from the server ----------------------------------------------------------------------------


def _pulls(plain: Database, crowded: Database, home: Path, rows: Rows) -> list[tuple[str, Turn]]:
    return [
        (FETCH, partial(_fetching, plain, home, rows)),
        (PULL, partial(_pulling, plain, home, rows)),
        (PULL_CROWDED, partial(_pulling, crowded, home, rows)),
    ]


@contextmanager
def _fetching(place: Database, home: Path, rows: Rows) -> Iterator[Callable[[], object]]:
    there = home.with_name("fetching")
    there.mkdir()
    with ExitStack() as stack:
        stack.enter_context(_discarded(there))
        local = stack.enter_context(closing(connection(there / "bare.db")))
        opened = stack.enter_context(closing(place.bare()))
        bare.make_log(opened)
        bare.make_local(local)
        yield partial(bare.fetch, opened, local)
        _assert_all(bare.fetched(local), rows)


@contextmanager
def _pulling(place: Database, home: Path, rows: Rows) -> Iterator[Callable[[], object]]:
    there = home.with_name("pulling")
    with _discarded(there), closing(Device(there, place.reader)) as device:
        device.engine.meet()
        yield device.engine.pull
        _assert_all(device.entries(), rows)


@contextmanager
def _discarded(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder)


def _assert_all(found: int, wanted: Sequence[object]) -> None:
    """What moved less was faster, and must not count."""
    if found != len(wanted):
        raise AssertionError(f"{found:,} entries arrived, not {len(wanted):,}")
