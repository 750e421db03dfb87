"""`syncd status`: is my work safe?"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, until_interrupted, verb

_EXIT = {"ok": 0, "attention": 3, "failed": 1}
_NOTICES = 5
_ANSWERS = {"failed": "red", "safe": "green", "local": None}
_COLOURS = {"online": "green", "offline": "yellow", "unconfigured": None}


@click.command()
@click.option("--watch", is_flag=True, help="Draw it anew each second, until Ctrl-C.")
@click.pass_context
@verb
def status(app: App, ctx: click.Context, watch: bool) -> None:
    """Say whether your work is safe, and what the daemon is doing.

    Exits 0 if all is well (being offline is), 3 if something wants your attention, 1 if this home
    cannot be used.
    """
    from syncd.status import status as gathered

    if watch:
        with until_interrupted():
            _watch(app)
    document = gathered(app.node)
    app.emit(document, lambda: screen(document))
    ctx.exit(_EXIT[document["verdict"]])


def _watch(app: App) -> None:
    from syncd.status import status as gathered

    while True:
        document = gathered(app.node)
        if app.json:
            printing.show(json.dumps(document, ensure_ascii=False))
        else:
            # Overwrite line by line: clearing first would flicker.
            lines = printing.painted(screen(document)).splitlines()
            printing.over("\033[H" + "".join(f"{line}\033[K\n" for line in lines) + "\033[J")
        time.sleep(1)


def screen(document: dict[str, Any]) -> str:
    """One screen, the answer first."""
    lines = [_answer(document)]
    if document["verdict"] != "failed":
        lines += ["", *_facts(document)]
    for need in document["attention"]:
        lines += _point(click.style("! ", fg="yellow", bold=True), need)
    for notice in document["notices"][:_NOTICES]:
        lines += _point("- ", notice)
    if more := len(document["notices"][_NOTICES:]):
        lines += ["", f"- and {more} more: syncd agents"]
    return "\n".join(lines)


def _point(mark: str, told: dict[str, str]) -> list[str]:
    """Others chose some of the words."""
    what, remedy = render.clean(told["what"]), render.clean(told["remedy"])
    return [
        "",
        render.wrapped(mark + what, indent="  "),
        render.wrapped("  " + remedy, indent="  "),
    ]


def _answer(document: dict[str, Any]) -> str:
    told: dict[str, str] = document["answer"]
    colour = _ANSWERS.get(told["kind"], "yellow")
    return click.style(f"{told['headline']}: ", fg=colour, bold=True) + told["words"]


def _facts(document: dict[str, Any]) -> list[str]:
    local = document["local"]
    conflicts, found = document["conflicts"]["open"], document["agents"]
    agents = f"{found['active']} active, {found['warning']} silent, "
    agents += _marked(f"{found['stale']} presumed to have crashed", found["stale"])
    rows = [
        ("Daemon", _daemon(document["daemon"])),
        ("Replica", _replica(document["cloud"])),
        *_exchange(document),
        ("Conflicts", _marked(f"{conflicts} open (syncd conflicts list)", conflicts)
         if conflicts else "none"),
        ("Agents", agents),
        ("Here", f"{render.count(local['checkpoints'], 'checkpoint', 'checkpoints')} of "
         f"{render.count(local['tasks'], 'task', 'tasks')}, "
         f"{render.size(local['db_bytes'])}; {render.size(document['disk']['free_bytes'])} free"),
        ("Home", document["home"]),
    ]  # fmt: skip
    return [f"{name:<10} {text}" for name, text in rows]


def _exchange(document: dict[str, Any]) -> list[tuple[str, str]]:
    push, pull = document["push"], document["pull"]
    if document["cloud"]["state"] == "unconfigured":
        return []
    return [
        ("To send", f"{push['pending']:,}, last sent {_ago(push['last_at'])}"),
        ("To fetch", f"{pull['behind']:,}, last received {_ago(pull['last_at'])}"),
    ]


def _daemon(daemon: dict[str, Any]) -> str:
    if not daemon["running"]:
        return click.style("not running", fg="yellow") + " (syncd start)"
    since = f", for {_span(daemon['uptime_s'])}" if daemon["uptime_s"] is not None else ""
    return f"running, process {daemon['pid']}{since}"


def _replica(cloud: dict[str, Any]) -> str:
    refused = cloud["state"] == "offline" and cloud["needs_person"]  # why, is said below
    word = "refused" if refused else cloud["state"]
    state = click.style(word, fg=_COLOURS[cloud["state"]])
    if cloud["state"] == "unconfigured":
        return "none"
    if not cloud["as_of"]:
        return "not tried yet"
    parts = [f"{state}, as of {_ago(cloud['as_of'])}"]
    if abs(cloud["clock_skew_ms"]) >= 1_000:
        word = "ahead" if cloud["clock_skew_ms"] > 0 else "behind"
        skew = f"this clock is {_span(abs(cloud['clock_skew_ms']) / 1000)} {word}"
        parts.append(_marked(skew, 1))
    if cloud["last_error"] and not cloud["needs_person"]:  # else it is said below
        parts.append(cloud["last_error"])
    if cloud["next_attempt_s"]:
        parts.append(f"next attempt in {_span(cloud['next_attempt_s'])}")
    return "; ".join(parts)


def _marked(text: str, count: int) -> str:
    return click.style(text, fg="yellow") if count else text


def _ago(at: str | None) -> str:
    if not at:
        return "never"
    seconds = (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
    return "just now" if seconds < 2 else f"{_span(seconds)} ago"


def _span(seconds: float) -> str:
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word}"
    return f"{max(seconds, 0):.0f} s"
