"""What SQLite's errors, and the operating system's, mean to a user."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from syncd.errors import (
    CheckpointExistsError,
    DatabaseCorruptError,
    DiskFullError,
    DiskRefusedError,
    HomeError,
    InvalidInputError,
    ReadOnlyError,
    StoreBusyError,
    StoreError,
    SyncdError,
)

_MEANINGS: dict[int, tuple[type[SyncdError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusyError, "the database is locked by another program"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "the database is locked by another program"),
    sqlite3.SQLITE_FULL: (DiskFullError, "the disk is full; nothing was written"),
    sqlite3.SQLITE_READONLY: (ReadOnlyError, "the database is read-only"),
    sqlite3.SQLITE_PERM: (ReadOnlyError, "the database may not be written"),
    sqlite3.SQLITE_CANTOPEN: (HomeError, "the database cannot be opened"),
    sqlite3.SQLITE_CORRUPT: (DatabaseCorruptError, "the database file is damaged"),
    sqlite3.SQLITE_NOTADB: (DatabaseCorruptError, "the database file is damaged"),
    sqlite3.SQLITE_PROTOCOL: (HomeError, "the file system does not support locks"),
    sqlite3.SQLITE_NOLFS: (HomeError, "the file system does not support large files"),
    sqlite3.SQLITE_TOOBIG: (InvalidInputError, "the document is too large"),
    sqlite3.SQLITE_CONSTRAINT: (CheckpointExistsError, "this id is in use already"),
    sqlite3.SQLITE_IOERR: (StoreError, "the disk did not take or give the data"),
    # No room for the index of the write-ahead log.
    sqlite3.SQLITE_IOERR_SHMSIZE: (DiskFullError, "the disk is full; nothing was written"),
    # SQLite does not say which: only of a full disk does it know the name.
    sqlite3.SQLITE_IOERR_WRITE: (
        DiskRefusedError,
        "the disk did not take the data: a quota or a limit on the size of files is reached, or "
        "it fails; nothing was written",
    ),
}
# What a file system without locks answers, said by SQLite as an error of the disk.
_LOCK_FAILURES = {
    sqlite3.SQLITE_IOERR_LOCK,
    sqlite3.SQLITE_IOERR_RDLOCK,
    sqlite3.SQLITE_IOERR_UNLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    sqlite3.SQLITE_IOERR_SHMLOCK,
}


def translated(error: Exception) -> SyncdError:
    """SQLite's error as one of ours, with its remedy."""
    if isinstance(error, UnicodeDecodeError):
        return DatabaseCorruptError(f"the database file is damaged ({error})")
    if isinstance(error, UnicodeEncodeError):
        return InvalidInputError("what is asked for is not UTF-8", "Give it in UTF-8.")
    if not isinstance(error, sqlite3.Error):
        return InvalidInputError(f"the database cannot hold this: {error}")
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if extended in _LOCK_FAILURES:
        code = sqlite3.SQLITE_PROTOCOL
    if "decode to UTF-8" in str(error):
        code = sqlite3.SQLITE_CORRUPT
    usual = _MEANINGS.get(code, (StoreError, "the database refused"))
    kind, meaning = _MEANINGS.get(extended, usual)
    # Which id, whoever gave it knows; the table that it is in says nothing to him.
    return kind(meaning if kind is CheckpointExistsError else f"{meaning} ({error})")


def refused(error: OSError, path: Path) -> StoreError:
    """The operating system's refusal to make or write a file of ours."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"the disk is full: {path} cannot be written")
    if error.errno == errno.EROFS:
        return ReadOnlyError(f"the disk is read-only: {path} cannot be written")
    return HomeError(f"{path} cannot be made: {reason}")
