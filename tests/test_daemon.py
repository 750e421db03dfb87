"""Stories of the real daemon: what it brings where, what it survives, and what it says."""

from __future__ import annotations

import json
import logging
import os
import random
import select
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
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
    Daemon,
    daemon_of,
    dsn_of,
    ending,
    files_with,
    in_replica,
    password_of,
    shown,
    status,
    until,
    writing,
)
from machines import SYNCD, Machine, Team, runner, team
from postgres import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from test_pgbouncer import PROGRAM, Pooler

from syncd import running
from syncd.daemon import logs

__all__ = ["runner", "team"]

# The longest pause between two attempts, where a story waits for one.
QUICK = {"SYNCD_DAEMON_RETRY_SECONDS": "0.3"}


@pytest.fixture
def ann(team: Team) -> Machine:
    return team.machine()


@pytest.fixture
def bob(team: Team, ann: Machine) -> Machine:
    return team.machine()


@contextmanager
def away(team: Team, how: str = "fast") -> Iterator[None]:
    """The replica's server does not run meanwhile."""
    team.cluster.stop(how)
    try:
        yield
    finally:
        team.cluster.start()


@contextmanager
def held(team: Team) -> Iterator[None]:
    """The server takes what is sent, and answers only afterwards."""
    with psycopg.connect(team.cluster.superuser_dsn(team.database)) as busy:
        busy.execute("SELECT FROM syncd.organizations FOR UPDATE")
        yield


