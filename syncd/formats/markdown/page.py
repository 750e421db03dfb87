"""A file taken apart: title, headers, sections, footer. What they mean is not looked at here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from syncd.formats.markdown.layout import FOOTER, ONE_LINE_HEADERS
from syncd.formats.markdown.texts import Fence, heading_level, is_blank, read_line, trimmed
from syncd.formats.source import Source

_TITLE = re.compile(r"#[ \t]+Agent Checkpoint:(.*)", re.IGNORECASE)
_HEADER = re.compile(r"(?:[-*+][ \t]+)?\*\*([^*:]+)(?::\*\*|\*\*:)(.*)")


class Header(NamedTuple):
    name: str
    text: str
    line: int


class Section(NamedTuple):
    """`line` is that of its heading; `lines` are those below it."""

    title: str
    line: int
    lines: list[str]

    def named(self) -> str:
        """The title in small letters, without S2's `(if any)`."""
        return self.title.lower().partition(" (if ")[0]

    def fenced(self, *openings: str) -> tuple[int, int] | None:
        """Where in `lines` the first code block with one of these openings begins and ends."""
        fence, start = Fence(), -1
        for number, text in enumerate(self.lines):
            inside = bool(fence.mark)
            if fence.covers(text) and not inside and start < 0 and text in openings:
                start = number
            elif inside and not fence.mark and start >= 0:
                return start, number
        return None if start < 0 else (start, len(self.lines))

    def json(self, source: Source, *openings: str) -> tuple[dict[str, Any] | None, list[str]]:
        """The object in such a block, and the lines around it."""
        if not (found := self.fenced(*openings)):
            return None, self.lines
        start, end = found
        text = "\n".join(self.lines[start + 1 : end])
        around = [*self.lines[:start], *self.lines[end + 1 :]]
        return source.json(text, self.line + start + 2), around


class Page(NamedTuple):
    title: str
    headers: list[Header]
    preamble: list[str]
    sections: list[Section]
    footer: str
    notes: tuple[str, ...]


def page(source: Source) -> Page:
    lines = [text.rstrip() for text in source.text.split("\n")]
    first = next((number for number, text in enumerate(lines) if text), 0)
    title = _TITLE.fullmatch(lines[first])
    if not title:
        raise source.fault(first + 1, "expected the title `# Agent Checkpoint: NAME`")
    footer = _cut_footer(lines)
    (top, *sections), notes = divided(lines[first + 1 :], first + 2, level=2)
    headers, preamble = headers_of(top)
    return Page(title[1].strip(), headers, preamble, sections, footer, notes)


def _cut_footer(lines: list[str]) -> str:
    """The last line, if it says who wrote the file; it is taken off."""
    last = max((number for number, text in enumerate(lines) if text), default=0)
    if not (lines[last].startswith(FOOTER) and lines[last].endswith("*")):
        return ""
    footer = lines[last]
    del lines[last:]
    return footer


def divided(lines: Sequence[str], first: int, level: int) -> tuple[list[Section], tuple[str, ...]]:
    """The sections below headings of a level, after one for what stands before the first; and a
    note if a code fence swallows the rest. `first` is the line that `lines` begin at."""
    sections = [Section("", first - 1, [])]
    fence, opened = Fence(), 0
    for number, text in enumerate(lines, first):
        inside = bool(fence.mark)
        if not fence.covers(text) and heading_level(text) == level:
            sections.append(Section(text[level:].strip(), number, []))
        else:
            sections[-1].lines.append(text)
        opened = opened if inside else number
    open_end = f"the code block that begins in line {opened} has no end"
    return sections, (open_end,) if fence.mark else ()


def headers_of(section: Section) -> tuple[list[Header], list[str]]:
    """The lines that begin with a name in bold, and the others. A text goes on below its name up
    to the next blank line."""
    found: list[tuple[str, int, list[str]]] = []
    others: list[str] = []
    open_lines = others
    for number, text in enumerate(section.lines, section.line + 1):
        if header := _HEADER.fullmatch(text):
            name, texts = header[1].strip(), [header[2]]
            found.append((name, number, texts))
            open_lines = others if name.title() in ONE_LINE_HEADERS else texts
        else:
            open_lines = others if is_blank(text) else open_lines
            open_lines.append(text)
    headers = [Header(name, read_line("\n".join(lines)), line) for name, line, lines in found]
    return headers, trimmed(others)
