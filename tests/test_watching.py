"""What agents write into files becomes checkpoints by itself."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from counts import full
from daemons import ann, bob, daemon_of, online, until
from machines import SYNCD, Machine, Runner, Team, runner, team
from test_intake import agent_file, page
from test_presence import FAST

from syncd import CheckpointService
from syncd.node import Node
from syncd.outlet import exported
from syncd.watching import Event, Watcher, format_of

__all__ = ["ann", "bob", "runner", "team"]

NAME = "AGENT_SCHEDULER_20260116_150045.md"
TASK = "plan-block-10"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "agent_checkpoints"
    folder.mkdir(parents=True)
    return folder


class Watching:
    """A watcher at work in a thread, and what it said."""

    def __init__(self, home: Path, place: Path) -> None:
        self._stop = threading.Event()
        self._said: queue.Queue[Event] = queue.Queue()
        self._node = Node(home)
        watcher = Watcher(self._node, [place])
        self._thread = threading.Thread(target=watcher.run, args=(self._stop, self._said.put))
        self._thread.start()
        time.sleep(0.2)

    def event(self, seconds: float = 20.0) -> Event:
        return self._said.get(timeout=seconds)

    def silent(self, seconds: float = 0.6) -> bool:
        time.sleep(seconds)
        return self._said.empty()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._node.close()


@contextmanager
def watching(home: Path, place: Path) -> Iterator[Watching]:
    with closing(Watching(home, place)) as made:
        yield made


def history(home: Path, task: str) -> list[str]:
    with closing(CheckpointService(home=home)) as service:
        return [c.metadata.checkpoint_id for c in service.get_checkpoint_history(task, 1_000)]


# --- which files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data", "form"),
    [
        (f"a/{NAME}", b"", "markdown"),
        ("a/builder-state.json", b"", "builder-state"),
        ("agent_checkpoints/x.json", b"", "agent-json"),
        ("a/x.json", b'{"agent_id": "a", "last_checkpoint": "b"}', "agent-json"),
        ("a/x.json", b'{"agent_id": "a", "phase": "testing"}', "agent-json"),
        ("a/x.json", b'{"agent_id": "a", "name": "b"}', None),
        ("t/1.json", b'{"metadata": {}, "execution_state": {}}', "reference"),
        ("t/latest.json", b'{"checkpoint_id": "1"}', None),
        ("agent_checkpoints/x_crashed_1768488000.json", b"", None),
        ("agent_checkpoints/backups/x_20260115_143000.json", b"", None),
        ("agent_checkpoints/.x.json.swp", b"", None),
        ("agent_checkpoints/x.json~", b"", None),
        ("agent_checkpoints/.#x.json", b"", None),
        (".git/x.json", b'{"agent_id": "a", "last_checkpoint": "b"}', None),
        ("package.json", b'{"name": "x"}', None),
        ("notes.md", b"# Agent Checkpoint: X", None),
        ("x.json", b"\xff\xfe", None),
        ("x.json", b'{"agent_id": "a", "last_checkpoint": "2026', "agent-json"),
        ("x.json", b'{"metadata": {}, "execution_state": {"phase', "reference"),
        ("x.json", b'{"agent_id": "a"', None),
        ("latest.json", b'{"execution_state": {', None),
    ],
)
def test_a_file_is_told_by_its_name_else_by_what_it_holds(
    path: str, data: bytes, form: str | None
) -> None:
    found = format_of(Path(path), data)
    assert (found.name if found else None) == form


def test_a_file_that_was_named_itself_is_told_if_it_cannot_be_read(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "ann.json"
    file.write_text('{"agent_id": "ann", "phase"')
    with watching(home, file) as watch:
        event = watch.event()
    assert (event.what, event.path) == ("unreadable", str(file))


# --- what happens to them -------------------------------------------------------------------------


def test_what_is_there_already_is_taken_in_then_what_comes(home: Path, place: Path) -> None:
    page(place, NAME)
    with watching(home, place) as watch:
        assert watch.event()[:3] == ("taken", str(place / NAME), 1)
        agent_file(place)
        assert watch.event().what == "taken"
    assert len(history(home, TASK)) == len(history(home, "penalty")) == 1


def test_it_is_there_within_a_second_of_settling(home: Path, place: Path) -> None:
    with watching(home, place) as watch:
        agent_file(place)
        watch.event()  # the first one loads what the others need
        times = []
        for number in range(5):
            agent_file(place, last_checkpoint=f"2026-01-15T15:0{number}:00Z")
            began = time.monotonic()
            assert watch.event().what == "taken"
            times.append(time.monotonic() - began)
    assert sorted(times)[2] < 1.0


def test_a_change_is_a_version_and_the_same_content_is_nothing(home: Path, place: Path) -> None:
    page(place, NAME)
    with watching(home, place) as watch:
        watch.event()
        os.utime(place / NAME)
        page(place, NAME)
        assert watch.silent()
        page(place, NAME, left="Select")
        assert watch.event().what == "taken"
    assert len(history(home, TASK)) == 1


def test_a_file_that_is_half_written_is_waited_for(home: Path, place: Path) -> None:
    text = agent_file(place).read_text()
    path = place / "secondary_a.json"
    path.unlink()
    with watching(home, place) as watch:
        for end in range(0, len(text), len(text) // 4):
            path.write_text(text[:end])
            time.sleep(0.25)
        path.write_text(text)
        assert watch.event().what == "taken"
        assert watch.silent()
    assert len(history(home, "penalty")) == 1


def test_watching_ends_with_ctrl_c_without_a_word(home: Path, place: Path) -> None:
    agent_file(place)
    words = [SYNCD, "--home", str(home), "watch", "--json", str(place)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout
        watching.stdout.readline()
        time.sleep(0.5)
        watching.send_signal(signal.SIGINT)
        assert watching.communicate(timeout=20) == (b"", b"")
    assert watching.returncode == 0


def test_one_that_stays_unreadable_is_reported_and_stops_nobody(home: Path, place: Path) -> None:
    with watching(home, place) as watch:
        (place / "bad.json").write_text('{"agent_id": 1}')
        agent_file(place)
        events = {watch.event().what, watch.event().what}
        assert events == {"taken", "unreadable"}
        with closing(Node(home)) as node:
            [(path, line, problem, _)] = node.store.rows("source_problems")
        assert path.endswith("bad.json")
        assert line == 1
        assert problem
        agent_file(place, "Bad", last_checkpoint="2026-01-15T14:31:00Z")
        shutil.move(place / "bad.json", place / "bad.json")
        assert watch.event().what == "taken"
        with closing(Node(home)) as node:
            assert node.store.rows("source_problems") == []


@pytest.mark.parametrize("left", ["", '{"agent_id": "Secondary-A", "agent_ty'])
def test_what_is_left_of_a_file_that_held_a_checkpoint_is_reported(
    home: Path, place: Path, left: str
) -> None:
    folder = place.rename(place.with_name("elsewhere"))
    path = agent_file(folder)
    with watching(home, folder) as watch:
        assert watch.event().what == "taken"
        path.write_text(left)
        told = watch.event()
        assert (told.what, told.path) == ("unreadable", str(path))
        assert "expected JSON" in told.message
    assert len(history(home, "penalty")) == 1


def test_a_damaged_file_is_restored_once_it_is_not_half_written(home: Path, place: Path) -> None:
    path = agent_file(place)
    backup = place / "backups" / "secondary_a_20260115_143000.json"
    backup.parent.mkdir()
    backup.write_bytes(path.read_bytes())
    left = path.read_text()[:60]
    path.write_text(left)
    with watching(home, place) as watch:
        time.sleep(1.0)
        assert path.read_text() == left
        told = watch.event()
        assert (told.what, told.path, told.imported) == ("restored", str(path), 1)
        assert f"restored from backups/{backup.name}" in told.message
        assert path.read_bytes() == backup.read_bytes()
        assert watch.silent()
    with closing(Node(home)) as node:
        assert node.store.rows("source_problems") == []
    assert len(history(home, "penalty")) == 1


def test_a_page_of_another_name_is_passed_over_and_named(home: Path, place: Path) -> None:
    with watching(home, place) as watch:
        page(place, "README.md")
        path = page(place, "AGENT_foo.md")
        told = watch.event()
        assert (told.what, told.path) == ("passed over", str(path))
        assert "AGENT_NAME_YYYYMMDD_HHMMSS.md" in told.message
        assert watch.silent()


def test_a_place_to_watch_that_is_not_there_is_told(
    runner: Runner, home: Path, tmp_path: Path
) -> None:
    machine, place = Machine(runner, home), tmp_path / "agent_checkpoints"
    machine.ok("init")
    (home / "config.toml").write_text(f'[watch]\npaths = ["{place}"]\n')
    status = machine.run("status", "--json")
    [notice] = status.json()["notices"]
    assert (status.code, str(place) in notice["what"]) == (0, True)
    place.mkdir()
    assert machine.json("status")["notices"] == []


def test_an_unreadable_file_is_shown_until_it_is_gone_with_what_reads_it_again(
    runner: Runner, home: Path, place: Path
) -> None:
    bad = place / "bad.json"
    with watching(home, place) as watch:
        bad.write_text('{"agent_id": 1}')
        assert watch.event().what == "unreadable"
    machine = Machine(runner, home)
    [notice] = machine.json("status")["notices"]
    assert f"{bad}, line 1 could not be read" in notice["what"]
    assert (
        notice["remedy"]
        == f"Correct the file, then `syncd watch {bad}`, unless a watch of it runs."
    )
    bad.unlink()
    assert machine.json("status")["notices"] == []


def test_a_renamed_file_is_the_same_checkpoint_also_when_it_changes_later(
    home: Path, place: Path
) -> None:
    page(place, NAME)
    other = "AGENT_PLANNER_20260116_150045.md"
    with watching(home, place) as watch:
        watch.event()
        (place / NAME).rename(place / other)
        assert watch.event()[:2] == ("renamed", str(place / other))
        page(place, other, left="Select")
        assert watch.event().what == "taken"
    assert len(history(home, TASK)) == 1


def test_a_deleted_file_leaves_its_checkpoint(home: Path, place: Path) -> None:
    page(place, NAME)
    with watching(home, place) as watch:
        watch.event()
        (place / NAME).unlink()
        assert watch.event()[:2] == ("gone", str(place / NAME))
    assert len(history(home, TASK)) == 1


def test_what_was_taken_in_before_is_not_taken_in_again(home: Path, place: Path) -> None:
    page(place, NAME)
    with watching(home, place) as watch:
        watch.event()
    with watching(home, place) as watch:
        assert watch.silent()


def test_what_syncd_exported_itself_is_not_read_back(home: Path, place: Path) -> None:
    with closing(CheckpointService(home=home)) as service:
        service.create_checkpoint("t", "ann", {"completed_items": ["x"]})
        with watching(home, place) as watch:
            for form in ("markdown", "agent-json", "reference"):
                exported(service, form, place, "t")
            assert {watch.event().what for _ in range(3)} == {"unchanged"}
            assert watch.silent()
        assert len(service.get_checkpoint_history("t")) == 1


def test_editors_and_thousands_of_files_are_no_problem(home: Path, place: Path) -> None:
    """An editor writes a file of its own and puts it in the place of the old one."""
    many = full(200, 3_000)
    with watching(home, place) as watch:
        for number in range(many):
            draft = place / f".secondary_{number}.json.tmp"
            agent_file(place, f"Agent-{number}").rename(draft)
            draft.rename(place / f"{number}.json")
            (place / f"{number}.json~").write_text("old")
        taken = 0
        while taken < many:
            taken += watch.event(60).imported
        assert watch.silent()
    assert len(history(home, "penalty")) == min(many, 1_000)


# --- the daemon -----------------------------------------------------------------------------------


def settings(machine: Machine, place: Path) -> None:
    machine.home.mkdir(exist_ok=True)
    file = machine.home / "config.toml"
    before = file.read_text() if file.exists() else ""
    file.write_text(f"{before}\n[watch]\npaths = [{json.dumps(str(place))}]\n")


def test_the_daemon_watches_what_the_settings_name(team: Team, ann: Machine, place: Path) -> None:
    with daemon_of(ann) as daemon:
        daemon.online()
        settings(ann, place)  # while it runs
        agent_file(place)
        (place / "bad.json").write_text('{"agent_id": 1}')
        until(lambda: ann.sql("SELECT count(*) FROM checkpoints") == [(1,)])
        until(lambda: "bad.json" in ann.run("status").out)
        assert ann.run("status", "--json").json()["verdict"] == "ok"
        (place / "bad.json").unlink()
        until(lambda: "bad.json" not in ann.run("status").out)


def test_an_agent_that_only_knows_its_file_crashes_and_another_machine_takes_over(
    team: Team, ann: Machine, bob: Machine, place: Path, tmp_path: Path
) -> None:
    there = tmp_path / "clone" / "agent_checkpoints"
    there.mkdir(parents=True)
    settings(ann, place)
    settings(bob, there)
    bob.environment.update(FAST)
    with online(bob):
        with daemon_of(ann) as theirs:
            theirs.online()
            agent_file(place, completed_steps=["Part 1", "Part 2"], files_modified=["spec.md"])
            until(lambda: bob.sql("SELECT count(*) FROM checkpoints") == [(1,)])
        # Ann's machine is gone, and with it the agent.
        until(lambda: "penalty is presumed to have crashed" in bob.run("status").out)
        taken = bob.json("recover", "penalty", "--takeover", "--agent", "Secondary-C")
        assert "Part 2" in taken["prompt"]
    [file] = bob.json("export", "agent-json", str(there), "--task", "penalty")["exported"]
    document = json.loads(Path(file).read_text())
    assert document["completed_steps"] == ["Part 1", "Part 2"]
    assert document["files_modified"] == ["spec.md"]
    assert document["recovery_instructions"] == "Go on with part 2."
