"""`python -m soak FIRST:COUNT`: play seeds, say what came of them, replay one that failed."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator

from soak import crew
from soak.play import Failure, Played
from soak.schedule import FAULTS, FEWEST_FAULTS, OPERATIONS, plan
from soak.shrink import shortest

_SEEDS_PER_LINE = 100
# Of so many together, each kind of fault has happened; a seed that is replayed may lack one.
_MANY_SEEDS = 20


def main() -> int:
    asked = _arguments()
    began = time.monotonic()
    tally = _Tally()
    for played in _played(asked):
        tally.add(played)
        _show_progress(tally.seeds)
        if played.failure is not None:
            _tell(played, played.failure, asked)
            if tally.failed == asked.most:
                break
    return tally.told(time.monotonic() - began, whole=asked.steps is None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="soak", description=sys.modules["soak"].__doc__)
    parser.add_argument("seeds", nargs="?", default="1:20", help="the first one : how many")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, default=3, help="stop after so many failures")
    parser.add_argument("--steps", help="only these steps of one seed, by number")
    parser.add_argument("--shrink", type=float, default=120.0, help="seconds for that, per failure")
    return parser.parse_args()


def _range(text: str) -> range:
    first, _, count = text.partition(":")
    return range(int(first), int(first) + int(count or 1))


# --- playing --------------------------------------------------------------------------------------


def _played(asked: argparse.Namespace) -> Iterator[Played]:
    seeds = _range(asked.seeds)
    if asked.steps is not None:
        kept = frozenset(int(number) for number in asked.steps.split(","))
        yield from crew.alone([plan(seeds[0]).only(kept)])
    elif asked.jobs == 1 or len(seeds) == 1:
        yield from crew.alone(plan(seed) for seed in seeds)
    else:
        yield from crew.together(seeds, min(asked.jobs, len(seeds)))


# --- telling --------------------------------------------------------------------------------------


def _show_progress(seeds: int) -> None:
    """Ten thousand take hours: a log of them has a line now and then."""
    if sys.stderr.isatty():
        print(f"\r{seeds} seeds", end="", file=sys.stderr)
    elif seeds % _SEEDS_PER_LINE == 0:
        print(f"{seeds} seeds", file=sys.stderr, flush=True)


class _Tally:
    """What came of all seeds together."""

    def __init__(self) -> None:
        self.seeds = self.failed = self.operations = self.entries = 0
        self._faults: Counter[str] = Counter()
        self._fewest = sys.maxsize
        self._digest = 0

    def add(self, played: Played) -> None:
        self.seeds += 1
        self.failed += played.failure is not None
        self.operations += played.operations
        self.entries += played.entries
        self._faults += played.faults
        if played.failure is None:
            self._fewest = min(self._fewest, sum(played.faults.values()))
            told = f"{played.plan.seed} {played.digest}".encode()
            # In whatever order they come.
            self._digest ^= int.from_bytes(hashlib.sha256(told).digest())

    def told(self, seconds: float, *, whole: bool) -> int:
        print(f"\n{self.seeds} seeds, {self.operations} operations, {self.entries} entries,"
              f" {sum(self._faults.values())} faults, {self.failed} failures"
              f" in {seconds:.0f} s")  # fmt: skip
        for name in FAULTS:
            print(f"  {name:<20}{self._faults[name]:>8}")
        if not whole:
            return int(self.failed > 0)
        never = [name for name in FAULTS if not self._faults[name]]
        if never:
            print(f"never happened: {', '.join(never)}")
        if self.failed < self.seeds:
            print(f"each seed had {OPERATIONS} operations and at least {self._fewest} faults")
            print(f"all logs together: {self._digest:064x}")
        short = self._fewest < FEWEST_FAULTS or (never and self.seeds >= _MANY_SEEDS)
        return int(self.failed > 0 or bool(short))


def _tell(played: Played, failure: Failure, asked: argparse.Namespace) -> None:
    seed = played.plan.seed
    after = f"after step {failure.step}" if failure.step >= 0 else "at the end"
    print(f"\nseed {seed} fails {after}: {failure.found}")
    print(f"replay: make soak SEEDS={seed}:1")
    if asked.steps is not None:
        print("\n".join(played.history))
    if asked.steps is not None or not asked.shrink:
        return
    with crew.playing() as play:
        short = shortest(played.plan, failure, play, asked.shrink)
    if short.failure is None:
        print("it does not fail when it is played again: the simulation is not deterministic")
        return
    print(f"shortest history that breaks the same invariant, {len(short.plan.steps)} steps:")
    for line in short.history:
        print(f"  {line}")
    print(f"  {short.failure.found}")
    numbers = ",".join(str(step.number) for step in short.plan.steps)
    print(f"replay: PYTHONPATH=tests .venv/bin/python -m soak {seed}:1 --steps {numbers}")


if __name__ == "__main__":
    # So that a run that is ended takes its processes along.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