def waiting(team: Team) -> int:
    """How many sessions wait for a lock at the server."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return int(team.sql(asked)[0][0])


def has(machine: Machine, entry_id: str) -> bool:
    return machine.sql("SELECT 1 FROM log WHERE entry_id = ?", entry_id) == [(1,)]


def arrives(entry_id: str, *machines: Machine, seconds: float = 30.0) -> None:
    for machine in machines:
        until(lambda m=machine: has(m, entry_id), seconds)  # type: ignore[misc]


def safe(machine: Machine) -> bool:
    return status(machine)["safe_to_close"] is True


def sent(machine: Machine) -> bool:
    return machine.sql("SELECT count(*) FROM log WHERE cloud_seq IS NULL") == [(0,)]


def same(*machines: Machine) -> bool:
    first, *others = (machine.entries() for machine in machines)
    return all(sent(machine) for machine in machines) and all(other == first for other in others)


# --- what it brings where -------------------------------------------------------------------------


def test_what_one_machine_writes_is_on_the_other_and_the_other_way_round(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with daemon_of(ann) as a, daemon_of(bob) as b:
        a.online(), b.online()
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
    with daemon_of(ann, **QUICK) as a, daemon_of(bob, **QUICK) as b:
        a.online(), b.online()
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


def test_news_that_comes_with_the_answer_to_something_else_is_heeded(
    team: Team, ann: Machine, bob: Machine
) -> None:
    """Nothing is left on the line then that could wake anybody."""
    with daemon_of(ann) as a, daemon_of(bob) as b:
        a.online(), b.online()
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


# --- killed ---------------------------------------------------------------------------------------


def test_daemons_killed_under_load_lose_nothing_and_start_again(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with ending(ann, bob), writing(ann, bob, pause=full(0.01, 0.05)) as writers:
        for number in range(full(8, 100)):
            for machine in (ann, bob):
                machine.ok("start")
            moved = in_replica(team)
            until(lambda before=moved: in_replica(team) > before)  # type: ignore[misc]
            time.sleep(random.random() * 0.05)
            victim = (ann, bob)[number % 2]
            os.kill(running.pid(victim.home), signal.SIGKILL)
            until(lambda home=victim.home: not running.pid(home))  # type: ignore[misc]
            assert not writers[0].ended()
            assert not writers[1].ended()
    with ending(ann, bob):
        for machine in (ann, bob):
            assert machine.json("start")["running"]
        until(lambda: same(ann, bob))
        for machine in (ann, bob):
            assert machine.json("stop")["stopped"]
    assert ann.written
    assert bob.written
    team.agree()


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
    assert [attempt["level"] for attempt in tried].count("warning") <= 3
    assert ann.json("prove")["ok"]
    assert len(ann.written) == count


def test_a_server_that_crashes_every_few_seconds_gets_everything_in_the_end(
    team: Team, ann: Machine, bob: Machine
) -> None:
    ends = time.monotonic() + full(12, 60)
    with daemon_of(ann, **QUICK) as a, daemon_of(bob, **QUICK) as b:
        a.online(), b.online()
        with writing(ann, bob, pause=0.02):
            while time.monotonic() < ends:
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
    with closing(Pooler(team, postgres.place("pgbouncer"), 2)) as pooler:
        config = (ann.home / "config.toml").read_text()
        with daemon_of(ann) as a, daemon_of(bob) as b:
            a.online(), b.online()
            assert a.told()["cloud"]["told_of_news"]
            draft = ann.home / "draft"
            draft.write_text(config.replace(f"port={team.cluster.port}", f"port={pooler.port}"))
            draft.replace(ann.home / "config.toml")
            until(lambda: not a.told()["cloud"]["told_of_news"])
            arrives(ann.create(), bob)
            arrives(bob.create(), ann, seconds=20)
        team.agree()


# --- suspended ------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["holds", "breaks"])
def test_one_that_was_suspended_syncs_within_seconds_of_waking(
    team: Team, ann: Machine, bob: Machine, line: str
) -> None:
    with daemon_of(ann) as a, daemon_of(bob) as b:
        a.online(), b.online()
        a.send(signal.SIGSTOP)
        written, fetched = ann.create(), bob.create()
        arrives_at = "SELECT count(*) FROM syncd.log"
        until(lambda: team.sql(arrives_at) == [(1,)])
        said = status(ann)
        assert said["daemon"]["answers"] is False
        assert (said["verdict"], said["safe_to_close"]) == ("attention", False)
        if line == "breaks":
            mine = conninfo_to_dict(dsn_of(ann))["user"]
            team.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
                     mine)  # fmt: skip
        a.send(signal.SIGCONT)
        arrives(fetched, ann, seconds=10)
        arrives(written, bob, seconds=10)


def test_one_that_would_wait_long_tries_at_once_when_it_wakes(team: Team, ann: Machine) -> None:
    with daemon_of(ann, "--verbose") as a:
        a.online()
        with away(team):
            for number in range(1, 14):  # each is a failure, and doubles the pause up to minutes
                a.send(signal.SIGCONT)
                until(lambda n=number: len(a.events("not reached")) >= n)  # type: ignore[misc]
        ann.create()
        a.send(signal.SIGSTOP)
        time.sleep(3.3)  # longer than a pause of its own: it must see that it slept
        a.send(signal.SIGCONT)
        until(lambda: safe(ann), 10)
        assert a.events("woke up")


_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t which, struct timespec *now) {
  static int (*true_time)(clockid_t, struct timespec *);
  if (!true_time) true_time = dlsym(RTLD_NEXT, "clock_gettime");
  int done = true_time(which, now);
  if (which != CLOCK_REALTIME) return done;
  FILE *file = fopen(getenv("CLOCK_OFFSET"), "r");
  long offset = 0;
  if (file) { if (fscanf(file, "%ld", &offset) != 1) offset = 0; fclose(file); }
  now->tv_sec += offset;
  return done;
}
"""


