"""Writing to the local database: an entry and its view rows in one durable transaction.

Writers are short-lived commands, libraries and hooks in many processes; none of them waits for
a daemon. A write is acknowledged when SQLite has synced its log to disk.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd import clock
from syncd.database import Database, is_busy
from syncd.entry import Draft, Entry, header_bytes
from syncd.refusals import translated
from syncd.seal import GENESIS, SigningKey, chain_value
from syncd.vault import Vault
from syncd.views import Views


class Place(NamedTuple):
    """Where an entry goes: after which, and as which of its task."""

    device_id: str
    device_seq: int
    chain: bytes
    hlc: int
    task_since: str
    agent_known: int
    task_seq: int
    current_id: str | None
    fenced: int
    # The meta of the entry before, if `numbers` may lack what it says: while entries of one graph's
    # thread follow each other, each is spared that page.
    before: str | None


class Writer(Database):
    """A device's log, as far as it is written to."""

    def __init__(self, path: Path, *, vault: Vault | None = None, **options: Any) -> None:
        super().__init__(path, **options)
        self.vault = vault or Vault()

    def place(self, task_id: str, agent: str = "") -> Place:
        """Where the next entry of a task goes; asked and used inside one transaction."""
        return self._place("place", (task_id, agent))

    def graph_place(self, task_id: str) -> Place:
        """The same for an entry of a graph's thread."""
        place = self._place("graph_place", (task_id,))
        last_task, number = _numbered(place.before)
        if last_task != task_id:
            return place
        return place._replace(task_seq=max(place.task_seq, number), before=None)

    def _place(self, query: str, values: tuple[str, ...]) -> Place:
        (row,) = self._fetched(self.sql[query], values, 1)
        if row[0] == row[9]:
            return Place._make((*row[:9], row[10]))
        return Place._make((row[9], *self.anchor()[:2], *row[3:9], row[10]))

    def anchor(self) -> tuple[int, bytes, int]:
        """This device's number, chain value and clock, for when another's entry came last.

        Whoever appends another device's entries sets it, in the same transaction.
        """
        kept = self.row("state", ("anchor",))
        if kept is None:
            return 0, GENESIS, 0
        number, chain, hlc = orjson.loads(kept[0])
        return number, bytes.fromhex(chain), hlc

    def own_head(self) -> tuple[int, bytes]:
        """Number and chain value of this device's newest entry."""
        newest = self.row("newest")
        if newest is None or newest[1] != self.device_id:
            return self.anchor()[:2]
        return newest[2], newest[3]

    def append(self, draft: Draft, place: Place, key: SigningKey | None = None) -> Entry:
        """Chain, store and project one entry, inside a transaction; with a key, sign it."""
        meta = {**draft.meta, "task_seq": place.task_seq + 1}
        header, proof, stored = self._chained(draft, meta, place[:4], key)
        if place.before is not None:
            self.change("keep_number")
        cursor = self._connection.execute(self.sql["append"], (*header, *proof, stored))
        entry = _written(cursor, header, proof, draft.body)
        views = Views(self._connection)
        # A clock that was ahead may have dated the task later than this entry.
        at = clock.iso(clock.milliseconds(entry.hlc))
        first = not place.task_since or at < place.task_since
        if first or not place.agent_known:
            views.introduce(meta, entry.hlc, task=first, agent=not place.agent_known)
        views.project(entry, meta)
        return entry

    def append_after(self, last: Entry, draft: Draft, task_seq: int) -> Entry | None:
        """One more entry of a graph's thread, on disk when this returns, if its last one is still
        the newest here. Else None: somebody has written since, or is about to."""
        place = (last.device_id, last.device_seq, last.chain, last.effective_hlc)
        with self._lock:
            if self._depth:
                return None
            meta = {**draft.meta, "task_seq": task_seq}
            header, proof, stored = self._chained(draft, meta, place)
            values = (*header, *proof, stored, last.effective_hlc)
            try:
                cursor = self.connection.execute(self.sql["append_after"], values)
            except sqlite3.Error as error:
                if is_busy(error):
                    return None
                raise translated(error) from error
            return _written(cursor, header, proof, draft.body) if cursor.rowcount == 1 else None

    def _chained(
        self,
        draft: Draft,
        meta: dict[str, Any],
        place: tuple[str, int, bytes, int],
        key: SigningKey | None = None,
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], bytes]:
        """Header and proof of an entry that follows a device's number, chain value and clock, and
        its body as it is stored."""
        device_id, number, previous, clock_before = place
        now = self.now_ms()
        hlc, at = clock.tick(clock_before, now), clock.iso(now)
        key_id, body_hash, stored = self.vault.sealed(draft.entry_id, draft.body)
        header = (
            draft.entry_id, device_id, number + 1, draft.entity, draft.entity_id,
            draft.op, orjson.dumps(draft.bases).decode(), hlc, draft.actor, at, key_id,
            orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode(),
        )  # fmt: skip
        chain = chain_value(previous, header_bytes(header), body_hash)
        signature = key.sign(chain) if key else None
        return header, (body_hash, previous, chain, signature, hlc), stored


def _written(
    cursor: sqlite3.Cursor, header: tuple[Any, ...], proof: tuple[Any, ...], body: bytes
) -> Entry:
    return Entry._make((cursor.lastrowid or 0, *header, *proof, None, None, body, None, None))


def _numbered(meta: str | None) -> tuple[str, int]:
    """Task and number of an entry; none if that cannot be read."""
    if meta is None:
        return "", 0
    try:
        said = orjson.loads(meta)
        return said["task_id"], said["task_seq"]
    except (ValueError, KeyError, TypeError):
        return "", 0
