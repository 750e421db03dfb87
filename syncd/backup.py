"""Copies of the database, made while it is in use, and the way back to one of them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from syncd import bodies
from syncd.audit import verify_database
from syncd.bodies import plain_left
from syncd.database import unforked
from syncd.entry import Entry
from syncd.errors import (
    BackupRefusedError,
    CheckpointNotFoundError,
    DatabaseCorruptError,
    KeyMissingError,
)
from syncd.loss import BEGUN_ANEW
from syncd.purges import holds, leave_out
from syncd.refusals import translated
from syncd.sql import (
    SQLITE_VERSION,
    bring_up_to_date,
    exclusive,
    migrate_sqlite,
    queries,
    version_of,
)
from syncd.vault import Vault

REPLACED, DAMAGED = "replaced", "damaged"
# Nothing is taken out of the copies while one is being made: it would be missed.
_LOCK = "backup.lock"


class Backup(NamedTuple):
    """`intact` is what the audit of the copy said when it was made."""

    name: str
    path: Path
    bytes: int
    created_at: str
    intact: bool


class Restored(NamedTuple):
    """How many entries are back, how many only the replaced database has, and where it is."""

    entries: int
    only_in_replaced: int
    replaced: Path


def create(
    database: Path, folder: Path, keep: int, label: str = "", vault: Vault | None = None
) -> Backup:
    """Copy the database as it is now. The copy is audited: one with damage is kept and named so,
    and never takes the place of an intact one."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with exclusive(folder / _LOCK):
        path = _copied(database, folder, label, vault)
        _prune(folder, keep)
        return _described(path)


def _copied(database: Path, folder: Path, label: str, vault: Vault | None) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    draft = folder / f"context-{stamp}.part"
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            unforked,
            closing(_open(database, "ro")) as source,
            closing(_open(draft, "rw")) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            intact = not verify_database(copy, {}, vault).problems
        labels = [word for word in (label, "" if intact else DAMAGED) if word]
        path = folder / f"{'-'.join([f'context-{stamp}', *labels])}.db"
        _sync(draft)
        draft.rename(path)
    except sqlite3.Error as error:
        raise translated(error) from error
    finally:
        draft.unlink(missing_ok=True)
    _sync(folder)
    return path


def available(folder: Path) -> list[Backup]:
    """Newest first."""
    paths = sorted(folder.glob("context-*.db"), key=lambda path: path.name, reverse=True)
    return [_described(path) for path in paths]


def entries(copy: Backup) -> int | None:
    """How many there are in a copy; None where that cannot be read. The log has no gaps."""
    try:
        with closing(_open(copy.path, "ro")) as database:
            found: int = database.execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()[0]
    except sqlite3.Error:
        return None
    return found


def restore(database: Path, folder: Path, name: str, vault: Vault | None = None) -> Restored:
    """Put a backup in the database's place; refuses a damaged one, keeps what it replaces."""
    source = _located(folder, name)
    with closing(_open(source, "ro")) as backup:
        entries, device = _checked(backup, source, vault)
    ours = [] if _is_copy_of_what_is_gone(source, folder, database) else _ids_of(database)
    if ours and device not in ours:
        raise BackupRefusedError(
            f"{source.name} is from another device ({device}, this one is {' or '.join(ours)})",
            "Restore it in that device's home.",
        )
    incoming = _up_to_date_copy(source, folder)
    try:
        with unforked:
            replaced = _exchange(database, folder, incoming, vault)
        return Restored(entries, _only_in(replaced, database), replaced)
    except sqlite3.Error as error:
        raise translated(error) from error
    finally:
        incoming.unlink(missing_ok=True)


# --- what was purged ----------------------------------------------------------------------------


def purge(folder: Path, purges: Sequence[Entry]) -> list[Path]:
    """Take out of every copy what was purged since it was made."""
    return _every(
        folder,
        lambda copy: any(holds(copy, purge) for purge in purges),
        lambda copy: leave_out(copy, purges),
    )


def seal(folder: Path, vault: Vault) -> list[Path]:
    """Seal what lies plain in the copies."""
    return _every(folder, plain_left, partial(_sealed, vault))


def _sealed(vault: Vault, copy: sqlite3.Connection) -> bool:
    found = plain_left(copy)
    after = bodies.seal(copy, vault)
    while after:
        after = bodies.seal(copy, vault, after)
    bodies.seal_rest(copy, vault)
    return found


# What is to be done with a copy; whether anything was.
_Look = Callable[[sqlite3.Connection], bool]


def _every(folder: Path, needed: _Look, change: _Look) -> list[Path]:
    """Change every copy that needs it; those that cannot be read are returned. Each is replaced as
    a whole, or stays as it is."""
    unread = list(folder.glob("*.damaged*"))
    with unforked, exclusive(folder / _LOCK):
        for draft in folder.glob("context-*.part"):  # left by a process that was ended
            draft.unlink()
        for path in (*folder.glob("context-*.db"), *folder.glob("incoming-*.part")):
            try:
                _change(path, needed, change)
            except (sqlite3.Error, BackupRefusedError):
                unread.append(path)
    return unread


def _change(path: Path, needed: _Look, change: _Look) -> None:
    with closing(_open(path, "ro")) as copy:
        version = version_of(copy)
        if version == SQLITE_VERSION and not needed(copy):
            return
    if not 0 < version <= SQLITE_VERSION:
        raise BackupRefusedError(f"{path.name} is not a database that this syncd can read")
    draft = path.with_name(f"context-{path.name}.part")
    try:
        shutil.copyfile(path, draft)
        draft.chmod(0o600)
        if _rewritten(draft, change):
            shutil.copystat(path, draft)
            _sync(draft)
            draft.replace(path)
            _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _rewritten(draft: Path, change: _Look) -> bool:
    """Whether there was anything to change. The file is written anew: in the unused parts of the
    old one there may be more."""
    with closing(_open(draft, "rw")) as copy:
        copy.execute("PRAGMA journal_mode = MEMORY")
        if version_of(copy) < SQLITE_VERSION:
            bring_up_to_date(copy)
        copy.execute("BEGIN")
        found = change(copy)
        copy.execute("COMMIT")
        if found:
            copy.execute("VACUUM")
            copy.execute("PRAGMA journal_mode = DELETE")
    return found


