"""Bodies that are gone on purpose: how a purge takes effect, and what accounts for it.

A purge is an entry that names others of its task. Once it counts, their bodies go; header, hash,
chain and signature stay, so that the record can still be verified.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from syncd.entry import PURGE, Entry
from syncd.seal import flaw, header_intact
from syncd.sql import queries
from syncd.views import Views

ERASE, RETENTION = "erase", "retention"
# Names in the device's own state: purges whose traces are still to be removed from the files here,
# whether the database itself is among them, and purges that were named but have not arrived.
UNCLEANED, OVERWRITE, AWAITED = "purges_uncleaned", "purges_overwrite", "purges_awaited"
# Up to which place in the log the erasures were looked for, and which there are.
ERASURES = "erasures"
# How the rows of a named query are asked for.
Rows = Callable[..., list[tuple[Any, ...]]]
_BYTES = ("previous", "chain", "signature", "body")


class Purge(NamedTuple):
    """What a purge entry says."""

    entry_id: str
    task_id: str
    names: list[str]
    kind: str


class Erased(NamedTuple):
    """A version that somebody has asked to erase, whether it is gone yet or not."""

    checkpoint_id: str
    entry_id: str
    at: str
    actor: str


def purge_in(entry: Entry) -> Purge:
    meta = orjson.loads(entry.meta)
    return Purge(entry.entry_id, meta["task_id"], meta["entries"], meta["kind"])


def take_effect(connection: sqlite3.Connection, purges: Iterable[Purge]) -> None:
    """Take the bodies away that some purges name, inside the caller's transaction.

    What is freed is overwritten. Older copies may remain in the files until they are cleaned.
    """
    listed = list(purges)
    if not listed:
        return
    connection.execute("PRAGMA secure_delete = ON")
    taken = [purge for purge in listed if _taken(connection, purge)]
    ids = [purge.entry_id for purge in listed]
    _remember(connection, UNCLEANED, _remembered(connection, UNCLEANED) | set(ids))
    if erased := [purge.entry_id for purge in taken if purge.kind == ERASE]:
        connection.execute(queries()["put_state"], (OVERWRITE, erased[-1]))
    if waiting := _remembered(connection, AWAITED) & set(ids):
        _remember(connection, AWAITED, _remembered(connection, AWAITED) - waiting)
    _note_erasures(connection)


def _taken(connection: sqlite3.Connection, purge: Purge) -> bool:
    """Apply one purge; whether a body was still there."""
    sql, names = queries(), orjson.dumps(purge.names).decode()
    values = (names, purge.task_id, purge.entry_id)
    targets = connection.execute(sql["purge_targets"], values).fetchall()
    connection.executemany(sql["purge"], [(purge.entry_id, seq) for seq, _, _ in targets])
    connection.execute(sql["purge_quarantine"], (names,))
    views = Views(connection)
    for (checkpoint_id,) in connection.execute(sql["purged_conflicts"], (names,)).fetchall():
        views.settle("checkpoint", checkpoint_id)
    return any(body for _, _, body in targets)


def expect(connection: sqlite3.Connection, ids: Iterable[str]) -> None:
    """Bodies were left out for purges that may not have arrived yet."""
    missing = {
        name for name in ids
        if connection.execute(queries()["entry"], (name,)).fetchone() is None
    }  # fmt: skip
    if missing:
        _remember(connection, AWAITED, _remembered(connection, AWAITED) | missing)


def _more_to_come(connection: sqlite3.Connection) -> bool:
    """Whether the replica has numbers that were not fetched yet, as far as is known."""
    known = connection.execute(queries()["state"], ("cloud_seq",)).fetchone()
    cursor = connection.execute(queries()["cursor"]).fetchone()
    return int(known[0] if known else 0) > (cursor[0] if cursor else 0)


def _remembered(connection: sqlite3.Connection, name: str) -> set[str]:
    row = connection.execute(queries()["state"], (name,)).fetchone()
    return set(orjson.loads(row[0])) if row else set()


def _remember(connection: sqlite3.Connection, name: str, ids: set[str]) -> None:
    connection.execute(queries()["put_state"], (name, orjson.dumps(sorted(ids)).decode()))


def uncleaned(connection: sqlite3.Connection) -> set[str]:
    return _remembered(connection, UNCLEANED)


def to_overwrite(connection: sqlite3.Connection) -> str:
    """The last purge that erased something which may still be in unused parts of the database."""
    row = connection.execute(queries()["state"], (OVERWRITE,)).fetchone()
    return row[0] if row else ""


def overwritten(connection: sqlite3.Connection, last: str) -> None:
    """The database has been written anew since that purge; there may be a later one."""
    if to_overwrite(connection) == last:
        connection.execute(queries()["put_state"], (OVERWRITE, ""))


def cleaned(connection: sqlite3.Connection, ids: set[str]) -> None:
    """The files here hold no trace of what these purges took away."""
    _remember(connection, UNCLEANED, _remembered(connection, UNCLEANED) - ids)


# --- what was erased ----------------------------------------------------------------------------


def erased(rows: Rows, checkpoint_id: str | None = None) -> list[Erased]:
    """The versions that erasures name, of one checkpoint or of all. Erasures are a person's doing,
    so they stay few; what retention lets go is passed over."""
    ids = _erasures(rows)
    if not ids:
        return []
    values = (orjson.dumps(ids).decode(), checkpoint_id)
    return [Erased(*row) for row in rows("erased_versions", values)]


def survivors(rows: Rows) -> list[str]:
    """The checkpoints that were erased and have content that no erasure names: it was written on
    another machine, which did not know."""
    found = erased(rows)
    named = {version.entry_id for version in found}
    return [
        name
        for name in sorted({version.checkpoint_id for version in found})
        if {row[0] for row in rows("bodies_of", (name,))} - named
    ]


def _erasures(rows: Rows) -> list[str]:
    noted = rows("state", (ERASURES,))
    seq, known = orjson.loads(noted[0][0]) if noted else (0, [])
    return [*known, *(row[0] for row in rows("erasures_after", (seq,)))]


def _note_erasures(connection: sqlite3.Connection) -> None:
    """So that nobody who asks has to look through all purges, which retention adds to for ever."""

    def rows(name: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        return connection.execute(queries()[name], tuple(values)).fetchall()

    newest = rows("newest")
    now = [newest[0][0] if newest else 0, _erasures(rows)]
    connection.execute(queries()["put_state"], (ERASURES, orjson.dumps(now).decode()))


# --- evidence -----------------------------------------------------------------------------------


def evidence(entry: Entry) -> str:
    """A purge entry as text that can be verified by itself."""
    fields = entry._asdict()
    fields |= {name: fields[name].hex() for name in _BYTES if fields[name] is not None}
    return orjson.dumps(fields).decode()


def recalled(text: str) -> Entry:
    fields: dict[str, Any] = orjson.loads(text)
    fields |= {name: bytes.fromhex(fields[name]) for name in _BYTES if fields[name] is not None}
    return Entry(**fields)


def holds(connection: sqlite3.Connection, entry: Entry) -> bool:
    """Whether a body that a purge names is still in a database."""
    purge = purge_in(entry)
    values = (orjson.dumps(purge.names).decode(), purge.task_id, purge.entry_id)
    targets = connection.execute(queries()["purge_targets"], values).fetchall()
    return any(body for _, _, body in targets)


def leave_out(connection: sqlite3.Connection, entries: Iterable[Entry]) -> bool:
    """Apply purges to another database, a backup, which gets them as evidence where it is older
    than they are. Whether there was anything to take away."""
    found = False
    for entry in entries:
        if _taken(connection, purge_in(entry)):
            found = True
            if connection.execute(queries()["entry"], (entry.entry_id,)).fetchone() is None:
                values = (entry.entry_id, evidence(entry))
                connection.execute(queries()["add_purge"], values)
    return found


class Ledger:
    """Met on the way along a log: bodies that are gone, and the entries that account for them."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[str, frozenset[str]]] = {}
        self._gone: list[tuple[str, str, str, str]] = []

    def meet(self, entry: Entry, task_id: str) -> None:
        if entry.entity == PURGE and header_intact(entry):
            with suppress(KeyError, TypeError):  # perhaps it was refused for that
                purge = purge_in(entry)
                self._named[purge.entry_id] = task_id, frozenset(purge.names)
        elif entry.purged is not None:
            self._gone.append((entry.entry_id, entry.device_id, entry.purged, task_id))

    def unaccounted(self, connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
        """Entry and device of each body that is gone without a purge that names it."""
        for entry_id, text in connection.execute(queries()["purges"]).fetchall():
            with suppress(KeyError, TypeError, ValueError):  # what cannot be read proves nothing
                entry = recalled(text)
                if entry.entry_id == entry_id and flaw(entry) is None:
                    self.meet(entry, orjson.loads(entry.meta)["task_id"])
        awaited = _remembered(connection, AWAITED) if _more_to_come(connection) else set()
        for entry_id, device_id, purge_id, task_id in self._gone:
            named = self._named.get(purge_id)
            if named is None and purge_id in awaited:
                continue
            if named is None or named[0] != task_id or entry_id not in named[1]:
                yield entry_id, device_id
