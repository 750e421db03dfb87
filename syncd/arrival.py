"""What was examined is taken in, in one transaction a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import orjson

from syncd import clock
from syncd.entry import CHECKPOINT, CREATE, KEY, LEASE, PURGE, Entry
from syncd.errors import DivergedError
from syncd.examination import Examined, opened, unfit
from syncd.exchange import START, Exchange, Head, settle_forks
from syncd.projection import rebuild
from syncd.purges import expect, purge_in, take_effect
from syncd.replica import Pulled
from syncd.views import Views, first_version


def apply(exchange: Exchange, page: Sequence[Examined], keys: dict[str, bytes]) -> int:
    """Take in what was examined and move the cursor past it; how many entries were new here.

    Raises if an id is in use by another entry: then the rest of the page is taken without."""
    with exchange.store.transaction():
        _note_holes(exchange, [examined.row.cloud_seq for examined in page])
        arrival = _Arrival(exchange, keys)
        for examined in page:
            arrival.take(examined)
        arrival.finish()
        for batch, cloud_seq in {e.row.batch: e.row.cloud_seq for e in page}.items():
            exchange.run("add_batch", cloud_seq, batch)
        return len(arrival.entries)


def apply_without_clashes(
    exchange: Exchange, page: Sequence[Examined], keys: dict[str, bytes]
) -> int:
    return apply(exchange, _without_clashes(exchange, page), keys)


def _note_holes(exchange: Exchange, numbers: Sequence[int]) -> None:
    """Numbers that the replica left out: what follows them is taken in all the same."""
    exchange.run("release_holes", numbers[0], numbers[-1])
    for earlier, later in pairwise([exchange.cursor()[0], *numbers]):
        if later != earlier + 1:
            name = f"number {earlier + 1}" + (f" to {later - 1}" if later - earlier > 2 else "")
            content = orjson.dumps({"cloud_seq": earlier + 1}).decode()
            exchange.quarantine(name, "", "the replica left it out", content)


def _without_clashes(exchange: Exchange, page: Sequence[Examined]) -> list[Examined]:
    """Two entries under one id: the one that came first stays. Its device is not followed beyond
    the other one."""
    taken: set[str] = set()
    left: set[str] = set()
    kept = []
    for examined in page:
        row = examined.row
        if examined.previous is not None and row.refused is None:
            if row.entry_id in taken or exchange.run("placed", row.entry_id).fetchone():
                left.add(row.device_id)
            taken.add(row.entry_id)
        follows = examined.previous is not None and row.device_id in left
        kept.append(Examined(row, problem="its id is in use by another") if follows else examined)
    return kept


class _Arrival:
    """One page on its way into the log and the views."""

    def __init__(self, exchange: Exchange, keys: dict[str, bytes]) -> None:
        self._exchange = exchange
        self._vault = exchange.store.vault
        self._keys = keys
        self._own = exchange.device_id
        self._head = exchange.head()
        self._told = START
        newest = exchange.store.row("newest")
        self._seq = newest[0] if newest else 0
        self._all_sent = exchange.sent_to() == self._seq
        self._hlc = max(newest[4] if newest else 0, exchange.store.anchor()[2])
        self._views = Views(exchange.store.connection)
        exchange.run("keep_number")
        self._heads: dict[str, Head] = {}
        self._vouching: set[str] = set()
        self._checkpoints: list[tuple[Any, ...]] = []
        self._touched: dict[tuple[str, str], list[int]] = {}
        self._seen: list[Entry] = []
        self._filled: set[int] = set()
        self._later: dict[str, int] = {}
        self._views_differ = False
        self.entries: list[Entry] = []
        self._metas: list[dict[str, Any] | None] = []

    def take(self, examined: Examined) -> None:
        row, previous, meta, problem = examined
        if problem is not None:
            self._quarantine(row, problem)
        elif previous is None:
            self._place(row)
        else:
            self._receive(row, previous, meta)

    def _receive(self, row: Pulled, previous: bytes, meta: dict[str, Any] | None) -> None:
        if row.device_id == self._own:
            if previous != self._head.chain:
                raise DivergedError("this device wrote while its own entries came back")
            self._head = self._told = Head(row.device_seq, row.chain)
        self._seq += 1
        self._add(entry_at(self._seq, row, previous), meta)
        self._heads[row.device_id] = Head(row.device_seq, row.chain)
        if row.entity == KEY and meta is not None:
            self._vouching.add(meta["continues"]["device_id"])

    def _add(self, entry: Entry, meta: dict[str, Any] | None) -> None:
        self.entries.append(entry)
        self._metas.append(meta)
        self._hlc = max(self._hlc, entry.effective_hlc)
        if entry.refused is not None or meta is None:
            return
        if entry.op == CREATE and entry.entity == CHECKPOINT:
            self._checkpoints.append(first_version(entry, meta))
        else:
            self._touched.setdefault((entry.entity, entry.entity_id), [])

    def _place(self, row: Pulled) -> None:
        """An entry that is here already: only its place may be news."""
        run = self._exchange.run
        entries = run("placed", row.entry_id).fetchall()
        found = next((entry for entry in entries if entry[1] == row.chain), None)
        if found is None:
            self._fill(row)
            return
        if row.device_id == self._own:
            self._told = Head(row.device_seq, row.chain)
        seq, _, *place, entity, entity_id, refused = found
        if refused is not None and row.refused is None and not self._taken_after_all(row, seq):
            return
        # What was refused has a place in time on its own device only.
        hlc = row.effective_hlc if row.refused is None else place[2]
        turned_down = row.refused is not None and refused is None
        if turned_down:
            word = "the replica had taken it, and says now: " if place[0] is not None else ""
            self._exchange.quarantine(row.entry_id, row.device_id, f"{word}{row.refused}")
        if turned_down or place != [row.cloud_seq, row.batch, hlc]:
            run("mark", row.cloud_seq, row.batch, hlc, row.signature, row.refused, seq)
            self._seen.append(entry_at(seq, row, b""))
            if row.refused != refused or place[2] != hlc or entity == LEASE:
                run("forget_tally")
            if place[2] != hlc or entity == LEASE:
                self._touched.setdefault((entity, entity_id), [])
                task_id = orjson.loads(row.meta)["task_id"]
                self._views.date(task_id, row.effective_hlc)
                if hlc > place[2]:
                    self._later[task_id] = min(self._later.get(task_id, hlc), place[2])

    def _taken_after_all(self, row: Pulled, seq: int) -> bool:
        """An entry that a replica had refused, which was restored since and has taken it. Of
        another device's, only the header is here."""
        if row.device_id != self._own:
            previous = self._exchange.run("previous_at", seq).fetchone()[0]
            if problem := unfit(row, previous, self._vault):
                self._quarantine(row, problem)
                return False
            entry = self._kept(entry_at(seq, row, previous))
            self._exchange.run("complete", entry.body, entry.purged, seq)
        self._exchange.run("settle_quarantine", "taken", row.entry_id)
        self._views_differ = True
        return True

    def _fill(self, row: Pulled) -> None:
        """An entry that was lost here; its place in the log is free, unless it never had one."""
        if held := self._exchange.run("seq_of", row.device_id, row.device_seq).fetchone():
            self._differ(row, *held)
            return
        meta, problem = opened(row)
        before = self._exchange.run("seq_of", row.device_id, row.device_seq - 1).fetchone()
        seq, previous = before or (0, START.chain)
        if problem := problem or unfit(row, previous, self._vault):
            self._quarantine(row, problem)
            return
        seq += 1
        while self._exchange.run("seq_taken", seq).fetchone():
            seq += 1
        self._seq = max(self._seq, seq)
        self._filled.add(seq)
        self._exchange.run("forget_tally")
        # At once: the next one that was lost is looked for after this one.
        self._exchange.run("receive", *self._kept(entry_at(seq, row, previous)))
        self._add(entry_at(seq, row, previous), meta)

    def _differ(self, row: Pulled, seq: int, chain: bytes) -> None:
        """Another id stands here under the same number of the same device."""
        if chain == row.chain:  # what is damaged is its id
            place = (row.cloud_seq, row.batch, row.effective_hlc)
            self._exchange.run("mark", *place, row.signature, row.refused, seq)
            self._exchange.run("forget_tally")
        elif row.device_id == self._own or self._exchange.waits(row.device_id):
            raise DivergedError("this device wrote while its own entries came back")
        else:
            self._quarantine(row, f"this device has another entry {row.device_seq} of its device")

    def _quarantine(self, row: Pulled, problem: str) -> None:
        content = row._asdict()
        content["body"] = row.body and self._vault.kept(row.entry_id, row.key_id, row.body)
        content |= {name: value.hex() for name, value in content.items() if type(value) is bytes}
        told = orjson.dumps(content).decode()
        self._exchange.quarantine(row.entry_id, row.device_id, problem, told)

    def _kept(self, entry: Entry) -> Entry:
        body = self._vault.kept(entry.entry_id, entry.key_id, entry.body)
        return entry if body is entry.body else entry._replace(body=body)

    # --- the end of the page ------------------------------------------------------------------

    def finish(self) -> None:
        connection, sql = self._exchange.store.connection, self._exchange.store.sql
        self._introduce()
        new = (self._kept(entry) for entry in self.entries if entry.seq not in self._filled)
        connection.executemany(sql["receive"], new)
        before = connection.total_changes
        connection.executemany(sql["receive_checkpoint"], self._checkpoints)
        if connection.total_changes - before != len(self._checkpoints):
            self._touch_existing()
        for (entity, entity_id), beside in self._touched.items():
            self._views.settle(entity, entity_id, beside)
        settle_forks(self._views, [e for e in (*self.entries, *self._seen) if e.refused is None])
        for task_id, before in self._later.items():
            self._views.date_anew(task_id, before)
        at = clock.iso(clock.wall_ms())
        for device_id in self._vouching:
            self._exchange.run("add_device", device_id, self._keys[device_id], at)
        for device_id, head in self._heads.items():
            # Its key is pinned with the first thing it has signed; the first key stays.
            self._exchange.run("add_device", device_id, self._keys[device_id], at)
            self._exchange.run("put_head", *head, device_id)
        self._purge()
        if self._views_differ:
            rebuild(self._exchange.store)
        sealed = {entry.key_id for entry in self.entries if entry.key_id}
        self._exchange.store.missing_keys(name for name in sealed if not self._vault.has(name))
        self._exchange.put_anchor(self._head, self._hlc)
        self._acknowledge()
        if self._all_sent:  # what came from there need not be looked at when sending
            self._exchange.put_state("push_seq", str(self._seq))
        if self._exchange.run("quarantined", None).fetchone():
            taken = [entry.entry_id for entry in self.entries]
            self._exchange.run("release", orjson.dumps(taken).decode())

    def _acknowledge(self) -> None:
        """What is told of this device's own, the replica has, whether it has said so before or not:
        should it forget that, it gets it again."""
        if self._told.device_seq > self._exchange.acknowledged().device_seq:
            self._exchange.acknowledge(self._told)

    def _purge(self) -> None:
        """The purges of the page, whose word counts now that the replica has taken it."""
        connection = self._exchange.store.connection
        expect(connection, {entry.purged for entry in self.entries if entry.purged is not None})
        told = [e for e in (*self.entries, *self._seen) if e.entity == PURGE and e.refused is None]
        take_effect(connection, [purge_in(entry) for entry in told])

    def _touch_existing(self) -> None:
        """Checkpoints that are here under the same id, from elsewhere: fold all their versions."""
        for row in self._checkpoints:
            self._touched.setdefault((CHECKPOINT, row[0]), []).append(row[12])

    def _introduce(self) -> None:
        """Tasks and agents of the page, each once; before that, this device's own numbers."""
        tasks: dict[str, int] = {}
        agents: set[tuple[str, str]] = set()
        own: dict[str, int] = {}
        for entry, meta in zip(self.entries, self._metas, strict=True):
            if entry.refused is None and meta is not None:
                task_id = meta["task_id"]
                tasks[task_id] = min(tasks.get(task_id, entry.effective_hlc), entry.effective_hlc)
                if entry.entity == CHECKPOINT:
                    agents.add((meta["agent"], task_id))
            if entry.device_id == self._own and meta is not None:
                own[meta["task_id"]] = meta["task_seq"]
        for task_id, hlc in tasks.items():
            self._views.count(task_id)
            self._views.date(task_id, hlc)
        for task_id, number in own.items():
            if number > self._exchange.run("place", task_id, "").fetchone()[6]:
                self._exchange.run("count_task", task_id, number)
        for agent in agents:
            self._exchange.run("add_participant", *agent)


def entry_at(seq: int, row: Pulled, previous: bytes) -> Entry:
    return Entry(
        seq, *row[2:14], row.hash, previous, row.chain, row.signature, row.effective_hlc,
        row.cloud_seq, row.batch, row.body or b"", row.refused,
        row.purged if row.body is None and row.refused is None else None,
    )  # fmt: skip
