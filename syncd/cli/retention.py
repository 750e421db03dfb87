"""`syncd retention`, `erase`: what is not kept."""

from __future__ import annotations

import sys
from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, id_argument, not_empty, verb, warn_on_stderr
from syncd.errors import UsageError


@click.group()
def retention() -> None:
    """Let go what the tasks' retention does not keep."""


@retention.command()
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@verb
def run(app: App, dry_run: bool) -> None:
    """Purge what the tasks' retention lets go.

    Header, hash and chain of each version stay. A task's newest checkpoint, what an open conflict
    is about, and what the replica does not have yet are kept. Where there is a replica, the bodies
    go once it has accepted the purge.
    """
    from syncd import retention as keeping

    done = keeping.run(app.node, dry_run=dry_run)
    app.emit(done, lambda: _told(done))


def _told(done: dict[str, Any]) -> str:
    versions = render.count(done["purged"], "version", "versions")
    bytes_ = render.size(done["bytes"])
    rows = [
        (task["id"], task["retention"], found["id"], len(found["versions"]),
         render.size(found["bytes"]))
        for task in done["tasks"] for found in task["checkpoints"]
    ]  # fmt: skip
    columns = ("TASK", "RETENTION", "CHECKPOINT", "VERSIONS", "SIZE")
    lines = [render.table(columns, rows)] if rows else []
    if done["dry_run"]:
        return "\n".join([*lines, f"Would purge {versions}, {bytes_}. Nothing was changed."])
    word = "To be purged:" if done["state"] == "waiting" else "Purged"
    lines.append(f"{word} {versions}, {bytes_}.")
    return "\n".join([*lines, *_unfinished(done)])


def _unfinished(done: dict[str, Any]) -> list[str]:
    lines = []
    if done["state"] == "waiting":
        told = "the bodies go once the replica has accepted it (`syncd sync`, or the daemon)."
        lines.append(render.labelled("Waiting: ", told, "yellow"))
    for path in done.get("not_cleaned", []):
        told = f"{path} may still hold it. It is tried again with `syncd retention run`; "
        told += "a damaged copy is yours to delete."
        lines.append(render.labelled("Not cleaned: ", told, "red"))
    return lines


@click.command()
@id_argument
@click.option("--reason", callback=not_empty, help="Why; it is kept in the log.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@verb
def erase(app: App, checkpoint_id: str, reason: str | None, yes: bool) -> None:
    """Remove the bodies of all versions of a checkpoint, everywhere.

    From this machine, its backups, the replica and all other machines. Header, hash and chain stay,
    so that the log can still be verified. This cannot be undone.
    """
    from syncd import retention as keeping

    full_id = app.node.checkpoint_id(checkpoint_id)
    if not yes:
        _confirm(full_id)
    warn_on_stderr()
    done = keeping.erase(app.node, full_id, reason or "")
    app.emit(done, lambda: _erased(done))


def _confirm(checkpoint_id: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "erasing cannot be undone, and there is no terminal to ask",
            "Repeat the command with --yes.",
        )
    click.confirm(
        f"Erase the content of checkpoint {checkpoint_id} on every machine, for ever?",
        abort=True,
        err=True,
    )


def _erased(done: dict[str, Any]) -> str:
    versions = render.count(done["purged"], "version", "versions")
    if done["state"] == "waiting":
        first = f"{versions} of {done['id']} to be erased."
    elif done["purged"]:
        first = f"Erased {versions} of {done['id']}: {render.size(done['bytes'])}."
    else:
        first = f"Nothing is left of {done['id']} but its header, hash and chain."
    return "\n".join([first, *_unfinished(done)])
