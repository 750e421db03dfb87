"""What the daemon brings where, and what it makes of a replica that comes and goes."""

from __future__ import annotations

import random
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from counts import full
from daemons import (
    QUICK,
    ann,
    arrives,
    away,
    bob,
    daemon_of,
    dsn_of,
    held,
    in_replica,
    online,
    safe,
    same,
    sent,
    status,
    until,
    waiting,
    writing,
)
from machines import SYNCD, Machine, Team, runner, team
from postgres import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from test_pgbouncer import pooler_of

from chaos.pooler import PROGRAM

__all__ = ["ann", "bob", "runner", "team"]


# --- what it brings where -------------------------------------------------------------------------


def test_what_one_machine_writes_is_on_the_other_and_the_other_way_round(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with online(ann, bob):
        arrives(first := ann.create(), bob)
        arrives(bob.update(first, "by bob"), ann)
        until(lambda: safe(ann) and safe(bob))
        for machine in (ann, bob):
            said = machine.json("status")
            assert (said["verdict"], said["cloud"]["state"]) == ("ok", "online")
            assert (said["push"]["pending"], said["pull"]["behind"]) == (0, 0)
        team.agree()


def test_a_conflict_made_while_the_replica_was_away_is_open_on_both(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with online(ann, bob, **QUICK):
        arrives(first := ann.create(), bob)
        with away(team):
            for machine in (ann, bob):
                machine.update(first, f"by {machine.home.name}")
                said = machine.json("status")  # being offline is nothing that wants a person
                assert (said["verdict"], said["push"]["pending"]) == ("ok", 1)
                assert said["safe_to_close"] is False
        until(lambda: same(ann, bob))
        until(lambda: safe(ann) and safe(bob))
        for machine in (ann, bob):
            assert status(machine)["conflicts"] == {"open": 1}
        team.agree()


def test_what_was_sent_is_not_safe_before_the_replica_has_acknowledged_it(
    team: Team, ann: Machine
) -> None:
    with daemon_of(ann) as a:
        a.online()
        until(lambda: safe(ann))
        with held(team):
            ann.create()
            until(lambda: waiting(team) == 1)
            said = status(ann)
            assert (said["cloud"]["state"], said["push"]["pending"]) == ("online", 1)
            assert said["safe_to_close"] is False
        until(lambda: safe(ann))
        assert in_replica(team) == 1


def test_others_are_told_of_what_was_sent_though_the_connection_ended_before(
    team: Team, ann: Machine, bob: Machine
) -> None:
    """They had just been told of something else, so it had to wait; then the line broke."""
    told = "UPDATE syncd.organizations SET announced_at = now() + %s::interval"
    mine = conninfo_to_dict(dsn_of(ann))["user"]
    with online(ann, bob) as (a, _):
        team.sql(told, "1 hour")
        news = ann.create("t", "--status", "waiting")
        until(lambda: in_replica(team) == 1)
        team.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", mine)
        until(lambda: len(a.events("connected")) == 2)
        team.sql(told, "-1 hour")
        arrives(news, bob, seconds=10)


def test_news_that_comes_with_the_answer_to_something_else_is_heeded(
    team: Team, ann: Machine, bob: Machine
) -> None:
    """Nothing is left on the line then that could wake anybody."""
    with online(ann, bob):
        arrives(ann.create(), bob)
        with psycopg.connect(team.cluster.superuser_dsn(team.database)) as busy:
            its = "SELECT FROM syncd.devices WHERE device_id::text = %s FOR UPDATE"
            busy.execute(its, [ann.state("device_id")])
            until(lambda: waiting(team) == 1)  # it reports how far it is
            news = bob.create()
            until(lambda: in_replica(team) == 2)
        arrives(news, ann, seconds=10)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_commit_that_takes_the_disk_a_second_is_sent_too(team: Team, ann: Machine) -> None:
    """It is in the file a second before SQLite shows it to others."""
    slow = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(ann.home / "context.db-wal"),
            "-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=1s"]  # fmt: skip
    words = [SYNCD, "--home", str(ann.home), "checkpoint", "create", "--task", "t", "--agent", "a"]
    with daemon_of(ann) as a:
        a.online()
        ann.create()
        until(lambda: sent(ann))
        done = subprocess.run([*slow, *words], capture_output=True, text=True)
        if "ptrace" in done.stderr:
            pytest.skip(f"SLOW DISKS ARE NOT TESTED: {done.stderr}")
        assert done.returncode == 0, done.stderr
        until(lambda: in_replica(team) == 2, 15)


# --- with nothing to do ---------------------------------------------------------------------------


def test_it_gets_past_what_it_has_sent_itself_before_it_rests(team: Team, ann: Machine) -> None:
    """Nobody has news for it, and it does not ask by the clock either."""
    with daemon_of(ann, SYNCD_DAEMON_POLL_SECONDS="3600") as a:
        a.online()
        ann.create()
        until(lambda: sent(ann))
        until(lambda: ann.sql("SELECT MAX(cloud_seq) FROM batches") == [(1,)])


def test_one_with_nothing_to_do_writes_nothing_however_often_it_asks(
    team: Team, ann: Machine, bob: Machine
) -> None:
    often = {"SYNCD_DAEMON_POLL_SECONDS": "1", "SYNCD_LIVENESS_WARNING_MINUTES": "0.5"}
    with online(ann, bob, **often):
        arrives(ann.create("t", "--status", "waiting"), bob)
        arrives(bob.create("u", "--status", "waiting"), ann)
        until(lambda: all(_unchanged(team, machine) for machine in (ann, bob)), 60)


def _unchanged(team: Team, machine: Machine) -> bool:
    """Whether it has asked the replica some times without leaving anything on the disk."""
    before = _on_disk(machine.home)
    for _ in range(3):
        last = _asked(team, machine)
        until(lambda known=last: _asked(team, machine) != known)  # type: ignore[misc]
    return _on_disk(machine.home) == before


def _on_disk(home: Path) -> dict[str, tuple[int, int]]:
    """Whoever reads the database writes into its -shm, in memory. A draft may go meanwhile."""
    found = {}
    for file in home.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file() and file.suffix != ".db-shm":
                found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns)
    return found


