"""Connections that all sync alike, and a machine that is quiet before it is measured on.

Where other programs keep the CPUs busy, a commit that comes back from the disk waits for its turn
(4 ms with a 250 Hz scheduler). Then everybody seems equally fast, and a ratio shows nothing.
"""

from __future__ import annotations

import math
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import Figures, summary
from bench.measure import Operation, block, repeated

FULL = 2
PROBES = 100
# A median this far above the fastest commits is made of waiting, not of work.
BUSY_TIMES = 2.5
# A busy machine has quiet moments; only several in a row mean something.
CALM_IN_A_ROW = 5
PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 180.0


def connection(path: Path, isolation_level: Any = None) -> sqlite3.Connection:
    opened = sqlite3.connect(path, check_same_thread=False, isolation_level=isolation_level)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":
        # As syncd does: without it macOS acknowledges what its drive has not written.
        opened.execute("PRAGMA fullfsync = 1")
        opened.execute("PRAGMA checkpoint_fullfsync = 1")
    assert_durable(opened)
    return opened


def assert_durable(opened: sqlite3.Connection) -> None:
    """A comparison with somebody who syncs less would be worth nothing."""
    mode = opened.execute("PRAGMA journal_mode").fetchone()[0]
    level = opened.execute("PRAGMA synchronous").fetchone()[0]
    if (mode, level) != ("wal", FULL):
        raise AssertionError(f"not WAL with synchronous FULL but {mode}, {level}")


def raw_commit(opened: sqlite3.Connection, task: str, body: bytes, name: str) -> Operation:
    """The floor of every write: the same bytes, nothing computed, nothing checked."""
    execute, row = opened.execute, (task, body)
    execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, task TEXT, body BLOB)")

    def commit(_: None) -> None:
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO raw (task, body) VALUES (?, ?)", row)
        execute("COMMIT")

    return Operation(name, repeated(None), commit)


def probed(operation: Operation) -> Figures:
    return summary(block(operation, PROBES))


def wait_until_calm(
    probe: Callable[[], Figures], patience: float, pause: Callable[[float], None] = time.sleep
) -> float:
    """Seconds of pause until most commits are about as fast as the fastest, or patience ends."""
    waited, in_a_row, quiet = 0.0, 0, math.inf
    while waited < patience:
        found = probe()
        quiet = min(quiet, found.p5)
        in_a_row = in_a_row + 1 if found.p50 <= quiet * BUSY_TIMES else 0
        if in_a_row == CALM_IN_A_ROW:
            break
        pause(PAUSE_SECONDS)
        waited += PAUSE_SECONDS
    return waited
