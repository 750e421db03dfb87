"""The exchange with the replica: heal, push, pull, prove.

Every step is idempotent and ends in a durable state, so that it may be cut off anywhere and simply
begun again.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from syncd import clock
from syncd.arrival import apply, apply_without_clashes
from syncd.entry import Entry
from syncd.errors import (
    CheckpointExistsError,
    DeviceTakenError,
    DivergedError,
    KeyChangedError,
    ReplicaError,
    SyncdError,
)
from syncd.examination import Examined, examine
from syncd.exchange import Exchange
from syncd.fold import derived_id
from syncd.healing import depart, reconcile, remind, roll_back
from syncd.parting import give_way
from syncd.replica import Batch, Pulled, Replica, Standing, Verdict, encoded
from syncd.seal import SigningKey

# SQLite lets one write at a time, and whoever waits looks again every few milliseconds: among
# writers, short transactions with gaps between them let him in early.
_CHUNK, _CHUNK_AMONG_WRITERS = 1_000, 250
_GAP_SECONDS, _GAP_AMONG_WRITERS = 0.002, 0.01
_ROUNDS = 3
_NOT_WHOLE = "its body does not match its hash"
Progress = Callable[[str, int, int], None]


class Outcome(NamedTuple):
    """What one exchange did, and what waits for a decision afterwards."""

    pushed: int
    pulled: int
    conflicts: int
    quarantined: int
    pending: int


def silent(_what: str, _done: int, _all: int) -> None:
    """For those who do not watch."""


class Engine:
    """One device and its replica."""

    def __init__(
        self,
        exchange: Exchange,
        replica: Replica,
        key: SigningKey,
        progress: Progress = silent,
    ) -> None:
        self.exchange = exchange
        self.replica = replica
        self._key = key
        self._progress = progress
        self.standing: Standing | None = None
        self._version: tuple[Any, ...] | None = None
        self._own_too = False
        self.announce_in = 0.0

    # --- the whole ----------------------------------------------------------------------------

    def sync(self, *, push: bool = True, pull: bool = True) -> Outcome:
        """One exchange; what happened is kept for `explain` and `status`, also if it failed."""
        pushed = pulled = 0
        try:
            for _ in range(_ROUNDS):
                try:
                    self.meet()
                    pushed += self.push() if push and self.may_write() else 0
                    pulled += self.pull() if pull else 0
                    break
                except DivergedError:
                    continue
            else:
                raise DivergedError("both sides remember different histories of this device")
            self.report()
            if self.announce_in:
                time.sleep(self.announce_in)
                self.announce()
        except SyncdError as error:
            self.exchange.note(pushed, pulled, error)
            raise
        self.exchange.note(pushed, pulled)
        conflicts, quarantined = self.exchange.store.row("counts_open") or (0, 0)
        return Outcome(pushed, pulled, conflicts, quarantined, self.exchange.pending_count())

    def report(self) -> None:
        self.check_key()
        cursor, _ = self.exchange.cursor()
        skew = int(self.exchange.state("skew_ms") or 0)
        self.replica.report(self.exchange.device_id, cursor, self.exchange.pending_count(), skew)

    def meet(self) -> Standing:
        """Introduce this device and heal whatever one side has forgotten."""
        before = clock.wall_ms()
        standing = self._hello()
        skew = (before + clock.wall_ms()) // 2 - standing.now_ms
        self._belong()
        with self.exchange.store.transaction():
            self.exchange.put_state("skew_ms", str(skew))
            self.exchange.put_state("cloud_seq", str(standing.cloud_seq))
            self.exchange.put_state("reads_only", "" if self.may_write() else "1")
        if reconcile(self.exchange, self.replica, standing, self._key):
            standing = self._hello()
        remind(self.exchange, self.replica, self._key)
        self.standing = standing
        return standing

    def may_write(self) -> bool:
        """What an auditor writes stays on this machine; he fetches all the same."""
        return not self.replica.membership.reads_only

    def asked(self) -> Standing:
        """Where the replica stands now, without doing anything about it."""
        self.check_key()
        return self.replica.hello(self.exchange.device_id, self._key.public())

    def _hello(self) -> Standing:
        """A home that was given another login goes on under another device id: the one it had
        stays the first login's for ever. So does the next one, if a copy of this home has gone the
        same way before."""
        self.check_key()
        for _ in range(_ROUNDS):
            try:
                return self.replica.hello(self.exchange.device_id, self._key.public())
            except DeviceTakenError:
                self._belong()  # before anything is written again
                depart(self.exchange, self.replica, self._key)
        return self.replica.hello(self.exchange.device_id, self._key.public())

    def check_key(self) -> None:
        """Another process may have changed it since, and with it this device's id: nothing is sent
        with the wrong one."""
        pinned = self.exchange.store.row("own_key")
        if pinned is not None and pinned[0] != self._key.public():
            raise KeyChangedError("the signing key of this home was changed in the meantime")

    def _belong(self) -> None:
        """A home belongs to one organization: its entries must not end up in another's."""
        known, here = self.exchange.state("organization"), self.replica.organization
        if not known:
            with self.exchange.store.transaction():
                self.exchange.put_state("organization", here)
        elif known != here:
            raise ReplicaError(
                "this home belongs to another organization than the login",
                "Use a home of its own for each organization (SYNCD_HOME).",
            )

    def sendable(self) -> set[str]:
        """The devices whose entries may be sent from here: this one, under all ids it has had;
        while an administrator has opened recovery, all."""
        if self.standing is None:
            self.meet()
        if self.standing and self.standing.recovery_open:
            return set(self.exchange.keys())
        return self.exchange.own_ids()

    # --- push ---------------------------------------------------------------------------------

    def push(self, devices: set[str] | None = None) -> int:
        """Send what the replica has not acknowledged, of this device if no others are named; how
        many entries it now has.

        While the replica works on a batch, the one before is marked and the next one made ready.
        """
        self.check_key()
        sent, waiting = 0, self.exchange.pending_count()
        devices = self.exchange.own_ids() if devices is None else devices
        entries, batch = self._ready(self.exchange.sent_to(), devices)
        before: tuple[list[Entry], list[Verdict]] | None = None
        with ThreadPoolExecutor(1) as replica:
            while entries:
                answer = replica.submit(self._send, entries, batch)
                sent += self._mark(before)
                self._progress("push", sent, max(waiting, sent))
                following = self._ready(entries[-1].seq, devices)
                before = entries, answer.result()
                entries, batch = following
        sent += self._mark(before)
        self._progress("push", sent, max(waiting, sent))
        if sent:
            self.announce()
        return sent

    def announce(self) -> None:
        """Tell others of what was sent. `announce_in` says when to do it again, if they were told
        too short a time before."""
        self.announce_in = self.replica.announce()

    def _mark(self, answered: tuple[list[Entry], list[Verdict]] | None) -> int:
        if answered is None:
            return 0
        self.exchange.mark(*answered)
        return len(answered[0])

    def _ready(self, after: int, devices: set[str]) -> tuple[list[Entry], Batch | None]:
        """The next batch. Its last entry carries the signature for all of them."""
        while entries := self.exchange.pending(after, devices):
            after = entries[-1].seq
            if signed := self._signed(entries):
                return signed, self._encoded(signed)
        return [], None

    def _signed(self, entries: list[Entry]) -> list[Entry]:
        """What was written with another key, another's or one that this device had before, can
        only be sent as far as it was signed then."""
        last = entries[-1]
        if self.exchange.keys().get(last.device_id) == self._key.public():
            if last.signature is None and isinstance(last.chain, bytes):
                entries[-1] = last._replace(signature=self._key.sign(last.chain))
            return entries
        while entries and entries[-1].signature is None:
            entries.pop()
        return entries

    def _send(self, entries: Sequence[Entry], batch: Batch | None = None) -> list[Verdict]:
        """A batch that fails as a whole is halved until the entry is found that it fails for."""
        try:
            if batch := batch or self._encoded(entries):
                return self.replica.push(batch)
            problem = "its columns have other types than what was written"
        except ReplicaError as error:
            if type(error) is not ReplicaError:
                raise
            problem = f"it could not be sent: {error.message}"
        if len(entries) == 1:
            return self.replica.push(encoded([_bare(entries[0])], [problem]))
        middle = len(entries) // 2
        return [*self._send(entries[:middle]), *self._send(entries[middle:])]

    def _encoded(self, entries: Sequence[Entry]) -> Batch | None:
        """None if a damaged database gave something that is no text, number or bytes.

        Of what is sealed end to end, the replica cannot say whether it is whole."""
        given_up = [self._given_up(entry) for entry in entries]
        try:
            return encoded(entries, given_up if any(given_up) else ())
        except (TypeError, AttributeError, struct.error):
            return None

    def _given_up(self, entry: Entry) -> str | None:
        """Why nobody can have more of an entry than its header, if so."""
        if entry.refused is not None and not entry.body:  # no more of it came back to this device
            return entry.refused
        return _NOT_WHOLE if entry.key_id and self.exchange.store.vault.broken(entry) else None

    # --- pull ---------------------------------------------------------------------------------

    def pull(self, *, own_too: bool = False) -> int:
        """Take in what other devices wrote; how many entries were new here. `own_too` asks for the
        bodies of this device's own entries too: some were lost here.

        While a page is examined and taken in, the next one is fetched.
        """
        exchange, new = self.exchange, 0
        start, _ = exchange.cursor()
        self._own_too = own_too
        page = self._first_page()
        with ThreadPoolExecutor(1) as replica:
            while page:
                keys = self._keys(page)
                if give_way(exchange, self.replica, page, keys, self._key):
                    page = self._first_page()
                    continue
                following = replica.submit(self._page, *self._after(page))
                new += self._take_in(
                    examine(page, exchange.heads(), keys, exchange.store.vault), keys
                )
                done = page[-1].cloud_seq
                whole = max(self.standing.cloud_seq if self.standing else 0, done)
                self._progress("pull", done - start, whole - start)
                page = following.result()
        return new

    def _take_in(self, page: list[Examined], keys: dict[str, bytes]) -> int:
        """In pieces: what was cut off is known when it is fetched again."""
        new = start = 0
        while start < len(page):
            end = start + self._give_way()
            try:
                new += apply(self.exchange, page[start:end], keys)
            except CheckpointExistsError:
                return new + apply_without_clashes(self.exchange, page[start:], keys)
            start = end
        return new

    def _give_way(self) -> int:
        """Let others write; how many entries may be taken in next."""
        version = self.exchange.store.row("data_version")
        others_write, self._version = version != self._version, version
        time.sleep(_GAP_AMONG_WRITERS if others_write else _GAP_SECONDS)
        return _CHUNK_AMONG_WRITERS if others_write else _CHUNK

    def _first_page(self) -> list[Pulled]:
        cursor, batch = self.exchange.cursor()
        own = self._own()
        try:
            return self._page(cursor, batch, own)
        except DivergedError:
            roll_back(self.exchange, self.replica)
            return self._page(*self.exchange.cursor(), own)

    def _own(self) -> int:
        """Up to where this device has its own entries itself."""
        return 0 if self._own_too else self.exchange.head().device_seq

    def _after(self, page: list[Pulled]) -> tuple[int, str, int]:
        """The cursor after a page, and how far this device's own entries go then."""
        device_id = self.exchange.device_id
        own = [row.device_seq for row in page if row.device_id == device_id]
        last = page[-1]
        if self._own_too:
            return last.cloud_seq, last.batch, 0
        return last.cloud_seq, last.batch, max([self._own(), *own])

    def _page(self, cursor: int, batch: str | None, own: int) -> list[Pulled]:
        page = self.replica.pull(self.exchange.device_id, cursor, batch, own)
        numbers = [cursor, *(row.cloud_seq for row in page)]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise ReplicaError(
                f"the replica gave entries after number {cursor} out of order",
                "An administrator should check the server; nothing was taken in.",
            )
        return page

    def _keys(self, page: list[Pulled]) -> dict[str, bytes]:
        """Those pinned here; for a device not met before, what the replica says."""
        keys = self.exchange.keys()
        if any(row.device_id not in keys for row in page):
            return {**self.replica.keys(), **keys}
        return keys


def _bare(entry: Entry) -> Entry:
    """What can be sent of an entry that cannot be sent as it is: above all number and chain."""
    known = _is_uuid(entry.entry_id)
    name = entry.entry_id if known else derived_id(f"syncd entry {entry.chain.hex()}")
    texts = [
        str(value).replace("\0", "\ufffd").encode(errors="replace").decode()
        for value in (*entry[4:8], *entry[9:14])
    ]
    hlc = entry.hlc if type(entry.hlc) is int else 0
    header = (name, *entry[2:4], *texts[:4], hlc, *texts[4:])
    return Entry._make((entry.seq, *header, *entry[14:17], hlc, None, None, b"", None, None))


def _is_uuid(value: object) -> bool:
    try:
        return str(UUID(str(value))) == value
    except ValueError:
        return False
