"""When the replica is told of signs of life, and asked for those on other machines.

Who comes and goes is told at once, and announced, so that the others ask. That somebody is still
there is told now and then. With nothing to say or to ask, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from syncd import agents, presence
from syncd.node import Node
from syncd.presence import Sign
from syncd.sync import Engine

_NEVER = float("inf")
_GAP_SECONDS, _STILL_THERE_SECONDS = 2.0, 30.0
# Whoever writes a checkpoint often writes more.
_WRITTEN_SECONDS = 2.0


class Signs:
    """For one connection. `due` is when there may be something to do, by the steady clock."""

    def __init__(self, node: Node) -> None:
        self.due = _NEVER
        self._node = node
        self._asking = False
        self._rows: list[Sign] = []
        self._told: list[Sign] = []
        self._last = -_NEVER

    def ask(self, now: float) -> None:
        """There may be news of somebody elsewhere."""
        self._asking = True
        self.due = min(self.due, now)

    def written(self, now: float) -> None:
        """Somebody here has written."""
        self.due = min(self.due, now + _WRITTEN_SECONDS)

    def look(self, now: float) -> None:
        """The database has changed: perhaps by a sign of life."""
        if presence.own_signs(self._node) != self._rows:
            self.due = min(self.due, now)

    def speak(self, engine: Engine, now: float) -> bool:
        """Exchange, if there is a reason to, and the last time is not too close; whether that was
        announced."""
        self.due, self._rows = _NEVER, presence.own_signs(self._node)
        signs = agents.own_signs(self._node) if engine.may_write() else []
        moved = _names(signs) != _names(self._told)
        if not (moved or self._asking) and signs == self._told:
            return False
        gap = _GAP_SECONDS if moved or self._asking else _STILL_THERE_SECONDS
        if now < self._last + gap:
            self.due = self._last + gap
            return False
        agents.exchange(self._node, engine, signs)
        self._asking, self._told, self._last = False, signs, now
        if moved:
            engine.announce()
        return moved


def _names(signs: Iterable[Sign]) -> set[tuple[object, ...]]:
    return {sign[1:5] for sign in signs}
