"""How long bodies are kept: what a task's retention lets go, what a user has erased, and the
cleaning of every file here that still holds it.

What is purged keeps its header, hash and chain. Where there is a replica, a purge counts once that
has accepted it, because it knows the legal holds.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from syncd import backup, clock, redaction
from syncd.canonical import canonical
from syncd.database import patiently, unforked
from syncd.entry import CREATE, PURGE, Draft, Entry, uuid7
from syncd.errors import CheckpointNotFoundError, LegalHoldError
from syncd.node import Node, user
from syncd.purges import (
    ERASE,
    RETENTION,
    cleaned,
    holds,
    overwritten,
    purge_in,
    recalled,
    take_effect,
    to_overwrite,
    uncleaned,
)
from syncd.refusals import translated

LEGAL_HOLD = "legal_hold"
APPLIED, WAITING = "applied", "waiting"
# So many ids fit into a header, with room to spare.
_NAMED = 300
_DAY_MS = 86_400_000
# Another machine's syncd may have let longer numbers pass: nothing is that old.
_DIGITS = 9
# With more of it unused than this, the database is written anew and becomes smaller.
_UNUSED = 0.25


class Version(NamedTuple):
    """A version that has a body, as the query `versions_kept` gives it."""

    entry_id: str
    checkpoint_id: str
    hlc: int
    bytes: int
    at_replica: int
    current: int


class Doomed(NamedTuple):
    """A version that goes."""

    task_id: str
    policy: str
    checkpoint_id: str
    entry_id: str
    bytes: int


# --- what goes ----------------------------------------------------------------------------------


def plan(node: Node) -> list[Doomed]:
    """What the tasks' retention lets go now, and no purge names yet."""
    store = node.store
    disputed = {name for (name,) in store.rows("disputed")}
    named = {name for purge in _unanswered(node) for name in purge_in(purge).names}
    found = []
    for task_id, policy in store.rows("limited_tasks"):
        newest = store.current_id(task_id)
        versions = [Version(*row) for row in store.rows("versions_kept", (task_id,))]
        found += [
            Doomed(task_id, policy, version.checkpoint_id, version.entry_id, version.bytes)
            for version in _expired(node, versions, policy)
            if not (version.current and version.checkpoint_id == newest)
            and not {version.checkpoint_id, version.entry_id} & disputed
            and (version.at_replica or not _has_replica(node))
            and version.entry_id not in named
        ]
    return found


def _expired(node: Node, versions: list[Version], policy: str) -> Iterator[Version]:
    """`days:N`: versions older than that. `revisions:N`: of each checkpoint, those that have a
    body, beyond the N newest; the current one stays."""
    kind, _, number = policy.partition(":")
    if len(number) > _DIGITS:
        return
    if kind == "days":
        limit = max(_now_ms(node) - int(number) * _DAY_MS, 0) << clock.COUNTER_BITS
        yield from (version for version in versions if version.hlc < limit)
        return
    ordered = sorted(versions, key=lambda v: (v.checkpoint_id, -v.hlc, v.entry_id))
    for _, group in groupby(ordered, key=lambda v: v.checkpoint_id):
        beyond = list(group)[int(number) :]
        yield from (version for version in beyond if not version.current)


def _now_ms(node: Node) -> int:
    """A clock that runs ahead must not make everything old."""
    row = node.store.row("state", ("skew_ms",))
    return clock.wall_ms() - max(int(row[0]) if row else 0, 0)


def _has_replica(node: Node) -> bool:
    row = node.store.row("state", ("organization",))
    return bool(row and row[0])


def _unanswered(node: Node) -> list[Entry]:
    """Purges that the replica has not accepted or refused, and that have something to take away."""
    rows = node.store.rows("purges_waiting")
    with node.store.locked():
        connection = node.store.connection
        return [entry for entry in (Entry(*row) for row in rows) if holds(connection, entry)]


# --- saying so ----------------------------------------------------------------------------------


def run(node: Node, *, dry_run: bool = False) -> dict[str, Any]:
    """Let go what the tasks' retention lets go; a dry run only tells what that is."""
    if dry_run:
        return _report(node, plan(node), dry_run=True)
    with node.store.transaction():
        doomed = plan(node)
        for (task_id, policy), group in groupby(doomed, key=lambda d: (d.task_id, d.policy)):
            _write(node, task_id, [d.entry_id for d in group], RETENTION, policy, "")
    left = complete(node)
    return {**_report(node, doomed, dry_run=False), "not_cleaned": [str(path) for path in left]}


def _report(node: Node, doomed: list[Doomed], *, dry_run: bool) -> dict[str, Any]:
    if dry_run:
        state = WAITING if _has_replica(node) and doomed else APPLIED
    else:
        state = WAITING if _has_replica(node) and _unanswered(node) else APPLIED
    by_task = groupby(doomed, key=lambda d: (d.task_id, d.policy))
    return {
        "dry_run": dry_run,
        "purged": len(doomed),
        "bytes": sum(d.bytes for d in doomed),
        "tasks": [_task(task_id, policy, list(group)) for (task_id, policy), group in by_task],
        "state": state,
    }


