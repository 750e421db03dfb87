"""`syncd task`: what the checkpoints work towards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, complete_tasks, task_argument, verb, warn_on_stderr
from syncd.errors import UsageError

_HEADS, _SEGMENTS = 5, 12


@click.group()
def task() -> None:
    """Describe and list tasks, decide about them."""


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

    if not any(value is not None for value in values.values()):
        raise UsageError("nothing to change was given", "`syncd task set --help` lists it.")
    warn_on_stderr()
    app.emit(tasks.change(app.node, task_id, **values), task_id)


@task.command("list")
@verb
def list_(app: App) -> None:
    """List all tasks."""
    from syncd import tasks

    found = tasks.everything(app.node)
    app.emit(found, lambda: _table(found))


def _table(tasks: list[dict[str, Any]]) -> str:
    """The states of graphs have a column where there are any."""
    graphs = any(t["states"]["count"] for t in tasks)
    columns = ("ID", "STATUS", "CHECKPOINTS", *(("STATES",) if graphs else ()), "TOKENS", "BUDGET",
               "TITLE")  # fmt: skip
    rows = [
        (t["id"], _status(t), t["cost"]["checkpoints"],
         *((t["states"]["count"],) if graphs else ()), t["cost"]["tokens"], t["budget"], t["title"])
        for t in tasks
    ]  # fmt: skip
    return render.table(columns, rows)


@task.command()
@task_argument
@verb
def show(app: App, task: str | None) -> None:
    """Show a task's state, heads and cost, and draw its chain."""
    from syncd import tasks

    found = tasks.show(app.node, app.task(task))
    found["cost"]["segments"] = tasks.segments(app.node, found["id"])
    app.emit(found, lambda: _text(found) + _chain(app, found))


def _chain(app: App, task: dict[str, Any]) -> str:
    from syncd.cli import chain

    lines = chain.drawn(app.node, task["id"], task["cost"]["checkpoints"])
    return "\n".join(["", "", *lines]) if lines else ""


@task.command()
@task_argument
@click.option("--all", "decided", is_flag=True, help="Those that were decided against too.")
@verb
def heads(app: App, task: str | None, decided: bool) -> None:
    """List where a task's work stands: more than one head means a fork.

    Newest first: the first one that is not fenced off is what `syncd resume` goes on from.
    """
    from syncd import tasks

    found = tasks.heads(app.node, app.task(task), decided=decided)
    columns = ("ID", "AGENT", "PHASE", "STATUS", "PARENT", "TIME", "NOTE")
    names = ("checkpoint_id", "agent_id", "phase", "status", "parent", "created_at")
    rows = [(*(head[name] for name in names), _note(head)) for head in found]
    app.emit(found, lambda: render.table(
        columns, rows, spare=("PARENT", "PHASE"), elsewhere="--json"))  # fmt: skip


def _note(head: dict[str, Any]) -> str:
    """Why the work does not go on from there."""
    marks = (("decided", "decided against"), ("fenced", "its writer had lost the task"))
    return ", ".join(words for name, words in marks if head[name])


@task.command()
@click.argument("words", nargs=-1, required=True, metavar="[TASK] CHECKPOINT")
@verb
def choose(app: App, words: tuple[str, ...]) -> None:
    """Say from which of several heads a task goes on.

    The others stay in the log, and `syncd task heads --all` lists them.
    """
    from syncd import conflicts

    if len(words) > 2:
        raise UsageError("name one checkpoint, after its task if you like")
    chosen = app.node.checkpoint_id(words[-1])
    done = conflicts.choose(app.node, chosen, words[0] if len(words) == 2 else "")
    app.emit(done, lambda: _goes_on(done))


def _goes_on(done: dict[str, Any]) -> str:
    others = render.count(len(done["decided_against"]), "other head", "other heads")
    return f"{done['task_id']} goes on from {done['current']}; {others} decided against."


@task.command()
@task_argument
@click.option("--to", required=True, help="Who has to decide.")
@click.option("--reason", required=True, help="Why the work cannot go on.")
@click.option("--decision", required=True, help="What is to be decided.")
@verb
def escalate(app: App, task: str | None, to: str, reason: str, decision: str) -> None:
    """Say who has to decide what before the work can go on."""
    from syncd import tasks

    warn_on_stderr()
    found = tasks.escalate(app.node, app.task(task), to, reason, decision)
    app.emit(found, lambda: "\n".join(_waiting(found)))


