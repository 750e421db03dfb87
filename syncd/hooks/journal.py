"""The journal of a session: a file to which each hook adds one line, in one write, without a lock.
What many hooks add at once is all there, and none waits for another.

It holds what a checkpoint may hold, redacted; where this home seals what it keeps, each line is
sealed too. It goes when its session has ended and all of it is in a checkpoint.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from syncd.node import Node

KEPT_SECONDS = 7 * 24 * 60 * 60
_LOCK_SECONDS = 0.4
_PAUSE_SECONDS = 0.01


class Seal(NamedTuple):
    """How lines are kept where nothing may be plain."""

    sealed: Callable[[str, bytes], bytes]
    opened: Callable[[str, bytes], bytes]


def seal_of(node: Node) -> Seal | None:
    """As the home keeps the bodies of its checkpoints."""
    if node.settings["encryption"] == "none":
        return None
    return Seal(
        lambda name, plain: node.vault.kept(name, "", plain),
        lambda name, body: node.vault.plain(name, "", "", body),
    )


def folder_of(home: Path) -> Path:
    return home / "run" / "sessions"


class Journal:
    def __init__(self, file: Path, seal: Seal | None = None) -> None:
        self.file = file
        self._seal = seal

    @classmethod
    def of(cls, home: Path, host: str, session: str, seal: Seal | None = None) -> Journal:
        """A session's id may be any text: it does not become part of a path."""
        name = hashlib.sha256(f"{host}\0{session}".encode()).hexdigest()[:32]
        return cls(folder_of(home) / f"{name}.jsonl", seal)

    # --- lines --------------------------------------------------------------------------------

    def append(self, line: dict[str, Any], head: dict[str, Any] | None = None) -> None:
        """`head` opens a journal that is new: whose it is."""
        opened = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            new = os.fstat(opened).st_size == 0
            lines = [{"head": head}, line] if head and new else [line]
            # The line break comes first: so a line that a full disk cut off spoils no other.
            data = b"".join(b"\n" + self._written(said) for said in lines)
            if os.write(opened, data) != len(data):
                raise OSError(f"{self.file} took only a part of a line: is the disk full?")
        finally:
            os.close(opened)

    def _written(self, line: dict[str, Any]) -> bytes:
        plain = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
        if self._seal is None:
            return plain
        import base64

        return base64.b64encode(self._seal.sealed(self.file.stem, plain))

    def lines(self) -> list[dict[str, Any]]:
        """All that can be read; a line that was cut off is passed over."""
        try:
            found = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        read = (self._line(line) for line in found if line)
        return [line for line in read if line is not None]

    def _line(self, line: bytes) -> dict[str, Any] | None:
        import base64
        import binascii

        try:
            if not line.startswith(b"{") and self._seal is not None:
                line = self._seal.opened(self.file.stem, base64.b64decode(line))
            said = json.loads(line)
        except (ValueError, binascii.Error, RecursionError):
            return None
        return said if isinstance(said, dict) else None

    @contextmanager
    def folding(self) -> Iterator[bool]:
        """One at a time makes a checkpoint of it; False if another is at it still."""
        try:
            opened = os.open(self.file, os.O_RDONLY)
        except FileNotFoundError:
            yield False
            return
        try:
            yield _locked(opened)
        finally:
            os.close(opened)

    def touched(self) -> float:
        """When something was last said in it; of one that is gone, now."""
        try:
            return self.file.stat().st_mtime
        except FileNotFoundError:
            return time.time()

    def exists(self) -> bool:
        return self.file.exists()

    def remove(self) -> None:
        for file in (self._marks, self._gauge, self.file):
            file.unlink(missing_ok=True)

    # --- what is only of the moment -------------------------------------------------------------

    @property
    def _marks(self) -> Path:
        return self.file.with_suffix(".marks")

    @property
    def _gauge(self) -> Path:
        return self.file.with_suffix(".gauge")

    def marks(self) -> dict[str, Any]:
        """What was done when, and what was said already. No words of anybody."""
        return _small(self._marks)

    def mark(self, **marks: Any) -> None:
        _put(self._marks, {**self.marks(), **marks})

    def gauge(self) -> dict[str, Any]:
        """What the status line last told: numbers only."""
        return _small(self._gauge)

    def set_gauge(self, numbers: dict[str, Any]) -> None:
        _put(self._gauge, numbers)


def _locked(opened: int) -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_SECONDS)
        else:
            return True


def _small(file: Path) -> dict[str, Any]:
    try:
        said = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _put(file: Path, document: dict[str, Any]) -> None:
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(opened, json.dumps(document).encode())
    finally:
        os.close(opened)
    draft.replace(file)


def everything(home: Path, seal: Seal | None = None) -> list[Journal]:
    """The newest first."""
    found = [Journal(file, seal) for file in folder_of(home).glob("*.jsonl")]
    return sorted(found, key=Journal.touched, reverse=True)
