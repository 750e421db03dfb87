"""The views as the log alone defines them: worked out from all versions at once, independently of
how they were written one by one, to compare them with what is there, or to make them anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from syncd import clock, fold
from syncd.entry import CHECKPOINT, LEASE, LINK, TASK
from syncd.errors import DatabaseCorruptError
from syncd.refusals import translated
from syncd.seal import MISTYPED
from syncd.sql import queries
from syncd.store import Store
from syncd.views import Views, checkpoint_row, fence_rows, task_columns

VIEWS = ("checkpoints", "tasks", "participants", "links", "conflicts", "fences")
_SHOWN_DIFFERENCES = 100


class Problem(NamedTuple):
    entry_id: str
    device_id: str
    problem: str


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
        except (ValueError, KeyError, TypeError) as error:
            raise DatabaseCorruptError(
                f"the log cannot be read ({error}); the views were left as they are",
                "`syncd audit verify` names the damaged entries.",
            ) from None
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            _drop_expected(connection)
        Views(connection).look_at_dates()
        connection.execute(queries()["clear_numbers"])
        connection.execute(queries()["recount"])
        connection.execute(queries()["clear_view_problems"])
        connection.execute(queries()["forget_tally"])
    return differences


def view_problems(connection: sqlite3.Connection) -> Iterator[Problem]:
    try:
        for difference in _differences(connection):
            yield _named(connection, difference)
    except (ValueError, KeyError, TypeError) as error:
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
    tasks = _Tasks()
    branches: list[tuple[tuple[str, str], fold.Branch]] = []
    versions = connection.execute(queries()["versions"])
    for (entity, entity_id), group in groupby(versions, key=lambda row: (row[3], row[4])):
        rows = fold.versions(_typed(row) for row in group)
        tasks.meet(rows)
        current = fold.current(rows)
        _add(connection, "conflicts", fold.version_conflicts(rows))
        if entity == CHECKPOINT:
            row = checkpoint_row(rows, current)
            _add(connection, "checkpoints", [row])
            branches += _branches(row[1], row[9], fold.first(rows))
        elif entity == TASK:
            tasks.describe(current)
        elif entity == LINK:
            ends = (current.meta["child"], current.meta["parent"])
            place = (current.effective_hlc, current.entry_id, current.seq)
            _add(connection, "links", [(*ends, *place)])
        elif entity == LEASE:
            _add(connection, "fences", fence_rows(entity_id, rows))
    _add(connection, "tasks", tasks.rows())
    _add(connection, "participants", tasks.participants)
    _add(connection, "conflicts", _forks(connection, branches))


def _typed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A version, if its columns are what was written: a view must not repeat the damage."""
    texts, numbers = row[1:10], (row[0], row[10])
    if all(type(it) is str for it in texts) and all(type(it) is int for it in numbers):
        return row
    raise TypeError(f"entry {row[1]}: {MISTYPED}")


def _branches(
    task_id: str, parent: str, first: fold.VersionRow
) -> Iterator[tuple[tuple[str, str], fold.Branch]]:
    """A checkpoint as one of its parent's children, if the replica has it."""
    if parent and first.fence:
        branch = (first.entity_id, first.device_id, first.effective_hlc, first.entry_id, first.at)
        yield (task_id, parent), fold.Branch(*branch)


def _forks(
    connection: sqlite3.Connection, branches: list[tuple[tuple[str, str], fold.Branch]]
) -> Iterator[fold.Conflict]:
    choices = dict(connection.execute(queries()["choices"]).fetchall())
    for (_, parent), group in groupby(sorted(branches), key=lambda pair: pair[0]):
        yield from fold.fork_conflicts(parent, [branch for _, branch in group], choices)


class _Tasks:
    """Gathers what the entries say about tasks and who took part in them."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}
        self._described: dict[str, tuple[Any, ...]] = {}
        self.participants: set[tuple[str, str]] = set()

    def meet(self, versions: list[fold.VersionRow]) -> None:
        for row in versions:
            task_id, hlc = row.meta["task_id"], row.effective_hlc
            if task_id:
                self._first[task_id] = min(self._first.get(task_id, hlc), hlc)
            if row.entity == CHECKPOINT:
                self.participants.add((row.meta["agent"], task_id))

    def describe(self, row: fold.VersionRow) -> None:
        self._described[row.entity_id] = (*task_columns(row.meta), row.entry_id, row.seq)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        for task_id, hlc in self._first.items():
            status, budget, retention, revision, seq = self._described.get(
                task_id, ("", None, "default", "", 0)
            )
            at = clock.iso(clock.milliseconds(hlc))
            yield (task_id, status, budget, retention, revision, seq, at)


def _add(connection: sqlite3.Connection, view: str, rows: Iterable[tuple[Any, ...]]) -> None:
    for row in rows:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO temp.log_{view} VALUES ({marks})", row)  # noqa: S608
