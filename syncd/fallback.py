"""The newest checkpoint that a task can go on from. Light: whoever writes the next one asks too."""

from __future__ import annotations

from typing import NamedTuple

from syncd.store import Record, Skipped, Store

CANNOT_RESUME = "its agent said that the work cannot be resumed from it"


class Usable(NamedTuple):
    """`skipped` are those passed over on the way to it, the newest first. `broken`: no parents led
    to it, only the order in time."""

    record: Record | None
    skipped: list[Skipped]
    broken: bool = False


def usable(store: Store, task_id: str) -> Usable:
    """Along the parents, past what is damaged, gone, or was given up by its agent; where they lead
    nowhere, the newest one that is left of the task."""
    skipped: list[Skipped] = []
    if record := _along(store, store.current_id(task_id), skipped):
        return Usable(record, skipped)
    passed = {gone.checkpoint_id for gone in skipped}
    for (checkpoint_id,) in store.rows("current_ids", (task_id,)):
        if checkpoint_id not in passed:
            found: list[Skipped] = []
            record = _along(store, checkpoint_id, found)
            skipped += [gone for gone in found if gone.checkpoint_id not in passed]
            passed |= {gone.checkpoint_id for gone in found}
            if record:
                return Usable(record, skipped, broken=True)
    return Usable(None, skipped)


def _along(store: Store, here: str, skipped: list[Skipped]) -> Record | None:
    seen: set[str] = set()
    while here and here not in seen:
        record = store.intact_from(here, skipped)
        if record is None or not _given_up(record):
            return record
        seen |= {here, record.row.id}
        skipped.append(Skipped(record.row.id, record.entry.entry_id, CANNOT_RESUME))
        here = record.linked_parent or record.row.parent_id
    return None


def _given_up(record: Record) -> bool:
    recovery = record.document().get("recovery")
    return isinstance(recovery, dict) and recovery.get("can_resume") is False
