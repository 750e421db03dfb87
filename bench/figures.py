"""Percentiles and ratios: the only statistics that the report is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

NANOSECONDS_PER_MS = 1_000_000


class Figures(NamedTuple):
    """What is kept of many timings, in milliseconds."""

    samples: int
    p5: float
    p50: float
    p99: float


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: always a value that was really measured, never one in between."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    if not 0 < percent <= 100:
        raise ValueError(f"{percent} is not a percentage")
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[rank - 1]


def summary(nanoseconds: Sequence[int]) -> Figures:
    return Figures(
        len(nanoseconds),
        percentile(nanoseconds, 5) / NANOSECONDS_PER_MS,
        percentile(nanoseconds, 50) / NANOSECONDS_PER_MS,
        percentile(nanoseconds, 99) / NANOSECONDS_PER_MS,
    )


def ratio(value: float, reference: float) -> float:
    if reference <= 0:
        raise ValueError("a ratio needs a reference above zero")
    return value / reference


def compared(times: float) -> str:
    """A ratio in words; nobody should have to work out which way round it is."""
    if abs(times - 1) < 0.005:
        return "as fast as"
    if times > 2:
        return f"SLOWER, {times:.1f} times the time of"
    if times > 1:
        return f"{(times - 1) * 100:.0f} % SLOWER than"
    return f"{(1 - times) * 100:.0f} % faster than"
