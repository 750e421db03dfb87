"""`syncd conflicts`, `quarantine`: what lost, what was not taken, and what to do about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render
from syncd.cli.verb import App, verb

if TYPE_CHECKING:
    from syncd.fold import Conflict


# What follows from the rest: shown in full with --json only.
_DERIVED = ("compliance.event_log_ref", "recovery.continuation_prompt", "metadata.timestamp")


@click.group()
def conflicts() -> None:
    """Versions and branches that lost against another machine's."""


@conflicts.command("list")
@click.option("--all", "everything", is_flag=True, help="Closed ones too.")
@verb
def list_(app: App, everything: bool) -> None:
    """List the open conflicts."""
    from syncd import conflicts as log

    found = log.everything(app.node, None if everything else "open")
    rows = [(c.id, c.kind, f"{c.entity} {c.entity_id}", c.state, c.detected_at) for c in found]
    columns = ("ID", "KIND", "WHAT", "STATE", "SINCE")
    none = "There was no conflict yet." if everything else "No open conflicts."
    app.emit(
        [log.document(c) for c in found],
        lambda: render.table(columns, rows, empty=none),
    )


@conflicts.command()
@click.argument("conflict", metavar="ID")
@verb
def show(app: App, conflict: str) -> None:
    """Show what is current and what lost, beside what both began from."""
    from syncd import conflicts as log

    found = log.shown(app.node, conflict)
    app.emit(found, lambda: _sides(found))


def _sides(found: dict[str, Any]) -> str:
    title = f"{found['kind']} conflict {found['id']} ({found['state']})"
    lines = [click.style(title, bold=True), f"{found['entity']} {found['entity_id']}"]
    for name, side in (("Current", found["ours"]), ("Lost", found["theirs"])):
        lines.append(
            f"{name:<7} {side['at']} by {render.clean(side['actor'])}, device {side['device_id']}"
        )
    for change in found["differences"]:
        if change["path"] in _DERIVED:
            continue
        base = _at(found["base"], change["path"])
        lines.append(click.style(change["path"], bold=True))
        lines.append(f"  before   {_brief(base)}")
        lines.append(click.style(f"  current  {_brief(change['before'])}", fg="green"))
        lines.append(click.style(f"  lost     {_brief(change['after'])}", fg="red"))
    if found["state"] == "open":
        short = found["id"][:8]
        if not found["final"]:
            lines.append(f"Take back what lost:  syncd conflicts restore {short}")
        lines.append(f"Keep what is current: syncd conflicts dismiss {short}")
    return "\n".join(lines)


def _at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _brief(value: Any) -> str:
    return "(none)" if value is None else render.clean(json.dumps(value, ensure_ascii=False))


@conflicts.command()
@click.argument("conflict", metavar="ID")
@verb
def restore(app: App, conflict: str) -> None:
    """Make what lost current again, on every machine."""
    from syncd import conflicts as log

    _closed(app, log.restore(app.node, conflict), "is current again")


@conflicts.command()
@click.argument("conflict", metavar="ID")
@verb
def dismiss(app: App, conflict: str) -> None:
    """Let it rest; what lost stays in the log."""
    from syncd import conflicts as log

    _closed(app, log.dismiss(app.node, conflict), "stays in the log")


def _closed(app: App, conflict: Conflict, what: str) -> None:
    from syncd import conflicts as log

    app.emit(log.document(conflict), f"Closed ({conflict.state}): {conflict.loser} {what}.")


@click.group()
def quarantine() -> None:
    """Entries that the replica, or this machine, did not take."""


@quarantine.command("list")
@click.option("--all", "everything", is_flag=True, help="Those dealt with too.")
@verb
def list_quarantine(app: App, everything: bool) -> None:
    """List them, with the reason."""
    from syncd import conflicts as log

    found = log.quarantined(app.node, None if everything else "open")
    rows: list[tuple[Any, ...]] = [
        (q["entry_id"], q["state"], q["since"], q["reason"]) for q in found
    ]
    app.emit(found, lambda: _quarantine_text(rows))


def _quarantine_text(rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return "Nothing is in quarantine."
    return "\n".join([
        render.table(("ENTRY", "STATE", "SINCE", "REASON"), rows),
        "Once the reason is gone: syncd quarantine retry ENTRY",
        "To leave it at that:     syncd quarantine drop ENTRY",
    ])  # fmt: skip


@quarantine.command()
@click.argument("entry", metavar="ID")
@verb
def retry(app: App, entry: str) -> None:
    """Offer an entry again at the next sync, once its reason is gone."""
    from syncd import conflicts as log

    retried = log.retry(app.node, entry)
    app.emit({"entry_id": retried, "state": "retried"}, "It is offered again at the next sync.")


@quarantine.command()
@click.argument("entry", metavar="ID")
@verb
def drop(app: App, entry: str) -> None:
    """Leave it at that. Ours stays in this machine's log, unsent."""
    from syncd import conflicts as log

    dropped = log.drop(app.node, entry)
    app.emit({"entry_id": dropped, "state": "dropped"}, "It is no longer counted.")
