"""Chaos: the plan follows from its seed, the line is as bad as it is told to be, and a short run
proves that nothing is lost; with a defect planted it says so."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counts import full

from chaos import __main__ as chaos
from chaos import disk as disks
from chaos import faults, network, nursery, proof
from chaos.agent import REFUSED, Agent
from chaos.disk import Disk
from chaos.faults import COMMANDS, FAULTS, Conductor, absent, wrong
from chaos.journal import Journal
from chaos.line import Line
from chaos.notes import read_notes
from chaos.plan import LINES, Act, timetable
from chaos.plants import PLANTS
from chaos.tally import OFTEN, Tally
from chaos.world import Done, Machine, World
from syncd.cli import printing
from syncd.cli.app import _system, command_paths
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointExistsError,
    DatabaseCorruptError,
    DiskFullError,
    DivergedError,
    ReplicaUnreachableError,
    StaleBaseError,
    SyncdError,
    TamperedError,
    ViewDamagedError,
)

ROOT = Path(__file__).parents[1]


# --- the plan -------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_faults_at_the_same_times() -> None:
    assert timetable(7, 60) == timetable(7, 60)
    assert timetable(7, 60) != timetable(8, 60)


def test_every_fault_is_done_however_short_the_run() -> None:
    planned = {act.what for acts in timetable(1, 1).values() for act in acts}
    assert planned == FAULTS.keys()
    assert planned == {what for kinds in LINES.values() for what in kinds}


def test_ten_minutes_have_a_thousand_kills_to_spare() -> None:
    kills = [
        act for acts in timetable(1, 600).values() for act in acts if act.what.startswith("kill")
    ]
    assert len(kills) > 1_400


# --- the line -------------------------------------------------------------------------------------


@contextmanager
def echo() -> Iterator[int]:
    """The port of a server that gives back what it gets."""

    def answer(one: socket.socket) -> None:
        with one:
            while data := one.recv(4096):
                one.sendall(data)

    def serve() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(one,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def line() -> Iterator[Line]:
    with echo() as port:
        made = Line(port)
        yield made
        made.mend()
        made.pull()


def called(line: Line) -> socket.socket:
    return socket.create_connection(("127.0.0.1", line.port), timeout=10)


def test_a_silent_line_says_nothing_and_loses_nothing(line: Line) -> None:
    with closing(called(line)) as caller:
        line.silence()
        caller.sendall(b"hello")
        caller.settimeout(0.2)
        with pytest.raises(TimeoutError):
            caller.recv(5)
        caller.settimeout(10)
        line.mend()
        assert caller.recv(5) == b"hello"


def test_a_slow_line_takes_its_time(line: Line) -> None:
    with closing(called(line)) as caller:
        line.slow(0.05)
        began = time.monotonic()
        caller.sendall(b"x" * 3_000)
        got = 0
        while got < 3_000:
            got += len(caller.recv(4096))
        assert time.monotonic() - began > 0.15


def test_a_line_whose_server_is_away_is_there_when_it_comes_back() -> None:
    with echo() as port:
        pass
    line = Line(port)
    with closing(called(line)) as caller:
        assert caller.recv(1) == b""
    with socket.create_server(("127.0.0.1", port)) as back, closing(called(line)) as caller:
        caller.sendall(b"again")
        one, _ = back.accept()
        with one:
            assert one.recv(5) == b"again"
    line.pull()


# --- processes ------------------------------------------------------------------------------------


def test_a_number_that_is_given_out_again_belongs_to_the_new_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        children = nursery._Children(theirs, "")
        words = [sys.executable, "-c", "import time; time.sleep(60)"]
        first = children.start(nursery.PROGRAM, words, {}, str(tmp_path / "out"), "/dev/null")
        assert children.send(first, signal.SIGKILL)
        monkeypatch.setattr(os, "fork", lambda: first)
        monkeypatch.setattr(os, "waitpid", lambda _pid, _how: (0, 0))
        assert children.start(nursery.PROGRAM, words, {}, "", "") == first
        assert children.ended(first) is None


# --- whether a run meant anything -----------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    """With three machines on which nothing runs."""
    made = World(tmp_path, Journal(tmp_path / "journal"))
    made.machines = [Machine(made, f"machine-{n}", tmp_path, SimpleNamespace()) for n in range(3)]  # type: ignore[arg-type]
    return made


def tally_of(seconds: float, **missing: str) -> Tally:
    """Of a run in which everything took place."""
    found = Tally(timetable(1, seconds), missing)
    found.done.update(kind for kind in FAULTS if kind not in missing)
    return found


def judged(world: World, tally: Tally, monkeypatch: pytest.MonkeyPatch) -> bool:
    """By that alone whether the run meant anything."""
    monkeypatch.setattr(chaos, "proven", proof.meant)
    return chaos._judged(world, tally)


def note(world: World, text: str) -> None:
    (world.folder / "notes" / "machine-0-1").write_text(text)


def refuse(world: World, machine: str = "machine-2") -> None:
    with (world.folder / "said" / f"{machine}-agent-1").open("a") as out:
        out.write(f"{REFUSED}\n")


def test_a_run_in_which_nothing_was_acknowledged_fails(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(world)
    assert not judged(world, tally_of(60), monkeypatch)
    assert "FAILED  something was acknowledged" in capsys.readouterr().out
    note(world, "revision hash\n")
    assert judged(world, tally_of(60), monkeypatch)
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("what", FAULTS)
def test_a_run_of_five_minutes_without_one_kind_of_fault_fails(
    what: str, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note(world, "revision hash\n")
    refuse(world)
    tally = tally_of(300)
    assert judged(world, tally, monkeypatch)
    del tally.done[what]
    assert not judged(world, tally, monkeypatch)
    assert f"{what} never took place" in capsys.readouterr().out


def test_a_short_run_needs_the_faults_that_were_planned_often() -> None:
    tally = Tally(timetable(1, 60), {})
    told = " ".join(tally.missing())
    assert "kill agent" in told
    assert "network down" not in told
    tally.done.update(kind for kind, planned in tally.planned.items() if planned >= OFTEN)
    assert tally.missing() == []


def test_without_pgbouncer_its_faults_are_said_to_be_absent_and_count_as_not_done(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "isolated", lambda: True)
    world.disk = SimpleNamespace(can_fill=True, kind="")  # type: ignore[assignment]
    missing = absent(world)
    assert missing.keys() == {"kill pooler", "restart pooler"}
    note(world, "revision hash\n")
    refuse(world)
    tally = tally_of(300, **missing)
    for kind in missing:
        tally.done[kind] += FAULTS[kind](world, random.Random(1))
    told = "kill pooler, restart pooler: PgBouncer is not installed"
    chaos._introduce(world, tally)
    assert told in capsys.readouterr().out
    assert judged(world, tally, monkeypatch)
    assert re.search(rf"ABSENT +{told}", capsys.readouterr().out)
    assert [re.sub(" +", " ", line) for line in tally.lines() if "pooler" in line] == [
        "kill pooler 0 of 15 PgBouncer is not installed",
        "restart pooler 0 of 7 PgBouncer is not installed",
    ]


def test_where_nothing_can_be_had_all_that_needs_it_is_absent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "isolated", lambda: False)
    assert absent(world).keys() == {"kill pooler", "restart pooler", "network down", "fill disk"}
    world.disk = SimpleNamespace(can_fill=False, fill=lambda: False)  # type: ignore[assignment]
    assert "fill disk" in absent(world)
    assert not any(FAULTS[kind](world, random.Random(1)) for kind in absent(world))


def test_acts_that_come_too_late_are_counted_as_not_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object) -> bool:
        time.sleep(0.3)
        return True

    monkeypatch.setitem(FAULTS, "cut line", slow)
    monkeypatch.setitem(FAULTS, "slow line", lambda *_: False)
    acts = {"first": [Act(0, "cut line", 1)] * 3, "second": [Act(0, "slow line", 1)]}
    tally = Tally(acts, {})
    Conductor(world, acts, 0.1, tally).run()
    assert [re.sub(" +", " ", line) for line in tally.lines()] == [
        "cut line 1 of 3 2 came too late",
        "slow line 0 of 1",
    ]


# --- what agents and commands were told -----------------------------------------------------------


def test_a_note_that_cannot_be_read_is_a_problem_and_hides_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(world, "one hash\nnonsense\nthree hash\nfour ha")
    told = read_notes(world.folder / "notes")
    assert told.entries == {"one": "hash", "three": "hash"}
    assert told.problems == ["machine-0-1: 'nonsense'"]
    refuse(world)
    assert not judged(world, tally_of(60), monkeypatch)


def done(code: int, error: SyncdError | None = None, out: str = "") -> Done:
    said = json.dumps({"error": error.as_dict()}) if error else ""
    return Done(("prove", "--json"), code, out, f"Warning: beforehand\n{said}\n")


@pytest.mark.parametrize(
    "error",
    [
        CheckpointCorruptionError, DatabaseCorruptError, ViewDamagedError, TamperedError,
        DivergedError, CheckpointExistsError, SyncdError,
    ],
)  # fmt: skip
def test_a_command_that_tells_of_damage_is_wrong_whatever_its_exit_code(
    error: type[SyncdError],
) -> None:
    told = error("as it happens")
    assert wrong(done(1, told)) == f"ended with the error `{told.code}`"
    assert wrong(done(told.exit_code, told))


@pytest.mark.parametrize("error", [DiskFullError, StaleBaseError, ReplicaUnreachableError])
def test_what_chaos_does_to_a_command_is_not_wrong(error: type[SyncdError]) -> None:
    assert wrong(done(error.exit_code, error("as it happens"))) == ""
    assert wrong(done(0)) == wrong(done(3, out="{}")) == ""


def test_no_room_for_a_file_is_not_wrong_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "to_nowhere", lambda _: None)
    full_disk = _system(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "keys/data.json"))
    assert wrong(done(1, full_disk)) == ""
    assert wrong(done(1, _system(OSError(errno.EIO, os.strerror(errno.EIO)))))


def test_a_command_that_fails_without_a_word_or_with_another_code_is_wrong() -> None:
    assert wrong(done(1)) == "failed without a word"
    assert wrong(done(99, out="{}")) == "ended with 99"


def test_what_a_command_says_that_it_wrote_is_noted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: str, words: list[str], environment: dict[str, str], out: Path, *__: Any) -> int:
        with out.open("w") as said:
            subprocess.run([syncd, *words], env=environment, stdout=said, check=True)
        return 1

    syncd = Path(sys.executable).with_name("syncd")
    world.machines = world.machines[:1]
    world.nursery = SimpleNamespace(start=start, send=lambda *_: False, ended=lambda _: 0)  # type: ignore[assignment]
    words = ("checkpoint", "create", "--task", "one", "--agent", "ann")
    monkeypatch.setattr(faults, "_typed", lambda _: words)
    assert not FAULTS["kill command"](world, random.Random(1))
    [(written,)] = world.machines[0].sql("SELECT id FROM checkpoints")
    assert read_notes(world.folder / "notes").entries == {written: "-"}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_its_error_as_json(command: str) -> None:
    [path] = [p for p in command_paths() if f"syncd {command} ".startswith(f"{p} ")]
    assert "--json" in {opt for each in command_paths()[path].params for opt in each.opts}


# --- a full disk ----------------------------------------------------------------------------------


@contextmanager
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def largest(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_FSIZE)[0]


linux = pytest.mark.skipif(sys.platform != "linux", reason="no limit for another process here")


@linux
def test_a_file_system_that_cannot_be_made_smaller_is_told_and_files_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mount(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        refused = words[2].startswith("remount") and words[2] != allowed
        return subprocess.CompletedProcess(words, int(refused), "", "mount: too small\n")

    allowed = "remount,size=2g"
    monkeypatch.setattr(disks.subprocess, "run", mount)  # type: ignore[attr-defined]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told: list[str] = []
    with sleeper() as pid:
        before = largest(pid)
        disk = Disk(tmp_path / "small", lambda: [pid], told.append)
        assert disk.mounted
        assert disk.fill()
        assert "mount: too small" in told[0]
        assert largest(pid) == 64_000
        disk.empty()
        assert largest(pid) == before
    allowed = ""
    with pytest.raises(OSError, match="stays full: mount: too small"):
        disk.empty()


@linux
def test_without_a_program_that_mounts_files_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    disk = Disk(tmp_path / "small", list, pytest.fail)
    assert not disk.mounted
    assert disk.fill()


@linux
@pytest.mark.parametrize("role", [nursery.AGENT, nursery.COMMAND, nursery.PROGRAM])
def test_who_is_started_while_the_disk_is_full_finds_no_room_either(
    role: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    machine = world.machines[2]
    machine.disk = Disk(world.folder / "small", machine.processes, pytest.fail)
    start: dict[str, Any] = {
        nursery.AGENT: lambda: machine.start_agent(random.Random(1)),
        nursery.COMMAND: lambda: machine.begin("status"),
        nursery.PROGRAM: machine.start_daemon,
    }
    with sleeper() as pid:
        world.nursery = SimpleNamespace(start=lambda *_: pid)  # type: ignore[assignment]
        before = largest(pid)
        machine.disk.fill()
        start[role]()
        assert largest(pid) == 64_000
        machine.disk.empty()
        assert largest(pid) == before


def test_an_agent_says_that_it_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        agent._going = False
        raise DiskFullError("no room")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for step in ("_create", "_update", "_share", "_finalize"):
        monkeypatch.setattr(Agent, step, refused)
    agent = Agent(tmp_path / "home", "ann", tmp_path / "notes", random.Random(1))
    agent.work()
    assert capsys.readouterr().out == f"{REFUSED}\n"


def test_a_full_disk_that_refuses_nothing_fails_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    note(world, "revision hash\n")
    refuse(world, "machine-1")
    tally = tally_of(60)
    assert not judged(world, tally, monkeypatch)
    assert "FAILED  a full disk refused writes" in capsys.readouterr().out
    del tally.done["fill disk"]
    assert judged(world, tally, monkeypatch)


def test_a_disk_stays_full_until_it_has_refused_a_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: float) -> None:
        said.append("waits")
        if len(said) == 3:
            refuse(world)

    said: list[str] = []
    refuse(world)
    monkeypatch.setattr(faults.time, "sleep", sleep)  # type: ignore[attr-defined]
    world.disk = SimpleNamespace(fill=lambda: True, empty=lambda: said.append("empty"))  # type: ignore[assignment]
    assert FAULTS["fill disk"](world, random.Random(1))
    assert said == ["waits", "waits", "waits", "empty"]
    world.disk = SimpleNamespace(fill=lambda: False)  # type: ignore[assignment]
    assert not FAULTS["fill disk"](world, random.Random(1))


# --- runs -----------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "chaos", *words], cwd=ROOT, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_short_run_loses_nothing() -> None:
    code, told = run("--seconds", full("5", "60"), "--seed", "5")
    assert code == 0, told
    assert "FAILED" not in told
    [kills] = re.findall(r"total +([\d,]+)", told)
    assert int(kills.replace(",", "")) >= full(5, 100)
    [entries] = re.findall(r"Acknowledged to agents: ([\d,]+)", told)
    assert int(entries.replace(",", "")) > 0
    assert "Everything is in" not in told


FOUND_BY = {
    "word-first": "everything acknowledged is at the replica",
    "torn-pull": "syncd prove",
    "gives-up": "no daemon is stuck: no backlog is left",
    "stray": "no process is left",
    "sequence-cursor": "syncd prove",
}


def test_each_defect_that_can_be_planted_is_known() -> None:
    assert FOUND_BY.keys() == PLANTS.keys()


@pytest.mark.proof
@pytest.mark.parametrize("plant", FOUND_BY)
def test_a_run_with_a_defect_planted_says_so_and_keeps_everything(plant: str) -> None:
    code, told = run("--seconds", "40", "--seed", "5", "--plant", plant)
    assert code == 1, told
    assert re.search(rf"FAILED +{FOUND_BY[plant]}", told), told
    [folder] = re.findall(r"Everything is in (\S+):", told)
    assert (Path(folder) / "journal").exists()
    shutil.rmtree(folder)
