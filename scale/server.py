"""PostgreSQL as durable as a user has it, PgBouncer before it, and the logins of many machines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from syncd import account, cluster, embedded
from syncd.replica import Administration
from syncd.replica.login import credentials

VERSION = "18"
DURABLE = ("fsync", "synchronous_commit", "full_page_writes")
# What an administrator sets for a server of this size; nothing that a crash could tell apart.
TUNED = {"shared_buffers": "1GB", "max_wal_size": "2GB", "checkpoint_timeout": "15min"}
_SPARE_CONNECTIONS = 60
_SECONDS = 20.0
# One password does for all: what a login costs the server does not depend on it.
_MACHINES = """
  SELECT syncd.add_member(%s::uuid, 'developer ' || n, 'member', 'laptop',
    'syncd_login_' || md5(%s || n), %s) FROM generate_series(1, %s::int) AS n
"""
_ROLES = "SELECT 'syncd_login_' || md5(%s || n) FROM generate_series(1, %s::int) AS n"


class Machine(NamedTuple):
    """A login, and the organization it belongs to."""

    organization_id: str
    dsn: str


class Server:
    """A cluster of its own."""

    def __init__(self, base: Path, connections: int) -> None:
        self.base, self.port = base, cluster.free_port()
        program, is_new = embedded.binaries(VERSION), not base.exists()
        if is_new:
            cluster.make_folder(base)
            cluster.initialise(base, program, VERSION)
        options = {**TUNED, "max_connections": str(connections + _SPARE_CONNECTIONS)}
        cluster.start(base, program, self.port, options)
        if is_new:
            with closing(Administration(self.admin_dsn())) as administration:
                administration.migrate()
        self._superuser = psycopg.connect(self.superuser_dsn(), autocommit=True)
        self._assert_durable()

    def _assert_durable(self) -> None:
        found = {name: self.sql("SELECT current_setting(%s)", name)[0][0] for name in DURABLE}
        if set(found.values()) != {"on"}:
            raise AssertionError(f"not a durable server: {found}")

    def admin_dsn(self, database: str = cluster.DATABASE) -> str:
        return cluster.dsn(self.base, self.port, database=database)

    def superuser_dsn(self, database: str = cluster.DATABASE) -> str:
        return cluster.dsn(self.base, self.port, cluster.SUPERUSER, database)

    def database(self, name: str) -> None:
        """Another replica without entries, in place of one that was left half done."""
        made, template = sql.Identifier(name), sql.Identifier(cluster.DATABASE)
        owner = sql.Identifier(cluster.ADMINISTRATOR)
        with closing(psycopg.connect(self.superuser_dsn("postgres"), autocommit=True)) as opened:
            opened.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(made))
            self._superuser.close()  # who is connected to a template keeps it from being copied
            opened.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(made, template))
            opened.execute(
                sql.SQL("GRANT CONNECT, CREATE ON DATABASE {} TO {}").format(made, owner)
            )
        self._superuser = psycopg.connect(self.superuser_dsn(), autocommit=True)

    @property
    def pid(self) -> int:
        return cluster.postmaster(self.base) or 0

    @property
    def version(self) -> str:
        return str(self.sql("SHOW server_version")[0][0])

    @property
    def password(self) -> str:
        """The superuser's, for the pooler that asks in his name."""
        lines = (self.base / "passfile").read_text().splitlines()
        return dict(line.split(":")[3:5] for line in lines)[cluster.SUPERUSER]

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """As superuser, whom no policy holds."""
        cursor = self._superuser.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def machines(self, organizations: int, devices: int) -> list[Machine]:
        """Logins, spread evenly over new organizations."""
        shares = [devices // organizations + (n < devices % organizations)
                  for n in range(organizations)]  # fmt: skip
        with closing(Administration(self.admin_dsn())) as administration:
            shared = credentials(administration.connection)
            return [
                machine
                for number, share in enumerate(shares)
                for machine in self._organization(administration, f"org {number}", share, shared)
            ]

    def _organization(
        self, administration: Administration, name: str, share: int, shared: Any
    ) -> list[Machine]:
        made = administration.create_organization(name)
        administration.connection.execute(_MACHINES, (made, made, shared.verifier, share))
        roles = administration.connection.execute(_ROLES, (made, share)).fetchall()
        return [Machine(made, make_conninfo(shared.dsn, user=role)) for (role,) in roles]

    def close(self, *, keep: bool) -> None:
        self._superuser.close()
        cluster.stop(self.base)
        if not keep:
            shutil.rmtree(self.base)


@contextmanager
def server(base: Path, connections: int, *, keep: bool = False) -> Iterator[Server]:
    started = Server(base, connections)
    try:
        yield started
    finally:
        started.close(keep=keep)


# --- the pooler ---------------------------------------------------------------------------------


class Pooler:
    """PgBouncer in transaction mode. It asks the server for the logins' verifiers."""

    def __init__(self, server: Server, folder: Path, clients: int, connections: int) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            raise SystemExit("PgBouncer is missing: apt-get install pgbouncer")
        self.port = cluster.free_port()
        cluster.make_folder(folder)
        self._folder = folder / "pooler"
        cluster.make_own(self._folder)
        (self._folder / "users").write_text(f'"{cluster.SUPERUSER}" "{server.password}"\n')
        (self._folder / "settings").write_text(self._settings(server, clients, connections))
        self._start(program)

    def _settings(self, server: Server, clients: int, connections: int) -> str:
        return f"""
[databases]
* = host={cluster.HOST} port={server.port} auth_user={cluster.SUPERUSER}
[pgbouncer]
listen_addr = {cluster.HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {self._folder / "users"}
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1
pool_mode = transaction
max_client_conn = {clients + 100}
default_pool_size = 1
max_db_connections = {connections}
server_idle_timeout = 600
query_wait_timeout = 120
listen_backlog = 1024
logfile = {self._folder / "log"}
server_tls_sslmode = disable
"""

    def _start(self, program: str) -> None:
        """As root it wants another user, who reads what he must and nothing else."""
        words = [program, "-q"]
        if user := account.server_user():
            for file in self._folder.iterdir():
                os.chown(file, user.pw_uid, user.pw_gid)
            words += ["-u", user.pw_name]
        words.append(str(self._folder / "settings"))
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _SECONDS
        while not _listens(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self._folder / "log").read_text())
            time.sleep(0.02)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextmanager
def pooler(server: Server, folder: Path, clients: int, connections: int) -> Iterator[Pooler]:
    started = Pooler(server, folder, clients, connections)
    try:
        yield started
    finally:
        started.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((cluster.HOST, port)) == 0
