"""Many seeds, in several processes: each has a server of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from typing import Any

from postgres import Session

from soak.ground import ground_on
from soak.play import Played, play
from soak.schedule import Plan, plan


def alone(plans: Iterable[Plan]) -> Iterator[Played]:
    session = Session()
    try:
        with ground_on(session.shared("18")) as ground:
            for each in plans:
                yield play(each, ground)
    finally:
        session.close()


def together(seeds: range, jobs: int) -> Iterator[Played]:
    """Each process has a server of its own, and takes every so many-th seed."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    workers = [
        context.Process(target=_work, args=(seeds[number::jobs], results), daemon=True)
        for number in range(jobs)
    ]
    for worker in workers:
        worker.start()
    left = jobs
    try:
        while left:
            found = results.get()
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _work(seeds: range, results: Any) -> None:
    try:
        for played in alone(plan(seed) for seed in seeds):
            results.put(played)
    finally:
        results.put(None)
