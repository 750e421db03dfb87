"""When to try again: a circuit breaker without a clock or a die of its own.

Closed: everything goes through. Open: nothing does until `retry_at`, which is later the more
attempts have failed in a row. Half open: one attempt is allowed, and decides.
"""

from __future__ import annotations

from typing import NamedTuple

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
_FIRST_SECONDS = 1.0
_MOST_DOUBLINGS = 30


class Breaker(NamedTuple):
    state: str = CLOSED
    failures: int = 0
    retry_at: float = 0.0

    def asked(self, now: float) -> Breaker:
        """Half open once the time has come."""
        if self.state == OPEN and now >= self.retry_at:
            return self._replace(state=HALF_OPEN)
        return self

    def failed(self, now: float, chance: float, cap: float) -> Breaker:
        """Open for a while: anything up to twice the last limit, and never over `cap`.

        `chance` is between 0 and 1: machines that failed together do not come back together.
        """
        limit = min(cap, _FIRST_SECONDS * 2 ** min(self.failures, _MOST_DOUBLINGS))
        return Breaker(OPEN, self.failures + 1, now + chance * limit)

    def hurried(self) -> Breaker:
        """Something has changed, the network perhaps: the next attempt may be made at once."""
        return self._replace(state=HALF_OPEN) if self.state == OPEN else self

    @property
    def blocks(self) -> bool:
        return self.state == OPEN
