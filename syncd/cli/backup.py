"""`syncd backup`: copies of the database."""

from __future__ import annotations

from typing import Any

import click

from syncd import backup as backups
from syncd import loss
from syncd.cli import render
from syncd.cli.verb import App, verb


@click.group()
def backup() -> None:
    """Copy and restore the database."""


@backup.command()
@click.pass_context
@verb
def create(app: App, ctx: click.Context) -> None:
    """Copy the database while it is in use.

    The newest ten are kept (backup.keep). A copy of a damaged database is named so, takes no
    intact one's place, and exits 5.
    """
    app.node.store  # noqa: B018 (makes the home)
    made = app.node.back_up()
    app.emit(_document(made), str(made.path))
    if not made.intact:
        click.echo(
            click.style("Warning: ", fg="red")
            + "the database has damaged entries, and so has this copy: `syncd audit verify`",
            err=True,
        )
        ctx.exit(5)


@backup.command("list")
@verb
def list_(app: App) -> None:
    """List the backups, newest first."""
    found = backups.available(app.node.home / "backups")
    held = [backups.entries(b) for b in found]
    rows = [
        (b.name, b.created_at, "?" if entries is None else f"{entries:,}", render.size(b.bytes),
         "yes" if b.intact else "NO")
        for b, entries in zip(found, held, strict=True)
    ]  # fmt: skip
    documents = [{**_document(b), "entries": n} for b, n in zip(found, held, strict=True)]
    columns = ("NAME", "CREATED", "ENTRIES", "SIZE", "INTACT")
    app.emit(documents, lambda: render.table(columns, rows, whole=("NAME",)))


@backup.command()
@click.argument("name")
@verb
def restore(app: App, name: str) -> None:
    """Put a backup in the database's place; what it replaces is kept.

    NAME is one of `syncd backup list`, or a path. A damaged backup is refused.
    """
    from syncd import sealing

    node = app.node
    if loss.is_gone(node.home):  # what is put in its place has to have one
        node.store  # noqa: B018 (makes it)
        node.close()
    done = backups.restore(node.database, node.home / "backups", name, node.vault)
    node.key  # noqa: B018 (the copy may be from before the key was changed)
    sealing.complete(node)  # or from before encryption was turned on
    document = {
        "entries": done.entries,
        "only_in_replaced": done.only_in_replaced,
        "replaced": str(done.replaced),
    }
    text = f"Restored {render.count(done.entries, 'entry', 'entries')}."
    text += f" The database before is kept in {done.replaced}"
    if done.only_in_replaced:
        text += f"\nOnly there: {render.count(done.only_in_replaced, 'entry', 'entries')}"
        configured = node.settings["cloud.dsn"]
        text += "; those the replica has come back at the next sync." if configured else "."
    app.emit(document, lambda: render.wrapped(text))


def _document(item: backups.Backup) -> dict[str, Any]:
    return {**item._asdict(), "path": str(item.path)}
