"""How values become words on a page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from syncd import clock

_JOINERS = "\n\t\u200c\u200d"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_LONGEST_VALUE = 4_000


def clean(value: Any) -> Any:
    """What cannot be seen in a text must not act there: no controls, no change of direction."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(
        c if c.isprintable() or c in _JOINERS or c.isspace() else "\ufffd" for c in value
    )


def sentence(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def brief(identifier: Any) -> str:
    """Enough of a UUID to tell it from its neighbours: its time and its end."""
    text = str(identifier)
    return f"{text[:8]}…{text[-4:]}" if len(text) == 36 and text.count("-") == 4 else text


def count(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else "–" if number is None else str(number)


def short_count(number: int | float) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def size(number: int | float | None) -> str:
    if number is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1000
    raise AssertionError


def moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def ago(text: Any) -> str:
    """How long ago, in one unit."""
    at = moment(text)
    if at is None:
        return "never" if not text else str(text)
    seconds = clock.wall_ms() / 1000 - at.timestamp()
    if seconds < -60:
        return f"on {at:%Y-%m-%d %H:%M} UTC"
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now" if seconds < 5 else f"{int(seconds)} s ago"


def stamp(text: Any) -> str:
    at = moment(text)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at else str(text or "–")


def day(text: Any) -> str:
    at = moment(text)
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" if at else str(text or "–")


_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)")


def told(text: Any) -> Markup:
    """A sentence of syncd's: commands between backticks stand out, moments are short."""
    short = _ISO.sub(lambda found: stamp(found[0]), str(clean(str(text))))
    parts = short.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def field(path: Any) -> str:
    """The name of a field: without the part of the document that it stands in."""
    inner = str(path).partition(".")[2] or str(path)
    return words(inner.replace(".", " › "))


def words(name: Any) -> str:
    """A name of the record as people say it."""
    return str(name).replace("_", " ")


def item(value: Any) -> str:
    """A plain or structured item in one line."""
    if not isinstance(value, dict):
        return str(value)
    main = next(
        (value[n] for n in ("step", "decision", "description", "text", "what") if value.get(n)),
        None,
    )
    if main is None and any(isinstance(inner, dict | list) for inner in value.values()):
        return json.dumps(value, ensure_ascii=False)
    if main is None:
        return ", ".join(f"{words(name)}: {inner}" for name, inner in value.items())
    return str(main)


def note(value: Any) -> str:
    """Why, or with which effect, if an item says so."""
    if not isinstance(value, dict):
        return ""
    names = ("rationale", "impact", "notes", "resolution", "category")
    return next((str(value[name]) for name in names if value.get(name)), "")


def document(value: Any) -> str:
    """A value of a document as text, a list as lines; a very long one is cut, and says so."""
    if isinstance(value, list):
        text = "\n".join(f"· {item(entry)}" for entry in value)
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    if len(text) > _LONGEST_VALUE:
        return f"{text[:_LONGEST_VALUE]}\n… ({len(text):,} characters)"
    return text


_TONES = {
    "good": ("complete", "active", "online", "ok", "verified", "final", "restored", "merged",
             "identical", "intact", "accepted", "running", "signed", "current"),
    "bad": ("failed", "blocked", "damaged", "crashed", "refused", "revoked", "stale", "offline",
            "lost"),
    "warn": ("attention", "warning", "escalated", "waiting", "open", "fork", "version",
             "reassign", "unverified", "over budget", "stopped", "warned", "silent", "behind"),
    "busy": ("in_progress", "implementing", "testing", "reviewing", "planning", "handoff",
             "sending"),
}  # fmt: skip
_TONE = {word: tone for tone, said in _TONES.items() for word in said}


def tone(state: Any) -> str:
    """The colour that goes with the word."""
    return _TONE.get(str(state), "plain")
