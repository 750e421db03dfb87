"""What may take long to work out, for pages that must not: a quick answer is waited for, a slow one
is worked out beside, while the last one is shown with its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_WAIT_SECONDS = 0.12
# A tenth of one processor at most, however often somebody looks and something changes.
_REST, _LONGEST_REST = 9, 30.0


class Found(NamedTuple, Generic[T]):
    """The last answer, if there is one yet; `fresh` if nothing has changed since."""

    value: T | None
    at: float
    fresh: bool


class Kept(Generic[T]):
    """One question; at most one thread works on it."""

    def __init__(
        self, work: Callable[[], T], told: Callable[[], None], oldest: float = float("inf")
    ) -> None:
        self._work = work
        self._told = told
        self._oldest = oldest
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._done.set()
        self._found: Found[T] = Found(None, 0.0, False)
        self._version: object = None
        self._error: Exception | None = None
        self._not_before = 0.0

    def get(self, version: object) -> Found[T]:
        """The answer for this version of the data, or the one before."""
        if not self._is_fresh(version):
            self._begin(version)
            self._done.wait(_WAIT_SECONDS)
        if self._error is not None:
            raise self._error
        return self._found._replace(fresh=self._is_fresh(version))

    def _is_fresh(self, version: object) -> bool:
        same = self._found.value is not None and self._version == version
        return same and time.time() - self._found.at < self._oldest

    def _begin(self, version: object) -> None:
        with self._lock:
            if not self._done.is_set() or time.monotonic() < self._not_before:
                return
            self._done.clear()
        threading.Thread(target=self._run, args=(version,), daemon=True).start()

    def _run(self, version: object) -> None:
        began, late = time.monotonic(), False
        try:
            value = self._work()
            late = self._found.value is None or time.monotonic() - began > _WAIT_SECONDS
            self._found, self._version, self._error = Found(value, time.time(), True), version, None
        except Exception as error:  # noqa: BLE001 (whoever asks next is told)
            self._error = error
        finally:
            now = time.monotonic()
            self._not_before = now + min(_REST * (now - began), _LONGEST_REST)
            self._done.set()
        if late:
            self._told()
