"""Stories of the real daemon: what ends it, what does not, and how it is used."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import pytest
from counts import full
from daemons import (
    QUICK,
    Daemon,
    ann,
    arrives,
    away,
    bob,
    daemon_of,
    dsn_of,
    ending,
    has,
    held,
    in_replica,
    locked,
    online,
    safe,
    same,
    shown,
    status,
    until,
    writing,
)
from machines import SYNCD, Machine, Team, runner, team
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd import running
from syncd.daemon import logs
from syncd.sql import exclusive

__all__ = ["ann", "bob", "runner", "team"]


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


# --- suspended ------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", ["holds", "breaks"])
def test_one_that_was_suspended_syncs_within_seconds_of_waking(
    team: Team, ann: Machine, bob: Machine, line: str
) -> None:
    with online(ann, bob) as (a, _):
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


@pytest.mark.parametrize("seconds", full([-86_400], [-86_400, 86_400]))
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


# --- settings -------------------------------------------------------------------------------------


def test_settings_are_read_again_when_they_change_or_when_it_is_told_to(
    team: Team, ann: Machine, bob: Machine
) -> None:
    file = ann.home / "config.toml"
    good = file.read_text()
    with online(ann, bob, **QUICK) as (a, _):
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
            a.online()
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
        until(lambda: status(ann)["cloud"]["last_error"] == "")


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
        until(lambda: ann.run("status").code == 0)


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


def remove(folder: Path) -> None:
    """As somebody does who sees that it is not empty yet: the daemon writes meanwhile."""
    while folder.exists():
        with suppress(OSError):
            shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["home", "home moved", "run/daemon.lock", "run"])
def test_one_whose_home_or_lock_is_gone_ends_and_says_why(
    ann: Machine, tmp_path: Path, what: str
) -> None:
    with daemon_of(ann) as a:
        a.online()
        if what == "home":
            remove(ann.home)
        elif what == "home moved":
            ann.home.rename(tmp_path / "elsewhere")
        elif what == "run":
            remove(ann.home / "run")
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
    with online(ann, bob) as (a, _):
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
    with online(ann, bob):
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
        a.online()
        b.online()
        with locked(ann):
            written = bob.create()
            until(lambda: "locked by another program" in a.told()["cloud"]["last_error"])
            assert status(ann)["verdict"] == "ok"
        arrives(written, ann)
        arrives(ann.create(), bob)
        until(lambda: safe(ann))


def test_an_exchange_that_another_program_never_ends_is_told_of(ann: Machine, bob: Machine) -> None:
    with daemon_of(ann, SYNCD_STORE_BUSY_SECONDS="0.3", **QUICK) as a, daemon_of(bob) as b:
        a.online()
        b.online()
        with exclusive(ann.home / "run" / "sync.lock"):
            written = bob.create()
            until(lambda: "sync.lock" in a.told()["cloud"]["last_error"])
            assert "sync.lock" in ann.run("status").out
        arrives(written, ann)


def test_directories_that_were_tidied_away_are_made_again(ann: Machine) -> None:
    with ending(ann):
        for name in ("run", "log", "backups"):
            shutil.rmtree(ann.home / name)
        ann.ok("start")
        arrives_in_log = ann.home / "log" / "daemon.log"
        until(arrives_in_log.exists)
        shutil.rmtree(ann.home / "log")
        shutil.rmtree(ann.home / "backups")
        ann.create()
        until(lambda: arrives_in_log.exists() and "pushed" in arrives_in_log.read_text())
        assert ann.json("backup", "create")["intact"]


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
        a.online()
        b.online()
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
        with online(ann, bob, **QUICK) as (a, _):
            arrives(ann.create(), bob)
            until(lambda: a.told()["cloud"]["state"] == "online" and a.events("pushed"))
            fill_up_page(ann.home / "log" / "daemon.log")
            fill(disk)
            fetched = bob.create()
            for _ in range(5):
                said = ann.run("status", "--json")
                assert (said.code, said.json()["verdict"]) == (3, "attention")
                [need] = said.json()["attention"]
                assert "nothing can be written" in need["what"]
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
        with closing(sqlite3.connect(ann.home / "context.db")) as agent:
            agent.execute("SELECT count(*) FROM log").fetchone()
            fill(disk)
            with daemon_of(ann, **QUICK) as a:
                until(lambda: a.process.poll() is not None or running.pid(ann.home) == a.pid)
                assert a.process.poll() is None, a.stderr
        fill(disk)
        assert ann.fails(1, "start")["code"] == "disk_full"


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


# --- through the command line ---------------------------------------------------------------------


def test_start_stop_and_restart_say_what_they_did(ann: Machine) -> None:
    with ending(ann):
        assert ann.json("stop") == {"stopped": False, "pending": 0}
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
        assert ann.json("stop") == {"stopped": True, "pending": 0}
        assert running.pid(ann.home) == 0
        assert ann.json("restart")["pid"] == running.pid(ann.home)
        assert (ann.home / "log" / "start.log").read_text() == ""
        for file in ("log/daemon.log", "log/start.log", "run/daemon.json", "run/daemon.lock"):
            assert (ann.home / file).stat().st_mode & 0o077 == 0, file


@pytest.mark.skipif(sys.platform != "linux", reason="only there is such a process seen")
def test_stop_does_not_wait_for_a_parent_that_takes_no_note(ann: Machine) -> None:
    """As in a container whose first process does not care for those it inherits."""
    with daemon_of(ann) as daemon:
        daemon.ready()
        began = time.monotonic()
        assert ann.json("stop")["stopped"]
        assert time.monotonic() - began < 15
        assert Path(f"/proc/{daemon.pid}").exists()


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
            for _ in range(3):
                ann.create()
                said.append(json.loads(out.readline()))
                while said[-1]["event"] != "pushed":
                    said.append(json.loads(out.readline()))
                assert said[-1]["entries"] == 1
            assert (
                said
                == [json.loads(line) for line in logs.file_of(ann.home).read_text().splitlines()][
                    -len(said) :
                ]
            )
