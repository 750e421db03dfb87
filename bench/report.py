"""The run as text, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import lines
from bench.daemon import Daemons
from bench.figures import Figures, compared, ratio
from bench.growth import Growth
from bench.results import Comparison, Local, Results
from bench.resume import LINE
from bench.server import DURABLE
from bench.startup import BASELINE, StartUp
from bench.stores import BESIDE, Others
from bench.sync import Sync
from bench.transfer import COPY_PLAIN, PUSH, REFERENCES
from bench.verdict import Verdict

_COUNTERPARTS = (
    (lines.CREATE, lines.PUT),
    (lines.CREATE, lines.PUT_ENVELOPE),
    (lines.UPDATE, lines.PUT),
    (lines.LATEST, lines.GET_TUPLE),
    (lines.LATEST_DOCUMENT, lines.GET_TUPLE),
    (lines.HISTORY, lines.LIST_10),
)


def text(results: Results, verdicts: Sequence[Verdict]) -> str:
    parts = [_heading(results)]
    parts += _local(results.local) if results.local else []
    parts += [_sync(results.sync)] if results.sync else []
    parts += [_daemons(results.daemons)] if results.daemons else []
    parts += [_others(results.others)] if results.others else []
    parts.append(_must_hold(verdicts))
    if results.local and _busy(results.local):
        parts.append(
            f"BUSY MACHINE: undisturbed, a raw commit takes {results.local.quiet_ms():.3f} ms. "
            "Where it took much longer, ratios between writes show how long all waited, not who "
            "is faster."
        )
    if results.settings.quick:
        parts.append("This was a quick run: too few samples for its figures to mean much.")
    return "\n\n".join(parts)


def _local(local: Local) -> list[str]:
    compared = [_comparison(comparison) for comparison in local.comparisons]
    return [*compared, _growth(local.growth), _start_up(local.start_up), _resume(local.resume)]


def _busy(local: Local) -> bool:
    raws = [comparison.lines[lines.RAW_WRITE] for comparison in local.comparisons]
    return any(local.disturbed(raw) for raw in (*raws, local.growth.control))


def _heading(results: Results) -> str:
    machine = results.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    return "\n".join(
        (
            f"{machine['cpu']}, {machine['cpu_count']} CPUs, {machine['platform']}",
            f"Python {machine['python']}, SQLite {machine['sqlite']}, {libraries}",
            "Every SQLite database: WAL, synchronous = FULL, one folder. Times in milliseconds.",
        )
    )


def _comparison(comparison: Comparison) -> str:
    title = f"{comparison.label} ({comparison.body_bytes:,} bytes stored)"
    rows = [
        (name, *_times(figures), *_ratios(comparison, name), f"{figures.samples:,}")
        for name, figures in sorted(comparison.lines.items(), key=_group)
    ]
    heading = (title, "p50", "p99", "x raw", "x LangGraph", "samples")
    return "\n".join((*_table(heading, rows), "", *_plainly(comparison)))


def _group(line: tuple[str, Figures]) -> int:
    return list(lines.REFERENCES).index(line[0])


def _times(figures: Figures) -> tuple[str, str]:
    return f"{figures.p50:.3f}", f"{figures.p99:.3f}"


def _ratios(comparison: Comparison, name: str) -> tuple[str, str]:
    return f"{comparison.to_raw(name):.2f}", f"{comparison.to_langgraph(name):.2f}"


def _plainly(comparison: Comparison) -> Iterator[str]:
    for ours, theirs in _COUNTERPARTS:
        times = ratio(comparison.lines[ours].p50, comparison.lines[theirs].p50)
        yield f"  {ours} is {compared(times)} {theirs}"


def _growth(growth: Growth) -> str:
    short, long = growth.fills
    ratios = growth.ratios()
    rows = [
        (name, *_times(few), *_times(many), f"{ratios[name]:.2f}")
        for name, (few, many) in growth.lines.items()
    ]
    few, many = f"{short.entries:,}", f"{long.entries:,}"
    heading = ("Growth", f"p50 {few}", f"p99 {few}", f"p50 {many}", f"p99 {many}", "p50 ratio")
    filled = (
        f"  {long.entries:,} entries were written in {long.seconds:.0f} s "
        f"({long.entries / long.seconds:,.0f}/s) and take {long.bytes / 1e6:,.0f} MB"
    )
    beside = f"  a raw commit beside it took {growth.control.p50:.3f} ms"
    return "\n".join((*_table(heading, rows), "", filled, beside))


def _start_up(start_up: StartUp) -> str:
    if start_up.skipped:
        return f"Start-up: NOT MEASURED ({start_up.skipped})"
    baseline = start_up.lines[BASELINE].p50
    rows = [
        (name, *_times(figures), f"{ratio(figures.p50, baseline):.2f}", str(figures.samples))
        for name, figures in start_up.lines.items()
    ]
    return "\n".join(_table(("Start-up", "p50", "p99", "x python", "samples"), rows))


def _resume(resume: Figures) -> str:
    row = (LINE, *_times(resume), f"{resume.samples:,}")
    return "\n".join(_table(("Prompt", "p50", "p99", "samples"), [row]))


def _sync(sync: Sync) -> str:
    found, sizes = sync.transfer, sync.sizes
    rows = [
        (line, f"{found.median(line):.2f}", f"{found.per_second(line):,.0f}",
         f"{found.speed(line):.2f}", reference)
        for line, reference in REFERENCES.items()
    ]  # fmt: skip
    title = f"Sync, {found.entries:,} entries"
    waits = sync.waits
    notes = (
        f"  PostgreSQL {sync.postgres}, embedded: {', '.join(DURABLE)} are on",
        f"  medians of {sizes.rounds} rounds; crowded: with {sizes.organizations:,} organizations",
        f"  push has {found.speed(PUSH, COPY_PLAIN):.2f} times the speed of {COPY_PLAIN}",
        f"  a new device has everything after {sync.bootstrap:.1f} s",
        f"  one entry there and back: p50 {sync.round_trip.p50:.1f} ms, "
        f"p99 {sync.round_trip.p99:.1f} ms",
        f"  {waits.writers} writers, longest write: {waits.calm:.0f} ms of {waits.calm_writes:,}; "
        f"during a pull: {waits.pulling:.0f} ms of {waits.pulling_writes:,}",
    )
    heading = (title, "seconds", "per second", "speed", "to")
    return "\n".join((*_table(heading, rows), "", *notes))


def _daemons(found: Daemons) -> str:
    rows = [
        ("commit here to row there", *_times(found.propagation), f"{found.propagation.samples:,}"),
        (
            "hand-off, in running processes",
            *_times(found.handoffs.resident),
            f"{found.handoffs.resident.samples:,}",
        ),
        (
            "hand-off, by commands",
            *_times(found.handoffs.commands),
            f"{found.handoffs.commands.samples:,}",
        ),
        *(
            (name, *_times(figures), f"{figures.samples:,}")
            for name, figures in found.writes.items()
        ),
    ]
    idle = found.idle
    notes = (
        f"  with nothing to do for {idle.seconds:g} s: {idle.cpu:.3f} % of a core, "
        f"{idle.memory:.0f} MB, {idle.written} bytes to disk",
        f"  {found.sizes.backlog:,} entries wait where the replica is away",
    )
    return "\n".join((*_table(("Daemon", "p50", "p99", "samples"), rows), "", *notes))


def _others(found: Others) -> str:
    rows = [
        (name, *_times(figures), f"{figures.samples:,}", BESIDE.get(name, ""))
        for name, figures in {**found.writes, **found.reads}.items()
    ]
    title = f"Beside others, {found.label}"
    return "\n".join(_table((title, "p50", "p99", "samples", "beside keeping it"), rows))


def _must_hold(verdicts: Sequence[Verdict]) -> str:
    rows = [(v.claim, v.word, _measured(v), f"{v.sign} {v.limit:g} {v.unit}") for v in verdicts]
    table = _table(("Must hold", "verdict", "measured", "limit"), rows)
    notes = [f"  {v.claim}: {v.detail}" for v in verdicts if v.detail]
    return "\n".join((*table, "", *notes, "", *_conclusion(verdicts)))


def _conclusion(verdicts: Sequence[Verdict]) -> Iterator[str]:
    claims: dict[str, list[str]] = {}
    for verdict in verdicts:
        claims.setdefault(verdict.word, []).append(verdict.claim)
    for word in ("FAIL", "NOT MEASURED"):
        if found := claims.get(word):
            yield f"{word}: {len(found)} of {len(verdicts)}: {'; '.join(found)}"
    if claims.keys() == {"PASS"}:
        yield f"All {len(verdicts)} hold."


def _measured(verdict: Verdict) -> str:
    return "-" if verdict.measured is None else f"{verdict.measured:.3f} {verdict.unit}"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """First column to the left, the others to the right."""
    everything = [heading, *rows]
    widths = [max(len(row[column]) for row in everything) for column in range(len(heading))]
    aligned = [
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])))
        for row in everything
    ]
    return [aligned[0], "-" * len(aligned[0]), *aligned[1:]]
