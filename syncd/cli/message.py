"""`syncd message`, `inbox`: what agents are told."""

from __future__ import annotations

from typing import Any

import click

from syncd.cli import render
from syncd.cli.verb import App, complete_tasks, verb, warn_on_stderr


@click.group()
def message() -> None:
    """Tell an agent something, or say that it was read."""


@message.command()
@click.option("--to", required=True, metavar="AGENT", help="Whom to tell.")
@click.option("--task", default="", shell_complete=complete_tasks, help="What it is about.")
@click.option("--from", "sender", default="", envvar="SYNCD_AGENT", help="Who says it (else you).")
@click.option("--subject", default="", help="In a few words.")
@click.option("--action", default="", help="What is asked for.")
@click.argument("text")
@verb
def send(
    app: App, to: str, task: str, sender: str, subject: str, action: str, text: str
) -> None:  # fmt: skip
    """Leave a message in an agent's inbox, on every machine."""
    from syncd import messages

    warn_on_stderr()
    message_id = messages.send(app.node, to, messages.Letter(text, subject, action), task, sender)
    app.emit(messages.document(app.node, messages.find(app.node, message_id)), message_id)


@message.command()
@click.argument("message_id", metavar="ID")
@click.option("--agent", default="", help="The agent that has read it: a sign of life of it, too.")
@verb
def ack(app: App, message_id: str, agent: str) -> None:
    """Say that a message was read."""
    from syncd import messages

    found = messages.document(app.node, messages.acknowledge(app.node, message_id, agent))
    app.emit(found, f"{found['id']} was read.")


@click.command()
@click.argument("agent", envvar="SYNCD_AGENT")
@click.option("--all", "everything", is_flag=True, help="Those that were acknowledged, too.")
@verb
def inbox(app: App, agent: str, everything: bool) -> None:
    """Show what an agent was told and has not acknowledged, newest first."""
    from syncd import messages

    letters = messages.inbox(app.node, agent, everything=everything)
    found = [messages.document(app.node, letter) for letter in letters]
    app.emit(found, lambda: "\n\n".join(map(_letter, found)) or "No unread messages.")


def _letter(letter: dict[str, Any]) -> str:
    lines = [click.style(letter["id"], bold=True)]
    for name, value in (
        ("From", f"{letter['from']}, {letter['at']}"),
        ("Task", letter["task_id"]),
        ("Subject", letter["subject"]),
        ("Action", letter["action"]),
        ("Text", letter["text"]),
        ("Unreadable", letter["problem"]),
        ("Answer", _answer(letter)),
    ):
        if value:
            lines.append(render.wrapped(f"{name:<11} {render.clean(value)}", indent=" " * 12))
    return "\n".join(lines)


def _answer(letter: dict[str, Any]) -> str:
    if letter["acknowledged_at"]:
        return f"read by {letter['acknowledged_by']}, {letter['acknowledged_at']}"
    return letter["acknowledge"] or f"syncd message ack {letter['id']}"
