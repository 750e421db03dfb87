"""`syncd agents`, `heartbeat`, `invocations`: who is at work, and who started whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, complete_tasks, verb


def _task_option(words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--task", default="", shell_complete=complete_tasks, help=words)


@click.command()
@click.option(
    "--all", "everything", is_flag=True,
    help="Those too that gave signs of life and need give none now.",
)  # fmt: skip
@_task_option("Only those at work on this task.")
@verb
def agents(app: App, everything: bool, task: str) -> None:
    """List who is at work, on every machine, and who has fallen silent.

    What is known of other machines is as of the last exchange with the replica.
    """
    from syncd import agents as known

    found = known.listed(app.node, everything=everything, task_id=task)
    app.emit(found, lambda: _table(found))


def _table(found: list[dict[str, Any]]) -> str:
    columns = ("AGENT", "TASK", "STATE", "LAST SEEN", "NEXT", "TYPE", "SESSION", "DEVICE")
    rows = [
        (a["agent_id"], a["task_id"], _state(a), a["last_seen"], a["next_expected"],
         a["agent_type"], a["session_id"], a["device_id"])
        for a in found
    ]  # fmt: skip
    spare = ("SESSION", "TYPE", "NEXT", "DEVICE")
    return render.table(columns, rows, spare=spare, elsewhere="--json", empty="Nobody is at work.")


def _state(agent: dict[str, Any]) -> str:
    words = "presumed crashed" if agent["state"] == "crashed" else agent["state"]
    return f"{words} ({agent['why']})" if agent["why"] else words


@click.command()
@click.option("--agent", required=True, envvar="SYNCD_AGENT", help="Who is alive.")
@click.option("--task", default="", envvar="SYNCD_TASK", shell_complete=complete_tasks,
              help="What it works on (else all that it has here).")  # fmt: skip
@click.option("--agent-type", default="", envvar="SYNCD_AGENT_TYPE", help="What kind of agent.")
@click.option("--session", default="", envvar="SYNCD_SESSION", help="Its session.")
@click.option("--started-by", default="", metavar="NAME", help="Who started it.")
@click.option("--ended", is_flag=True, help="It has ended in good order: nobody need miss it.")
@verb
def heartbeat(
    app: App, agent: str, task: str, agent_type: str, session: str, started_by: str, ended: bool
) -> None:
    """Say that an agent is alive.

    Checkpoints say so too. Whoever says nothing for half an hour is warned in its inbox, and
    presumed to have crashed after an hour.
    """
    from syncd import clock, presence

    if ended:
        presence.ended(app.node, agent, task)
        document = {"agent_id": agent, "task_id": task, "state": "ended"}
        app.emit(document, f"{render.clean(agent)} has ended.")
        return
    sign = presence.heartbeat(app.node, agent, task, agent_type, session, started_by)
    until = clock.iso(int(sign.seen_ms + presence.minutes_ms(app.node, "heartbeat")))
    document = {
        **sign._asdict(), "state": "active", "last_seen": clock.iso(sign.seen_ms),
        "next_expected": until,
    }  # fmt: skip
    del document["seen_ms"]
    app.emit(document, f"{render.clean(agent)} is alive; the next sign is expected by {until}.")


@click.command()
@_task_option("Only those for this task.")
@click.option("--agent", default="", help="Only those of this agent, as either side.")
@verb
def invocations(app: App, task: str, agent: str) -> None:
    """List who started whom, and when."""
    from syncd import invocations as known

    found = known.listed(app.node, task, agent)
    columns = ("TIME", "STARTED", "TYPE", "BY", "TASK", "SESSION", "DEVICE")
    names = ("at", "started", "agent_type", "by", "task_id", "session_id", "device_id")
    rows = [tuple(one[name] for name in names) for one in found]
    app.emit(found, lambda: render.table(
        columns, rows, spare=("DEVICE", "SESSION", "TYPE"), elsewhere="--json"))  # fmt: skip
