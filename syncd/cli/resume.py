"""`syncd resume`: the prompt for whoever goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, task_argument, verb, warn
from syncd.running import program as program

if TYPE_CHECKING:
    from syncd.resume import Resumption
    from syncd.resume.fit import Room

_LISTED = 20


@click.command()
@task_argument
@click.option(
    "--max-chars", type=click.IntRange(0), metavar="N", help="At most so many characters."
)
@click.option(
    "--format", "form", type=click.Choice(["markdown", "json"]), default="markdown",
    show_default=True, help="json: with claims, stale files and what was left out.",
)  # fmt: skip
@click.option(
    "--for", "host", type=click.Choice(["claude-code", "codex", "plain"]), default="plain",
    show_default=True, help="As much as this host takes in.",
)  # fmt: skip
@click.option("--agent", envvar="SYNCD_AGENT", help="Who goes on (else the agent before).")
@click.option("--strict", is_flag=True, help="Exit with 5 if anything is UNVERIFIED.")
@click.pass_context
@verb
def resume(
    app: App,
    ctx: click.Context,
    task: str | None,
    max_chars: int | None,
    form: str,
    host: str,
    agent: str | None,
    strict: bool,
) -> None:
    """Print the prompt to go on with a task.

    It says what is done, decided and next, and how to write checkpoints. What the newest intact
    checkpoint claims is compared with the repository here and marked VERIFIED or UNVERIFIED.
    """
    from syncd.resume import Reader, resumed

    rooms = rooms_of(host, max_chars)
    reader = Reader(Path.cwd(), program(), agent or "", rooms)
    found = resumed(app.node, app.task(task), reader)
    app.json = app.json or form == "json"
    if app.json:
        app.emit(found.document())
    else:
        show(found.prompt, rooms)
    _warn(app, found)
    if strict and found.unverified:
        ctx.exit(5)


def rooms_of(host: str, max_chars: int | None) -> list[Room]:
    from syncd.resume.fit import CLAUDE_CODE, CODEX, Room

    rooms = {"claude-code": [CLAUDE_CODE], "codex": [CODEX]}.get(host, [])
    return rooms if max_chars is None else [*rooms, Room(max_chars)]


_VERDICTS = re.compile(r"\b(?:UN)?VERIFIED\b|^#.*$", re.M)


def show(prompt: str, rooms: list[Room]) -> None:
    """With a last line break if there is room for one. Colours, on a terminal, are no text."""
    shown = _VERDICTS.sub(lambda found: _coloured(found[0]), prompt)
    printing.show(shown, nl=bool(prompt) and all(room.holds(f"{prompt}\n") for room in rooms))


def _coloured(word: str) -> str:
    if word.startswith("#"):
        return click.style(word, bold=True)
    return click.style(word, fg="green" if word == "VERIFIED" else "yellow")


def _warn(app: App, found: Resumption) -> None:
    app.say_skipped(found.found.skipped)
    if stale := found.found.stale:
        names = ", ".join(map(render.clean, stale[:_LISTED]))
        more = f" and {len(stale) - _LISTED} more" if len(stale) > _LISTED else ""
        warn(f"the checkpoint may be stale, these changed since: {names}{more}")
    if open_ones := found.unverified:
        count = render.count(len(open_ones), "claim is", "claims are")
        warn(f"{count} UNVERIFIED, of {len(found.found.claims)}")
