"""A replica with a long history: what a device asks of it, database by database, interleaved.

The databases are in one cluster. Their histories are written by the server itself, as devices would
take hours for it; all that is timed is done by real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from bench.figures import Figures, ratio
from bench.measure import Operation, interleaved, repeated
from scale import server
from scale.author import Author, templates
from scale.devices import TEMPLATES
from scale.fleet import Tell
from scale.server import Server
from syncd.replica import Administration, Batch, Replica

ORGANIZATIONS = 20
PER_STATEMENT = 50_000
BATCH = 25
# With all indexes, and room to build them; what others need of the disk meanwhile, and the WAL.
BYTES_PER_ENTRY, RESERVE = 3_300, 8_000_000_000
PUSH, PUSH_ONE = f"push of {BATCH}", "push of 1"
FIRST, MIDDLE, NOTHING = "page of 1,000 from the start", "page from the middle", "nothing new"
HELLO, LATEST = "hello", "newest of a task, in SQL"
LINES = (PUSH, PUSH_ONE, FIRST, MIDDLE, NOTHING, HELLO, LATEST)
# What is dropped while a history is written, and made again afterwards.
_INDEXES = """
  SELECT indexname, indexdef FROM pg_indexes
  WHERE schemaname = 'syncd' AND tablename IN ('log', 'checkpoints') AND indexname NOT LIKE '%pkey'
"""
_DEVICES = """
  INSERT INTO syncd.devices (organization_id, device_id, login, public_key, device_seq, chain,
    first_seen, last_seen)
  SELECT organization_id, device_id, '', decode(repeat('01', 32), 'hex'), max(device_seq),
    decode(repeat('02', 32), 'hex'), now(), now() FROM syncd.log GROUP BY 1, 2
"""
_COUNTERS = """
  UPDATE syncd.organizations o SET cloud_seq = l.last FROM (
    SELECT organization_id, max(cloud_seq) AS last FROM syncd.log GROUP BY 1) AS l
  WHERE l.organization_id = o.organization_id
"""
_PLACES = """
  SELECT cloud_seq, batch::text, meta::json ->> 'task_id' FROM syncd.log
  WHERE cloud_seq = ANY (%s) ORDER BY 1
"""
_LATEST = """
  SELECT id, checkpoint_data FROM syncd.checkpoints
  WHERE task_id = %s ORDER BY hlc DESC LIMIT 1
