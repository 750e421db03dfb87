"""Is the record intact? Every chain link, hash, signature and view row, checked against the log.

The views are compared with what the log alone says they should be, worked out here a second
time from all versions at once, independently of how they were written one by one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from syncd.database import translated, unforked
from syncd.entry import CHECKPOINT, CREATE, FINALIZE, LINK, TASK, Entry, Version, heads, winner
from syncd.errors import DatabaseCorruptError
from syncd.seal import GENESIS, flaw, signature_valid
from syncd.sql import queries
from syncd.store import Store, checkpoint_columns, task_columns

VIEWS = ("checkpoints", "tasks", "participants", "links")
_BATCH = 2_000
_SHOWN_DIFFERENCES = 100


class Problem(NamedTuple):
    entry_id: str
    device_id: str
    problem: str


class Report(NamedTuple):
    """What an audit found. `signed` counts the valid signatures."""

    entries: int
    signed: int
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(store: Store, own_key: bytes) -> Report:
    """Check the whole database; what is found stays recorded until a later audit is clean."""
    with unforked, closing(reader(store)) as connection:
        report = verify_database(connection, {store.device_id: own_key})
    store.record_problems(((p.entry_id, p.problem) for p in report.problems), anew=True)
    return report


def reader(store: Store) -> sqlite3.Connection:
    """A connection of its own, with one view of the data for as long as the audit lasts."""
    uri = store.path.resolve().as_uri() + "?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    connection.execute("BEGIN")
    return connection


def verify_database(connection: sqlite3.Connection, own_keys: dict[str, bytes]) -> Report:
    """Check an open database, a backup too."""
    problems: list[Problem] = []
    entries = signed = 0
    try:
        problems += _file_problems(connection)
        keys = dict(connection.execute(queries()["device_keys"]).fetchall())
        problems += _key_problems(keys, own_keys)
        walk = _Walk(keys)
        _read_tolerantly(connection, walk.check)
        problems += walk.problems
        entries, signed = walk.entries, walk.signed
        if not walk.unreadable:
            problems += _view_problems(connection)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        problems.append(Problem("", "", f"the database cannot be read on: {error}"))
    return Report(entries, signed, problems)


def _file_problems(connection: sqlite3.Connection) -> Iterator[Problem]:
    """What SQLite itself finds: damaged pages, an index that differs from its table."""
    connection.text_factory = _tolerant
    lines = connection.execute("PRAGMA integrity_check(20)").fetchall()
    connection.text_factory = str
    for (line,) in lines:
        if line != "ok":
            yield Problem("", "", f"the database file: {line}")


def _key_problems(pinned: dict[str, bytes], own: dict[str, bytes]) -> Iterator[Problem]:
    for device_id, key in own.items():
        if pinned.get(device_id) != key:
            yield Problem("", device_id, "the pinned key is not the one in keys/signing.pem")


def _read_tolerantly(connection: sqlite3.Connection, check: Callable[[Entry], None]) -> None:
    """Feed the log to `check`, batch by batch; damaged text must not hide the entry it is in."""
    after = 0
    while True:
        try:
            batch = connection.execute(queries()["entries_after"], (after, _BATCH)).fetchall()
        except (sqlite3.OperationalError, UnicodeDecodeError):
            connection.text_factory = _tolerant
            batch = connection.execute(queries()["entries_after"], (after, _BATCH)).fetchall()
            connection.text_factory = str
        for row in batch:
            check(Entry(*row))
        if len(batch) < _BATCH:
            return
        after = batch[-1][0]


def _tolerant(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class _Walk:
    """Goes along the log and remembers where each device's chain stands."""

    def __init__(self, keys: dict[str, bytes]) -> None:
        self.entries = self.signed = 0
        self.problems: list[Problem] = []
        self.unreadable = False
        self._keys = keys
        self._ends: dict[str, tuple[int, bytes]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def check(self, entry: Entry) -> None:
        self.entries += 1
        for problem in self._found(entry):
            self.problems.append(Problem(entry.entry_id, entry.device_id, problem))

    def _found(self, entry: Entry) -> Iterator[str]:
        if problem := flaw(entry):
            yield problem
        number, chain = self._ends.get(entry.device_id, (0, GENESIS))
        if entry.device_seq != number + 1:
            yield f"device_seq {entry.device_seq} follows {number}: entries are missing"
        elif entry.previous != chain:
            yield "it does not continue the chain of the entry before it"
        if entry.cloud_seq is None and entry.effective_hlc != entry.hlc:
            yield "its place in time was changed"
        self._ends[entry.device_id] = (entry.device_seq, entry.chain)
        yield from self._task_problems(entry)
        yield from self._signature_problems(entry)

    def _task_problems(self, entry: Entry) -> Iterator[str]:
        try:
            meta = orjson.loads(entry.meta)
            place, number = (entry.device_id, meta["task_id"]), meta["task_seq"]
        except (ValueError, KeyError, TypeError):
            self.unreadable = True
            yield "its meta cannot be read"
            return
        expected = self._numbers.get(place, 0) + 1
        if number != expected:
            yield f"task_seq {number} stands where {expected} belongs"
        self._numbers[place] = number

    def _signature_problems(self, entry: Entry) -> Iterator[str]:
        if entry.signature is None:
            if entry.op == FINALIZE:
                yield "the signature of a finalized checkpoint is missing"
        elif entry.device_id not in self._keys:
            yield "it is signed by a device whose key is not known here"
        elif not signature_valid(self._keys[entry.device_id], entry.chain, entry.signature):
            yield "its signature is not valid"
        else:
            self.signed += 1


# --- views ------------------------------------------------------------------------------------


class Difference(NamedTuple):
    view: str
    kind: str
    row: tuple[Any, ...]


def rebuild(store: Store) -> list[Difference]:
    """Recreate every view from the log; returns where the old ones differed from it."""
    with store.transaction():
        connection = store.connection
        try:
            differences = list(_differences(connection))
            for view in VIEWS if differences else ():
                connection.execute(f"DELETE FROM {view}")  # noqa: S608 (a constant)
                connection.execute(f"INSERT INTO {view} SELECT * FROM temp.log_{view}")  # noqa: S608
        except (ValueError, KeyError) as error:
            raise DatabaseCorruptError(
                f"the log cannot be read ({error}); the views were left as they are",
                "`syncd audit verify` names the damaged entries.",
            ) from None
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            _drop_expected(connection)
        connection.execute(queries()["clear_view_problems"])
    return differences


def _view_problems(connection: sqlite3.Connection) -> Iterator[Problem]:
    try:
        for difference in _differences(connection):
            yield _named(connection, difference)
    except (ValueError, KeyError) as error:
        yield Problem("", "", f"the views cannot be compared: {error}")
    finally:
        _drop_expected(connection)


def _named(connection: sqlite3.Connection, difference: Difference) -> Problem:
    """Name the entry that a differing view row belongs to, by its id or its place."""
    view, kind, row = difference
    names = [description[1] for description in connection.execute(f"PRAGMA table_info({view})")]
    columns = dict(zip(names, row, strict=True))
    subject = columns.get("id") or columns.get("child_id") or columns.get("task_id")
    entry = connection.execute(queries()["entry_about"], (columns.get("seq"), subject)).fetchone()
    entry_id, device_id = entry or (str(columns.get("revision") or subject), "")
    return Problem(entry_id, device_id, f"view {view}: a row for {subject} {kind}")


def _differences(connection: sqlite3.Connection) -> Iterator[Difference]:
    """The rows that differ, each once, in the form that the log says if there is one."""
    _build_expected(connection)
    for view in VIEWS:
        wanted = _rows_only_in(connection, f"temp.log_{view}", f"main.{view}")
        present = _rows_only_in(connection, f"main.{view}", f"temp.log_{view}")
        for key, row in wanted.items():
            yield Difference(view, "differs" if key in present else "is missing", row)
        for key, row in present.items():
            if key not in wanted:
                yield Difference(view, "is not in the log", row)


def _rows_only_in(
    connection: sqlite3.Connection, left: str, right: str
) -> dict[str, tuple[Any, ...]]:
    rows = connection.execute(
        f"SELECT * FROM {left} EXCEPT SELECT * FROM {right} LIMIT {_SHOWN_DIFFERENCES}"  # noqa: S608
    )
    return {row[0]: row for row in rows.fetchall()}


def _drop_expected(connection: sqlite3.Connection) -> None:
    for view in VIEWS:
        connection.execute(f"DROP TABLE IF EXISTS temp.log_{view}")


def _build_expected(connection: sqlite3.Connection) -> None:
    """The views as the log alone defines them, in temporary tables."""
    _drop_expected(connection)
    for view in VIEWS:
        connection.execute(f"CREATE TEMP TABLE log_{view} AS SELECT * FROM main.{view} WHERE 0")  # noqa: S608
    own = connection.execute(queries()["state"], ("device_id",)).fetchone()[0]
    tasks = _Tasks(own)
    versions = connection.execute(queries()["versions"])
    for (entity, _), group in groupby(versions, key=lambda row: (row[3], row[4])):
        rows = [_VersionRow._make((*row, orjson.loads(row[8]))) for row in group]
        for row in rows:
            tasks.meet(row)
        current = _current(rows)
        if entity == CHECKPOINT:
            _add(connection, "checkpoints", [_checkpoint_row(rows, current)])
        elif entity == TASK:
            tasks.describe(current)
        elif entity == LINK:
            ends = (current.meta["child"], current.meta["parent"])
            place = (current.effective_hlc, current.entry_id, current.seq)
            _add(connection, "links", [(*ends, *place)])
    _add(connection, "tasks", tasks.rows())
    _add(connection, "participants", tasks.participants)


class _VersionRow(NamedTuple):
    seq: int
    entry_id: str
    device_id: str
    entity: str
    entity_id: str
    op: str
    bases: str
    at: str
    meta_text: str
    hash: str
    effective_hlc: int
    meta: dict[str, Any]


def _current(rows: list[_VersionRow]) -> _VersionRow:
    if len(rows) == 1:
        return rows[0]
    versions = [
        Version(
            r.entry_id, orjson.loads(r.bases), r.op == FINALIZE, r.effective_hlc, r.device_id,
            r.hash,
        )
        for r in rows
    ]  # fmt: skip
    chosen = winner(heads(versions)).entry_id
    return next(row for row in rows if row.entry_id == chosen)


def _checkpoint_row(rows: list[_VersionRow], current: _VersionRow) -> tuple[Any, ...]:
    first = next((row for row in rows if row.op == CREATE), rows[0])
    return (
        first.entity_id, first.meta["task_id"], *checkpoint_columns(current.meta),
        current.op == FINALIZE, current.seq, first.seq, first.device_id, first.meta["task_seq"],
        first.effective_hlc, first.at,
    )  # fmt: skip


class _Tasks:
    """Gathers what the entries say about tasks and who took part in them."""

    def __init__(self, own_device: str) -> None:
        self._own = own_device
        self._first: dict[str, tuple[int, str, str]] = {}
        self._numbers: dict[str, int] = {}
        self._described: dict[str, tuple[Any, ...]] = {}
        self.participants: set[tuple[str, str]] = set()

    def meet(self, row: _VersionRow) -> None:
        task_id = row.meta["task_id"]
        mark = (row.effective_hlc, row.entry_id, row.at)
        self._first[task_id] = min(self._first.get(task_id, mark), mark)
        if row.entity == CHECKPOINT:
            self.participants.add((row.meta["agent"], task_id))
        if row.device_id == self._own and (row.entity, row.op) != (CHECKPOINT, CREATE):
            number = max(self._numbers.get(task_id, 0), row.meta["task_seq"])
            self._numbers[task_id] = number

    def describe(self, row: _VersionRow) -> None:
        self._described[row.entity_id] = (*task_columns(row.meta), row.entry_id, row.seq)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        for task_id, (_, _, at) in self._first.items():
            status, budget, retention, revision, seq = self._described.get(
                task_id, ("", None, "default", "", 0)
            )
            number = self._numbers.get(task_id, 0)
            yield (task_id, status, budget, retention, number, revision, seq, at)


def _add(connection: sqlite3.Connection, view: str, rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO temp.log_{view} VALUES ({marks})", row)  # noqa: S608