@pytest.mark.parametrize("seconds", [-86_400, 86_400], ids=["back", "forward"])
def test_a_clock_that_is_set_stops_nothing_that_is_due_by_it(
    ann: Machine, tmp_path: Path, seconds: int
) -> None:
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("A CLOCK THAT IS SET IS NOT TESTED: apt-get install gcc")
    (tmp_path / "clock.c").write_text(_CLOCK)
    library, offset = tmp_path / "clock.so", tmp_path / "offset"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c"], check=True)
    with daemon_of(ann, LD_PRELOAD=str(library), CLOCK_OFFSET=str(offset)) as a:
        a.online()
        offset.write_text(str(seconds))
        until(lambda: a.events("woke up"))
        now = datetime.fromisoformat(a.events("woke up")[0]["at"])
        assert abs((now - datetime.now(now.tzinfo)).total_seconds() - seconds) < 60

        def due(name: str) -> float:
            running.ask(ann.home, a.pid)
            [job] = [job for job in a.told()["jobs"] if job["name"] == name]
            return (datetime.fromisoformat(job["next_at"]) - now).total_seconds()

        until(lambda: -60 < due("push") < 120, 10)
        until(lambda: -60 < due("backup") < 7_200, 10)


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_that_is_stopped_sends_what_was_just_written(
    team: Team, ann: Machine, number: signal.Signals
) -> None:
    with daemon_of(ann) as a:
        a.online()
        a.send(signal.SIGSTOP)  # it has not seen any of it when the signal comes
        with writing(ann, pause=0, most=40) as (writer,):
            until(writer.ended)
        a.send(number)
        a.send(signal.SIGCONT)
        assert a.ended() == 0
        assert in_replica(team) == 40
        assert a.events("stopping")[0]["signal"] == number.name
        assert a.events("stopped")[0]["sent_the_rest"] is True
        assert safe(ann)


@pytest.mark.parametrize("replica", ["away", "silent", "locked out"])
def test_one_that_cannot_send_the_rest_ends_in_time_and_says_so(
    team: Team, ann: Machine, replica: str
) -> None:
    with daemon_of(ann, SYNCD_DAEMON_GRACE_SECONDS="1") as a:
        a.online()
        with {"away": away, "silent": held}.get(replica, lambda t: locked(ann))(team):
            if replica == "locked out":
                team.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                         " WHERE usename = %s", conninfo_to_dict(dsn_of(ann))["user"])  # fmt: skip
            else:
                ann.create()
            began = time.monotonic()
            a.send(signal.SIGTERM)
            assert a.ended() == 0
            assert time.monotonic() - began < 8
        if replica != "locked out":
            assert a.events("stopped")[0]["sent_the_rest"] is False
            assert (said := ann.run("status", "--json")).code == 3
            assert "daemon does not run" in said.json()["attention"][0]["what"]


@contextmanager
def locked(machine: Machine) -> Iterator[None]:
    """Another program is in the middle of a write of its own."""
    with closing(sqlite3.connect(machine.home / "context.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_read_again_when_they_change_or_when_it_is_told_to(
    team: Team, ann: Machine, bob: Machine
) -> None:
    file = ann.home / "config.toml"
    good = file.read_text()
    with daemon_of(ann, **QUICK) as a, daemon_of(bob) as b:
        a.online(), b.online()
        file.write_text(good.replace(f"port={team.cluster.port}", "port=1"))
        a.offline()
        file.write_text(good)
        a.online()
        read = len(a.events("read the settings again"))
        a.send(signal.SIGHUP)
        until(lambda: len(a.events("read the settings again")) == read + 1)
        for wrong, named in (
            (f"{good}\n[daemon]\npoll_secnds = 3\n", "line 5: no such setting: daemon.poll_secnds"),
            (f'{good}\n[daemon]\npoll_seconds = "x"\n', "line 5: daemon.poll_seconds must be"),
            (f"{good}\n[daemon\n", "line 4"),
        ):
            with file.open("w") as editor:  # which empties a file before it fills it
                time.sleep(0.05)
                editor.write(wrong)
            until(lambda n=named: n in str(a.events("the settings stay as they were")))  # type: ignore[misc]
            a.send(signal.SIGHUP)
            arrives(bob.create(), ann)
            assert a.told()["cloud"]["state"] == "online"
        file.write_text(good)
        until(lambda: len(a.events("read the settings again")) > read + 1)
    team.agree()


def test_a_login_brings_a_local_daemon_online_and_a_logout_takes_it_off(
    team: Team, tmp_path: Path
) -> None:
    ann = team.blank()
    team.machines.append(ann)
    ann.create()
    with daemon_of(ann) as a:
        a.ready()
        said = ann.json("status")
        assert (said["cloud"]["state"], said["safe_to_close"]) == ("unconfigured", False)
        ann.ok("login", "-", stdin=team.login())
        until(lambda: safe(ann))
        assert in_replica(team) == 1
        ann.ok("logout")
        until(lambda: a.told()["cloud"]["state"] == "unconfigured")
        ann.create()
        assert ann.json("status")["cloud"]["state"] == "unconfigured"
        assert a.process.poll() is None


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"host": "nowhere.invalid", "sslmode": "verify-full"}, "cannot be reached"),
        ({"dbname": "nothing_here"}, "no such database"),
        ({"port": "1"}, "cannot be reached"),
    ],
    ids=["unknown name", "no database", "closed port"],
)
def test_a_wrong_address_is_named_and_a_right_one_used_at_once(
    team: Team, ann: Machine, changes: dict[str, str], cause: str
) -> None:
    file = ann.home / "config.toml"
    good = file.read_text()
    bare = make_conninfo(conninfo_of(good), **changes)
    file.write_text(f"[cloud]\ndsn = {json.dumps(bare)}\n")
    ann.create()
    with daemon_of(ann) as a:
        a.offline()
        said = status(ann)
        assert cause in said["cloud"]["last_error"]
        assert (said["push"]["pending"], said["safe_to_close"]) == (1, False)
        file.write_text(good)
        until(lambda: safe(ann))
        assert status(ann)["cloud"]["last_error"] == ""


