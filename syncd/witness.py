"""The replica's copy as a witness: every entry that it has, checked and compared with those here.

Nothing is changed on either side, and nothing is believed: chains, hashes and numbers are worked
out again, signatures are checked with the keys that are pinned here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import orjson

from syncd.entry import FINALIZE, Entry, header_bytes
from syncd.errors import ReplicaError
from syncd.exchange import START, Exchange, Head
from syncd.projection import Problem
from syncd.purges import Ledger
from syncd.replica import Pulled, Replica
from syncd.seal import DAMAGED, chain_value, digest, signature_valid

_NAMED_PROBLEMS = 1_000


class Testimony(NamedTuple):
    """What the replica has. `not_here_yet` counts what this device has still to fetch."""

    entries: int
    signatures: int
    not_here_yet: int
    problems: list[Problem]


class _Copy(NamedTuple):
    """What is here of an entry, as the query `copies` gives it."""

    entry_id: str
    chain: bytes
    cloud_seq: int | None
    batch: str | None
    effective_hlc: int
    purged: str | None
    refused: str | None


def examine(exchange: Exchange, replica: Replica) -> Testimony:
    """Ask for all that the replica has, a page at a time."""
    known = exchange.state("organization")
    if known and known != replica.organization:
        raise ReplicaError(
            "this home belongs to another organization than the login",
            "Use a home of its own for each organization (SYNCD_HOME).",
        )
    walk = _Walk(exchange, replica.keys())
    for page in _pages(exchange, replica):
        walk.check(page)
        if walk.full:
            walk.found("", "", "there are more problems than are named here")
            break
    else:
        walk.finish()
    return Testimony(walk.entries, walk.signatures, walk.not_here_yet, walk.problems)


def _pages(exchange: Exchange, replica: Replica) -> Iterator[list[Pulled]]:
    cursor, batch = 0, None
    while page := replica.pull(exchange.device_id, cursor, batch, 0):
        if page[-1].cloud_seq <= cursor:
            raise ReplicaError(
                f"the replica gave entries after number {cursor} out of order",
                "An administrator should check the server; nothing was changed here.",
            )
        yield page
        cursor, batch = page[-1].cloud_seq, page[-1].batch


class _Walk:
    """Goes along what the replica gives."""

    def __init__(self, exchange: Exchange, told_keys: dict[str, bytes]) -> None:
        self._exchange = exchange
        self._vault = exchange.store.vault
        self._pinned = exchange.keys()
        self._told_keys = told_keys
        self._fetched, _ = exchange.cursor()
        self._last = 0
        self._heads: dict[str, Head] = {}
        self._signed: dict[str, int] = {}
        self._ledger = Ledger()
        self.entries = self.signatures = self.not_here_yet = 0
        self.problems: list[Problem] = []

    @property
    def full(self) -> bool:
        return len(self.problems) >= _NAMED_PROBLEMS

    def found(self, entry_id: str, device_id: str, problem: str) -> None:
        self.problems.append(Problem(entry_id, device_id, f"at the replica: {problem}"))

    # --- one page -----------------------------------------------------------------------------

    def check(self, page: Sequence[Pulled]) -> None:
        copies = self._copies(page)
        for row in page:
            self.entries += 1
            for problem in self._flaws(row, copies.get(row.entry_id, [])):
                self.found(row.entry_id, row.device_id, problem)

    def _copies(self, page: Sequence[Pulled]) -> dict[str, list[_Copy]]:
        names = orjson.dumps([row.entry_id for row in page]).decode()
        rows = sorted(self._exchange.store.rows("copies", (names,)), key=lambda row: str(row[0]))
        grouped = groupby((_Copy(*row) for row in rows), key=lambda copy: copy.entry_id)
        return {entry_id: list(copies) for entry_id, copies in grouped}

    def _flaws(self, row: Pulled, copies: list[_Copy]) -> Iterator[str]:
        if row.cloud_seq != self._last + 1:
            yield f"number {row.cloud_seq} follows {self._last}: numbers are left out"
        self._last = row.cloud_seq
        head = self._heads.get(row.device_id, START)
        self._heads[row.device_id] = Head(row.device_seq, row.chain)
        if row.device_seq != head.device_seq + 1:
            yield f"device_seq {row.device_seq} follows {head.device_seq}: entries are missing"
        elif row.refused is None and not _continues(row, head.chain):
            yield "it does not continue the chain of its device"
        yield from self._signature_flaws(row)
        yield from self._body_flaws(row, head.chain)
        yield from self._differences(row, copies)

    def _signature_flaws(self, row: Pulled) -> Iterator[str]:
        key = self._pinned.get(row.device_id)
        if key is None and row.cloud_seq > self._fetched:
            key = self._told_keys.get(row.device_id)  # a device that was not met here before
        if row.signature is None:
            if row.op == FINALIZE and row.refused is None:
                yield "the signature of a finalized checkpoint is missing"
        elif key is None:
            yield "it is signed by a device whose key is not known here"
        elif not signature_valid(key, row.chain, row.signature):
            yield "its signature is not valid for the key that is pinned for its device"
        else:
            self.signatures += 1
            self._signed[row.device_id] = row.device_seq

    def _body_flaws(self, row: Pulled, previous: bytes) -> Iterator[str]:
        """Of what it refused, the replica has the header alone."""
        if row.refused is not None:
            return
        try:
            self._ledger.meet(_entry(row, previous), orjson.loads(row.meta)["task_id"])
        except (ValueError, KeyError, TypeError):
            yield "its meta cannot be read"
        if row.body is None:
            if row.purged is None:
                yield "its body is missing"
        elif self._altered(row, row.body):
            yield "its body does not match its hash"

    def _altered(self, row: Pulled, body: bytes) -> bool:
        if row.key_id:
            plain = self._vault.plain(row.entry_id, row.key_id, row.hash, body)
            return plain.startswith(DAMAGED)
        return digest(body) != row.hash

    def _differences(self, row: Pulled, copies: list[_Copy]) -> Iterator[str]:
        """Equal chain values mean equal headers and hashes: an audit here has checked its own."""
        copy = next((copy for copy in copies if copy.chain == row.chain), None)
        if copy is None:
            if any(copy.refused is None for copy in copies) and row.refused is None:
                yield "another entry stands here under its id"
            elif row.cloud_seq <= self._fetched:
                yield "it is not here"
            else:
                self.not_here_yet += 1
        elif copy.cloud_seq is not None:
            yield from self._place_differences(row, copy)

    def _place_differences(self, row: Pulled, copy: _Copy) -> Iterator[str]:
        if (copy.cloud_seq, copy.batch) != (row.cloud_seq, row.batch):
            yield f"its number is {row.cloud_seq} there, and was {copy.cloud_seq} when it was sent"
        elif row.refused is not None and copy.refused is None:
            yield f"it is refused there, and had been taken: {row.refused}"
        elif row.refused is None and copy.effective_hlc != row.effective_hlc:
            yield "its place in time is another one than here"
        if row.refused is not None or (row.body is None) == (copy.purged is not None):
            return
        if copy.purged is not None:
            yield "its body is still there, and was purged here"
        elif self._exchange.store.rows("placed", (row.purged,)):
            yield "its body was purged there, and is still here"

    # --- the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        for device_id in sorted(self._pinned.keys() | self._heads.keys()):
            for entry_id, problem in self._device_flaws(device_id):
                self.found(entry_id, device_id, problem)
        gone = "its body is gone, and no purge there names it"
        for entry_id, device_id in self._ledger.unaccounted(self._exchange.store.connection):
            self.found(entry_id, device_id, gone)

    def _device_flaws(self, device_id: str) -> Iterator[tuple[str, str]]:
        number = self._heads.get(device_id, START).device_seq
        if number > self._signed.get(device_id, 0):
            after = self._signed.get(device_id, 0)
            yield "", f"no signature covers the entries of the device after number {after}"
        pinned = self._pinned.get(device_id)
        if pinned and self._told_keys.get(device_id, pinned) != pinned:
            yield "", "it names another key for the device than the one pinned here"
        lost = self._exchange.store.rows("acknowledged_after", (device_id, number, _NAMED_PROBLEMS))
        for (entry_id,) in lost:
            yield entry_id, "it is gone; it had been acknowledged"


def _continues(row: Pulled, previous: bytes) -> bool:
    return chain_value(previous, header_bytes(row[2:14]), row.hash) == row.chain


def _entry(row: Pulled, previous: bytes) -> Entry:
    """For the ledger of purges."""
    return Entry(
        0, *row[2:14], row.hash, previous, row.chain, row.signature, row.effective_hlc,
        row.cloud_seq, row.batch, b"", row.refused, row.purged if row.body is None else None,
    )  # fmt: skip
