"""Several people's machines and their replica, driven through the command line.

Each command runs in a process of its own, forked from one that has imported the program already:
stories of many commands would else spend their time on imports.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psycopg
import pytest

from syncd.node import whereabouts

SYNCD = str(Path(sys.executable).with_name("syncd"))
_SECONDS = 60
_HEAVY = (
    "cryptography.hazmat.primitives.serialization", "keyring", "psycopg", "rich.console",
    "rich.table", "sqlite_utils", "tomlkit", "syncd.proof", "syncd.service",
    "tomllib", "syncd.agents", "syncd.conflicts", "syncd.credentials", "syncd.fallback",
    "syncd.drafting", "syncd.liveness", "syncd.retention", "syncd.rotation", "syncd.status",
    "syncd.tasks", "syncd.workspace",
    *(f"syncd.cli.{name}" for name in ("admin", "app", "audit", "backup", "checkpoint", "cloud",
                                       "conflicts", "device", "home", "status", "sync", "task")),
)  # fmt: skip


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.err)["error"]
        return error


# --- running commands -----------------------------------------------------------------------------


class Runner:
    """The process that the commands are forked from."""

    def __init__(self, folder: Path, under: Sequence[str] = ()) -> None:
        """`under` is a program that runs it, and so sees all that the commands start."""
        self._folder = folder
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*under, sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        self._answers = self._ours.makefile("r")

    def close(self) -> None:
        self._answers.close()
        self._ours.close()
        self._process.wait()

    def run(
        self, words: Sequence[str], environment: dict[str, str], stdin: str | bytes = "",
        skew_ms: int = 0, umask: int | None = None, folder: Path | None = None,
    ) -> Result:  # fmt: skip
        """`skew_ms` is how far the command's clock is off; it works in `folder`."""
        files = [self._folder / f"{uuid.uuid4().hex}.{name}" for name in ("in", "out", "err")]
        files[0].write_bytes(stdin.encode() if isinstance(stdin, str) else stdin)
        order = {"words": words, "environment": environment, "files": [*map(str, files)],
                 "folder": str(folder or self._folder), "skew_ms": skew_ms,
                 "umask": umask}  # fmt: skip
        self._ours.sendall(json.dumps(order).encode() + b"\n")
        code = int(self._answers.readline())
        result = Result(code, files[1].read_text(), files[2].read_text())
        assert "Traceback" not in result.err + result.out, result.err
        return result


def _serve(connection: socket.socket) -> None:
    for module in _HEAVY:
        import_module(module)
    gc.freeze()
    with connection, connection.makefile("r") as orders:
        for line in orders:
            pid = os.fork()
            if pid == 0:
                _become(json.loads(line))
            connection.sendall(b"%d\n" % _ended(pid))


