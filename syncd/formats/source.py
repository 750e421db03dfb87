"""A file's text, which knows where in it something is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from syncd.canonical import canonical, parse
from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats.reading import FormatError

_NAME = re.compile(r"[A-Za-z_]+")


class Source(NamedTuple):
    name: str
    text: str

    @classmethod
    def of(cls, data: bytes, name: str) -> Source:
        try:
            return cls(name, data.decode("utf-8").removeprefix("\ufeff"))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise FormatError(name, line, "expected UTF-8") from None

    def fault(self, line: int, expected: str) -> FormatError:
        return FormatError(self.name, line, expected)

    def at(self, path: str) -> int:
        """The line of the field that a path, or an error that begins with one, ends in."""
        names = _NAME.findall(path.partition(":")[0])
        place = self.text.find(f'"{names[-1]}"') if names else -1
        return self.text.count("\n", 0, max(place, 0)) + 1

    def json(self, text: str, line: int = 1) -> dict[str, Any]:
        """The JSON object that starts in `line` of the file."""
        try:
            document = parse(text)
        except InvalidInputError as error:
            found = error.message.partition(": ")[2]
            raise self.fault(line + _lines_before(text), f"expected JSON; {found}") from None
        if not isinstance(document, dict):
            raise self.fault(line, "expected a JSON object")
        return document

    def checkpoint(self, document: Mapping[str, Any], line_of: Callable[[str], int]) -> Checkpoint:
        """What the document says, if it is one that can be stored. `line_of` finds the place of
        an error by its text, which begins with a path."""
        try:
            checkpoint = Checkpoint.from_dict(document)
            canonical(checkpoint.body())
        except InvalidInputError as error:
            raise self.fault(line_of(error.message), error.message) from None
        return checkpoint

    def time(self, text: str, line: int) -> tuple[str, tuple[str, ...]]:
        """A time with its zone, and what has to be said if that was assumed."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.fault(line, f"expected an ISO 8601 time, not {text[:40]!r}") from None
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC).isoformat(), (
                f"the time {text} has no zone: read as UTC",
            )
        return text, ()


def _lines_before(text: str) -> int:
    """How many lines of a JSON text are as they should be."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno - 1
    except (ValueError, RecursionError):
        pass
    return 0
