"""The process that all others are started from.

It has imported the program already, so that agents and commands are forked in milliseconds. It is
the parent of all: a number that it knows belongs to nobody else until it has taken note of the
end. If the run itself is killed, it ends what is left.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from chaos import agent, disk, plants, processes

AGENT, COMMAND, PROGRAM = "agent", "command", "program"
_HEAVY = (
    "cryptography.hazmat.primitives.serialization", "keyring", "psycopg", "rich.console",
    "rich.table", "sqlite_utils", "tomlkit", "syncd.proof", "syncd.service", "syncd.retention",
    "syncd.sealing",
    *(f"syncd.cli.{name}" for name in ("audit", "backup", "checkpoint", "conflicts", "home",
                                       "keys", "message", "retention", "status", "sync", "task")),
)  # fmt: skip


# --- as the run sees it ---------------------------------------------------------------------------


class Nursery:
    def __init__(self, folder: Path, plant: str = "") -> None:
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair()
        words = [sys.executable, "-m", "chaos.nursery", str(theirs.fileno()), str(folder), plant]
        with theirs:
            # A session of its own: Ctrl-C is for the run, which then ends everything in order.
            self._process = subprocess.Popen(
                words, pass_fds=[theirs.fileno()], start_new_session=True, cwd=_ROOT,
                env={**os.environ, "SYNCD_CHAOS": str(folder)},
            )  # fmt: skip
        self._answers = self._ours.makefile("r")

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(
        self, role: str, words: Sequence[str], environment: Mapping[str, str], out: Path,
        stdin: Path | None = None,
    ) -> int:  # fmt: skip
        """A process; what it prints goes to `out`, complaints to the same with `.err`."""
        return int(self._ask("start", role, words, dict(environment), str(out),
                             str(stdin or os.devnull)))  # fmt: skip

    def send(self, pid: int, number: signal.Signals) -> bool:
        """Whether it was alive to get the signal, and, if that was to kill it, died of it."""
        return bool(self._ask("send", pid, int(number)))

    def ended(self, pid: int) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code: int | None = self._ask("ended", pid)
        return code

    def close(self) -> None:
        self._answers.close()
        self._ours.close()
        self._process.wait()

    def _ask(self, *order: object) -> Any:
        with self._lock:
            self._ours.sendall(json.dumps(order).encode() + b"\n")
            return json.loads(self._answers.readline())


_ROOT = Path(__file__).parents[1]


# --- the process itself ---------------------------------------------------------------------------


class _Children:
    def __init__(self, connection: socket.socket, plant: str) -> None:
        self._connection = connection
        self._plant = plant
        self._codes: dict[int, int] = {}

    def start(
        self, role: str, words: list[str], environment: dict[str, str], out: str, stdin: str
    ) -> int:
        pid = os.fork()
        if pid == 0:
            self._connection.close()
            _redirect(stdin, out)
            os.environ.clear()
            os.environ.update(environment)
            _become(role, words, self._plant)
        self._codes.pop(pid, None)  # of one that had the number before
        return pid

    def send(self, pid: int, number: int) -> bool:
        if self.ended(pid) is not None:
            return False
        os.kill(pid, number)
        return number != signal.SIGKILL or self.ended(pid, wait=True) == -signal.SIGKILL

    def ended(self, pid: int, wait: bool = False) -> int | None:
        if pid not in self._codes:
            done, status = os.waitpid(pid, 0 if wait else os.WNOHANG)
            if done:
                self._codes[pid] = os.waitstatus_to_exitcode(status)
        return self._codes.get(pid)


def _redirect(stdin: str, out: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, (file, how) in enumerate(
        ((stdin, os.O_RDONLY), (out, flags), (f"{out}.err", flags))
    ):
        opened = os.open(file, how, 0o600)
        os.dup2(opened, number)
        os.close(opened)


def _become(role: str, words: list[str], plant: str) -> NoReturn:
    try:
        if role == PROGRAM:
            os.execve(words[0], words, dict(os.environ))
        plants.plant(plant)
        (agent.main if role == AGENT else _command)(words)
        os._exit(0)
    except SystemExit as stop:
        sys.stdout.flush()
        os._exit(stop.code if isinstance(stop.code, int) else int(stop.code is not None))
    except BaseException:  # noqa: BLE001 (it must not go on as if it were the nursery)
        sys.excepthook(*sys.exc_info())
    os._exit(99)


def _command(words: list[str]) -> None:
    from syncd.cli.app import main

    sys.argv = ["syncd", *words]
    main()


def _serve(connection: socket.socket, folder: Path, plant: str) -> None:
    for module in _HEAVY:
        import_module(module)
    gc.freeze()
    children = _Children(connection, plant)
    calls: dict[str, Callable[..., object]] = {
        "start": children.start, "send": children.send, "ended": children.ended,
    }  # fmt: skip
    with connection, connection.makefile("r") as orders, suppress(ConnectionError):
        for line in orders:
            what, *rest = json.loads(line)
            connection.sendall(json.dumps(calls[what](*rest)).encode() + b"\n")
    processes.end(processes.of(folder))
    for place in folder.iterdir():
        if place.is_mount():
            disk.unmount(place)


if __name__ == "__main__":
    _link = socket.socket(fileno=int(sys.argv[1]))
    _link.set_inheritable(False)
    _serve(_link, Path(sys.argv[2]), sys.argv[3])
    os._exit(0)
