"""What every command shares: the node it works on, `--json`, and how results are printed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import printing, render
from syncd.errors import UsageError

if TYPE_CHECKING:
    from syncd.node import Node
    from syncd.service import CheckpointService
    from syncd.store import Sealed, Skipped


_MOST = 2**62


class App:
    """One run of the program."""

    def __init__(self, home: Path | None) -> None:
        self.named_home = home
        self.json = False

    @cached_property
    def node(self) -> Node:
        from syncd.node import Node

        node = Node(self.named_home)
        if sys.stdin.isatty():
            node.ask_passphrase = cache(_passphrase)
        return node

    @cached_property
    def service(self) -> CheckpointService:
        from syncd.service import CheckpointService

        warn_on_stderr()
        return CheckpointService(node=self.node)

    def emit(self, document: Any, text: Callable[[], str | None] | str | None = None) -> None:
        """Print the result: the document with --json, else the text made for people."""
        if self.json:
            # A damaged column may hold bytes, which JSON has no form for.
            printing.show(json.dumps(document, indent=2, ensure_ascii=False, default=str))
            return
        shown = text() if callable(text) else text
        if shown is not None:
            printing.show(shown)

    def task(self, task: str | None, how: str = "Name the task") -> str:
        """The task named, else the one of this repository and branch."""
        from syncd import workspace

        if task is not None and not task.strip():
            raise UsageError("the task is empty", "Name a task, or leave it out in a repository.")
        found = task or workspace.task_of(Path.cwd())
        if not found:
            raise UsageError(
                "no task is named, and this is not a git repository",
                f"{how}, or run the command inside the repository it belongs to.",
            )
        return found

    def say_skipped(self, skipped: list[Skipped]) -> list[dict[str, str]]:
        """Tell of each damaged checkpoint that a read passed over."""
        for item in skipped:
            what = f"checkpoint {item.checkpoint_id} (entry {item.entry_id}): {item.problem}"
            printing.say(render.labelled("Skipped: ", what, "red", err=True))
        return [item._asdict() for item in skipped]

    def say_sealed(self, sealed: list[Sealed]) -> None:
        """Tell how many checkpoints a read left out because their keys are not here."""
        if not sealed:
            return
        left = render.count(len(sealed), "checkpoint", "checkpoints")
        what = f"{left} whose key is missing, such as: {sealed[0].problem}. {sealed[0].remedy}"
        printing.say(render.labelled("Left out: ", what, "yellow", err=True))


def _passphrase() -> str:
    return str(click.prompt("Passphrase of the data keys", hide_input=True, err=True))


def warn(text: str) -> None:
    printing.say(render.labelled("Warning: ", text, "yellow", err=True))


def warn_on_stderr() -> None:
    """Warnings go to stderr in one line, whatever stdout carries."""
    import logging

    class Stderr(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warn(record.getMessage())

    logger = logging.getLogger("syncd")
    logger.handlers = [Stderr()]
    logger.propagate = False


@contextmanager
def until_interrupted() -> Iterator[None]:
    """For what goes on until the user has seen enough: Ctrl-C is how it ends, not a failure."""
    printing.release()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)


def _set_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(App).json = True


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command: takes --json, gets the App first."""
    option = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_set_json,
        help="Print one JSON document.",
    )
    return option(click.pass_obj(function))


def not_empty(_: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """An empty shell variable must not mean what leaving the option out means."""
    if value is not None and not value.strip():
        raise UsageError(f"{parameter.opts[0]} is empty", "Give it a value, or leave it out.")
    return value


class Name(click.ParamType[str]):
    """What people call a machine, a member, an organization."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        text = str(value).strip()
        if not text or len(text) > 200 or not text.isprintable():
            self.fail(
                "a name has 1 to 200 characters, none of them a control character", param, ctx
            )
        return text


class Count(click.IntRange):
    """How many at most. More than a database can count to is as many as there are."""

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        return min(int(super().convert(value, param, ctx)), _MOST)


class Number(click.FloatRange):
    """One with bounds. No comparison is true of NaN: every bound would let it through."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def warn_of_password(dsn: str | None) -> None:
    """Others on this machine can see the arguments of a program."""
    from syncd.replica.link import without_password

    if dsn and dsn != "-" and without_password(dsn)[1]:
        warn(
            "a password on the command line can be seen by others; next time use standard input "
            "or the environment"
        )


def complete_tasks(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of task ids."""
    app: App = ctx.find_object(App) or App(None)
    ids = [row[0] for row in app.node.store.rows("task_ids")]
    return [task for task in ids if task.startswith(incomplete)]


def complete_checkpoints(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of checkpoint ids."""
    app: App = ctx.find_object(App) or App(None)
    return app.node.store.find("checkpoint_ids", incomplete)


def task_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument(
        "task", required=False, envvar="SYNCD_TASK", shell_complete=complete_tasks
    )(function)


def id_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("checkpoint_id", metavar="ID", shell_complete=complete_checkpoints)(
        function
    )


def fallback_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--fallback", is_flag=True, help="Pass over damaged checkpoints, and say which."
    )(function)
