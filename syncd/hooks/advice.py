"""What an agent is told while it works: that its context fills up, that it fails again and again.
Each rung of the ladder once, until the context is empty again."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import Any

from syncd.hooks import transcript
from syncd.hooks.place import Place
from syncd.triggers import Advice, advice

_GAUGE_MS = 10 * 60_000
_RUNGS = ("", "handoff", "checkpoint", "insist", "stop")
SAFETY = ("checkpoint", "insist", "stop")


def context(place: Place) -> float | None:
    """In percent: from the status line if that was heard of lately, else from the transcript."""
    gauge = place.journal.gauge()
    used, at = gauge.get("context"), gauge.get("t", 0)
    if isinstance(used, int | float) and time.time() * 1000 - at < _GAUGE_MS:
        return float(used)
    return transcript.context(place.event.transcript)


def rung(place: Place, used: float | None, settings: Mapping[str, Any]) -> Advice | None:
    """The advice, if this rung is new."""
    found, before = advice(used, settings), place.journal.marks().get("rung", "")
    level = found.level if found else ""
    if level == before or used is None:
        return None
    place.journal.mark(rung=level)
    return found if found and _RUNGS.index(level) > _RUNGS.index(before) else None


def words(place: Place, found: Advice) -> str:
    from syncd.config import default_home
    from syncd.running import program

    home = () if place.home == default_home() else ("--home", str(place.home))
    command = shlex.join(
        [*program(), *home, "checkpoint", "create", "--continue", "--task", place.task,
         "--agent", place.agent, "--reason", "context_limit", "--completed", "WHAT IS DONE",
         "--pending", "WHAT IS LEFT", "--decision", "WHAT, AND WHY"]
    )  # fmt: skip
    return f"syncd: {found.text}. How to write it down:\n    {command}"