def conninfo_of(config: str) -> str:
    import tomllib

    return str(tomllib.loads(config)["cloud"]["dsn"])


def test_a_password_changed_at_the_server_wants_a_person_and_the_new_one_is_used_at_once(
    team: Team, ann: Machine
) -> None:
    login = conninfo_to_dict(dsn_of(ann))["user"]
    with daemon_of(ann) as a:
        a.online()
        assert ann.json("status")["verdict"] == "ok"
        team.sql(f"ALTER ROLE {login} PASSWORD 'another'")
        team.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", login)
        ann.create()
        a.offline()
        until(lambda: status(ann)["cloud"]["needs_person"])
        said = ann.run("status", "--json")
        assert (said.code, said.json()["verdict"]) == (3, "attention")
        assert "password is wrong" in said.json()["attention"][0]["what"]
        assert "syncd login" in said.json()["attention"][0]["remedy"]
        ann.ok("login", "-", stdin=make_conninfo(dsn_of(ann), password="another"))
        until(lambda: safe(ann))
        assert ann.json("status")["verdict"] == "ok"


# --- one per home ---------------------------------------------------------------------------------


def test_a_second_daemon_is_refused_and_names_the_first(ann: Machine) -> None:
    with daemon_of(ann) as first:
        first.ready()
        with daemon_of(ann) as second:
            assert second.ended() == 7
            assert f"running already, as process {first.pid}" in second.stderr
            assert "syncd stop" in second.stderr
        assert ann.json("start") == {"running": True, "pid": first.pid}


def test_of_several_that_start_at_once_one_stays(ann: Machine) -> None:
    started = [Daemon(ann) for _ in range(4)]
    try:
        until(lambda: sum(d.process.poll() is None for d in started) == 1)
        [left] = [d for d in started if d.process.poll() is None]
        left.online()
        assert running.pid(ann.home) == left.pid
        assert {d.ended() for d in started if d is not left} == {7}
    finally:
        for daemon in started:
            daemon.close()


def test_several_that_are_asked_to_start_it_at_once_all_say_which_runs(ann: Machine) -> None:
    words = [SYNCD, "--home", str(ann.home), "start", "--json"]
    with ending(ann):
        asked = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(full(3, 8))]
        answers = [json.loads(process.communicate(timeout=30)[0]) for process in asked]
        assert answers == [{"running": True, "pid": running.pid(ann.home)}] * len(asked)


# --- the ground under it --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["home", "home moved", "run/daemon.lock", "run"])
def test_one_whose_home_or_lock_is_gone_ends_and_says_why(
    ann: Machine, tmp_path: Path, what: str
) -> None:
    with daemon_of(ann) as a:
        a.online()
        if what == "home":
            shutil.rmtree(ann.home)
        elif what == "home moved":
            ann.home.rename(tmp_path / "elsewhere")
        elif what == "run":
            shutil.rmtree(ann.home / "run")
        else:
            (ann.home / what).unlink()
        assert a.ended() == 1
        assert "daemon.lock is gone" in a.stderr
        assert "syncd start" in a.stderr
        if "home" in what:
            assert not ann.home.exists()


