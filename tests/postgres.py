"""Real PostgreSQL clusters for the tests: one per version and test process, started when needed.

A watchdog holds the other end of a pipe from the test process. However that process ends, the
watchdog stops the servers and removes their files; what a killed watchdog left goes at the next
start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from syncd import account, embedded
from syncd import cluster as clusters

DEBIAN = Path("/usr/lib/postgresql")
# What is committed survives the server's death, as in the field, but not the machine's.
# Its log is kept short: to write over old files takes a tenth of the time that new ones take.
OPTIONS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200",
           "max_wal_size": "64MB", "min_wal_size": "64MB"}  # fmt: skip
# Tests log in by the thousand: to hash the password takes most of the time of it.
SCRAM = {"scram_iterations": "1"}
SCRAM_SINCE = 16
FOLDER = Path(tempfile.gettempdir()) / f"syncd-tests-{os.geteuid()}"
Build = Callable[[str], None]


class Cluster:
    """One server. A test that stops it starts it again."""

    def __init__(self, base: Path, version: str, tls: tuple[Path, Path] | None = None) -> None:
        self.base = base
        self.version = version
        self.bin = binaries(version)
        self.port = clusters.free_port()
        self.options = OPTIONS | (SCRAM if int(version) >= SCRAM_SINCE else {})
        self._templates: dict[Build, str] = {}
        clusters.make_folder(base)
        clusters.initialise(base, self.bin, version, durable=False)
        if tls:
            self._use_tls(*tls)
        self.start()
        self._hash_anew()

    def _hash_anew(self) -> None:
        """The passwords were set before the server had its options."""
        again = (f"ALTER ROLE {role} PASSWORD '{word}'" for role, word in self.passwords.items())
        self.sql("postgres", "; ".join(again))

    def _use_tls(self, certificate: Path, key: Path) -> None:
        """The server refuses a key that anyone but its user or root may read."""
        folder = self.base / "tls"
        clusters.make_own(folder)
        for name, file in (("ssl_cert_file", certificate), ("ssl_key_file", key)):
            copy = folder / name
            shutil.copy(file, copy)
            copy.chmod(0o600)
            if user := account.server_user():
                os.chown(copy, user.pw_uid, user.pw_gid)
            self.options[name] = str(copy)
        self.options["ssl"] = "on"

    # --- the server -----------------------------------------------------------------------------

    @property
    def socket(self) -> Path:
        return (self.base / "run").resolve()

    @property
    def log(self) -> str:
        return (self.base / "log" / "postgres.log").read_text("utf-8", errors="replace")

    @property
    def pid(self) -> int | None:
        return clusters.postmaster(self.base)

    def start(self) -> None:
        clusters.start(self.base, self.bin, self.port, self.options)

    def stop(self, mode: str = "fast") -> None:
        signals = {
            "smart": signal.SIGTERM,
            "fast": signal.SIGINT,
            "immediate": signal.SIGQUIT,
        }
        clusters.stop(self.base, signals[mode])

    def kill(self) -> None:
        """As if the power had failed for the server alone."""
        clusters.stop(self.base, signal.SIGKILL)

    # --- connecting -----------------------------------------------------------------------------

    def superuser_dsn(self, database: str = "postgres") -> str:
        return clusters.dsn(self.base, self.port, clusters.SUPERUSER, database)

    def admin_dsn(self, database: str = clusters.DATABASE) -> str:
        return clusters.dsn(self.base, self.port, clusters.ADMINISTRATOR, database)

    @property
    def passwords(self) -> dict[str, str]:
        lines = (self.base / "passfile").read_text().splitlines()
        return dict(line.split(":")[3:5] for line in lines)

    def sql(self, database: str, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Run it as superuser; the rows of the last statement, if it has any."""
        with closing(psycopg.connect(self.superuser_dsn(database), autocommit=True)) as connection:
            cursor = connection.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    # --- databases ------------------------------------------------------------------------------

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """An empty one or a copy, in which the administrator may create schemas."""
        name = name or f"test_{uuid.uuid4().hex[:12]}"
        made = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template:
            made += sql.SQL(" TEMPLATE {} STRATEGY file_copy").format(sql.Identifier(template))
        # A copy does not inherit the grants on the database itself.
        grant = sql.SQL("GRANT CONNECT, CREATE ON DATABASE {} TO {}").format(
            sql.Identifier(name), sql.Identifier(clusters.ADMINISTRATOR)
        )
        with closing(psycopg.connect(self.superuser_dsn(), autocommit=True)) as connection:
            connection.execute(made)
            connection.execute(grant)
        return name

    def drop_database(self, name: str) -> None:
        self.sql("postgres", f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def template(self, build: Build) -> str:
        """A database on which `build` was called once, given its administrator's DSN."""
        if build not in self._templates:
            name = self.create_database(f"template_{uuid.uuid4().hex[:12]}")
            build(self.admin_dsn(name))
            self._templates[build] = name
        return self._templates[build]

    def dump(self, database: str) -> Path:
        file = self.base / f"{database}-{uuid.uuid4().hex[:8]}.dump"
        self.program("pg_dump", "-Fc", "-f", str(file), "-d", self.superuser_dsn(database))
        return file

    def restore(self, file: Path, database: str | None = None) -> str:
        """Into a new database; its name. The roles that the dump names must exist."""
        name = self.create_database(database)
        self.program("pg_restore", "--exit-on-error", "-d", self.superuser_dsn(name), str(file))
        return name

    def program(self, name: str, *arguments: str) -> str:
        done = subprocess.run([self.bin / name, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


def binaries(version: str) -> Path:
    """The package's, else Debian's."""
    if version in ("16", "18"):
        return embedded.binaries(version)
    folder = DEBIAN / version / "bin"
    if not (folder / "postgres").exists():
        pytest.skip(f"needs PostgreSQL {version} in {folder}: apt-get install postgresql-{version}")
    return folder


# --- one session --------------------------------------------------------------------------------


class Session:
    """The clusters of this test process."""

    def __init__(self) -> None:
        clusters.make_folder(FOLDER)
        self._shared: dict[str, Cluster] = {}
        with (FOLDER / "lock").open("w") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            _sweep()
            self.folder = Path(tempfile.mkdtemp(dir=FOLDER, prefix=""))
            clusters.let_server_through(self.folder)
            self._watchdog = _watched(self.folder)

    def shared(self, version: str) -> Cluster:
        if version not in self._shared:
            self._shared[version] = self.new(version)
        return self._shared[version]

    def new(self, version: str, tls: tuple[Path, Path] | None = None) -> Cluster:
        """A cluster that no other test uses."""
        return Cluster(self.place(version), version, tls)

    def place(self, name: str) -> Path:
        """A folder that goes with the session, together with a server that runs in it."""
        return self.folder / f"{name}-{uuid.uuid4().hex[:8]}"

    def close(self) -> None:
        self._watchdog.communicate()


def _watched(session: Path) -> subprocess.Popen[bytes]:
    """A process that ends the session when this one is gone, and holds its lock until then."""
    with (session / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.Popen(
            [sys.executable, __file__, session],
            stdin=subprocess.PIPE,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )


def _sweep() -> None:
    """Remove the sessions whose watchdog is gone: nobody holds their lock."""
    for lock in FOLDER.glob("*/lock"):
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            _remove(lock.parent)


def _remove(session: Path) -> None:
    for file in session.glob("**/postmaster.pid"):
        clusters.stop(file.parent.parent, signal.SIGQUIT)
    shutil.rmtree(session, ignore_errors=True)


# --- fixtures -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres() -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


@pytest.fixture(scope="session")
def cluster(postgres: Session) -> Cluster:
    """PostgreSQL 18."""
    return postgres.shared("18")


@pytest.fixture(scope="session", params=["15", "16", "18"])
def any_cluster(postgres: Session, request: pytest.FixtureRequest) -> Cluster:
    return postgres.shared(request.param)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """The name of an empty database in which the administrator may create schemas."""
    name = cluster.create_database()
    yield name
    cluster.drop_database(name)


if __name__ == "__main__":
    sys.stdin.read()
    _remove(Path(sys.argv[1]))