def _task(task_id: str, policy: str, doomed: list[Doomed]) -> dict[str, Any]:
    ordered = sorted(doomed, key=lambda d: d.checkpoint_id)
    checkpoints = [(name, list(g)) for name, g in groupby(ordered, key=lambda d: d.checkpoint_id)]
    return {
        "id": task_id,
        "retention": policy,
        "versions": len(doomed),
        "bytes": sum(d.bytes for d in doomed),
        "checkpoints": [
            {"id": name, "versions": [d.entry_id for d in group],
             "bytes": sum(d.bytes for d in group)}
            for name, group in checkpoints
        ],
    }  # fmt: skip


def erase(node: Node, checkpoint_id: str, reason: str = "") -> dict[str, Any]:
    """Take away the bodies of all versions of a checkpoint, everywhere."""
    reason = redaction.of(node.settings).text(reason, "reason")
    with node.store.transaction():
        if node.store.row("checkpoint", (checkpoint_id,)) is None:
            raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id!r}")
        asked = [purge for purge in map(purge_in, _unanswered(node)) if purge.kind == ERASE]
        named = {name for purge in asked for name in purge.names}
        rows = node.store.rows("bodies_of", (checkpoint_id,))
        rows = sorted((row for row in rows if row[0] not in named), key=lambda row: str(row[1]))
        for task_id, group in groupby(rows, key=lambda row: str(row[1])):
            _refuse_if_held(node, task_id)
            _write(node, task_id, [row[0] for row in group], ERASE, "", reason)
    left = complete(node)
    waiting = _has_replica(node) and node.store.rows("bodies_of", (checkpoint_id,))
    return {
        "id": checkpoint_id,
        "purged": len(rows),
        "bytes": sum(row[2] for row in rows),
        "state": WAITING if waiting else APPLIED,
        "not_cleaned": [str(path) for path in left],
    }


def _refuse_if_held(node: Node, task_id: str) -> None:
    row = node.store.row("task", (task_id,))
    if row and row[3] == LEGAL_HOLD:
        raise LegalHoldError(f"task {task_id!r} is on legal hold: nothing of it may be erased")


def _write(node: Node, task_id: str, names: list[str], kind: str, policy: str, reason: str) -> None:
    body = canonical({"reason": reason, "asked_by": user(), "policy": policy})
    entries = []
    for start in range(0, len(names), _NAMED):
        meta = {"task_id": task_id, "kind": kind, "entries": names[start : start + _NAMED]}
        # An id of its own: purges are no versions of each other.
        draft = Draft(uuid7(), PURGE, f"purge:{uuid7()}", CREATE, user(), meta, body)
        entries.append(node.store.append(draft, node.store.place(task_id)))
    if not _has_replica(node):
        take_effect(node.store.connection, [purge_in(entry) for entry in entries])


# --- cleaning -----------------------------------------------------------------------------------


def complete(node: Node) -> list[Path]:
    """Remove what was purged from the files of this home, the backups included; the files that it
    could not be removed from. Costs one look where there is nothing to do, and may be repeated."""
    with node.store.locked():
        ids = uncleaned(node.store.connection)
    if not ids:
        return []
    entries = [entry for purge_id in ids if (entry := _purge(node, purge_id))]
    left = [] if rewritten(node) else [node.database]
    left += backup.purge(node.home / "backups", entries)
    if not left:
        with node.store.transaction():
            cleaned(node.store.connection, ids)
    return left


def _purge(node: Node, purge_id: str) -> Entry | None:
    """As it is stored: what is sealed here is sealed in the backups too."""
    if row := node.store.row("entry", (purge_id,)):
        return Entry(*row)
    evidence = node.store.row("purge_evidence", (purge_id,))
    return recalled(evidence[0]) if evidence else None


def rewritten(node: Node, *, anew: bool = False) -> bool:
    """Cut the write-ahead log, where bodies may still be. If something was erased, or much is
    unused, or it is asked for, the database is written anew first: copies may lie in its unused
    parts. False if somebody is reading what is to go."""
    uri = f"{node.database.resolve().as_uri()}?mode=rw"
    seconds = node.settings["store.busy_seconds"]
    with node.store.locked():
        erased = to_overwrite(node.store.connection)
    try:
        with (
            unforked,
            closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)) as connection,
        ):
            unused, pages, _ = connection.execute(node.store.sql["pages"]).fetchone()
            if anew or erased or unused > _UNUSED * pages:
                patiently(lambda: connection.execute("VACUUM"), seconds)
                with node.store.transaction():
                    overwritten(node.store.connection, erased)
            return _log_cut(connection, node.store.sql["merge_log"], seconds)
    except sqlite3.Error as error:
        raise translated(error) from error


def _log_cut(connection: sqlite3.Connection, merge_log: str, seconds: float) -> bool:
    """Among writers there is a moment for it, but SQLite does not wait for one."""
    deadline = time.monotonic() + seconds
    while connection.execute(merge_log).fetchone()[0]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def waiting(node: Node) -> int:
    """How many purges the replica has not answered."""
    return len(_unanswered(node)) if _has_replica(node) else 0