@task.command()
@task_argument
@click.option("--resolution", required=True, help="What was decided.")
@click.option("--by", default="", help="By whom (else you).")
@verb
def resolve(app: App, task: str | None, resolution: str, by: str) -> None:
    """Say what was decided: whoever resumes the task is told."""
    from syncd import tasks

    warn_on_stderr()
    found = tasks.resolve(app.node, app.task(task), resolution, by)
    app.emit(found, lambda: "\n".join(_waiting(found)))


@task.command()
@task_argument
@click.option("--until", default="", metavar="TIME", help="When it is due again (ISO 8601).")
@click.option("--reason", default="", help="Why.")
@verb
def defer(app: App, task: str | None, until: str, reason: str) -> None:
    """Put a task off, until some time or until it is resolved."""
    from syncd import tasks

    warn_on_stderr()
    found = tasks.defer(app.node, app.task(task), until, reason)
    app.emit(found, lambda: "\n".join(_waiting(found)))


def _status(task: dict[str, Any]) -> str:
    words = [str(task["status"])]
    if task["reassign"]:
        words.append("reassign")
    if task.get("deferred", {}).get("due"):
        words.append("due")
    return ", ".join(words)


def _waiting(task: dict[str, Any]) -> Iterator[str]:
    """What it waits for, or waited for."""
    if said := task.get("escalation"):
        yield f"Escalated   to {said['to']} by {said['by']}: {said['reason']}"
        yield f"To decide   {said['decision_needed']}"
    if said := task.get("resolution"):
        was = f" ({said['original_blocker']})" if said["original_blocker"] else ""
        yield f"Resolved    by {said['resolved_by']}: {said['resolution']}{was}"
    if said := task.get("deferred"):
        until = f"until {said['until']}" if said["until"] else "until it is resolved"
        why = f": {said['reason']}" if said["reason"] else ""
        yield f"Deferred    {until}{', due now' if said['due'] else ''}{why}"


def _text(task: dict[str, Any]) -> str:
    cost = task["cost"]
    budget = f" of {task['budget']:,}" if task["budget"] else ""
    lines = [
        click.style(task["id"], bold=True) + (f"  {task['title']}" if task["title"] else ""),
        f"Status      {_status(task)}",
        *_waiting(task),
        f"Tokens      {cost['tokens']:,}{budget}, "
        + render.count(cost["checkpoints"], "checkpoint", "checkpoints"),
        f"Retention   {task['retention']}",
    ]
    if states := task["states"]["count"]:
        of_graph = render.count(states, "state of a graph", "states of a graph")
        lines.insert(-1, f"Thread      {of_graph}, the last one of {task['states']['last_at']}")
    if task["description"]:
        lines.append(f"About       {task['description']}")
    if task["reassign"]:
        words = "its agent is presumed to have crashed: another may take over (syncd agents)"
        lines.append(click.style(f"Reassign    {words}", fg="yellow"))
    if len(task["heads"]) > 1:
        lines.append(click.style(f"Forked      {len(task['heads'])} heads", fg="yellow"))
    lines += [f"Head        {head}" for head in task["heads"][:_HEADS]]
    if more := len(task["heads"][_HEADS:]):
        lines.append(f"            and {more:,} more (syncd task heads)")
    if cost["agents"]:
        columns = ("AGENT", "TYPE", "CHECKPOINTS", "TOKENS", "ITERATIONS")
        rows = [tuple(agent.values()) for agent in cost["agents"]]
        lines.append(render.table(columns, rows))
    if len(cost["segments"]) > len(cost["agents"]):  # else it would say the same again
        lines += ["", render.table(("SEGMENT", "AGENT", "CHECKPOINTS", "TOKENS"), [
            (segment["from"], segment["agent_id"], segment["checkpoints"], segment["tokens"])
            for segment in cost["segments"][-_SEGMENTS:]
        ])]  # fmt: skip
    if more := len(cost["segments"][:-_SEGMENTS]):
        lines.append(f"and {more:,} before those (--json has all)")
    return "\n".join(lines)
