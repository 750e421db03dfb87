"""Tasks: what a chain of checkpoints works towards. Known by name or met in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import orjson

from syncd import agents, redaction, threads
from syncd.canonical import canonical
from syncd.entry import CHOICE, CREATE, TASK, UPDATE, Draft, uuid7
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointExistsError,
    InvalidInputError,
    TaskNotFoundError,
    ViewDamagedError,
)
from syncd.node import Node, user
from syncd.seal import flaw
from syncd.store import VIEW_COLUMNS
from syncd.views import CheckpointRow
from syncd.vocabulary import CheckpointStatus, checked_id, now, zoned

_TASK_COLUMNS = 7
# What was said about a task that waits, or waited.
_SPOKEN = {
    "escalation": ("to", "reason", "decision_needed", "at", "by"),
    "resolution": ("original_blocker", "resolution", "resolved_by", "at"),
    "deferred": ("until", "reason"),
}
_RETENTION = re.compile(r"default|forever|legal_hold|(?:days|revisions):[1-9]\d{0,8}")


def add(node: Node, task_id: str, **values: Any) -> dict[str, Any]:
    """Describe a new task."""
    redaction.of(node.settings).refuse("task_id", checked_id("task id", task_id))
    with node.store.transaction():
        row = node.store.row("task", (task_id,))
        if row and row[4]:
            raise CheckpointExistsError(
                f"task {task_id!r} exists already", "Use `syncd task set` to change it."
            )
        _write(node, task_id, CREATE, {}, values)
    return show(node, task_id)


def change(node: Node, task_id: str, **values: Any) -> dict[str, Any]:
    """Change some of what is said about a task; `None` leaves a value alone."""
    return _changed(node, task_id, values, _described)


def _changed(
    node: Node, task_id: str, values: dict[str, Any], words: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    with node.store.transaction():
        row = _row(node, task_id)
        _write(node, task_id, UPDATE if row[4] else CREATE, words(node, row), values, row[4])
    return show(node, task_id)


def show(
    node: Node, task_id: str, *, described: bool = True, left: set[str] | None = None
) -> dict[str, Any]:
    """Without its title and description, nothing of a task can be damaged. `left` are those whose
    agent has crashed, if that is known already."""
    row = _row(node, task_id)
    words = _described(node, row) if described else {}
    latest = node.store.row("task_status", (task_id,))
    spent = node.store.rows("task_cost", (task_id,))
    return {
        "id": task_id,
        "title": words.get("title", ""),
        "description": words.get("description", ""),
        "status": row[1] or (latest[0] if latest else "in_progress"),
        "budget": row[2],
        "retention": row[3],
        "created_at": row[6],
        "heads": [head.id for head in _heads(node, task_id)],
        "reassign": task_id in (agents.to_reassign(node, task_id) if left is None else left),
        "cost": _cost(row[2], spent),
        "states": threads.counted(node, task_id),
        **_waits_for(words),
    }


def described(node: Node, task_id: str) -> dict[str, Any]:
    """What is said about a task, verified; raises if it is damaged."""
    return _described(node, _row(node, task_id))


def segments(node: Node, task_id: str) -> list[dict[str, Any]]:
    """What each stretch of the work has cost, from one agent's taking over to the next one's."""
    names = ("agent_id", "agent_type", "from", "until", "checkpoints", "tokens")
    rows = node.store.rows("segments", (task_id,))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _waits_for(words: dict[str, Any]) -> dict[str, Any]:
    """Who has to decide what, what was decided, until when it was put off; each if it was said.
    Another machine may have said it in another form."""
    found: dict[str, Any] = {
        part: {name: str(said.get(name, "")) for name in names}
        for part, names in _SPOKEN.items()
        if isinstance(said := words.get(part), dict) and said
    }
    if put_off := found.get("deferred"):
        put_off["due"] = _passed(put_off["until"])
    return found


def _passed(moment: str) -> bool:
    try:
        return datetime.fromisoformat(moment) <= datetime.fromisoformat(now())
    except (TypeError, ValueError):  # none, or without a zone
        return False


def readable(node: Node, task_id: str) -> dict[str, Any]:
    """What it waits for, as far as that can be read."""
    row = node.store.row("task", (task_id,))
    return _waits_for(_readable(node, row)) if row else {}


# --- where the work stands ----------------------------------------------------------------------


def heads(node: Node, task_id: str, *, decided: bool = False) -> list[dict[str, Any]]:
    """The checkpoints that no other one follows, newest first; by their headers, so that a damaged
    one is listed too. Those that somebody decided against only if asked for."""
    _row(node, task_id)
    return [
        {"checkpoint_id": row.id, "agent_id": row.agent_id, "agent_type": row.agent_type,
         "iteration": row.iteration, "phase": row.phase, "status": row.status,
         "parent": row.parent_id, "device_id": row.device_id, "created_at": row.created_at,
         "fenced": fenced(node, row), "decided": was_decided(node, row.id)}
        for row in _heads(node, task_id, decided=decided)
    ]  # fmt: skip


def _heads(node: Node, task_id: str, *, decided: bool = False) -> list[CheckpointRow]:
    rows = (
        node.store.row("checkpoint", head) for head in node.store.rows("task_heads", (task_id,))
    )
    found = [CheckpointRow(*row[:VIEW_COLUMNS]) for row in rows if row]
    return [row for row in found if decided or not was_decided(node, row.id)]


def was_decided(node: Node, checkpoint_id: str) -> bool:
    """Whether the last word about it was that the work goes on elsewhere."""
    said = node.store.rows("facts_about", (CHOICE, checkpoint_id))
    newest = max(said, key=lambda row: (row[6], row[0]), default=None)
    return newest is not None and orjson.loads(newest[8])["resolution"] != "restored"


def fenced(node: Node, row: CheckpointRow) -> bool:
    """Whether it was written by one who had lost the task."""
    worker = (row.task_id, row.agent_id, row.device_id, row.hlc)
    return node.store.row("fenced_off", worker) is not None


# --- who decides, and when ----------------------------------------------------------------------


def escalate(
    node: Node, task_id: str, to: str, reason: str, decision: str, *,
    status: str = CheckpointStatus.ESCALATED, by: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Somebody else has to decide before the work can go on."""
    for name, said in (("to", to), ("reason", reason), ("decision", decision)):
        _said(name, said)
    words = {"to": to, "reason": reason, "decision_needed": decision, "at": now(),
             "by": by or user()}  # fmt: skip
    return _changed(node, task_id, {"status": str(status), "escalation": words}, _readable)


