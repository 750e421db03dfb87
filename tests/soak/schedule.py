"""From a seed to what happens: a list of steps, made before anything is done.

A step says what happens, to whom, with which two choices and how long after the one before. Who and
which are taken from what there is when the step comes, so that every part of a history is one.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from syncd.keychain import END_TO_END

OPERATIONS = 200
FEWEST_FAULTS = 20
_EXTRA_FAULTS = 8
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_CHOICES = 1_000
_SEALED_EVERY = 4

# How often each of these happens, among all that users and daemons do.
_WEIGHTS = {
    "create": 20, "create_named": 7, "update": 22, "finalize": 4, "link": 4, "describe_task": 5,
    "resolve": 6, "erase": 3, "retain": 3, "claim": 4, "offer": 7, "accept": 9,
    "contend": 4, "acknowledge": 4, "heartbeat": 3, "message": 3, "sync": 22, "tick": 50,
    "wait": 14, "write_beside": 6, "copy": 3, "back_up_replica": 2,
}  # fmt: skip
FAULTS = (
    "cut_before", "cut_after", "duplicate", "delay", "late", "held", "offline", "lost_news",
    "power_loss", "killed", "disk_full", "clock_jump", "clock_drift", "replica_clock_jump",
    "clone", "device_restore", "replica_restore", "revoke", "rotate", "older_replica",
    "newer_replica", "newer_device", "older_home",
)  # fmt: skip
# Those of which a seed may well have several.
_COMMON = (
    "cut_before", "cut_before", "cut_after", "cut_after", "duplicate", "delay", "late", "held",
    "power_loss", "power_loss", "power_loss", "killed", "clock_jump", "device_restore",
    "replica_restore", "offline",
)  # fmt: skip
_SKEWS = (0, 0, 0, 4 * _MINUTE, 3 * _HOUR, -3 * _HOUR, 10 * 365 * 24 * _HOUR)


class Step(NamedTuple):
    number: int
    what: str
    who: int
    a: int
    b: int
    wait_ms: int

    @property
    def is_fault(self) -> bool:
        return self.what in FAULTS

    def __str__(self) -> str:
        return (
            f"{self.number:>4}  +{self.wait_ms / 1000:<6g} {self.what:<18} {self.a:>3} {self.b:>3}"
        )


class Plan(NamedTuple):
    """What a seed stands for."""

    seed: int
    skews: tuple[int, ...]
    batch_rows: int
    page_rows: int
    encryption: str
    steps: tuple[Step, ...]

    def only(self, numbers: frozenset[int]) -> Plan:
        return self._replace(steps=tuple(step for step in self.steps if step.number in numbers))


def plan(seed: int) -> Plan:
    chance = random.Random(seed)
    skews = tuple(chance.choice(_SKEWS) for _ in range(chance.choice((3, 3, 3, 4))))
    sizes = chance.choice(((2, 4), (4, 4), (5, 12), (20, 40)))
    whats = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=OPERATIONS)
    for fault in (*FAULTS, *chance.choices(_COMMON, k=_EXTRA_FAULTS)):
        # Not before there is something that can go wrong.
        whats.insert(chance.randrange(15, len(whats)), fault)
    steps = tuple(_step(number, what, chance) for number, what in enumerate(whats))
    encryption = END_TO_END if seed % _SEALED_EVERY == 0 else "none"
    return Plan(seed, skews, *sizes, encryption, steps)


def _step(number: int, what: str, chance: random.Random) -> Step:
    who, a, b = (chance.randrange(_CHOICES) for _ in range(3))
    return Step(number, what, who, a, b, _pause(what, chance))


def _pause(what: str, chance: random.Random) -> int:
    if what == "wait":
        return chance.choice((10 * _SECOND, 70 * _SECOND, 6 * _MINUTE, 20 * _MINUTE))
    return chance.choice((0, 1, 5, 40, 300, 2 * _SECOND, 3 * _SECOND))
