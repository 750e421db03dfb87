"""The sync part of a run: speed, memory, and who waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench import backlog, hooks, transfer, writers
from bench.device import Device, copied, fill
from bench.figures import Figures, summary
from bench.hooks import AtOnce
from bench.payload import Payload, create
from bench.server import Database, server
from bench.settings import Transfers
from bench.transfer import Servers, Transfer
from bench.writers import Waits
from syncd.service import CheckpointService


class Sync(NamedTuple):
    """`bootstrap` is in seconds, from no home to an up-to-date one; `memory` in MB."""

    postgres: str
    sizes: Transfers
    transfer: Transfer
    bootstrap: float
    round_trip: Figures
    waits: Waits
    memory: float
    hooks: AtOnce


class _Stage(NamedTuple):
    folder: Path
    home: Path
    payload: Payload
    sizes: Transfers
    tell: Callable[[str], None]


def measured(folder: Path, payload: Payload, sizes: Transfers, tell: Callable[[str], None]) -> Sync:
    folder.mkdir(mode=0o711)
    stage = _Stage(folder, folder / "home", payload, sizes, tell)
    tell(f"sync: writing {sizes.entries:,} entries")
    fill(stage.home, payload, 0, sizes.entries)
    tell(f"sync: two servers, one with {sizes.organizations:,} organizations")
    with server(folder / "plain") as plain, server(folder / "crowded", sizes.organizations) as full:
        found = transfer.measured(Servers(plain, full), stage.home, sizes.rounds, tell)
        with plain.database() as place:
            beside = _beside(stage, place)
            hooked = _hooks(stage, place)
        with plain.database() as place:
            return Sync(plain.version, sizes, found, *beside, _memory(stage, place), hooked)


def _beside(stage: _Stage, place: Database) -> tuple[float, Figures, Waits]:
    stage.tell("sync: a new device, single entries")
    with closing(Device(copied(stage.home, stage.folder / "first"), place.writer)) as first:
        first.push()
        bootstrap = _bootstrap(stage.folder / "second", place.reader)
        trips = _round_trips(first, stage.payload, stage.sizes.round_trips)
    stage.tell(f"sync: {stage.sizes.writers} writers")
    home = stage.folder / "third"
    with closing(Device(home, place.reader)) as third:
        third.engine.meet()
        waits = writers.measured(home, stage.sizes.writers, third.engine.pull)
    return bootstrap, trips, waits


def _hooks(stage: _Stage, place: Database) -> AtOnce:
    stage.tell(f"sync: {hooks.AT_ONCE} hooks at once")
    home = stage.folder / "fourth"
    with closing(Device(home, place.reader)) as fourth:
        fourth.engine.meet()
        return hooks.at_once(stage.folder, home, fourth.engine.pull)


def _bootstrap(home: Path, dsn: str) -> float:
    started = time.perf_counter()
    with closing(Device(home, dsn)) as device:
        device.engine.sync()
    return time.perf_counter() - started


def _round_trips(device: Device, payload: Payload, count: int) -> Figures:
    """From one entry written to the replica's answer, and back with what is new there: nothing."""
    service = CheckpointService(node=device.node)
    taken = []
    for _ in range(count):
        create(service, payload)
        started = time.perf_counter_ns()
        device.engine.sync()
        taken.append(time.perf_counter_ns() - started)
    return summary(taken)


def _memory(stage: _Stage, place: Database) -> float:
    stage.tell(f"sync: a backlog of {stage.sizes.backlog:,}")
    home = copied(stage.home, stage.folder / "backlog")
    fill(home, stage.payload, stage.sizes.entries, stage.sizes.backlog)
    return backlog.measured(home, place.writer)
