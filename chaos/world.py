"""Everything that runs: a server, a pooler before it, machines with their daemons and agents."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from chaos import agent, nursery, pooler
from chaos.disk import Disk
from chaos.journal import Journal
from chaos.line import Line
from chaos.notes import Told, read_notes
from chaos.plants import PLANTS, planted_at_server
from chaos.pooler import Pooler
from chaos.server import Server
from syncd import CheckpointService, cluster, running
from syncd.replica import Administration, link

_SYNCD = str(Path(sys.executable).with_name("syncd"))
_SECONDS = 120.0
_POOL_SIZE = 3
_START_SECONDS = 60
# What waits for the next attempt, or for news that nobody announces, does not wait for long.
_SETTINGS = {
    "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    "SYNCD_DAEMON_RETRY_SECONDS": "2",
    "SYNCD_DAEMON_POLL_SECONDS": "5",
    "SYNCD_DISK_LOW_MB": "1",
    "SYNCD_BACKUP_KEEP": "3",
}


class Done(NamedTuple):
    """What became of a command."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> tuple[str, str]:
        """Code and message of what a command with --json has told of, as its last words."""
        with suppress(ValueError, LookupError, TypeError):
            told = json.loads(self.err.rstrip("\n").rpartition("\n")[2])["error"]
            return told["code"], told["message"]
        return "", ""


class Machine:
    """A home, its daemon, its agents, and its way to the server."""

    def __init__(self, world: World, name: str, home: Path, line: Line, **settings: str) -> None:
        self._world = world
        self.name = name
        self.home = home
        self.line = line
        self.environment = {**world.environment, **_SETTINGS, **settings, "SYNCD_HOME": str(home)}
        self.disk: Disk | None = None
        self.daemon = 0
        self.agents: list[int] = []
        self.commands: list[int] = []

    def __str__(self) -> str:
        return self.name

    # --- its processes --------------------------------------------------------------------------

    def start_daemon(self) -> None:
        words = ["--home", str(self.home), "run", "--verbose"]
        plant = self._world.plant
        program = [sys.executable, "-m", "chaos.plants", plant] if plant else [_SYNCD]
        self.daemon_out = self._world.place(self, "daemon")
        self.daemon = self._world.nursery.start(
            nursery.PROGRAM, [*program, *words], self.environment, self.daemon_out
        )
        self._admit(self.daemon)
        self._world.journal.note("start daemon", f"{self} process {self.daemon}")

    def start_agent(self, dice: random.Random) -> int:
        number = self._world.number()
        notes = self._world.folder / "notes" / f"{self.name}-{number}"
        words = [str(self.home), f"agent {number}", str(notes), str(dice.getrandbits(32))]
        out = self._world.place(self, "agent")
        pid = self._world.nursery.start(nursery.AGENT, words, self.environment, out)
        self.agents.append(pid)
        self._admit(pid)
        return pid

    def _admit(self, pid: int) -> None:
        if self.disk:
            self.disk.admit(pid)

    def processes(self) -> list[int]:
        return [pid for pid in (self.daemon, *self.agents, *self.commands) if pid]

    def run(self, *words: str, stdin: Path | None = None, seconds: float = _SECONDS) -> Done:
        """A command, to its end."""
        pid, out = self.begin(*words, stdin=stdin)
        return self.finish(pid, out, words, seconds)

    def begin(self, *words: str, stdin: Path | None = None) -> tuple[int, Path]:
        out = self._world.place(self, "command")
        pid = self._world.nursery.start(nursery.COMMAND, words, self.environment, out, stdin)
        self.commands.append(pid)
        self._admit(pid)
        return pid, out

    def finish(self, pid: int, out: Path, words: tuple[str, ...], seconds: float) -> Done:
        deadline = time.monotonic() + seconds
        while (code := self._world.nursery.ended(pid)) is None:
            if time.monotonic() > deadline:
                self._world.nursery.send(pid, signal.SIGKILL)
                self._world.journal.problem(f"{self}: {words} did not end in {seconds:.0f} s")
                code = -signal.SIGKILL
                break
            time.sleep(0.005)
        self.commands.remove(pid)
        return Done(words, code, *said(out))

    # --- looking inside -------------------------------------------------------------------------

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.home / "context.db", timeout=30)) as database:
            return database.execute(text).fetchall()


def said(out: Path) -> tuple[str, str]:
    """Nothing, if it was killed before it could open its mouth."""
    files = out, out.with_name(out.name + ".err")
    out_text, err_text = (file.read_text() if file.exists() else "" for file in files)
    return out_text, err_text


