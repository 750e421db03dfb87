"""Who used the processors while the load was on, and what the server's sessions waited for."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from scale.server import Server

_TICKS = os.sysconf("SC_CLK_TCK")
_EVERY_SECONDS = 0.5
_MEMORY_OF = 20
# Of those that are at work: an idle one waits for its client.
_WAITS = """
  SELECT coalesce(wait_event_type || ' ' || wait_event, 'running') FROM pg_stat_activity
  WHERE state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE usename ^@ 'syncd_login_' LIMIT %s"


class Load(NamedTuple):
    """Cores in use by all of a kind; how often a session at work was seen in which state; memory of
    one session that nobody shares with it, in MB; load averages of the machine."""

    cores: dict[str, float]
    waits: dict[str, int]
    backend_mb: float
    load_average: tuple[float, float, float]


class Watch:
    """Looks on, from the moment it is made until it is asked."""

    def __init__(self, server: Server, processes: dict[str, list[int]]) -> None:
        self._server, self._processes = server, processes
        self._waits: Counter[str] = Counter()
        self._stop = threading.Event()
        self._before, self._began = self._used(), time.monotonic()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            self._waits.update(row[0] for row in self._server.sql(_WAITS))

    def _used(self) -> dict[str, float]:
        """Processor seconds so far. The server counts what its ended sessions have used."""
        found = {name: sum(map(_seconds, pids)) for name, pids in self._processes.items()}
        found["PostgreSQL"] = _family(self._server.pid)
        found["machine, all programs"] = _machine()
        return found

    def found(self) -> Load:
        seconds = time.monotonic() - self._began
        used = self._used()
        self._stop.set()
        self._thread.join()
        cores = {name: (used[name] - self._before[name]) / seconds for name in used}
        return Load(cores, dict(self._waits.most_common(8)), self._memory(), os.getloadavg())

    def _memory(self) -> float:
        pids = [row[0] for row in self._server.sql(_BACKENDS, _MEMORY_OF)]
        private = [_private(pid) for pid in pids]
        return sum(private) / len(private) if private else 0.0


def _seconds(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS


def _family(parent: int) -> float:
    """Of a process, those of its children that live, and all that have ended."""
    total = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = file.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ours, child = int(file.parent.name) == parent, int(words[1]) == parent
        if ours or child:
            total += sum(map(int, words[11 : 15 if ours else 13])) / _TICKS
    return total


def _machine() -> float:
    """User, nice, system, and what interrupts take."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(words[place]) for place in (0, 1, 2, 5, 6)) / _TICKS


def _private(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1_024
