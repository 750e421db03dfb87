"""The processes of a run, found by the folder that each of them names."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    pid: int
    parent: int
    words: str


def listed() -> list[Process]:
    """All that run; not those that have ended and wait to be noticed."""
    told = subprocess.run(
        ["ps", "-axww", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "args="],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = [line.split(maxsplit=3) for line in told.splitlines()]
    return [
        Process(int(pid), int(parent), words)
        for pid, parent, state, words in (row for row in rows if len(row) == 4)
        if not state.startswith("Z")
    ]


def of(folder: Path) -> list[Process]:
    """Those that have the folder in their words or their environment, and their children."""
    everyone = listed()
    found = {p.pid for p in everyone if str(folder) in p.words or _inherits(p.pid, folder)}
    while more := {p.pid for p in everyone if p.parent in found} - found:
        found |= more
    return [p for p in everyone if p.pid in found and p.pid != os.getpid()]


def _inherits(pid: int, folder: Path) -> bool:
    """Where the system lets one see it."""
    with suppress(OSError):
        return str(folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def children(pid: int) -> list[Process]:
    return [process for process in listed() if process.parent == pid]


def end(processes: list[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
