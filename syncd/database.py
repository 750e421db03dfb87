"""One SQLite connection, made safe: threads, forks, nested transactions, errors that help."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from syncd import clock
from syncd.errors import (
    CheckpointExistsError,
    DatabaseCorruptError,
    DiskFullError,
    HomeError,
    InvalidInputError,
    NewerDatabaseError,
    ReadOnlyError,
    StoreBusyError,
    StoreError,
    SyncdError,
)
from syncd.sql import SQLITE_VERSION, queries, version_of

# A connection that crossed a fork may neither be used nor closed in the child.
_ABANDONED: list[sqlite3.Connection] = []


class Database:
    """Safe to share between threads and to carry across a fork."""

    def __init__(
        self,
        path: Path,
        *,
        busy_seconds: float = 30.0,
        now_ms: clock.Wall = clock.wall_ms,
    ) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._now_ms = now_ms
        self._sql = queries()
        self._lock = threading.RLock()
        self._depth = 0
        self._pid = os.getpid()
        self._connection = self._connect()
        try:
            version = version_of(self._connection)
        except sqlite3.Error as error:
            raise translated(error) from error
        if version > SQLITE_VERSION:
            raise NewerDatabaseError(
                f"{path} has schema {version}, this syncd knows up to {SQLITE_VERSION}"
            )
        self.device_id = self._state("device_id") if version else ""

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path.resolve().as_uri() + "?mode=rw",
                uri=True,
                timeout=self._busy_seconds,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.execute("PRAGMA synchronous = FULL")
            if sys.platform == "darwin":
                # Only this makes macOS write through the drive's own cache.
                connection.execute("PRAGMA fullfsync = 1")
                connection.execute("PRAGMA checkpoint_fullfsync = 1")
        except sqlite3.Error as error:
            raise translated(error) from error
        return connection

    @property
    def connection(self) -> sqlite3.Connection:
        if self._pid != os.getpid():
            _ABANDONED.append(self._connection)
            self._lock, self._depth, self._pid = threading.RLock(), 0, os.getpid()
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        with self._lock:
            self.connection.close()

    def transaction(self) -> _Transaction:
        """Everything inside is on disk when this ends, or none of it is. May be nested."""
        return _Transaction(self)

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        connection = self.connection
        try:
            with self._lock:
                return connection.execute(self._sql[query], tuple(parameters)).fetchall()
        except sqlite3.Error as error:
            raise translated(error) from error

    def row(self, query: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        connection = self.connection
        try:
            with self._lock:
                row: tuple[Any, ...] | None = connection.execute(
                    self._sql[query], parameters
                ).fetchone()
                return row
        except sqlite3.Error as error:
            raise translated(error) from error

    def _rolled_back(self) -> None:
        """Called after a transaction that failed."""

    def _state(self, name: str) -> str:
        row = self.row("state", (name,))
        return row[0] if row else ""


# --- what SQLite's errors mean to a user ------------------------------------------------------

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
}


def translated(error: sqlite3.Error) -> SyncdError:
    """SQLite's error as one of ours, with its remedy."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if "decode to UTF-8" in str(error):
        code = sqlite3.SQLITE_CORRUPT
    kind, meaning = _MEANINGS.get(code, (StoreError, "the database refused"))
    return kind(f"{meaning} ({error})")


class _Transaction:
    """A write transaction. A class, because a generator costs every write some microseconds."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        database = self._database
        connection = database.connection
        database._lock.acquire()
        if database._depth == 0:
            try:
                # IMMEDIATE: a plain BEGIN that reads first fails at once if another wrote since.
                connection.execute("BEGIN IMMEDIATE")
            except BaseException as error:
                database._lock.release()
                if isinstance(error, sqlite3.Error):
                    raise translated(error) from error
                raise
        database._depth += 1

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        database = self._database
        database._depth -= 1
        try:
            if database._depth == 0:
                self._end(database._connection, failed=error is not None)
                if error is not None:
                    database._rolled_back()
        finally:
            database._lock.release()
        if isinstance(error, sqlite3.Error):
            raise translated(error) from error

    def _end(self, connection: sqlite3.Connection, *, failed: bool) -> None:
        try:
            if not failed:
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
