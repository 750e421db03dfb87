"""On paper: what many more developers would take, from what one server was measured to do."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

DEVELOPERS = 100_000
PER_ORGANIZATION = 50
ENTRIES_A_DAY = 300
PEAK_HOUR = 0.2
WORKING_DAYS = 250
# Through a pooler nobody is told of news: each device looks so often.
LOOK_SECONDS = 5.0
# A server is not planned to be busy all the time.
BUSY = 0.6
SERVER_CORES = 16


class Estimate(NamedTuple):
    """At the busiest hour: entries a second, cores that they take, looks for news a second, cores
    that those take, sessions if every login keeps one, their memory; disk a year."""

    entries: float
    push_cores: float
    looks: float
    look_cores: float
    sessions: int
    sessions_gb: float
    year_tb: float

    @property
    def cores(self) -> float:
        return (self.push_cores + self.look_cores) / BUSY

    @property
    def servers(self) -> int:
        return max(1, math.ceil(self.cores / SERVER_CORES))


def estimated(
    fleet: dict[str, Any], replica: dict[str, Any], developers: int = DEVELOPERS
) -> Estimate:
    """One entry is one push: a daemon sends at once. A look that finds something costs more than
    one that finds nothing by what the entries cost as part of a page."""
    lines, size = replica["lines"], str(replica["sizes"][-1])
    entries = developers * ENTRIES_A_DAY * PEAK_HOUR / 3600
    looks = developers / LOOK_SECONDS
    fetched = entries * (PER_ORGANIZATION - 1)
    page = lines["page of 1,000 from the start"][size]["p50_ms"] / 1000
    look_ms = looks * lines["nothing new"][size]["p50_ms"] + fetched * page
    private = max(phase["backend_mb"] for phase in fleet["phases"])
    return Estimate(
        entries,
        entries * lines["push of 1"][size]["p50_ms"] / 1000,
        looks,
        look_ms / 1000,
        developers,
        developers * private / 1000,
        developers * ENTRIES_A_DAY * WORKING_DAYS * _bytes(replica) / 1e12,
    )


def _bytes(replica: dict[str, Any]) -> float:
    """What an entry takes with all its indexes; those of the history have short bodies, a real one
    is 1.2 KB longer, twice: as it was written, and as JSONB."""
    return float(replica["bytes_per_entry"]) + 2 * 1_200
