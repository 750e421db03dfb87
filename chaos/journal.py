"""What was done, when, and to whom: a file to read afterwards, and counts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path


class Journal:
    def __init__(self, file: Path) -> None:
        self.file = file
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def note(self, what: str, whom: object = "") -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{time.monotonic() - self._began:9.3f}  {now}  {what:<16} {whom}".rstrip()
        with self._lock, self.file.open("a", encoding="utf-8") as out:
            out.write(line + "\n")

    def killed(self, kind: str, whom: object) -> None:
        self.note(f"kill {kind}", whom)
        with self._lock:
            self.kills[kind] += 1

    def outcome(self, kind: str, whom: object) -> None:
        """What became of somebody, that is worth counting."""
        self.note(kind, whom)
        with self._lock:
            self.outcomes[kind] += 1

    def aloud(self, what: str) -> None:
        """What whoever watches the run should know too."""
        self.note("NOTE", what)
        print(f"Note        {what}", flush=True)

    def problem(self, what: str) -> None:
        """What must not happen, whatever is done to the processes."""
        self.note("PROBLEM", what)
        with self._lock:
            self.problems.append(what)
