"""One SQLite connection, made safe: threads, forks, nested transactions, errors that help."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from syncd import clock
from syncd.errors import (
    DatabaseCorruptError,
    NewerDatabaseError,
    ReadOnlyError,
)
from syncd.refusals import translated
from syncd.sql import SQLITE_VERSION, queries, version_of

# Who finds the database locked looks again after 1, 3 and 8 milliseconds, and so on. Left to
# itself, SQLite soon sleeps 100 at a time, while those who come later get in.
_LOOK_AGAIN_MS = 8

T = TypeVar("T")


class Database:
    """Safe to share between threads and to carry across a fork."""

    # What the query `columns` gives: rows are taken by position.
    columns: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path,
        *,
        busy_seconds: float = 30.0,
        now_ms: clock.Wall = clock.wall_ms,
    ) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        # The clock that entries are dated with.
        self.now_ms = now_ms
        self.sql = queries()
        self._lock = threading.RLock()
        self._depth = 0
        self._frozen = False
        self._decoder: Callable[[bytes], str] = str
        self.inode = 0
        self._connection: sqlite3.Connection = None  # type: ignore[assignment]
        with unforked:
            _OPEN.add(self)
        try:
            self.schema_version = self._checked_version()
        except BaseException:
            self.close()
            raise

    def _checked_version(self) -> int:
        try:
            version = version_of(self.connection)
        except _REFUSED as error:
            raise translated(error) from error
        if version > SQLITE_VERSION:
            raise NewerDatabaseError(
                f"{self.path} has schema {version}, this syncd knows up to {SQLITE_VERSION}"
            )
        if version == SQLITE_VERSION and self._columns_found() != self.columns:
            raise DatabaseCorruptError(f"{self.path} has other tables than it was made with")
        return version

    def _columns_found(self) -> tuple[str, ...]:
        """As the file describes its tables, which may be what is damaged."""
        try:
            described = self.execute(self.sql["columns"]).description
        except _REFUSED as error:
            raise translated(error) from error
        return tuple(column[0] for column in described)

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, opened when it is needed first, and again after a fork."""
        if self._connection is None:
            with self._lock:
                if self._connection is None:
                    self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        try:
            try:
                return self._open("mode=rw")
            except sqlite3.OperationalError as error:
                # Where nobody can write, SQLite may read without the files it writes beside;
                # but not past a log of writes that are not in the database yet.
                unwritable = not os.access(self.path.parent, os.W_OK)
                if error.sqlite_errorcode != sqlite3.SQLITE_CANTOPEN or not unwritable:
                    raise
                wal = self.path.with_name(self.path.name + "-wal")
                if wal.exists() and wal.stat().st_size:
                    raise ReadOnlyError(
                        f"{self.path.parent} is read-only, and its newest entries are in a log "
                        "that can only be read where it can be written"
                    ) from None
                self._frozen = True
                return self._open("mode=ro&immutable=1")
        except _REFUSED as error:
            raise translated(error) from error

    def _open(self, how: str) -> sqlite3.Connection:
        with suppress(OSError):  # opening it says what is wrong
            self.inode = self.path.stat().st_ino
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{how}",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.text_factory = self._decoder
            connection.execute("PRAGMA synchronous = FULL")
            if sys.platform == "darwin":
                # Only this makes macOS write through the drive's own cache.
                connection.execute("PRAGMA fullfsync = 1")
                connection.execute("PRAGMA checkpoint_fullfsync = 1")
            version_of(connection)  # the first statement that looks into the file
            connection.execute(f"PRAGMA busy_timeout = {_LOOK_AGAIN_MS}")
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def is_frozen(self) -> bool:
        """Whether it lies where nobody can write, and is read without looking for changes."""
        return self.connection is not None and self._frozen

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None  # type: ignore[assignment]

    @property
    def device_id(self) -> str:
        """Asked each time: a sync that finds a clone gives it a new one."""
        row = self.row("state", ("device_id",))
        return row[0] if row else ""

    def locked(self) -> AbstractContextManager[bool]:
        """For reads that take several steps on the one connection."""
        return self._lock

    def transaction(self, *, patient: bool = True) -> _Transaction:
        """Everything inside is on disk when this ends, or none of it is. May be nested. Without
        patience, it fails soon if somebody else is writing."""
        return _Transaction(self, patient)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see one moment."""
        with self._lock:
            if self._depth:
                yield
                return
            self.execute("BEGIN")
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                self._connection.execute("ROLLBACK")
                self._let_go()

    def execute(self, text: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """SQLite's own, with the patience that is set for a database that is locked."""
        try:
            return self.connection.execute(text, parameters)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        return patiently(lambda: self.connection.execute(text, parameters), self._busy_seconds)

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                rows = self._fetched(self.sql[query], tuple(parameters), -1)
                self._let_go()
                return rows
        except _REFUSED as error:
            raise translated(error) from error

    def row(self, query: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...] | None:
        try:
            with self._lock:
                rows = self._fetched(self.sql[query], parameters, 1)
                self._let_go()
                return rows[0] if rows else None
        except _REFUSED as error:
            raise translated(error) from error

    def _fetched(self, text: str, values: tuple[Any, ...], limit: int) -> list[tuple[Any, ...]]:
        """Damaged text must not hide what is read with it: its hash will tell."""
        try:
            found = self.execute(text, values)
            return found.fetchall() if limit < 0 else found.fetchmany(limit)
        except (sqlite3.OperationalError, UnicodeDecodeError) as error:
            if "decode" not in str(error):
                raise
        with self.tolerating():
            return self.execute(text, values).fetchall()

    @contextmanager
    def tolerating(self) -> Iterator[None]:
        """Inside, damaged text is read as far as it goes."""
        before, self._decoder = self._decoder, _tolerant
        self.connection.text_factory = _tolerant
        try:
            yield
        finally:
            self._decoder = before
            if self._connection is not None:
                self._connection.text_factory = before

    def change(self, query: str, parameters: tuple[Any, ...] = ()) -> None:
        """A named statement that writes, inside the caller's transaction."""
        self._connection.execute(self.sql[query], parameters)

    def _let_go(self) -> None:
        """A connection to an immutable file never looks at it again: others may write it where
        it is not read-only, so the next read opens it anew."""
        if self._frozen and self._depth == 0:
            self.close()
            self._frozen = False

    def _rolled_back(self) -> None:
        """Called after a transaction that failed."""


