"""The views: how an entry changes them, and how they follow from all versions of an entity.

A writer's own entry changes one row. What comes from elsewhere may find versions beside it, so
the whole entity is folded again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import orjson

from syncd import clock, fold, leases
from syncd.entry import (
    CHECKPOINT,
    CHOICE,
    CREATE,
    FINALIZE,
    GRAPH,
    GRAPH_BLOB,
    GRAPH_DELETE,
    GRAPH_WRITE,
    LEASE,
    LINK,
    TASK,
    Entry,
)
from syncd.sql import queries

# What they say is read from the log itself.
_WITHOUT_VIEW = frozenset((GRAPH, GRAPH_WRITE, GRAPH_BLOB, GRAPH_DELETE))
# In the device's own state: children may be earlier than their parents.
_SET_BACK = "set_back"


class CheckpointRow(NamedTuple):
    """A row of the view `checkpoints`, columns in the order of the table."""

    id: str
    task_id: str
    agent_id: str
    agent_type: str
    iteration: int
    phase: str
    status: str
    reason: str
    tokens: int
    parent_id: str
    final: int
    seq: int
    first_seq: int
    device_id: str
    task_seq: int
    hlc: int
    created_at: str


def checkpoint_columns(meta: dict[str, Any]) -> tuple[Any, ...]:
    """The part of a checkpoint's view row that its header carries, task_id aside."""
    return (
        meta["agent"], meta["agent_type"], meta["iteration"], meta["phase"], meta["status"],
        meta["reason"], meta["tokens"], meta["parent"],
    )  # fmt: skip


def task_columns(meta: dict[str, Any]) -> tuple[Any, ...]:
    return meta["status"], meta["budget"], meta["retention"]


def first_version(entry: Entry, meta: dict[str, Any]) -> tuple[Any, ...]:
    """The view row of a new checkpoint."""
    return (
        entry.entity_id, meta["task_id"], *checkpoint_columns(meta), 0, entry.seq, entry.seq,
        entry.device_id, meta["task_seq"], entry.effective_hlc, entry.at,
    )  # fmt: skip


def checkpoint_row(rows: list[fold.VersionRow], current: fold.VersionRow) -> tuple[Any, ...]:
    """The view row of a checkpoint with several versions."""
    first = fold.first(rows)
    return (
        first.entity_id, first.meta["task_id"], *checkpoint_columns(current.meta),
        current.op == FINALIZE, current.seq, first.seq, first.device_id, first.meta["task_seq"],
        first.effective_hlc, first.at,
    )  # fmt: skip


def fence_rows(task_id: str, rows: list[fold.VersionRow]) -> list[tuple[Any, ...]]:
    """Who is fenced off from a task, from all claims to it."""
    return [(task_id, *worker, since, until) for worker, since, until in leases.fences(rows)]


