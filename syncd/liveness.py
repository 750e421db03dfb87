"""What follows from silence: a warning to the agent, then the presumption that it has crashed, and
word to the user. Every daemon looks; what one has written, the others see.

The daemon of another machine waits a little longer than that of the agent's own would, as that
knows more, and sooner.

Light: `syncd status` tells what was found, and seldom reads or writes a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from syncd import agents, clock, facts, tenure
from syncd.agents import ACTIVE, WARNING, Agent
from syncd.entry import MESSAGE
from syncd.fold import derived_id
from syncd.leases import Claim
from syncd.node import Node
from syncd.presence import CRASHED, MINUTE_MS, RECOVERED, WARNED, Sign, minutes_ms, transition

if TYPE_CHECKING:
    from syncd.messages import Letter

SYNCD = "syncd"
LOST = "lost"
# Of the time after which an agent is warned: how much longer others wait, and how often to look.
_GRACE, _PACE = 1 / 15, 1 / 30
_SLOWEST_SECONDS, _FASTEST_SECONDS = 60.0, 1.0
_RANKS = {ACTIVE: 0, WARNING: 1, CRASHED: 2, WARNED: 1}


class Event(NamedTuple):
    """Something that was just found out; `words` are for the user."""

    kind: str
    agent: str
    task_id: str
    words: str


class Notice(NamedTuple):
    """Something that the user may want to know, and what he can do."""

    what: str
    remedy: str


def pace_seconds(node: Node) -> float:
    """How often to look."""
    wanted = minutes_ms(node, WARNING) / 1000 * _PACE
    return min(max(wanted, _FASTEST_SECONDS), _SLOWEST_SECONDS)


def scan(node: Node) -> list[Event]:
    """Write what has become of whoever fell silent, or was heard again."""
    found = [event for agent in agents.everybody(node) for event in _looked_at(node, agent)]
    return [*found, *_told_losers(node)]


# --- silence --------------------------------------------------------------------------------------


def _looked_at(node: Node, agent: Agent) -> list[Event]:
    """Also who fell silent while nobody looked is warned before anything is presumed."""
    grace = 0.0 if agent.own else minutes_ms(node, WARNING) * _GRACE
    known = _RANKS.get(agent.recorded, 0)
    late = agents.state_of(node, agent.age_ms - grace)
    early = agents.state_of(node, agent.age_ms + grace)
    if agent.expected:
        steps = (_warned, _crashed)[known : _RANKS[late]]
        if steps:
            return [step(node, agent) for step in steps]
    if agent.state in _RANKS and _RANKS[early] < known:
        return [_recorded(node, agent, RECOVERED, f"{_name(agent.sign)} has been heard again.")]
    return []


def _recorded(node: Node, agent: Agent, state: str, words: str) -> Event:
    task_id, who, where = agent.sign.task_id, agent.sign.agent_id, agent.sign.device_id
    body = {"last_seen": clock.iso(agent.sign.seen_ms)}
    transition(node, task_id, who, where, state, body, actor=SYNCD)
    return Event(state, who, task_id, words)


def _warned(node: Node, agent: Agent) -> Event:
    from syncd import messages

    sign = agent.sign
    names = (sign.about, WARNED, agent.last(RECOVERED))
    message_id = derived_id(f"syncd message {' '.join(names)}")
    minutes = node.settings["liveness.warning_minutes"]
    with node.store.transaction():
        event = _recorded(
            node, agent, WARNED, f"{_name(sign)} has been silent for {minutes:g} minutes."
        )
        letter = _warning(node, sign, message_id)
        messages.send(node, sign.agent_id, letter, sign.task_id, SYNCD, message_id)
    return event


def _warning(node: Node, sign: Sign, message_id: str) -> Letter:
    from syncd.messages import Letter

    heartbeat, warning, crashed = (
        f"{node.settings[f'liveness.{name}_minutes']:g}" for name in ("heartbeat", WARNING, CRASHED)
    )
    who, task = quote(sign.agent_id), f" --task {quote(sign.task_id)}" if sign.task_id else ""
    return Letter(
        f"Your last sign of life{_on(sign)} came at {clock.iso(sign.seen_ms)}; one every "
        f"{heartbeat} minutes is usual. After {crashed} minutes of silence you are presumed to "
        "have crashed, and others may take over.",
        f"Silent for more than {warning} minutes: are you at work?",
        "Write a checkpoint now, or at least show that you are alive: "
        f"`syncd heartbeat --agent {who}{task}`",
        f"syncd message ack {message_id} --agent {who}",
    )


def _crashed(node: Node, agent: Agent) -> Event:
    minutes = agent.age_ms / MINUTE_MS
    words = f"{_name(agent.sign)} has been silent for {minutes:.0f} minutes and is presumed to "
    return _recorded(node, agent, CRASHED, words + "have crashed.")


def _name(sign: Sign) -> str:
    return f"{sign.agent_id}{_on(sign)}"


def _on(sign: Sign) -> str:
    return f" on task {sign.task_id}" if sign.task_id else ""


# --- claims that lost -----------------------------------------------------------------------------


def _told_losers(node: Node) -> list[Event]:
    """Who held a task provisionally, until another turned out to have come first."""
    from syncd import messages

    events = []
    for task_id, claim in _lost(node):
        name = _loss(claim)
        if facts.concerning(node, MESSAGE, name):
            continue
        letter = messages.Letter(
            f"The replica has the claim of another agent before yours of {claim.at}. What you "
            "have written since then is kept as a branch.",
            f"Task {task_id} is another's",
            "Stop working on it, and say what is worth keeping: `syncd task heads` shows both.",
            f"syncd message ack {name} --agent {quote(claim.holder[0])}",
        )
        messages.send(node, claim.holder[0], letter, task_id, SYNCD, name)
        events.append(Event(LOST, claim.holder[0], task_id, _lost_words(task_id, claim)))
    return events


def _lost(node: Node, tasks: Iterable[str] | None = None) -> list[tuple[str, Claim]]:
    """Claims to some tasks, or to any."""
    among = tenure.tasks_lost(node) if tasks is None else tasks
    return [(task, claim) for task in among for claim in tenure.lost(node, task)]


def _loss(claim: Claim) -> str:
    return derived_id(f"syncd message {claim.entry_id} lost")


def _lost_words(task_id: str, claim: Claim) -> str:
    return f"{claim.holder[0]} went on with task {task_id} offline, and another came first."


# --- for the user ---------------------------------------------------------------------------------


def notices(
    node: Node, everybody: Iterable[Agent], lost: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Who is presumed to have crashed, and whose claim was lost without his knowing yet; `lost` are
    the tasks of such claims, if they are known already."""
    found = [
        Notice(
            f"{_name(a.sign)} is presumed to have crashed: no sign of life since "
            f"{clock.iso(a.sign.seen_ms)}",
            f"`syncd resume {quote(a.sign.task_id)}` shows where it stands, `syncd recover "
            f"{quote(a.sign.task_id)} --takeover` gives it to another agent."
            if a.sign.task_id
            else "See whether it still runs.",
        )
        for a in everybody
        if a.expected and a.state == CRASHED
    ]
    found += [
        Notice(_lost_words(task_id, claim), f"`syncd task heads {quote(task_id)}` shows both.")
        for task_id, claim in _lost(node, lost)
        if _unread(node, _loss(claim))
    ]
    return [notice._asdict() for notice in found]


def _unread(node: Node, message_id: str) -> bool:
    if not facts.concerning(node, MESSAGE, message_id):
        return False
    from syncd import messages

    return messages.find(node, message_id).acknowledged is None
