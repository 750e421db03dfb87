"""The local side of sync: where this device stands, what is to be sent, what the replica said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from syncd import clock
from syncd.entry import CHECKPOINT, CREATE, Entry
from syncd.replica import Verdict
from syncd.seal import GENESIS
from syncd.store import Store
from syncd.views import Views

BATCH_ROWS = 1_000
BATCH_BYTES = 4_000_000


class Head(NamedTuple):
    """How far a device's chain goes."""

    device_seq: int
    chain: bytes


START = Head(0, GENESIS)


class Exchange:
    """One store's side of the exchange with a replica. Only one at a time works on a home."""

    def __init__(self, store: Store, public_key: bytes) -> None:
        self.store = store
        self._public_key = public_key

    # --- where this device stands -------------------------------------------------------------

    def run(self, query: str, *values: Any) -> sqlite3.Cursor:
        """A named statement inside the caller's transaction."""
        return self.store.connection.execute(self.store.sql[query], values)

    def state(self, name: str) -> str:
        row = self.store.row("state", (name,))
        return row[0] if row else ""

    def put_state(self, name: str, value: str) -> None:
        self.run("put_state", name, value)

    @property
    def device_id(self) -> str:
        return self.state("device_id")

    def head(self) -> Head:
        """The newest entry of this device."""
        newest = self.store.row("newest")
        if newest is None or newest[1] != self.device_id:
            return Head(*self.store.anchor()[:2])
        return Head(newest[2], newest[3])

    def acknowledged(self) -> Head:
        """The newest entry of this device that the replica has said it has."""
        kept = self.state("acknowledged")
        if not kept:
            return START
        number, chain = orjson.loads(kept)
        return Head(number, bytes.fromhex(chain))

    def acknowledge(self, head: Head) -> None:
        self.put_state("acknowledged", orjson.dumps([head.device_seq, head.chain.hex()]).decode())

    def cursor(self) -> tuple[int, str | None]:
        row = self.store.row("cursor")
        return (row[0], row[1]) if row else (0, None)

    def keys(self) -> dict[str, bytes]:
        return {row[0]: row[1] for row in self.store.rows("devices")}

    def heads(self) -> dict[str, Head]:
        """How far each device is known here; this one's own by its log."""
        heads = {row[0]: Head(row[2], row[3]) for row in self.store.rows("devices")}
        return {**heads, self.device_id: self.head()}

    def pin(self, keys: dict[str, bytes]) -> None:
        """Remember devices' keys; the first key seen stays."""
        at = clock.iso(clock.wall_ms())
        with self.store.transaction():
            for device_id, key in keys.items():
                self.run("add_device", device_id, key, at)

    # --- sending ------------------------------------------------------------------------------

    def sent_to(self) -> int:
        """The place in the log up to which the replica has acknowledged everything of ours."""
        return int(self.state("push_seq") or 0)

    def pending(self, after: int) -> list[Entry]:
        """The next entries to send after a place in the log, of one device, in one batch."""
        batch: list[Entry] = []
        size = 0
        with self.store.locked():
            for row in self.run("pending", after, self._public_key):
                entry = Entry(*row)
                size += len(entry.body)
                full = len(batch) == BATCH_ROWS or (batch and size > BATCH_BYTES)
                if full or (batch and entry.device_id != batch[0].device_id):
                    break
                batch.append(entry)
        return batch

    def pending_count(self) -> tuple[int, int]:
        """How many entries wait, and how many bytes they have."""
        row = self.store.row("pending_count", (self.sent_to(), self._public_key)) or (0, 0)
        return row[0], row[1]

    def mark(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> int:
        """Keep what the replica said about each entry; how many it refused."""
        refused = 0
        with self.store.transaction():
            views = Views(self.store.connection)
            self.store.connection.executemany(self.store.sql["mark"], _marks(entries, verdicts))
            for entry, verdict in zip(entries, verdicts, strict=True):
                if verdict.reason is not None:
                    refused += 1
                    self._quarantine(entry, verdict.reason)
                elif verdict.effective_hlc != entry.effective_hlc:
                    views.date(orjson.loads(entry.meta)["task_id"], verdict.effective_hlc)
                    views.settle(entry.entity, entry.entity_id)
            settle_forks(views, entries)
            last = entries[-1]
            self.put_state("push_seq", str(last.seq))
            if last.device_id == self.device_id:
                self.acknowledge(Head(last.device_seq, last.chain))
        return refused

    def _quarantine(self, entry: Entry, reason: str) -> None:
        at = clock.iso(clock.wall_ms())
        self.run("quarantine", entry.entry_id, entry.device_id, reason, at, "")


def settle_forks(views: Views, entries: Iterable[Entry]) -> None:
    """Look for branches where new checkpoints have become known to the replica."""
    parents: dict[str, list[str]] = {}
    for entry in entries:
        if entry.entity == CHECKPOINT and entry.op == CREATE:
            meta = orjson.loads(entry.meta)
            parents.setdefault(meta["task_id"], []).append(meta["parent"])
    for task_id, named in parents.items():
        views.settle_forks(task_id, named)


def _marks(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> Iterator[tuple[Any, ...]]:
    for entry, verdict in zip(entries, verdicts, strict=True):
        place = (verdict.cloud_seq, verdict.batch, verdict.effective_hlc)
        yield (*place, entry.signature, verdict.reason, entry.seq)
