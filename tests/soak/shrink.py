"""A failing history made short: steps are left out for as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable

from soak.play import Failure, Played
from soak.schedule import Plan

Play = Callable[[Plan], Played]


def shortest(plan: Plan, failure: Failure, play: Play, seconds: float = 120.0) -> Played:
    """The shortest history found in that time that breaks the same invariant."""
    deadline = time.monotonic() + seconds
    last = failure.step if failure.step >= 0 else plan.steps[-1].number
    best = play(plan.only(frozenset(range(last + 1))))
    if not _alike(best, failure):
        best = play(plan)
    size = max(len(best.plan.steps) // 2, 1)
    while time.monotonic() < deadline:
        shorter = _without_a_part(best, failure, play, size, deadline)
        if shorter is not None:
            best = shorter
        elif size == 1:
            break
        size = max(min(size, len(best.plan.steps)) // 2, 1)
    return best


def _alike(played: Played, failure: Failure) -> bool:
    return played.failure is not None and played.failure.invariant == failure.invariant


def _without_a_part(
    best: Played, failure: Failure, play: Play, size: int, deadline: float
) -> Played | None:
    """Each part of that size left out in turn, from the end on."""
    found = None
    start = len(best.plan.steps)
    while start > 0 and time.monotonic() < deadline:
        start = max(start - size, 0)
        steps = best.plan.steps
        kept = frozenset(s.number for s in (*steps[:start], *steps[start + size :]))
        played = play(best.plan.only(kept))
        if _alike(played, failure):
            found = best = played
    return found
