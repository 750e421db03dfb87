"""A device with a long history: what each operation costs, history by history, interleaved."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.disk import connection, raw_commit
from bench.figures import Figures, ratio
from bench.growth import LINES, filled, operations
from bench.measure import interleaved
from bench.payload import TASK, small
from scale.fleet import Tell
from syncd.service import CheckpointService

_BYTES_PER_ENTRY = 5_000
CONTROL = "a raw commit"


class Histories(NamedTuple):
    """Per line and number of entries; `control` is a raw commit between them."""

    sizes: tuple[int, ...]
    lines: dict[str, dict[int, Figures]]
    control: Figures
    load_average: tuple[float, float, float]

    def growth(self, line: str) -> float:
        """The longest to the shortest."""
        return ratio(self.lines[line][self.sizes[-1]].p50, self.lines[line][self.sizes[0]].p50)

    def worst(self, operation: str) -> float:
        return max(self.growth(line) for line in self.lines if line.startswith(operation))


def measured(folder: Path, sizes: tuple[int, ...], samples: int, tell: Tell) -> Histories:
    folder.mkdir(exist_ok=True)
    homes = {size: _home(folder, size, tell) for size in sizes}
    os.sync()
    tell(f"{samples:,} samples of each operation on {len(sizes)} histories")
    body = small()
    with ExitStack() as opened:
        beside = Path(opened.enter_context(TemporaryDirectory(dir=folder)))
        control = opened.enter_context(closing(connection(beside / "control.db")))
        compared = [raw_commit(control, TASK, body.body, CONTROL)]
        for size, home in homes.items():
            service = opened.enter_context(closing(CheckpointService(home=home)))
            compared += operations(service, body, str(size))
        found = interleaved(compared, samples)
    lines = {line: {size: found[f"{line}, {size}"] for size in sizes} for line in LINES}
    return Histories(sizes, lines, found[CONTROL], os.getloadavg())


def _home(folder: Path, size: int, tell: Tell) -> Path:
    """One that an earlier run has left is used again."""
    home, complete = folder / str(size), folder / f"{size}-complete"
    if complete.exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    if shutil.disk_usage(folder).free < size * _BYTES_PER_ENTRY:
        raise SystemExit(f"{size:,} entries need {size * _BYTES_PER_ENTRY / 1e9:.1f} GB of disk")
    tell(f"a history of {size:,} entries")
    filled(home, small(), size)
    complete.touch()
    return home
