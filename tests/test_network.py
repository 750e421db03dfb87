"""Whatever fails on the way: the data stays, the user reads what happened and what to do, and the
next exchange completes everything exactly once."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from machines import SYNCD, Machine, Team, refused, runner, team
from postgres import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd import account
from syncd import cluster as clusters
from syncd.errors import ReplicaUnreachableError
from syncd.node import Node
from syncd.replica import link

__all__ = ["runner", "team"]


def at(dsn: str, **changes: Any) -> str:
    return make_conninfo(dsn, **changes)


@pytest.fixture
def ann(team: Team) -> Machine:
    """With one entry at the replica and two that are not."""
    ann = team.machine()
    ann.create()
    ann.sync()
    ann.create()
    ann.create()
    return ann


# --- unreachable ----------------------------------------------------------------------------------


def test_a_stopped_server_is_unreachable_and_gets_everything_later(
    team: Team, ann: Machine
) -> None:
    team.cluster.stop()
    try:
        error = refused(ann, 6)
        assert "cannot be reached" in error["message"]
        flushed = ann.fails(6, "flush", "--wait", "1")
        assert "cannot be reached" in flushed["message"]
        assert (flushed["code"], flushed["safe"], flushed["pending"]) == ("unreachable", False, 2)
        refused(ann, 6, "prove")
    finally:
        team.cluster.start()
    team.completes(ann)


def test_a_flush_that_finds_the_server_again_succeeds(team: Team, ann: Machine) -> None:
    team.cluster.stop()
    try:
        words = [SYNCD, "--home", str(ann.home), "flush", "--wait", "40"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as flush:
            _until(lambda: "reached" in str(ann.sql("SELECT error FROM attempts")))
            team.cluster.start()
            assert flush.wait(60) == 0
    finally:
        team.cluster.start()
    team.completes(ann)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"port": "1"}, "refused"),
        ({"host": "nowhere.invalid", "sslmode": "verify-full"}, "cannot be reached"),
        ({"host": "/nowhere"}, "cannot be reached"),
        ({"dbname": "nothing_here"}, "no such database"),
    ],
    ids=["closed port", "unknown name", "no socket", "no database"],
)
def test_a_wrong_address_is_named(
    team: Team, ann: Machine, changes: dict[str, str], cause: str
) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), **changes)
    assert cause in refused(ann, 6)["message"]
    assert ann.run("config").out.count("password=***") == 1
    del ann.environment["SYNCD_CLOUD_DSN"]
    team.completes(ann)


def _dsn(machine: Machine) -> str:
    """With its password."""
    from syncd import config, credentials

    return credentials.dsn(machine.home, config.load(machine.home / "config.toml"))


def test_a_wrong_password_is_refused(team: Team, ann: Machine) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), password="wrong-word")
    error = refused(ann, 1)
    assert error["code"] == "login_refused"
    assert "password is wrong" in error["message"]
    assert "wrong-word" not in str(error)
    del ann.environment["SYNCD_CLOUD_DSN"]
    team.completes(ann)


def test_a_database_without_the_schema_says_how_to_install_it(
    team: Team, ann: Machine, database: str
) -> None:
    ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), dbname=database)
    error = refused(ann, 1)
    assert error["code"] == "replica_outdated"
    assert "cloud migrate" in error["remedy"]
    del ann.environment["SYNCD_CLOUD_DSN"]
    team.completes(ann)


# --- cut off --------------------------------------------------------------------------------------


class Proxy:
    """Stands between client and server. When it sees a request with `marker` in it, it cuts the
    line: at once, or after so many bytes of the answer."""

    def __init__(self, port: int, marker: bytes, answer_bytes: int | None = None) -> None:
        self._target = port
        self._marker = marker
        self._answer_bytes = answer_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._between, args=(client, server), daemon=True).start()

    def _between(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, suppress(OSError):
            self._converse(client, server)

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        left = sys.maxsize  # bytes that may still go to the client
        while left > 0:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                if ready is server:
                    client.sendall(data[:left])
                    left -= len(data)
                    continue
                if self._marker in data:
                    if self._answer_bytes is None:
                        self.cuts += 1
                        return
                    left = self._answer_bytes
                server.sendall(data)
                if left == 0:  # the answer is made, and nobody hears it
                    server.recv(1)
        self.cuts += 1


@contextmanager
def through(machine: Machine, proxy: Proxy) -> Iterator[None]:
    machine.environment["SYNCD_CLOUD_DSN"] = at(_dsn(machine), port=proxy.port)
    with closing(proxy):
        yield
    del machine.environment["SYNCD_CLOUD_DSN"]


def in_cloud(team: Team) -> int:
    return int(team.sql("SELECT count(*) FROM syncd.log")[0][0])


def test_a_push_cut_off_before_it_arrives_is_sent_again(team: Team, ann: Machine) -> None:
    with through(ann, Proxy(team.cluster.port, b"syncd.push")):
        refused(ann, 6)
    assert in_cloud(team) == 1
    team.completes(ann)


def test_a_push_whose_answer_is_lost_is_not_stored_twice(team: Team, ann: Machine) -> None:
    proxy = Proxy(team.cluster.port, b"syncd.push", answer_bytes=0)
    with through(ann, proxy):
        assert ann.run("sync").code == 6
    assert proxy.cuts == 1
    assert in_cloud(team) == 3
    assert ann.sql("SELECT count(*) FROM log WHERE cloud_seq IS NULL") == [(2,)]
    team.completes(ann)


def test_a_pull_cut_off_half_way_takes_in_nothing_by_halves(team: Team, ann: Machine) -> None:
    for _ in range(20):
        ann.create()
    ann.sync()
    bob = team.machine()
    proxy = Proxy(team.cluster.port, b"syncd.pull", answer_bytes=9_000)
    with through(bob, proxy):
        refused(bob, 6)
    assert proxy.cuts == 2
    assert bob.entries() == []
    assert bob.sql("SELECT * FROM batches") == []
    team.completes(bob)


def test_a_server_killed_before_the_commit_has_nothing_and_gets_all(
    team: Team, ann: Machine
) -> None:
    lock = psycopg.connect(team.cluster.superuser_dsn(team.database))
    lock.execute("SELECT FROM syncd.organizations FOR UPDATE")
    words = [SYNCD, "--home", str(ann.home), "sync", "--json"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as sync:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        _until(lambda: team.sql(waiting) == [(1,)])
        team.cluster.kill()
        _, told = sync.communicate(timeout=30)
    team.cluster.start()
    lock.close()
    assert sync.returncode == 6, told
    assert '"unreachable"' in told
    assert in_cloud(team) == 1
    team.completes(ann)


# --- a server that hangs --------------------------------------------------------------------------


def test_a_server_that_takes_connections_and_says_nothing_is_given_up(
    team: Team, ann: Machine
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), port=port, connect_timeout=2)
        began = time.monotonic()
        assert "timeout" in ann.fails(6, "sync")["message"]
        assert time.monotonic() - began < 8
    del ann.environment["SYNCD_CLOUD_DSN"]
    team.completes(ann)


def test_a_server_that_stops_in_the_middle_is_given_up(
    team: Team, ann: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENCE_SECONDS", 1.0)
    with closing(Node(ann.home)) as node, node.syncing() as engine:
        backend = engine.replica.connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        began = time.monotonic()
        try:
            with pytest.raises(ReplicaUnreachableError, match="no answer for 1 s"):
                engine.sync()
        finally:
            os.kill(backend, signal.SIGCONT)
        assert time.monotonic() - began < 5
    team.completes(ann)


def test_nothing_waits_for_minutes() -> None:
    parts = conninfo_to_dict(link.protected("postgresql://u@127.0.0.1/d"))
    assert float(str(parts["connect_timeout"])) <= 10
    assert float(str(parts["tcp_user_timeout"])) <= 30_000
    # Longer than the statement_timeout of the logins, which a working server keeps.
    assert 60 < link.SILENCE_SECONDS < 120


def test_logins_have_timeouts_at_the_server(team: Team, ann: Machine) -> None:
    with closing(psycopg.connect(_dsn(ann))) as connection:
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == ("1min",)


# --- a server that has too much to do -------------------------------------------------------------


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_push_that_the_server_gives_up_is_not_the_entries_fault(
    team: Team, ann: Machine, setting: str
) -> None:
    login = conninfo_to_dict(_dsn(ann))["user"]
    team.sql(f"ALTER ROLE {login} SET {setting} = '300ms'")
    with psycopg.connect(team.cluster.superuser_dsn(team.database)) as busy:
        busy.execute("SELECT FROM syncd.organizations FOR UPDATE")
        assert "cannot" in refused(ann, 6)["message"]
    team.sql(f"ALTER ROLE {login} SET {setting} = '30s'")
    assert ann.json("quarantine", "list") == []
    team.completes(ann)


def test_a_server_without_room_for_one_more_connection(team: Team, ann: Machine) -> None:
    login = conninfo_to_dict(_dsn(ann))["user"]
    team.sql(f"ALTER ROLE {login} CONNECTION LIMIT 0")
    assert "too many connections" in refused(ann, 6)["message"]
    team.sql(f"ALTER ROLE {login} CONNECTION LIMIT 20")
    team.completes(ann)


# --- a server that cannot write -------------------------------------------------------------------


def test_a_read_only_replica_says_so(team: Team, ann: Machine) -> None:
    team.sql(f'ALTER DATABASE "{team.database}" SET default_transaction_read_only = on')
    error = refused(ann, 6)
    assert error["code"] == "replica_read_only"
    assert "primary" in error["remedy"]
    team.cluster.sql(
        "postgres", f'ALTER DATABASE "{team.database}" RESET default_transaction_read_only'
    )
    team.completes(ann)


def test_a_standby_says_that_it_is_one(team: Team, ann: Machine, postgres: Session) -> None:
    standby = postgres.place("standby")
    shutil.copytree(team.cluster.base, standby, ignore=_unreadable, symlinks=True)
    clusters.let_server_through(standby)
    team.cluster.stop()
    try:
        _copy_owned(team.cluster.base / "data", standby / "data")
    finally:
        team.cluster.start()
    _own(standby / "data" / "standby.signal")
    for name in ("run", "log"):
        clusters.make_own(standby / name)
    port = clusters.free_port()
    clusters.start(standby, team.cluster.bin, port, team.cluster.options)
    try:
        ann.environment["SYNCD_CLOUD_DSN"] = at(_dsn(ann), port=port)
        error = refused(ann, 6)
        assert error["code"] == "replica_read_only"
        assert "standby" in error["remedy"]
    finally:
        clusters.stop(standby)
        del ann.environment["SYNCD_CLOUD_DSN"]
    team.completes(ann)


def _unreadable(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("data", "run", "log", "tls")}


def _copy_owned(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _own(file: Path) -> None:
    file.touch(0o600)
    if user := account.server_user():
        os.chown(file, user.pw_uid, user.pw_gid)


# --- full disks -----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("FULL DISKS ARE NOT TESTED: only root can mount a small file system")
    place.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "none", str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"FULL DISKS ARE NOT TESTED: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_at_the_server_keeps_the_entries_here(
    team: Team, ann: Machine, postgres: Session
) -> None:
    with small_disk(postgres.place("small"), "1m") as disk:
        space = disk / "tablespace"
        clusters.make_own(space)
        team.cluster.sql("postgres", f"CREATE TABLESPACE small LOCATION '{space}'")
        try:
            team.sql("ALTER TABLE syncd.log SET TABLESPACE small")
            _fill(disk)
            big = {"context_summary": {"state": {"text": os.urandom(300_000).hex()}}}
            file = ann.home.with_suffix(".json")
            file.write_text(json.dumps(big))
            ann.create("big", "--file", str(file))
            error = refused(ann, 6)
            assert error["code"] == "replica_full"
            assert "space" in error["remedy"]
            assert in_cloud(team) == 1
            (disk / "ballast").unlink()
            subprocess.run(["mount", "-o", "remount,size=9m", str(disk)], check=True)
            team.completes(ann)
        finally:
            team.sql("ALTER TABLE syncd.log SET TABLESPACE pg_default")
            team.cluster.sql("postgres", "DROP TABLESPACE small")


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return


def test_a_full_disk_here_takes_in_nothing_by_halves(
    team: Team, ann: Machine, tmp_path: Path
) -> None:
    for _ in range(3):
        ann.create("t", "--decision", os.urandom(100_000).hex())
    ann.sync()
    with small_disk(tmp_path / "small", "4m") as disk:
        bob = team.machine()
        shutil.move(bob.home, disk / "home")
        bob.home = disk / "home"
        _fill(disk)
        told = bob.run("sync", "--json")
        assert told.code == 1
        assert told.error()["code"] == "disk_full"
        (disk / "ballast").unlink()
        assert bob.sql("SELECT count(*) FROM log") == [(0,)]
        team.completes(bob)
