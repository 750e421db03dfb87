"""Replacing files that others edit too: whole or not at all, and never over somebody's change."""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from syncd.errors import InvalidInputError
from syncd.keychain import synced

_AT_CWD, _SWAP = -100, 2
_NEW_FILE = 0o644


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One of our processes at a time. The folder itself is locked, so that no lock file lies about
    in somebody's project."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def refuse_outside(root: Path, *paths: Path) -> None:
    """Raise if a link at one of the paths leads out of `root`."""
    real = root.resolve()
    for path in paths:
        try:
            within = path.resolve().is_relative_to(real)
        except (OSError, RuntimeError):  # links that lead round in a circle
            within = False
        if not within:
            raise InvalidInputError(
                f"{path} leads out of {root}",
                "Remove the link, or name the directory where it leads.",
            )


def replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of what is there, if anything is: of a symbolic link, in that of
    its target. What is no file (a device, a pipe) stays, and `content` goes through it."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    with _draft(path, content) as draft:
        draft.replace(path)
    synced(path.parent)


def changed(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Read (a missing file is an empty one), change, replace; once more from the start if somebody
    who does not know our lock was faster meanwhile."""
    path = path.resolve()
    with alone_in(path.parent):
        while True:
            before = path.read_bytes() if path.exists() else None
            with _draft(path, change(before or b"")) as draft:
                if _exchanged(draft, path, before):
                    break
    synced(path.parent)


def exchange(path: Path, before: bytes, content: bytes) -> bool:
    """Put `content` in the place of what is there, if that is still exactly `before`. For one who
    is alone in the folder."""
    path = path.resolve()
    with _draft(path, content) as draft:
        done = _exchanged(draft, path, before)
    synced(path.parent)
    return done


def _exchanged(draft: Path, path: Path, before: bytes | None) -> bool:
    """Whether `draft` took the place of exactly `before`. What it takes the place of is seen only
    after the two were swapped: swapped back, another's change stands as if nothing had been."""
    if before is None:
        return _first(draft, path)
    if not path.exists() or path.read_bytes() != before:
        return False
    ours = draft.read_bytes()
    if not _swapped(draft, path):
        draft.replace(path)
        return True
    if draft.read_bytes() == before:
        return True
    _swapped(draft, path)
    if draft.read_bytes() != ours:  # somebody wrote once more meanwhile: the newest stays
        _swapped(draft, path)
    return False


def _first(draft: Path, path: Path) -> bool:
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    return True


@contextmanager
def _draft(path: Path, content: bytes) -> Iterator[Path]:
    """A file beside `path`, on disk, with its mode; gone afterwards."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}.part")
    mode = path.stat().st_mode & 0o7777 if path.exists() else _NEW_FILE
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def _swapped(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    with suppress(AttributeError):
        if sys.platform == "darwin":
            return bool(library.renamex_np(*names, _SWAP) == 0)
        return bool(library.renameat2(_AT_CWD, names[0], _AT_CWD, names[1], _SWAP) == 0)
    return False
