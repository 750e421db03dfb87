"""What a user wants written, to where he wants it: into a file whole or not at all, and through
whatever is no file (a device, a pipe, standard output), which is never replaced."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from syncd.entry import uuid7
from syncd.errors import CheckpointExistsError, SyncdError, UsageError
from syncd.keychain import synced

STDOUT = 1
_NAMED = {"-": STDOUT, "/dev/stdout": STDOUT, "/dev/stderr": 2}
_NUMBERED = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})")
# Where the file system knows no second name for a file, as on most USB sticks.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def opened_as(place: Path) -> int | None:
    """The number of what is open already. It is written to where it stands: a file behind it is not
    replaced, which whoever opened it would never see."""
    name = str(place)
    numbered = _NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered else _NAMED.get(name)


@contextmanager
def delivered(place: Path, *, force: bool = False) -> Iterator[IO[bytes]]:
    """What is written into it, and may be read back, is at `place` when the block ends well."""
    if opened_as(place) is None and not _is_stream(place, force=force):
        with _file(place, force=force) as draft:
            yield draft
        return
    # In memory: a draft on the disk could be plain text that was never meant to be there.
    content = io.BytesIO()
    yield content
    _through(place, content.getbuffer())


def _is_stream(place: Path, *, force: bool) -> bool:
    try:
        found = place.stat()
    except OSError:  # not there, or making the draft will tell
        return False
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{place} is a directory", "Name a file in it.")
    if stat.S_ISREG(found.st_mode):
        return False
    if not force and found.st_uid not in (0, os.geteuid()):
        raise CheckpointExistsError(
            f"{place} is another user's, who would read what is written there",
            "Name another file, or add --force if you mean it.",
        )
    return True


def _through(place: Path, content: memoryview) -> None:
    number = opened_as(place)
    try:
        # Never made here: what was there when it was looked at may be gone.
        target = os.open(place, os.O_WRONLY | os.O_NOCTTY) if number is None else os.dup(number)
        with os.fdopen(target, "wb", buffering=0) as stream:
            while content:
                content = content[stream.write(content) :]
    except OSError as error:
        if number == STDOUT:
            raise
        raise _refused(place, error) from None


def _refused(place: Path, error: OSError) -> SyncdError:
    return SyncdError(
        f"{place} was not written: {error.strerror or error}", "Name another, or make room there."
    )


# --- files --------------------------------------------------------------------------------------


@contextmanager
def _file(place: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """For its owner alone. Of a symbolic link the target is written."""
    if not force and os.path.lexists(place):
        raise _exists(place)
    target = place.resolve()
    draft = target.with_name(f".{uuid7()}.part")
    try:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise _refused(place, error) from None
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            draft.replace(target)
        else:
            _take_name(draft, target)
        synced(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _take_name(draft: Path, place: Path) -> None:
    """Whoever made one of that name meanwhile wins."""
    try:
        os.link(draft, place)
    except FileExistsError:
        raise _exists(place) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(place):
            raise _exists(place) from None
        draft.replace(place)


def _exists(place: Path) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"{place} exists already", "Name another file, or add --force to replace this one."
    )