def test_a_database_that_is_replaced_under_it_is_noticed_and_nothing_is_lost(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with daemon_of(ann) as a, daemon_of(bob) as b:
        a.online(), b.online()
        ann.create()
        until(lambda: same(ann, bob))
        copy = ann.home / "copy.db"
        with closing(sqlite3.connect(ann.home / "context.db")) as live:
            live.execute("VACUUM INTO ?", (str(copy),))
        arrives(ann.create(), bob)
        for leftover in ("context.db-wal", "context.db-shm"):
            (ann.home / leftover).unlink()
        copy.replace(ann.home / "context.db")
        until(lambda: a.events("the database file was replaced: opening the new one"))
        arrives(ann.create(), bob)
        arrives(bob.create(), ann)
        until(lambda: same(ann, bob))
        assert a.process.poll() is None
    team.agree()


def test_a_backup_that_is_restored_under_it_is_noticed_and_nothing_is_lost(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with daemon_of(ann) as a, daemon_of(bob) as b:
        a.online(), b.online()
        arrives(ann.create(), bob)
        backup = ann.json("backup", "create")
        arrives(lost := ann.create(), bob)
        arrives(other := bob.create(), ann)
        ann.restored(backup)
        arrives(ann.create(), bob)
        arrives(bob.create(), ann)
        arrives(lost, ann)
        arrives(other, ann)
        until(lambda: same(ann, bob))
    team.agree()


def test_a_database_that_another_program_holds_for_long_is_waited_for(
    ann: Machine, bob: Machine
) -> None:
    with daemon_of(ann, SYNCD_STORE_BUSY_SECONDS="0.3", **QUICK) as a, daemon_of(bob) as b:
        a.online(), b.online()
        with locked(ann):
            written = bob.create()
            until(lambda: "locked by another program" in a.told()["cloud"]["last_error"])
            assert status(ann)["verdict"] == "ok"
        arrives(written, ann)
        arrives(ann.create(), bob)
        until(lambda: safe(ann))


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("SYNCD_DISK_LOW_MB", "the disk has"), ("SYNCD_DISK_QUOTA_MB", "more than the quota")],
)
def test_without_room_nothing_is_fetched_but_everything_is_sent(
    team: Team, ann: Machine, bob: Machine, setting: str, reason: str
) -> None:
    value = "1000000000" if setting == "SYNCD_DISK_LOW_MB" else "1"
    big = ann.home / "backups" / "context-of-old.db"
    big.write_bytes(bytes(2_000_000))
    ann.environment[setting] = value
    with daemon_of(bob) as b, daemon_of(ann) as a:
        a.online(), b.online()
        fetched = bob.create()
        arrives(ann.create(), bob)
        until(lambda: a.events("nothing is fetched"))
        assert reason in a.events("nothing is fetched")[0]["why"]
        for _ in range(3):
            bob.create()
        arrives(ann.create(), bob)
        assert len(a.events("nothing is fetched")) == 1  # not once for each of them
        assert not has(ann, fetched)
        said = ann.run("status", "--json")
        assert (said.code, said.json()["verdict"]) == (3, "attention")
        assert reason in said.json()["attention"][0]["what"]
        assert said.json()["safe_to_close"] is True
    del ann.environment[setting]
    big.unlink()
    with daemon_of(ann):
        arrives(fetched, ann)
    assert ann.json("backup", "list") == []


