"""What a home needs now and then. Each of these looks first whether there is anything to do, says
what it did, and costs next to nothing if it did nothing."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from syncd import backup, disk, liveness, retention, sealing
from syncd.daemon import desktop
from syncd.hooks import leftovers
from syncd.liveness import LOST
from syncd.node import Node
from syncd.presence import CRASHED
from syncd.seal import flaw

_WAL_BYTES = 4_000_000
_SAMPLE = 200
# Rewriting the file is worth it if that gives back much of it.
_FREE_SHARE, _FREE_BYTES = 0.25, 16_000_000
_QUIET_SECONDS = 60
Done = dict[str, Any]


def back_up(node: Node) -> Done:
    """A copy a day, if something was written since the last."""
    newest = next(iter(backup.available(node.home / "backups")), None)
    if newest and not _older(newest, node):
        return {}
    if problem := disk.problem(node):
        return {"not done": problem}
    made = node.back_up()
    return {"backup": made.name, "intact": made.intact}


def _older(newest: backup.Backup, node: Node) -> bool:
    made = datetime.fromisoformat(newest.created_at)
    due = made + timedelta(hours=node.settings["backup.hours"]) < datetime.now(UTC)
    return due and _written(node) > made.timestamp()


def _written(node: Node) -> float:
    """When the database was last written."""
    files = (file for file in node.home.glob("context.db*") if file.suffix != ".db-shm")
    return max(file.stat().st_mtime for file in files)


def merge_log(node: Node) -> Done:
    """Bring the write-ahead log into the database once it is long, so that it stays short."""
    wal = node.database.with_name("context.db-wal")
    before = wal.stat().st_size if wal.exists() else 0
    if before < _WAL_BYTES:
        return {}
    busy, *_ = node.store.row("merge_log") or (1,)
    return {"not done": "somebody is reading"} if busy else {"merged_bytes": before}


def compact(node: Node) -> Done:
    """Give space back after a lot was deleted, while nobody writes: he would wait for seconds."""
    free, pages, size = node.store.row("pages") or (0, 1, 0)
    if free * size < _FREE_BYTES or free / max(pages, 1) < _FREE_SHARE or disk.problem(node):
        return {}
    if time.time() - _written(node) < _QUIET_SECONDS:
        return {"not done": "somebody is writing"}
    with node.store.locked():
        node.store.execute("VACUUM")
    return {"freed_bytes": free * size}


def let_go(node: Node) -> Done:
    """What the tasks' retention says; each purge is an entry that the replica must accept."""
    done = retention.run(node)
    return {name: done[name] for name in ("purged", "bytes", "state")} if done["purged"] else {}


def clean(node: Node) -> Done:
    """Purges that have taken effect, here or elsewhere, reach this home's backups too."""
    left = retention.complete(node)
    return {"not done": ", ".join(map(str, left))} if left else {}


def seal(node: Node) -> Done:
    """What a program that ran on has written plain after encryption was turned on."""
    done = sealing.complete(node)
    return done if done["sealed"] or done["not_cleaned"] else {}


def stale_agents(node: Node) -> Done:
    """Who has fallen silent while his task is not done, or was heard again."""
    found = liveness.scan(node)
    told = [event for event in found if event.kind in (CRASHED, LOST)]
    if told:
        more = f" And {len(told) - 1} more: syncd status" if told[1:] else ""
        desktop.notify("syncd", told[0].words + more)
    return {
        kind: [f"{event.agent} ({event.task_id})" for event in found if event.kind == kind]
        for kind in sorted({event.kind for event in found})
    }


def sessions(node: Node) -> Done:
    """What hooks have noted of sessions that ended without a word."""
    silent = 60 * node.settings["liveness.heartbeat_minutes"]
    saved = leftovers.of_all(node, silent)
    return {"checkpoints": saved} if saved else {}


def sample(node: Node) -> Done:
    """Look at some entries, chosen at random: damage shows long before anybody reads them."""
    newest = node.store.row("newest")
    last = newest[0] if newest else 0
    found = []
    for seq in random.sample(range(1, last + 1), min(_SAMPLE, last)):
        row = node.store.row("entry_at", (seq,))
        if row and (problem := flaw(node.store.read(row))):
            found.append((row[1], problem))
    if found:
        node.store.record_problems(found)
    return {"damaged": len(found)} if found else {}
