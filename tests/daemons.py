"""Real daemons for the tests: processes of their own that end with their test, however it ends."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest
from machines import SYNCD, Machine, Team

from syncd import running

_SECONDS = 30.0
# Creates checkpoints until its standard input is closed; says the id of each once it is written.
_WRITER = """
import sys, threading, time
from pathlib import Path
from syncd import CheckpointService
service = CheckpointService(home=Path(sys.argv[1]))
pause, most, stop = float(sys.argv[2]), int(sys.argv[3]), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while most and not stop.is_set():
    print(service.create_checkpoint("load", "writer").revision, flush=True)
    most -= 1
    time.sleep(pause)
service.close()
"""


def until(condition: Callable[[], object], seconds: float = _SECONDS) -> None:
    """Wait for something to become true; the last answer is told if it does not."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


class Daemon:
    """`syncd run` for one machine."""

    def __init__(self, machine: Machine, *words: str, **environment: str) -> None:
        self.machine = machine
        self.home = machine.home
        self._said = machine.home.with_name(f"{machine.home.name}-{time.monotonic_ns()}.stderr")
        settings = {**os.environ, **machine.environment, **environment}
        with self._said.open("wb") as stderr:
            self.process = subprocess.Popen(
                [SYNCD, "--home", str(self.home), "run", *words], env=settings,
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return self._said.read_text()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ready(self) -> Daemon:
        until(lambda: self.process.poll() is not None or self.told().get("pid") == self.pid)
        assert self.process.poll() is None, self.stderr
        return self

    def told(self) -> dict[str, Any]:
        return running.told(self.home)

    def online(self) -> Daemon:
        self.ready()
        until(lambda: self.told()["cloud"]["state"] == "online")
        return self

    def offline(self) -> Daemon:
        self.ready()
        until(lambda: self.told()["cloud"]["state"] == "offline")
        return self

    def ended(self, seconds: float = _SECONDS) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def log(self) -> list[dict[str, Any]]:
        file = self.home / "log" / "daemon.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [said for said in self.log() if said["event"] == event]

    def close(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert "Traceback" not in self.stderr, self.stderr


@contextmanager
def daemon_of(machine: Machine, *words: str, **environment: str) -> Iterator[Daemon]:
    started = Daemon(machine, *words, **environment)
    try:
        yield started
    finally:
        started.close()


@contextmanager
def online(*machines: Machine, **environment: str) -> Iterator[list[Daemon]]:
    """The daemons of several machines, once each has met the replica."""
    with ExitStack() as stack:
        started = [stack.enter_context(daemon_of(m, **environment)) for m in machines]
        yield [daemon.online() for daemon in started]


@contextmanager
def ending(*machines: Machine) -> Iterator[None]:
    """For daemons that `syncd start` made: none of them outlives the block."""
    try:
        yield
    finally:
        for machine in machines:
            for pid in _daemons(machine.home):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            until(lambda m=machine: not running.pid(m.home))  # type: ignore[misc]


def _daemons(home: Path) -> list[int]:
    """Also those that only wait for the place of another."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=", "-o", "args="], capture_output=True, text=True
    ).stdout
    rows = [line.split(maxsplit=1) for line in listed.splitlines()]
    return [int(pid) for pid, words in rows if f"{home} run" in words]


@contextmanager
def shown(*words: str) -> Iterator[IO[str]]:
    """What a command prints that goes on until Ctrl-C; one that says nothing more is ended."""
    with subprocess.Popen([SYNCD, *words], stdout=subprocess.PIPE, text=True) as process:
        late = threading.Timer(_SECONDS, process.kill)
        late.start()
        try:
            assert process.stdout
            yield process.stdout
        finally:
            late.cancel()
            process.send_signal(signal.SIGINT)
            try:
                assert process.wait(_SECONDS) == 0
            finally:
                process.kill()  # one that ignores Ctrl-C would be waited for without end


class Writer:
    """Another program that writes into a machine's home."""

    def __init__(self, machine: Machine, pause: float, most: int) -> None:
        self._machine = machine
        self._said = machine.home.with_name(f"{machine.home.name}-{time.monotonic_ns()}.written")
        words = [sys.executable, "-c", _WRITER, str(machine.home), str(pause), str(most)]
        with self._said.open("wb") as out:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out)

    @property
    def count(self) -> int:
        return len(self._said.read_text().splitlines())

    def close(self) -> None:
        """All that it wrote is known to the machine afterwards."""
        if self._process.stdin:
            self._process.stdin.close()
        assert self._process.wait(_SECONDS) == 0
        self._machine.written.update(self._said.read_text().split())

    def ended(self) -> bool:
        return self._process.poll() is not None


@contextmanager
def writing(
    *machines: Machine, pause: float = 0.002, most: int = 1_000_000
) -> Iterator[list[Writer]]:
    writers = [Writer(machine, pause, most) for machine in machines]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()


def status(machine: Machine) -> dict[str, Any]:
    """What `syncd status --json` says, whatever its exit code."""
    document: dict[str, Any] = machine.run("status", "--json").json()
    return document


def password_of(machine: Machine) -> str:
    return (machine.home / "keys" / "cloud.password").read_text()


def dsn_of(machine: Machine) -> str:
    """With its password."""
    from syncd import config, credentials

    return credentials.dsn(machine.home, config.load(machine.home / "config.toml"))


def in_replica(team: Team) -> int:
    return int(team.sql("SELECT count(*) FROM syncd.log")[0][0])


def files_with(folder: Path, text: str) -> set[str]:
    """The names of the files that hold it."""
    found = (file for file in folder.rglob("*") if file.is_file())
    return {file.name for file in found if text.encode() in file.read_bytes()}


# --- what stories have in common ------------------------------------------------------------------

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


@contextmanager
def locked(machine: Machine) -> Iterator[None]:
    """Another program is in the middle of a write of its own."""
    with closing(sqlite3.connect(machine.home / "context.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