"""


class Filled(NamedTuple):
    """How long it took to write a history, and what it takes on disk."""

    seconds: float
    bytes: int


class Replicas(NamedTuple):
    """Per line and number of entries."""

    postgres: str
    sizes: tuple[int, ...]
    lines: dict[str, dict[int, Figures]]
    fills: dict[int, Filled]
    load_average: tuple[float, float, float]

    def growth(self, line: str) -> float:
        return ratio(self.lines[line][self.sizes[-1]].p50, self.lines[line][self.sizes[0]].p50)


def measured(
    folder: Path, sizes: tuple[int, ...], samples: int, tell: Tell, *, keep: bool = False
) -> Replicas:
    """With `keep`, the databases stay for the next run."""
    folder.mkdir(mode=0o711, exist_ok=True)
    sizes = fitting(sizes, shutil.disk_usage(folder).free)
    tell(f"replicas with {', '.join(f'{size:,}' for size in sizes)} entries fit on the disk")
    with server.server(folder / "server", 100, keep=keep) as place, ExitStack() as opened:
        fills = {size: _once(folder, place, size, tell) for size in sizes}
        compared = [
            operation
            for size in sizes
            for operation in opened.enter_context(closing(_Device(place, _name(size)))).operations(
                size
            )
        ]
        tell(f"{samples} samples of each operation on {len(sizes)} replicas")
        place.sql("CHECKPOINT")
        found = interleaved(compared, samples)
        lines = {line: {size: found[f"{line}, {size}"] for size in sizes} for line in LINES}
        return Replicas(place.version, sizes, lines, fills, os.getloadavg())


def fitting(sizes: tuple[int, ...], free: int) -> tuple[int, ...]:
    """The last one made smaller, to whole millions, if it does not fit beside the others."""
    room = (free - RESERVE) // BYTES_PER_ENTRY - sum(sizes[:-1])
    last = sizes[-1] if room >= sizes[-1] else room // 1_000_000 * 1_000_000
    return (*sizes[:-1], last) if last > sizes[-2] else sizes[:-1]


# --- writing the history ------------------------------------------------------------------------


def _name(size: int) -> str:
    return f"entries_{size}"


def _once(folder: Path, place: Server, size: int, tell: Tell) -> Filled:
    """One that an earlier run has left is used again."""
    note = folder / "server" / f"{_name(size)}.json"
    if not note.exists():
        tell(f"a replica with {size:,} entries")
        note.write_text(json.dumps(_filled(place, _name(size), size)))
    return Filled(*json.loads(note.read_text()))


def _filled(place: Server, name: str, size: int) -> Filled:
    began = time.monotonic()
    place.database(name)
    with closing(Administration(place.admin_dsn(name))) as administration:
        organizations = [administration.create_organization(f"organization {number}")
                         for number in range(ORGANIZATIONS)]  # fmt: skip
    with closing(psycopg.connect(place.superuser_dsn(name), autocommit=True)) as opened:
        opened.execute("SET maintenance_work_mem = '1GB'")
        opened.execute("SET work_mem = '64MB'")
        _written(opened, organizations, size)
        opened.execute(_DEVICES)
        opened.execute(_COUNTERS)
        opened.execute("VACUUM (ANALYZE)")
        row = opened.execute("SELECT pg_database_size(current_database())").fetchone()
    return Filled(time.monotonic() - began, row[0] if row else 0)


def _written(opened: psycopg.Connection[Any], organizations: list[str], size: int) -> None:
    """Indexes are made at the end: that is faster, and leaves them as packed as they can be."""
    indexes = opened.execute(_INDEXES).fetchall()
    for index, _ in indexes:
        opened.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier("syncd", index)))
    statement = (Path(__file__).parent / "fill.sql").read_bytes()
    for first in range(0, size, PER_STATEMENT):
        last = min(first + PER_STATEMENT, size) - 1
        values = {"organizations": organizations, "first": first, "last": last}
        opened.execute(statement, values)
    for _, definition in indexes:
        opened.execute(definition.encode())


# --- what is timed ------------------------------------------------------------------------------


class _Device:
    """A new one in an organization with a history."""

    def __init__(self, place: Server, database: str) -> None:
        with closing(Administration(place.admin_dsn(database))) as administration:
            organization = administration.organization("organization 0").id
            login = administration.add_member(
                organization, f"developer {uuid.uuid4()}", "member", "laptop"
            )
        self._author = Author(templates(TEMPLATES))
        self._replica = Replica(login.dsn)
        last = self._hello().cloud_seq
        rows = self._replica.connection.execute(_PLACES, ([last // 2, last],)).fetchall()
        self._middle, self._last = rows[0][:2], rows[1][:2]
        self._task = rows[0][2]

    def _hello(self) -> Any:
        return self._replica.hello(self._author.device_id, self._author.key.public())

    def operations(self, size: int) -> list[Operation]:
        made: dict[str, tuple[Callable[[int], Sequence[Any]], Callable[[Any], object]]] = {
            PUSH: (self._batches(BATCH), self._push),
            PUSH_ONE: (self._batches(1), self._push),
            FIRST: (repeated((0, None)), self._pull),
            MIDDLE: (repeated(self._middle), self._pull),
            NOTHING: (lambda count: [self._last] * count, self._pull),
            HELLO: (repeated(None), lambda _: self._hello()),
            LATEST: (repeated(self._task), self._latest),
        }
        return [Operation(f"{line}, {size}", *made[line]) for line in LINES]

    def _batches(self, size: int) -> Callable[[int], Sequence[Any]]:
        return lambda count: [self._author.batch(size) for _ in range(count)]

    def _push(self, batch: Batch) -> None:
        newest = self._replica.push(batch)[-1]
        self._last = (newest.cloud_seq, newest.batch)

    def _pull(self, cursor: tuple[int, str | None]) -> None:
        self._replica.pull(self._author.device_id, *cursor, 0)

    def _latest(self, task: str) -> None:
        self._replica.connection.execute(_LATEST, (task,)).fetchall()

    def close(self) -> None:
        self._replica.close()
