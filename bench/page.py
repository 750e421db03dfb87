"""The run as a page for readers: docs/benchmarks.md, with its picture beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import lines, plot
from bench.daemon import Daemons
from bench.figures import Figures, compared, ratio
from bench.results import Local, Results
from bench.stores import BESIDE, RAW, SYNCD, SYNCD_READ, Others
from bench.sync import Sync
from bench.verdict import Verdict

PICTURES = ("benchmarks-local.png", "benchmarks-others.png")


class Published(NamedTuple):
    """What others say of themselves, measured elsewhere and on other machines."""

    who: str
    figure: str
    source: str


PUBLISHED = (
    Published(
        "PowerSync",
        "2,000 to 4,000 operations a second of small rows into its service, 2,000 to 20,000 a "
        "second to each client",
        "docs.powersync.com, Performance and Limits",
    ),
    Published(
        "Litestream",
        "replicates once a second by default (`sync-interval`)",
        "litestream.io, configuration reference",
    ),
    Published(
        "cr-sqlite",
        "an insert into a replicated table takes about 2.5 times as long as into a plain one",
        "README of vlcn-io/cr-sqlite",
    ),
)


def write(results: Results, held: Sequence[Verdict], date: str, folder: Path) -> list[Path]:
    """The files that were written."""
    pictures = []
    if results.local:
        pictures.append(folder / PICTURES[0])
        plot.draw(results.local, pictures[-1])
    if results.others:
        pictures.append(folder / PICTURES[1])
        plot.draw_others(results.others, pictures[-1])
    page = folder / "benchmarks.md"
    page.write_text("\n".join(_page(results, held, date)) + "\n", encoding="utf-8")
    return [page, *pictures]


def _page(results: Results, held: Sequence[Verdict], date: str) -> Iterator[str]:
    machine = results.machine
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items())
    yield from (
        "# Benchmarks",
        "",
        "Written by `make bench`; every figure on this page is of one run. All SQLite databases",
        "are in WAL mode with `synchronous = FULL`, PostgreSQL syncs every commit, on one disk.",
        "",
        f"- {date}, {machine['cpu']}, {machine['cpu_count']} CPUs, {machine['platform']}",
        f"- Python {machine['python']}, SQLite {machine['sqlite']}, {libraries}",
        "",
    )
    if results.others:
        yield from _others(results.others)
    if results.local:
        yield from _local(results.local)
    if results.sync:
        yield from _sync(results.sync)
    if results.daemons:
        yield from _daemon(results.daemons)
    yield from _held(held)
    yield from _published()


def _others(found: Others) -> Iterator[str]:
    yield from (
        "## Beside other stores",
        "",
        f"The same bytes ({found.label}), kept by each. What each does besides differs.",
        "",
        f"![writes and reads]({PICTURES[1]})",
        "",
        "| write | p50 ms | p99 ms | to a raw commit | beside keeping it |",
        "|---|---|---|---|---|",
    )
    raw = found.writes[RAW].p50
    for name, figures in found.writes.items():
        times = ratio(figures.p50, raw)
        yield f"| {name} | {_times(figures)} | {times:.2f} × | {BESIDE[name]} |"
    yield from ("", "| read the newest | p50 ms | p99 ms |", "|---|---|---|")
    yield from (f"| {name} | {_times(figures)} |" for name, figures in found.reads.items())
    yield ""
    yield from _plainly(SYNCD, found.writes, (RAW,))
    yield from _plainly(SYNCD_READ, found.reads, ())
    yield from (
        "",
        "What syncd spends over a plain store is its checks: the document is validated, looked",
        "through for secrets, brought into canonical form, hashed, chained to the entry before it",
        "and projected into the views, all in the same commit.",
        "",
    )


def _plainly(ours: str, found: dict[str, Figures], without: Sequence[str]) -> Iterator[str]:
    for name, figures in found.items():
        if name not in (ours, *without):
            yield f"- {ours} is {compared(ratio(found[ours].p50, figures.p50))} {name}"


def _local(local: Local) -> Iterator[str]:
    yield from ("## On one machine", "", f"![times]({PICTURES[0]})", "")
    for comparison in local.comparisons:
        yield from (
            f"{comparison.label}:",
            "",
            "| operation | p50 ms | p99 ms | to LangGraph's SqliteSaver |",
            "|---|---|---|---|",
        )
        for name in lines.REFERENCES:
            figures = comparison.lines[name]
            yield f"| {name} | {_times(figures)} | {comparison.to_langgraph(name):.2f} × |"
        yield ""
    few, many = (f"{fill.entries:,}" for fill in local.growth.fills)
    yield from (
        f"| with a long history | p50 ms, {few} entries | p50 ms, {many} entries | ratio |",
        "|---|---|---|---|",
    )
    for name, (short, long) in local.growth.lines.items():
        yield f"| {name} | {short.p50:.3f} | {long.p50:.3f} | {ratio(long.p50, short.p50):.2f} |"
    yield from ("", "| start-up of a command | p50 ms |", "|---|---|")
    yield from (f"| `{name}` | {line.p50:.0f} |" for name, line in local.start_up.lines.items())
    yield ""


def _sync(sync: Sync) -> Iterator[str]:
    found = sync.transfer
    yield from (
        "## Replication",
        "",
        f"{found.entries:,} entries, PostgreSQL {sync.postgres} on the same machine.",
        "",
        "| what | entries a second |",
        "|---|---|",
    )
    yield from (f"| {line} | {found.per_second(line):,.0f} |" for line in found.seconds)
    yield from (
        "",
        f"A new device has all of them after {sync.bootstrap:.1f} s. One entry there and back: p50 "
        f"{sync.round_trip.p50:.1f} ms.",
        "",
    )


def _daemon(found: Daemons) -> Iterator[str]:
    idle = found.idle
    yield from (
        "## The daemon",
        "",
        "| what | p50 ms | p99 ms |",
        "|---|---|---|",
        f"| a commit here to its row on another machine | {_times(found.propagation)} |",
        f"| hand-off, request to accepted prompt | {_times(found.handoffs.resident)} |",
        "",
        f"With nothing to do: {idle.cpu:.3f} % of a core, {idle.memory:.0f} MB, {idle.written} "
        f"bytes to disk in {idle.seconds:g} s.",
        "",
    )


def _held(held: Sequence[Verdict]) -> Iterator[str]:
    yield from (
        "## What must hold, and whether it did",
        "",
        "| claim | limit | measured | verdict |",
        "|---|---|---|---|",
    )
    for verdict in held:
        found = "-" if verdict.measured is None else f"{verdict.measured:.3f} {verdict.unit}"
        limit = f"{verdict.sign} {verdict.limit:g} {verdict.unit}"
        yield f"| {verdict.claim} | {limit} | {found} | {verdict.word} |"
    yield ""


def _published() -> Iterator[str]:
    yield from (
        "## Figures that others publish",
        "",
        "Not measured here, not comparable line by line: other machines, other payloads.",
        "",
        "| who | what they say | where |",
        "|---|---|---|",
    )
    yield from (f"| {said.who} | {said.figure} | {said.source} |" for said in PUBLISHED)


def _times(figures: Figures) -> str:
    return f"{figures.p50:.3f} | {figures.p99:.3f}"
