"""One loop on a task at a time, in one home: two would write over each other's files, and each
count the other's runs as its own."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from syncd.errors import LeaseHeldError


@contextmanager
def alone(home: Path, task: str) -> Iterator[None]:
    """Raises if another has it. The lock goes with the process, however that ends. Each task has a
    byte of one file, so that no files are left behind."""
    byte = int.from_bytes(hashlib.sha256(task.encode()).digest()[:7])
    descriptor = os.open(home / "run" / "loops.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, byte, task)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, byte: int, task: str) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except (BlockingIOError, PermissionError):  # which of the two, systems do not agree on
        raise LeaseHeldError(
            f"another `syncd loop` of this home runs {task!r}",
            f"Let it end, or end it with Ctrl-C where it runs; `syncd agents --task {quote(task)}` "
            "shows its agent.",
        ) from None
