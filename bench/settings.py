"""How long a run takes, and how sure it gets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    samples: int
    entries: int
    start_ups: int
    patience: float
    quick: bool
