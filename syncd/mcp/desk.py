"""What the tools work on, for as long as the server lives: a home that others change meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from syncd.node import Node
from syncd.service import CheckpointService

T = TypeVar("T", bound=Node | CheckpointService)
_Stamp = tuple[tuple[int, int, int], ...]


class Desk:
    """Opened when it is needed first. Reads have a connection of their own: a write that waits for
    another program's lock keeps no reader waiting."""

    def __init__(self, home: Path | None) -> None:
        self._reader = _Kept(lambda: Node(home))
        self._writer = _Kept(lambda: CheckpointService(home=home))

    def reading(self) -> Node:
        return self._reader.get()

    def writing(self) -> CheckpointService:
        return self._writer.get()


class _Kept(Generic[T]):
    """Kept open, and opened anew after a backup was restored, a setting changed or a key came."""

    def __init__(self, opened: Callable[[], T]) -> None:
        self._opened = opened
        self._lock = Lock()
        self._value: T | None = None
        self._stamp: _Stamp = ()

    def get(self) -> T:
        with self._lock:
            if self._value is None or self._stamp != _stamp(self._value):
                before, self._value = self._value, None
                if before is not None:
                    before.close()
                self._value = self._opened()
                self._stamp = _stamp(self._value)
            return self._value


def _stamp(opened: Node | CheckpointService) -> _Stamp:
    node = opened if isinstance(opened, Node) else opened.node
    files = (node.home / "config.toml", node.home / "keys" / "data.json")
    return (_place(node.database), *map(_version, files))


def _place(file: Path) -> tuple[int, int, int]:
    found = _version(file)
    return (found[0], 0, 0)


def _version(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_mtime_ns, found.st_size)
