"""A hybrid logical clock: never goes back, stays near wall time, needs no agreement.

A reading is one integer: 48 bits of milliseconds since 1970, 16 bits of counter. It sorts by
time, and by cause where two readings share a millisecond or the wall clock was set back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

COUNTER_BITS = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Wall = Callable[[], int]


def wall_ms() -> int:
    """A machine whose battery is empty may think that it is before 1970: that is 1970 here."""
    return max(0, time.time_ns() // 1_000_000)


def tick(last: int, now_ms: int) -> int:
    """The next reading after `last`; a full counter borrows the next millisecond."""
    return max(now_ms << COUNTER_BITS, last + 1)


def observe(last: int, seen: int) -> int:
    """What `last` becomes on meeting another device's reading."""
    return max(last, seen)


def reading_at(moment: datetime) -> int:
    """The smallest reading at `moment`, for time ranges."""
    return (moment - _EPOCH) // timedelta(milliseconds=1) << COUNTER_BITS


def milliseconds(reading: int) -> int:
    return reading >> COUNTER_BITS


def iso(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds."""
    seconds, rest = divmod(ms, 1000)
    return f"{_second(seconds)}.{rest:03d}+00:00"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    """Formatting a date is slow, and many entries share a second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
