"""What came of a run, and whether there should be another. Pure: a history in, a word out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

COMPLETE, HANDOFF, WENT_ON = "complete", "handoff", "went_on"
CRASHED, TIMED_OUT, RATE_LIMITED, BLOCKED = "crashed", "timed_out", "rate_limited", "blocked"
BUDGET, NO_PROGRESS, SAME_ERROR, ITERATIONS = "budget", "no_progress", "same_error", "iterations"
TAKEN = "taken"
# Words that agents' hosts end with when they were refused for a while.
_REFUSED = re.compile(
    r"rate.?limit|too many requests|\b429\b|usage limit|quota exceeded|overloaded|\b529\b", re.I
)
_RETRY_AFTER = re.compile(r"(?:retry|try again)[\s_-]*(?:after|in)\D{0,3}(\d{1,5})", re.I)
_VARYING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{7,40}\b|\d+", re.I)
_SHOWN = 300


class Limits(NamedTuple):
    """When to stop."""

    iterations: int
    idle: int = 3
    same_error: int = 5


class Found(NamedTuple):
    """What a run left behind. `mark` changes with completed items, files and commits."""

    exit_code: int
    timed_out: bool
    tail: str
    status: str
    phase: str
    reason: str
    error: str
    mark: str
    over_budget: bool


class Iteration(NamedTuple):
    outcome: str
    error: str
    mark: str
    exit_code: int = 0


def judged(found: Found) -> Iteration:
    """The word of the checkpoint counts first, then how the command ended."""
    outcome = _outcome(found)
    failed = outcome in (CRASHED, TIMED_OUT, RATE_LIMITED, BLOCKED)
    error = (found.error or last_words(found.tail)) if failed else ""
    return Iteration(outcome, error, found.mark, found.exit_code)


def _outcome(found: Found) -> str:
    if found.timed_out:
        return TIMED_OUT
    if found.status == "complete":
        return COMPLETE
    if found.reason == "rate_limit" or (found.exit_code and _REFUSED.search(found.tail[-4_000:])):
        return RATE_LIMITED
    if found.exit_code:
        return CRASHED
    if found.phase == "handoff":
        return HANDOFF
    return BLOCKED if found.status in ("blocked", "escalated", "failed") else WENT_ON


def verdict(
    history: Sequence[Iteration], limits: Limits, start: str = "", *, over_budget: bool = False
) -> str:
    """Why to stop now; nothing if there should be another run. `start` is the mark before the
    first."""
    last = history[-1]
    if last.outcome == COMPLETE:
        return COMPLETE
    if over_budget:
        return BUDGET
    if last.outcome == BLOCKED:
        return BLOCKED
    errors = [_alike(iteration.error) for iteration in history]
    if last.error and _repeated(errors, limits.same_error):
        return SAME_ERROR
    marks = [start, *(it.mark for it in history if it.outcome != RATE_LIMITED)]
    if last.outcome != RATE_LIMITED and _repeated(marks, limits.idle + 1):
        return NO_PROGRESS
    return ITERATIONS if len(history) >= limits.iterations else ""


def hopeless(stop: str, last: Iteration) -> bool:
    """Whether the runs fail, so that more of them would too until a person has seen why."""
    failed = last.outcome in (CRASHED, TIMED_OUT)
    return stop == SAME_ERROR or (stop == NO_PROGRESS and failed)


def _repeated(words: Sequence[str], times: int) -> bool:
    """Whether the last so many are the same."""
    return len(words) >= times and len(set(words[-times:])) == 1


def _alike(error: str) -> str:
    """Numbers and addresses differ from run to run where the error is the same."""
    return _VARYING.sub("#", error)


def last_words(tail: str) -> str:
    """The last line that says anything."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1][:_SHOWN] if lines else ""


def pause(tail: str, refusals: int, usual: float) -> float:
    """How long to wait after having been refused so often: as told, else longer each time."""
    if told := _RETRY_AFTER.search(tail[-4_000:]):
        return float(told[1])
    return float(usual * 2 ** min(refusals - 1, 6))
