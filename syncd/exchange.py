"""The local side of sync: where this device stands, what is to be sent, what the replica said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from syncd import clock
from syncd.entry import CHECKPOINT, CREATE, LEASE, PURGE, Entry
from syncd.errors import SyncdError
from syncd.projection import rebuild
from syncd.purges import purge_in, take_effect
from syncd.replica import Verdict
from syncd.seal import GENESIS
from syncd.store import Store
from syncd.views import Views

CAPPED = "capped"
BATCH_ROWS = 1_000
BATCH_BYTES = 4_000_000
_PURGE_WEIGHT = 30


class Head(NamedTuple):
    """How far a device's chain goes."""

    device_seq: int
    chain: bytes


START = Head(0, GENESIS)


class Exchange:
    """One store's side of the exchange with a replica. Only one at a time works on a home."""

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- where this device stands -------------------------------------------------------------

    def run(self, query: str, *values: Any) -> sqlite3.Cursor:
        """A named statement inside the caller's transaction."""
        return self.store.execute(self.store.sql[query], values)

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
        return Head(*self.store.own_head())

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

    # --- sending ------------------------------------------------------------------------------

    def own_ids(self) -> set[str]:
        """All ids that this device has had under its login, whatever its key was."""
        return {row[0] for row in self.store.rows("own_ids")} - set(self.left_ids())

    def former_ids(self) -> dict[str, str]:
        """Ids that this device had before, and when each ended. Others, of copies of this home,
        may have the same key."""
        found: dict[str, str] = orjson.loads(self.state("former_ids") or "{}")
        return found

    def retire(self, device_ids: Iterable[str]) -> None:
        """Ids under which nothing is written from now on, whatever key this device has next."""
        ended = dict.fromkeys(device_ids, clock.iso(clock.wall_ms()))
        self.put_state("former_ids", orjson.dumps({**ended, **self.former_ids()}).decode())

    def waits(self, device_id: str) -> bool:
        """Whether something that was written here under an id was not sent yet."""
        row = self.store.row("pending_count", (self.sent_to(), _json({device_id} & self.own_ids())))
        return bool(row and row[0])

    def left_ids(self) -> list[str]:
        """Ids that belong to a login which this home no longer has."""
        found: list[str] = orjson.loads(self.state("left") or "[]")
        return found

    def leave(self, device_id: str) -> None:
        with self.store.transaction():
            kept = _json([*self.left_ids(), device_id])
            self.put_state("left", kept)

    def sent_to(self) -> int:
        """The place in the log up to which the replica has acknowledged everything of ours."""
        return int(self.state("push_seq") or 0)

    def pending(self, after: int, devices: Iterable[str] | None = None) -> list[Entry]:
        """The next entries to send after a place in the log: of one device, in one batch, each
        the next of the one before."""
        wanted = _json(self.own_ids() if devices is None else devices)
        with self.store.locked():
            try:
                return self._batch(self.run("pending", after, wanted))
            except sqlite3.OperationalError:  # damaged text: the replica shall see and refuse it
                connection = self.store.connection
                connection.text_factory = _tolerant
                try:
                    return self._batch(self.run("pending", after, wanted))
                finally:
                    connection.text_factory = str

    def _batch(self, rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
        batch: list[Entry] = []
        size = 0
        for row in rows:
            entry = self.store.vault.to_send(Entry(*row))
            size += _weight(entry)
            if batch and (
                len(batch) == BATCH_ROWS
                or size > BATCH_BYTES
                or entry.device_id != batch[0].device_id
                or entry.device_seq != batch[-1].device_seq + 1
            ):
                break
            batch.append(entry)
        return batch

    def sendable_to(self, device_id: str, after: int) -> int:
        """The last number of a device, after one, up to which its entries can be sent as they were
        signed: each batch ends with a signature."""
        last, count, size = after, 0, 0
        for (seq,) in self.run("seqs_after", device_id, after).fetchall():
            entry = Entry(*self.run("entry_at", seq).fetchone())
            count, size = count + 1, size + _weight(entry)
            if count > BATCH_ROWS or (size > BATCH_BYTES and count > 1):
                break
            if entry.signature is not None:
                last, count, size = entry.device_seq, 0, 0
        return last

    def pending_count(self) -> int:
        """How many entries wait."""
        row = self.store.row("pending_count", (self.sent_to(), _json(self.own_ids())))
        return row[0] if row else 0

    def note(self, pushed: int, pulled: int, error: SyncdError | None = None) -> None:
        """Keep what came of an attempt, for `explain` and `status`."""
        message = error.message if error else ""
        with self.store.transaction():
            self.run("add_attempt", clock.iso(clock.wall_ms()), pushed, pulled, message)
            self.run("trim_attempts")
            self.put_state("remedy", error.remedy if error and not error.passes else "")

    def refused(self) -> list[str]:
        """Entries of this device, under whatever login it wrote them, of which the replica has only
        the header, and nobody has decided what becomes of them."""
        own = self.own_ids() | set(self.left_ids())
        return [row[0] for row in self.store.rows("quarantined", ("open",)) if row[1] in own]

    def offer_again(self, seqs: Iterable[int]) -> None:
        """Entries that the replica turned out not to have."""
        with self.store.transaction():
            first = self.sent_to() + 1
            for seq in seqs:
                self.run("forget_place", seq)
                first = min(first, seq)
            self.put_state("push_seq", str(first - 1))
            rebuild(self.store)  # of branches, only what the replica has counts

    def mark(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        """Keep what the replica said about each entry."""
        with self.store.transaction():
            views = Views(self.store.connection)
            self.store.connection.executemany(self.store.sql["mark"], _marks(entries, verdicts))
            for entry, verdict in zip(entries, verdicts, strict=True):
                if verdict.reason is not None:
                    self.quarantine(entry.entry_id, entry.device_id, verdict.reason)
                    self.run("forget_tally")
                elif verdict.effective_hlc != entry.effective_hlc or entry.entity == LEASE:
                    views.date(orjson.loads(entry.meta)["task_id"], verdict.effective_hlc)
                    views.settle(entry.entity, entry.entity_id)
                    self.run("forget_tally")
            pairs = zip(entries, verdicts, strict=True)
            taken = [
                entry._replace(effective_hlc=verdict.effective_hlc)
                for entry, verdict in pairs
                if verdict.reason is None
            ]
            settle_forks(views, taken)
            purges = [purge_in(entry) for entry in taken if entry.entity == PURGE]
            take_effect(self.store.connection, purges)
            self._take_after_all(entry for entry in taken if entry.refused is not None)
            self._slow_down(entries, verdicts)
            last = entries[-1]
            self.put_state("push_seq", str(last.seq))
            if last.device_id == self.device_id and (
                last.device_seq > self.acknowledged().device_seq
            ):
                self.acknowledge(Head(last.device_seq, last.chain))

    def _take_after_all(self, entries: Iterable[Entry]) -> None:
        """Entries that a replica had refused, which was restored since and has taken them."""
        if named := [entry.entry_id for entry in entries]:
            for entry_id in named:
                self.run("settle_quarantine", "taken", entry_id)
            rebuild(self.store)

    def _slow_down(self, entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> None:
        """Forget the reading of a clock that was ahead: what the replica has just allowed is later
        than anything it has."""
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.verdict == CAPPED and verdict.effective_hlc < entry.effective_hlc:
                self.put_anchor(Head(*self.store.anchor()[:2]), verdict.effective_hlc)
                return

    def put_anchor(self, head: Head, hlc: int) -> None:
        """Where this device's next entry goes if the newest entry is another's."""
        kept = [head.device_seq, head.chain.hex(), hlc]
        self.put_state("anchor", orjson.dumps(kept).decode())

    def quarantine(self, name: str, device_id: str, reason: str, content: str = "") -> None:
        """Keep what one side did not take, or did not get, for the user to see."""
        self.run("quarantine", name, device_id, reason, clock.iso(clock.wall_ms()), content)


def settle_forks(views: Views, entries: Iterable[Entry]) -> None:
    """Look for branches where new checkpoints have become known to the replica."""
    parents: dict[str, set[str]] = {}
    created = _firsts(views, [entry for entry in entries if entry.entity == CHECKPOINT])
    dated = []
    for entry in created:
        meta = orjson.loads(entry.meta)
        parents.setdefault(meta["task_id"], set()).add(meta["parent"])
        if meta["parent"]:
            dated.append((meta["parent"], entry.effective_hlc))
    if dated:
        views.note_dates(dated)
    for task_id, parent in views.moved(entry.entity_id for entry in created):
        parents.setdefault(task_id, set()).add(parent)
    for task_id, named in parents.items():
        views.settle_forks(task_id, named)


def _firsts(views: Views, entries: list[Entry]) -> list[Entry]:
    """Those that begin their checkpoint, though the one that created it was refused or lost."""
    firsts = views.firsts(entry.entity_id for entry in entries if entry.op != CREATE)
    return [entry for entry in entries if entry.op == CREATE or entry.seq in firsts]


def _marks(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> Iterator[tuple[Any, ...]]:
    for entry, verdict in zip(entries, verdicts, strict=True):
        # What was refused has a place in time on this device only.
        hlc = entry.effective_hlc if verdict.reason is not None else verdict.effective_hlc
        place = (verdict.cloud_seq, verdict.batch, hlc)
        yield (*place, entry.signature, verdict.reason, entry.seq)


def _weight(entry: Entry) -> int:
    """Its bytes. What a purge names costs the replica as much as new entries of usual size."""
    if entry.entity == PURGE:
        return _PURGE_WEIGHT * len(entry.meta)
    return len(entry.body) if isinstance(entry.body, bytes) else 0


def _json(values: Iterable[str]) -> str:
    return orjson.dumps(list(values)).decode()


def _tolerant(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
