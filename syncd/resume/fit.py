"""A prompt within its limit: the most important lines are kept, whole, and what had to go is told.

Every line has a rank. What is shown is always a beginning of the lines in the order of their ranks,
put back into the order in which they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Unit(NamedTuple):
    """Lines that are shown together or not at all; the least rank is the most important. `items`
    counts what they stand for, when they are left out."""

    rank: int
    lines: tuple[str, ...]
    items: int = 1


class Section(NamedTuple):
    """`name` is what it is called where it is left out. `hidden` are not in any unit: the
    checkpoint has more than a prompt shows. `newest`: they are the earlier ones."""

    name: str
    heading: str
    units: Sequence[Unit]
    hidden: int = 0
    newest: bool = False


class Room(NamedTuple):
    """How long a prompt may be, and how that is counted."""

    limit: int
    measure: Callable[[str], int] = len

    def holds(self, prompt: str) -> bool:
        return self.measure(prompt) <= self.limit


def utf16_units(prompt: str) -> int:
    """Characters as JavaScript counts them, which the hosts are written in."""
    return len(prompt.encode("utf-16-le", "surrogatepass")) // 2


def utf8_bytes(prompt: str) -> int:
    return len(prompt.encode("utf-8", "surrogatepass"))


CLAUDE_CODE = Room(10_000, utf16_units)
# 2,500 tokens. Tokenizers of this kind never make more tokens than there are bytes, whatever the
# text; fewer bytes to a token hold for prose only: ids, hashes and many languages have 1.2 to 2.
CODEX = Room(2_500, utf8_bytes)


class Fitted(NamedTuple):
    """`left_out`: of each section, how many items the prompt does not show."""

    text: str
    left_out: dict[str, int]


def fitted(sections: Sequence[Section], rooms: Sequence[Room] = (), hint: str = "") -> Fitted:
    """`hint` is how the rest can be read."""
    order = _by_rank(sections)
    whole = _drawn(sections, set(order))
    if all(room.holds(whole) for room in rooms):
        return Fitted(whole, _left_out(sections, set(order)))
    limit = min(room.limit for room in rooms)
    for count, note in _attempts(_at_most(sections, order, limit)):
        kept = set(order[:count])
        said = note(_left_out(sections, kept), hint)
        shown = "\n\n".join(filter(None, (_drawn(sections, kept), said)))
        if all(room.holds(shown) for room in rooms):
            return Fitted(shown, _left_out(sections, kept))
    return Fitted("", _left_out(sections, set()))


Place = tuple[int, int]
Note = Callable[[dict[str, int], str], str]


def _by_rank(sections: Sequence[Section]) -> list[Place]:
    ranked = [
        (unit.rank, (number, place))
        for number, section in enumerate(sections)
        for place, unit in enumerate(section.units)
    ]
    return [place for _, place in sorted(ranked)]


def _at_most(sections: Sequence[Section], order: Sequence[Place], limit: int) -> int:
    """How many units can fit at best, as each line takes at least its characters."""
    for count, (number, place) in enumerate(order):
        limit -= sum(map(len, sections[number].units[place].lines))
        if limit < 0:
            return count
    return len(order) - 1


def _attempts(most: int) -> Iterator[tuple[int, Note]]:
    """Rather less content than a note that says little; rather such a note than no content."""
    for counts in (range(most, 0, -1), range(1)):
        for note in (_note, _short_note, _shortest_note):
            for count in counts:
                yield count, note


def _note(left_out: dict[str, int], hint: str) -> str:
    what = ", ".join(
        name if count == 1 else f"{name} ({count:,})" for name, count in left_out.items()
    )
    return f"(Left out for lack of room: {what}. All of it: {hint})"


def _short_note(left_out: dict[str, int], _: str) -> str:
    return f"(left out: {sum(left_out.values()):,} items)"


def _shortest_note(_: dict[str, int], __: str) -> str:
    return "(cut)"


def _left_out(sections: Sequence[Section], kept: set[Place]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, section in enumerate(sections):
        units = enumerate(section.units)
        gone = sum(unit.items for place, unit in units if (number, place) not in kept)
        if count := section.hidden + gone:
            counts[section.name] = counts.get(section.name, 0) + count
    return counts


def _drawn(sections: Sequence[Section], kept: set[Place]) -> str:
    blocks = []
    for number, section in enumerate(sections):
        units = [u for place, u in enumerate(section.units) if (number, place) in kept]
        if units:
            lines = [line for unit in units for line in unit.lines]
            blocks.append("\n".join([*_heading(section, units), *lines]))
    return "\n\n".join(blocks)


def _heading(section: Section, units: Sequence[Unit]) -> Iterator[str]:
    """Which of them are shown, where not all are."""
    if not section.heading:
        return
    shown = sum(unit.items for unit in units)
    total = section.hidden + sum(unit.items for unit in section.units)
    which = "last" if section.newest else "first"
    yield section.heading + (f" ({which} {shown:,} of {total:,})" if shown < total else "")