def resolve(node: Node, task_id: str, resolution: str, by: str = "") -> dict[str, Any]:
    """What the task waited for is decided: the work goes on, and whoever does it is told."""
    _said("resolution", resolution)
    with node.store.transaction():
        blocker = _blocker(node, task_id)
        words = {"original_blocker": blocker, "resolution": resolution,
                 "resolved_by": by or user(), "at": now()}  # fmt: skip
        settled = {"escalation": {}, "deferred": {}, "resolution": words}
        return change(node, task_id, status=_opened(node, task_id), **settled)


def _opened(node: Node, task_id: str) -> str:
    """None of its own where the checkpoints say that the work goes on: so that they can say, too,
    when it is complete."""
    latest = node.store.row("task_status", (task_id,))
    open_ = CheckpointStatus.IN_PROGRESS
    return "" if latest and latest[0] == open_ else str(open_)


def defer(node: Node, task_id: str, until: str = "", reason: str = "") -> dict[str, Any]:
    """Put the work off, until some time or until somebody says so."""
    try:
        words = {"until": zoned(until) if until else "", "reason": reason}
    except ValueError as error:
        raise InvalidInputError(str(error), "For example: --until 2030-01-31T09:00Z") from None
    return change(node, task_id, status=str(CheckpointStatus.WAITING), deferred=words)


