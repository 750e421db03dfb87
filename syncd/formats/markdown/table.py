"""The table of blockers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from syncd.formats.markdown.layout import BLOCKER_COLUMNS
from syncd.formats.markdown.texts import (
    as_json,
    is_nothing,
    is_table_rule,
    json_object,
    line,
    read_line,
)
from syncd.items import Blocker
from syncd.vocabulary import word

_BAR = re.compile(r"(?<!\\)\|")
_TEXT, _DETAILS = "description", "details"


def read(rows: Iterable[str]) -> list[str | dict[str, Any]]:
    """A blocker per row; one that is nothing but a description is a text."""
    columns, found = list(BLOCKER_COLUMNS), list[tuple[list[str], list[str]]]()
    for row in rows:
        cells = _cells(row)
        if found and cells and all(map(is_table_rule, cells)):
            columns = _fields(found.pop()[1])
        else:
            found.append((columns, cells))
    return [_blocker(columns, cells) for columns, cells in found if not _says_nothing(cells)]


def _cells(row: str) -> list[str]:
    cells = [cell.strip().replace("\\|", "|") for cell in _BAR.split(row[1:])]
    return cells if cells[-1] else cells[:-1]


def _fields(titles: Sequence[str]) -> list[str]:
    """What the columns are; those that nobody knows keep their title as a name."""
    names = [_field(title) for title in titles]
    return names if _TEXT in names else [_TEXT, *names[1:]]


def _field(title: str) -> str:
    name = _TEXT if word(title) == "blocker" else word(title)
    return name if name in Blocker.model_fields or name == _DETAILS else title


def _says_nothing(cells: Sequence[str]) -> bool:
    return not any(cells) or is_nothing(cells[0])


def _blocker(columns: Sequence[str], cells: Sequence[str]) -> str | dict[str, Any]:
    shown: dict[str, list[str]] = {_TEXT: []}
    for number, cell in enumerate(cells):
        shown.setdefault(columns[min(number, len(columns) - 1)], []).append(cell)
    joined = {name: " | ".join(texts) for name, texts in shown.items()}
    details = json_object(joined.get(_DETAILS, ""))
    if details is not None:
        del joined[_DETAILS]
    fields = {name: read_line(text) for name, text in joined.items() if text or name == _TEXT}
    return fields[_TEXT] if len(fields) == 1 and details is None else {**(details or {}), **fields}


def written(blockers: Sequence[str | Mapping[str, Any]]) -> list[str]:
    """The rows. The column for details is there if some blocker has any."""
    rows = [_cells_of(blocker) for blocker in blockers]
    titles = [*BLOCKER_COLUMNS.values(), word(_DETAILS).title()]
    width = len(titles) if any(row[-1] for row in rows) else len(titles) - 1
    rule = ["-" * len(title) for title in titles]
    return [_row(row[:width]) for row in (titles, rule, *rows)]


def _cells_of(blocker: str | Mapping[str, Any]) -> list[str]:
    fields = {_TEXT: blocker} if isinstance(blocker, str) else dict(blocker)
    texts = [fields.pop(name, "") for name in BLOCKER_COLUMNS]
    bare = not isinstance(blocker, str) and not any(texts[1:])
    details = as_json(fields) if fields or bare else ""
    return [line(texts[0]), *(line(text) if text else "" for text in texts[1:]), details]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
