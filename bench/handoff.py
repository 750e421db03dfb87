"""How soon work is in another agent's hands: from the request here to the accepted prompt there.

`python -m bench.handoff HOME` is the orchestrator of the other machine: it waits for offers, takes
each, and says so once it has the prompt.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple

from bench.figures import Figures, summary
from bench.payload import AGENT, Payload
from syncd import offering, offers
from syncd.daemon.wake import changes
from syncd.node import Node
from syncd.offering import Wish
from syncd.offers import Taker
from syncd.resume import Reader, resumed
from syncd.service import CheckpointService

_ROOT = Path(__file__).parents[1]
_SYNCD = [sys.executable, "-m", "syncd"]


class HandOffs(NamedTuple):
    """In processes that are running already, and with a command for each step."""

    resident: Figures
    commands: Figures


class Way(NamedTuple):
    """From one home to another, whose machine logs in with `environment`."""

    here: CheckpointService
    there: Path
    environment: dict[str, str]

    def command(self, home: Path, *words: str) -> str:
        done = subprocess.run(
            [*_SYNCD, "--home", str(home), "handoff", *words], cwd=_ROOT, env=self.environment,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()


def measured(
    here: CheckpointService, there: Path, dsn: str, payload: Payload, samples: int
) -> HandOffs:
    way = Way(here, there, {**os.environ, "SYNCD_CLOUD_DSN": dsn})
    resident = [sys.executable, "-m", "bench.handoff", str(there)]
    watching = [*_SYNCD, "--home", str(there), "handoff", "list", "--watch"]
    return HandOffs(
        _timed(way, payload, resident, _between_processes, samples),
        _timed(way, payload, watching, _by_commands, max(2, samples // 5)),
    )


def _timed(
    way: Way, payload: Payload, words: list[str], give: Callable[[Way, str, IO[str]], int],
    samples: int,
) -> Figures:  # fmt: skip
    with subprocess.Popen(
        words, env=way.environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        time.sleep(1)
        try:
            timings = []
            for number in range(samples):
                task = f"{give.__name__} {number}"
                way.here.create_checkpoint(
                    task, AGENT, payload.state, payload.context, payload.metrics
                )
                timings.append(give(way, task, other.stdout))
        finally:
            other.kill()
    return summary(timings)


def _between_processes(way: Way, task: str, told: IO[str]) -> int:
    began = time.perf_counter_ns()
    offer, _ = offering.request(way.here, task, Wish())
    if told.readline().strip() != offer.id:
        raise AssertionError("another hand-off than the one that was offered")
    return time.perf_counter_ns() - began


def _by_commands(way: Way, task: str, told: IO[str]) -> int:
    began = time.perf_counter_ns()
    made = way.command(way.here.node.home, "request", "--task", task)
    told.readline()
    way.command(way.there, "accept", made, "--agent", "next")
    taken = time.perf_counter_ns() - began
    told.readline()  # that it was accepted
    return taken


def orchestrate(home: Path) -> None:
    with closing(Node(home)) as node:
        for _ in changes(node):
            for offer in offers.ready(offers.everything(node)):
                taken = offers.accept(node, offer.id, Taker("next"))
                if taken.provisional:
                    raise AssertionError("the replica was there")
                resumed(node, taken.task_id, Reader(home, ["syncd"], "next"))
                print(taken.id, flush=True)


if __name__ == "__main__":
    orchestrate(Path(sys.argv[1]))
