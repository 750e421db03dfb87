"""Who holds a task, and who no longer does. A pure function of the claims in the log.

Whoever accepts a hand-off, or takes over, claims it with an entry. Of several claims to the same,
the one with the lowest number at the replica holds: those numbers are given out in the order of
commits and are the same for everybody, so no device can think otherwise once it has both. The
number is the fence. A claim that the replica does not have yet counts provisionally, after all
that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import orjson

from syncd.entry import CREATE, RELEASE
from syncd.fold import VersionRow

FOREVER = 2**63 - 1
# An agent's name is its own on one device only.
Worker = tuple[str, str]


class Claim(NamedTuple):
    """`subject` is what is claimed: a hand-off, or the checkpoint from which somebody takes over.
    `giver` worked on it before."""

    entry_id: str
    subject: str
    holder: Worker
    giver: Worker
    fence: int
    hlc: int
    at: str
    seq: int

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.fence or FOREVER, self.hlc, self.entry_id)


class Fence(NamedTuple):
    """What a worker writes about a task between these readings of the clock is a branch."""

    worker: Worker
    since: int
    until: int


def claims(rows: Iterable[VersionRow]) -> list[Claim]:
    return [
        Claim(
            row.entry_id, row.meta["subject"], (row.meta["holder"], row.device_id),
            (row.meta["giver"], row.meta["giver_device"]), row.fence, row.effective_hlc, row.at,
            row.seq,
        )
        for row in rows
        if row.op == CREATE
    ]  # fmt: skip


def standing(rows: Sequence[VersionRow]) -> list[Claim]:
    """The claims that hold, in the order in which they were granted: the last one is the task's."""
    released = _released(rows)
    best: dict[str, Claim] = {}
    for claim in sorted(claims(rows), key=lambda claim: claim.order):
        if claim.entry_id not in released:
            best.setdefault(claim.subject, claim)
    return sorted(best.values(), key=lambda claim: claim.order)


def _released(rows: Iterable[VersionRow]) -> dict[str, int]:
    """Claims that their holder has let go of, and when."""
    return {
        base: row.effective_hlc
        for row in rows
        if row.op == RELEASE
        for base in orjson.loads(row.bases)
    }


def fences(rows: Sequence[VersionRow]) -> list[Fence]:
    """Who was told, or will be, that the task is another's."""
    turns: dict[Worker, list[tuple[int, bool]]] = {}
    for worker, hlc, out in _turns(rows):
        turns.setdefault(worker, []).append((hlc, out))
    return [fence for worker, events in turns.items() for fence in _fenced(worker, sorted(events))]


def _turns(rows: Sequence[VersionRow]) -> Iterator[tuple[Worker, int, bool]]:
    """Each time a worker loses a task, or may go on with it."""
    holding = standing(rows)
    before: Worker = ("", "")
    for claim in holding:
        yield claim.holder, claim.hlc, False
        for worker in {before, claim.giver} - {claim.holder, ("", "")}:
            yield worker, claim.hlc, True
        before = claim.holder
    for claim in lost(rows):
        yield claim.holder, claim.hlc, True


def lost(rows: Sequence[VersionRow]) -> list[Claim]:
    """Claims that counted provisionally until another turned out to have come first. Whoever has
    let go of one knows, and has done nothing in between."""
    holding, released = standing(rows), _released(rows)
    won = {claim.entry_id for claim in holding}
    holders = {claim.subject: claim.holder for claim in holding}
    return [
        claim
        for claim in claims(rows)
        if claim.entry_id not in won
        and claim.entry_id not in released
        and holders.get(claim.subject) != claim.holder
    ]


def _fenced(worker: Worker, events: Iterable[tuple[int, bool]]) -> Iterator[Fence]:
    since = 0
    for hlc, out in events:
        if out and not since:
            since = hlc
        elif not out and since:
            yield Fence(worker, since, hlc)
            since = 0
    if since:
        yield Fence(worker, since, FOREVER)
