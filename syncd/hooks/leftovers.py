"""Sessions that ended without a word: what their journals hold goes into checkpoints, and those
that are old go away. The next session at the same task sees to it, and the daemon, so that other
machines hear of it too."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syncd.hooks import journal as journals
from syncd.hooks.journal import Journal, Seal
from syncd.hooks.session import folded, unsaved
from syncd.node import Node

_LOOKED_AT = 100


def of_task(node: Node, task: str, own: Journal, seal: Seal | None) -> None:
    for journal in journals.everything(node.home, seal)[:_LOOKED_AT]:
        if journal.file != own.file:
            lines = journal.lines()
            _settle(node, journal, lines, wanted=folded(lines).task == task)


def of_all(node: Node, silent_seconds: float) -> int:
    """Those that have been silent for so long; how many checkpoints came of them."""
    now, count = time.time(), 0
    for journal in journals.everything(node.home, journals.seal_of(node)):
        silent = now - journal.touched() > silent_seconds
        count += bool(silent and _settle(node, journal, journal.lines(), wanted=True))
    return count


def _settle(node: Node, journal: Journal, lines: Sequence[dict[str, Any]], *, wanted: bool) -> bool:
    old = time.time() - journal.touched() > journals.KEPT_SECONDS
    saved = bool(unsaved(lines) and (old or wanted) and _save(node, journal, lines))
    if old:
        journal.remove()
    return saved


def _save(node: Node, journal: Journal, lines: Sequence[dict[str, Any]]) -> str:
    from syncd import workspace
    from syncd.hooks.record import Moment, save

    session = folded(lines)
    folder = Path(session.head.get("folder", "") or "/nowhere")
    # Where another branch is checked out by now, what lies there is not what the session left.
    there = folder.is_dir() and workspace.task_of(folder) == session.task
    moment = Moment(session.task, folder if there else None, "in_progress", "periodic")
    return save(node, journal, moment)
