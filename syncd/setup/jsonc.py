"""Editing JSON as people keep it in settings: with comments, trailing commas, and a style of their
own. Each edit touches the text of one value; undone, it leaves the text as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from syncd.formats.jsontext import Node, Path, children, root, shown
from syncd.formats.reading import FormatError
from syncd.formats.style import begins_line, indent_at, style_of

# What an empty list or object that is filled here looked like, by its path; and of the file itself,
# whether there was one.
Memory = dict[str, str]
_FILE, _ABSENT = "file", "absent"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.S)
_STRING_OR_COMMENT = re.compile(rf"{_STRING.pattern}|//[^\n]*|/\*.*?(?:\*/|$)", re.S)
_TRAILING_COMMA = re.compile(rf"({_STRING.pattern})|,(?=\s*[}}\]])", re.S)
_VISIBLE = re.compile(r"[^\r\n]")
_REST_OF_LINE = re.compile(r"[ \t]*(?://[^\r\n]*|(?:/\*(?:[^*\r\n]|\*(?!/))*\*/[ \t]*)+)(?=\r?\n)")


@lru_cache(maxsize=4)
def strict(text: str) -> str:
    """The same without comments and trailing commas, each character in its place."""
    bare = _STRING_OR_COMMENT.sub(
        lambda m: m[0] if m[0][0] == '"' else _VISIBLE.sub(" ", m[0]), text
    )
    return _TRAILING_COMMA.sub(lambda m: m[1] or " ", bare)


class Document:
    """A settings file's text, and what it says. None is a file that does not exist yet."""

    def __init__(
        self, text: str | None, name: str, memory: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._known = bool(memory)
        self.memory: Memory = dict(memory or {})
        self.text = text or ""
        if not self.text.strip():
            self.memory.setdefault(_FILE, _ABSENT if text is None else text)
            self.text = "{}\n"
        self._check()

    def _check(self) -> None:
        try:
            found = json.loads(strict(self.text))
        except json.JSONDecodeError as error:
            raise self._fault(error.pos, f"expected JSON: {error.msg}") from None
        except (RecursionError, ValueError):
            raise self._fault(0, "expected JSON that can be read") from None
        if not isinstance(found, dict):
            raise self._fault(0, f"expected an object, found {type(found).__name__}")

    def _fault(self, at: int, expected: str) -> FormatError:
        fault = FormatError(self.name, self.text.count("\n", 0, at) + 1, expected)
        fault.remedy = f"Correct {self.name}, then run the command again; nothing was changed."
        return fault

    def get(self, path: Path) -> Any:
        """The value at a path; None where there is none."""
        node = self._node(path)
        return json.loads(strict(self.text)[node.start : node.end]) if node else None

    def literal(self, path: Path) -> str:
        node = self._node(path)
        return self.text[node.start : node.end] if node else ""

    def _node(self, path: Path) -> Node | None:
        node: Node | None = root(strict(self.text))
        for step in path:
            found = [child for child in self._inner(node) if child.name == step] if node else []
            if len(found) > 1:
                raise self._fault(found[1].key[0], f"{step!r} stands here for the second time")
            node = found[0] if found else None
        return node

    def _inner(self, holder: Node) -> list[Node]:
        return list(children(strict(self.text), holder))

    # --- putting in ---------------------------------------------------------------------------

    def add(self, path: Path, value: Any) -> None:
        """A new member, or (where the path ends in a number) a new last element."""
        *above, name = path
        holder = self._node(tuple(above))
        if holder is None:
            self.add(tuple(above), [value] if isinstance(name, int) else {name: value})
            return
        opening, kind = ("[", "a list") if isinstance(name, int) else ("{", "an object")
        if self.text[holder.start] != opening:
            raise self._fault(holder.start, f"expected {kind} at {shown(tuple(above))}")
        if inner := self._inner(holder):
            self._append(holder, inner, name, value)
        else:
            self._fill(holder, tuple(above), name, value)

    def _append(self, holder: Node, inner: list[Node], name: str | int, value: Any) -> None:
        bare, last = strict(self.text), inner[-1]
        style = style_of(bare, [last, holder, root(bare)])
        indent = indent_at(self.text, inner[0].key[0])
        lines = begins_line(bare, inner[0].key[0])
        gap = style.newline + indent if lines else " " if style.comma.endswith(" ") else ""
        new = gap + style.item(name, value, indent)
        comma = self._comma_after(last, holder.end)
        at = comma + 1 if comma else last.end
        if lines and (comment := _REST_OF_LINE.match(self.text, at)):
            new, at = self.text[at : comment.end()] + new, comment.end()
        # Where there was a comma behind the last one, there is one behind the new last one too.
        begin, put = (comma + 1, f"{new},") if comma else (last.end, f",{new}")
        self.text = self.text[:begin] + put + self.text[at:]

    def _fill(self, holder: Node, above: Path, name: str | int, value: Any) -> None:
        bare, content = strict(self.text), self.text[holder.start + 1 : holder.end - 1]
        self.memory[_named(above)] = content
        style = style_of(bare, [holder, root(bare)])
        outer = indent_at(self.text, holder.start)
        indent = outer + (style.unit or "")
        lines = style.unit is not None
        before, after = (style.newline + indent, style.newline + outer) if lines else ("", "")
        new = before + style.item(name, value, indent)
        # A comment in an empty object stays, behind what is put there.
        rest = content if content.strip() else after
        at = holder.start + 1
        self.text = self.text[:at] + new + rest + self.text[holder.end - 1 :]

    def replace(self, path: Path, literal: str) -> None:
        if node := self._node(path):
            self.text = self.text[: node.start] + literal + self.text[node.end :]

    # --- taking out ---------------------------------------------------------------------------

    def remove(self, path: Path) -> None:
        """Take out one value; what holds it too, if it was made for it."""
        above = path[:-1]
        holder, node = self._node(above), self._node(path)
        if holder is None or node is None:
            return
        inner = self._inner(holder)
        if len(inner) > 1:
            self._cut(inner, inner.index(node), holder.end)
        else:
            self._empty(holder, node, above)

    def _cut(self, inner: list[Node], place: int, end: int) -> None:
        node = inner[place]
        begin = len(self.text[: node.key[0]].rstrip(" \t\r\n"))
        if comma := self._comma_after(node, end):
            follows = self.text[comma + 1 :]
            if strict(self.text)[begin - 1].isspace() and follows.lstrip(" \t")[:1] not in "\r\n":
                begin = node.key[0]  # else a comment before it would swallow what follows
            self.text = self.text[:begin] + follows
            return
        self.text = self.text[:begin] + self.text[node.end :]
        if place and (comma := self._comma_after(inner[place - 1], begin)):
            self.text = self.text[:comma] + self.text[comma + 1 :]

    def _comma_after(self, node: Node, end: int) -> int:
        """Where the comma stands that follows a value, also a trailing one; 0 if there is none."""
        between = _STRING_OR_COMMENT.sub(
            lambda m: m[0] if m[0][0] == '"' else " " * len(m[0]), self.text[node.end : end]
        )
        found = len(between) - len(between.lstrip(" \t\r\n"))
        return node.end + found if between[found : found + 1] == "," else 0

    def _empty(self, holder: Node, node: Node, above: Path) -> None:
        known = self.memory.pop(_named(above), None)
        rest = self.text[node.end : holder.end - 1].lstrip(", \t\r\n")
        if rest:  # somebody's comment
            self._cut([node], 0, holder.end)
        elif known is None and above:
            self.remove(above)
        else:
            begin, end = holder.start + 1, holder.end - 1
            self.text = self.text[:begin] + (known or "") + self.text[end:]

    def remains(self) -> str | None:
        """The text to leave behind; None if there was no file, and nothing else came into it."""
        if "".join(self.text.split()) != "{}":
            return self.text
        before = self.memory.pop(_FILE, self.text if self._known else _ABSENT)
        return None if before == _ABSENT else before


def _named(path: Path) -> str:
    return shown(path) or "."
