"""What the pages show, read in pieces of limited size, so that a page is as quick over a million
entries as over ten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from syncd import conflicts, lineage, tasks, threads
from syncd.compare import changes
from syncd.errors import (
    CheckpointNotFoundError,
    KeyMissingError,
    PurgedError,
    SyncdError,
    TaskNotFoundError,
)
from syncd.lineage import Knot, Row
from syncd.ui import wording
from syncd.ui.desk import Desk

PAGE = 40
# So many checkpoints of a task are looked at to draw its chain and to tell who did what. Up to so
# many, everything about a task is exact.
LOOKED_AT = 2_000
# What differs between any two checkpoints and says nothing about the work.
_NOISE = (
    "metadata.checkpoint_id", "metadata.timestamp", "compliance.event_log_ref",
    "compliance.hash", "compliance.signature", "recovery.continuation_prompt",
    "recovery.last_successful_state", "recorded_parent", "revision", "verified",
)  # fmt: skip


class Pager(NamedTuple):
    """Where in a long list a page is."""

    number: int
    more: bool
    total: int | None = None
    size: int = PAGE

    @property
    def pages(self) -> int | None:
        return None if self.total is None else max(1, -(-self.total // self.size))


def page_of(rows: Sequence[Any], number: int, size: int = PAGE) -> tuple[Sequence[Any], Pager]:
    """A piece of a list that is here as a whole."""
    first = (number - 1) * size
    return rows[first : first + size], Pager(number, len(rows) > first + size, len(rows), size)


# --- tasks --------------------------------------------------------------------------------------


class TaskLine(NamedTuple):
    id: str
    revision: str
    status: str
    phase: str
    agent_id: str
    at: str
    budget: int | None
    forks: int
    thread_at: str
    title: str = ""


def task_lines(desk: Desk, text: str = "", status: str = "") -> list[TaskLine]:
    """All tasks that are meant, the one that was worked on last first; titles only where they were
    needed to find them. `thread_at`: of a graph's thread, when its last state was put."""
    forks = dict(desk.store.rows("forked_tasks"))
    found = []
    for row in desk.store.rows("tasks_by_activity"):
        task_id, said, budget, revision, _, _, agent, phase, latest, at, thread_at = row
        state = said or latest or "in_progress"
        line = TaskLine(task_id, revision, state, phase, agent, at, budget, forks.get(task_id, 0),
                        thread_at)  # fmt: skip
        if status in ("", state) and _mentions(desk, line, text.casefold()):
            found.append(line)
    return found


def _mentions(desk: Desk, line: TaskLine, wanted: str) -> bool:
    if not wanted or wanted in line.id.casefold() or wanted in line.agent_id.casefold():
        return True
    return wanted in desk.title(line.id, line.revision).casefold()


def titled(desk: Desk, lines: Iterable[TaskLine]) -> list[TaskLine]:
    return [line._replace(title=desk.title(line.id, line.revision)) for line in lines]


class Task(NamedTuple):
    """A task as its page shows it. `problem`: why its own words cannot be read; `thread_at`: of a
    graph's thread, when its last state was put."""

    id: str
    words: dict[str, Any]
    problem: str
    status: str
    budget: int | None
    retention: str
    created_at: str
    checkpoints: int
    exact: bool
    heads: list[dict[str, Any]]
    thread_at: str


def task(desk: Desk, task_id: str) -> Task:
    store = desk.store
    row = store.row("task", (task_id,))
    if row is None:
        raise TaskNotFoundError(f"there is no task {task_id!r}")
    words, problem = _words(desk, task_id)
    (number,) = store.row("checkpoint_count", (task_id,)) or (0,)
    latest = store.row("task_status", (task_id,))
    heads = tasks.heads(desk.node, task_id, decided=True) if number <= LOOKED_AT else []
    return Task(task_id, words, problem, row[1] or (latest[0] if latest else "in_progress"), row[2],
                row[3], row[6], number, number <= LOOKED_AT, heads,
                threads.last_at(desk.node, task_id))  # fmt: skip


def _words(desk: Desk, task_id: str) -> tuple[dict[str, Any], str]:
    """Title, description, and what it waits for."""
    try:
        said = tasks.described(desk.node, task_id)
        return {**said, **tasks.readable(desk.node, task_id)}, ""
    except SyncdError as error:
        return {}, error.message


class Step(NamedTuple):
    """A line of a task's chain: where it is drawn, and what its body says of the work."""

    row: Row
    told: str
    problem: str
    kind: str


def steps(desk: Desk, task_id: str, number: int) -> tuple[list[Step], list[Row]]:
    """A page of the chain, and all rows that were laid out for it."""
    first = (number - 1) * PAGE
    rows = _rows(desk, task_id, first)
    read = desk.store.rows("history_page", (task_id, PAGE, first))
    bodies = {row[0]: row for row in read}
    found = [_step(desk, row, bodies.get(row.knot.id)) for row in rows[:PAGE]]
    return found, rows


