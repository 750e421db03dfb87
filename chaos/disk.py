"""A machine's disk that can be full: a small file system where one may be mounted, else a limit on
the size of the files that its processes write."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_ROOM = "2g"
_LITTLE_BYTES = 64_000


class Disk:
    def __init__(
        self, place: Path, processes: Callable[[], Iterable[int]], tell: Callable[[str], None]
    ) -> None:
        """`processes` are those that write there. `tell` is told what goes another way."""
        self.place = place
        self._processes = processes
        self._tell = tell
        self._largest: int | None = None
        self._lock = threading.Lock()
        place.mkdir()
        self.mounted = os.geteuid() == 0 and not self._mount(
            "-t", "tmpfs", "none", options=f"size={_ROOM},mode=0711"
        )

    @property
    def kind(self) -> str:
        if self.mounted:
            return "a file system in memory"
        return "a limit on the size of files: none could be mounted" if _can_limit() else "none"

    @property
    def can_fill(self) -> bool:
        return self.mounted or _can_limit()

    def _mount(self, *words: str, options: str) -> str:
        """What went wrong, if anything did."""
        command = ["mount", "-o", options, *words, str(self.place)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            return str(error)
        told = done.stderr.strip() or f"exit code {done.returncode}"
        return told.splitlines()[0] if done.returncode else ""

    def fill(self) -> bool:
        """Whether it is full now. Who writes meanwhile may need more than the size that was just
        chosen, which is then refused."""
        problem = self._shrink() if self.mounted else ""
        if self.mounted and not problem:
            return True
        if problem:
            self._tell(f"the file system cannot be made smaller ({problem}): "
                       "the size of files is limited instead")  # fmt: skip
        return self._limit(_LITTLE_BYTES)

    def _shrink(self) -> str:
        found = os.statvfs(self.place)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return self._mount(options=f"remount,size={used + _LITTLE_BYTES}")

    def empty(self) -> None:
        self._limit(None)
        if self.mounted and (problem := self._mount(options=f"remount,size={_ROOM}")):
            raise OSError(f"{self.place} stays full: {problem}")

    def admit(self, pid: int) -> None:
        """A process that is among `processes` from now on."""
        with self._lock:
            if self._largest is not None:
                _allow(pid, self._largest)

    def _limit(self, largest: int | None) -> bool:
        """Whether that can be done here."""
        with self._lock:
            self._largest = largest
            for pid in self._processes():
                _allow(pid, largest)
        return _can_limit()

    def close(self) -> None:
        """What is there stays to be looked at, in a folder of the same name."""
        if self.mounted:
            copy = shutil.copytree(self.place, self.place.with_name(f"{self.place.name}-copy"))
            unmount(self.place)
            self.place.rmdir()
            copy.rename(self.place)


def unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def _can_limit() -> bool:
    return sys.platform == "linux"


def _allow(pid: int, largest: int | None) -> None:
    """The size of the files that it writes; it may have ended."""
    if _can_limit():
        with suppress(OSError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            soft = hard if largest is None else largest
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
