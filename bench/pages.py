"""`python -m bench.pages`: how long the pages of `syncd ui` take over a long history, and how heavy
they are. Each is asked of a real server: once at first, while sums are still being worked out, and
again and again when all of them are there, in turn with a file that needs no work, which tells how
quiet the machine was; on Linux the processor time that the server took is told too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench import payload as payloads
from bench.payload import Payload
from syncd import tasks
from syncd.entry import CHECKPOINT, CREATE, UPDATE, Draft, uuid7
from syncd.service import CheckpointService
from syncd.store import Store

TASKS, AGENTS, DAYS = 2_000, 40, 60
PER_COMMIT = 5_000
LONG_TASK = "task-0000"
_DAY_MS = 86_400_000
_PHASES = ("planning", "implementing", "testing", "reviewing")


MOST_MS, MOST_BYTES = 300.0, 1_500_000
CONTROL = "/static/icon.svg"
_ROUNDS = 20
# What a page says that comes again by itself, when it has more to show.
_INCOMPLETE = b'http-equiv="refresh"'
_MOST_SECONDS = 600


def filled(home: Path, payload: Payload, entries: int) -> Path:
    """Checkpoints as anybody writes them, thousands to a commit and two months in minutes. Every
    twentieth is of one long task, every tenth a later version of the one before, and now and then
    one begins a branch."""
    with closing(CheckpointService(home=home)) as service:
        store = service.node.store
        begin = int(time.time() * 1000) - DAYS * _DAY_MS
        number = 0
        store.now_ms = lambda: begin + number * DAYS * _DAY_MS // entries
        for name in range(min(TASKS, entries)):
            tasks.add(service.node, f"task-{name:04}", title=f"What task {name} is about")
        for first in range(0, entries, PER_COMMIT):
            with store.transaction():
                for number in range(first, min(first + PER_COMMIT, entries)):
                    _write(store, payload, number)
    return home


def _write(store: Store, payload: Payload, number: int) -> None:
    task = LONG_TASK if number % 20 == 0 else f"task-{number % TASKS:04}"
    agent = f"agent-{(number // 50_000 + number) % AGENTS:02}"
    place = store.place(task, agent)
    again = number % 10 == 9 and place.current_id
    entry_id = uuid7()
    name = place.current_id if again and place.current_id else entry_id
    parent = _parent(store, number, place.current_id or "", name)
    meta = {
        "task_id": task, "agent": agent, "agent_type": "implementation", "iteration": 1,
        "phase": _PHASES[number % 4], "status": "in_progress", "reason": "",
        "tokens": number % 9_000, "parent": parent,
    }  # fmt: skip
    body = payload.body.replace(b'"pay-api"', f'"{task}"'.encode())
    draft = Draft(entry_id, CHECKPOINT, name, UPDATE if again else CREATE, agent, meta, body,
                  _bases(store, name) if again else ())  # fmt: skip
    store.append(draft, place)


def _parent(store: Store, number: int, current: str, name: str) -> str:
    """Its predecessor; for one in a thousand that one's own, so that a branch begins."""
    if current and (name == current or number % 1_000 == 500):
        row: tuple[Any, ...] | None = store.row("branch_of", (current,))
        return str(row[1]) if row else ""
    return current


def _bases(store: Store, name: str) -> tuple[str, ...]:
    row = store.row("checkpoint", (name,))
    return (str(row[18]),) if row else ()


# --- asking -------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Milliseconds by the clock and of the processor, the size, and whether nothing is missing."""

    ms: float
    cpu_ms: float
    bytes: int
    complete: bool


class Asked(NamedTuple):
    """One page: the first answer, and those that had everything."""

    path: str
    first: Answer
    later: Sequence[Answer]

    @property
    def slowest_ms(self) -> float:
        return max(answer.ms for answer in self.later)

    @property
    def cpu_ms(self) -> float:
        return statistics.median(answer.cpu_ms for answer in self.later)

    @property
    def bytes(self) -> int:
        return max(answer.bytes for answer in (self.first, *self.later))

    @property
    def held(self) -> bool:
        return max(self.first.ms, self.slowest_ms) <= MOST_MS and self.bytes <= MOST_BYTES


class Measured(NamedTuple):
    """The pages, the control last, and how long the sums took."""

    pages: list[Asked]
    seconds: float


