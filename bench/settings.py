"""How long a run takes, and how sure it gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transfers:
    """Of the sync part. The backlog is what memory is measured with."""

    entries: int
    rounds: int
    organizations: int
    writers: int
    round_trips: int

    @property
    def backlog(self) -> int:
        return 4 * self.entries


@dataclass(frozen=True)
class Watches:
    """Of the daemon part."""

    arrivals: int
    handoffs: int
    idle_seconds: float
    backlog: int
    writes: int
    devices: int
    pushed: int
    rounds: int


@dataclass(frozen=True)
class Settings:
    samples: int
    entries: int
    start_ups: int
    patience: float
    quick: bool
    transfers: Transfers
    watches: Watches
