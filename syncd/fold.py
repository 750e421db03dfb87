"""What the log says: an entity's versions folded into its view row and its conflicts.

Pure functions of the set of entries, so that every device and the replica come to the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson

from syncd.entry import (
    CHECKPOINT,
    CHOICE,
    CREATE,
    FINALIZE,
    LINK,
    PURGE,
    TASK,
    Version,
    heads,
    winner,
)

VERSION, FORK = "version", "fork"
OPEN, IDENTICAL, MERGED, PURGED = "open", "identical", "merged", "purged"
# Of these there are versions to choose from; all else is a fact, or the word about a key.
_CHOSEN_FROM = frozenset((CHECKPOINT, TASK, LINK, CHOICE, PURGE))


class VersionRow(NamedTuple):
    """What the query `versions` gives, with the meta opened."""

    seq: int
    entry_id: str
    device_id: str
    entity: str
    entity_id: str
    op: str
    bases: str
    at: str
    meta_text: str
    hash: str
    effective_hlc: int
    fence: int  # its number at the replica; 0 if that does not have it, or refused it
    purged: int
    refused: int
    meta: dict[str, Any]


class Conflict(NamedTuple):
    """A row of the view `conflicts`."""

    id: str
    kind: str
    entity: str
    entity_id: str
    bases: str
    winner: str
    loser: str
    detected_at: str
    state: str


class Branch(NamedTuple):
    """A checkpoint as one of its parent's children."""

    id: str
    device_id: str
    hlc: int
    entry_id: str
    at: str


def opened(row: Sequence[Any]) -> VersionRow:
    return VersionRow._make((*row, orjson.loads(row[8])))


def versions(rows: Iterable[Sequence[Any]]) -> list[VersionRow]:
    """With the meta opened. Of an entry that was refused under one device id and taken under
    another, what counts is the latter, as everybody else has no more."""
    found = [opened(row) for row in rows]
    if len(found) == 1:
        return found
    taken = {row.entry_id for row in found if not row.refused}
    return [row for row in found if not row.refused or row.entry_id not in taken]


def _version(row: VersionRow) -> Version:
    bases = orjson.loads(row.bases)
    final = row.op == FINALIZE
    return Version(row.entry_id, bases, final, row.effective_hlc, row.device_id, row.hash)


def current(rows: list[VersionRow]) -> VersionRow:
    """The version that counts."""
    if len(rows) == 1:
        return rows[0]
    chosen = winner(heads([_version(row) for row in rows])).entry_id
    return next(row for row in rows if row.entry_id == chosen)


def first(rows: list[VersionRow]) -> VersionRow:
    """The version that an entity's place in time comes from.

    An entry that carries the entity's own id is found through the view alone: it comes first.
    """
    return min(
        rows,
        key=lambda r: (r.op != CREATE, r.entry_id != r.entity_id, r.effective_hlc, r.entry_id),
    )


def conflict_id(kind: str, loser: str) -> str:
    """The same on every node: derived from what lost."""
    return derived_id(f"syncd conflict {kind} {loser}")


def derived_id(name: str) -> str:
    """A UUID of version 8."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    text = f"{digest[:12]}8{digest[13:16]}8{digest[17:32]}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def version_conflicts(rows: list[VersionRow]) -> list[Conflict]:
    """Each head that is not current, and each version that a resolution has closed."""
    if len(rows) == 1 or rows[0].entity not in _CHOSEN_FROM:
        return []
    by_id = {row.entry_id: row for row in rows}
    versions = {row.entry_id: _version(row) for row in rows}
    at_top = heads(list(versions.values()))
    best = winner(at_top)
    closed = dict(_closed(rows, versions))
    found = [
        _conflict(by_id[loser], by_id[chosen], state) for loser, (chosen, state) in closed.items()
    ]
    for head in at_top:
        if head.entry_id not in closed and head.entry_id != best.entry_id:
            lost = by_id[head.entry_id]
            # There is nothing left to decide about content that is gone.
            state = PURGED if lost.purged else OPEN
            state = IDENTICAL if head.hash == best.hash else state
            found.append(_conflict(lost, by_id[best.entry_id], state))
    return found


def _closed(
    rows: list[VersionRow], versions: dict[str, Version]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """What entries with several bases have settled: loser, winner, how. The newest word last."""
    for row in sorted(rows, key=lambda r: (r.effective_hlc, r.entry_id)):
        named = versions[row.entry_id].bases
        bases = [versions[base] for base in named if base in versions]
        if len(named) < 2 or not bases:
            continue
        best = winner(bases).entry_id
        for base in bases:
            if base.entry_id != best:
                yield base.entry_id, (best, row.meta.get("resolution") or MERGED)


def _conflict(loser: VersionRow, chosen: VersionRow, state: str) -> Conflict:
    return Conflict(
        conflict_id(VERSION, loser.entry_id), VERSION, loser.entity, loser.entity_id, loser.bases,
        chosen.entry_id, loser.entry_id, max(loser.at, chosen.at), state,
    )  # fmt: skip


def fork_conflicts(
    parent_id: str, children: Iterable[Branch], choices: dict[str, str]
) -> list[Conflict]:
    """Children of one parent and task from several devices: the newest goes on, each other is a
    conflict until somebody has chosen. `choices` says how, by checkpoint."""
    branches = list(children)
    if len({branch.device_id for branch in branches}) < 2:
        return []
    newest = max(branches, key=lambda b: (b.hlc, b.id))
    bases = orjson.dumps([parent_id]).decode()
    return [
        Conflict(
            conflict_id(FORK, branch.entry_id), FORK, "checkpoint", branch.id, bases,
            newest.entry_id, branch.entry_id, max(branch.at, newest.at),
            choices.get(branch.id, OPEN),
        )
        for branch in branches
        if branch.entry_id != newest.entry_id
    ]  # fmt: skip
