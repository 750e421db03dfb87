"""Times in files: without a zone they are read as UTC, and the user is told so."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any


def assumed_utc(
    value: Any, names: Collection[str], inside: Collection[str], notes: list[str]
) -> Any:
    """The same value with the zone added to the times called `names`; only what is called `inside`
    is searched, because elsewhere such a name may mean anything."""
    if isinstance(value, list):
        return [assumed_utc(item, names, inside, notes) for item in value]
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for name, item in value.items():
        if name in names and isinstance(item, str) and _without_zone(item):
            result[name] = datetime.fromisoformat(item).isoformat() + "+00:00"
            notes.append(f"{name} {item} has no zone: read as UTC")
        elif name in inside:
            result[name] = assumed_utc(item, names, inside, notes)
    return result


def is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def has_zone(text: str) -> bool:
    return is_time(text) and not _without_zone(text)


def is_after(one: str, other: str) -> bool:
    return datetime.fromisoformat(one) > datetime.fromisoformat(other)


def _without_zone(text: str) -> bool:
    return is_time(text) and datetime.fromisoformat(text).tzinfo is None
