"""What a format has no place for: taken off a checkpoint, and put back.

A format shows what it can; whatever reading that again does not give is kept beside it, so that no
list has to say which fields a format knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def remainder(whole: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `whole` that `known` lacks or has otherwise; objects field by field."""
    rest: dict[str, Any] = {}
    for name, value in whole.items():
        other = known.get(name)
        if name in known and other == value:
            continue
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            value = remainder(value, other)
        rest[name] = value
    return rest


def completed(known: Mapping[str, Any], rest: Mapping[str, Any]) -> dict[str, Any]:
    """Both together; where they differ, `known` is right."""
    whole = {**rest, **known}
    for name in known.keys() & rest.keys():
        if isinstance(known[name], Mapping) and isinstance(rest[name], Mapping):
            whole[name] = completed(known[name], rest[name])
    return whole
