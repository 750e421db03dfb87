"""`syncd run`, `start`, `stop`, `restart`, `logs`: the daemon of this home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, Count, until_interrupted, verb
from syncd.errors import DaemonError

if TYPE_CHECKING:
    from syncd.unit import Launchd, Systemd

_START_SECONDS = 15.0
_SILENT_SECONDS = 3.0
_STOP_SECONDS = 30.0


@click.command()
@click.option("--verbose", is_flag=True, help="Say more in the log.")
@click.option("--quiet", is_flag=True, help="Write to the log only.")
@verb
def run(app: App, verbose: bool, quiet: bool) -> None:
    """Keep this home and its replica in step, in the foreground, until Ctrl-C.

    Sends what is written here within milliseconds, fetches what others wrote, makes backups.
    Without a network it waits for one. There is one such process per home.
    """
    from syncd.daemon import logs
    from syncd.daemon.main import Daemon

    node = app.node
    node.store  # noqa: B018 (makes the home, and with it the place of the log)
    colours = sys.stderr.isatty() and printing.colour() is not False
    logs.begin(node.home, verbose=verbose, stderr=not quiet, colours=colours)
    Daemon(node).run()


@click.command()
@verb
def start(app: App) -> None:
    """Start the daemon in the background.

    `syncd service install` has it started with the machine.
    """
    from syncd import running

    home = app.node.home
    app.node.store  # noqa: B018 (makes the home; a wrong setting is said here, not in a log)
    if pid := running.pid(home):
        app.emit({"running": True, "pid": pid}, f"Running already, process {pid}.")
        return
    ended = _begun(home)
    began = time.monotonic()
    while (waited := time.monotonic() - began) < _START_SECONDS:
        pid = running.pid(home)
        # Where the disk is full it runs, and cannot say so.
        if pid and (running.told(home).get("pid") == pid or waited > _SILENT_SECONDS):
            app.emit({"running": True, "pid": pid}, f"Started, process {pid}.")
            return
        if ended():
            break
        time.sleep(0.02)
    raise DaemonError(f"the daemon did not start: {_last_words(home)}", "`syncd logs` shows more.")


def _service(home: Path) -> Systemd | Launchd | None:
    """The service of this home, if it has one that somebody manages."""
    from syncd import unit

    found = unit.service_of(home)
    return found if found.file.exists() and found.answers() else None


def _begun(home: Path) -> Callable[[], bool]:
    """Start it, as a service where that is installed; tells whether it has ended already."""
    if service := _service(home):
        service.start()
        return lambda: False
    process = _spawned(home)
    return lambda: process.poll() is not None


def _spawned(home: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, with nothing of the terminal: it outlives both."""
    # Whoever manages this process does not manage that one.
    environment = {n: v for n, v in os.environ.items() if n not in ("NOTIFY_SOCKET", "WATCHDOG_PID",
                                                                    "WATCHDOG_USEC")}  # fmt: skip
    crash = os.open(home / "log" / "start.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "syncd", "--home", str(home), "run", "--quiet"],
            stdin=subprocess.DEVNULL, stdout=crash, stderr=crash, cwd="/", env=environment,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(crash)


def _last_words(home: Path) -> str:
    text = (home / "log" / "start.log").read_text(encoding="utf-8", errors="replace").strip()
    return text.splitlines()[0].removeprefix("Error: ") if text else "it said nothing"


@click.command()
@verb
def stop(app: App) -> None:
    """Stop the daemon; it sends what is left first, if it can."""
    done = stopped(app.node.home)
    left = _left(app)
    app.emit({"stopped": done, "pending": left}, lambda: _ended(done, left))


def _left(app: App) -> int:
    """How many entries no replica has, if there is one."""
    from syncd.status import status

    found = status(app.node)
    configured = found["cloud"]["state"] != "unconfigured"
    return int(found["push"]["pending"] or 0) if configured else 0


def _ended(done: bool, left: int) -> str:
    word = "Stopped." if done else "There was no daemon."
    if not left:
        return word
    waiting = render.count(left, "entry is", "entries are")
    which = "it" if left == 1 else "them"
    return f"{word} {waiting} on this disk only: the replica has not acknowledged {which}."


def stopped(home: Path) -> bool:
    """False if there was none."""
    from syncd import running

    pid = running.pid(home)
    if not pid:
        return False
    service = _service(home)
    if service and service.state().active:
        service.stop()  # else launchd would start it again
    else:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        if running.pid(home) != pid and not _alive(pid):
            return True
        time.sleep(0.02)
    raise DaemonError(
        f"process {pid} has not ended after {_STOP_SECONDS:g} s",
        f"`kill -9 {pid}` ends it; nothing that was written can be lost.",
    )


def _alive(pid: int) -> bool:
    """One that has ended is still there until its parent takes note of that, which in containers
    may be never."""
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2]
    except OSError:
        return True
    return not state.lstrip().startswith("Z")


@click.command()
@click.pass_context
@verb
def restart(app: App, ctx: click.Context) -> None:
    """Stop the daemon, if it runs, and start it."""
    stopped(app.node.home)
    ctx.invoke(start)


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes.")
@click.option("--lines", "-n", type=Count(0), default=50, show_default=True,
              help="How many of the last lines.")  # fmt: skip
@verb
def logs(app: App, follow: bool, lines: int) -> None:
    """Show what the daemon has said; with --json, line by line as it is in the file."""
    from syncd.daemon.logs import file_of

    file = file_of(app.node.home)
    if not file.exists() and not follow:
        raise DaemonError("the daemon has not written anything yet", "`syncd start` starts it.")
    place, last = _last(file, lines)
    for text in last:
        _show(app, text)
    if follow:
        with until_interrupted():
            for text in _following(file, place):
                _show(app, text)


def _show(app: App, text: str) -> None:
    from syncd.daemon.logs import as_text

    try:
        said: dict[str, Any] = json.loads(text)
    except ValueError:  # cut off by a crash
        said = {"event": text}
    printing.show(json.dumps(said, ensure_ascii=False) if app.json else as_text(said))


class _Place(NamedTuple):
    """How far a file was read, and which one that was."""

    inode: int
    position: int


def _last(file: Path, count: int) -> tuple[_Place, list[str]]:
    """Over the turn of a file, too; and where the next one begins."""
    place, found = _whole(file, _Place(0, 0))
    before = file.with_name(file.name + ".1")
    if len(found) < count and before.exists():
        found = before.read_text(encoding="utf-8", errors="replace").splitlines() + found
    return place, found[-count:] if count else []


def _following(file: Path, place: _Place) -> Iterator[str]:
    while True:
        time.sleep(0.2)
        place, found = _whole(file, place)
        yield from found


def _whole(file: Path, place: _Place) -> tuple[_Place, list[str]]:
    """The lines after a place; one that is still being written comes the next time."""
    try:
        with file.open("rb") as opened:
            inode = os.fstat(opened.fileno()).st_ino
            position = place.position if inode == place.inode else 0
            opened.seek(position)
            lines, newline, _ = opened.read().rpartition(b"\n")
    except FileNotFoundError:
        return place, []
    place = _Place(inode, position + len(lines) + len(newline))
    return place, lines.decode("utf-8", "replace").splitlines()
