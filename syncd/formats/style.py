"""Changing one value in a JSON text, in the manner in which the text is written: its indentation,
its separators, its line ends, its way with letters beyond ASCII. All else stays as it is."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from syncd.formats.jsontext import Node, children, root

_LETTER = re.compile(r"\\u(?!00[0-7])[0-9a-fA-F]{4}")
_INDENT = re.compile(r"[ \t]*")


class Style(NamedTuple):
    """`unit` is what one level is indented by; None: all on one line."""

    unit: str | None
    colon: str
    comma: str
    newline: str
    ascii: bool

    def written(self, value: Any, indent: str) -> str:
        """`value` as it stands in a line that begins with `indent`."""
        text = json.dumps(
            value,
            indent=self.unit,
            separators=("," if self.unit is not None else self.comma, self.colon),
            ensure_ascii=self.ascii,
        )
        return text.replace("\n", self.newline + indent)

    def member(self, name: str, value: Any, indent: str) -> str:
        return json.dumps(name) + self.colon + self.written(value, indent)

    def item(self, name: str | int, value: Any, indent: str) -> str:
        """A member of an object, or by its number an element of a list."""
        if isinstance(name, str):
            return self.member(name, value, indent)
        return self.written(value, indent)


def with_member(text: str, holder: Node, name: str, value: Any) -> str:
    """The text with one member of an object set to `value`; one that is new comes last."""
    members = list(children(text, holder))
    old = next((member for member in members if member.name == name), None)
    style = style_of(text, [node for node in (old, holder, root(text)) if node])
    if old:
        new = style.written(value, indent_at(text, old.key[0]))
        return text[: old.start] + new + text[old.end :]
    if members:
        return _appended(text, members, name, value, style)
    return _filled(text, holder, name, value, style)


def _appended(text: str, members: list[Node], name: str, value: Any, style: Style) -> str:
    indent, end = indent_at(text, members[0].key[0]), members[-1].end
    lines = begins_line(text, members[0].key[0])
    gap = f",{style.newline}{indent}" if lines else style.comma
    return text[:end] + gap + style.member(name, value, indent) + text[end:]


def _filled(text: str, holder: Node, name: str, value: Any, style: Style) -> str:
    """An object that was empty."""
    outer = indent_at(text, holder.start)
    indent = outer + (style.unit or "")
    before, after = style.newline + indent, style.newline + outer
    if style.unit is None:
        before = after = ""
    content = "{" + before + style.member(name, value, indent) + after + "}"
    return text[: holder.start] + content + text[holder.end :]


def style_of(text: str, models: list[Node]) -> Style:
    """As in the first of these objects that has members."""
    newline = "\r\n" if "\r\n" in text else "\n"
    escaped = text.isascii() and bool(_LETTER.search(text))
    for model in models:
        if text[model.start] == "{" and (members := list(children(text, model))):
            colon, comma = _separators(text, members)
            return Style(_unit(text, model, members[0]), colon, comma, newline, escaped)
    return Style("  ", ": ", ", ", newline, escaped)


def _unit(text: str, model: Node, first: Node) -> str | None:
    if not begins_line(text, first.key[0]):
        return None
    outer, inner = indent_at(text, model.start), indent_at(text, first.key[0])
    return inner.removeprefix(outer) if inner.startswith(outer) else "  "


def _separators(text: str, members: list[Node]) -> tuple[str, str]:
    """Between name and value, and between members on one line."""
    first, *others = members
    colon = text[first.key[1] : first.start]
    comma = text[first.end : others[0].key[0]] if others else "\n"
    colon = ": " if "\n" in colon else colon
    return colon, (", " if colon.endswith(" ") else ",") if "\n" in comma else comma


def begins_line(text: str, at: int) -> bool:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return "\n" in text[:at] and not line.strip(" \t")


def indent_at(text: str, at: int) -> str:
    """What the line begins with in which `at` lies."""
    match = _INDENT.match(text, text.rfind("\n", 0, at) + 1)
    return match[0] if match else ""
