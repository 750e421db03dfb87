"""How large a run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """Some seconds of one load. `rate` is in entries a second, all devices together; each device
    sends a batch whenever it is its turn, whether or not the server keeps up.

    `spread` is the part of the time between two batches over which the devices' turns are spread:
    with 0, all send at the same moment. `connections` is how many the pooler may have to the
    server; each login needs one of its own while it sends.
    """

    name: str
    rate: int
    seconds: int
    connections: int
    spread: float = 1.0


@dataclass(frozen=True)
class Fleet:
    """Devices and what they go through. `pullers` of each organization fetch what the others write,
    with a `pause` between two looks."""

    devices: int
    organizations: int
    batch: int
    phases: tuple[Phase, ...]
    pullers: int = 1
    pause: float = 0.25
    pushing: int = 2
    threads: int = 24

    def period(self, phase: Phase) -> float:
        """Seconds between two batches of one device."""
        return self.batch * self.devices / phase.rate

    def turns(self, phase: Phase) -> int:
        """How many batches each device sends."""
        return max(1, round(phase.seconds / self.period(phase)))

    @property
    def entries(self) -> int:
        return sum(self.turns(phase) for phase in self.phases) * self.batch * self.devices


MAIN, SLOW, FAST, FEW, AT_ONCE = "main", "slower", "faster", "few connections", "at once"


def fleet(devices: int, organizations: int, seconds: int, rate: int, batch: int) -> Fleet:
    """The load that is asked for, and beside it less, more, and a tenth of the connections."""
    short = max(2, seconds // 3)
    few = max(4, devices // 10)
    return Fleet(devices, organizations, batch, (
        Phase(SLOW, rate // 2, short, devices),
        Phase(MAIN, rate, seconds, devices),
        Phase(FAST, rate * 3 // 2, short, devices),
        Phase(FEW, max(1, rate // 6), short, few),
    ))  # fmt: skip


def crowd(devices: int, rounds: int, batch: int, every: float = 10.0) -> Fleet:
    """One organization, all of whose devices send at the same moment, some times."""
    rate = round(batch * devices / every)
    phase = Phase(AT_ONCE, rate, round(rounds * every), devices, spread=0.0)
    return Fleet(devices, 1, batch, (phase,), threads=devices // 2 + 1)
