"""Named queries and migrations, read from the .sql files that ship with the package."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from syncd.errors import NewerDatabaseError, StoreBusyError

# `-- name --`, a line or more that say what for, the statement.
_NAMED = re.compile(r"^-- (\w+) --\n(?:-- [^\n]+\n)+(.+?)(?=\n\n-- |\Z)", re.M | re.S)


def shipped(folder: str) -> Path:
    """`schema`, `migrations`, `systemd`: inside the installed package, beside it in a checkout."""
    package = Path(__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


@cache
def queries() -> dict[str, str]:
    """To the local database."""
    return _named("queries.sql")


@cache
def replica_queries() -> dict[str, bytes]:
    """To the replica; as bytes, because psycopg takes those for texts that are not literals."""
    return {name: statement.encode() for name, statement in _named("replica.sql").items()}


def _named(file: str) -> dict[str, str]:
    text = (shipped("schema") / file).read_text(encoding="utf-8")
    return {name: statement.strip() for name, statement in _NAMED.findall(text)}


class AdminQuery(NamedTuple):
    """A block of admin.sql. All but the first three name columns; `words` those in which only some
    words stand."""

    name: str
    help: str
    statement: str
    shown: tuple[str, ...]
    filters: tuple[str, ...]
    order: tuple[str, ...]
    since: str
    words: dict[str, tuple[str, ...]]


_BLOCK = re.compile(r"^-- (\w+) --\n((?:-- [^\n]+\n)+)(.+?)(?=\n\n-- \w+ --\n|\Z)", re.M | re.S)
_DIRECTIVE = re.compile(r"(shown|filters|order|since|\w+ is): (.+)")


@cache
def admin_queries() -> dict[str, AdminQuery]:
    """What administrators ask the replica, by name, in the order of the file."""
    text = (shipped("schema") / "admin.sql").read_text(encoding="utf-8")
    return {name: _admin_query(name, *block) for name, *block in _BLOCK.findall(text)}


def _admin_query(name: str, comment: str, statement: str) -> AdminQuery:
    lines = [line.removeprefix("-- ") for line in comment.splitlines()]
    told = {m[1]: m[2] for line in lines if (m := _DIRECTIVE.fullmatch(line))}
    text = " ".join(line for line in lines if not _DIRECTIVE.fullmatch(line))
    words = {
        part.removesuffix(" is"): tuple(said.split(", "))
        for part, said in told.items() if part.endswith(" is")
    }  # fmt: skip
    shown, filters, order = (
        tuple(told.get(part, "").split(", ")) for part in ("shown", "filters", "order")
    )
    since = told.get("since", "")
    return AdminQuery(name, text, statement.strip(), shown, filters, order, since, words)


def admin_views() -> bytes:
    """Make a view of each, in place of what was there. Views of other names stay."""
    made = "".join(_view(query) for query in admin_queries().values())
    return f"SET LOCAL ROLE syncd_owner;\n{made}RESET ROLE;\n".encode()


def _view(query: AdminQuery) -> str:
    view, words = f"syncd.admin_{query.name}", query.help.replace("'", "''")
    return (
        f"DROP VIEW IF EXISTS {view};\n"
        f"CREATE VIEW {view} WITH (security_invoker = true) AS\n{query.statement};\n"
        f"COMMENT ON VIEW {view} IS '{words}';\n"
        f"GRANT SELECT ON {view} TO syncd_auditor, syncd_admin;\n"
    )


def sqlite_steps() -> list[Path]:
    return sorted((shipped("migrations") / "sqlite").glob("[0-9]*.sql"))


def postgres_steps() -> list[Path]:
    return sorted((shipped("migrations") / "postgres").glob("[0-9]*.sql"))


def statements(script: str) -> Iterator[str]:
    """Split a script where SQLite itself sees the end of a statement."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if pending.strip():
        yield pending.strip()


# One migration file, one version. A test holds it equal to the number of files, so that opening
# an up-to-date database need not list a directory.
SQLITE_VERSION = 5
POSTGRES_VERSION = 5
# A device does with the replica of one release before.
POSTGRES_NEEDED = 2


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate_sqlite(
    connection: sqlite3.Connection,
    lock: Path,
    before: Callable[[], object] | None = None,
) -> list[str]:
    """Bring a database to today's schema; each step and its record share a transaction."""
    if version_of(connection) > SQLITE_VERSION:
        raise NewerDatabaseError(
            f"the database has schema {version_of(connection)}, "
            f"this syncd knows up to {SQLITE_VERSION}"
        )
    with exclusive(lock):
        version = version_of(connection)
        if version == SQLITE_VERSION:
            return []
        if version and before:
            before()
        return bring_up_to_date(connection)


def bring_up_to_date(connection: sqlite3.Connection) -> list[str]:
    """The pending steps, on a database that nobody else is using."""
    from sqlite_utils import Database, Migrations

    migrations = Migrations("syncd")
    for number, path in enumerate(sqlite_steps(), start=1):
        migrations(name=path.stem)(_step(number, path))
    database = Database(connection)
    applied = [migration.name for migration in migrations.pending(database)]
    migrations.apply(database)
    return applied


def _step(number: int, path: Path) -> Callable[..., None]:
    def step(database: object) -> None:
        connection: sqlite3.Connection = database.conn  # type: ignore[attr-defined]
        for statement in statements(path.read_text(encoding="utf-8")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")

    return step


@contextmanager
def exclusive(lock: Path, seconds: float | None = None) -> Iterator[None]:
    """Only one process at a time; the lock goes with the process that holds it. Others wait for
    their turn, or give up after some seconds."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if seconds is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            _lock_within(descriptor, lock, seconds)
        yield
    finally:
        os.close(descriptor)


def _lock_within(descriptor: int, lock: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    f"another program has held {lock} for {seconds:g} s",
                    f"Wait for it, or end it: `lsof {lock}` names it.",
                ) from None
        time.sleep(0.02)
