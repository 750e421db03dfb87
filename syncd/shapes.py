"""What the header of each kind of entry tells, and as what: nobody may rely on another's meta
before that was looked at."""

from __future__ import annotations

from typing import Any

from syncd.entry import (
    AGENT,
    CHECKPOINT,
    CHOICE,
    GRAPH,
    HANDOFF,
    INVOCATION,
    KEY,
    LEASE,
    LINK,
    MESSAGE,
    PURGE,
    RECOVERY,
    TASK,
)

_TEXT, _NUMBER, _MAYBE, _LIST, _DICT = (str,), (int,), (int, type(None)), (list,), (dict,)
_SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    CHECKPOINT: {
        "agent": _TEXT, "agent_type": _TEXT, "iteration": _NUMBER, "phase": _TEXT,
        "status": _TEXT, "reason": _TEXT, "tokens": _NUMBER, "parent": _TEXT,
    },
    TASK: {"status": _TEXT, "budget": _MAYBE, "retention": _TEXT},
    LINK: {"child": _TEXT, "parent": _TEXT},
    CHOICE: {"fork": _TEXT, "resolution": _TEXT},
    PURGE: {"entries": _LIST, "kind": _TEXT},
    HANDOFF: {
        "checkpoint": _TEXT, "trigger": _TEXT, "target": _TEXT, "priority": _NUMBER,
        "giver": _TEXT, "giver_device": _TEXT,
    },
    LEASE: {"subject": _TEXT, "holder": _TEXT, "giver": _TEXT, "giver_device": _TEXT},
    MESSAGE: {"sender": _TEXT, "recipient": _TEXT},
    AGENT: {"who": _TEXT, "where": _TEXT, "state": _TEXT},
    INVOCATION: {"started": _TEXT, "by": _TEXT, "session": _TEXT},
    RECOVERY: {"outcome": _TEXT, "checkpoint": _TEXT},
    GRAPH: {"parent": _TEXT, "run": _TEXT},
    KEY: {"continues": _DICT, "public_key": _TEXT, "endorsement": _TEXT},
}  # fmt: skip
_ALWAYS = {"task_id": _TEXT, "task_seq": _NUMBER}


def complete(entity: str, meta: Any) -> bool:
    """Of a kind that is not known here, only what all have is asked."""
    shape = {**_ALWAYS, **_SHAPES.get(entity, {})}
    return isinstance(meta, dict) and all(type(meta.get(n)) in kinds for n, kinds in shape.items())