class Views:
    """The views of one database, changed inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._sql = queries()

    def introduce(self, meta: dict[str, Any], hlc: int, *, task: bool, agent: bool) -> None:
        """Make task and agent known where they are new."""
        if task:
            self.date(meta["task_id"], hlc)
        if agent and (name := meta.get("agent")):
            self._execute(self._sql["add_participant"], (name, meta["task_id"]))

    def project(self, entry: Entry, meta: dict[str, Any]) -> None:
        """One more entry of this device, on top of what is current."""
        execute, sql = self._execute, self._sql
        if entry.op == CREATE and entry.entity == CHECKPOINT:
            execute(sql["add_checkpoint"], first_version(entry, meta))
            return
        if entry.entity in _WITHOUT_VIEW:
            return  # whoever writes after it keeps its number
        execute(sql["count_task"], (meta["task_id"], meta["task_seq"]))
        if entry.entity == CHECKPOINT and self._alone(entry.entity_id, meta["parent"]):
            columns = (*checkpoint_columns(meta), entry.op == FINALIZE, entry.seq)
            execute(sql["change_checkpoint"], (*columns, entry.entity_id))
        else:
            self.settle(entry.entity, entry.entity_id)

    def _alone(self, checkpoint_id: str, parent: str) -> bool:
        """Whether a new version changes nothing but its own row."""
        before = self._execute(self._sql["branch_of"], (checkpoint_id,)).fetchone()
        return before is not None and before[1] == parent and not before[5]

    def count(self, task_id: str) -> None:
        """Keep this device's number in a task before its checkpoint ceases to be the newest."""
        number = self._execute(self._sql["place"], (task_id, "")).fetchone()[6]
        if number:
            self._execute(self._sql["count_task"], (task_id, number))

    def date(self, task_id: str, hlc: int) -> None:
        """A task is as old as its first entry. One entry may belong to none."""
        if task_id:
            self._execute(self._sql["add_task"], (task_id, clock.iso(clock.milliseconds(hlc))))

    def date_anew(self, task_id: str, before: int) -> None:
        """An entry has a later date than before, and may have been the task's oldest."""
        began = clock.iso(clock.milliseconds(before))
        (hlc,) = self._execute(self._sql["began"], (task_id, began)).fetchone()
        if hlc is not None:
            since = clock.iso(clock.milliseconds(hlc))
            self._execute(self._sql["date_task"], (task_id, since))

    # --- from all versions ------------------------------------------------------------------

    def settle(self, entity: str, entity_id: str, beside: Iterable[int] = ()) -> None:
        """Fold one entity again. `beside` are places in the log that no index leads to yet."""
        rows = self._versions(entity, entity_id, beside)
        if not rows:
            return
        current = fold.current(rows)
        self._execute(self._sql["drop_version_conflicts"], (entity_id, entity))
        self._note(fold.version_conflicts(rows))
        if entity == CHECKPOINT:
            self._put_checkpoint(checkpoint_row(rows, current))
        elif entity == TASK:
            values = (*task_columns(current.meta), current.entry_id, current.seq, entity_id)
            self._execute(self._sql["describe_task"], values)
        elif entity == LINK:
            ends = (current.meta["child"], current.meta["parent"])
            place = (current.effective_hlc, current.entry_id, current.seq)
            self._execute(self._sql["add_link"], (*ends, *place))
        elif entity == LEASE:
            self._execute(self._sql["drop_fences"], (entity_id,))
            for row in fence_rows(entity_id, rows):
                self._execute(self._sql["put_fence"], row)
        elif entity == CHOICE:
            branch = self._execute(self._sql["branch_of"], (entity_id,)).fetchone()
            if branch:
                self.settle_forks(branch[0], [branch[1]])

    def _put_checkpoint(self, row: tuple[Any, ...]) -> None:
        """Another version may have another parent, or come first: the branches beside which the
        checkpoint stood and stands are looked at."""
        before = self._execute(self._sql["branch_of"], (row[0],)).fetchone()
        for task_id in {row[1], before[0]} if before else {row[1]}:
            self.count(task_id)
        self._execute(self._sql["put_checkpoint"], row)
        now = self._execute(self._sql["branch_of"], (row[0],)).fetchone()
        if before is None:  # the entry that created it was refused, or is lost
            self.note_dates([(now[1], now[3])])
            self.settle_forks(now[0], [now[1]])
            return
        if before[0] != now[0]:
            self._execute(self._sql["forget_tally"])
        if now[3] > before[3]:  # there may be children from before it was dated anew
            self._distrust_dates()
        if before[:5] != now[:5]:
            self._execute(self._sql["drop_fork"], (row[0],))
            for task_id, parent in {before[:2], now[:2]}:
                self.settle_forks(task_id, [parent], left=True)

    def _versions(
        self, entity: str, entity_id: str, beside: Iterable[int]
    ) -> list[fold.VersionRow]:
        found = self._execute(self._sql["versions_of"], (entity_id, entity)).fetchall()
        for seq in beside:
            found += self._execute(self._sql["version_at"], (seq,)).fetchall()
        return fold.versions(sorted(set(found)))

    def settle_forks(self, task_id: str, parents: Iterable[str], *, left: bool = False) -> None:
        """Branches under some parents of a task, as far as the replica has them; `left` if one
        of them may have gone elsewhere."""
        wanted = {parent for parent in parents if parent}
        if not wanted:
            return
        names = orjson.dumps(list(wanted)).decode()
        count, oldest = self._execute(self._sql["oldest"], (names,)).fetchone()
        # What names an id that was made with its checkpoint is later than that checkpoint. An id
        # from outside may have been named before there was one.
        later = count == len(wanted) and not self._set_back()
        place = (task_id, oldest if later else 0, names)
        if not (left or self._execute(self._sql["several_writers"], place).fetchone()[0]):
            return
        rows = self._execute(self._sql["branches"], place).fetchall()
        for parent, group in groupby(rows, key=lambda row: row[0]):
            if parent in wanted:
                self._settle_fork(parent, [fold.Branch(*row[1:]) for row in group], left=left)

    def _set_back(self) -> bool:
        return self._execute(self._sql["state"], (_SET_BACK,)).fetchone() is not None

    def note_dates(self, dated: Iterable[tuple[str, int]]) -> None:
        """Parent and time of new checkpoints. The replica may have cut theirs short after its clock
        was set back, or have dated their parents anew after it was restored. Once some are earlier
        than their parents, time does not say where children are to be looked for."""
        pairs = orjson.dumps(list(dated)).decode()
        if self._execute(self._sql["earlier_than_parent"], (pairs,)).fetchone():
            self._distrust_dates()

    def look_at_dates(self) -> None:
        """The same for all that is there, after entries have gone: what is left names them, and
        they may come back with a later date."""
        if self._execute(self._sql["any_earlier_than_parent"]).fetchone():
            self._distrust_dates()

    def _distrust_dates(self) -> None:
        self._execute(self._sql["put_state"], (_SET_BACK, "1"))

    def firsts(self, checkpoints: Iterable[str]) -> set[int]:
        """Where the first entries of some checkpoints are."""
        names = orjson.dumps(list(checkpoints)).decode()
        return {seq for (seq,) in self._execute(self._sql["firsts"], (names,))}

    def moved(self, checkpoints: Iterable[str]) -> list[tuple[str, str]]:
        """Task and parent of those that have later versions: these may name another parent."""
        names = orjson.dumps(list(checkpoints)).decode()
        return self._execute(self._sql["moved"], (names,)).fetchall()

    def _settle_fork(self, parent: str, branches: list[fold.Branch], *, left: bool) -> None:
        if not left and len({branch.device_id for branch in branches}) < 2:
            return
        for branch in branches:
            self._execute(self._sql["drop_fork"], (branch.id,))
        found = (self._choice(branch.id) for branch in branches)
        choices = {branch.id: how for branch, how in zip(branches, found, strict=True) if how}
        self._note(fold.fork_conflicts(parent, branches, choices))

    def _choice(self, checkpoint_id: str) -> str:
        rows = self._versions(CHOICE, checkpoint_id, ())
        if not rows:
            return ""
        return str(max(rows, key=lambda r: (r.effective_hlc, r.entry_id)).meta["resolution"])

    def _note(self, conflicts: Iterable[fold.Conflict]) -> None:
        for conflict in conflicts:
            self._execute(self._sql["put_conflict"], conflict)
