"""JSON as text: where in a file each value stands, so that a fault can be shown there and one
value be replaced without touching the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from syncd.canonical import canonical, parse
from syncd.errors import InvalidInputError
from syncd.formats.reading import FormatError

Path = tuple[str | int, ...]
_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\r\n]*")


class Node(NamedTuple):
    """A value within a text; `key` is where its name begins and ends, if it has one."""

    name: str | int
    key: tuple[int, int]
    start: int
    end: int


class Source:
    """A JSON file: its name, its text and what that says."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.text = _decoded(data, name)
        self.document = self._parsed()

    def fault(self, path: Path, expected: str) -> FormatError:
        """What is wrong with the value at `path`."""
        where = shown(path)
        return FormatError(
            self.name, self.line(path), f"{where}: {expected}" if where else expected
        )

    def line(self, path: Path) -> int:
        return _line(self.text, located(self.text, path).key[0])

    def _parsed(self) -> Any:
        try:
            return parse(self.text)
        except InvalidInputError as error:
            message = error.message.removeprefix("input: ")
            line, expected = (1, "") if "nested" in message else _first_fault(self.text)
            raise FormatError(self.name, line, expected or message) from None

    def check_fields(self, path: Path, fields: dict[str, Any]) -> None:
        """All at once, as most files have no fault; only then one by one, to find its place."""
        try:
            canonical(fields)
        except InvalidInputError as error:
            for name, value in fields.items():
                self.check((*path, name), value)
            raise self.fault(path, error.message) from None  # it is one of the names

    def check(self, path: Path, value: Any) -> None:
        """Refuse what no checkpoint can hold, such as half of a surrogate pair."""
        try:
            canonical(value)
        except InvalidInputError as error:
            raise self.fault(path, error.message) from None


def shown(path: Path) -> str:
    """`adhocQueue[0].checkpoint`"""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(name, line, f"expected UTF-8 at byte {error.start}") from None


# --- places -------------------------------------------------------------------------------------


def located(text: str, path: Path) -> Node:
    """Where the value at `path` stands, or the nearest above it that there is."""
    node = root(text)
    for step in path:
        inner = next((child for child in children(text, node) if child.name == step), None)
        if inner is None:
            break
        node = inner
    return node


def root(text: str) -> Node:
    start = _skip(text, 0)
    return Node("", (start, start), start, _DECODER.raw_decode(text, start)[1])


def children(text: str, node: Node) -> Iterator[Node]:
    """The members of an object or the elements of an array, in a text that is known to be JSON."""
    opening = text[node.start]
    if opening not in "{[":
        return
    at, number = _skip(text, node.start + 1), 0
    while text[at] not in "}]":
        child = _member(text, at) if opening == "{" else _value(text, at, number, (at, at))
        yield child
        at, number = _skip(text, child.end), number + 1
        if text[at] == ",":
            at = _skip(text, at + 1)


def _member(text: str, at: int) -> Node:
    name, end = _DECODER.raw_decode(text, at)
    return _value(text, _skip(text, _skip(text, end) + 1), name, (at, end))


def _value(text: str, at: int, name: str | int, key: tuple[int, int]) -> Node:
    return Node(name, key, at, _DECODER.raw_decode(text, at)[1])


def _skip(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


# --- faults -------------------------------------------------------------------------------------


def _first_fault(text: str) -> tuple[int, str]:
    """The line of what makes a text no strict JSON; what was expected, where the parser says."""
    try:
        json.loads(text)
        return _line(text, _refused(text, root(text))), ""
    except json.JSONDecodeError as error:
        return error.lineno, f"expected JSON: {error.msg} (column {error.colno})"
    except (RecursionError, ValueError):
        return 1, ""


def _refused(text: str, node: Node) -> int:
    """Where the innermost value begins that the strict parser does not take."""
    inner = list(children(text, node))
    if twice := _repeated([child.name for child in inner]):
        return inner[twice].key[0]
    for child in inner:
        try:
            parse(text[child.start : child.end])
        except InvalidInputError:
            return _refused(text, child)
    return node.start


def _repeated(names: Sequence[str | int]) -> int:
    """The index of the first name that stood before; 0 if there is none."""
    seen: set[str | int] = set()
    for index, name in enumerate(names):
        if name in seen:
            return index
        seen.add(name)
    return 0
