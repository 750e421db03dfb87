"""Texts in their places on a page.

A text stands there as it is if that cannot be read as anything else. Otherwise it is a JSON string,
on one line; and only what had to be written as one is read as one, so that quotes which somebody
typed remain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from syncd.canonical import parse
from syncd.errors import InvalidInputError

# Other programs end lines at these, or drop them.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_RULE = re.compile(r"-{3,}|\*{3,}|_{3,}")
_TABLE_RULE = re.compile(r":?-{2,}:?")
_FENCE = re.compile(r"(`{3,})[^`]*$|(~{3,})")
_MARKER = re.compile(r"(?:[-*+]|[0-9]{1,9}[.)])(?:[ \t]+|$)")
_BOX = re.compile(r"\[([ xX])\](?:[ \t]+|$)")
_DETAILS = "- details: "
_HEADING = re.compile(r"#{2,3}(?=[ \t]|$)")
_NOTHING = frozenset({"none", "none.", "(none)", "n/a", "nothing"})


class Fence:
    """Follows the code fences of a text line by line: what they enclose is no structure."""

    def __init__(self) -> None:
        self.mark = ""

    def covers(self, line: str) -> bool:
        if self.mark:
            if line.startswith(self.mark) and not line.strip(self.mark[0]):
                self.mark = ""
            return True
        if not line or line[0] not in "`~":
            return False
        opening = _FENCE.match(line)
        self.mark = (opening[1] or opening[2]) if opening else ""
        return bool(opening)


def is_nothing(text: str) -> bool:
    """Whether it says, in a list, that the list is empty."""
    return text.lower() in _NOTHING


def as_json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def quoted(text: str) -> str:
    return as_json(text)


def unquoted(shown: str, plain: Callable[[str], bool]) -> str:
    """The text behind `shown`, if that is the JSON form of one that is not `plain` there."""
    if not (shown.startswith('"') and shown.endswith('"') and len(shown) > 1):
        return shown
    try:
        text = json.loads(shown)
    except ValueError:
        return shown
    return shown if quoted(text) != shown or plain(text) else str(text)


# --- on one line --------------------------------------------------------------------------------


def line(text: str) -> str:
    return text if _fits_line(text) else quoted(text)


def read_line(shown: str) -> str:
    return unquoted(shown.strip(), _fits_line)


def _fits_line(text: str) -> bool:
    return "\n" not in text and _is_plain(text) and read_line(text) == text


def _is_plain(text: str) -> bool:
    return (
        bool(text)
        and text == text.strip()
        and not is_nothing(text)
        and not is_blank(text)
        and not is_table_rule(text)
        and not _CONTROL.search(text)
    )


def is_table_rule(cell: str) -> bool:
    """Whether it belongs to the line below the titles of a table."""
    return bool(_TABLE_RULE.fullmatch(cell))


# --- in a list ----------------------------------------------------------------------------------


class Entry(NamedTuple):
    """An item of a list, or a paragraph among them, which has no `indent`."""

    indent: int
    lines: list[str]

    def ticked(self) -> tuple[bool | None, Entry]:
        """Whether its box is ticked, if it has one, and the entry without it."""
        box = _BOX.match(self.lines[0])
        if not box or not self.indent:
            return None, self
        rest = [self.lines[0][box.end() :], *self.lines[1:]]
        return box[1] != " ", self._replace(lines=rest)

    def text(self) -> str:
        return unquoted("\n".join(self.lines).strip(), _fits_entry)

    def item(self) -> tuple[str, dict[str, Any] | None]:
        """Its text and, where they stand below it, its details."""
        details = _details(self.lines)
        return (self if details is None else self._replace(lines=self.lines[:-1])).text(), details

    def is_nothing(self) -> bool:
        return len(self.lines) == 1 and (not self.lines[0] or is_nothing(self.lines[0]))


def entries(lines: Sequence[str]) -> list[Entry]:
    """The items and paragraphs of a list; what is indented below one belongs to it."""
    found: list[Entry] = []
    fence, gap = Fence(), 0
    for text in lines:
        inside = bool(fence.mark)
        fence.covers(text)
        if inside:
            found[-1].lines.append(text)
        elif is_blank(text):
            gap += 1
        else:
            _add(found, text, gap)
            gap = 0
    return found


def _add(found: list[Entry], text: str, gap: int) -> None:
    if marker := _MARKER.match(text):
        found.append(Entry(marker.end(), [text[marker.end() :]]))
    elif found and (not gap or text[0] in " \t"):
        indent = min(found[-1].indent, len(text) - len(text.lstrip(" ")))
        found[-1].lines.extend([*[""] * gap, text[indent:]])
    else:
        found.append(Entry(0, [text]))


def entry(marker: str, box: str, text: str, details: dict[str, Any] | None = None) -> list[str]:
    """The lines of an item. Its details are JSON below it, where they cannot be taken for
    another's, however the list is edited."""
    first, *more = (text if _fits_entry(text) else quoted(text)).split("\n")
    if details is not None:
        more.append(_DETAILS + as_json(details))
    indent = " " * len(marker)
    return [f"{marker}{box}{first}", *(indent + each if each else "" for each in more)]


def _fits_entry(text: str) -> bool:
    lines = text.split("\n")
    return (
        _is_plain(text)
        and all(each == each.rstrip() for each in lines)
        and _details(lines) is None
        and unquoted(text, _fits_entry) == text
    )


def _details(lines: Sequence[str]) -> dict[str, Any] | None:
    if len(lines) < 2 or not lines[-1].startswith(_DETAILS):
        return None
    return json_object(lines[-1][len(_DETAILS) :])


def json_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse(text)
    except InvalidInputError:
        return None
    return value if isinstance(value, dict) else None


# --- over several lines -------------------------------------------------------------------------


def is_blank(text: str) -> bool:
    """An empty line, or the rule between two sections."""
    return not text or (text[0] in "-*_" and bool(_RULE.fullmatch(text)))


def trimmed(lines: Sequence[str]) -> list[str]:
    filled = [number for number, text in enumerate(lines) if not is_blank(text)]
    return list(lines[filled[0] : filled[-1] + 1]) if filled else []


def heading_level(text: str) -> int:
    found = _HEADING.match(text) if text.startswith("##") else None
    return len(found[0]) if found else 0


def block(text: str, level: int = 2) -> str:
    return text if fits_block(text, level) else quoted(text)


def read_block(lines: Sequence[str], level: int = 2) -> str:
    return unquoted("\n".join(trimmed(lines)), partial(fits_block, level=level))


def fits_block(text: str, level: int = 2) -> bool:
    """No heading in it is one that divides the page there, and no fence is left open."""
    lines, fence = text.split("\n"), Fence()
    headings = [each for each in lines if not fence.covers(each) and heading_level(each)]
    return (
        bool(text)
        and trimmed(lines) == lines
        and all(each == each.rstrip() for each in lines)
        and all(heading_level(each) > level for each in headings)
        and not fence.mark
        and not is_nothing(text)
        and not _CONTROL.search(text)
        and read_block(lines, level) == text
    )
