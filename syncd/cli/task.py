"""`syncd task`: what the checkpoints work towards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, complete_tasks, task_argument, verb, warn_on_stderr


@click.group()
def task() -> None:
    """Describe and list tasks."""


def _description(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--title", help="What it is about."),
        click.option("--description", help="The whole story."),
        click.option(
            "--budget", type=click.IntRange(0), metavar="TOKENS", help="Tokens it may cost."
        ),
        click.option(
            "--retention",
            help="default or forever: keep everything; legal_hold: and erase nothing; days:N: let "
            "go of older versions; revisions:N: of all but the N newest of each checkpoint.",
        ),
        click.option(
            "--status", help="in_progress, waiting, blocked, escalated, complete, failed."
        ),
    ):
        function = option(function)
    return function


@task.command()
@click.argument("task_id", metavar="ID")
@_description
@verb
def add(app: App, task_id: str, **values: Any) -> None:
    """Describe a new task.

    A task also comes into being with its first checkpoint.
    """
    from syncd import tasks

    warn_on_stderr()
    app.emit(tasks.add(app.node, task_id, **values), task_id)


@task.command("set")
@click.argument("task_id", metavar="ID", shell_complete=complete_tasks)
@_description
@verb
def set_(app: App, task_id: str, **values: Any) -> None:
    """Change what is said about a task."""
    from syncd import tasks

    warn_on_stderr()
    app.emit(tasks.change(app.node, task_id, **values), task_id)


@task.command("list")
@verb
def list_(app: App) -> None:
    """List all tasks."""
    from syncd import tasks

    found = tasks.everything(app.node)
    columns = ("ID", "STATUS", "CHECKPOINTS", "TOKENS", "BUDGET", "TITLE")
    rows = [
        (
            t["id"],
            f"{t['status']}, reassign" if t["reassign"] else t["status"],
            t["cost"]["checkpoints"],
            t["cost"]["tokens"],
            t["budget"],
            t["title"],
        )
        for t in found
    ]
    app.emit(found, lambda: render.table(columns, rows))


@task.command()
@task_argument
@verb
def show(app: App, task: str | None) -> None:
    """Show a task's state, heads and cost."""
    from syncd import tasks

    found = tasks.show(app.node, app.task(task))
    app.emit(found, lambda: _text(found))


@task.command()
@task_argument
@verb
def heads(app: App, task: str | None) -> None:
    """List where a task's work stands: more than one head means a fork.

    Newest first: the first one is what `syncd resume` goes on from.
    """
    from syncd import tasks

    found = tasks.heads(app.node, app.task(task))
    columns = ("ID", "AGENT", "PHASE", "STATUS", "PARENT", "TIME")
    names = ("checkpoint_id", "agent_id", "phase", "status", "parent", "created_at")
    rows = [tuple(head[name] for name in names) for head in found]
    app.emit(found, lambda: render.table(columns, rows, spare=("PARENT", "PHASE")))


def _text(task: dict[str, Any]) -> str:
    cost = task["cost"]
    budget = f" of {task['budget']:,}" if task["budget"] else ""
    lines = [
        click.style(task["id"], bold=True) + (f"  {task['title']}" if task["title"] else ""),
        f"Status      {task['status']}",
        f"Tokens      {cost['tokens']:,}{budget}, "
        + render.count(cost["checkpoints"], "checkpoint", "checkpoints"),
        f"Retention   {task['retention']}",
    ]
    if task["description"]:
        lines.append(f"About       {task['description']}")
    if task["reassign"]:
        words = "its agent is presumed to have crashed: another may take over (syncd agents)"
        lines.append(click.style(f"Reassign    {words}", fg="yellow"))
    if len(task["heads"]) > 1:
        lines.append(click.style(f"Forked      {len(task['heads'])} heads", fg="yellow"))
    lines += [f"Head        {head}" for head in task["heads"]]
    if cost["agents"]:
        columns = ("AGENT", "TYPE", "CHECKPOINTS", "TOKENS", "ITERATIONS")
        rows = [tuple(agent.values()) for agent in cost["agents"]]
        lines.append(render.table(columns, rows))
    return "\n".join(lines)
