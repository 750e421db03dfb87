"""`syncd recover`: go on with a task after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from syncd.cli import printing, render
from syncd.cli.resume import program, rooms_of, show
from syncd.cli.verb import App, task_argument, verb, warn, warn_on_stderr
from syncd.errors import UsageError

if TYPE_CHECKING:
    from syncd.recovery import Recovery


@click.command()
@task_argument
@click.option("--takeover", is_flag=True, help="Go on in place of the agent that had it.")
@click.option("--restart", is_flag=True, help="Begin from scratch; what there is stays in the log.")
@click.option(
    "--agent", envvar="SYNCD_AGENT", default="",
    help="Who goes on (else the agent before; with --takeover, you).",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Although its agent was seen, or much was done.")
@click.option(
    "--max-chars", type=click.IntRange(0), metavar="N", help="At most so many characters of prompt."
)
@click.option(
    "--for", "host", type=click.Choice(["claude-code", "codex", "plain"]), default="plain",
    show_default=True, help="A prompt of as much as this host takes in.",
)  # fmt: skip
@click.pass_context
@verb
def recover(
    app: App,
    ctx: click.Context,
    task: str | None,
    takeover: bool,
    restart: bool,
    agent: str,
    force: bool,
    max_chars: int | None,
    host: str,
) -> None:
    """Go on with a task after a crash.

    Finds the newest checkpoint that is intact, mends damaged ones from the replica's copy, and
    prints the prompt to go on. Without one left, the task is marked blocked (exit 5).
    """
    from syncd.recovery import RESTART, RESUME, TAKEOVER, Wish
    from syncd.recovery import recover as recovered

    if takeover and restart:
        raise UsageError("--takeover and --restart exclude each other", "Use one of them.")
    warn_on_stderr()
    mode = TAKEOVER if takeover else RESTART if restart else RESUME
    rooms = rooms_of(host, max_chars)
    name = app.task(task)
    done = recovered(app.node, Wish(name, mode, agent, force, Path.cwd(), program(), rooms))
    if app.json:
        app.emit(done.document())
    elif done.found:
        show(done.found.prompt, rooms)
    _tell(app, name, done)
    if done.found is None:
        ctx.exit(5)


def _tell(app: App, task: str, done: Recovery) -> None:
    """What a person should know of it, beside the prompt."""
    for mended in done.mended.entries:
        which = f"entry {mended['entry_id']}: " if mended["entry_id"] else ""
        printing.say(render.labelled("Mended: ", f"{which}{mended['problem']}", err=True))
    for file in done.aside.files:
        printing.say(render.labelled("Put aside: ", file, err=True))
    for problem in done.aside.problems:
        warn(problem)
    app.say_skipped(done.usable.skipped)
    for lost in done.mended.lost:
        warn(lost)
    if done.usable.broken:
        warn("the line of parents is broken: this is the newest one left, by its time alone")
    if done.mended.unreachable and (done.usable.skipped or done.mended.lost):
        warn(f"the replica could not be asked for good copies: {done.mended.unreachable}")
    if done.tenure and done.tenure.provisional:
        warn("the replica could not be asked whether another was faster: this holds for now")
    if done.found and (left := done.found.unverified):
        count = render.count(len(left), "claim is", "claims are")
        warn(f"{count} UNVERIFIED, of {len(done.found.found.claims)}")
    if done.escalation:
        said = done.escalation
        warn(f"{task} is blocked: {said['reason']}")
        warn(f"{said['to']} has to decide {said['decision_needed']}")
