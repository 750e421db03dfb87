"""`syncd audit`, `explain`, `rebuild`: is the record intact, and what happened to this?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, Count, task_argument, verb
from syncd.entry import KINDS
from syncd.errors import CheckpointNotFoundError, UsageError

if TYPE_CHECKING:
    from syncd.witness import Testimony


@click.group()
def audit() -> None:
    """Inspect and verify the log."""


@audit.command("list")
@click.option("--task", help="Only entries of this task.")
@click.option("--agent", help="Only what this agent or person did.")
@click.option("--device", metavar="ID", help="Only what was written on this device.")
@click.option("--since", metavar="TIME", help="From this time on (ISO 8601).")
@click.option("--until", metavar="TIME", help="Before this time (ISO 8601).")
@click.option("--entity", help=f"Only of this kind: {', '.join(KINDS)}.")
@click.option("--op", help="Only this operation: create, update, finalize.")
@click.option("--limit", default=20, show_default=True, type=Count(1), help="How many.")
@verb
def list_(app: App, limit: int, since: str | None, until: str | None, **wanted: Any) -> None:
    """List the entries of the log, newest first.

    Each is one change: who did what, when, on which device.
    """
    from syncd import trail

    store = app.node.store
    found = trail.listed(store, trail.asked(store, since, until, **wanted), limit)
    columns = ("CURSOR", "TIME", "ACTOR", "WHAT", "ENTRY")
    text = [(e["cursor"], e["at"], e["actor"], f"{e['op']} {e['entity']} {e['entity_id']}",
             e["entry_id"]) for e in found]  # fmt: skip
    app.emit(found, lambda: render.table(columns, text))


@audit.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--key", "keys", metavar="FINGERPRINT", multiple=True,
              help="With FILE: a key that you know, by its 64 digits or the first 32 at least. "
              "Can be repeated.")  # fmt: skip
@click.option("--cloud", is_flag=True, help="Check the replica's copy too, and compare.")
@click.pass_context
@verb
def verify(
    app: App, ctx: click.Context, file: Path | None, keys: tuple[str, ...], cloud: bool
) -> None:
    """Check every hash, link, signature and view row.

    With FILE, a bundle that `audit export` wrote: without any home, and with --key also whose it
    is. Exits 5 if anything is wrong, and names the entries.
    """
    if file is not None and cloud:
        raise click.UsageError("a FILE is checked by itself, without --cloud")
    if file is None and keys:
        raise click.UsageError("--key is for a FILE; here the keys are known")
    ok = _verify_file(app, file, keys) if file is not None else _verify_here(app, cloud=cloud)
    if not ok:
        ctx.exit(5)


def _verify_here(app: App, *, cloud: bool) -> bool:
    from syncd.audit import verify as verify_store

    # First: who cannot reach the replica should not wait for the rest to hear of it.
    testimony = _testimony(app) if cloud else None
    report = verify_store(app.node.store, app.node.key.public())
    problems = [*report.problems, *(testimony.problems if testimony else ())]
    ok = report.ok and not problems
    document: dict[str, Any] = {
        "ok": ok,
        "signer": "established" if report.signed and ok else "unknown",
        "entries": report.entries,
        "signatures": report.signed,
        "problems": [problem._asdict() for problem in problems],
    }
    if closed := report.closed:
        document["closed"] = {"entries": closed.entries, "message": closed.why.message,
                              "remedy": closed.why.remedy}  # fmt: skip
    if testimony:
        names = ("entries", "signatures", "not_here_yet")
        document["cloud"] = {name: getattr(testimony, name) for name in names}
    app.emit(document, lambda: _verdict(document))
    return ok


def _testimony(app: App) -> Testimony:
    from syncd import witness

    with app.node.syncing() as engine:
        return witness.examine(engine.exchange, engine.replica)


def _verify_file(app: App, file: Path, keys: tuple[str, ...]) -> bool:
    from syncd import bundle
    from syncd.cli import evidence

    try:
        verdict = bundle.verify_file(file, [bundle.trusted(key) for key in keys])
    except FileNotFoundError:
        raise CheckpointNotFoundError(f"there is no file {file}", _WHICH_FILE) from None
    app.emit(evidence.document(verdict), lambda: evidence.text(verdict))
    return verdict.ok


_WHICH_FILE = "Give the file that `syncd audit export` wrote."


@audit.command()
@task_argument
@click.option("--output", required=True, metavar="FILE", type=click.Path(path_type=Path),
              help="Where to write it (-: stdout).")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file of that name.")
@verb
def export(app: App, task: str | None, output: Path, force: bool) -> None:
    """Write a task's entries and their proof into one file.

    Whoever has it can check it without this home: `syncd audit verify FILE --key FINGERPRINT`. It
    holds the whole content of the task, readable.
    """
    from syncd import bundle, delivery
    from syncd.cli import evidence

    to_stdout = delivery.opened_as(output) == delivery.STDOUT
    if to_stdout and app.json:
        raise UsageError("standard output has room for one document", "Name a file, or no --json.")
    done = bundle.export(app.node.store, app.node.key, app.task(task), output, force=force)
    if to_stdout:
        printing.say(evidence.receipt_text(done))
    else:
        app.emit(evidence.receipt(done), lambda: evidence.receipt_text(done))


def _verdict(report: dict[str, Any]) -> str:
    if report["ok"]:
        entries = render.count(report["entries"], "entry", "entries")
        told = f"{entries}, {_signed(report['signatures'])}"
        lines = [render.labelled("Intact: ", told, "green")]
        return "\n".join([*lines, *_agreed(report.get("cloud"))])
    return "\n".join([*_wrong(report["problems"]), *_unread(report.get("closed"))])


def _wrong(problems: list[dict[str, str]]) -> list[str]:
    if not problems:
        return []
    found = render.count(len(problems), "problem", "problems")
    return [
        click.style(found, fg="red", bold=True),
        *(f"  entry {item['entry_id'] or '(none)'}: {item['problem']}" for item in problems),
        "Views are mended by `syncd rebuild`, entries only by a backup: `syncd backup list`",
    ]


def _unread(closed: dict[str, Any] | None) -> list[str]:
    if closed is None:
        return []
    what = render.count(closed["entries"], "entry is", "entries are")
    told = f"what {what} about, for {closed['message']}. {closed['remedy']}"
    return [render.labelled("Not checked: ", told, "yellow")]


def _agreed(cloud: dict[str, int] | None) -> list[str]:
    if cloud is None:
        return []
    entries = render.count(cloud["entries"], "entry", "entries")
    told = f"{entries} there, {render.count(cloud['signatures'], 'signature', 'signatures')}"
    if waiting := cloud["not_here_yet"]:
        told += f"; {render.count(waiting, 'entry is', 'entries are')} still to be fetched"
    return [render.labelled("The replica agrees: ", told, "green")]


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
    replicated = found.get("safe", {}).get("cloud") != "unconfigured"
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
        lines.append(f"  replica: {version['verdict'] if replicated else 'none'}{place}")
    lines += _elsewhere(found.get("safe", {}))
    return "\n".join(render.wrapped(line, indent="    ") for line in lines)


def _elsewhere(safe: dict[str, Any]) -> list[str]:
    """What is known of other places, if there is a replica."""
    if safe.get("cloud", "unconfigured") == "unconfigured":
        return []
    lines = []
    if attempt := safe["last_attempt"]:
        outcome = attempt["error"] or "reached"
        tries = render.count(safe["attempts"], "attempt", "attempts")
        told = f"{tries} to reach the replica since then, the last at {attempt['at']}: {outcome}"
        lines.append(told)
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
    from syncd.projection import VIEWS
    from syncd.projection import rebuild as rebuild_views

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
