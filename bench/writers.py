"""Does a pull hold up those who write? Many processes write to one home, without and with one.

Run as a module, this is one of those processes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.payload import Payload, create, small
from syncd.service import CheckpointService

# An agent writes after a step, not without pause.
PAUSE_SECONDS = 0.2
CALM_SECONDS = 5.0


class Write(NamedTuple):
    began: float
    seconds: float


class Waits(NamedTuple):
    """The longest write of any process in milliseconds, and how many writes there were."""

    writers: int
    calm: float
    calm_writes: int
    pulling: float
    pulling_writes: int


def measured(home: Path, writers: int, pull: Callable[[], object]) -> Waits:
    with _at_work(home, writers) as collect:
        began = time.monotonic()
        time.sleep(CALM_SECONDS)
        pull_began = time.monotonic()
        pull()
        ended = time.monotonic()
        writes = collect()
    before = during(writes, began, pull_began)
    meanwhile = during(writes, pull_began, ended)
    return Waits(writers, _longest(before), len(before), _longest(meanwhile), len(meanwhile))


def during(writes: Sequence[Write], began: float, ended: float) -> list[float]:
    """Those that overlap with it."""
    return [w.seconds for w in writes if w.began < ended and w.began + w.seconds > began]


def _longest(seconds: Sequence[float]) -> float:
    return max(seconds, default=0.0) * 1_000


@contextmanager
def _at_work(home: Path, writers: int) -> Iterator[Callable[[], list[Write]]]:
    """Processes that write until they are asked what they have written."""
    command = [sys.executable, "-m", __name__, str(home)]
    root = Path(__file__).parents[1]
    started = [
        subprocess.Popen(
            [*command, f"writer-{number}"], cwd=root, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for number in range(writers)
    ]  # fmt: skip
    try:
        for process in started:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise AssertionError("a writer did not begin")
        yield lambda: [write for process in started for write in _told(process)]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _told(process: subprocess.Popen[str]) -> list[Write]:
    text, _ = process.communicate()
    if process.returncode:
        raise AssertionError(f"a writer ended with {process.returncode}")
    return [Write(*write) for write in json.loads(text)]


# --- one of them --------------------------------------------------------------------------------


def main(home: Path, task: str) -> None:
    payload, asked = small(), threading.Event()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    with closing(CheckpointService(home=home)) as service:
        create(service, payload, task)
        print("ready", flush=True)
        writes = list(_written(service, payload, task, asked))
    print(json.dumps(writes))


def _listen(asked: threading.Event) -> None:
    sys.stdin.read()
    asked.set()


def _written(
    service: CheckpointService, payload: Payload, task: str, asked: threading.Event
) -> Iterator[Write]:
    while not asked.wait(random.uniform(0, 2 * PAUSE_SECONDS)):
        began = time.monotonic()
        create(service, payload, task)
        yield Write(began, time.monotonic() - began)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