class World:
    def __init__(self, folder: Path, journal: Journal, plant: str = "") -> None:
        if plant and plant not in PLANTS:
            raise ValueError(plant)
        self.folder = folder
        self.journal = journal
        self.plant = plant
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SYNCD_", "XDG_", "GIT_")) or name == "SYNCD_CHAOS"
        } | {"HOME": str(folder), "SYNCD_CHAOS": str(folder)}
        self.machines: list[Machine] = []
        self.pooler: Pooler | None = None
        self.disk: Disk | None = None
        self._numbers = 0
        self._lock = threading.Lock()
        self._last = ExitStack()
        for name in ("notes", "said"):
            (folder / name).mkdir()
        cluster.let_server_through(folder)

    # --- its beginning and end ------------------------------------------------------------------

    def build(self, machines: int) -> None:
        self.nursery = nursery.Nursery(self.folder, self.plant)
        self._last.callback(self.nursery.close)
        self.server = Server(self.folder / "postgres")
        self._last.callback(self.server.stop, signal.SIGQUIT)
        if pooler.PROGRAM:
            self.pooler = Pooler(self.server.port, self.server.password, self.folder, _POOL_SIZE)
            self._last.callback(self._end_pooler)
        for number, dsn in enumerate(self._logins(machines)):
            self._machine(number, dsn)
        first = self.machines[0]
        with closing(CheckpointService(home=first.home)) as service:
            for number in range(agent.SHARED):
                service.create_checkpoint("shared", "chaos", checkpoint_id=agent.shared(number))
        for number in range(0, agent.TASKS, 4):
            self._ok(first, "task", "add", f"task {number}", "--retention", "revisions:1")

    def await_daemons(self) -> None:
        """The first start of a daemon is none of the faults: a disk that is full before it keeps it
        from starting, and it says so."""
        until = time.monotonic() + _START_SECONDS
        while not all(running.pid(machine.home) for machine in self.machines):
            if time.monotonic() > until:
                raise SystemExit(f"not every daemon has started within {_START_SECONDS} s")
            time.sleep(0.05)

    def _logins(self, machines: int) -> Iterator[str]:
        with closing(Administration(self.server.admin_dsn)) as admin:
            admin.migrate()
            organization = admin.create_organization("chaos")
            yield admin.add_member(organization, "ann", "member", "machine 0").dsn
            for number in range(1, machines):
                yield admin.add_machine(organization, "ann", f"machine {number}").dsn
        planted_at_server(self.plant, self.server.sql)

    def _machine(self, number: int, dsn: str) -> None:
        """The first meets the server itself, the second a pooler and keeps its bodies sealed, the
        third has a disk of its own; and so on."""
        target, settings = self.server.port, {}
        if number % 3 == 1:
            target = self.pooler.port if self.pooler else target
            settings = {"SYNCD_ENCRYPTION": "at_rest"}
        line = Line(target)
        self._last.callback(line.pull)
        name = f"machine-{number}"
        home = self.folder / name
        if number == 2:
            home = self._small_disk() / name
        made = Machine(self, name, home, line, **settings)
        made.disk = self.disk if number == 2 else None
        word = self.folder / "login"
        word.write_text(link.at_port(dsn, line.port))
        self._ok(made, "login", "-", stdin=word)
        word.unlink()
        self.machines.append(made)

    def _small_disk(self) -> Path:
        self.disk = Disk(
            self.folder / "small", lambda: self.machines[2].processes(), self.journal.aloud
        )
        self._last.callback(self.disk.close)
        return self.disk.place

    def _ok(self, machine: Machine, *words: str, stdin: Path | None = None) -> None:
        done = machine.run(*words, stdin=stdin)
        if done.code != 0:
            raise AssertionError(done)

    def _end_pooler(self) -> None:
        if self.pooler:
            self.pooler.close(signal.SIGKILL)

    def close(self) -> None:
        self._last.close()

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    # --- starting -------------------------------------------------------------------------------

    def number(self) -> int:
        with self._lock:
            self._numbers += 1
            return self._numbers

    def place(self, machine: Machine, kind: str) -> Path:
        """Where a process says what it has to say."""
        return self.folder / "said" / f"{machine}-{kind}-{self.number()}"

    def lives(self, pid: int) -> bool:
        return self.nursery.ended(pid) is None

    # --- what agents were told ------------------------------------------------------------------

    def told(self, machine: Machine, revision: str) -> None:
        """By a command."""
        notes = self.folder / "notes" / f"{machine}-typed"
        with self._lock, notes.open("a") as out:
            out.write(f"{revision} -\n")

    def acknowledged(self) -> Told:
        return read_notes(self.folder / "notes")

    def refusals(self) -> int:
        """How many writes were refused where the disk can be full."""
        said_by_agents = (self.folder / "said").glob(f"{self.machines[2]}-agent-*[0-9]")
        return sum(file.read_text().count(agent.REFUSED) for file in said_by_agents)
