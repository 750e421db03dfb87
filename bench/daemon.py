"""The daemon part of a run: how soon the other machine has it, what it costs to do nothing, and
whom it holds up."""

from __future__ import annotations

import os
import random
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench import handoff
from bench.device import Device, copied, fill
from bench.figures import Figures, summary
from bench.handoff import HandOffs
from bench.measure import Operation, interleaved, repeated
from bench.payload import Payload, create
from bench.server import Database, Server, server
from bench.settings import Watches
from syncd import running
from syncd.replica import Replica
from syncd.service import CheckpointService

ALONE, AWAY = "create, no daemon", "create, daemon without its replica"
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.0005
_SETTLE_SECONDS = 8.0
_MB = 1_000_000


class Idle(NamedTuple):
    """What a daemon with nothing to do costs: percent of one core, MB resident, bytes to disk."""

    seconds: float
    cpu: float
    memory: float
    written: int


class Daemons(NamedTuple):
    """`connected` is the speed of pushes beside connected devices of another organization to the
    speed without, round by round."""

    sizes: Watches
    propagation: Figures
    handoffs: HandOffs
    idle: Idle
    writes: dict[str, Figures]
    connected: list[float]


def measured(
    folder: Path, payload: Payload, sizes: Watches, tell: Callable[[str], None]
) -> Daemons:
    folder.mkdir(mode=0o711)
    with server(folder / "server") as opened:
        with opened.database() as place:
            tell("daemon: from one machine to the other")
            propagation, handoffs, idle = _together(folder, place, payload, sizes)
        tell(f"daemon: the replica is away, {sizes.backlog:,} entries wait")
        writes = _away(folder, payload, sizes)
        tell(f"daemon: {sizes.devices} devices connected")
        connected = _connected(folder, opened, payload, sizes)
    return Daemons(sizes, propagation, handoffs, idle, writes, connected)


@contextmanager
def daemon(home: Path, dsn: str) -> Iterator[int]:
    """A real one, as a process; its number."""
    environment = {**os.environ, "SYNCD_CLOUD_DSN": dsn}
    command = [sys.executable, "-m", "syncd", "--home", str(home), "run", "--quiet"]
    process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[1])
    try:
        _until(lambda: running.told(home).get("pid") == process.pid, process)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def _until(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not done():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("a daemon did not begin")
        time.sleep(0.01)


# --- two machines -------------------------------------------------------------------------------


def _together(
    folder: Path, place: Database, payload: Payload, sizes: Watches
) -> tuple[Figures, HandOffs, Idle]:
    here, there = folder / "here", folder / "there"
    with (
        closing(CheckpointService(home=here)) as service,
        closing(CheckpointService(home=there)),
        daemon(here, place.writer),
        daemon(there, place.reader) as observed,
        closing(sqlite3.connect(there / "context.db", isolation_level=None)) as other,
    ):
        time.sleep(1)
        taken = [_arrival(service, payload, other) for _ in range(sizes.arrivals)]
        given = handoff.measured(service, there, place.reader, payload, sizes.handoffs)
        time.sleep(min(_SETTLE_SECONDS, sizes.idle_seconds))
        return summary(taken), given, _idle(observed, sizes.idle_seconds)


def _arrival(service: CheckpointService, payload: Payload, other: sqlite3.Connection) -> int:
    """From the end of a commit to the row on the other machine."""
    created = create(service, payload)
    began = time.perf_counter_ns()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not other.execute("SELECT 1 FROM checkpoints WHERE id = ?", (created,)).fetchone():
        if time.monotonic() > deadline:
            raise AssertionError("a checkpoint did not arrive")
        time.sleep(_LOOK_SECONDS)
    taken = time.perf_counter_ns() - began
    time.sleep(random.uniform(0, 0.1))
    return taken


def _idle(process: int, seconds: float) -> Idle:
    cpu, written = _cpu_seconds(process), _written(process)
    time.sleep(seconds)
    return Idle(
        seconds,
        (_cpu_seconds(process) - cpu) / seconds * 100,
        _resident(process) / _MB,
        _written(process) - written,
    )


def _cpu_seconds(process: int) -> float:
    """Of all its threads, to the nanosecond: ticks are too coarse for so little."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in threads) / 1e9


def _written(process: int) -> int:
    found = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return int(found["write_bytes"])


def _resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- no replica ---------------------------------------------------------------------------------


def _away(folder: Path, payload: Payload, sizes: Watches) -> dict[str, Figures]:
    """Both homes have the same history; one has a daemon that cannot send it."""
    home = folder / "alone"
    fill(home, payload, 0, sizes.backlog)
    other = copied(home, folder / "away")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        nobody = f"postgresql://nobody:none@127.0.0.1:{taken.getsockname()[1]}/none"
    with (
        daemon(other, nobody),
        closing(CheckpointService(home=home)) as alone,
        closing(CheckpointService(home=other)) as away,
    ):
        operations = [
            Operation(name, repeated(service), lambda service: create(service, payload))
            for name, service in ((ALONE, alone), (AWAY, away))
        ]
        return interleaved(operations, sizes.writes)


# --- many machines ------------------------------------------------------------------------------


def _connected(folder: Path, opened: Server, payload: Payload, sizes: Watches) -> list[float]:
    home = folder / "pushing"
    fill(home, payload, 0, sizes.pushed)
    speeds = []
    for number in range(sizes.rounds):
        seconds = {}
        for crowd in (0, sizes.devices) if number % 2 else (sizes.devices, 0):
            with opened.database() as place, ExitStack() as stack:
                for dsn in place.strangers(crowd):
                    stack.enter_context(closing(_listener(dsn)))
                seconds[crowd] = _pushed(copied(home, folder / f"{number} {crowd}"), place, opened)
        speeds.append(seconds[0] / seconds[sizes.devices])
    return speeds


def _listener(dsn: str) -> Replica:
    """What a daemon holds while it waits."""
    replica = Replica(dsn)
    standing = replica.hello(str(uuid.uuid4()), os.urandom(32))
    replica.listen(standing.channel)
    return replica


def _pushed(home: Path, place: Database, opened: Server) -> float:
    with closing(Device(home, place.writer)) as device:
        opened.settle()
        os.sync()
        began = time.perf_counter()
        device.push()
        return time.perf_counter() - began
