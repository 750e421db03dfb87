"""The chain of a task's checkpoints as a drawing: which column each one stands in, and which lines
lead from it to the next. Newest first, as people look at it.

What is drawn in the terminal and what is drawn in the browser follow from the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from syncd.node import Node


class Knot(NamedTuple):
    """A checkpoint as its row tells: nothing here is verified, and nothing can be damaged."""

    id: str
    parent_id: str
    agent_id: str
    agent_type: str
    phase: str
    status: str
    tokens: int
    final: int
    device_id: str
    created_at: str


class Row(NamedTuple):
    """One line of the drawing. `above` are the columns that lines come from at the top, `below`
    those in which lines leave at the bottom; a `joining` line ends here, at its parent."""

    knot: Knot
    column: int
    above: tuple[int, ...]
    below: tuple[int, ...]
    joining: tuple[int, ...]
    head: bool
    children: int


def knots(node: Node, task_id: str, limit: int, offset: int = 0) -> list[Knot]:
    return [Knot(*row) for row in node.store.rows("chain_page", (task_id, limit, offset))]


def laid_out(chain: Sequence[Knot]) -> list[Row]:
    """Each branch keeps its column until it meets its parent; a free column is used again."""
    children = Counter(knot.parent_id for knot in chain)
    lanes: list[str | None] = []
    drawn: list[Row] = []
    seen: set[str] = set()
    for knot in chain:
        waiting = [column for column, expected in enumerate(lanes) if expected == knot.id]
        above = tuple(column for column, expected in enumerate(lanes) if expected)
        column = waiting[0] if waiting else _free(lanes)
        for joined in waiting[1:]:
            lanes[joined] = None
        seen.add(knot.id)
        # One that was linked to a newer checkpoint has no line: lines go down only.
        lanes[column] = None if knot.parent_id in seen else knot.parent_id or None
        below = tuple(number for number, expected in enumerate(lanes) if expected)
        drawn.append(
            Row(knot, column, above, below, tuple(waiting[1:]), not waiting, children[knot.id])
        )
    return drawn


def _free(lanes: list[str | None]) -> int:
    for column, expected in enumerate(lanes):
        if expected is None:
            return column
    lanes.append(None)
    return len(lanes) - 1
