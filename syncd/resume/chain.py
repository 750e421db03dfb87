"""Where a checkpoint comes from: its line of parents, and the signature that covers it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from syncd.entry import Entry
from syncd.seal import SEALED, flaw, header_intact, signature_valid, well_typed
from syncd.store import VIEW_COLUMNS, Record, Store
from syncd.views import CheckpointRow

# A resume must not take longer because a task is old: an audit looks at everything.
LOOKED_AT = 1_000
# Of so many the bodies are kept, to tell what was done in them.
TOLD = 3
_PAGE = 100
_ENTRY_END = VIEW_COLUMNS + len(Entry._fields)


class Ancestor(NamedTuple):
    """A checkpoint of the line: what its header says, and for the nearest ones the body."""

    id: str
    agent: str
    phase: str
    status: str
    at: str
    body: bytes = b""


class Line(NamedTuple):
    """The parents, nearest first. `broken`: where and why it ends too early. `more`: they were
    not all looked at."""

    ancestors: list[Ancestor]
    purged: int = 0
    broken: str = ""
    more: bool = False


def line(store: Store, record: Record, limit: int = LOOKED_AT) -> Line:
    """The parents of a checkpoint, each checked against its hash and its place in the log."""
    found: list[Ancestor] = []
    purged, seen = 0, {record.row.id}
    parent = record.linked_parent or _parent(record.entry)
    page: Iterator[tuple[Any, ...]] = iter(())
    while parent and len(found) < limit:
        row = next(page, None)
        if row is None or row[0] != parent:  # the header's word counts, not the view's
            page = iter(store.rows("parents", (parent, _PAGE)))
            row = next(page, None)
        if row is None:
            return Line(found, purged, f"{parent} is not here")
        entry = store.read(row[VIEW_COLUMNS:_ENTRY_END])
        if problem := "it follows itself" if parent in seen else _problem(entry):
            return Line(found, purged, f"{parent}: {problem}")
        seen.add(parent)
        purged += entry.purged is not None
        found.append(_ancestor(row, entry, with_body=len(found) < TOLD))
        parent = row[_ENTRY_END] or _parent(entry)
    return Line(found, purged, more=bool(parent))


def _problem(entry: Entry) -> str | None:
    return "its entry is missing from the log" if entry.seq is None else flaw(entry)


def _parent(entry: Entry) -> str:
    """From the header, which was checked, and not from the view."""
    return str(orjson.loads(entry.meta).get("parent", ""))


def _ancestor(row: tuple[Any, ...], entry: Entry, *, with_body: bool) -> Ancestor:
    view = CheckpointRow(*row[:VIEW_COLUMNS])
    readable = with_body and not entry.body.startswith(SEALED)
    return Ancestor(
        view.id, view.agent_id, view.phase, view.status, view.created_at,
        entry.body if readable else b"",
    )  # fmt: skip


# --- signatures ---------------------------------------------------------------------------------

_ENTRIES_AFTER = 5_000


class Cover(NamedTuple):
    """The signature that covers an entry: whose, over which entry, and what is wrong with it."""

    device_id: str
    signed_entry: str = ""
    problem: str = ""


def cover(store: Store, entry: Entry) -> Cover:
    """A signature covers all that its device wrote before: look from the entry to the next one."""
    place = store.row("signature_from", (entry.seq, entry.device_id, _ENTRIES_AFTER))
    if place is None:
        return Cover(entry.device_id)
    rows = store.rows("headers_between", (entry.device_id, entry.seq, place[0]))
    chained = [Entry(*row) for row in rows]
    signed = chained[-1]
    if problem := _gap(chained):
        return Cover(entry.device_id, signed.entry_id, problem)
    keys = dict(store.rows("device_keys"))
    key = keys.get(entry.device_id)
    if key is None:
        problem = "the key of the device that signed it is not known here"
    elif signed.signature is None or not signature_valid(key, signed.chain, signed.signature):
        problem = "the signature is not valid"
    return Cover(entry.device_id, signed.entry_id, problem)


def _gap(chained: list[Entry]) -> str:
    """Where the way from an entry to its signature is interrupted."""
    previous = chained[0].previous
    for entry in chained:
        if not well_typed(entry) or entry.previous != previous or not header_intact(entry):
            return f"the log is interrupted at entry {entry.entry_id}, before its signature"
        previous = entry.chain
    return ""