def _rows(desk: Desk, task_id: str, first: int) -> list[Row]:
    """Lines come from above: so the chain is laid out from its newest one on, if that is near."""
    if first + PAGE <= LOOKED_AT:
        laid = lineage.laid_out(lineage.knots(desk.node, task_id, first + PAGE))
        return laid[first:]
    return lineage.laid_out(lineage.knots(desk.node, task_id, PAGE, first))


def _step(desk: Desk, row: Row, joined: tuple[Any, ...] | None) -> Step:
    """What it says, or why it cannot be read."""
    if joined is None:  # written this moment
        return Step(row, "", "", "")
    try:
        document = desk.store.verified(joined).document()
        return Step(row, _told(document["execution_state"]), "", "")
    except SyncdError as error:
        return Step(row, "", getattr(error, "problem", error.message), _kind(error))


def _kind(error: SyncdError) -> str:
    """What has become of a body that cannot be shown."""
    if isinstance(error, PurgedError):
        return "erased"
    return "sealed" if error.code == KeyMissingError.code else "damaged"


def _told(state: dict[str, Any]) -> str:
    """What was done last, else what is next."""
    if focus := state.get("current_focus"):
        return wording.item(focus)
    for name in ("completed_items", "pending_items", "blocked_items"):
        if items := state.get(name):
            return wording.item(items[-1 if name == "completed_items" else 0])
    return ""


class Stretch(NamedTuple):
    """Checkpoints of one agent that follow each other."""

    agent_id: str
    begin: str
    end: str
    checkpoints: int
    tokens: int


def stretches(knots: Sequence[Knot]) -> list[Stretch]:
    """Oldest first."""
    found: list[Stretch] = []
    for knot in reversed(knots):
        if found and found[-1].agent_id == knot.agent_id:
            last = found[-1]
            found[-1] = last._replace(end=knot.created_at, checkpoints=last.checkpoints + 1,
                                      tokens=last.tokens + knot.tokens)  # fmt: skip
        else:
            at = knot.created_at
            found.append(Stretch(knot.agent_id, at, at, 1, knot.tokens))
    return found


# --- a checkpoint -------------------------------------------------------------------------------


class Seen(NamedTuple):
    """A checkpoint as far as it can be read. Without a document, `problem` says why."""

    knot: Knot
    task_id: str
    document: dict[str, Any] | None
    problem: str
    kind: str


def checkpoint(desk: Desk, checkpoint_id: str) -> Seen:
    row = desk.store.row("checkpoint_header", (checkpoint_id,))
    if row is None:
        raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id!r}")
    knot, task_id = Knot(*row[:-1]), str(row[-1])
    try:
        document = desk.service.get_checkpoint(checkpoint_id).to_dict()
        return Seen(knot, task_id, document, "", "")
    except SyncdError as error:
        return Seen(knot, task_id, None, getattr(error, "problem", error.message), _kind(error))


class Difference(NamedTuple):
    """One field that changed; of a list, what came and what went."""

    path: str
    gone: list[str]
    come: list[str]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    return [
        Difference(change.path, *_apart(change.before, change.after))
        for change in changes(before, after)
        if not change.path.startswith(_NOISE)
    ]


def _apart(before: Any, after: Any) -> tuple[list[str], list[str]]:
    if isinstance(before, list) and isinstance(after, list):
        return ([_shown(item) for item in before if item not in after],
                [_shown(item) for item in after if item not in before])  # fmt: skip
    return tuple([] if value in (None, "", []) else [_shown(value)] for value in (before, after))  # type: ignore[return-value]


def _shown(value: Any) -> str:
    if isinstance(value, dict) and wording.item(value):
        why = wording.note(value)
        return wording.item(value) + (f" ({why})" if why else "")
    return wording.document(value)


# --- conflicts ----------------------------------------------------------------------------------


class Dispute(NamedTuple):
    """A conflict with its two sides, as far as they can be read."""

    conflict: dict[str, Any]
    task_id: str
    sides: dict[str, Any] | None
    problem: str
    rows: list[tuple[str, str, str, str]]


def dispute(desk: Desk, conflict_id: str) -> Dispute:
    found = conflicts.named(desk.node, conflict_id)
    header = desk.store.row("checkpoint_header", (found.entity_id,))
    task_id = str(header[-1]) if header else (found.entity_id if found.entity == "task" else "")
    try:
        shown = conflicts.shown(desk.node, found.id)
    except SyncdError as error:
        return Dispute(conflicts.document(found), task_id, None, error.message, [])
    rows = [
        (change["path"], *(wording.document(value) if value is not None else "" for value in (
            _at(shown["base"], change["path"]), change["before"], change["after"])))
        for change in shown["differences"]
        if not change["path"].startswith(_NOISE)
    ]  # fmt: skip
    return Dispute(conflicts.document(found), task_id, shown, "", rows)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document
