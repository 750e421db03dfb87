"""What the lines at the top of a page say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from syncd.formats.markdown import layout
from syncd.formats.markdown.draft import Draft
from syncd.formats.markdown.page import Header
from syncd.vocabulary import STATUS_ALIASES, CheckpointStatus, known

_SERIES = re.compile(r"([0-9]{1,16})(?![0-9])(?:(?: +of +| */ *)([0-9]{1,16})(?![0-9]))?(.*)")
_PERCENT = re.compile(r"~? ?([0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?) ?%?(.*)", re.DOTALL)
# Something may stand beside the word: `✅ Completed`, `Blocked - no access`.
_BESIDE_STATUS = re.compile(r"[^\w\s-]|\s-\s")
_FILE = re.compile(r"AGENT_[A-Z0-9_]+\.md")
# Longer than any that means something; what is longer is a text.
_LONG = 1000


def take(draft: Draft, header: Header) -> None:
    name = header.name.title()
    taken = False
    if name in _HEADERS:
        taken = _HEADERS[name](draft, header)
    elif field := layout.MORE_HEADERS.get(name):
        taken = draft.put(field, header.text, header.line)
    if not taken:
        draft.keep("headers", {"name": header.name, "text": header.text})


def _mission(draft: Draft, header: Header) -> bool:
    return draft.put(layout.MISSION, header.text, header.line)


def _status(draft: Draft, header: Header) -> bool:
    """On a page of ours the usual words stand for the canonical ones; elsewhere the text that was
    used is kept too."""
    status = _status_in(header.text)
    if status is None:
        expected = ", ".join(layout.STATUS_WORDS.values())
        raise draft.source.fault(header.line, f"expected a status: {expected}")
    if not draft.put(layout.STATUS, status, header.line):
        return False
    usual = draft.record is not None and header.text == layout.STATUS_WORDS[status]
    if header.text != status and not usual:
        draft.put(layout.RAW, {"status": header.text}, header.line)
    return True


def _status_in(text: str) -> str | None:
    parts = (text, *_BESIDE_STATUS.split(text[:_LONG]))
    words = (known(part, CheckpointStatus, STATUS_ALIASES) for part in parts)
    return next((status for status in words if status), None)


def _series(draft: Draft, header: Header) -> bool:
    series = series_in(header.text)
    return series is not None and draft.put(layout.SERIES, series, header.line)


def series_in(text: str) -> dict[str, Any] | None:
    """`2 of 3 (final)` in its parts."""
    found = _SERIES.fullmatch(text)
    if not found:
        return None
    number, total, note = found[1], found[2], found[3].strip()
    parts = {"number": int(number), "total": int(total) if total else None, "note": note}
    return {name: value for name, value in parts.items() if value not in (None, "")}


def _context_used(draft: Draft, header: Header) -> bool:
    """The number; if something stands behind it, the whole text is kept too."""
    found = _PERCENT.fullmatch(header.text)
    taken = found and draft.put(layout.CONTEXT_USED, float(found[1]), header.line)
    return bool(taken and found and not found[2])


def _timestamp(draft: Draft, header: Header) -> bool:
    time, notes = draft.source.time(header.text, header.line)
    taken = draft.put(layout.TIMESTAMP, time, header.line)
    if taken:
        draft.notes += notes
    return taken


def _previous(draft: Draft, header: Header) -> bool:
    """The file's name alone, where it is part of a link or a path. The text itself is kept, as the
    file may not be here; on a page of ours, the record has it."""
    if draft.previous:
        return False
    if draft.record is None and header.text:
        draft.document.setdefault(layout.UNKNOWN, {})[layout.PREVIOUS] = header.text
    name = _FILE.search(header.text[:_LONG])
    draft.previous = name[0] if name else header.text
    return True


_HEADERS: dict[str, Callable[[Draft, Header], bool]] = {
    "Mission": _mission,
    "Status": _status,
    "Checkpoint": _series,
    "Timestamp": _timestamp,
    "Context Used": _context_used,
    "Previous": _previous,
}
