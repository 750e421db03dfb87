"""What wakes the daemon: somebody wrote here, or the machine slept.

SQLite appends every commit to its write-ahead log, so a watch on the home's directory hears of
each within a tenth of a millisecond. Where there is no such watch, the caller looks each second.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from syncd.node import Node

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 2, 0x80, 0x100, 0x200, 0x400, 0x800
_MASK = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_EVENT = struct.Struct("iIII")
_LOOKED_AT = ("context.db", "context.db-wal")
_FALLBACK_SECONDS = 1.0


class Watch:
    """A descriptor that becomes readable when something happens in the home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._kernel_queue: Any = None
        self._opened: list[int] = []
        self.descriptor = -1
        with suppress(OSError):
            self.descriptor = self._inotify() if sys.platform == "linux" else self._kqueue()

    def _inotify(self) -> int:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = int(library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if library.inotify_add_watch(descriptor, os.fsencode(self._home), _MASK) < 0:
            os.close(descriptor)
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        return descriptor

    def _kqueue(self) -> int:
        queue: Any = select.kqueue()  # type: ignore[attr-defined,unused-ignore]
        for path in (self._home, self._home / "context.db-wal"):
            with suppress(OSError):
                self._opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        flags: Any = select
        events = [
            flags.kevent(opened, flags.KQ_FILTER_VNODE, flags.KQ_EV_ADD | flags.KQ_EV_CLEAR,
                         flags.KQ_NOTE_WRITE | flags.KQ_NOTE_EXTEND | flags.KQ_NOTE_DELETE)
            for opened in self._opened
        ]  # fmt: skip
        queue.control(events, 0, 0)
        self._kernel_queue = queue
        return int(queue.fileno())

    def names(self) -> set[str]:
        """What was touched in the home since the last call. macOS does not say what it was."""
        if self._kernel_queue is not None:
            return set(_LOOKED_AT) if self._kernel_queue.control(None, 64, 0) else set()
        found: set[str] = set()
        with suppress(BlockingIOError):
            while data := os.read(self.descriptor, 65536):
                found |= _names(data)
        return found

    def close(self) -> None:
        for opened in self._opened:
            os.close(opened)
        if self._kernel_queue is not None:
            self._kernel_queue.close()
        elif self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def _names(data: bytes) -> set[str]:
    names, at = set[str](), 0
    while at < len(data):
        length = _EVENT.unpack_from(data, at)[3]
        at += _EVENT.size
        names.add(os.fsdecode(data[at : at + length].rstrip(b"\0")))
        at += length
    return names


class Pulse(NamedTuple):
    """Two clocks at one moment: one that people set, and one that only goes on."""

    wall: float
    steady: float

    def slept(self, now: Pulse, expected: float, tolerance: float = 2.0) -> bool:
        """Whether the machine or this process was suspended since, or its clock was set: the two
        clocks disagree, or the next moment came far too late."""
        passed = now.steady - self.steady
        disagree = abs(now.wall - self.wall - passed)
        return disagree > tolerance or passed > expected + tolerance


# A commit is seen in the file before SQLite shows it to others: it is synced to disk in between.
_LOOKS = tuple(0.001 * 2**number for number in range(9))


def changes(node: Node) -> Iterator[None]:
    """Once at first, then whenever another has written to the database, or has put one in its place
    from a backup: from then on it is the node's."""
    watch = Watch(node.home)
    version = _version(node)
    try:
        while True:
            yield
            while (now := _version(node)) == version:
                _await(watch, node, version)
            version = now
    finally:
        watch.close()


def _version(node: Node) -> tuple[int, object]:
    if node.replaced():
        node.close()
    return node.store.inode, node.store.row("data_version")


def _await(watch: Watch, node: Node, version: object) -> None:
    """Until somebody has begun to write, and a little longer: until it is to be seen."""
    if watch.descriptor < 0:
        time.sleep(_FALLBACK_SECONDS)
        return
    select.select([watch.descriptor], [], [], _FALLBACK_SECONDS)
    if watch.names():
        for pause in _LOOKS:
            if _version(node) != version:
                return
            time.sleep(pause)
