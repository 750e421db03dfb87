"""Copies of the database, made while it is in use, and the way back to one of them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from syncd.audit import verify_database
from syncd.errors import CheckpointNotFoundError, DatabaseCorruptError, HomeError
from syncd.sql import SQLITE_VERSION, queries, version_of
from syncd.store import translated

REPLACED = "replaced"


class Backup(NamedTuple):
    name: str
    path: Path
    bytes: int
    created_at: str


class Restored(NamedTuple):
    """`lost_ids` are the entries that only the replaced database has."""

    entries: int
    only_in_replaced: int
    replaced: Path


def create(database: Path, folder: Path, keep: int, label: str = "") -> Backup:
    """Copy the database as it is now; the copy is checked before it counts."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"context-{stamp}{'-' + label if label else ''}.db"
    draft = path.with_suffix(".part")
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(_open(database, "ro")) as source, closing(_open(draft, "rw")) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            check = copy.execute("PRAGMA quick_check").fetchone()[0]
        if check != "ok":
            raise DatabaseCorruptError(f"the database is damaged, it was not backed up: {check}")
        _sync(draft)
        draft.rename(path)
    except sqlite3.Error as error:
        raise translated(error) from error
    finally:
        draft.unlink(missing_ok=True)
    _sync(folder)
    _prune(folder, keep)
    return _described(path)


def available(folder: Path) -> list[Backup]:
    """Newest first."""
    paths = sorted(folder.glob("context-*.db"), key=lambda path: path.name, reverse=True)
    return [_described(path) for path in paths]


def restore(database: Path, folder: Path, name: str) -> Restored:
    """Put a backup in the database's place; refuses a damaged one, keeps what it replaces."""
    source = _located(folder, name)
    with closing(_open(source, "ro")) as backup:
        entries, device = _checked(backup, source)
        replaced = _set_aside(database, folder)
        ours = _device_of(replaced)
        if ours and device != ours:
            raise HomeError(
                f"{source.name} is from another device ({device}, this one is {ours})",
                "Restore it in that device's home.",
            )
        try:
            _fill(database, backup)
        except sqlite3.Error as error:
            raise translated(error) from error
        return Restored(entries, _entries_missing(replaced, backup), replaced)


def _checked(backup: sqlite3.Connection, source: Path) -> tuple[int, str]:
    try:
        version = version_of(backup)
        if not 0 < version <= SQLITE_VERSION:
            raise DatabaseCorruptError(f"{source.name} is not a database this syncd can read")
        report = verify_database(backup, {})
        device = backup.execute(queries()["state"], ("device_id",)).fetchone()[0]
    except sqlite3.Error as error:
        raise DatabaseCorruptError(
            f"{source.name} is damaged ({error}); nothing was changed", _OTHER
        ) from None
    if not report.ok:
        first = report.problems[0]
        raise DatabaseCorruptError(
            f"{source.name} is damaged (entry {first.entry_id or '?'}: {first.problem}); "
            "nothing was changed",
            _OTHER,
        )
    return report.entries, device


_OTHER = "Choose another one: `syncd backup list`."


def _set_aside(database: Path, folder: Path) -> Path:
    """Keep the present database, byte for byte if SQLite can no longer read it."""
    try:
        return create(database, folder, keep=0, label=REPLACED).path
    except (DatabaseCorruptError, HomeError):
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        kept = folder / f"context-{stamp}-{REPLACED}.damaged"
        for suffix in ("", "-wal"):
            part = database.with_name(database.name + suffix)
            if part.exists():
                shutil.copy2(part, kept.with_name(kept.name + suffix))
        return kept


def _fill(database: Path, backup: sqlite3.Connection) -> None:
    """Through SQLite where possible: programs that have the database open go on with it."""
    try:
        with closing(_open(database, "rw")) as live:
            backup.backup(live)
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            database.with_name(database.name + suffix).unlink(missing_ok=True)
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, 0o600))
        with closing(_open(database, "rw")) as live:
            backup.backup(live)
            live.execute("PRAGMA journal_mode = WAL")


def _entries_missing(replaced: Path, backup: sqlite3.Connection) -> int:
    try:
        with closing(_open(replaced, "ro")) as old:
            ids = {row[0] for row in old.execute("SELECT entry_id FROM log")}
    except sqlite3.Error:
        return 0
    return len(ids - {row[0] for row in backup.execute("SELECT entry_id FROM log")})


def _device_of(path: Path) -> str:
    try:
        with closing(_open(path, "ro")) as connection:
            row = connection.execute(queries()["state"], ("device_id",)).fetchone()
    except sqlite3.Error:
        return ""
    return row[0] if row else ""


def _located(folder: Path, name: str) -> Path:
    """A backup by its name, or any file by its path."""
    for path in (folder / name, folder / f"{name}.db", Path(name)):
        if path.is_file():
            return path
    raise CheckpointNotFoundError(f"there is no backup {name!r}", "See `syncd backup list`.")


def _prune(folder: Path, keep: int) -> None:
    """Oldest first out; what a restore replaced is not ours to delete."""
    regular = [b for b in available(folder) if REPLACED not in b.name]
    for old in regular[keep:] if keep else ():
        old.path.unlink()


def _described(path: Path) -> Backup:
    stat = path.stat()
    created = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    return Backup(path.stem, path, stat.st_size, created)


def _open(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