def _asked(team: Team, machine: Machine) -> list[tuple[object, ...]]:
    """When it did so last."""
    user = conninfo_to_dict(dsn_of(machine))["user"]
    return team.sql("SELECT query_start FROM pg_stat_activity WHERE usename = %s", user)


# --- without the replica --------------------------------------------------------------------------


def test_what_is_written_while_the_replica_is_away_is_sent_when_it_returns(
    team: Team, ann: Machine
) -> None:
    cap, count = 0.4, full(300, 50_000)
    with daemon_of(ann, "--verbose", SYNCD_DAEMON_RETRY_SECONDS=str(cap)) as a:
        a.online()
        with away(team):
            with writing(ann, pause=0, most=count) as (writer,):
                until(writer.ended, 600)
            until(lambda: len(a.events("not reached")) > 5)
            said = ann.json("status")
            assert (said["push"]["pending"], said["cloud"]["state"]) == (count, "offline")
            assert said["cloud"]["circuit"] == "open"
            ended = len(a.events("not reached"))
        until(lambda: safe(ann), full(30, 300))
        assert in_replica(team) == count
        tried = a.events("not reached")[:ended]
    assert all(0 <= attempt["next_attempt_s"] <= cap for attempt in tried)
    times = [datetime.fromisoformat(attempt["at"]) for attempt in tried]
    pauses = [(b - a).total_seconds() for a, b in pairwise(times)]
    assert max(pauses) < cap + 3  # it goes on trying, and on a busy machine takes its time
    # Only the first of them is worth a line where nobody asked for more.
    told = [attempt["why"] for attempt in tried if attempt["level"] == "warning"]
    assert len(told) <= 3, told
    assert ann.json("prove")["ok"]
    assert len(ann.written) == count


