"""docs/scale.md: what was measured, and what to do when one machine is not enough."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.verdict import Verdict
from scale import estimate
from scale.estimate import Estimate
from scale.settings import FEW, MAIN

FLEET, DEVICE, REPLICA = "scale-fleet.png", "scale-device.png", "scale-replica.png"
_WIDTH = 100


def write(parts: Mapping[str, dict[str, Any]], held: Sequence[Verdict], folder: Path) -> list[Path]:
    """The files that were written."""
    page = folder / "scale.md"
    page.write_text(text(parts, held), encoding="utf-8")
    return [page, *_drawn(parts, folder)]


def _drawn(parts: Mapping[str, dict[str, Any]], folder: Path) -> list[Path]:
    """What draws is only there with the extra of the benchmark."""
    from scale import plot

    made = []
    if "fleet" in parts:
        made.append(folder / FLEET)
        plot.fleet(parts["fleet"], made[-1])
    for name, picture in (("device", DEVICE), ("replica", REPLICA)):
        if name in parts:
            made.append(folder / picture)
            plot.growth(parts[name], f"A {name}: cost of each operation", made[-1])
    return made


def text(parts: Mapping[str, dict[str, Any]], held: Sequence[Verdict]) -> str:
    return "\n".join(_page(parts, held)) + "\n"


def _page(parts: Mapping[str, dict[str, Any]], held: Sequence[Verdict]) -> Iterator[str]:
    yield from ("# Scale", "")
    yield from _prose(
        "Written by `make scale`. Server, PgBouncer and the simulated devices share one machine.",
        "PostgreSQL syncs every commit. The load average is that of the machine when a part ended:",
        "where it is far above the number of CPUs, other programs were at work as well.",
    )
    for name, part in parts.items():
        machine, load = part["machine"], part.get("load_average") or _main(part)["load_average"]
        yield (f"- {name}: {part['date'][:16]} UTC, {machine['cpus']} CPUs, "
               f"{machine['memory_gb']:g} GB, load average {load[0]:g}")  # fmt: skip
    yield ""
    yield from _held(held)
    for name, section in (("fleet", _fleet), ("crowd", _crowd), ("device", _device),
                          ("replica", _replica)):  # fmt: skip
        if name in parts:
            yield from section(parts[name])
    if "fleet" in parts and "replica" in parts:
        yield from _more(parts["fleet"])
        yield from _paper(estimate.estimated(parts["fleet"], parts["replica"]))


def _prose(*pieces: str) -> list[str]:
    return [*textwrap.wrap(" ".join(pieces), _WIDTH, break_on_hyphens=False), ""]


def _held(held: Sequence[Verdict]) -> Iterator[str]:
    yield from ("| must hold | limit | measured | verdict |", "|---|---|---|---|")
    for verdict in held:
        limit = f"{verdict.sign} {verdict.limit:,g} {verdict.unit}".strip()
        yield f"| {verdict.claim} | {limit} | {_number(verdict.measured)} | {verdict.word} |"
    yield ""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


# --- many devices -------------------------------------------------------------------------------


def _fleet(part: dict[str, Any]) -> Iterator[str]:
    main = _main(part)
    yield from ("## Many devices at once", "")
    yield from _prose(
        f"{part['devices']:,} devices of {part['organizations']} organizations, PostgreSQL",
        f"{part['postgresql']}, PgBouncer in transaction mode. Every device has a login of its",
        "own, and entries of 1.6 KB that are chained and signed; fifty make a task, and the last",
        "of them is another version of the one before. They are written before the clock runs.",
    )
    yield from _prose(
        f"Then each device sends a batch of {part['batch']} whenever it is its turn (at",
        f"{main['offered_per_s']:,} entries/s: every {main['period_s']:g} s) and announces it, as",
        "a daemon does. Turns are spread by chance and do not wait for the server: a push counts",
        f"from the moment it was due. In each organization {_lookers(part['pullers'])} for news,",
        f"with a pause of {part['pause_s'] * 1000:.0f} ms, and examines every chain and signature",
        "(through a pooler nobody is told of news; a daemon looks every 5 s there). Propagation",
        "counts from the moment a push was due to the page that has it, on another device.",
    )
    yield from (f"![push and propagation]({FLEET})", "", *_phases(part), "")
    yield from _compared(part["check"])
    boot = part["bootstrap"]
    yield from _prose(
        f"All devices were connected after {part['connect_s']:g} s. A new device that takes in and",
        f"verifies the {boot['entries']:,} entries of its organization is up to date after",
        f"{boot['seconds']:.1f} s: {boot['entries'] / boot['seconds']:,.0f} entries/s.",
    )
    yield from _used(main)


def _lookers(count: int) -> str:
    return "one device looks" if count == 1 else f"{count} devices look"


def _main(part: dict[str, Any]) -> dict[str, Any]:
    found = [phase for phase in part["phases"] if phase["name"] == MAIN]
    return dict((found or part["phases"])[0])


def _phases(part: dict[str, Any]) -> Iterator[str]:
    yield from (
        "| load | server sessions | entries/s | push p50 ms | p99 | from its start p50 | p99 | "
        "propagation p50 ms | p99 | load average |",
        "|---|---|---|---|---|---|---|---|---|---|",
    )
    for phase in part["phases"]:
        yield (
            f"| {phase['name']}, {phase['offered_per_s']:,}/s | {phase['connections']:,} | "
            f"{phase['per_s']:,} | {_both(phase['push'])} | {_both(phase['service'])} | "
            f"{_both(phase['propagation'])} | {phase['load_average'][0]:g} |"
        )


def _both(figures: dict[str, float]) -> str:
    return f"{figures['p50_ms']:,.0f} | {figures['p99_ms']:,.0f}"


def _compared(check: dict[str, int]) -> list[str]:
    return _prose(
        f"Compared in full afterwards, {check['entries']:,} entries in the logs and on",
        f"{check['copies']} fetched copies: {check['gaps']} numbers missing, {check['lost']}",
        f"acknowledged entries lost, {check['foreign']} that nobody wrote, {check['not_copied']}",
        f"differences in copies, {check['refused']} refused.",
    )


def _used(phase: dict[str, Any]) -> list[str]:
    cores = ", ".join(f"{name} {value:.2f}" for name, value in phase["cores"].items())
    waits = ", ".join(f"{name} {count}" for name, count in phase["waits"].items())
    return _prose(
        f"Cores in use at {phase['offered_per_s']:,} entries/s: {cores}. What sessions at work",
        f"were seen doing, by samples: {waits or 'nothing'}. A session has {phase['backend_mb']:g}",
        "MB of its own.",
    )


def _crowd(part: dict[str, Any]) -> Iterator[str]:
    [phase] = part["phases"]
    last = phase["push"]["p99_ms"] / 1000
    yield from ("## One organization, everybody at once", "")
    yield from _prose(
        f"{part['devices']} devices of one organization send {part['batch']} entries each at the",
        f"same moment, every {phase['period_s']:g} s. Pushes of one organization follow each",
        "other, because the order of their numbers is the order of their commits: the last one",
        "waits for all others.",
    )
    yield from (*_phases(part), "")
    yield from _compared(part["check"])
    yield from _prose(
        f"99 of 100 are through after {last:.1f} s:",
        f"{part['devices'] * part['batch'] / last:,.0f} entries/s in one organization.",
    )
    yield from _used(phase)


# --- long histories -----------------------------------------------------------------------------


def _device(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## A device with a long history", "", f"![cost by entries]({DEVICE})", "")
    yield from (*_growth(part), "")
    control = part["control"]
    yield from _prose(
        f"A raw commit between them took {control['p50_ms']:.3f} ms (p50),",
        f"{control['p99_ms']:.3f} ms (p99).",
    )


def _replica(part: dict[str, Any]) -> Iterator[str]:
    yield from ("## A replica with a long history", "")
    yield from _prose(
        "Databases of one server, each with 20 organizations. Their histories were written by the",
        "server itself (short bodies, chain values that prove nothing); what is timed is done by",
        f"real devices. An entry of such a history takes {part['bytes_per_entry']:,} bytes on",
        "disk, with all indexes. A new device fetches page by page from the start: that a page",
        "costs the same makes its time proportional to the number of entries.",
    )
    yield from (f"![cost by entries]({REPLICA})", "", *_growth(part), "")


def _growth(part: dict[str, Any]) -> Iterator[str]:
    sizes = part["sizes"]
    head = " | ".join(f"{size:,}" for size in sizes)
    yield from (f"| p50 ms, by entries | {head} | last to first |", "|---" * (len(sizes) + 2) + "|")
    for line, by_size in part["lines"].items():
        values = [by_size[str(size)]["p50_ms"] for size in sizes]
        cells = " | ".join(f"{value:.3f}" for value in values)
        yield f"| {line} | {cells} | {values[-1] / values[0]:.2f} × |"


# --- when one machine is not enough ---------------------------------------------------------------


def _more(fleet: dict[str, Any]) -> Iterator[str]:
    few = next((phase for phase in fleet["phases"] if phase["name"] == FEW), None)
    yield from ("## When one machine is not enough", "")
    yield from _prose(
        "**Connections run out first.** Every machine has a login of its own, so that one can be",
        "refused without the others, and PgBouncer shares connections only within a login: it",
        "saves the server nothing but idle ones. Either each login at work keeps a connection (its",
        "memory is given above), or a push begins with a login at the server.",
        *([f"With {few['connections']} connections for {fleet['devices']:,} devices a push took",
           f"{few['push']['p50_ms']:,.0f} ms (p50) and {few['push']['p99_ms']:,.0f} ms (p99) at",
           f"{few['per_s']:,} entries/s."] if few else []),
    )  # fmt: skip
    yield from _prose(
        "1. **A larger machine.** Pushes of different organizations do not wait for each other:",
        "cores count, and how fast the disk syncs. Set `max_connections` for the logins that are",
        "at work at a time; PgBouncer's `max_db_connections` and `server_idle_timeout` for the",
        "rest.",
    )
    yield from _prose(
        "2. **Read replicas** (streaming replication) take what people read: SQL, Grafana,",
        "Metabase, auditors with psql. They do not take devices, which have one address and say",
        "hello there; that writes.",
    )
    yield from _prose(
        "3. **Several servers.** Organizations share nothing: no key, policy or function reads",
        "across them. Some of them on another server means another host in their DSNs, nothing",
        "else.",
    )
    yield from _prose(
        "4. **Citus.** For the same reason the tables can be distributed by `organization_id`,",
        "with which every primary key begins. An organization stays on one worker, so that its",
        "counter orders its commits there as here. That is also the limit: pushes of one",
        "organization follow each other, wherever they are.",
    )


def _paper(found: Estimate) -> Iterator[str]:
    yield from (f"### On paper: {estimate.DEVELOPERS:,} developers", "")
    yield from _prose(
        f"Assumed: organizations of {estimate.PER_ORGANIZATION}; {estimate.ENTRIES_A_DAY} entries",
        f"a developer and day, {estimate.PEAK_HOUR:.0%} of them in the busiest hour, each sent",
        f"alone; every device looks for news each {estimate.LOOK_SECONDS:g} s, as daemons do",
        "behind a pooler, and fetches what the others of its organization wrote. Times are the p50",
        "of the largest replica above: they include the client and the disk, so that the cores are",
        "too many rather than too few.",
    )
    yield from (
        "| in the busiest hour | |",
        "|---|---|",
        f"| entries a second | {found.entries:,.0f} |",
        f"| cores for pushes | {found.push_cores:.1f} |",
        f"| looks for news a second | {found.looks:,.0f} |",
        f"| cores for looks, and for what they find | {found.look_cores:.1f} |",
        f"| cores in all, if they are {estimate.BUSY:.0%} busy | {found.cores:,.0f} |",
        f"| sessions, if each login keeps one | {found.sessions:,}: {found.sessions_gb:,.0f} GB |",
        f"| disk a year, bodies of 1.5 KB, nothing purged | {found.year_tb:,.0f} TB |",
        "",
    )
    yield from _prose(
        f"By cores that is {found.servers} servers of {estimate.SERVER_CORES} cores, or as many",
        "Citus workers, each with its share of the organizations. Retention decides about the",
        "disk, and PgBouncer's limits about the sessions. Not measured: more than one server, a",
        "network between clients and server, Citus.",
    )