# Beside SQLite's own: texts and numbers that it cannot be asked about.
_REFUSED = (sqlite3.Error, UnicodeError, OverflowError)


def _tolerant(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def patiently(work: Callable[[], T], seconds: float) -> T:
    """Do it, again for as long as SQLite says that the database is locked."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.001)  # some refusals come at once


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


class _Transaction:
    """A write transaction. A class, because a generator costs every write some microseconds."""

    __slots__ = ("_database", "_patient")

    def __init__(self, database: Database, patient: bool) -> None:
        self._database, self._patient = database, patient

    def __enter__(self) -> None:
        database = self._database
        database._lock.acquire()
        if database._depth == 0:
            try:
                # IMMEDIATE: a plain BEGIN that reads first fails at once if another wrote since.
                begin = database.execute if self._patient else database.connection.execute
                begin("BEGIN IMMEDIATE")
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


# --- forks ------------------------------------------------------------------------------------

# SQLite remembers its locks per process, so that a connection, and even a new one, in a forked
# child believes to hold locks that only the parent has. Every connection is therefore closed
# before a fork, once it is idle, and opened again on either side when it is needed. Who opens a
# connection of his own holds `unforked` for as long as it is open: a fork waits for that.
unforked = threading.RLock()
_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
_held: list[Database] = []


def _before_fork() -> None:
    unforked.acquire()
    for database in sorted(_OPEN, key=id):
        database._lock.acquire()
        _held.append(database)
        if database._depth == 0:
            database.close()


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()
    unforked.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