def test_a_server_that_crashes_every_few_seconds_gets_everything_in_the_end(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with online(ann, bob, **QUICK):
        with writing(ann, bob, pause=0.02):
            for _ in range(full(3, 30)):
                moved = in_replica(team)
                until(lambda before=moved: in_replica(team) > before)  # type: ignore[misc]
                time.sleep(random.random() * 2)
                with away(team, "immediate"):
                    time.sleep(random.random())
        until(lambda: same(ann, bob))
        until(lambda: safe(ann) and safe(bob))
    team.agree()


class Proxy:
    """Stands between client and server. Unplugged, it takes what comes and passes nothing on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._plugged = threading.Event()
        self._plugged.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def unplug(self) -> None:
        self._plugged.clear()

    def plug(self, *, drop: bool = False) -> None:
        """`drop`: what was open before is gone."""
        if drop:
            for pair in self._pairs:
                for end in pair:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
        self._plugged.set()

    def close(self) -> None:
        self._listener.close()
        self.plug(drop=True)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._between, args=(client,), daemon=True).start()

    def _between(self, client: socket.socket) -> None:
        self._plugged.wait()
        with client, suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((client, server))
            with server:
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                self._plugged.wait()
                (server if ready is client else client).sendall(data)


@contextmanager
def through_proxy(team: Team, machine: Machine) -> Iterator[Proxy]:
    dsn = make_conninfo(dsn_of(machine), port=(proxy := Proxy(team.cluster.port)).port,
                        connect_timeout="2")  # fmt: skip
    machine.environment["SYNCD_CLOUD_DSN"] = dsn
    with closing(proxy):
        yield proxy


@pytest.mark.parametrize("drop", [False, True], ids=["goes on", "is gone"])
def test_an_unplugged_network_stops_nobody_from_writing_and_is_used_again_when_it_is_back(
    team: Team, ann: Machine, drop: bool
) -> None:
    with through_proxy(team, ann) as proxy, daemon_of(ann, **QUICK) as a:
        a.online()
        proxy.unplug()
        for _ in range(3):
            ann.create()
        said = status(ann)
        assert (said["push"]["pending"], said["safe_to_close"]) == (3, False)
        assert said["daemon"]["answers"]
        proxy.plug(drop=drop)
        until(lambda: safe(ann))
        assert in_replica(team) == 3


@pytest.mark.skipif(not full(False, True), reason="takes 80 s: make proof")
def test_a_line_that_stays_dead_is_given_up(team: Team, ann: Machine) -> None:
    with through_proxy(team, ann) as proxy, daemon_of(ann, **QUICK) as a:
        a.online()
        proxy.unplug()
        ann.create()
        until(lambda: a.told()["cloud"]["state"] == "offline", 120)
        assert status(ann)["verdict"] == "ok"
        proxy.plug(drop=True)
        until(lambda: safe(ann))


def test_through_a_pooler_that_tells_nobody_of_news_it_looks_by_itself(
    team: Team, ann: Machine, bob: Machine, postgres: Session
) -> None:
    if PROGRAM is None:
        pytest.skip("PGBOUNCER IS NOT TESTED: apt-get install pgbouncer")
    with closing(pooler_of(team, postgres.place("pgbouncer"), 2)) as pooler:
        config = (ann.home / "config.toml").read_text()
        with online(ann, bob) as (a, _):
            assert a.told()["cloud"]["told_of_news"]
            draft = ann.home / "draft"
            draft.write_text(config.replace(f"port={team.cluster.port}", f"port={pooler.port}"))
            draft.replace(ann.home / "config.toml")
            until(lambda: not a.told()["cloud"]["told_of_news"])
            arrives(ann.create(), bob)
            arrives(bob.create(), ann, seconds=20)
        team.agree()
