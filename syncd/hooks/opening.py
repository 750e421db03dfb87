"""What a session is told at its start: where the work stands, within what its host takes in. Work
that another is at is offered, not handed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from syncd import agents, presence, tenure
from syncd.agents import ACTIVE, WARNING
from syncd.hooks.events import CODEX as CODEX_HOST
from syncd.hooks.place import Place
from syncd.node import Node
from syncd.resume import Reader, resumed
from syncd.resume.fit import CLAUDE_CODE, CODEX, Room
from syncd.resume.text import text
from syncd.running import program

_OWN = "Recorded by syncd, for this repository and branch. What the user asks comes first."


def told(node: Node, place: Place) -> str:
    """The prompt; nothing where nothing was recorded, or the session has it all in its memory."""
    if not node.store.current_id(place.task) or _remembers(node, place):
        return ""
    room = CODEX if place.host == CODEX_HOST else CLAUDE_CODE
    opening = _offer(node, place) or _OWN
    rest = Room(room.limit - room.measure(f"{opening}\n\n"), room.measure)
    start = place.folder or Path("/")
    reader = Reader(start, program(), place.agent, [rest], place.event.session)
    found = resumed(node, place.task, reader).prompt
    return f"{opening}\n\n{found}" if found else ""


def _remembers(node: Node, place: Place) -> bool:
    """A session that is taken up again by its host still knows what it wrote itself."""
    if place.event.source != "resume":
        return False
    newest = node.store.latest(place.task)
    metadata = newest.document().get("metadata", {}) if newest else {}
    return bool(metadata.get("session_id") == place.event.session)


def _offer(node: Node, place: Place) -> str:
    """Whose work it is, if it is another's."""
    other = next(_others(node, place), "")
    if not other:
        return ""
    return (
        f"OFFER, not your task: {other}. Do what the user asks. Go on with what follows only if "
        "the user says so; until then leave its files alone."
    )


def _others(node: Node, place: Place) -> Iterator[str]:
    own = presence.own_ids(node)
    holder = tenure.holder(node, place.task)
    if holder and holder.holder[1] not in own:
        yield f"{text(holder.holder[0], 80)} on another machine holds this task"
    for agent in agents.everybody(node):
        sign = agent.sign
        alive = agent.state in (ACTIVE, WARNING)
        if alive and sign.task_id == place.task and sign.agent_id != place.agent:
            where = "" if agent.own else " on another machine"
            minutes = max(node.store.now_ms() - sign.seen_ms, 0) // presence.MINUTE_MS
            heard = f"{minutes} min ago" if minutes else "a moment ago"
            yield f"{text(sign.agent_id, 80)}{where} works on it, heard of {heard}"
