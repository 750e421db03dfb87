"""Interleaved timing: everybody takes short turns, so that noise hits all alike."""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench.figures import Figures, summary

BLOCK = 10
T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    """One line of the table. `prepare` builds the arguments of the next calls off the clock."""

    name: str
    prepare: Callable[[int], Sequence[Any]]
    run: Callable[[Any], object]


def repeated(argument: object) -> Callable[[int], Sequence[Any]]:
    """For an operation whose every call is the same."""
    return lambda count: [argument] * count


def interleaved(
    operations: Sequence[Operation], samples: int, size: int = BLOCK
) -> dict[str, Figures]:
    """Time each operation at least `samples` times in blocks of `size`, after a warm-up that is
    thrown away."""
    rounds = math.ceil(samples / size)
    taken: dict[str, list[int]] = {operation.name: [] for operation in operations}
    _rounds(operations, _warm_up(rounds), size)
    # What lives now stays: the collector need not look at it during somebody's turn.
    gc.collect()
    gc.freeze()
    try:
        for name, timings in _rounds(operations, rounds, size):
            taken[name] += timings
    finally:
        gc.unfreeze()
    return {name: summary(timings) for name, timings in taken.items()}


def _warm_up(rounds: int) -> int:
    return max(1, rounds // 10)


def _rounds(operations: Sequence[Operation], rounds: int, size: int) -> list[tuple[str, list[int]]]:
    return [
        (operation.name, block(operation, size))
        for number in range(rounds)
        for operation in turn(operations, number)
    ]


def turn(operations: Sequence[T], number: int) -> list[T]:
    """The order of one round: another begins each time, and every second round runs backwards,
    so that nobody always follows the same neighbour."""
    start = number % len(operations)
    order = [*operations[start:], *operations[:start]]
    return order[::-1] if number % 2 else order


def block(operation: Operation, size: int) -> list[int]:
    run, clock, taken = operation.run, time.perf_counter_ns, []
    for argument in operation.prepare(size):
        start = clock()
        run(argument)
        taken.append(clock() - start)
    return taken


def installed(home: Path, bytecode: Path) -> dict[str, str]:
    """As for an installed package: every module compiled before (by the trial runs), in a folder
    of its own. Where an environment forbids that, a checkout would compile itself at each start
    and the baseline's libraries would not."""
    environment = {**os.environ, "SYNCD_HOME": str(home), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment
