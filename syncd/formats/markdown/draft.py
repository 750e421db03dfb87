"""What was understood of a page so far, and the line of each field."""

from __future__ import annotations

from typing import Any

from syncd.formats.markdown.layout import UNKNOWN, Field
from syncd.formats.source import Source


class Draft:
    """The first to say something of a field is right; `put` tells whether that was so."""

    def __init__(self, source: Source, record: dict[str, Any] | None, record_line: int) -> None:
        self.source = source
        self.record = record
        self.document: dict[str, dict[str, Any]] = {}
        self.previous = ""
        self.notes: list[str] = []
        self._lines: dict[str, int] = {}
        self._record_line = record_line

    def put(self, field: Field, value: Any, line: int) -> bool:
        part, name = field
        if self.has(field):
            return False
        self.document.setdefault(part, {})[name] = value
        self._lines[f"{part}.{name}"] = line
        return True

    def has(self, field: Field) -> bool:
        return field[1] in self.document.get(field[0], {})

    def extend(self, field: Field, items: list[Any], line: int) -> None:
        if items and not self.put(field, items, line):
            self.document[field[0]][field[1]].extend(items)

    def keep(self, kind: str, value: dict[str, str]) -> None:
        """A header or a section that nobody here knows."""
        self.document.setdefault(UNKNOWN, {}).setdefault(kind, []).append(value)

    def line_of(self, error: str) -> int:
        """The line of the field that an error is about; the record's if it is not on the page."""
        places = (line for path, line in self._lines.items() if error.startswith(path))
        return next(places, self._record_line)
