"""`syncd hook`: what agents' hosts call at their events."""

from __future__ import annotations

import click

from syncd.cli.verb import App, verb
from syncd.errors import UsageError
from syncd.hooks.events import CLAUDE_CODE, HOSTS


@click.command()
@click.argument("host", type=click.Choice(HOSTS))
@click.option(
    "--status-line", is_flag=True,
    help="Claude Code's status line: note context and cost, then run COMMAND, if there is one.",
)  # fmt: skip
@click.argument("command", nargs=-1)
@click.pass_context
@verb
def hook(
    app: App, ctx: click.Context, host: str, status_line: bool, command: tuple[str, ...]
) -> None:
    """Take in one event of an agent's host, from standard input.

    `syncd setup` has the hosts call this; nobody else needs to. It records what was asked, which
    files were touched, what is done and pending, and the last test result; never a transcript. At
    the start of a session it answers with the resume prompt. It exits with 0 whatever happens:
    `syncd status` tells what went wrong.
    """
    from syncd.config import home
    from syncd.hooks.main import Call, run, shell_command

    if status_line and host != CLAUDE_CODE:
        raise UsageError(f"{host} has no status line that syncd knows", "Leave --status-line out.")
    if command and not status_line:
        raise UsageError("COMMAND is for --status-line", "See `syncd hook --help`.")
    original = shell_command(command) if command else None
    ctx.exit(run(Call(host, home(app.named_home), status_line, original)))
