"""The files that checkpoints were read from: what each held when it was read last, under which name
it was met first, and what was wrong with it then."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from syncd import clock
from syncd.store import Store


class Source(NamedTuple):
    """A row of the table `sources`."""

    path: str
    origin: str
    digest: str
    line: int
    problem: str
    at: str


def digest(data: bytes, task: str) -> str:
    """Changes with what a file holds, and with the task that it is read for."""
    return hashlib.sha256(f"{task}\n".encode() + data).hexdigest()


class Sources:
    """Those of one home."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, path: Path) -> Source | None:
        row = self._store.row("source", (str(path),))
        return Source(*row) if row else None

    def below(self, folder: Path) -> list[Source]:
        rows = self._store.rows("sources_below", (str(folder), f"{folder}\U0010ffff"))
        return [Source(*row) for row in rows]

    def renamed(self, holding: str) -> Source | None:
        """One that held the same, under a name that is no longer there."""
        rows = self._store.rows("sources_with", (holding,))
        return next((Source(*row) for row in rows if not Path(row[0]).exists()), None)

    def read(self, path: Path, holding: str, origin: str = "") -> None:
        """It was read and is as it should be."""
        before = self.of(path)
        first = origin or (before.origin if before else path.name)
        self._put(Source(str(path), first, holding, 0, "", _now()))

    def unreadable(self, path: Path, line: int, problem: str) -> None:
        before = self.of(path)
        since = before.at if before and before.problem == problem else _now()
        first = before.origin if before else path.name
        self._put(Source(str(path), first, "", line, problem, since))

    def forget(self, path: str) -> None:
        """It is gone; what was read from it stays."""
        with self._store.transaction():
            self._store.change("drop_source", (path,))

    def _put(self, source: Source) -> None:
        with self._store.transaction():
            self._store.change("put_source", source)


def _now() -> str:
    return clock.iso(clock.wall_ms())
