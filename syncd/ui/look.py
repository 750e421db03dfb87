"""Templates and files of the page: all of it ships with the package, and nothing comes from
elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChainableUndefined, Environment, FileSystemLoader

from syncd.ui import wording
from syncd.version import __version__

_HERE = Path(__file__).parent
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
NAVIGATION = (
    ("/", "Overview", "overview"),
    ("/tasks", "Tasks", "tasks"),
    ("/conflicts", "Conflicts", "conflicts"),
    ("/agents", "Agents", "agents"),
    ("/cost", "Cost", "cost"),
    ("/audit", "Audit", "audit"),
    ("/fleet", "Fleet", "fleet"),
)


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=ChainableUndefined,
        finalize=wording.clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "ago": wording.ago, "brief": wording.brief, "count": wording.count, "item": wording.item,
        "note": wording.note, "short_count": wording.short_count, "size": wording.size,
        "stamp": wording.stamp, "day": wording.day, "tone": wording.tone, "words": wording.words,
        "document": wording.document, "told": wording.told, "field": wording.field,
        "sentence": wording.sentence,
    }  # fmt: skip
    made.globals |= {"link": link, "version": __version__, "navigation": NAVIGATION}
    return made


def link(path: str, **parameters: Any) -> str:
    """An address; ids may hold anything, so they stand behind the question mark."""
    wanted = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(wanted)}" if wanted else path


def drawn(template: str, **context: Any) -> str:
    return environment().get_template(template).render(**context)


def refusal(status: int, what: str, remedy: str) -> bytes:
    return drawn("refused.html", status=status, what=what, remedy=remedy).encode()


def welcome() -> bytes:
    return drawn("welcome.html").encode()


@cache
def files() -> dict[str, tuple[bytes, str]]:
    """By name: content and kind."""
    return {
        file.name: (file.read_bytes(), _KINDS[file.suffix]) for file in (_HERE / "static").iterdir()
    }
