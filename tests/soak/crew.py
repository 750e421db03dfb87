"""Many seeds, in several processes: each has a server of its own."""

from __future__ import annotations

import _sqlite3
import ctypes
import multiprocessing
import queue
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from postgres import Session

from soak.ground import ground_on
from soak.play import Played, play
from soak.schedule import Plan, plan

_SINGLE_THREAD, _COUNT_MEMORY = 1, 9  # SQLite's numbers of what can be configured
_SECONDS = 5.0


def _use_sqlite_alone() -> None:
    """Everything happens in one thread, and locks against others take a tenth of the time."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_shutdown()
    library.sqlite3_config(_SINGLE_THREAD)
    library.sqlite3_config(_COUNT_MEMORY, 0)
    library.sqlite3_initialize()


@contextmanager
def playing() -> Iterator[Callable[[Plan], Played]]:
    """Plays on a server that is there for as long as this lasts."""
    session = Session()
    try:
        with ground_on(session.shared("18")) as ground:
            yield partial(play, ground=ground)
    finally:
        session.close()


def alone(plans: Iterable[Plan]) -> Iterator[Played]:
    with playing() as play_one:
        for each in plans:
            yield play_one(each)


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
            found = _next(results, workers)
            if isinstance(found, str):
                raise RuntimeError(found)
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _next(results: Any, workers: list[Any]) -> Any:
    """What one of them says; one that was killed says nothing."""
    while True:
        dead = [worker.exitcode for worker in workers if worker.exitcode]
        with suppress(queue.Empty):
            return results.get(timeout=_SECONDS)
        if dead:
            return f"a process that played seeds has ended with {dead[0]}"


def _work(seeds: range, results: Any) -> None:
    _use_sqlite_alone()
    boss = multiprocessing.parent_process()
    try:
        for played in alone(plan(seed) for seed in seeds):
            if boss is None or not boss.is_alive():  # killed: nobody wants to know any more
                results.cancel_join_thread()
                return
            results.put(played)
        results.put(None)
    except BaseException:
        results.put(traceback.format_exc())
        raise
