"""The simulation: a sample of its seeds, and that it would find what it is there to find."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from devices import folder
from postgres import Cluster
from soak import crew
from soak.__main__ import main
from soak.defects import PLANTED
from soak.disk import Disk, shim
from soak.ground import Ground, ground_on
from soak.invariants import CONTIGUOUS, DURABLE, HEADS
from soak.play import Played, play
from soak.schedule import FAULTS, FEWEST_FAULTS, OPERATIONS, Plan, plan
from soak.world import ONE_HOLDER, SURPRISE

SAMPLE = range(1, 3)
PLANTED_SEEDS = range(1, 21)
FOUND_AS = {
    "identity column": CONTIGUOUS, "no watermark": SURPRISE, "no fence": ONE_HOLDER,
    "pull in pieces": CONTIGUOUS, "no fsync": DURABLE, "pairwise": HEADS,
}  # fmt: skip


@pytest.fixture(scope="module")
def ground(cluster: Cluster) -> Iterator[Ground]:
    with ground_on(cluster) as made:
        yield made


# --- seeds ----------------------------------------------------------------------------------------


def test_a_sample_of_seeds_holds_whatever_goes_wrong(ground: Ground) -> None:
    """`make soak` plays more, `make proof` ten thousand."""
    faults: Counter[str] = Counter()
    for seed in SAMPLE:
        played = play(plan(seed), ground)
        assert played.failure is None, (seed, played.failure)
        assert played.operations == OPERATIONS
        assert sum(played.faults.values()) >= FEWEST_FAULTS, (seed, played.faults)
        faults += played.faults
    assert [name for name in FAULTS if not faults[name]] == []


def test_a_seed_is_always_the_same_history(ground: Ground) -> None:
    short = plan(SAMPLE[0]).only(frozenset(range(90)))
    assert plan(SAMPLE[0]) == plan(SAMPLE[0])
    first, second = play(short, ground), play(short, ground)
    assert first == second
    assert len(first.history) == len(short.steps)


def test_each_step_may_be_left_out(ground: Ground) -> None:
    whole = plan(SAMPLE[-1])
    every_third = whole.only(frozenset(range(0, len(whole.steps), 3)))
    assert play(every_third, ground).failure is None


def test_a_process_that_is_killed_is_no_end_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crew, "_SECONDS", 0.05)
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=os._exit, args=(9,))
    worker.start()
    assert crew._next(context.Queue(), [worker]) == "a process that played seeds has ended with 9"


# --- what is planted is found ---------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_is_found(cluster: Cluster, defect: str) -> None:
    with ground_on(cluster) as ground, PLANTED[defect](ground):
        found = next(filter(None, (play(plan(s), ground).failure for s in PLANTED_SEEDS)), None)
    assert found is not None, "no seed has found it"
    assert found.invariant == FOUND_AS[defect], found
    assert FOUND_AS[defect] in found.found


def test_a_failing_seed_ends_in_an_error_and_says_how_to_replay_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the defect that is found soonest."""

    @contextmanager
    def playing() -> Iterator[Callable[[Plan], Played]]:
        with ground_on(cluster) as ground, PLANTED["no fsync"](ground):
            yield partial(play, ground=ground)

    monkeypatch.setattr(crew, "playing", playing)
    monkeypatch.setattr(sys, "argv", ["soak", "1:1"])
    assert main() == 1
    told = capsys.readouterr().out
    assert f": {DURABLE}: home" in told
    assert "replay: make soak SEEDS=1:1" in told
    [(count, numbers)] = re.findall(r"(\d+) steps:\n(?s:.*)--steps ([0-9,]+)\n", told)
    assert int(count) == len(numbers.split(",")) <= 5
    monkeypatch.setattr(sys, "argv", ["soak", "1:1", "--steps", numbers])
    assert main() == 1
    assert f": {DURABLE}: home" in capsys.readouterr().out


# --- the disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "kept"), [("FULL", True), ("NORMAL", False), ("OFF", False)])
def test_after_a_power_failure_only_what_was_synced_is_there(mode: str, kept: bool) -> None:
    """Over many chances: SQLite itself says for which setting it promises what."""
    lost = 0
    for chance in range(10):
        with folder() as place:
            lost += _written_and_lost(place / "context.db", mode, random.Random(chance))
    assert (lost == 0) is kept


def _written_and_lost(file: Path, mode: str, chance: random.Random) -> int:
    disk, told = Disk(file), 0
    shim().watch(disk)
    with shim().in_place():
        with closing(sqlite3.connect(file, isolation_level=None)) as first:
            first.execute("PRAGMA journal_mode = WAL")
            first.execute(f"PRAGMA synchronous = {mode}")
            first.execute("CREATE TABLE kept (number INTEGER)")
            first.execute("PRAGMA wal_checkpoint")
            disk.fail_after(chance.randrange(2, 30))
            try:
                for number in range(20):
                    first.execute("INSERT INTO kept VALUES (?)", (number,))
                    told += 1
            except sqlite3.OperationalError:
                assert disk.dead
            disk.die()
        disk.revive(chance)
        with closing(sqlite3.connect(file)) as second:
            try:
                [(found,)] = second.execute("SELECT count(*) FROM kept")
            except sqlite3.DatabaseError:
                found = 0
    shim().unwatch(disk)
    return max(told - int(found), 0)


def test_a_full_disk_refuses_what_is_written() -> None:
    with folder() as place, shim().in_place():
        disk = Disk(place / "context.db")
        shim().watch(disk)
        with closing(sqlite3.connect(place / "context.db", isolation_level=None)) as made:
            made.execute("CREATE TABLE kept (number INTEGER)")
            disk.full = True
            with pytest.raises(sqlite3.OperationalError, match="full"):
                made.execute("INSERT INTO kept VALUES (1)")
            disk.full = False
            made.execute("INSERT INTO kept VALUES (1)")
        shim().unwatch(disk)
