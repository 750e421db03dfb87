"""What changed between two documents."""

from __future__ import annotations

from typing import Any, NamedTuple


class Change(NamedTuple):
    path: str
    before: Any
    after: Any


_ABSENT = object()


def changes(before: Any, after: Any, path: str = "") -> list[Change]:
    """Every leaf that differs, in the order of the newer document. Lists are compared whole."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*after, *(name for name in before if name not in after)]
        found: list[Change] = []
        for name in names:
            inner = f"{path}.{name}" if path else name
            found += changes(before.get(name, _ABSENT), after.get(name, _ABSENT), inner)
        return found
    if before == after:
        return []
    return [Change(path, _shown(before), _shown(after))]


def _shown(value: Any) -> Any:
    return None if value is _ABSENT else value