def paths(home: Path) -> list[str]:
    with closing(CheckpointService(home=home)) as service:
        newest = service.node.store.current_id(LONG_TASK)
    last = f"/task?id={LONG_TASK}&page="
    return [
        "/", "/cost", "/cost?days=all", f"/cost?task={LONG_TASK}", "/tasks", "/tasks?q=about",
        "/tasks?page=20", f"/task?id={LONG_TASK}", f"{last}40", f"{last}1000", "/task?id=task-0007",
        f"/checkpoint?id={newest}", "/conflicts", "/agents", "/audit", "/audit?actor=nobody",
        "/audit?task=task-0003", "/fleet",
    ]  # fmt: skip


def measured(home: Path, rounds: int = _ROUNDS) -> Measured:
    wanted = [*paths(home), CONTROL]
    with _served(home) as server:
        began = time.perf_counter()
        first = {path: server.asked(path) for path in wanted}
        for path in wanted:
            _await(server, path, began + _MOST_SECONDS)
        seconds = time.perf_counter() - began
        later: dict[str, list[Answer]] = {path: [] for path in wanted}
        for _ in range(rounds):
            for path in wanted:
                later[path].append(server.asked(path))
    incomplete = {path for path in wanted if not all(answer.complete for answer in later[path])}
    if incomplete:
        raise AssertionError(f"incomplete again: {', '.join(sorted(incomplete))}")
    return Measured([Asked(path, first[path], later[path]) for path in wanted], seconds)


def _await(server: _Server, path: str, until: float) -> None:
    while not server.asked(path).complete:
        if time.perf_counter() > until:
            raise AssertionError(f"{path} is incomplete after {_MOST_SECONDS} s")
        time.sleep(0.05)


class _Server(NamedTuple):
    pid: int
    connection: http.client.HTTPConnection
    cookie: str

    def asked(self, path: str) -> Answer:
        began, used = time.perf_counter(), self._used_ms()
        self.connection.request("GET", path, headers={"cookie": self.cookie})
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise AssertionError(f"{path}: {answer.status}")
        took = (time.perf_counter() - began) * 1000
        return Answer(took, self._used_ms() - used, len(body), _INCOMPLETE not in body)

    def _used_ms(self) -> float:
        """Of all its threads, those included that work beside the pages."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6


@contextmanager
def _served(home: Path) -> Iterator[_Server]:
    words = [sys.executable, "-m", "syncd", "--home", str(home), "ui", "--no-browser", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            link = urlsplit(_document(process)["url"])
            opened = http.client.HTTPConnection(link.hostname or "", link.port, timeout=60)
            with closing(opened) as connection:
                connection.request("GET", f"{link.path}?{link.query}")
                answer = connection.getresponse()
                answer.read()
                cookie = str(answer.headers["set-cookie"]).partition(";")[0]
                yield _Server(process.pid, connection, cookie)
        finally:
            process.terminate()


def _document(process: subprocess.Popen[str]) -> dict[str, Any]:
    said = ""
    while process.stdout and not said.endswith("}\n"):
        line = process.stdout.readline()
        if not line:
            raise AssertionError("the server did not start")
        said += line
    document: dict[str, Any] = json.loads(said)
    return document


def report(found: Measured, entries: int) -> str:
    """A first answer that lacked something is marked with `…`."""
    title = f"{entries:,} entries, {TASKS:,} tasks"
    lines = [f"{title:<34}  first ms       KB  slowest ms  processor ms        KB"]
    for asked in found.pages:
        mark = "" if asked.held else "  MISSED"
        first = f"{asked.first.ms:9.1f} {asked.first.bytes / 1000:8.1f}"
        lines.append(f"{asked.path[:34]:<34} {first}{' ' if asked.first.complete else '…'}"
                     f"{asked.slowest_ms:11.1f} {asked.cpu_ms:13.1f} "
                     f"{asked.bytes / 1000:9.1f}{mark}")  # fmt: skip
    return "\n".join([*lines, f"All sums were there after {found.seconds:.1f} s."])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pages", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--home", type=Path, help="one that was filled before")
    options = parser.parse_args(arguments)
    logging.getLogger("syncd").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        home = options.home or filled(Path(folder) / "home", payloads.small(), options.entries)
        print(report(measured(home, options.rounds), options.entries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
