"""What there is of graphs' threads, told by the headers of their states: how many, and when."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from syncd.errors import CheckpointNotFoundError
from syncd.graphs import quoted
from syncd.node import Node


def counted(node: Node, thread: str) -> dict[str, Any]:
    """How many states a thread has, and when the last one was put; by their headers."""
    name = quoted(thread)
    count, last = node.store.row("graph_count", (f"{name}/", f"{name}0", name)) or (0, "")
    return {"count": count, "last_at": last}


def counted_all(node: Node) -> dict[str, tuple[int, str]]:
    """The same of every thread."""
    rows = node.store.rows("graph_counts")
    return {unquote(name): (count, last) for name, count, last in rows}


def last_at(node: Node, thread: str) -> str:
    """When the graph itself put its last state, however many there are; empty for any other task,
    and for a thread that was deleted."""
    row = node.store.row("graph_last", (quoted(thread),))
    return str(row[0]) if row else ""


def no_checkpoint(node: Node, task_id: str, what_for: str = "") -> CheckpointNotFoundError:
    """What to say of a task without one: the states of a graph are no checkpoints."""
    said = f"task {task_id!r} has no checkpoint{what_for}"
    found = counted(node, task_id)
    if not found["count"]:
        return CheckpointNotFoundError(said, "`syncd task list` shows the tasks that have some.")
    states = "1 state" if found["count"] == 1 else f"{found['count']:,} states"
    config = {"configurable": {"thread_id": task_id}}
    return CheckpointNotFoundError(
        f"{said}: it is a LangGraph thread with {states}, the last one of {found['last_at']}",
        "Its graph goes on from there when it is run with this thread_id. To read the last state "
        f"in Python: `SyncdSaver().get_tuple({config})`.",
    )
