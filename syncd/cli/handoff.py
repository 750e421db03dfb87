"""`syncd handoff`: give work away, and take it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import printing, render
from syncd.cli.resume import program
from syncd.cli.verb import App, Number, until_interrupted, verb, warn

if TYPE_CHECKING:
    from syncd.offers import Offer

# As in `syncd.vocabulary`, which this module does not load to show its help.
_TRIGGERS = ("context_threshold", "phase_complete", "error_threshold", "explicit_request",
             "token_budget", "timeout")  # fmt: skip


@click.group()
def handoff() -> None:
    """Give work to the next agent, here or on another machine."""


@handoff.command()
@click.option("--task", envvar="SYNCD_TASK", help="The task (else that of this repository).")
@click.option("--agent", envvar="SYNCD_AGENT", help="Who gives it away (else who wrote last).")
@click.option(
    "--trigger", type=click.Choice(_TRIGGERS), default="explicit_request", show_default=True,
    help="Why.",
)  # fmt: skip
@click.option("--target", metavar="TYPE", help="For an agent of this type (else as the trigger).")
@click.option("--priority", type=click.IntRange(1, 10), help="10 is the most urgent.")
@verb
def request(
    app: App,
    task: str | None,
    agent: str | None,
    trigger: str,
    target: str | None,
    priority: int | None,
) -> None:
    """Offer a task's work and print the hand-off's id.

    Writes a last checkpoint of the phase `handoff` and the event AGENT_HANDOFF. `syncd handoff
    list --watch` tells of it on every machine.
    """
    from syncd import offering
    from syncd.vocabulary import HandoffTrigger

    name = app.task(task, "Add --task NAME")
    wish = offering.Wish(HandoffTrigger(trigger), agent or "", target, priority)
    made, prompt = offering.request(app.service, name, wish)
    app.emit(made.document(prompt), made.id)


@handoff.command("list")
@click.option("--all", "everything", is_flag=True, help="Those too that were taken, or are past.")
@click.option("--watch", is_flag=True, help="Go on, with a JSON object on a line for each change.")
@verb
def list_(app: App, everything: bool, watch: bool) -> None:
    """List the hand-offs that wait for an agent, the most urgent first."""
    from syncd import offers

    if watch:
        with until_interrupted():
            _watch(app, everything=everything)
        return
    found = offers.everything(app.node)
    shown = found if everything else offers.ready(found)
    app.emit([offer.document() for offer in shown], lambda: _table(shown))


def _watch(app: App, *, everything: bool) -> None:
    """What waits now, then each hand-off again whenever its state has changed."""
    from syncd import offers
    from syncd.daemon.wake import changes

    told: dict[str, str] = {}
    for _ in changes(app.node):
        for offer in offers.everything(app.node):
            known, told[offer.id] = told.get(offer.id), offer.state
            waits = offer.state == offers.OPEN
            if known != offer.state and (everything or waits or known is not None):
                printing.show(json.dumps(offer.document(), ensure_ascii=False))


@handoff.command()
@click.argument("handoff_id", metavar="ID")
@click.option("--agent", envvar="SYNCD_AGENT", required=True, help="Who goes on with the work.")
@click.option("--session", envvar="SYNCD_SESSION", default="", help="Its session.")
@click.option("--by", default="", help="Who starts that agent (else who handed over).")
@click.option(
    "--wait", "seconds", type=Number(0), metavar="SECONDS",
    help="How long to wait for the replica's word (else handoff.confirm_seconds).",
)  # fmt: skip
@verb
def accept(
    app: App, handoff_id: str, agent: str, session: str, by: str, seconds: float | None
) -> None:
    """Take a hand-off and print the prompt to go on with.

    Its checkpoint is verified first. Of several that want it exactly one gets it while the replica
    can be reached; offline it is granted provisionally. Exits with 7 if another holds it.
    """
    from syncd import offers

    taken = offers.accept(app.node, handoff_id, offers.Taker(agent, session, by), seconds)
    prompt = _prompt(app, taken, agent)
    if taken.provisional:
        warn(
            "the replica could not be asked: granted provisionally. If another machine was first, "
            "your work is kept as a branch, and `syncd status` will say so"
        )
    app.emit(taken.document(prompt), prompt)


def _prompt(app: App, taken: Offer, agent: str) -> str:
    from syncd.resume import Reader, resumed

    found = resumed(app.node, taken.task_id, Reader(Path.cwd(), program(), agent))
    app.say_skipped(found.found.skipped)
    return found.prompt


@handoff.command()
@click.argument("handoff_id", metavar="ID")
@click.option("--agent", envvar="SYNCD_AGENT", help="Who has taken it (else its holder).")
@verb
def acknowledge(app: App, handoff_id: str, agent: str | None) -> None:
    """Say that the checkpoint was read and the work goes on from it."""
    from syncd import offers

    done = offers.acknowledge(app.node, handoff_id, agent or "")
    app.emit(done.document(), f"{done.id} is acknowledged: the work goes on.")


def _table(offers: list[Offer]) -> str:
    if not offers:
        return "No work waits for an agent."
    columns = ("ID", "TASK", "FROM", "FOR", "PRIORITY", "TRIGGER", "STATE", "HOLDER", "TIME")
    return render.table(columns, [_row(offer.document()) for offer in offers],
                        spare=("TRIGGER", "TIME"), elsewhere="--json")  # fmt: skip


def _row(offer: dict[str, Any]) -> tuple[Any, ...]:
    state = f"{offer['state']} (provisionally)" if offer["provisional"] else offer["state"]
    return (offer["id"], offer["task_id"], offer["from_agent"], offer["next_agent_type"],
            offer["priority"], offer["trigger"], state, offer["holder"] or "",
            offer["requested_at"])  # fmt: skip