def _said(name: str, text: str) -> None:
    if not text.strip():
        raise InvalidInputError(f"--{name} is empty", f"Say it in words: --{name} TEXT")


def _blocker(node: Node, task_id: str) -> str:
    """What the task waited for, as far as somebody said so."""
    known = _waits_for(_described(node, _row(node, task_id)))
    reasons = (known[name]["reason"] for name in ("escalation", "deferred") if name in known)
    return next(filter(None, reasons), "")


def everything(node: Node) -> list[dict[str, Any]]:
    left = agents.to_reassign(node)
    return [show(node, task_id, left=left) for (task_id,) in node.store.rows("task_ids")]


def _cost(budget: int | None, spent: list[tuple[Any, ...]]) -> dict[str, Any]:
    tokens = sum(agent[3] for agent in spent)
    return {
        "tokens": tokens,
        "checkpoints": sum(agent[2] for agent in spent),
        "budget_used": round(tokens / budget, 4) if budget else None,
        "agents": [
            {"agent_id": a[0], "agent_type": a[1], "checkpoints": a[2], "tokens": a[3],
             "iterations": a[4]}
            for a in spent
        ],
    }  # fmt: skip


def _row(node: Node, task_id: str) -> tuple[Any, ...]:
    row = node.store.row("task", (task_id,))
    if row is None:
        raise TaskNotFoundError(f"there is no task {task_id!r}")
    if type(row[0]) is not str:
        raise ViewDamagedError(f"the id of a task is no text: {task_id!r}")
    return row


def _described(node: Node, row: tuple[Any, ...]) -> dict[str, Any]:
    """Title and description, verified; empty for a task known only from its checkpoints."""
    if not row[4]:
        return {}
    entry = node.store.read(row[_TASK_COLUMNS:])
    problem = "its entry is missing from the log" if entry.seq is None else flaw(entry)
    if problem:
        raise node.store.damaged(f"task {row[0]}", entry.entry_id or row[4], problem)
    document: dict[str, Any] = orjson.loads(node.store.vault.readable(entry).body)
    return document


def _readable(node: Node, row: tuple[Any, ...]) -> dict[str, Any]:
    """The same, but that damaged words must not keep anybody from calling for help."""
    try:
        return _described(node, row)
    except CheckpointCorruptionError:
        return {"budget": row[2], "retention": row[3]}


def _write(
    node: Node,
    task_id: str,
    op: str,
    before: dict[str, Any],
    values: dict[str, Any],
    base: str = "",
) -> None:
    given = {name: value for name, value in values.items() if value is not None}
    document = {"title": "", "description": "", "budget": None, "retention": "default",
                "status": "", **before, **given}  # fmt: skip
    _check(document)
    clean = redaction.of(node.settings).text
    for name in ("title", "description"):
        document[name] = clean(document[name], name)
    for part in _SPOKEN:
        said = document.pop(part, None)
        if said:
            document[part] = {name: clean(text, f"{part}.{name}") for name, text in said.items()}
    meta = {
        "task_id": task_id,
        "status": document["status"],
        "budget": document["budget"],
        "retention": document["retention"],
    }
    bases = (base,) if base else ()
    draft = Draft(uuid7(), TASK, task_id, op, user(), meta, canonical(document), bases)
    node.store.append(draft, node.store.place(task_id))


def _check(document: dict[str, Any]) -> None:
    if document["status"] and document["status"] not in set(CheckpointStatus):
        allowed = ", ".join(CheckpointStatus)
        raise InvalidInputError(f"status {document['status']!r} is none of: {allowed}")
    if document["budget"] is not None and document["budget"] < 0:
        raise InvalidInputError("the budget is a number of tokens, zero or more")
    if not _RETENTION.fullmatch(document["retention"]):
        raise InvalidInputError(
            f"retention {document['retention']!r} is not known",
            "Use default, forever, legal_hold, days:N or revisions:N.",
        )
