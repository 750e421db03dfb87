"""Through the real PgBouncer in transaction mode: consecutive statements of one machine meet
different connections to the server, and those of two machines share them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from machines import SYNCD, Machine, Team, runner, team
from postgres import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd import cluster as clusters

__all__ = ["runner", "team"]

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """One PgBouncer before a team's database. It asks the server for the logins' verifiers."""

    def __init__(
        self, team: Team, folder: Path, pool_size: int, tls: tuple[Path, Path] | None = None
    ) -> None:
        """`tls`: a certificate and its key, with which it takes protected connections only."""
        self._team = team
        self.port = clusters.free_port()
        clusters.make_folder(folder)
        clusters.make_own(folder / "pooler")
        self._folder = folder / "pooler"
        self.log = self._folder / "log"
        users = self._folder / "users"
        users.write_text(f'"postgres" "{team.cluster.passwords["postgres"]}"\n')
        settings = self._folder / "settings"
        settings.write_text(self._settings(users, pool_size) + self._protection(tls))
        self._start(settings)

    def _settings(self, users: Path, pool_size: int) -> str:
        server = f"host=127.0.0.1 port={self._team.cluster.port} auth_user=postgres"
        return f"""
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1
pool_mode = transaction
default_pool_size = {pool_size}
logfile = {self.log}
server_tls_sslmode = disable
"""

    def _protection(self, tls: tuple[Path, Path] | None) -> str:
        if tls is None:
            return ""
        lines = ["client_tls_sslmode = require"]
        for name, file in zip(("cert", "key"), tls, strict=True):
            shutil.copy(file, self._folder / name)
            lines.append(f"client_tls_{name}_file = {self._folder / name}")
        return "\n".join(lines) + "\n"

    def _start(self, settings: Path) -> None:
        """As root it wants another user, who reads what he must and nothing else."""
        words = [str(PROGRAM), "-q"]
        if user := clusters.server_user():
            for file in self._folder.iterdir():
                os.chown(file, user.pw_uid, user.pw_gid)
            words += ["-u", user.pw_name]
        self._process = subprocess.Popen([*words, str(settings)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not _listens(self.port):
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def before(self, dsn: str) -> str:
        """The same login, through the pooler."""
        return make_conninfo(dsn, port=self.port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=[1, 2], ids=["pool of 1", "pool of 2"])
def pooler(team: Team, postgres: Session, request: pytest.FixtureRequest) -> Iterator[Pooler]:
    if PROGRAM is None:
        pytest.skip("PGBOUNCER IS NOT TESTED: apt-get install pgbouncer")
    started = Pooler(team, postgres.place("pgbouncer"), request.param)
    yield started
    started.close()


def joined(team: Team, pooler: Pooler, dsn: str) -> Machine:
    """By `syncd login`, through the pooler."""
    machine = team.blank()
    machine.ok("login", "-", stdin=pooler.before(dsn))
    team.machines.append(machine)
    return machine


def test_everything_works_through_a_pooler(team: Team, pooler: Pooler) -> None:
    ann = joined(team, pooler, team.login("ann", "desktop"))
    added = ann.json("device", "add", "laptop")["dsn"]
    assert conninfo_to_dict(added)["port"] == str(pooler.port)
    laptop = joined(team, pooler, added)
    first = ann.create()
    team.settle(ann, laptop)
    ann.update(first, "by the desktop")
    laptop.update(first, "by the laptop")
    team.settle(ann, laptop)
    [conflict] = laptop.json("conflicts", "list")
    assert ann.json("conflicts", "show", conflict["id"])["state"] == "open"
    laptop.ok("conflicts", "restore", conflict["id"])
    team.agree()
    assert ann.json("conflicts", "list") == []
    assert ann.json("flush", "--wait", "5")["safe"]
    ann.ok("device", "rename", "laptop", "notebook")
    ann.ok("device", "revoke", "notebook")
    assert laptop.run("sync").code in (1, 6)
    assert "revoked" in str(ann.json("device", "list"))


def test_two_machines_that_write_and_sync_at_once_lose_nothing(team: Team, pooler: Pooler) -> None:
    # Two machines of one login's member would have a pool each: PgBouncer has one per login.
    dsn = team.login()
    ann, bob = joined(team, pooler, dsn), joined(team, pooler, dsn)
    for machine in (ann, bob):
        for _ in range(5):
            machine.create()
    words = [
        [SYNCD, "--home", str(machine.home), "sync"] for machine in (ann, bob) for _ in range(3)
    ]
    with ThreadPoolExecutor(len(words)) as pool:
        done = list(pool.map(lambda w: subprocess.run(w, capture_output=True), words))
    assert [result.returncode for result in done] == [0] * len(words), done
    team.agree()


def test_who_gives_the_wrong_password_to_the_pooler_is_refused(team: Team, pooler: Pooler) -> None:
    dsn = make_conninfo(pooler.before(team.login()), password="wrong-word")
    error = team.blank().fails(1, "login", "-", stdin=dsn)
    assert error["code"] == "login_refused"
    assert "wrong-word" not in str(error)


def test_the_pooler_does_not_hand_a_session_from_one_login_to_another(
    team: Team, pooler: Pooler
) -> None:
    ours, theirs = team.login(), team.another().login()
    for dsn in (ours, theirs, ours):
        with psycopg.connect(pooler.before(dsn), prepare_threshold=None) as connection:
            row = connection.execute("SELECT session_user").fetchone()
            assert row == (conninfo_to_dict(dsn)["user"],)
