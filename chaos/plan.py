"""Which fault comes when: all of it follows from the seed, before anything is started."""

from __future__ import annotations

import random
from typing import NamedTuple

# Faults of one line are done one after the other, those of different lines at the same time; so
# many seconds lie between two of a kind, on average.
LINES: dict[str, dict[str, float]] = {
    "agents": {"kill agent": 0.55},
    "commands": {"kill command": 1.2},
    "daemons": {"kill daemon": 4},
    "server": {"kill backend": 20, "kill postmaster": 45, "stop server": 60},
    "pooler": {"kill pooler": 20, "restart pooler": 45},
    "suspensions": {"suspend daemon": 12, "suspend agent": 8, "suspend backend": 25},
    "network": {"cut line": 9, "slow line": 15, "silence line": 15, "network down": 45},
    "disk": {"fill disk": 20},
}


class Act(NamedTuple):
    """At `at` seconds; whatever else there is to choose comes from a die with this seed."""

    at: float
    what: str
    seed: int


def timetable(seed: int, seconds: float) -> dict[str, list[Act]]:
    """For each line its acts in order; every fault comes at least once."""
    return {line: _acts(seed, seconds, kinds) for line, kinds in LINES.items()}


def _acts(seed: int, seconds: float, kinds: dict[str, float]) -> list[Act]:
    acts = []
    for what, interval in kinds.items():
        dice = random.Random(f"{seed} {what}")
        for _ in range(max(1, round(seconds / interval))):
            acts.append(Act(dice.uniform(0, seconds), what, dice.getrandbits(32)))
    return sorted(acts)
