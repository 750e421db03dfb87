"""A task's chain of checkpoints in the terminal: newest first, branches beside each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from syncd.cli import render
from syncd.errors import PurgedError, SyncdError
from syncd.lineage import Row, knots, laid_out
from syncd.node import Node

# So many are looked at, and so many lines are drawn, however long the chain is.
_LOOKED_AT = 2_000
_LINES = 48
# Of a long chain: its newest, its oldest, and all where something branches off or ends.
_NEWEST, _OLDEST, _WORTH = 8, 2, 3
_MOST_LANES = 10


class Signs(NamedTuple):
    knot: str
    head: str
    damaged: str
    line: str
    left: str
    across: str
    crossing: str
    joint: str
    corner: str
    gap: str
    cut: str


_DRAWN = Signs("●", "◉", "✗", "│", "├", "─", "┼", "┴", "╯", "┆", "…")
_TYPED = Signs("*", "O", "x", "|", "|", "-", "+", "+", "'", ":", "...")


def drawn(node: Node, task_id: str, total: int) -> list[str]:
    """The lines, nothing for a task without checkpoints."""
    rows = laid_out(knots(node, task_id, _LOOKED_AT))
    signs = _DRAWN if (sys.stdout.encoding or "").lower().startswith("utf") else _TYPED
    lines = list(_lines(node, rows, signs))
    if total > len(rows):
        lines.append(f"{signs.gap} {total - len(rows):,} older ones (syncd checkpoint history)")
    return lines


def _lines(node: Node, rows: Sequence[Row], signs: Signs) -> Iterator[str]:
    kept = _kept(rows)
    shown = [row for row, keep in zip(rows, kept, strict=True) if keep]
    short = dict(zip((row.knot.id for row in shown), _ids(shown), strict=True))
    left_out: list[Row] = []
    for row, keep in zip(rows, kept, strict=True):
        if not keep:
            left_out.append(row)
            continue
        if left_out:
            yield _gap(left_out, signs)
            left_out = []
        if row.joining:
            yield _joint(row, signs)
        yield _line(node, row, short[row.knot.id], signs)
    if left_out:
        yield _gap(left_out, signs)


# --- what is left out ---------------------------------------------------------------------------


def _kept(rows: Sequence[Row]) -> list[bool]:
    """Few are drawn all; of many, those that say something about the shape."""
    count = len(rows)
    if count <= 2 * _NEWEST:
        return [True] * count
    forks = {row.knot.id for row in rows if row.children > 1}
    kept = [
        number < _NEWEST or number >= count - _OLDEST or row.head or row.knot.id in forks
        or row.knot.parent_id in forks
        for number, row in enumerate(rows)
    ]  # fmt: skip
    return _within(_without_small_gaps(kept))


def _without_small_gaps(kept: list[bool]) -> list[bool]:
    """A line that says how many are left out is not worth it for one or two."""
    filled, begin = list(kept), 0
    for number in range(len(kept) + 1):
        if number == len(kept) or kept[number]:
            if number - begin < _WORTH:
                filled[begin:number] = [True] * (number - begin)
            begin = number + 1
    return filled


def _within(kept: list[bool]) -> list[bool]:
    """With very many branches only the newest part, and the oldest."""
    places = [number for number, keep in enumerate(kept) if keep]
    if len(places) <= _LINES:
        return kept
    chosen = {*places[: _LINES - _OLDEST], *places[-_OLDEST:]}
    return [number in chosen for number in range(len(kept))]


# --- lines --------------------------------------------------------------------------------------


def _line(node: Node, row: Row, short: str, signs: Signs) -> str:
    knot, problem = row.knot, _problem(node, row.knot.id)
    mark = signs.damaged if problem == "damaged" else signs.head if row.head else signs.knot
    lanes = [column for column in row.above if column not in row.joining]
    graph = _cells({**dict.fromkeys(lanes, signs.line), row.column: mark})
    words = [knot.phase, knot.status, *(["final"] if knot.final else []), problem,
             *([f"{row.children} branches"] if row.children > 1 else [])]  # fmt: skip
    [[at]] = render.brief([[knot.created_at]]) if render.width(sys.stdout) else [[knot.created_at]]
    text = f"{short}  {at}  {render.clean(knot.agent_id)}  {', '.join(filter(None, words))}"
    return _painted(_fitted(f"{graph} {text}", signs), row, mark, problem)


def _painted(line: str, row: Row, mark: str, problem: str) -> str:
    colour = "red" if problem else "green" if row.head else None
    return line.replace(mark, click.style(mark, fg=colour, bold=row.head), 1) if colour else line


def _problem(node: Node, checkpoint_id: str) -> str:
    """What has become of it, if it cannot be read."""
    found = node.store.row("checkpoint", (checkpoint_id,))
    try:
        if found:
            node.store.verified(found)
    except PurgedError:
        return "erased"
    except SyncdError as error:
        return "sealed" if error.code == "key_missing" else "damaged"
    return ""


def _gap(left_out: Sequence[Row], signs: Signs) -> str:
    graph = _cells(dict.fromkeys(left_out[-1].below or (0,), signs.gap))
    agents = list(dict.fromkeys(render.clean(row.knot.agent_id) for row in left_out))
    named = ", ".join(agents[:3]) + (f" and {len(agents) - 3} more" if len(agents) > 3 else "")
    return _fitted(f"{graph} {len(left_out):,} checkpoints by {named}", signs)


def _joint(row: Row, signs: Signs) -> str:
    """Branches that meet at the checkpoint they began from."""
    cells: dict[int, str] = {}
    last = max(row.joining)
    for column in range(min(last, _MOST_LANES) + 1):
        if column < row.column:
            cells[column] = signs.line if column in row.above else " "
        elif column == row.column:
            cells[column] = signs.left
        elif column in row.joining:
            cells[column] = signs.corner if column == last else signs.joint
        else:
            cells[column] = signs.crossing if column in row.above else signs.across
    beyond = {column: signs.line for column in row.above if column > last}
    return _cells({**cells, **beyond}, row.column, last, signs.across)


def _cells(cells: dict[int, str], begin: int = -1, end: int = -1, filler: str = " ") -> str:
    """Two characters for each column; between `begin` and `end` the second one is a line."""
    near = {min(column, _MOST_LANES): sign for column, sign in cells.items()}
    text = "".join(
        near.get(column, " ") + (filler if begin <= column < min(end, _MOST_LANES) else " ")
        for column in range(max(near) + 1)
    )
    return text.rstrip()


def _fitted(line: str, signs: Signs) -> str:
    """On a terminal, one line; in a pipe, all of it."""
    room = render.width(sys.stdout)
    return line if room is None or len(line) <= room else line[: room - len(signs.cut)] + signs.cut


def _ids(rows: Sequence[Row]) -> list[str]:
    full = [[row.knot.id] for row in rows]
    return [cell for (cell,) in (render.brief(full) if render.width(sys.stdout) else full)]
