"""Where lines, knots and bars stand: numbers only. The templates make SVG of them, and the style
sheet gives them colours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import NamedTuple

from syncd.lineage import Row
from syncd.ui import wording
from syncd.ui.reading import Stretch

# As high as a line of the chain in the style sheet.
ROW, LANE, MARGIN = 76, 18, 16
_MOST_LANES = 12
WIDE = 1_000
_LEAST_WIDTH = 4.0


# --- the chain ----------------------------------------------------------------------------------


class Line(NamedTuple):
    path: str
    lane: int


class Knot(NamedTuple):
    x: int
    y: int
    lane: int
    row: Row
    damaged: bool


class Chain(NamedTuple):
    width: int
    height: int
    lines: list[Line]
    knots: list[Knot]


def chain(rows: Sequence[Row], damaged: Iterable[str]) -> Chain:
    """The rows of a page, one under the other."""
    widest = max((max((row.column, *row.above, *row.below)) for row in rows), default=0)
    bad, lines, knots = set(damaged), [], []
    for number, row in enumerate(rows):
        top, middle, bottom = number * ROW, number * ROW + ROW // 2, (number + 1) * ROW
        lines += [
            _line(column, top, row.column if column in (row.column, *row.joining) else column,
                  middle)
            for column in row.above
        ]  # fmt: skip
        passing = [column for column in row.below if column != row.column]
        lines += [_line(column, middle, column, bottom) for column in passing]
        if row.column in row.below:
            lines.append(_line(row.column, middle, row.column, bottom))
        knots.append(Knot(_x(row.column), middle, row.column % 6, row, row.knot.id in bad))
    return Chain(_x(min(widest, _MOST_LANES)) + MARGIN, len(rows) * ROW, lines, knots)


def _x(column: int) -> int:
    return MARGIN + min(column, _MOST_LANES) * LANE


def _line(start: int, top: int, end: int, bottom: int) -> Line:
    x, to = _x(start), _x(end)
    if x == to:
        return Line(f"M{x} {top}V{bottom}", start % 6)
    half = (top + bottom) // 2
    return Line(f"M{x} {top}C{x} {half} {to} {half} {to} {bottom}", start % 6)


# --- who worked when ----------------------------------------------------------------------------


class Bar(NamedTuple):
    x: float
    width: float
    hint: str


class Lane(NamedTuple):
    name: str
    bars: list[Bar]
    checkpoints: int
    tokens: int


class Timeline(NamedTuple):
    lanes: list[Lane]
    begin: str
    end: str
    others: int


def timeline(stretches: Sequence[Stretch], most: int = 8) -> Timeline | None:
    """A lane for each of the agents that did most."""
    seconds = [(_seconds(item.begin), _seconds(item.end)) for item in stretches]
    if not seconds:
        return None
    begin = min(first for first, _ in seconds)
    span = max(max(last for _, last in seconds) - begin, 1.0)
    by_agent: dict[str, list[Stretch]] = defaultdict(list)
    for item in stretches:
        by_agent[item.agent_id].append(item)
    chosen = sorted(by_agent, key=lambda name: -sum(s.checkpoints for s in by_agent[name]))
    lanes = [
        Lane(name, _joined(_stretch(item, begin, span) for item in by_agent[name]),
             sum(item.checkpoints for item in by_agent[name]),
             sum(item.tokens for item in by_agent[name]))
        for name in chosen[:most]
    ]  # fmt: skip
    return Timeline(lanes, stretches[0].begin, stretches[-1].end, len(chosen[most:]))


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """Those that touch become one, so that a lane has no more bars than can be told apart."""
    found: list[Bar] = []
    for bar in bars:
        if found and bar.x <= found[-1].x + found[-1].width:
            last = found[-1]
            found[-1] = last._replace(width=round(bar.x + bar.width - last.x, 1))
        else:
            found.append(bar)
    return found


def _stretch(item: Stretch, begin: float, span: float) -> Bar:
    room = WIDE - _LEAST_WIDTH
    first = (_seconds(item.begin) - begin) / span * room
    last = (_seconds(item.end) - begin) / span * room
    hint = f"from {wording.stamp(item.begin)}"
    return Bar(round(first, 1), round(last - first + _LEAST_WIDTH, 1), hint)


def _seconds(text: str) -> float:
    at = wording.moment(text)
    return at.timestamp() if at else 0.0


# --- bars ---------------------------------------------------------------------------------------


class Column(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    day: str
    value: int


class Columns(NamedTuple):
    """A column for each day; `top` is what the whole height stands for."""

    columns: list[Column]
    top: int
    first: str
    middle: str
    last: str
    total: int


def columns(values: Mapping[str, int], days: int | None, today: date, high: int = 180) -> Columns:
    """The last so many days, or all that there are."""
    known = [date.fromisoformat(day) for day in values if _is_day(day)]
    last = max([today, *known]) if days is None else today
    first = min(known, default=today) if days is None else today - timedelta(days=days - 1)
    first = max(first, last - timedelta(days=729))
    shown = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    top = rounded_up(max((values.get(day.isoformat(), 0) for day in shown), default=0))
    step = WIDE / len(shown)
    drawn = [
        Column(round(n * step + step * 0.12, 2), round(high - high * value / top, 2),
               round(step * 0.76, 2), round(high * value / top, 2), day.isoformat(), value)
        for n, day in enumerate(shown)
        for value in (values.get(day.isoformat(), 0),)
    ]  # fmt: skip
    middle = shown[len(shown) // 2].isoformat()
    total = sum(column.value for column in drawn)
    return Columns(drawn, top, first.isoformat(), middle, last.isoformat(), total)


def _is_day(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except ValueError:
        return False


def rounded_up(number: int) -> int:
    """A round number that is not smaller."""
    size = 1
    while size * 10 <= number:
        size *= 10
    return next((size * n for n in (1, 2, 5, 10) if size * n >= number), 1) if number > 0 else 1


class Share(NamedTuple):
    """A line of a chart: as long as its share of the largest."""

    name: str
    value: int
    checkpoints: int
    width: float


def shares(values: Mapping[str, tuple[int, int]], most: int = 15) -> tuple[list[Share], int, int]:
    """The largest; how many more there are, and what those come to."""
    ordered = sorted(values.items(), key=lambda pair: (-pair[1][1], pair[0]))
    largest = max((tokens for _, (_, tokens) in ordered), default=0) or 1
    shown = [
        Share(name, tokens, number, round(WIDE * tokens / largest, 1))
        for name, (number, tokens) in ordered[:most]
    ]
    rest = ordered[most:]
    return shown, len(rest), sum(tokens for _, (_, tokens) in rest)


class Exchange(NamedTuple):
    """An attempt to reach the replica: what was sent goes up, what came goes down."""

    x: float
    width: float
    sent: float
    received: float
    failed: bool
    hint: str


def exchanges(attempts: Sequence[tuple[str, int, int, str]], high: int = 30) -> list[Exchange]:
    """Oldest first. Heights grow slowly: one entry is to be seen beside ten thousand."""
    largest = max((_height(n) for _, sent, got, _ in attempts for n in (sent, got)), default=0) or 1
    step = WIDE / max(len(attempts), 24)
    return [
        Exchange(round(WIDE - (n + 1) * step + step * 0.15, 2), round(step * 0.7, 2),
                 round(high * _height(sent) / largest, 1), round(high * _height(got) / largest, 1),
                 bool(error), f"{wording.stamp(at)}: sent {sent:,}, received {got:,}"
                 + (f"; {error}" if error else ""))
        for n, (at, sent, got, error) in enumerate(attempts)
    ]  # fmt: skip


def _height(number: int) -> float:
    return float(number.bit_length())
