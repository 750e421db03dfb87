"""How often each kind of fault was planned, and how often it took place: one that never did proves
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from chaos.plan import Act

# What is tried so often and never comes about is not bad luck. From five minutes on, all kinds are.
OFTEN = 5


class Tally:
    """`absent` are the kinds that cannot take place here, with the reason. Each kind is counted by
    the one thread that does it."""

    def __init__(self, timetable: Mapping[str, list[Act]], absent: Mapping[str, str]) -> None:
        self.planned = Counter(act.what for acts in timetable.values() for act in acts)
        self.done: Counter[str] = Counter()
        self._late: Counter[str] = Counter()
        self._absent = absent

    def late(self, acts: Iterable[Act]) -> None:
        self._late.update(act.what for act in acts)

    def missing(self) -> list[str]:
        """The kinds that should have taken place, and did not."""
        return [
            f"{what} never took place: {self._line(what)}"
            for what, planned in self.planned.items()
            if planned >= OFTEN and not self.done[what] and what not in self._absent
        ]

    def not_here(self) -> list[str]:
        """What a pass says nothing about, by its reason."""
        reasons = dict.fromkeys(self._absent.values())
        return [
            f"{', '.join(what for what in self._absent if self._absent[what] == why)}: {why}"
            for why in reasons
        ]

    def lines(self) -> list[str]:
        return [f"{what:<18} {self._line(what)}" for what in self.planned]

    def _line(self, what: str) -> str:
        late = f"{self._late[what]:,} came too late" if self._late[what] else ""
        why = self._absent.get(what, late)
        return f"{self.done[what]:>6,} of {self.planned[what]:>5,}  {why}".rstrip()
