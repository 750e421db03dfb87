"""A document against a published JSON Schema: as much of that language as ours use, so that the
file that others validate with is also what counts here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from syncd.formats.jsontext import Path
from syncd.formats.times import is_time
from syncd.sql import shipped

Schema = dict[str, Any]
Fault = tuple[Path, str]
_KINDS: dict[str, tuple[type, str]] = {
    "object": (dict, "an object"),
    "array": (list, "an array"),
    "string": (str, "a text"),
    "null": (type(None), "null"),
}


@cache
def published(name: str) -> Schema:
    text = (shipped("schema") / name).read_text(encoding="utf-8")
    schema: Schema = json.loads(text)
    return schema


def faults(value: Any, schema: Schema, whole: Schema, path: Path = ()) -> Iterator[Fault]:
    """What is wrong and where, outermost first."""
    if reference := schema.get("$ref"):
        definition = whole["$defs"][reference.rpartition("/")[2]]
        yield from faults(value, definition, whole, path)
        return
    if expected := _unfit(value, schema):
        yield path, f"expected {expected}"
    elif isinstance(value, dict):
        yield from _members(value, schema, whole, path)
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from faults(item, schema["items"], whole, (*path, number))


def _unfit(value: Any, schema: Schema) -> str:
    """What the value itself should be and is not; empty if it is."""
    kinds = schema.get("type", [])
    names = [kinds] if isinstance(kinds, str) else kinds
    if names and not isinstance(value, tuple(_KINDS[name][0] for name in names)):
        return " or ".join(_KINDS[name][1] for name in names)
    if "enum" in schema and value not in schema["enum"]:
        return f"one of {', '.join(schema['enum'])}"
    if schema.get("format") == "date-time" and not is_time(value):
        return "an ISO 8601 time"
    return ""


def _members(value: dict[str, Any], schema: Schema, whole: Schema, path: Path) -> Iterator[Fault]:
    for name in schema.get("required", ()):
        if name not in value:
            yield path, f"expected a {name}"
    for name, inner in schema.get("properties", {}).items():
        if name in value:
            yield from faults(value[name], inner, whole, (*path, name))
