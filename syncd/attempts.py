"""How often a task was recovered, and when that is enough for a while.

Derived from the log alone: a new checkpoint, or a person's decision, ends the pause by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import orjson

from syncd import clock, facts, tasks
from syncd.breaker import CLOSED, OPEN, Breaker
from syncd.entry import RECOVERY
from syncd.errors import RecoveryPausedError
from syncd.node import Node, user

RESTART = "restart"
# Who asks people to decide, where nobody did.
SELF, LOOP = "syncd recover", "syncd loop"
MINUTE_MS = 60_000
_TO_DECIDE = "why its agents end before they write a checkpoint, and whether to go on"


def circuit(node: Node, task_id: str, now_ms: int) -> Breaker:
    """Whether a task may be recovered once more: a new checkpoint closes it, and so does a
    person's decision."""
    settings = node.settings
    pause = settings["recovery.pause_minutes"] * MINUTE_MS
    tried = _since_news(node, task_id)
    return paused(tried, settings["recovery.attempts"], pause, now_ms)


def paused(tried: Sequence[int], limit: int, pause: float, now: float) -> Breaker:
    """Open once so many attempts in a row came to nothing, for some time after the last one."""
    if len(tried) < limit:
        return Breaker(CLOSED, len(tried))
    return Breaker(OPEN, len(tried), tried[-1] + pause).asked(now)


def _since_news(node: Node, task_id: str) -> list[int]:
    """When recovery was tried since something new was known of the task. What a restart writes
    itself is nothing new."""
    tried = facts.concerning(node, RECOVERY, task_id)
    fresh = [fact.meta["checkpoint"] for fact in tried if fact.meta.get("mode") == RESTART]
    row = node.store.row("newest_but", (task_id, orjson.dumps(fresh).decode()))
    news = max(row[0] if row and row[0] else 0, _decided(node, task_id))
    return sorted(clock.milliseconds(fact.hlc) for fact in tried if fact.hlc > news)


def _decided(node: Node, task_id: str) -> int:
    """When somebody resolved what the task waited for, as a reading of the clock."""
    shown = tasks.readable(node, task_id)
    try:
        return clock.reading_at(datetime.fromisoformat(shown["resolution"]["at"]))
    except (KeyError, TypeError, ValueError):
        return 0


def check(node: Node, task_id: str) -> None:
    """Raises during the pause, after asking a person to look."""
    found = circuit(node, task_id, clock.wall_ms())
    if not found.blocks:
        return
    until = clock.iso(int(found.retry_at))
    times = f"{found.failures} recoveries in a row brought no new checkpoint"
    if tasks.readable(node, task_id).get("escalation", {}).get("by") != SELF:
        tasks.escalate(node, task_id, user(), times, _TO_DECIDE, by=SELF)
    raise RecoveryPausedError(
        f"{times} of {task_id!r}: the next attempt is allowed from {until} on",
        f"See why agents end early, then say so: `syncd task resolve {task_id} --resolution …`; "
        "a new checkpoint ends the pause too.",
    )
