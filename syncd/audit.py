"""Is the record intact? Every chain link, hash, signature and view row, checked against the log.

The views are compared with what the log alone says they should be (projection.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import orjson

from syncd.database import unforked
from syncd.endorsement import unendorsed
from syncd.entry import FINALIZE, KEY, Entry
from syncd.errors import DiskRefusedError, KeyMissingError
from syncd.projection import Problem, view_problems
from syncd.purges import Ledger
from syncd.refusals import translated
from syncd.seal import GENESIS, SEALED, flaw, header_intact, signature_valid, well_typed
from syncd.sql import SQLITE_VERSION, bring_up_to_date, queries, version_of
from syncd.store import Store
from syncd.vault import Vault

_BATCH = 2_000


class Closed(NamedTuple):
    """How many bodies could not be looked at, and why the keys of this home cannot be used."""

    entries: int
    why: KeyMissingError


class Report(NamedTuple):
    """What an audit found. `signed` counts the valid signatures."""

    entries: int
    signed: int
    problems: list[Problem]
    closed: Closed | None = None

    @property
    def ok(self) -> bool:
        return not self.problems and self.closed is None


def verify(store: Store, own_key: bytes) -> Report:
    """Check the whole database; what is found stays recorded until a later audit, which could look
    at everything, is clean."""
    with unforked, closing(reader(store)) as connection:
        report = verify_database(connection, {store.device_id: own_key}, store.vault)
    found = ((p.entry_id, p.problem) for p in report.problems)
    store.record_problems(found, anew=report.closed is None)
    return report


def damaged(store: Store) -> list[str]:
    """The entries here that are not what was written, each by itself; recorded like what reads
    meet. Less than an audit, which looks at what stands between them too."""
    found: list[Problem] = []
    after = 0
    while rows := store.rows("entries_after", (after, _BATCH)):
        for entry in map(store.read, rows):
            if problem := _flaw(entry, store.vault):
                found.append(Problem(str(entry.entry_id), str(entry.device_id), problem))
        after = rows[-1][0]
    if found:
        store.record_problems((p.entry_id, p.problem) for p in found)
    return [problem.entry_id for problem in found]


def reader(store: Store) -> sqlite3.Connection:
    """A connection of its own, with one view of the data for as long as the audit lasts."""
    how = "mode=ro&immutable=1" if store.is_frozen else "mode=ro"
    uri = f"{store.path.resolve().as_uri()}?{how}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    connection.execute("BEGIN")
    return connection


def verify_database(
    connection: sqlite3.Connection, own_keys: dict[str, bytes], vault: Vault | None = None
) -> Report:
    """Check an open database, a backup too; one of an older schema as an up-to-date copy. Bodies
    that are sealed are checked if the vault has their key."""
    if 0 < version_of(connection) < SQLITE_VERSION:
        with closing(sqlite3.connect("", isolation_level=None)) as copy:
            connection.backup(copy)
            bring_up_to_date(copy)
            return _verified(copy, own_keys, vault)
    return _verified(connection, own_keys, vault)


def _verified(
    connection: sqlite3.Connection, own_keys: dict[str, bytes], vault: Vault | None
) -> Report:
    problems: list[Problem] = []
    closed = None
    entries = signed = 0
    vault = vault or Vault()
    try:
        problems += _file_problems(connection)
        keys = dict(connection.execute(queries()["device_keys"]).fetchall())
        problems += _key_problems(keys, own_keys)
        walk = _Walk(keys, vault)
        _read_tolerantly(connection, walk.check)
        problems += walk.problems
        closed = walk.closed
        gone = "its body is gone, and no purge in the log names it"
        problems += [Problem(*place, gone) for place in walk.ledger.unaccounted(connection)]
        entries, signed = walk.entries, walk.signed
        if not walk.unreadable:
            found = list(view_problems(connection))
            problems += found or _place_problems(connection, walk)
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        told = translated(error)
        if isinstance(told, DiskRefusedError):  # of what is there it says nothing
            raise told from error
        problems.append(Problem("", "", f"the database cannot be read on: {error}"))
    return Report(entries, signed, problems, closed)


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


def _flaw(entry: Entry, vault: Vault) -> str | None:
    """Of an entry that the replica refused, other devices have the header alone; perhaps it was
    refused because of that. As long as no key can be used, a sealed body says nothing."""
    if _header_only(entry):
        return None
    sealed_here = well_typed(entry) and not entry.key_id and entry.body.startswith(SEALED)
    if sealed_here and not vault.locked:
        return "its body is sealed for this home with a key that is not here"
    return flaw(entry)


def _header_only(entry: Entry) -> bool:
    return entry.refused is not None and entry.body == b""


def _place_problems(connection: sqlite3.Connection, walk: _Walk) -> Iterator[Problem]:
    """Whether the next entry of each task would get the right number, and the right chain."""
    state = dict(connection.execute(queries()["whole_state"]).fetchall())
    own = state.get("device_id", "")
    for (device_id, task_id), number in walk.numbers.items():
        if device_id != own:
            continue
        place = connection.execute(queries()["place"], (task_id, "")).fetchone()
        if place[6] != number:
            yield Problem("", own, f"the counter of task {task_id} says {place[6]}, not {number}")
    newest = connection.execute(queries()["newest"]).fetchone()
    if newest and newest[1] != own:
        number, chain, _ = orjson.loads(state.get("anchor", '[0, "", 0]'))
        if (number, bytes.fromhex(chain) or GENESIS) != walk.ends.get(own, (0, GENESIS)):
            yield Problem("", own, "the next entry would not continue the chain of this device")


class _Walk:
    """Goes along the log and remembers where each device's chain stands."""

    def __init__(self, keys: dict[str, bytes], vault: Vault) -> None:
        self.entries = self.signed = 0
        self.closed: Closed | None = None
        self.problems: list[Problem] = []
        self.unreadable = False
        self._keys = keys
        self._vault = vault
        self.ends: dict[str, tuple[int, bytes]] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self._untold: dict[str, int] = {}
        self.ledger = Ledger()

    def check(self, stored: Entry) -> None:
        self.entries += 1
        entry = self._vault.opened(stored)
        if self._vault.locked and not self._vault.is_plain(entry):
            # The keys may be usable a moment later: what was passed over stays so.
            before, why = self.closed or (0, self._vault.locked)
            self.closed = Closed(before + 1, why)
        for problem in self._found(entry):
            self.problems.append(Problem(str(entry.entry_id), str(entry.device_id), problem))

    def _found(self, entry: Entry) -> Iterator[str]:
        if problem := _flaw(entry, self._vault):
            yield problem
        if not well_typed(entry):
            self.unreadable = True
            return
        number, chain = self.ends.get(entry.device_id, (0, GENESIS))
        if entry.device_seq != number + 1:
            yield f"device_seq {entry.device_seq} follows {number}: entries are missing"
        elif entry.previous != chain:
            yield "it does not continue the chain of the entry before it"
        # The replica may put an entry earlier than its clock said, never later.
        if entry.effective_hlc > entry.hlc or (
            entry.batch is None and entry.effective_hlc != entry.hlc
        ):
            yield "its place in time was changed"
        self.ends[entry.device_id] = (entry.device_seq, entry.chain)
        yield from self._task_problems(entry)
        yield from self._signature_problems(entry)

    def _task_problems(self, entry: Entry) -> Iterator[str]:
        if _header_only(entry) and not header_intact(entry):
            self._untold[entry.device_id] = self._untold.get(entry.device_id, 0) + 1
            return
        try:
            meta = orjson.loads(entry.meta)
            place, number = (entry.device_id, meta["task_id"]), meta["task_seq"]
            self.ledger.meet(entry, meta["task_id"])
        except (ValueError, KeyError, TypeError):
            self.unreadable = True
            yield "its meta cannot be read"
            return
        expected = self.numbers.get(place, 0) + 1
        # A number may be that of an entry whose header nobody can read.
        untold = self._untold.get(entry.device_id, 0)
        if expected < number <= expected + untold:
            self._untold[entry.device_id] = untold - (number - expected)
        elif number != expected:
            yield f"task_seq {number} stands where {expected} belongs"
        self.numbers[place] = number
        who = (entry.device_id, entry.device_seq, entry.entity_id)
        if entry.entity == KEY and (problem := unendorsed(*who, meta, self._keys)):
            yield problem

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
