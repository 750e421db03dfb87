"""All that a resume is made of, read from the store and from the repository around it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from syncd import tasks, threads
from syncd.errors import CheckpointCorruptionError
from syncd.fold import OPEN, Conflict
from syncd.node import Node
from syncd.resume import claims
from syncd.resume.chain import Line, cover, line
from syncd.resume.claims import Claim
from syncd.resume.look import look, named_files, recorded, unrecorded
from syncd.resume.newer import newer, past
from syncd.store import Record, Skipped


class Found(NamedTuple):
    """`task` is what `tasks.show` tells. `conflicts` are the ids of the open ones about it."""

    record: Record
    document: dict[str, Any]
    skipped: list[Skipped]
    task: dict[str, Any]
    line: Line
    claims: list[Claim]
    stale: list[str]
    conflicts: list[str]


class Origin(NamedTuple):
    """Where to go on from, if that was found out already: past which, and what to say about it."""

    checkpoint_id: str
    skipped: Sequence[Skipped] = ()
    notes: Sequence[str] = ()


def gathered(node: Node, task_id: str, start: Path, origin: Origin | None = None) -> Found:
    skipped = list(origin.skipped) if origin else []
    record = (
        node.store.checkpoint(origin.checkpoint_id) if origin else _intact(node, task_id, skipped)
    )
    document, parents = record.document(), line(node.store, record)
    task, about_task = _task(node, task_id)
    then, named = recorded(document), named_files(document)
    now = look(start, then, named) if then else None
    others = now.others if now else {} if then else unrecorded(start, named)
    later = newer(others, past(node.store, record, document)) if others else []
    signed = cover(node.store, record.entry)
    found = [
        *claims.record_claims(parents, signed, node.store.device_id, skipped),
        *about_task,
        *claims.code_claims(then, now, named, later),
        *claims.results_claims(document, then, now, later),
    ]
    stale, open_ones = claims.stale_files(then, now, later), _conflicts(node, task_id)
    return Found(record, document, skipped, task, parents, found, stale, open_ones)


def _intact(node: Node, task_id: str, skipped: list[Skipped]) -> Record:
    newest = node.store.current_id(task_id)
    if not newest:
        raise threads.no_checkpoint(node, task_id, " to resume from")
    record = node.store.intact_from(newest, skipped)
    if record is None:
        problems = "; ".join(f"{gone.checkpoint_id}: {gone.problem}" for gone in skipped)
        raise CheckpointCorruptionError(
            f"no intact checkpoint is left of task {task_id!r} ({problems})",
            "Restore a backup: `syncd backup list`.",
        )
    return record


def _task(node: Node, task_id: str) -> tuple[dict[str, Any], list[Claim]]:
    """A damaged description must not stand in the way of the work."""
    try:
        return tasks.show(node, task_id), []
    except CheckpointCorruptionError as error:
        return tasks.show(node, task_id, described=False), [claims.damaged_task(error.problem)]


def _conflicts(node: Node, task_id: str) -> list[str]:
    found = (Conflict(*row) for row in node.store.rows("conflicts", (OPEN,)))
    return [conflict.id for conflict in found if _about(node, conflict, task_id)]


def _about(node: Node, conflict: Conflict, task_id: str) -> bool:
    branch = node.store.row("branch_of", (conflict.entity_id,))
    return conflict.entity_id == task_id or (branch is not None and branch[0] == task_id)
