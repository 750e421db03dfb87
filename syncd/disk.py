"""Room on the disk: with little left, what users write goes first."""

from __future__ import annotations

import os
from pathlib import Path

from syncd.node import Node

_MB = 1_000_000
# Less room than this is none: the smallest write takes some pages, and their index.
NOTHING = 100_000


def problem(node: Node) -> str:
    """Why nothing may be fetched or backed up now, or nothing."""
    left, low = free(node.home), node.settings["disk.low_mb"] * _MB
    if left < low:
        return f"the disk has {_size(left)} left, less than {_size(low)}"
    quota = node.settings["disk.quota_mb"] * _MB
    if (used := size(node.home)) > quota:
        return f"database and backups have {_size(used)}, more than the quota of {_size(quota)}"
    return ""


def free(home: Path) -> int:
    """The bytes that a user may still fill."""
    found = os.statvfs(home)
    return found.f_bavail * found.f_frsize


def size(home: Path) -> int:
    """The bytes of the database and its backups."""
    files = [*home.glob("context.db*"), *(home / "backups").glob("*.db")]
    return sum(file.stat().st_size for file in files if file.exists())


def _size(count: int) -> str:
    return f"{count / _MB:,.0f} MB"
