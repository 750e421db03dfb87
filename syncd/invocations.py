"""Who started whom, and when."""

from __future__ import annotations

from typing import Any

import orjson

from syncd import facts, redaction
from syncd.entry import INVOCATION
from syncd.facts import Fact
from syncd.fold import derived_id
from syncd.node import Node
from syncd.vocabulary import checked_id


def invoked(
    node: Node, task_id: str, started: str, by: str, session: str = "", agent_type: str = ""
) -> None:
    """Record that one agent, or a person, has started another. A session is started once."""
    for kind, text in (("agent id", started), ("name of who started it", by)):
        redaction.of(node.settings).refuse(kind.replace(" ", "_"), checked_id(kind, text))
    name = derived_id(f"syncd invocation {_text(task_id, started, by, session)}")
    meta = {"started": started, "by": by, "session": session, "agent_type": agent_type}
    with node.store.transaction():
        if not facts.concerning(node, INVOCATION, name):
            facts.record(node, INVOCATION, task_id, meta, about=name, actor=by)


def _text(*words: str) -> str:
    return orjson.dumps(words).decode()


def listed(node: Node, task_id: str = "", agent: str = "") -> list[dict[str, Any]]:
    """Oldest first; of an agent, those that it started too."""
    found = (
        facts.naming(node, INVOCATION, "task_id", task_id)
        if task_id
        else facts.every(node, INVOCATION)
    )
    first = {fact.about: fact for fact in reversed(found)}
    return [
        _document(fact)
        for fact in sorted(first.values(), key=lambda fact: (fact.hlc, fact.entry_id))
        if agent in ("", fact.meta["started"], fact.meta["by"])
    ]


def _document(fact: Fact) -> dict[str, Any]:
    return {
        "task_id": fact.task_id,
        "started": fact.meta["started"],
        "by": fact.meta["by"],
        "agent_type": str(fact.meta.get("agent_type", "")),
        "session_id": fact.meta["session"],
        "device_id": fact.device_id,
        "at": fact.at,
    }
