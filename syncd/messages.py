"""What agents are told: by each other, by people, and by the daemon. A message stays unread until
somebody acknowledges it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from syncd import facts, presence, redaction
from syncd.entry import ACKNOWLEDGE, CREATE, MESSAGE, uuid7
from syncd.errors import (
    CheckpointCorruptionError,
    InvalidInputError,
    KeyMissingError,
    MessageNotFoundError,
    UsageError,
)
from syncd.facts import Fact
from syncd.node import Node, user
from syncd.vocabulary import checked_id

_CONTENT = ("subject", "action", "text", "acknowledge")


class Letter(NamedTuple):
    """What a message says: about what, what is asked for, and how to say that it was read."""

    text: str
    subject: str = ""
    action: str = ""
    acknowledge: str = ""


class Message(NamedTuple):
    """Several machines may have said the same; the first one counts."""

    fact: Fact
    acknowledged: Fact | None

    @property
    def id(self) -> str:
        return self.fact.about


def send(
    node: Node, to: str, letter: Letter, task_id: str = "", sender: str = "", name: str = ""
) -> str:
    """Write a message; its id. With a name, it is written once, whoever else would."""
    if not letter.text.strip():
        raise InvalidInputError("the message is empty", "Give it a text.")
    meta = {"sender": sender or user(), "recipient": to}
    for kind, text in (("recipient", to), ("sender", meta["sender"])):
        redaction.of(node.settings).refuse(kind, checked_id(kind, text))
    if task_id:
        checked_id("task id", task_id)
    message_id = name or uuid7()
    with node.store.transaction():
        if not facts.concerning(node, MESSAGE, message_id):
            facts.record(node, MESSAGE, task_id, meta, letter._asdict(), about=message_id,
                         actor=meta["sender"])  # fmt: skip
    return message_id


def acknowledge(node: Node, prefix: str, agent: str = "") -> Message:
    """Say that a message was read. An agent that does so lives."""
    message = find(node, prefix)
    recipient = message.fact.meta["recipient"]
    if agent and agent != recipient:
        raise InvalidInputError(
            f"message {message.id} is to {recipient!r}, not to {agent!r}",
            f"Let {recipient} acknowledge it, or leave --agent out.",
        )
    with node.store.transaction():
        if message.acknowledged is None:
            meta = {k: v for k, v in message.fact.meta.items() if k not in ("task_id", "task_seq")}
            facts.record(node, MESSAGE, message.fact.task_id, meta, about=message.id,
                         op=ACKNOWLEDGE, bases=(message.fact.entry_id,), actor=agent)  # fmt: skip
        place = (node.store.device_id, recipient, message.fact.task_id)
        if agent and node.store.row("sign", place):
            presence.heartbeat(node, agent, message.fact.task_id)
    return find(node, message.id)


def find(node: Node, prefix: str) -> Message:
    ids = node.store.find("message_ids", prefix) if prefix else []
    if prefix not in ids and len(ids) > 1:
        raise UsageError(
            f"{prefix!r} fits more than one message: {', '.join(ids)}", "Give more characters."
        )
    found = _folded(facts.concerning(node, MESSAGE, prefix if prefix in ids else "".join(ids)))
    if not found:
        raise MessageNotFoundError(f"there is no message {prefix!r}")
    return found[0]


def inbox(node: Node, agent: str, *, everything: bool = False) -> list[Message]:
    """What an agent was told, newest first; those that it has acknowledged only on request."""
    found = _folded(facts.naming(node, MESSAGE, "recipient", agent))
    return [message for message in found if everything or message.acknowledged is None]


def _folded(found: Iterable[Fact]) -> list[Message]:
    """Newest first. What nobody has sent is no message."""
    sent: dict[str, Fact] = {}
    read: dict[str, Fact] = {}
    for fact in sorted(found, key=lambda fact: (fact.hlc, fact.entry_id)):
        if fact.op == CREATE:
            sent.setdefault(fact.about, fact)
        elif fact.op == ACKNOWLEDGE:
            read.setdefault(fact.about, fact)
    return [Message(fact, read.get(name)) for name, fact in reversed(sent.items())]


def document(node: Node, message: Message) -> dict[str, Any]:
    """One that cannot be read is listed all the same."""
    fact, read = message
    told: dict[str, Any] = dict.fromkeys(_CONTENT, "")
    problem = ""
    try:
        told |= facts.told(node, fact)
    except (CheckpointCorruptionError, KeyMissingError) as error:
        problem = error.message
    return {
        "id": message.id,
        "task_id": fact.task_id,
        "from": fact.meta["sender"],
        "to": fact.meta["recipient"],
        **{name: str(told[name]) for name in _CONTENT},
        "at": fact.at,
        "device_id": fact.device_id,
        "acknowledged_at": read.at if read else None,
        "acknowledged_by": read.actor if read else None,
        "problem": problem,
    }
