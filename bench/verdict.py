"""What must hold, and whether it did. A miss is shown, never explained away."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from bench import lines
from bench.daemon import ALONE, AWAY, Daemons
from bench.figures import Figures, ratio
from bench.files import UPDATE_LINE, Files
from bench.hooks import AT_ONCE, Replayed
from bench.loop import LINE as LOOP_LINE
from bench.results import Local, Results
from bench.resume import LINE
from bench.startup import BASELINE, HOOK_COMMAND, LATEST_COMMAND, STATUS_COMMAND
from bench.sync import Sync
from bench.transfer import COPY, FETCH, PULL, PULL_CROWDED, PUSH, PUSH_CROWDED

LANGGRAPH_TIMES = 1.1
RAW_PLUS_MS = 0.12
REDACTION_MS = 0.06
AT_REST_TIMES = 1.15
LATEST_MS = 0.1
WRITE_P99_MS = 10.0
READ_P99_MS = 5.0
GROWTH_TIMES = 1.2
START_UP_TIMES = 2.2
STATUS_TIMES = 2.0
HOOK_TIMES = 2.0
HOOKS_SHARE = 5.0
HOOK_WAIT_MS = 500.0
RESUME_MS = 50.0
HANDOFF_MS = 200.0
LOOP_MS = 300.0
IMPORT_TIMES = 3.0
UPDATE_MS = 50.0
PUSH_SPEED = 0.5
PULL_SPEED = 0.5
CROWDED_SPEED = 0.9
MEMORY_MB = 150.0
WAIT_MS = 300.0
ARRIVAL_MS, ARRIVAL_P99_MS = 40.0, 200.0
IDLE_CPU, IDLE_MB = 0.15, 80.0
AWAY_TIMES = 1.1
CONNECTED_SPEED = 0.9

_SYNCD_WRITES = (lines.CREATE, lines.UPDATE)
_SYNCD_READS = (lines.LATEST, lines.LATEST_DOCUMENT, lines.HISTORY)


class Verdict(NamedTuple):
    claim: str
    limit: float
    measured: float | None
    unit: str
    detail: str = ""
    at_least: bool = False

    @property
    def sign(self) -> str:
        return ">=" if self.at_least else "<="

    @property
    def word(self) -> str:
        if self.measured is None:
            return "NOT MEASURED"
        kept = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "PASS" if kept else "FAIL"

    def as_document(self) -> dict[str, Any]:
        measured = None if self.measured is None else round(self.measured, 5)
        return {**self._asdict(), "measured": measured, "verdict": self.word}


def verdicts(results: Results) -> list[Verdict]:
    return [
        *(_local(results.local) if results.local else ()),
        *(_sync(results.sync) if results.sync else ()),
        *(_daemons(results.daemons) if results.daemons else ()),
    ]


def _local(results: Local) -> list[Verdict]:
    return [
        *_speed(results),
        _slowest(results, "write p99", _SYNCD_WRITES, WRITE_P99_MS),
        _slowest(results, "read p99", _SYNCD_READS, READ_P99_MS),
        *_growth(results),
        _start_up(results, LATEST_COMMAND, START_UP_TIMES),
        _start_up(results, STATUS_COMMAND, STATUS_TIMES),
        _start_up(results, HOOK_COMMAND, HOOK_TIMES),
        _hooks(results.hooks),
        Verdict(f"{LINE}, p50", RESUME_MS, results.resume.p50, "ms",
                f"with two calls of git; p99: {results.resume.p99:.1f} ms"),
        Verdict(LOOP_LINE, LOOP_MS, results.loop_ms, "ms"),
        *_files(results.files),
    ]  # fmt: skip


def _hooks(found: Replayed) -> Verdict:
    share = 100 * ratio(found.hooks, found.session)
    detail = f"{found.events} hooks in {found.hooks:.1f} s, the session took {found.session:,.0f} s"
    claim = f"hooks of a session of {found.tool_calls} tool calls, of its time"
    return Verdict(claim, HOOKS_SHARE, share, "%", detail)


def _files(found: Files) -> list[Verdict]:
    again = f"with nothing new {found.again:.2f} s, at first {found.imported:.2f} s"
    return [
        Verdict(f"import of {found.files:,} files to reading, parsing and writing them to a table",
                IMPORT_TIMES, ratio(found.imported, found.bare), "x", again),
        Verdict(f"{UPDATE_LINE}, p50", UPDATE_MS, found.update.p50, "ms",
                f"p99: {found.update.p99:.1f} ms"),
    ]  # fmt: skip


def _speed(results: Local) -> list[Verdict]:
    small = results.comparisons[0]
    create, raw = small.lines[lines.CREATE].p50, small.lines[lines.RAW_WRITE]
    put, latest = small.to_langgraph(lines.CREATE), small.lines[lines.LATEST].p50
    writes = [
        Verdict(f"create p50 at {small.label} to LangGraph put", LANGGRAPH_TIMES, put, "x"),
        Verdict(
            f"create p50 at {small.label} above a raw commit", RAW_PLUS_MS, create - raw.p50, "ms"
        ),
        Verdict(
            f"create p50 at {small.label} sealed at rest to plain",
            AT_REST_TIMES,
            ratio(small.lines[lines.CREATE_AT_REST].p50, create),
            "x",
        ),
        Verdict(
            f"redaction's part of create p50 at {small.label}",
            REDACTION_MS,
            create - small.lines[lines.CREATE_UNREDACTED].p50,
            "ms",
        ),
    ]
    read = Verdict(f"latest p50 at {small.label}", LATEST_MS, latest, "ms")
    return [*(_unless_disturbed(results, raw, verdict) for verdict in writes), read]


def _unless_disturbed(results: Local, raw: Figures, verdict: Verdict) -> Verdict:
    """Waiting for a CPU makes all writes look alike: it would turn a miss into a pass."""
    if not results.disturbed(raw):
        return verdict
    why = (
        f"the machine was busy: a raw commit took {raw.p50:.3f} ms, undisturbed "
        f"{results.quiet_ms():.3f}; the {verdict.measured:.3f} {verdict.unit} found mean nothing"
    )
    return verdict._replace(measured=None, detail=why)


def _slowest(results: Local, claim: str, names: tuple[str, ...], limit: float) -> Verdict:
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


def _growth(results: Local) -> list[Verdict]:
    growth = results.growth
    short, long = growth.fills
    claim = f"p50 with {long.entries:,} entries to {short.entries:,}"
    create = Verdict(f"create {claim}", GROWTH_TIMES, growth.worst("create"), "x")
    return [
        _unless_disturbed(results, growth.control, create),
        Verdict(f"latest {claim}", GROWTH_TIMES, growth.worst("latest"), "x"),
        Verdict(f"status {claim}", GROWTH_TIMES, growth.worst("status"), "x"),
    ]


def _start_up(results: Local, command: str, limit: float) -> Verdict:
    found, skipped = results.start_up
    measured = None if skipped else ratio(found[command].p50, found[BASELINE].p50)
    return Verdict(f"start-up of `{command}` to `{BASELINE}`", limit, measured, "x", skipped)


def _sync(sync: Sync) -> list[Verdict]:
    entries, waits = f"{sync.sizes.entries:,} entries", sync.waits
    crowd = f"with {sync.sizes.organizations:,} organizations to without"
    # A pull that ended before anybody wrote has shown nothing.
    waited = waits.pulling if waits.pulling_writes else None
    alone = f"the longest of {waits.calm_writes:,} writes without a pull: {waits.calm:.0f} ms"
    hooked = sync.hooks
    rounds = f"{hooked.pulling_rounds} times; without a pull the longest took {hooked.calm:.0f} ms"
    return [
        _speed_of(sync, f"push of {entries}, speed to {COPY}", PUSH, PUSH_SPEED),
        _speed_of(sync, f"pull of {entries}, speed to {FETCH}", PULL, PULL_SPEED),
        _speed_of(sync, f"push, speed {crowd}", PUSH_CROWDED, CROWDED_SPEED),
        _speed_of(sync, f"pull, speed {crowd}", PULL_CROWDED, CROWDED_SPEED),
        Verdict(f"memory, pushing {sync.sizes.backlog:,}", MEMORY_MB, sync.memory, "MB"),
        Verdict(f"wait of {waits.writers} writers, pulling", WAIT_MS, waited, "ms", alone),
        Verdict(f"the longest of {AT_ONCE} hooks at once, pulling", HOOK_WAIT_MS,
                hooked.pulling if hooked.pulling_rounds else None, "ms", rounds),
    ]  # fmt: skip


def _speed_of(sync: Sync, claim: str, line: str, limit: float) -> Verdict:
    speeds = ", ".join(f"{speed:.2f}" for speed in sync.transfer.speeds(line))
    detail = f"round by round: {speeds}"
    return Verdict(claim, limit, sync.transfer.speed(line), "x", detail, at_least=True)


def _daemons(found: Daemons) -> list[Verdict]:
    arrival, idle = found.propagation, found.idle
    away = ratio(found.writes[AWAY].p50, found.writes[ALONE].p50)
    speeds = ", ".join(f"{speed:.2f}" for speed in found.connected)
    return [
        Verdict("commit to the other machine's row, p50", ARRIVAL_MS, arrival.p50, "ms"),
        Verdict("commit to the other machine's row, p99", ARRIVAL_P99_MS, arrival.p99, "ms"),
        Verdict("hand-off, request to accepted prompt on the other machine, p50", HANDOFF_MS,
                found.handoffs.resident.p50, "ms",
                f"p99: {found.handoffs.resident.p99:.0f} ms; with a command for each step: p50 "
                f"{found.handoffs.commands.p50:.0f} ms, most of it two starts of Python"),
        Verdict("idle daemon, of one core", IDLE_CPU, idle.cpu, "%"),
        Verdict("idle daemon, resident", IDLE_MB, idle.memory, "MB"),
        Verdict(f"idle daemon, to disk in {idle.seconds:g} s", 0, idle.written, "bytes"),
        Verdict(f"create p50, {found.sizes.backlog:,} waiting for a replica that is away, to "
                "no daemon", AWAY_TIMES, away, "x"),
        Verdict(f"push, speed beside {found.sizes.devices} connected devices of others to alone",
                CONNECTED_SPEED, statistics.median(found.connected), "x",
                f"round by round: {speeds}", at_least=True),
    ]  # fmt: skip
