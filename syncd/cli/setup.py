"""`syncd setup`: make syncd known to an agent's host."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render
from syncd.cli.resume import program
from syncd.cli.verb import App, verb, warn
from syncd.errors import UsageError

if TYPE_CHECKING:
    from syncd.setup.hosts import Scope
    from syncd.setup.main import Result

_HOSTS = ("claude-code", "codex", "opencode")
_NEXT = {
    "claude-code": "Start Claude Code anew.",
    "codex": "Start Codex anew; it asks once whether to trust the hooks (/hooks).",
    "opencode": "Start OpenCode anew.",
}


@click.command()
@click.argument("host", metavar="HOST", type=click.Choice(_HOSTS))
@click.option("--check", is_flag=True, help="Only say what is missing or differs (exit 3).")
@click.option("--remove", is_flag=True, help="Take out what was installed, and nothing else.")
@click.option("--user", is_flag=True, help="For you, in every repository (the default).")
@click.option("--project", is_flag=True, help="For all who work in this repository.")
@click.pass_context
@verb
def setup(
    app: App, ctx: click.Context, host: str, check: bool, remove: bool, user: bool, project: bool
) -> None:
    """Install hooks, tools and a skill for an agent's host.

    HOST is claude-code, codex or opencode. Claude Code gets a status line too, or keeps its own.
    Settings that are there stay as they are; run it again at any time, and after syncd has moved.
    """
    from syncd import config
    from syncd.setup import main
    from syncd.setup.hosts import HOSTS

    if (check and remove) or (user and project):
        pair = "--check and --remove" if check and remove else "--user and --project"
        raise UsageError(f"{pair} exclude each other", "Leave one of them out.")
    home = config.home(app.named_home)
    pieces = HOSTS[host](_scope(home, project))
    do = main.check if check else main.remove if remove else main.install
    results = do(home, pieces)
    notices = [] if check or remove else _notices(home, host, project)
    drift = check and any(r.state in (main.MISSING, main.DIFFERS) for r in results)
    app.emit(_document(host, project, results, notices), lambda: _text(results))
    for notice in notices:
        warn(notice)
    if not app.json and not check and any(r.state in _DONE for r in results):
        click.echo(
            _NEXT[host].partition("; ")[0].rstrip(".") + "." if remove else _NEXT[host], err=True
        )
    ctx.exit(3 if drift else 0)


_DONE = ("installed", "updated", "removed")


def _scope(home: Path, project: bool) -> Scope:
    from syncd import config, workspace
    from syncd.setup.hosts import Scope

    if project:
        return Scope(workspace.find(Path.cwd()) or Path.cwd(), ["syncd"])
    elsewhere = [] if home == config.default_home() else ["--home", str(home)]
    called = program()
    if not Path(called[0]).is_absolute():  # found by a PATH that hosts need not have
        called = [sys.executable, "-P", "-m", "syncd"]
    return Scope(None, [*called, *elsewhere])


def _notices(home: Path, host: str, project: bool) -> list[str]:
    from syncd import workspace

    told = []
    if project and workspace.find(Path.cwd()) is None:
        told.append(
            f"{Path.cwd()} is in no git repository: it was installed for this folder alone, and "
            "nobody gets it with a clone"
        )
    if not find_spec("mcp"):
        told.append("the tools need the extra `mcp`: pip install '.[mcp]'")
    if _elsewhere(home, host, not project):
        here, there = ("--project", "--user") if project else ("--user", "--project")
        told.append(
            f"it is installed with {there} too, so every event would be told twice: "
            f"`syncd setup {host} --remove {here}`, or {there}"
        )
    return told


def _elsewhere(home: Path, host: str, project: bool) -> bool:
    """Whether the other scope tells of events as well."""
    from syncd.formats.reading import FormatError
    from syncd.setup import main
    from syncd.setup.hosts import HOSTS

    events, *_ = HOSTS[host](_scope(home, project))
    with suppress(FormatError):  # what nobody can read tells nobody anything
        return main.check(home, [events])[0].state != main.MISSING
    return False


def _document(
    host: str, project: bool, results: list[Result], notices: list[str]
) -> dict[str, Any]:
    return {
        "host": host,
        "scope": "project" if project else "user",
        "files": [{"path": str(r.path), "what": r.what, "state": r.state} for r in results],
        "notices": notices,
    }


def _text(results: list[Result]) -> str:
    rows = [(r.what, r.state, str(r.path)) for r in results]
    return render.table(("WHAT", "STATE", "FILE"), rows)
