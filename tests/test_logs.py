"""What the daemon says, and what it never says."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from daemons import (
    QUICK,
    ann,
    away,
    daemon_of,
    dsn_of,
    files_with,
    password_of,
    sent,
    status,
    until,
)
from machines import Machine, Team, runner, team
from psycopg.conninfo import conninfo_to_dict

from syncd.cli.daemon import _following, _last
from syncd.daemon import logs

__all__ = ["ann", "runner", "team"]


def test_the_log_is_json_and_no_secret_is_in_it_at_any_level(team: Team, ann: Machine) -> None:
    secret = password_of(ann)
    assert files_with(ann.home, secret) == {"cloud.password"}
    with daemon_of(ann, "--verbose", **QUICK) as a:
        a.online()
        ann.create()
        until(lambda: sent(ann) and a.events("pushed"))
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


@pytest.mark.parametrize("gone", ["file", "directory"])
def test_a_log_that_was_removed_goes_on_in_a_new_file(home: Path, begun: None, gone: str) -> None:
    logs.begin(home, verbose=False, stderr=False)
    logs.info("before")
    file = logs.file_of(home)
    file.unlink()
    if gone == "directory":
        file.parent.rmdir()
    logs.info("after")
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["after"]


def test_what_is_said_while_the_last_lines_are_shown_follows_them(tmp_path: Path) -> None:
    file = tmp_path / "daemon.log"
    file.with_name("daemon.log.1").write_text("one\ntwo\n")
    file.write_text("three\nfo")
    place, last = _last(file, 2)
    assert last == ["two", "three"]
    with file.open("a") as opened:
        opened.write("ur\nfive\n")
    following = _following(file, place)
    assert [next(following), next(following)] == ["four", "five"]
    file.rename(tmp_path / "daemon.log.1")
    file.write_text("six\n")
    assert next(following) == "six"
