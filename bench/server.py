"""PostgreSQL for the sync part: the embedded one, as durable as a user has it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from syncd import cluster, embedded
from syncd.replica import Administration
from syncd.replica.login import credentials

DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
_AT_ONCE = 100
# The functions that `syncd admin` calls, many times in one statement; one password does for all.
_CROWD = """
  SELECT syncd.add_member(syncd.create_organization('organization ' || n), 'member', 'member',
    'machine', 'syncd_login_' || md5(n::text), %s)
  FROM generate_series(%s::int, %s::int) AS n
"""


class Server:
    """A cluster of its own. Each round gets a new database, a copy of a migrated empty one."""

    def __init__(self, folder: Path, organizations: int) -> None:
        self._folder = folder
        started = embedded.up(folder, embedded.DEFAULT_VERSION)
        self._base, self._port = started.pgdata.parent, started.port
        with closing(Administration(started.admin_dsn)) as administration:
            administration.migrate()
            _crowd(administration, organizations)
        self._superuser = psycopg.connect(self.superuser_dsn("postgres"), autocommit=True)
        self._numbers = count(1)
        self._assert_durable()

    def _assert_durable(self) -> None:
        found = {name: self._setting(name) for name in DURABLE}
        if set(found.values()) != {"on"}:
            raise AssertionError(f"not a durable server: {found}")

    def _setting(self, name: str) -> str:
        row = self._superuser.execute("SELECT current_setting(%s)", (name,)).fetchone()
        return str(row[0]) if row else ""

    @property
    def version(self) -> str:
        return self._setting("server_version")

    def superuser_dsn(self, database: str) -> str:
        return cluster.dsn(self._base, self._port, cluster.SUPERUSER, database)

    def settle(self) -> None:
        """Write out what earlier turns left, so that nobody pays for another's."""
        self._superuser.execute("CHECKPOINT")

    @contextmanager
    def database(self) -> Iterator[Database]:
        """A replica without entries, gone afterwards."""
        name = f"measured_{next(self._numbers)}"
        template, owner = map(sql.Identifier, (cluster.DATABASE, cluster.ADMINISTRATOR))
        self._run("CREATE DATABASE {} TEMPLATE {}", sql.Identifier(name), template)
        # A copy does not inherit the grants on the database itself.
        self._run("GRANT CONNECT, CREATE ON DATABASE {} TO {}", sql.Identifier(name), owner)
        dsn = cluster.dsn(self._base, self._port, database=name)
        try:
            yield Database(dsn, self.superuser_dsn(name))
        finally:
            self._run("DROP DATABASE {} WITH (FORCE)", sql.Identifier(name))

    def _run(self, statement: LiteralString, *names: sql.Identifier) -> None:
        self._superuser.execute(sql.SQL(statement).format(*names))

    def close(self) -> None:
        self._superuser.close()
        embedded.down(self._folder)
        shutil.rmtree(self._base)


class Database:
    """One round's replica, with one organization of two members."""

    def __init__(self, admin_dsn: str, superuser_dsn: str) -> None:
        self._admin_dsn = admin_dsn
        self._superuser_dsn = superuser_dsn
        with closing(Administration(admin_dsn)) as administration:
            made = administration.create_organization("measured")
            self.writer, self.reader = (
                administration.add_member(made, name, "member", "laptop").dsn
                for name in ("Ada", "Bob")
            )

    def strangers(self, count: int) -> list[str]:
        """Logins of as many machines, all of one other organization."""
        with closing(Administration(self._admin_dsn)) as administration:
            made = administration.create_organization("elsewhere")
            administration.add_member(made, "Eve", "member", "laptop")
            return [
                administration.add_machine(made, "Eve", f"machine {number}").dsn
                for number in range(count)
            ]

    def bare(self) -> psycopg.Connection[Any]:
        """A connection that no policy hinders."""
        return psycopg.connect(self._superuser_dsn, autocommit=True)


def _crowd(administration: Administration, organizations: int) -> None:
    verifier = credentials(administration.connection).verifier
    for first in range(1, organizations + 1, _AT_ONCE):
        last = min(first + _AT_ONCE - 1, organizations)
        administration.connection.execute(_CROWD, (verifier, first, last))


@contextmanager
def server(folder: Path, organizations: int = 0) -> Iterator[Server]:
    folder.mkdir()
    started = Server(folder, organizations)
    try:
        yield started
    finally:
        started.close()
