"""Do both sides have the same? Digests of everything are compared, then what they disagree on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import orjson

from syncd.exchange import Exchange
from syncd.replica import Replica
from syncd.sync import Engine

_THOUSAND = 1_000
Place = tuple[str, int]


class Proof(NamedTuple):
    """How many entries each side has, and the ids of those that the other has not."""

    local: int
    cloud: int
    missing_in_cloud: list[str]
    missing_here: list[str]

    @property
    def ok(self) -> bool:
        return not self.missing_in_cloud and not self.missing_here


class _Gap(NamedTuple):
    """One entry that one side lacks: its place here, or `cloud_seq` if the replica has it."""

    device_id: str
    entry_id: str
    seq: int
    cloud_seq: int | None


def prove(exchange: Exchange, replica: Replica) -> Proof:
    here, there = _local_digests(exchange), replica.digests()
    gaps = list(_gaps(exchange, replica, here, there))
    return Proof(
        sum(count for count, _ in here.values()),
        sum(count for count, _ in there.values()),
        # Of what it refused, the replica has the header and not the content.
        [*(gap.entry_id for gap in gaps if gap.cloud_seq is None), *exchange.refused()],
        [gap.entry_id for gap in gaps if gap.cloud_seq is not None],
    )


def repair(engine: Engine) -> Proof:
    """Fetch what this device lacks, send what the replica lacks, and look again. In that order:
    what comes may be the reason why something cannot be sent as it is."""
    exchange, replica = engine.exchange, engine.replica
    allowed = engine.sendable()
    fetch(engine)
    gaps = _all_gaps(exchange, replica)
    keys, known = exchange.keys(), replica.keys()
    for device_id in {gap.device_id for gap in gaps if gap.cloud_seq is None} & allowed:
        if device_id not in known and engine.may_write():
            replica.introduce(device_id, keys[device_id])
    exchange.offer_again(
        gap.seq for gap in gaps if gap.cloud_seq is None and gap.device_id in allowed
    )
    if engine.may_write():
        engine.push(allowed)
    engine.sync()
    return prove(exchange, replica)


def fetch(engine: Engine) -> None:
    """Only the half of it that brings back what was lost here. The usual way first: only there it
    shows that the replica was restored, and has given numbers to something else."""
    engine.pull()
    _go_back(engine.exchange, _all_gaps(engine.exchange, engine.replica))
    engine.pull(own_too=True)


def _go_back(exchange: Exchange, gaps: list[_Gap]) -> None:
    missing_here = [gap.cloud_seq for gap in gaps if gap.cloud_seq is not None]
    if missing_here:
        with exchange.store.transaction():
            exchange.run("drop_batches", min(missing_here) - 1)


# --- comparing ----------------------------------------------------------------------------------


def _local_digests(exchange: Exchange) -> dict[Place, tuple[int, str]]:
    rows = exchange.store.rows("fingerprints")
    found: dict[Place, tuple[int, str]] = {}
    for place, group in groupby(rows, key=lambda row: (row[0], (row[1] - 1) // _THOUSAND)):
        chains = [row[2] for row in group]
        found[place] = len(chains), hashlib.sha256(b"".join(chains)).hexdigest()
    return found


def _all_gaps(exchange: Exchange, replica: Replica) -> list[_Gap]:
    return list(_gaps(exchange, replica, _local_digests(exchange), replica.digests()))


def _gaps(
    exchange: Exchange,
    replica: Replica,
    here: dict[Place, tuple[int, str]],
    there: dict[Place, tuple[int, str]],
) -> Iterator[_Gap]:
    for place in sorted(here.keys() | there.keys()):
        if here.get(place) != there.get(place):
            yield from _differences(exchange, replica, *place)


def _differences(
    exchange: Exchange, replica: Replica, device_id: str, number: int
) -> Iterator[_Gap]:
    first = number * _THOUSAND + 1
    numbers = orjson.dumps(list(range(first, first + _THOUSAND))).decode()
    rows = exchange.store.rows("ids_at", (device_id, numbers))
    mine = {(row[0], row[2]): (row[1], row[3]) for row in rows}
    theirs = {
        (seq, chain): (entry_id, cloud_seq)
        for seq, entry_id, chain, cloud_seq in replica.thousand(device_id, number)
    }
    for place, (entry_id, seq) in mine.items():
        if place not in theirs:
            yield _Gap(device_id, entry_id, seq, None)
    for place, (entry_id, cloud_seq) in theirs.items():
        if place not in mine:
            yield _Gap(device_id, entry_id, 0, cloud_seq)
