"""`syncd cloud`: a PostgreSQL of one's own."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from syncd.cli.verb import App, verb, warn_of_password

if TYPE_CHECKING:
    from syncd.embedded import Server


@click.group()
def cloud() -> None:
    """Run a PostgreSQL of your own, to try out a replica."""


@cloud.command()
@click.option("--port", type=click.IntRange(1, 65_535), help="Listen here (else a free port).")
@verb
def up(app: App, port: int | None) -> None:
    """Start the embedded PostgreSQL; the first time, create it.

    It takes connections from this machine only, keeps its port, and runs until `syncd cloud down`.
    Its passwords stay in a file that only you can read. Needs `pip install 'syncd[embedded]'`.
    """
    from syncd import embedded

    server = embedded.up(port=port or 0)
    app.emit(_document(server), f"{_lines(server)}\n{_next(server)}")


@cloud.command()
@verb
def down(app: App) -> None:
    """Stop the embedded PostgreSQL; its data stays."""
    from syncd import embedded

    stopped = embedded.down()
    app.emit({"stopped": stopped}, "Stopped." if stopped else "It was not running.")


@cloud.command()
@verb
def status(app: App) -> None:
    """Say whether the embedded PostgreSQL runs, and where."""
    from syncd import embedded

    server = embedded.status()
    if server is None:
        app.emit({"running": False}, "There is no embedded PostgreSQL. Create it: syncd cloud up")
    else:
        app.emit(_document(server), _lines(server))


def _document(server: Server) -> dict[str, Any]:
    return {**server._asdict(), "pgdata": str(server.pgdata)}


def _lines(server: Server) -> str:
    state = "runs" if server.running else "is stopped"
    return (
        f"PostgreSQL {server.version} {state}, port {server.port} of 127.0.0.1\n"
        f"Data        {server.pgdata}\n"
        f"Admin DSN   {server.admin_dsn}"
    )


def _next(server: Server) -> str:
    return (
        "Prepare it for syncd:\n"
        f"  export SYNCD_ADMIN_DSN={shlex.quote(server.admin_dsn)}\n"
        "  syncd cloud migrate"
    )


@cloud.command()
@click.argument("dsn", required=False)
@verb
def migrate(app: App, dsn: str | None) -> None:
    """Install the replica's schema in a database, or bring it up to date.

    DSN is an administrator's; without it, SYNCD_ADMIN_DSN is used. The role need not be a
    superuser: CREATEROLE, and CREATE on the database, are enough.
    """
    from syncd.cli.admin import administration

    warn_of_password(app, dsn)
    with administration(app, dsn) as replica:
        applied = replica.migrate()
        version = replica.version()
    done = f"Applied {', '.join(applied)}." if applied else "It is up to date."
    document = {"schema_version": version, "applied": applied}
    app.emit(document, f"{done} Schema {version}.\nNext: syncd admin org create NAME")
