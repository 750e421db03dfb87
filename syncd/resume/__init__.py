"""Going on where another agent stopped: a verified checkpoint, and the prompt made of it.

Neither pydantic nor psycopg: a host's hook may ask for it at the start of every session.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from syncd import messages
from syncd.config import default_home
from syncd.node import Node
from syncd.resume.attention import Inbox, warnings
from syncd.resume.claims import Claim
from syncd.resume.fit import Room, fitted
from syncd.resume.gather import Found, Origin, gathered
from syncd.resume.prompt import Facts, Task, sections
from syncd.resume.text import mapping, text
from syncd.triggers import Advice


class Resumption(NamedTuple):
    """A prompt, and what it rests on."""

    found: Found
    prompt: str
    left_out: dict[str, int]
    advice: Advice | None
    unread: int

    @property
    def unverified(self) -> list[Claim]:
        return [claim for claim in self.found.claims if not claim.holds]

    def document(self) -> dict[str, Any]:
        found = self.found
        return {
            "task_id": found.task["id"],
            "checkpoint_id": found.record.row.id,
            "revision": found.record.entry.entry_id,
            "verified": not self.unverified,
            "claims": [claim.document() for claim in found.claims],
            "stale_files": found.stale,
            "left_out": self.left_out,
            "advice": self.advice._asdict() if self.advice else None,
            "heads": found.task["heads"],
            "conflicts": found.conflicts,
            "unread_messages": self.unread,
            "skipped": [gone._asdict() for gone in found.skipped],
            "prompt": self.prompt,
        }


class Reader(NamedTuple):
    """Who goes on, and where: the directory, how syncd is called there (empty: by its tools), the
    agent (else the one before), and how much its host takes in."""

    start: Path
    program: Sequence[str]
    agent: str = ""
    rooms: Sequence[Room] = ()
    session: str = ""


def resumed(node: Node, task_id: str, reader: Reader, origin: Origin | None = None) -> Resumption:
    """The prompt for a task, checked against the repository that its reader stands in."""
    found = gathered(node, task_id, reader.start, origin)
    inbox = _inbox(node, reader.agent or _before(found.document))
    told = warnings(found, node.settings, inbox)
    facts = Facts(
        Task(task_id, found.task["title"], found.task["description"], found.task),
        found.document,
        found.line,
        found.claims,
        [*(origin.notes if origin else ()), *told.lines],
        _command(node, found.document, task_id, reader),
        node.settings["handoff.insist_percent"],
    )
    shown = fitted(sections(facts), reader.rooms, f"`syncd resume {text(shlex.quote(task_id))}`")
    return Resumption(found, shown.text, shown.left_out, told.advice, len(inbox.unread))


def _inbox(node: Node, agent: str) -> Inbox:
    unread = messages.inbox(node, agent)
    return Inbox(agent, unread, messages.document(node, unread[0])["subject"] if unread else "")


def _before(document: dict[str, Any]) -> str:
    return str(mapping(document.get("metadata")).get("agent_id", ""))


def _command(node: Node, document: dict[str, Any], task_id: str, reader: Reader) -> tuple[str, ...]:
    """How this reader writes its own checkpoint; nothing if it has tools for that."""
    if not reader.program:
        return ()
    home = () if node.home == default_home() else ("--home", str(node.home))
    session = ("--session", reader.session) if reader.session else ()
    return (
        *reader.program, *home, "checkpoint", "create", "--continue",
        "--task", task_id, "--agent", reader.agent or _before(document), *session,
        "--completed", "WHAT IS DONE", "--pending", "WHAT IS NEW", "--decision", "WHAT, AND WHY",
    )  # fmt: skip
