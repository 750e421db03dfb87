"""A machine's disk that can be full: a small file system where one may be mounted, else a limit on
the size of the files that its processes write."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

_ROOM = "2g"
_LITTLE_BYTES = 64_000


class Disk:
    def __init__(self, place: Path, processes: Callable[[], Iterable[int]]) -> None:
        """`processes` are those that write there."""
        self.place = place
        self._processes = processes
        place.mkdir()
        self.mounted = os.geteuid() == 0 and self._mount(
            "-t", "tmpfs", "none", options=f"size={_ROOM},mode=0711"
        )

    @property
    def kind(self) -> str:
        if self.mounted:
            return "a file system in memory"
        return "a limit on the size of files: none could be mounted" if _can_limit() else "none"

    def _mount(self, *words: str, options: str) -> bool:
        done = subprocess.run(
            ["mount", "-o", options, *words, str(self.place)], capture_output=True
        )
        return done.returncode == 0

    def fill(self) -> None:
        if self.mounted:
            found = os.statvfs(self.place)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            self._mount(options=f"remount,size={used + _LITTLE_BYTES}")
        else:
            self._limit(_LITTLE_BYTES)

    def empty(self) -> None:
        if self.mounted:
            self._mount(options=f"remount,size={_ROOM}")
        else:
            self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        if _can_limit():
            for pid in self._processes():
                with suppress(OSError):
                    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))

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
