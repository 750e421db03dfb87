"""Other people's words inside a prompt: one line each, and nothing in them that could pass for a
part of the prompt itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

SHOWN_CHARACTERS = 200
# A heading of Markdown, also inside a list item; and the words that only a check may say.
_HEADING = re.compile(r"#{1,6}(?= |$)")
_VERDICT = re.compile(r"(?:UN)?VERIFIED")


def text(value: Any, limit: int = SHOWN_CHARACTERS) -> str:
    """Any value as one harmless line of at most `limit` characters."""
    line = value if isinstance(value, str) else "" if value is None else str(value)
    if len(line) > 8 * limit:  # what is far beyond the cut need not be cleaned
        line = line[: 8 * limit]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in line)
    line = " ".join(line.split())
    line = _VERDICT.sub(lambda found: found[0].lower(), line)
    if _HEADING.match(line):
        line = f"\\{line}"
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def moment(value: Any) -> datetime | None:
    """A time that says its zone."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo else None


def listed(names: Iterable[str], shown: int = 3) -> str:
    """The first of them, and how many there are besides."""
    found = [text(name, 80) for name in names]
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
