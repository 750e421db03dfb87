"""Who runs the daemon of a home, and what it last said.

The lock is the truth: it goes with the process that holds it, however that ends. The number in
the file only says whom to send a signal. Light: `syncd status` reads this.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd.errors import DaemonRunningError

_ATTEMPTS, _PAUSE_SECONDS = 20, 0.025
_ANSWER_SECONDS = 0.3
_WIDTH = 20
_TEXTS = ("state", "as_of", "last_error", "remedy", "circuit")
_telling = threading.Lock()


class Lock(NamedTuple):
    """Held by the daemon as long as it lives."""

    path: Path
    descriptor: int

    def intact(self) -> bool:
        """Whether the file that is locked is still the one that others would find."""
        try:
            return self.path.stat().st_ino == os.fstat(self.descriptor).st_ino
        except OSError:
            return False


def lock_path(home: Path) -> Path:
    return home / "run" / "daemon.lock"


def _told_path(home: Path) -> Path:
    return home / "run" / "daemon.json"


@contextmanager
def hold(home: Path) -> Iterator[Lock]:
    """Be the one daemon of this home."""
    path = lock_path(home)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, home)
        _write(descriptor, str(os.getpid()))
        yield Lock(path, descriptor)
        _write(descriptor, "")  # the number may soon be another's
    finally:
        os.close(descriptor)


def _lock(descriptor: int, home: Path) -> None:
    """Somebody who only looks whether there is a daemon has it for a moment, too."""
    for _ in range(_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_PAUSE_SECONDS)
    pid = _number(descriptor)
    raise DaemonRunningError(f"the daemon of {home} is running already, as process {pid}")


def _write(descriptor: int, number: str) -> None:
    """Over the one before: there is room for that on a full disk, too."""
    os.pwrite(descriptor, f"{number:<{_WIDTH - 1}}\n".encode(), 0)
    os.truncate(descriptor, _WIDTH)


def _number(descriptor: int) -> int:
    text = os.pread(descriptor, _WIDTH, 0)
    return int(text) if text.strip().isdigit() else 0


def pid(home: Path) -> int:
    """The daemon's process, or 0 if there is none. Asked twice: who has just got the lock has not
    written its number yet, and the one that is read may be its predecessor's."""
    first = _holder(home)
    return first if first and first == _holder(home) else 0


def _holder(home: Path) -> int:
    try:
        descriptor = os.open(lock_path(home), os.O_RDONLY)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _number(descriptor)
    except OSError:
        return 0
    else:
        return 0
    finally:
        os.close(descriptor)


# --- what it says of itself -------------------------------------------------------------------


def tell(home: Path, told: dict[str, Any]) -> None:
    """Replace what the daemon last said. Not synced: after a crash there is no daemon to say it."""
    path = _told_path(home)
    draft = path.with_suffix(".part")
    with _telling:
        draft.write_bytes(orjson.dumps(told))
        draft.replace(path)


def told(home: Path) -> dict[str, Any]:
    """What the daemon said last; nothing if that is no sense."""
    try:
        found = orjson.loads(_told_path(home).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if _makes_sense(found) else {}


def _makes_sense(found: Any) -> bool:
    """Whether it has the shape of what `tell` is given. Another version may have written it."""
    return (
        isinstance(found, dict)
        and all(isinstance(found.get(name), int | float) for name in ("pid", "started_at"))
        and isinstance(found.get("next_attempt_s", 0), int | float)
        and isinstance(found.get("jobs", []), list)
        and isinstance(found.get("cloud", {}), dict)
        and all(isinstance(found.get("cloud", {}).get(n, ""), str) for n in _TEXTS)
        and isinstance(found.get("cloud", {}).get("cloud_seq", 0), int)
    )


def ask(home: Path, process: int) -> dict[str, Any]:
    """Have the daemon say how it is now. One that does not answer in time is not waited for: then
    its last words come without `answered`."""
    before = _changed(home)
    try:
        os.kill(process, signal.SIGUSR1)
    except OSError:
        return told(home)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        if _changed(home) != before:
            return {**told(home), "answered": True}
        time.sleep(0.002)
    return told(home)


def _changed(home: Path) -> tuple[int, int]:
    with suppress(OSError):
        found = _told_path(home).stat()
        return found.st_ino, found.st_mtime_ns
    return 0, 0


# --- this program ---------------------------------------------------------------------------------


def program() -> list[str]:
    """How this very program is called again, from anywhere."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [sys.executable, "-P", "-m", "syncd"]
    if called.is_file():
        return [str(called.absolute())]
    import shutil

    return [shutil.which("syncd") or "syncd"]
