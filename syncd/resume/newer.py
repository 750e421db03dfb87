"""Named files that were written after the checkpoint. Where their content was not recorded, that is
the only hint that it may no longer speak of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from syncd.entry import CREATE, FINALIZE, Entry
from syncd.resume.look import Other
from syncd.resume.text import mapping, moment
from syncd.store import Record, Store

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FRACTION = re.compile(r"[.,](\d+)")
_NEVER = 1 << 63


def newer(others: Mapping[str, Other], past_ns: int) -> list[str]:
    """Those written after the checkpoint, save what git knows to be as it was."""
    return [
        name
        for name, other in others.items()
        if other.written_ns is not None and other.written_ns >= past_ns and not other.as_committed
    ]


def past(store: Store, record: Record, document: Mapping[str, Any]) -> int:
    """The first moment that is later than a checkpoint, in nanoseconds since 1970. Its time may
    be told in whole seconds: what was written within such a second is no later than it."""
    stated = mapping(document.get("metadata")).get("timestamp")
    entry = _last_word(store, record.entry)
    times: list[Any] = [entry.at]
    if entry.op == CREATE or _is_later(stated, record.row.created_at):
        times.append(stated)  # by whoever wrote it, before it was taken in from a file
    return min(map(_end, times))


def _last_word(store: Store, entry: Entry) -> Entry:
    """The entry that last said something of the work: to finalize says nothing of it."""
    bases = orjson.loads(entry.bases) if entry.op == FINALIZE else ()
    return (store.entry(bases[0]) if bases else None) or entry


def _is_later(time: Any, than: str) -> bool:
    one, other = moment(time), moment(than)
    return bool(one and other and one > other)


def _end(time: Any) -> int:
    """Where the second ends that a time names, or the part of a second."""
    found = moment(time)
    if found is None:
        return _NEVER
    fraction = _FRACTION.search(time)
    digits = min(len(fraction[1]), 6) if fraction else 0
    return (found - _EPOCH) // _MICROSECOND * 1_000 + int(10 ** (9 - digits))
