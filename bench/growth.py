"""Does it stay fast? A home with a long history against a home with a short one, interleaved."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from bench.figures import Figures, ratio
from bench.measure import Operation, interleaved, repeated
from bench.payload import Payload, create
from bench.settings import Settings
from syncd.checkpoint import CheckpointMetadata, assembled
from syncd.service import CheckpointService
from syncd.status import status

SHORT = 1_000
TASKS, AGENTS = 2_000, 40
PER_COMMIT = 5_000
BYTES_PER_ENTRY = 5_000
LONG_TASK = "the-long-task"
LINES = ("create, long task", "create, all tasks", "latest, long task", "latest, all tasks",
         "status")  # fmt: skip


class Fill(NamedTuple):
    entries: int
    seconds: float
    bytes: int


class Growth(NamedTuple):
    """Per line, the figures with the short and with the long history; `control` is a raw commit
    between them, which tells whether the machine was quiet."""

    fills: tuple[Fill, Fill]
    lines: dict[str, tuple[Figures, Figures]]
    control: Figures

    def ratios(self) -> dict[str, float]:
        return {name: ratio(long.p50, short.p50) for name, (short, long) in self.lines.items()}

    def worst(self, operation: str) -> float:
        """Of the long task and of all tasks, the one that suffers more."""
        found = [times for name, times in self.ratios().items() if name.startswith(operation)]
        return max(found)


def measured(
    folder: Path, payload: Payload, settings: Settings, control: Operation, calm: Callable[[], None]
) -> Growth:
    """`calm` is called between filling and measuring."""
    needed = settings.entries * BYTES_PER_ENTRY
    if shutil.disk_usage(folder).free < needed:
        sys.exit(f"{settings.entries:,} entries need {needed / 1e9:.1f} GB: give --entries")
    homes = (folder / "short", folder / "long")
    fills = (filled(homes[0], payload, SHORT), filled(homes[1], payload, settings.entries))
    os.sync()
    calm()
    found = _compared(homes, payload, control, settings.samples // 2)
    lines = {name: (found[f"{name}, short"], found[f"{name}, long"]) for name in LINES}
    return Growth(fills, lines, found[control.name])


def _compared(
    homes: tuple[Path, Path], payload: Payload, control: Operation, samples: int
) -> dict[str, Figures]:
    with (
        closing(CheckpointService(home=homes[0])) as short,
        closing(CheckpointService(home=homes[1])) as long,
    ):
        compared = operations(short, payload, "short") + operations(long, payload, "long")
        return interleaved([*compared, control], samples)


def filled(home: Path, payload: Payload, entries: int) -> Fill:
    """Through the same code path as any write, but thousands to a commit."""
    started = time.monotonic()
    with closing(CheckpointService(home=home)) as service:
        for first in range(0, entries, PER_COMMIT):
            with service.node.store.transaction():
                for number in range(first, min(first + PER_COMMIT, entries)):
                    _save(service, payload, _task(number), f"agent-{number % AGENTS:02}")
        seconds = time.monotonic() - started
        path = service.node.database
    return Fill(entries, seconds, path.stat().st_size)


def _save(service: CheckpointService, payload: Payload, task: str, agent: str) -> None:
    metadata = CheckpointMetadata(task_id=task, agent_id=agent)
    service.save(
        assembled(
            metadata=metadata,
            execution_state=payload.state,
            context_summary=payload.context,
            metrics=payload.metrics,
        )
    )


def _task(number: int) -> str:
    """Six of ten entries belong to one task, the rest go round the others."""
    tens, ones = divmod(number, 10)
    return LONG_TASK if ones < 6 else f"task-{(tens * 4 + ones - 6) % (TASKS - 1):04}"


def operations(service: CheckpointService, payload: Payload, home: str) -> list[Operation]:
    def write(task: str) -> None:
        create(service, payload, task, agent_of(task))

    read = service.get_latest_checkpoint
    return [
        Operation(f"{LINES[0]}, {home}", _only_long, write),
        Operation(f"{LINES[1]}, {home}", _all_in_turn(), write),
        Operation(f"{LINES[2]}, {home}", _only_long, read),
        Operation(f"{LINES[3]}, {home}", _all_in_turn(), read),
        Operation(f"{LINES[4]}, {home}", repeated(service.node), status),
    ]


def agent_of(task: str) -> str:
    """Who goes on with a task. One agent for all of them would take over every task of the short
    history and few of the long one: status would be compared with one agent at work and with many.
    """
    return f"agent-{crc32(task.encode()) % AGENTS:02}"


def _only_long(count: int) -> list[str]:
    return [LONG_TASK] * count


def _all_in_turn() -> Callable[[int], list[Any]]:
    """Tasks that the short history has too, so that both homes do the same work."""
    tasks = cycle(dict.fromkeys(_task(number) for number in range(SHORT)))
    return lambda count: [next(tasks) for _ in range(count)]
