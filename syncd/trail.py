"""The log as people ask for it: who did what, when, to which task."""

from __future__ import annotations

import sqlite3
from itertools import islice
from typing import Any, NamedTuple

import orjson

from syncd import clock
from syncd.errors import CheckpointNotFoundError, UsageError
from syncd.refusals import translated
from syncd.service import time_range
from syncd.store import Store

_TEXTS = ("entry_id", "device_id", "entity", "entity_id", "op", "actor", "at", "hash")


class Row(NamedTuple):
    """An entry without its content, as the query `audit_list` gives it."""

    cursor: int
    entry_id: str
    device_id: str
    device_seq: int
    entity: str
    entity_id: str
    op: str
    actor: str
    at: str
    meta: str
    hash: str
    signed: int

    def document(self) -> dict[str, Any]:
        """A damaged column may hold anything; it is shown as it is."""
        texts = {name: str(getattr(self, name)) for name in _TEXTS}
        return {**self._asdict(), **texts, "meta": self.words(), "signed": bool(self.signed)}

    def words(self) -> dict[str, Any]:
        """The meta; empty if it is damaged, which an audit tells."""
        try:
            meta = orjson.loads(self.meta)
        except ValueError:
            return {}
        return meta if isinstance(meta, dict) else {}


class Question(NamedTuple):
    """Which entries are asked for; None leaves a thing open. Times are as entries write them."""

    task: str | None = None
    agent: str | None = None
    device: str | None = None
    since: str | None = None
    until: str | None = None
    entity: str | None = None
    op: str | None = None

    def meant(self, row: Row) -> bool:
        """The task is looked for by the query itself."""
        return (
            self.device in (None, row.device_id)
            and self.entity in (None, row.entity)
            and self.op in (None, row.op)
            and (self.since is None or str(row.at) >= self.since)
            and (self.until is None or str(row.at) < self.until)
            # Whoever changes an agent's work by hand is another actor.
            and (self.agent in (None, row.actor) or row.words().get("agent") == self.agent)
        )


def listed(store: Store, question: Question, limit: int) -> list[dict[str, Any]]:
    """The newest entries that are meant, newest first; read only as far back as is needed."""
    try:
        with store.locked():
            rows = map(Row._make, store.execute(store.sql["audit_list"], (question.task, -1)))
            return [row.document() for row in islice(filter(question.meant, rows), limit)]
    except (sqlite3.Error, UnicodeError) as error:
        raise translated(error) from error


def asked(store: Store, since: str | None, until: str | None, **wanted: str | None) -> Question:
    """A question in a person's words: any form of time, the beginning of a device's id."""
    first, last = (clock.iso(clock.milliseconds(at)) for at in time_range(since, until))
    device = wanted.pop("device", None)
    return Question(
        **wanted,
        device=_device_id(store, device) if device else None,
        since=first if since else None,
        until=last if until else None,
    )


def _device_id(store: Store, prefix: str) -> str:
    found = store.find("device_ids", prefix)
    if prefix in found or len(found) == 1:
        return prefix if prefix in found else found[0]
    if not found:
        raise CheckpointNotFoundError(
            f"no device {prefix!r} is known here", "`syncd audit list` shows who wrote what."
        )
    raise UsageError(
        f"{prefix!r} fits more than one device: {', '.join(found)}", "Give more characters."
    )