def _ended(pid: int) -> int:
    """Its exit code; one that hangs is killed."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(_SECONDS)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _become(order: dict[str, Any]) -> NoReturn:
    from syncd.cli import main

    for number, file in enumerate(order["files"]):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(file, flags, 0o600), number)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    if order["umask"] is not None:
        os.umask(order["umask"])
    if skew := order["skew_ms"] * 1_000_000:
        true = time.time_ns
        time.time_ns = lambda: true() + skew
    sys.argv = [SYNCD, *order["words"]]
    try:
        main()
    except SystemExit as stop:
        sys.stdout.flush()
        # Without taking apart all that was imported before the fork: that costs most of the time.
        os._exit(stop.code if isinstance(stop.code, int) else 1)
    os._exit(99)


# --- one machine ----------------------------------------------------------------------------------


class Machine:
    """A home, and the commands that its owner types."""

    def __init__(self, runner: Runner, home: Path, **environment: str) -> None:
        self._runner = runner
        self.home = home
        self.environment = environment
        self.skew_ms = 0
        self.umask: int | None = None
        self.written: set[str] = set()

    def run(self, *words: str, stdin: str = "", **environment: str) -> Result:
        settings = {**os.environ, "SYNCD_HOME": str(self.home), **self.environment, **environment}
        return self._runner.run(words, settings, stdin, self.skew_ms, self.umask)

    def ok(self, *words: str, stdin: str = "", **environment: str) -> Result:
        result = self.run(*words, stdin=stdin, **environment)
        assert result.code == 0, result
        return result

    def json(self, *words: str, stdin: str = "") -> Any:
        return self.ok(*words, "--json", stdin=stdin).json()

    def fails(self, code: int, *words: str, stdin: str = "", **environment: str) -> dict[str, Any]:
        result = self.run(*words, "--json", stdin=stdin, **environment)
        assert result.code == code, result
        assert result.out == ""
        return result.error()

    # --- writing --------------------------------------------------------------------------------

    def create(self, task: str = "t", *options: str) -> str:
        """A checkpoint; its id, which is also that of its first entry."""
        words = ("checkpoint", "create", "--task", task, "--agent", "ann", *options)
        return self._noted(self.json(*words))

    def update(self, checkpoint_id: str, text: str) -> str:
        """A new version; its id."""
        return self._noted(self.json("checkpoint", "update", checkpoint_id, "--decision", text))

    def _noted(self, document: dict[str, Any]) -> str:
        revision: str = document["revision"]
        self.written.add(revision)
        return revision

    def sync(self) -> dict[str, Any]:
        done: dict[str, Any] = self.json("sync")
        return done

    def restored(self, backup: dict[str, Any]) -> None:
        """Its database as it was at a backup."""
        self.ok("backup", "restore", backup["name"])

    def copied_to(self, home: Path, *, image: bool = True) -> Machine:
        """As an image of the disk does it, or as `cp -a` does, which syncd notices at once."""
        shutil.copytree(self.home, home, symlinks=True)
        copy = Machine(self._runner, home, **self.environment)
        if image:
            here = "UPDATE state SET value = ? WHERE name = 'whereabouts'"
            copy.sql(here, whereabouts(home))
        copy.written = set(self.written)
        return copy

    # --- looking inside -------------------------------------------------------------------------

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.home / "context.db", isolation_level=None)) as database:
            return database.execute(text, values).fetchall()

    def entries(self) -> list[tuple[Any, ...]]:
        """Everything that is the same on all machines."""
        return self.sql(
            "SELECT entry_id, device_id, device_seq, hex(chain), effective_hlc, cloud_seq FROM log"
            " ORDER BY entry_id"
        )

    def state(self, name: str) -> str:
        return str(self.sql("SELECT value FROM state WHERE name = ?", name)[0][0])

    def secrets(self) -> list[Path]:
        """The files of this home that hold its password, if it has one in a file."""
        password = (self.home / "keys" / "cloud.password").read_bytes()
        return [f for f in self.home.rglob("*") if f.is_file() and password in f.read_bytes()]


def refused(machine: Machine, code: int, *words: str) -> dict[str, Any]:
    """What a user is told when a command fails, by people's words and as JSON: cause, remedy, what
    of the data; and never the password."""
    told = machine.run(*(words or ("sync",)))
    assert told.code == code, told
    error = machine.fails(code, *(words or ("sync",)))
    assert error["message"].split(" (")[0] in told.err
    assert error["remedy"] in told.err
    assert error["data_safe"] is True
    file = machine.home / "keys" / "cloud.password"
    assert file.read_text() not in told.out + told.err + str(error)
    assert machine.secrets() == [file]
    assert not (machine.home / "log" / "crash.log").exists()
    return error


# --- several of them ------------------------------------------------------------------------------


class Team:
    """An organization of its own in a replica of its own, and its machines."""

    def __init__(self, cluster: Any, database: str, runner: Runner, folder: Path) -> None:
        self.cluster = cluster
        self.database = database
        self.organization = f"organization {uuid.uuid4()}"
        self._runner = runner
        self._folder = folder
        self.machines: list[Machine] = []
        with self.administration() as admin:
            self.organization_id = admin.create_organization(self.organization)

    def another(self) -> Team:
        """Another organization in the same database."""
        return Team(self.cluster, self.database, self._runner, self._folder)

    @contextmanager
    def administration(self) -> Iterator[Any]:
        from syncd.replica import Administration

        with closing(Administration(self.cluster.admin_dsn(self.database))) as admin:
            yield admin

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """At the replica, as superuser."""
        return list(self.cluster.sql(self.database, text, *values))

    def login(self, name: str = "", machine: str = "laptop") -> str:
        """A new member's DSN."""
        with self.administration() as admin:
            made = admin.add_member(self.organization_id, name or str(uuid.uuid4()), "member",
                                    machine)  # fmt: skip
            return str(made.dsn)

    def blank(self, name: str = "") -> Machine:
        """A machine that has not logged in."""
        home = self._folder / (name or uuid.uuid4().hex[:8])
        return Machine(self._runner, home)

    def machine(self, dsn: str = "") -> Machine:
        """One that has; what `syncd login` leaves behind, without the time it takes."""
        from devices import share_key

        from syncd import credentials
        from syncd.node import Node

        made = self.blank()
        with closing(Node(made.home)) as node:
            assert node.store.device_id
        share_key(made.home)
        credentials.keep(made.home, dsn or self.login())
        self.machines.append(made)
        return made

    def three(self) -> tuple[Machine, Machine, Machine]:
        return self.machine(), self.machine(), self.machine()

    def administrator(self) -> Machine:
        """Where `syncd admin` is run."""
        place = self.blank("administrator")
        place.environment["SYNCD_ADMIN_DSN"] = self.cluster.admin_dsn(self.database)
        return place

    # --- disasters ------------------------------------------------------------------------------

    def dumped(self) -> Path:
        return Path(self.cluster.dump(self.database))

    def restored(self, dump: Path) -> None:
        """The replica as it was at a dump, under the same name."""
        lost = f"{self.database}_lost_{uuid.uuid4().hex[:6]}"
        restored = self.cluster.restore(dump)
        for before, after in ((self.database, lost), (restored, self.database)):
            self.cluster.sql("postgres", f'ALTER DATABASE "{before}" RENAME TO "{after}"')
        self.cluster.drop_database(lost)

    # --- agreement ------------------------------------------------------------------------------

    def completes(self, machine: Machine) -> None:
        """What a machine could not send arrives, once, and another machine gets it too."""
        assert machine.json("flush", "--wait", "30")["safe"]
        if len(self.machines) == 1:
            self.machine()
        self.agree()

    def settle(self, *machines: Machine) -> None:
        """Everybody sends, then everybody fetches what the last one sent."""
        for machine in (*machines, *machines[:-1]):
            machine.sync()

    def agree(self, *machines: Machine) -> None:
        """All machines and the replica have the same, can prove it, and nothing is lost."""
        machines = machines or tuple(self.machines)
        self.settle(*machines)
        first, *others = machines
        for other in others:
            assert other.entries() == first.entries()
        written = set.union(*(machine.written for machine in machines))
        ids = [row[0] for row in first.entries()]
        assert written <= set(ids)
        assert len(ids) == len(set(ids))
        shown = self._shown(first)
        for other in others:
            for mine, theirs in zip(self._shown(other), shown, strict=True):
                assert mine == theirs, (mine, theirs)
        self._replica_agrees(first)

    def _shown(self, machine: Machine) -> Any:
        proof = machine.json("prove")
        assert proof["ok"]
        assert proof["local"] == proof["cloud"] == len(machine.entries())
        assert machine.json("audit", "verify")["ok"]
        assert machine.sql("SELECT entry_id, reason FROM quarantine WHERE state = 'open'") == []
        conflicts = machine.json("conflicts", "list", "--all")
        listed = machine.json("checkpoint", "list", "--limit", "10000")
        for shown in listed:
            # One more machine may have had to sign it: the last of each batch is.
            del shown["compliance"]["signature"]
        # Machines list in the order in which they came to know of a checkpoint.
        return sorted(listed, key=lambda shown: str(shown["metadata"]["checkpoint_id"])), conflicts

    def _replica_agrees(self, machine: Machine) -> None:
        columns = "entry_id::text, device_id::text, device_seq, upper(encode(chain, 'hex'))"
        at_replica = self.sql(
            f"SELECT {columns}, effective_hlc, cloud_seq FROM syncd.log"
            " WHERE organization_id = %s ORDER BY 1",
            self.organization_id,
        )
        assert at_replica == machine.entries()
        for view, mine, theirs in (
            ("checkpoints",
             "SELECT c.id, l.entry_id, c.parent_id, c.hlc FROM checkpoints c"
             " JOIN log l ON l.seq = c.seq",
             "SELECT id, entry_id::text, parent_id, hlc FROM syncd.checkpoints"),
            ("conflicts",
             "SELECT id, kind, entity_id, winner, loser, state FROM conflicts",
             "SELECT id::text, kind, entity_id, winner::text, loser::text, state"
             " FROM syncd.conflicts"),
        ):  # fmt: skip
            rows = self.sql(f"{theirs} WHERE organization_id = %s", self.organization_id)
            assert sorted(rows) == sorted(machine.sql(mine)), view


@contextmanager
def team_on(cluster: Any, runner: Runner, folder: Path) -> Iterator[Team]:
    from replicas import build

    database = cluster.create_database(template=cluster.template(build))
    try:
        yield Team(cluster, database, runner, folder)
    finally:
        cluster.drop_database(database)


@cache
def the_runner() -> Runner:
    """One for all tests of this process."""
    folder = tempfile.TemporaryDirectory(prefix="syncd-commands-")
    started = Runner(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(started.close)
    return started


@pytest.fixture(scope="session")
def runner() -> Runner:
    return the_runner()


@pytest.fixture
def team(cluster: Any, runner: Runner, tmp_path: Path) -> Iterator[Team]:
    """One of this test's own, on PostgreSQL 18."""
    with team_on(cluster, runner, tmp_path) as made:
        yield made


def connects(dsn: str) -> bool:
    """Whether anybody with this DSN gets in, without syncd."""
    try:
        psycopg.connect(dsn, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
