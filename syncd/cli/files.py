"""`syncd import`, `export` and `watch`: the files that other tools keep checkpoints in."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import printing, render
from syncd.cli.bars import bars
from syncd.cli.verb import App, complete_tasks, until_interrupted, verb, warn

if TYPE_CHECKING:
    from syncd.intake import Format, Tally
    from syncd.watching import Event

_FORMATS = ("markdown", "agent-json", "builder-state", "reference")
_SHOWN = 10
_STEPS = {"read": "Reading", "import": "Importing"}
_task = click.option(
    "--task", envvar="SYNCD_TASK", shell_complete=complete_tasks,
    help="The task of what names none itself.",
)  # fmt: skip
_form = click.argument("form", metavar="FORMAT", type=click.Choice(_FORMATS))
_existing = click.Path(exists=True, path_type=Path)


class _Destination(click.Path):
    """An empty shell variable must not mean the current directory."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not str(value).strip():
            self.fail("the path is empty; the current directory is called `.`", param, ctx)
        return super().convert(value, param, ctx)


@click.command("import")
@_form
@click.argument("path", type=_existing)
@_task
@click.pass_context
@verb
def import_(app: App, ctx: click.Context, form: str, path: Path, task: str | None) -> None:
    """Take in checkpoints from files.

    FORMAT is markdown (AGENT_*.md), agent-json (one file for each agent), builder-state
    (builder-state.json) or reference (TASK/ID.json); PATH a file, or a directory with all below it.
    A file that was taken in before and has not changed is left alone; one whose name is almost that
    of the format is passed over, and named. Exits with 1 if one could not
    be read; the others are taken in all the same.
    """
    from syncd.intake import FORMATS, Intake

    with bars(app, _STEPS) as progress:
        done = Intake(app.service, task or "").everything(FORMATS[form], path, progress)
    app.emit(done.document(), lambda: _counted(done))
    _tell(done)
    _tell_missed(done, FORMATS[form], path)
    if done.failed:
        ctx.exit(1)


def _counted(done: Tally) -> str:
    taken = render.count(done.imported, "checkpoint", "checkpoints")
    return f"Took in {taken}; {done.unchanged:,} unchanged, {len(done.failed):,} failed."


def _tell(done: Tally) -> None:
    for failure in done.failed[:_SHOWN]:
        place = f"{failure.path}, line {failure.line}" if failure.line else failure.path
        printing.say(render.labelled("Failed: ", f"{place}: {failure.message}", "red", err=True))
    for note in done.notes[:_SHOWN]:
        warn(note)
    for kind, found in (("failures", done.failed), ("notes", done.notes)):
        if more := len(found[_SHOWN:]):
            warn(f"{more:,} more {kind}: --json lists them all")


def _tell_missed(done: Tally, form: Format, place: Path) -> None:
    """What the user may have meant, too."""
    for path in done.passed_over[:_SHOWN]:
        words = f"as the name is not {form.called}: {path}"
        printing.say(render.labelled("Passed over, ", words, "yellow", err=True))
    if more := len(done.passed_over[_SHOWN:]):
        warn(f"{more:,} more were passed over: --json lists them all")
    if done.nothing and place.is_dir():
        warn(f"nothing was found below {place}: {form.name} files are called {form.called}")


@click.command()
@_form
@click.argument("path", type=_Destination(path_type=Path))
@click.option("--task", envvar="SYNCD_TASK", shell_complete=complete_tasks,
              help="The task (else that of this repository).")  # fmt: skip
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help="All its checkpoints, not only the newest; a reference store gets all.",
)
@click.option(
    "--place", default="", help="Where in a builder-state file (else activePrd): adhocQueue[N]."
)
@verb
def export(app: App, form: str, path: Path, task: str | None, whole: bool, place: str) -> None:
    """Write a task's newest checkpoint to files that other tools read.

    PATH is a directory; for builder-state an existing file, of which nothing else changes.
    """
    from syncd.outlet import exported

    name = app.task(task, "Add --task NAME")
    written = exported(app.service, form, path, name, whole=whole, within=place)
    app.emit({"exported": [str(file) for file in written]}, "\n".join(map(str, written)))


@click.command()
@click.argument("paths", nargs=-1, required=True, type=_existing, metavar="PATH...")
@_task
@verb
def watch(app: App, paths: tuple[Path, ...], task: str | None) -> None:
    """Take in what agents write into files, until Ctrl-C.

    What is there already is taken in first. The daemon does the same for the paths of the setting
    watch.paths.
    """
    from syncd.watching import Watcher

    app.service  # noqa: B018 (warnings go to standard error from here on)
    watcher = Watcher(app.node, paths, task or "")
    with until_interrupted():
        watcher.run(threading.Event(), lambda event: _say(app, event))


def _say(app: App, event: Event) -> None:
    if app.json:
        printing.show(json.dumps(event._asdict(), ensure_ascii=False))
    elif event.what == "unreadable":
        place = f"{event.path}, line {event.line}" if event.line else event.path
        warn(f"{place}: {event.message}")
    elif event.what == "restored":
        warn(f"{event.path}: {event.message}")
    elif event.what == "passed over":
        warn(f"Passed over, as {event.message}: {event.path}")
    elif event.what != "unchanged":
        printing.show(f"{event.what:<10} {event.path}")
    sys.stdout.flush()