# --- restoring ----------------------------------------------------------------------------------


def _up_to_date_copy(source: Path, folder: Path) -> Path:
    """A backup from before a migration is brought to today's schema, on a copy."""
    copy = folder / f"incoming-{os.getpid()}.part"
    copy.unlink(missing_ok=True)
    shutil.copyfile(source, copy)
    copy.chmod(0o600)
    with closing(_open(copy, "rw")) as connection:
        migrate_sqlite(connection, folder / "migrate.lock")
        connection.execute("PRAGMA journal_mode = DELETE")
    return copy


def _exchange(database: Path, folder: Path, incoming: Path, vault: Vault | None) -> Path:
    """Swap the contents in one transaction: writers wait, and none of their entries is lost."""
    try:
        with closing(_open(database, "rw")) as live:
            if not version_of(live):
                return _replace_damaged(database, folder, incoming)
            live.execute("ATTACH ? AS incoming", (f"{incoming.resolve().as_uri()}?mode=ro",))
            live.execute("BEGIN IMMEDIATE")
            replaced = create(database, folder, keep=0, label=REPLACED, vault=vault).path
            for (table,) in live.execute(_TABLES).fetchall():
                live.execute(f"DELETE FROM main.{table}")  # noqa: S608 (names from the schema)
                live.execute(f"INSERT INTO main.{table} SELECT * FROM incoming.{table}")  # noqa: S608
            live.execute("COMMIT")
            return replaced
    except DatabaseCorruptError:
        return _replace_damaged(database, folder, incoming)
    except sqlite3.Error as error:
        if not isinstance(translated(error), DatabaseCorruptError):
            raise
        return _replace_damaged(database, folder, incoming)


def _replace_damaged(database: Path, folder: Path, incoming: Path) -> Path:
    replaced = _set_aside(database, folder)
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    incoming.replace(database)
    with closing(_open(database, "rw")) as live:
        live.execute("PRAGMA journal_mode = WAL")
    return replaced


_TABLES = "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE '%sqlite%'"


def _checked(backup: sqlite3.Connection, source: Path, vault: Vault | None) -> tuple[int, str]:
    """How many entries a backup has, and whose they are; refuses one that is not intact."""
    try:
        version = version_of(backup)
        if not 0 < version <= SQLITE_VERSION:
            raise BackupRefusedError(f"{source.name} is not a database that this syncd can read")
        report = verify_database(backup, {}, vault)
        device = backup.execute(queries()["state"], ("device_id",)).fetchone()[0]
    except sqlite3.Error as error:
        raise BackupRefusedError(f"{source.name} is damaged ({error})") from None
    if report.problems:
        first = report.problems[0]
        named = f"entry {first.entry_id}: " if first.entry_id else ""
        raise BackupRefusedError(f"{source.name} is damaged ({named}{first.problem})")
    if report.closed:
        why = report.closed.why
        raise KeyMissingError(f"{source.name} cannot be checked: {why.message}", why.remedy)
    return report.entries, device


def _set_aside(database: Path, folder: Path) -> Path:
    """Keep a database that SQLite cannot read any more, byte for byte."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = folder / f"context-{stamp}-{REPLACED}.damaged"
    for suffix in ("", "-wal"):
        part = database.with_name(database.name + suffix)
        if part.exists():
            shutil.copy2(part, kept.with_name(kept.name + suffix))
    return kept


def _only_in(replaced: Path, database: Path) -> int:
    """How many entries the replaced database has and the present one has not."""
    try:
        with closing(_open(replaced, "ro")) as old, closing(_open(database, "ro")) as new:
            ids = queries()["all_ids"]
            return len({row[0] for row in old.execute(ids)} - {row[0] for row in new.execute(ids)})
    except sqlite3.Error:
        return 0


def _ids_of(path: Path) -> list[str]:
    """All ids that the device of a database has had; none if it cannot be read."""
    try:
        with closing(_open(path, "ro")) as connection:
            return [row[0] for row in connection.execute(queries()["own_ids"])]
    except sqlite3.Error:
        return []


def _is_copy_of_what_is_gone(source: Path, folder: Path, database: Path) -> bool:
    """This home's own, from before it had to begin anew under another id."""
    try:
        with closing(_open(database, "ro")) as connection:
            begun = connection.execute(queries()["state"], (BEGUN_ANEW,)).fetchone()
    except sqlite3.Error:
        return False
    return begun is not None and source.resolve().parent == folder.resolve()


def _located(folder: Path, name: str) -> Path:
    """A backup by its name, or any file by its path."""
    for path in (folder / name, folder / f"{name}.db", Path(name)):
        if path.is_file():
            return path
    raise CheckpointNotFoundError(f"there is no backup {name!r}", "See `syncd backup list`.")


def _prune(folder: Path, keep: int) -> None:
    """Oldest first out, damaged ones apart; what a restore replaced is not ours to delete."""
    regular = [b for b in available(folder) if REPLACED not in b.name]
    for kind in (True, False):
        for old in [b for b in regular if b.intact is kind][keep:] if keep else ():
            old.path.unlink()


def _described(path: Path) -> Backup:
    stat = path.stat()
    created = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    return Backup(path.stem, path, stat.st_size, created, DAMAGED not in path.stem)


def _open(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
