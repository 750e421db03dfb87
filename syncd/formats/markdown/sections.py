"""What the sections of a page say. Each function returns the lines that it did not understand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from syncd.formats.markdown import layout, table
from syncd.formats.markdown.draft import Draft
from syncd.formats.markdown.layout import DOING, DONE, TO_DO
from syncd.formats.markdown.page import Section, divided, headers_of
from syncd.formats.markdown.texts import (
    Entry,
    entries,
    is_nothing,
    read_block,
    read_line,
    trimmed,
)
from syncd.items import Escalation
from syncd.vocabulary import word


def take(draft: Draft, section: Section) -> None:
    name, left = section.named(), section.lines
    if name in layout.LISTS:
        left = _list(draft, section, layout.LISTS[name])
    elif name in _SECTIONS:
        left = _SECTIONS[name](draft, section)
    if text := read_block(left):
        draft.keep("sections", {"title": read_line(section.title), "text": text})


def _list(draft: Draft, section: Section, kind: layout.ListSection) -> list[str]:
    draft.extend(kind.field, _items(entries(section.lines), kind.key), section.line)
    return []


def _items(found: Iterable[Entry], key: str) -> list[Any]:
    """The texts of a list. Where they may have details, those that do are objects, with the text
    under `key`."""
    return [_item(entry, key) for entry in found if not entry.is_nothing()]


def _item(entry: Entry, key: str) -> Any:
    if not key:
        return entry.text()
    text, details = entry.item()
    return text if details is None else {**details, key: text}


# --- progress -----------------------------------------------------------------------------------


def _progress(draft: Draft, section: Section) -> list[str]:
    (top, *parts), _ = divided(section.lines, section.line + 1, level=3)
    left = list(_boxes(draft, top))
    for part in parts:
        if part.title.title() in layout.PROGRESS:
            _steps(draft, part, part.title.title())
        else:
            left += [f"### {part.title}", *part.lines]
    return left


def _boxes(draft: Draft, section: Section) -> list[str]:
    """Boxes with no title above them: those that are ticked are done."""
    if any(entry.ticked()[0] is None for entry in entries(section.lines)):
        return section.lines
    _steps(draft, section, TO_DO)
    return []


def _steps(draft: Draft, section: Section, title: str) -> None:
    steps: dict[str, list[Any]] = {place: [] for place in layout.PROGRESS}
    for entry in entries(section.lines):
        ticked, entry = entry.ticked()
        place = _place(title, ticked)
        steps[place] += _items([entry], layout.PROGRESS[place])
    draft.extend(layout.COMPLETED, steps[DONE], section.line)
    _current(draft, steps[DOING], section.line)
    draft.extend(layout.PENDING, steps[TO_DO], section.line)


def _place(title: str, ticked: bool | None) -> str:
    """A box that somebody ticked or cleared counts more than the title it stands under."""
    if ticked:
        return DONE
    return TO_DO if ticked is False and title == DONE else title


def _current(draft: Draft, items: list[Any], line: int) -> None:
    """The first is the current step; any more are pending ones that say so."""
    steps = [{"description": item} if isinstance(item, str) else item for item in items]
    if steps and draft.put(layout.CURRENT, steps[0], line):
        del steps[0]
    begun = [{**step, "step": step["description"], "in_progress": True} for step in steps]
    for step in begun:
        del step["description"]
    draft.extend(layout.PENDING, begun, line)


# --- the others ---------------------------------------------------------------------------------


def _state(draft: Draft, section: Section) -> list[str]:
    state, around = section.json(draft.source, "```json", "```")
    taken = state is not None and draft.put(layout.STATE, state, section.line)
    return around if taken else section.lines


def _findings(draft: Draft, section: Section) -> list[str]:
    parts, _ = divided(section.lines, section.line + 1, level=3)
    for part in parts:
        found = _found(part.lines)
        if category := read_line(part.title):
            texts = [{"text": item} if isinstance(item, str) else item for item in found]
            found = [{**item, "category": category} for item in texts]
        draft.extend(layout.FINDINGS, found, section.line)
    return []


def _found(lines: list[str]) -> list[Any]:
    """A list has one finding per item; anything else is one finding."""
    items = entries(lines)
    if all(entry.indent for entry in items):
        return _items(items, "text")
    text = "\n".join(trimmed(lines))
    return [] if is_nothing(text) else [text]


def _blockers(draft: Draft, section: Section) -> list[str]:
    rows = [text for text in section.lines if text.startswith("|")]
    others = [text for text in section.lines if not text.startswith("|")]
    found = [*table.read(rows), *_items(entries(others), "description")]
    draft.extend(layout.BLOCKED, found, section.line)
    return []


def _escalation(draft: Draft, section: Section) -> list[str]:
    headers, others = headers_of(section)
    fields = {_escalation_field(header.name): header.text for header in headers}
    whole = bool(fields) and len(fields) == len(headers)
    taken = whole and draft.put(layout.ESCALATION, fields, section.line)
    return others if taken else section.lines


def _escalation_field(name: str) -> str:
    return word(name) if word(name) in Escalation.model_fields else name


def _resume(draft: Draft, section: Section) -> list[str]:
    text = read_block(section.lines)
    return [] if text and draft.put(layout.RESUME, text, section.line) else section.lines


_SECTIONS: dict[str, Callable[[Draft, Section], list[str]]] = {
    "progress": _progress,
    "state": _state,
    "findings": _findings,
    "blockers": _blockers,
    "escalation": _escalation,
    "resume instructions": _resume,
}
