"""`syncd loop`: run an agent's command until its task is complete."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from syncd.cli import printing, render
from syncd.cli.resume import program
from syncd.cli.verb import App, Number, verb
from syncd.errors import UsageError

if TYPE_CHECKING:
    from syncd.loop import Report

# Exit codes: the work is done, it wants a person, or it failed.
_ATTENTION = ("blocked", "budget", "iterations", "no_progress", "taken")
_WORDS = {
    "complete": "The task is complete.",
    "blocked": "Stopped: the task is blocked and needs a person.",
    "budget": "Stopped: the budget is spent.",
    "iterations": "Stopped: that was the last iteration allowed (--max-iterations).",
    "no_progress": "Stopped: three runs completed nothing and changed nothing.",
    "taken": "Stopped: the work is another machine's. To take it over: `syncd recover "
    "{task} --takeover`.",
    "same_error": "Stopped: the same error came five times in a row.",
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--task", envvar="SYNCD_TASK", help="The task (else that of this repository).")
@click.option("--max-iterations", type=click.IntRange(1), default=20, show_default=True,
              help="How many runs at most.")  # fmt: skip
@click.option("--timeout", "minutes", type=Number(0, min_open=True), default=60.0,
              show_default=True, help="Minutes that one run may take.")  # fmt: skip
@click.option("--budget", type=click.IntRange(1), metavar="TOKENS",
              help="Stop above so many tokens (else the task's own budget).")  # fmt: skip
@click.option("--agent-type", default="implementation", show_default=True,
              help="Which agent begins.")  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
@verb
def loop(
    app: App,
    ctx: click.Context,
    task: str | None,
    max_iterations: int,
    minutes: float,
    budget: int | None,
    agent_type: str,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND in fresh contexts until its task is complete.

    Each run gets the resume prompt on standard input, in place of {prompt} in COMMAND, or in the
    file that {prompt_file} and SYNCD_PROMPT_FILE name. SYNCD_TASK, SYNCD_AGENT, SYNCD_SESSION and
    SYNCD_ITERATION tell it who it is. If it writes no checkpoint, one is written for it.
    """
    from syncd import config
    from syncd.loop import Limits, Loop, Plan, Watcher

    node, name = app.node, app.task(task, "Add --task NAME")
    by_type = config.commands(node.home / "config.toml")
    for words in (command, *by_type.values()):
        _check(words[0])
    plan = Plan(
        name, command, agent_type, Path.cwd(), Limits(max_iterations), minutes * 60,
        budget or _own_budget(app, name), node.settings["loop.pause_seconds"],
        by_type, program(),
    )  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    printing.release()  # it may go on for hours
    with closing(_Screen()) as screen:
        done = Loop(app.service, plan, Watcher(screen.show, screen.progress)).run()
    app.emit(done._asdict(), lambda: _told(done, quote(name)))
    if done.stopped != "complete":
        ctx.exit(3 if done.stopped in _ATTENTION else 1)


def _interrupt(number: int, _frame: object) -> None:
    """Whatever ends the loop ends the agent too, and leaves a checkpoint."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _check(word: str) -> None:
    if shutil.which(word) is None:
        raise UsageError(f"there is no program {word!r}", "Name one that is on the PATH.")


def _own_budget(app: App, task: str) -> int | None:
    row = app.node.store.row("task", (task,))
    return row[2] if row else None


class _Screen:
    """What the command says goes to standard error: standard output is for the result. On a
    terminal a line of progress stands below it, until something else needs the place."""

    def __init__(self) -> None:
        self._terminal = printing.moves(sys.stderr)
        self._drawn = False
        self._fresh = True  # whether the command has ended its line

    def show(self, data: bytes) -> None:
        self.clear()
        sys.stderr.buffer.write(data)
        sys.stderr.buffer.flush()
        self._fresh = data.endswith((b"\n", b"\r")) if data else self._fresh

    def progress(self, line: str) -> None:
        if self._terminal:
            begin = "\r\033[K" if self._fresh else "\n"
            fitting = line[: max((render.width(sys.stderr) or 80) - 1, 1)]
            shown = printing.painted(click.style(fitting, dim=True))
            printing.over(f"{begin}{shown}", err=True)
            self._drawn = self._fresh = True

    def clear(self) -> None:
        if self._drawn:
            printing.over("\r\033[K", err=True)
            self._drawn = False

    def close(self) -> None:
        """Whatever comes next begins a line."""
        self.clear()
        if self._terminal and not self._fresh:
            click.echo(err=True)
            self._fresh = True


def _told(done: Report, task: str) -> str:
    runs = render.count(done.iterations, "run", "runs")
    lines = [f"{_WORDS[done.stopped].format(task=task)} {runs}, {done.seconds:g} s."]
    if failure := _failure(done):
        lines.append(render.clean(failure))
    if said := done.escalation:
        waits = f"The task waits for {said['to']}, to decide {said['decision_needed']}"
        lines.append(render.clean(f"{waits}."))
    if done.tokens:
        lines.append(f"The task has taken {done.tokens:,} tokens so far, earlier runs included.")
    if not done.iterations and done.stopped == "complete":
        more = f"--task {task} --status in_progress --pending 'WHAT IS LEFT'"
        lines.append(f"If more is to be done: `syncd checkpoint create --continue {more}`")
    if done.stopped != "complete":
        newest = f"Newest checkpoint: {done.checkpoint_id}; " if done.checkpoint_id else ""
        lines.append(f"{newest}`syncd resume {task}` shows what is next.")
    return "\n".join(lines)


def _failure(done: Report) -> str:
    """How the last run ended, if not well."""
    if done.outcomes[-1:] == ["timed_out"]:
        how = "The last run took too long"
    elif done.exit_code < 0:
        how = f"The last run was ended by signal {-done.exit_code}"
    elif done.exit_code:
        how = f"The last run ended with exit code {done.exit_code}"
    elif done.error:
        how = "The last run failed"
    else:
        return ""
    return f"{how}: {done.error}" if done.error else f"{how}."
