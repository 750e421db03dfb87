"""Many devices at once: a run of all phases, and whether anything was missed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from psycopg.conninfo import make_conninfo

from bench.device import Device
from bench.figures import Figures, summary
from scale import check, server
from scale.check import Check
from scale.crew import Hand, all_do, crew
from scale.devices import Copy, Fetchers, Senders, Sent
from scale.load import Load, Watch
from scale.server import Machine, Pooler, Server
from scale.settings import Fleet, Phase

_LEAD_SECONDS = 1.0
_LOG = """
  SELECT cloud_seq, device_id::text, device_seq, chain FROM syncd.log
  WHERE organization_id = %s::uuid ORDER BY cloud_seq
"""
Tell = Callable[[str], None]


class Phased(NamedTuple):
    """One phase: what was sent, how fast, how long a push took, counted from when it was due and
    from when it began, and how long until another device had it."""

    phase: Phase
    entries: int
    seconds: float
    push: Figures
    service: Figures
    propagation: Figures
    load: Load

    @property
    def per_second(self) -> float:
        return self.entries / self.seconds


class Bootstrap(NamedTuple):
    """A new device, from no home to an up-to-date one."""

    entries: int
    seconds: float


class Fleeting(NamedTuple):
    """All of it."""

    fleet: Fleet
    postgres: str
    connect_seconds: float
    phases: list[Phased]
    check: Check
    bootstrap: Bootstrap


def measured(folder: Path, fleet: Fleet, tell: Tell) -> Fleeting:
    folder.mkdir(mode=0o711)
    most = max(phase.connections for phase in fleet.phases)
    fewer = sum({phase.connections for phase in fleet.phases} - {most})
    spare = fleet.organizations * (fleet.pullers + 1)
    tell(f"a server for {fleet.devices:,} devices of {fleet.organizations} organizations")
    with server.server(folder / "server", most + fewer + spare) as place:
        machines = place.machines(
            fleet.organizations, fleet.devices + fleet.organizations * fleet.pullers
        )
        with server.pooler(place, folder / "pool", len(machines), most + spare) as pool:
            return _Run(folder, fleet, place, pool, tell, *_parted(machines, fleet)).result()


def _parted(machines: Sequence[Machine], fleet: Fleet) -> tuple[list[Machine], list[Machine]]:
    """Who sends, and of each organization who fetches."""
    seen: dict[str, int] = {}
    sending: list[Machine] = []
    fetching: list[Machine] = []
    for machine in machines:
        seen[machine.organization_id] = seen.get(machine.organization_id, 0) + 1
        early = seen[machine.organization_id] <= fleet.pullers
        (fetching if early else sending).append(machine)
    return sending, fetching


class _Run:
    def __init__(
        self, folder: Path, fleet: Fleet, place: Server, pool: Pooler, tell: Tell,
        sending: list[Machine], fetching: list[Machine],
    ) -> None:  # fmt: skip
        self._folder, self._fleet, self._server, self._pool = folder, fleet, place, pool
        self._tell, self._sending, self._fetching = tell, sending, fetching

    def result(self) -> Fleeting:
        fleet, share = self._fleet, self._fleet.pushing
        makers: list[tuple[Any, Any]] = [
            (Senders, (self._sending[place::share], fleet.threads)) for place in range(share)
        ]
        with crew([*makers, (Fetchers, (self._fetching,))]) as hands:
            *senders, fetcher = hands
            self._tell(f"writing {fleet.entries:,} entries ahead")
            all_do(senders, "write", sum(map(fleet.turns, fleet.phases)), fleet.batch)
            all_do([fetcher], "fetch", self._pool.port, fleet.pause)
            began = time.monotonic()
            all_do(senders, "connect", self._pool.port)
            connected = time.monotonic() - began
            phases = [self._phase(phase, hands) for phase in fleet.phases]
            [copies] = all_do([fetcher], "copies")
            written = {k: v for part in all_do(senders, "chains") for k, v in part.items()}
            all_do(senders, "disconnect")
        self._tell("comparing every log and copy")
        sent = [each for _, batches, _ in phases for each in batches]
        found = check.compared(self._logs(), written, sent, copies)
        self._tell(f"a new device: {found.entries // fleet.organizations:,} entries")
        return Fleeting(
            fleet, self._server.version, connected,
            [_phased(phase, batches, copies, load) for phase, batches, load in phases],
            found, self._bootstrap(),
        )  # fmt: skip

    def _phase(self, phase: Phase, hands: list[Hand]) -> tuple[Phase, list[Sent], Load]:
        fleet, senders = self._fleet, hands[:-1]
        period = fleet.period(phase)
        self._tell(f"{phase.name}: {phase.rate:,} entries/s for {phase.seconds} s, a batch of "
                   f"{fleet.batch} from each device every {period:.1f} s")  # fmt: skip
        if phase.connections == fleet.phases[0].connections:
            return self._sent(phase, period, hands, self._pool)
        all_do(senders, "disconnect")
        place = self._folder / phase.name.replace(" ", "-")
        with server.pooler(self._server, place, fleet.devices, phase.connections) as pool:
            all_do(senders, "connect", pool.port)
            found = self._sent(phase, period, hands, pool)
            all_do(senders, "disconnect")
        all_do(senders, "connect", self._pool.port)
        return found

    def _sent(
        self, phase: Phase, period: float, hands: list[Hand], pool: Pooler
    ) -> tuple[Phase, list[Sent], Load]:
        self._server.sql("CHECKPOINT")
        watch = Watch(self._server, {
            "simulated devices": [hand.process.pid or 0 for hand in hands],
            "PgBouncer": [pool.process.pid],
        })  # fmt: skip
        start = time.monotonic_ns() + int(_LEAD_SECONDS * 1e9)
        turns = self._fleet.turns(phase)
        parts = all_do(hands[:-1], "send", start, period, phase.spread, turns)
        return phase, [each for part in parts for each in part], watch.found()

    def _logs(self) -> dict[str, list[check.Row]]:
        organizations = {machine.organization_id for machine in self._sending}
        return {name: [(row[0], row[1], row[2], row[3]) for row in self._server.sql(_LOG, name)]
                for name in organizations}  # fmt: skip

    def _bootstrap(self) -> Bootstrap:
        """With the login of one that has sent: a machine whose disk was lost."""
        dsn = make_conninfo(self._sending[0].dsn, port=self._pool.port)
        began = time.perf_counter()
        with closing(Device(self._folder / "new", dsn)) as device:
            device.engine.sync()
            return Bootstrap(device.entries(), time.perf_counter() - began)


def _phased(phase: Phase, sent: Sequence[Sent], copies: Sequence[Copy], load: Load) -> Phased:
    arrived: dict[str, list[int]] = {}
    for copy in copies:
        for batch, moment in copy.arrived.items():
            arrived.setdefault(batch, []).append(moment)
    first, last = min(each.due for each in sent), max(each.ended for each in sent)
    return Phased(
        phase, sum(len(each.cloud_seqs) for each in sent), (last - first) / 1e9,
        summary([each.ended - each.due for each in sent]),
        summary([each.ended - each.began for each in sent]),
        summary([moment - each.due for each in sent for moment in arrived.get(each.batch, ())]),
        load,
    )  # fmt: skip
