"""`syncd audit`, `explain`, `rebuild`: is the record intact, and what happened to this?"""

from __future__ import annotations

import json
from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, verb


@click.group()
def audit() -> None:
    """Inspect and verify the log."""


@audit.command("list")
@click.option("--task", help="Only entries of this task.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many.")
@verb
def list_(app: App, task: str | None, limit: int) -> None:
    """List the entries of the log, newest first."""
    names = ("cursor", "entry_id", "device_id", "device_seq", "entity", "entity_id", "op", "actor",
             "at", "meta", "hash", "signed")  # fmt: skip
    rows = app.node.store.rows("audit_list", (task, limit))
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for entry in found:
        entry["meta"] = json.loads(entry["meta"])
        entry["signed"] = bool(entry["signed"])
    columns = ("CURSOR", "TIME", "ACTOR", "WHAT", "ENTRY")
    text = [(e["cursor"], e["at"], e["actor"], f"{e['op']} {e['entity']} {e['entity_id']}",
             e["entry_id"]) for e in found]  # fmt: skip
    app.emit(found, lambda: render.table(columns, text))


@audit.command()
@click.pass_context
@verb
def verify(app: App, ctx: click.Context) -> None:
    """Check every hash, link, signature and view row.

    Exits 5 if anything is wrong, and names the entries.
    """
    from syncd.audit import verify as verify_store

    report = verify_store(app.node.store, app.node.key.public())
    document = {
        "ok": report.ok,
        "signer": "established" if report.signed and report.ok else "unknown",
        "entries": report.entries,
        "signatures": report.signed,
        "problems": [problem._asdict() for problem in report.problems],
    }
    app.emit(document, lambda: _verdict(document))
    if not report.ok:
        ctx.exit(5)


def _verdict(report: dict[str, Any]) -> str:
    if report["ok"]:
        entries = render.count(report["entries"], "entry", "entries")
        return render.labelled("Intact: ", f"{entries}, {_signed(report['signatures'])}", "green")
    found = render.count(len(report["problems"]), "problem", "problems")
    lines = [click.style(found, fg="red", bold=True)]
    for item in report["problems"]:
        lines.append(f"  entry {item['entry_id'] or '(none)'}: {item['problem']}")
    lines.append(
        "Views are mended by `syncd rebuild`, entries only by a backup: `syncd backup list`"
    )
    return "\n".join(lines)


def _signed(signatures: int) -> str:
    if not signatures:
        return "none signed yet (finalizing signs, and so does sending)"
    covers = "which covers" if signatures == 1 else "each of which covers"
    count = render.count(signatures, "signature", "signatures")
    return f"{count}, {covers} all that its device wrote before"


@click.command()
@click.argument("entry", metavar="ID")
@verb
def explain(app: App, entry: str) -> None:
    """Tell the life of a checkpoint.

    Its versions, who wrote them, whether they are intact and sent, which machines have them. ID
    may be a revision too.
    """
    from syncd import diagnosis

    found = diagnosis.explain(app.node, entry)
    app.emit(found, lambda: _story(found))


def _story(found: dict[str, Any]) -> str:
    lines = [click.style(f"{found['entity']} {found['id']}", bold=True)]
    if found.get("parent"):
        lines.append(f"parent {found['parent']}")
    lines += [f"linked to {parent}" for parent in found.get("linked_parents", [])]
    for version in found["versions"]:
        state = click.style(version["problem"], fg="red") if version["problem"] else "intact"
        signed = ", signed" if version["signed"] else ""
        if version.get("current"):
            signed += click.style(", current", fg="green")
        if version.get("conflict"):
            signed += click.style(f", lost (conflict {version['conflict'][:8]})", fg="yellow")
        lines.append(f"{version['at']}  {version['op']} by {version['actor']}: {state}{signed}")
        if purge := version["purged"]:
            why = f" ({render.clean(purge['reason'])})" if purge["reason"] else ""
            who = f" on {purge['at']} by {render.clean(purge['actor'])}" if purge["at"] else ""
            lines.append(f"  body purged{who}{why}, entry {purge['by']}; {version['hash']}")
        lines.append(
            f"  revision {version['revision']}, cursor {version['cursor']}, "
            f"number {version['device_seq']} of device {version['device_id']}"
        )
        place = f", number {version['cloud_seq']} there" if version["cloud_seq"] else ""
        lines.append(f"  replica: {version['verdict']}{place}")
    lines += _elsewhere(found.get("safe", {}))
    return "\n".join(render.wrapped(line, indent="    ") for line in lines)


def _elsewhere(safe: dict[str, Any]) -> list[str]:
    """What is known of other places, if there is a replica."""
    if safe.get("cloud", "unconfigured") == "unconfigured":
        return []
    lines = []
    if attempt := safe["last_attempt"]:
        outcome = attempt["error"] or "done"
        tries = render.count(safe["attempts"], "attempt", "attempts")
        lines.append(f"{tries} since, the last at {attempt['at']}: {outcome}")
    if safe["devices"] is None:
        lines.append("Which machines have it cannot be asked now: the replica is not reachable.")
    for device in safe["devices"] or []:
        has = "has it" if device["pulled"] else "has not fetched it yet"
        lines.append(f"{render.clean(device['machine'])} ({device['device_id']}) {has}")
    return lines


@click.command()
@verb
def rebuild(app: App) -> None:
    """Recreate every view from the log.

    Says where they differed from what the log says.
    """
    from syncd.audit import VIEWS
    from syncd.audit import rebuild as rebuild_views

    differences = rebuild_views(app.node.store)
    document = {
        "equal": not differences,
        "views": list(VIEWS),
        "differences": [{"view": d.view, "kind": d.kind, "row": list(d.row)} for d in differences],
    }
    lines = [f"  {d.view}: {d.row[0]} {d.kind}" for d in differences]
    equal = "The views equal the log."
    mended = "The views differed from the log and were mended:\n" + "\n".join(lines)
    app.emit(document, mended if differences else equal)
