"""Tasks: what a chain of checkpoints works towards. Known by name or met in a checkpoint."""

from __future__ import annotations

import re
from typing import Any

import orjson

from syncd import agents, redaction
from syncd.canonical import canonical
from syncd.entry import CREATE, TASK, UPDATE, Draft, uuid7
from syncd.errors import CheckpointExistsError, InvalidInputError, TaskNotFoundError
from syncd.node import Node, user
from syncd.seal import flaw
from syncd.store import VIEW_COLUMNS
from syncd.views import CheckpointRow
from syncd.vocabulary import CheckpointStatus, checked_id

_TASK_COLUMNS = 7
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
    with node.store.transaction():
        row = _row(node, task_id)
        _write(node, task_id, UPDATE if row[4] else CREATE, _described(node, row), values, row[4])
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
        "heads": [head for (head,) in node.store.rows("task_heads", (task_id,))],
        "reassign": task_id in (agents.to_reassign(node, task_id) if left is None else left),
        "cost": _cost(row[2], spent),
    }


def heads(node: Node, task_id: str) -> list[dict[str, Any]]:
    """The checkpoints that no other one follows, newest first; by their headers, so that a damaged
    one is listed too."""
    _row(node, task_id)
    rows = (
        node.store.row("checkpoint", head) for head in node.store.rows("task_heads", (task_id,))
    )
    found = [CheckpointRow(*row[:VIEW_COLUMNS]) for row in rows if row]
    return [
        {"checkpoint_id": row.id, "agent_id": row.agent_id, "agent_type": row.agent_type,
         "iteration": row.iteration, "phase": row.phase, "status": row.status,
         "parent": row.parent_id, "device_id": row.device_id, "created_at": row.created_at}
        for row in found
    ]  # fmt: skip


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
    for name in ("title", "description"):
        document[name] = redaction.of(node.settings).text(document[name], name)
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
