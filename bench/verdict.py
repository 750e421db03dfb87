"""What must hold, and whether it did. A miss is shown, never explained away."""

from __future__ import annotations

from typing import Any, NamedTuple

from bench import lines
from bench.figures import Figures, ratio
from bench.results import Results
from bench.startup import BASELINE, LATEST_COMMAND

LANGGRAPH_TIMES = 1.1
RAW_PLUS_MS = 0.12
LATEST_MS = 0.1
WRITE_P99_MS = 10.0
READ_P99_MS = 5.0
GROWTH_TIMES = 1.2
START_UP_TIMES = 2.2

_SYNCD_WRITES = (lines.CREATE, lines.UPDATE)
_SYNCD_READS = (lines.LATEST, lines.LATEST_DOCUMENT, lines.HISTORY)


class Verdict(NamedTuple):
    claim: str
    limit: float
    measured: float | None
    unit: str
    detail: str = ""

    @property
    def word(self) -> str:
        if self.measured is None:
            return "NOT MEASURED"
        return "PASS" if self.measured <= self.limit else "FAIL"

    def as_document(self) -> dict[str, Any]:
        measured = None if self.measured is None else round(self.measured, 5)
        return {**self._asdict(), "measured": measured, "verdict": self.word}


def verdicts(results: Results) -> list[Verdict]:
    return [
        *_speed(results),
        _slowest(results, "write p99", _SYNCD_WRITES, WRITE_P99_MS),
        _slowest(results, "read p99", _SYNCD_READS, READ_P99_MS),
        *_growth(results),
        _start_up(results),
    ]


def _speed(results: Results) -> list[Verdict]:
    small = results.comparisons[0]
    create, raw = small.lines[lines.CREATE].p50, small.lines[lines.RAW_WRITE]
    put, latest = small.to_langgraph(lines.CREATE), small.lines[lines.LATEST].p50
    writes = [
        Verdict(f"create p50 at {small.label} to LangGraph put", LANGGRAPH_TIMES, put, "x"),
        Verdict(
            f"create p50 at {small.label} above a raw commit", RAW_PLUS_MS, create - raw.p50, "ms"
        ),
    ]
    read = Verdict(f"latest p50 at {small.label}", LATEST_MS, latest, "ms")
    return [*(_unless_disturbed(results, raw, verdict) for verdict in writes), read]


def _unless_disturbed(results: Results, raw: Figures, verdict: Verdict) -> Verdict:
    """Waiting for a CPU makes all writes look alike: it would turn a miss into a pass."""
    if not results.disturbed(raw):
        return verdict
    why = (
        f"the machine was busy: a raw commit took {raw.p50:.3f} ms, undisturbed "
        f"{results.quiet_ms():.3f}; the {verdict.measured:.3f} {verdict.unit} found mean nothing"
    )
    return verdict._replace(measured=None, detail=why)


def _slowest(results: Results, claim: str, names: tuple[str, ...], limit: float) -> Verdict:
    """Over all sizes: the limit is for every operation, so the worst of them decides."""
    p99, name, where = max(
        (
            (comparison.lines[name].p99, name, comparison)
            for comparison in results.comparisons
            for name in names
        ),
        key=lambda found: found[0],
    )
    raw = where.lines[lines.RAW_WRITE].p99
    detail = f"slowest: {name}, {where.label}; a raw commit's p99 beside it: {raw:.3f} ms"
    return Verdict(claim, limit, p99, "ms", detail)


def _growth(results: Results) -> list[Verdict]:
    growth = results.growth
    short, long = growth.fills
    claim = f"p50 with {long.entries:,} entries to {short.entries:,}"
    create = Verdict(f"create {claim}", GROWTH_TIMES, growth.worst("create"), "x")
    return [
        _unless_disturbed(results, growth.control, create),
        Verdict(f"latest {claim}", GROWTH_TIMES, growth.worst("latest"), "x"),
    ]


def _start_up(results: Results) -> Verdict:
    found, skipped = results.start_up
    measured = None if skipped else ratio(found[LATEST_COMMAND].p50, found[BASELINE].p50)
    claim = f"start-up of `{LATEST_COMMAND}` to `{BASELINE}`"
    return Verdict(claim, START_UP_TIMES, measured, "x", skipped)
