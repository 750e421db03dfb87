"""What agents have to do with each other, as entries of the log: hand-offs, claims, messages,
transitions, invocations, recoveries.

A fact is never changed. What happens to it later is another entry about the same thing, with the
same meta, so that each can be understood alone.

Light: `syncd status` reads them, and looks for no secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from syncd.entry import CREATE, Draft, Entry, uuid7
from syncd.node import Node, user
from syncd.seal import SigningKey
from syncd.shapes import complete


class Fact(NamedTuple):
    """An entry as far as its header tells; the body is read when somebody asks for it."""

    entry_id: str
    about: str
    op: str
    device_id: str
    actor: str
    at: str
    hlc: int
    seq: int
    meta: dict[str, Any]

    @property
    def task_id(self) -> str:
        return str(self.meta["task_id"])


def record(
    node: Node,
    entity: str,
    task_id: str,
    meta: Mapping[str, Any],
    body: Mapping[str, Any] | None = None,
    *,
    about: str = "",
    op: str = CREATE,
    bases: tuple[str, ...] = (),
    actor: str = "",
    key: SigningKey | None = None,
) -> Entry:
    """Write one. With a key, all that this device has written so far is signed with it."""
    from syncd import redaction
    from syncd.canonical import canonical

    clean = {
        name: redaction.of(node.settings).text(value, name) if isinstance(value, str) else value
        for name, value in (body or {}).items()
    }
    draft = Draft(
        uuid7(), entity, about or uuid7(), op, actor or user(), {"task_id": task_id, **meta},
        canonical(clean), bases,
    )  # fmt: skip
    with node.store.transaction():
        return node.store.append(draft, node.store.place(task_id), key)


def every(node: Node, entity: str, after: int = 0) -> list[Fact]:
    """All of a kind, oldest first, from some place in the log on."""
    return _opened(entity, node.store.rows("facts", (entity, after)))


def concerning(node: Node, entity: str, about: str) -> list[Fact]:
    """All about one thing, oldest first."""
    return _opened(entity, node.store.rows("facts_about", (entity, about)))


def about_each(node: Node, entity: str, names: list[str]) -> dict[str, list[Fact]]:
    """The same of several things at once; nothing for those of which there is none."""
    found: dict[str, list[Fact]] = {}
    asked = (entity, orjson.dumps(names).decode())
    for fact in _opened(entity, node.store.rows("facts_about_each", asked) if names else []):
        found.setdefault(fact.about, []).append(fact)
    return found


def naming(node: Node, entity: str, name: str, value: str) -> list[Fact]:
    """All whose header has this value under a name, oldest first."""
    return _opened(entity, node.store.rows("facts_naming", (entity, name, value)))


def told(node: Node, fact: Fact) -> dict[str, Any]:
    """What it says, verified; raises if it is damaged, or sealed with a key that is not here."""
    document: dict[str, Any] = orjson.loads(node.store.version(fact.entry_id).body)
    return document


def _opened(entity: str, rows: list[tuple[Any, ...]]) -> list[Fact]:
    """A header that cannot be read is the audit's business, and no reason to stop the others."""
    found = []
    for row in rows:
        try:
            meta = orjson.loads(row[8])
        except ValueError:
            continue
        if complete(entity, meta):
            found.append(Fact._make((*row[:8], meta)))
    return found
