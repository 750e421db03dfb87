"""Where the story is played: a folder with a PostgreSQL and the homes of two machines, their
processes, and the end of all of it, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from syncd import cluster, embedded, running
from syncd.demo.cable import Cable
from syncd.errors import DemoError
from syncd.replica import Administration, link

ORGANIZATION, MEMBER = "acme", "ann"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS = 60.0
_LOOK_SECONDS = 0.001
# How long an offline machine waits for its next attempt at most: by default too long to watch.
_RETRY_SECONDS = "1"


class Machine(NamedTuple):
    name: str
    home: Path
    cable: Cable


class Done(NamedTuple):
    """What a command printed, and how long it took."""

    code: int
    out: str
    ms: float


class Stage:
    def __init__(self) -> None:
        self._busy = 1
        self._struck = False
        self._interrupted = False
        self._processes: list[subprocess.Popen[Any]] = []
        self._cables: list[Cable] = []
        self._daemons: dict[Path, subprocess.Popen[Any]] = {}
        self._before = {number: signal.signal(number, self._heed) for number in _SIGNALS}
        self.folder = Path(tempfile.mkdtemp(prefix="syncd-demo-")).resolve()

    # --- its beginning and end ----------------------------------------------------------------

    def build(self) -> tuple[Machine, Machine]:
        """A server, an organization, and two machines of one person's that are logged in."""
        with self.undisturbed():
            cluster.let_server_through(self.folder)
            server = embedded.up(self.folder / "postgres")
            with closing(Administration(server.admin_dsn)) as admin:
                admin.migrate()
                organization = admin.create_organization(ORGANIZATION)
                first = admin.add_member(organization, MEMBER, "member", "laptop")
                second = admin.add_machine(organization, MEMBER, "desktop")
        laptop = self._machine("laptop", first.dsn, server)
        return laptop, self._machine("desktop", second.dsn, server)

    def _machine(self, name: str, dsn: str, server: embedded.Server) -> Machine:
        cable = Cable(server.port)
        self._cables.append(cable)
        made = Machine(name, self.folder / name, cable)
        done = self.run(made, "login", "-", stdin=link.at_port(dsn, cable.port))
        if done.code:
            raise DemoError(f"{name} could not log in: {done.out.strip()}")
        return made

    def strike(self) -> None:
        """End every process and remove every file: each, whatever becomes of the others."""
        self._struck = True
        with ExitStack() as last_first:
            for number, before in self._before.items():
                last_first.callback(signal.signal, number, before)
            last_first.callback(shutil.rmtree, self.folder, ignore_errors=True)
            last_first.callback(embedded.remove, self.folder / "postgres")
            for cable in self._cables:
                last_first.callback(cable.pull)
            for process in self._processes:
                last_first.callback(_end, process)

    # --- interruptions ------------------------------------------------------------------------

    def _heed(self, _number: int, _frame: object) -> None:
        """Once is enough: whoever presses Ctrl-C twice must not interrupt the cleaning up."""
        if self._struck or self._interrupted:
            return
        self._interrupted = True
        if not self._busy:
            raise KeyboardInterrupt

    def ready(self) -> None:
        """From now on an interruption is heeded at once."""
        self._busy = 0
        if self._interrupted:
            raise KeyboardInterrupt

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """What would leave something behind if it was left half-way is ended first."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if self._interrupted and not self._busy:
                raise KeyboardInterrupt

    # --- commands -----------------------------------------------------------------------------

    def run(self, machine: Machine, *words: str, stdin: str = "") -> Done:
        """A command as its owner types it."""
        began = time.monotonic()
        process = self._spawned(machine, words)
        try:
            out, _ = process.communicate(stdin, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise DemoError(f"`syncd {' '.join(words)}` took over {_SECONDS:g} s") from None
        return Done(process.returncode, out, (time.monotonic() - began) * 1000)

    def start(self, machine: Machine) -> None:
        """`syncd run`, until it works."""
        process = self._spawned(machine, ("run", "--quiet"), start_new_session=True)
        self._daemons[machine.home] = process
        told = partial(running.told, machine.home)
        self.until(lambda: told().get("pid") == process.pid or process.poll() is not None, "it")
        if process.poll() is not None:
            raise DemoError(f"the daemon of {machine.name} ended: {process.stdout.read().strip()}")

    def kill(self, machine: Machine) -> None:
        """As if its power had failed, for ever."""
        self._daemons[machine.home].kill()
        self._daemons[machine.home].wait()
        shutil.rmtree(machine.home)

    def _spawned(self, machine: Machine, words: tuple[str, ...], **options: Any) -> Any:
        with self.undisturbed():
            process = subprocess.Popen(
                [sys.executable, "-m", "syncd", *words], text=True, cwd=self.folder,
                env=_environment(machine), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, **options,
            )  # fmt: skip
            self._processes.append(process)
            return process

    # --- looking ------------------------------------------------------------------------------

    def until(self, holds: Callable[[], bool], what: str) -> float:
        """Wait for it; how many milliseconds it took."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > _SECONDS:
                raise DemoError(f"waited {_SECONDS:g} s in vain for {what}")
            time.sleep(_LOOK_SECONDS)
        return (time.monotonic() - began) * 1000

    def carried(self, source: Machine, target: Machine, *words: str) -> tuple[Done, float]:
        """A command that writes; the milliseconds from its commit on one machine until the entry
        is in the other's database."""
        began = time.monotonic()
        with watched(source) as here, watched(target) as there:
            written, arrived = here() + 1, there() + 1
            process = self._spawned(source, words)
            self.until(lambda: here() >= written or process.poll() is not None, "the write")
            ms = self.until(lambda: there() >= arrived or bool(process.poll()), "the other machine")
            out, _ = process.communicate(timeout=_SECONDS)
        return Done(process.returncode, out, (time.monotonic() - began) * 1000), ms


@contextmanager
def watched(machine: Machine) -> Iterator[Callable[[], int]]:
    """How many entries a machine has, now and now and now."""
    database = f"{(machine.home / 'context.db').as_uri()}?mode=ro"
    with closing(sqlite3.connect(database, uri=True, isolation_level=None)) as opened:
        yield lambda: int(opened.execute("SELECT count(*) FROM log").fetchone()[0])


def _environment(machine: Machine) -> dict[str, str]:
    """Nothing of the user's own settings, and nothing for his keyring."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("SYNCD_", "PG", "GIT_"))}
    return {
        **kept,
        "SYNCD_HOME": str(machine.home),
        "SYNCD_DAEMON_RETRY_SECONDS": _RETRY_SECONDS,
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
    }


def _end(process: subprocess.Popen[Any]) -> None:
    """What it would still have to say is of no use any more."""
    if process.poll() is None:
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


@contextmanager
def stage() -> Iterator[Stage]:
    """Nothing of it is left afterwards."""
    made = Stage()
    try:
        made.ready()
        yield made
    finally:
        made.strike()