def test_a_disk_that_is_really_full_ends_nothing_and_is_over_when_there_is_room(
    team: Team, ann: Machine, bob: Machine, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small") as disk:
        shutil.move(ann.home, disk / "home")
        ann.home = disk / "home"
        ann.environment["SYNCD_DISK_LOW_MB"] = "1"
        with daemon_of(ann, **QUICK) as a, daemon_of(bob) as b:
            a.online(), b.online()
            arrives(ann.create(), bob)
            until(lambda: a.told()["cloud"]["state"] == "online" and a.events("pushed"))
            fill_up_page(ann.home / "log" / "daemon.log")
            fill(disk)
            fetched = bob.create()
            for _ in range(5):
                said = ann.run("status", "--json")
                assert (said.code, said.json()["verdict"]) == (3, "attention")
            assert ann.run("checkpoint", "create", "--task", "t", "--agent", "a").code == 1
            a.send(signal.SIGHUP)
            a.send(signal.SIGCONT)
            until(lambda: in_replica(team) == 2)
            assert a.process.poll() is None
            (disk / "ballast").unlink()
            a.send(signal.SIGHUP)
            arrives(fetched, ann)
            arrives(ann.create(), bob)
            until(lambda: ann.run("status").code == 0)


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("FULL DISKS ARE NOT TESTED: only root can mount a small file system")
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "none", str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"FULL DISKS ARE NOT TESTED: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up_page(log: Path) -> None:
    """The next line needs room that there will not be."""
    left = 4096 - (log.stat().st_size + len('{"event": ""}\n')) % 4096
    with log.open("a") as file:
        file.write(json.dumps({"event": "x" * left}) + "\n")


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_home_of_another_user_is_refused_with_a_way_out(ann: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("A HOME OF ANOTHER USER IS NOT TESTED: only root can give one away")
    os.chown(ann.home, 12345, -1)
    try:
        with daemon_of(ann) as a:
            assert a.ended() == 1
            assert "belongs to another user (uid 12345" in a.stderr
            assert "SYNCD_HOME" in a.stderr
        assert "another user" in ann.fails(1, "start")["message"]
    finally:
        os.chown(ann.home, os.geteuid(), -1)


def test_a_file_in_the_way_is_named_when_it_cannot_start(ann: Machine) -> None:
    (ann.home / "run" / "daemon.lock").mkdir()
    error = ann.fails(1, "start")
    assert "daemon.lock" in error["message"]
    (ann.home / "run" / "daemon.lock").rmdir()
    with ending(ann):
        assert ann.json("start")["running"]


# --- what it says ---------------------------------------------------------------------------------


def test_the_log_is_json_and_no_secret_is_in_it_at_any_level(team: Team, ann: Machine) -> None:
    secret = password_of(ann)
    assert files_with(ann.home, secret) == {"cloud.password"}
    with daemon_of(ann, "--verbose", **QUICK) as a:
        a.online()
        ann.create()
        until(lambda: sent(ann))
        with away(team):
            a.offline()
        a.online()
        login = conninfo_to_dict(dsn_of(ann))["user"]
        team.sql(f"ALTER ROLE {login} PASSWORD 'another-secret'")
        team.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", login)
        until(lambda: a.told()["cloud"]["needs_person"])
        (ann.home / "config.toml").write_text(f'[cloud]\ndsn = "postgresql://u:{secret}@[x/d"\n')
        until(lambda: "DSN" in a.told()["cloud"]["last_error"])
        until(lambda: status(ann)["daemon"]["answers"])
        (ann.home / "config.toml").write_text(f"[cloud]\ndsn = 1\n{secret}\n")
        until(lambda: a.events("the settings stay as they were"))
        a.send(signal.SIGTERM)
        assert a.ended() == 0
        for said in a.log():
            assert {"at", "level", "event"} <= set(said)
            assert datetime.fromisoformat(said["at"])
        events = {said["event"] for said in a.log()}
        assert {"started", "connected", "pushed", "not reached", "stopped"} <= events
        assert secret not in a.stderr
        assert "not reached" in a.stderr
        assert files_with(ann.home, secret) == {"cloud.password", "config.toml"}


def test_a_dsn_with_its_password_in_the_settings_is_not_repeated_either(ann: Machine) -> None:
    dsn = dsn_of(ann).replace("dbname=", "dbname=nothing_")
    with daemon_of(ann, "--verbose", SYNCD_CLOUD_DSN=dsn) as a:
        a.offline()
        assert password_of(ann) not in a.stderr
    assert files_with(ann.home, password_of(ann)) == {"cloud.password"}


@pytest.fixture
def begun(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a log needs, and what it leaves behind in a process."""
    (home / "log").mkdir(parents=True)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    yield
    for handler in logging.getLogger("syncd.daemon").handlers:
        handler.close()


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("postgresql://ann:hidden@host/d", "postgresql://ann:***@host/d"),
        ("postgresql://:hid/den@host/d failed", "postgresql://:***@host/d failed"),
        ("host=h password=hidden user=u", "host=h password=*** user=u"),
        ("host=h password = 'hid \\' den' user=u", "host=h password = *** user=u"),
        ("HOST=h PASSWORD=hidden", "HOST=h PASSWORD=***"),
        ("?user=u&password=hidden", "?user=u&password=***"),
        ("the server said kept-word!", "the server said ***!"),
        (["a list", "password=hidden kept-word"], "['a list', 'password=*** ***']"),
        (OSError("kept-word"), "***"),
        ("at 12:30 by ann@host", "at 12:30 by ann@host"),
    ],
)
def test_a_secret_is_struck_out_of_whatever_is_said(
    home: Path, begun: None, said: object, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.begin(home, verbose=True, stderr=True)
    logs.keep_secret("kept-word")
    logs.keep_secret("")
    logs.debug("said", what=said, number=3)
    [line] = (json.loads(line) for line in logs.file_of(home).read_text().splitlines())
    assert (line["what"], line["number"]) == (written, 3)
    told = capsys.readouterr().err
    assert written in told
    assert "hidden" not in told + str(line)


def test_log_files_are_turned_over_and_the_oldest_goes(
    home: Path, begun: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_FILE_BYTES", 2_000)
    logs.begin(home, verbose=False, stderr=False)
    for number in range(400):
        logs.info("said", number=number)
        logs.debug("not said")
    files = sorted((home / "log").iterdir())
    assert [file.suffix for file in files] == [".log", ".1", ".2", ".3", ".4"]
    assert all(file.stat().st_size <= 2_000 for file in files)
    lines = [json.loads(line) for file in reversed(files) for line in file.read_text().splitlines()]
    assert [line["number"] for line in lines] == list(range(400 - len(lines), 400))


# --- through the command line ---------------------------------------------------------------------


def test_start_stop_and_restart_say_what_they_did(ann: Machine) -> None:
    with ending(ann):
        assert ann.json("stop") == {"stopped": False}
        assert ann.ok("stop").out == "There was no daemon.\n"
        assert ann.run("logs").code == 1
        started = ann.json("start")["pid"]
        assert started == running.pid(ann.home)
        assert os.getsid(started) == started  # a session of its own: no terminal ends it
        assert os.getsid(started) != os.getsid(0)
        assert ann.json("start") == {"running": True, "pid": started}
        assert ann.ok("start").out == f"Running already, process {started}.\n"
        again = ann.json("restart")["pid"]
        assert again == running.pid(ann.home) != started
        assert ann.json("stop") == {"stopped": True}
        assert running.pid(ann.home) == 0
        assert ann.json("restart")["pid"] == running.pid(ann.home)
        assert (ann.home / "log" / "start.log").read_text() == ""
        for file in ("log/daemon.log", "log/start.log", "run/daemon.json", "run/daemon.lock"):
            assert (ann.home / file).stat().st_mode & 0o077 == 0, file


def test_one_that_cannot_start_says_why(ann: Machine) -> None:
    (ann.home / "config.toml").write_text("[daemon]\npoll_secnds = 3\n")
    assert "line 2: no such setting" in ann.fails(2, "start")["message"]
    with daemon_of(ann) as a:
        assert a.ended() == 2
        assert "line 2: no such setting" in a.stderr


def test_logs_show_the_last_lines_and_follow_what_comes(team: Team, ann: Machine) -> None:
    with ending(ann):
        ann.ok("start")
        until(lambda: "connected" in ann.ok("logs").out)
        [line] = ann.ok("logs", "-n", "1", "--json").out.splitlines()
        assert json.loads(line)["event"]
        assert ann.ok("logs", "-n", "0").out == ""
        with shown("--home", str(ann.home), "logs", "--follow", "--json", "-n", "2") as out:
            said = [json.loads(out.readline()) for _ in range(2)]
            ann.create()
            while said[-1]["event"] != "pushed":
                said.append(json.loads(out.readline()))
            assert said[-1]["entries"] == 1
