"""What each tool does, with the functions that the command line calls too."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from syncd import clock, drafting, messages, offering, offers, presence, threads, workspace
from syncd.errors import CheckpointNotFoundError, UsageError
from syncd.mcp.desk import Desk
from syncd.node import Node
from syncd.offers import Offer
from syncd.resume import Reader, resumed
from syncd.resume.fit import Room
from syncd.status import status as gathered
from syncd.store import Record, Sealed, Skipped
from syncd.triggers import advice
from syncd.vocabulary import HandoffTrigger

# The loop tells them to what it starts, as it does to commands.
_FROM_OUTSIDE = {
    "metadata.agent_type": "SYNCD_AGENT_TYPE",
    "metadata.iteration": "SYNCD_ITERATION",
    "metadata.session_id": "SYNCD_SESSION",
}
_EXCERPT = 160
# So many of what was left out are named: the answer goes into the agent's context.
_NAMED = 5
_ABOUT_WORK = ("execution_state", "context_summary", "recovery")


class Caller(NamedTuple):
    """Who asks, where, and about which task; what is left open follows from the surroundings."""

    start: Path
    client: str
    task: str = ""
    agent: str = ""

    @property
    def task_id(self) -> str:
        if workspace.left_alone(self.start):
            raise UsageError(
                f"{self.start} is to be left alone: its .syncd.toml says `ignore = true`",
                "Go on without checkpoints here.",
            )
        found = self.known_task
        if not found:
            raise UsageError(
                f"no task is named, and {self.start} is not in a git repository",
                "Pass `task`: a short name for the work, the same each time.",
            )
        return found

    @property
    def known_task(self) -> str:
        """Empty where none follows from the surroundings, or where nothing is to be kept."""
        if workspace.left_alone(self.start):
            return ""
        return self.task or os.environ.get("SYNCD_TASK") or workspace.task_of(self.start) or ""

    def agent_id(self, node: Node, task: str) -> str:
        """Hooks give each session of a host a name of its own. If one of them is at work on the
        task here, it is the one that asks; of several, it cannot be told which."""
        if known := self.agent or os.environ.get("SYNCD_AGENT"):
            return known
        since = node.store.now_ms() - presence.minutes_ms(node, "crashed")
        sessions = {
            sign.agent_id
            for sign in presence.own_signs(node)
            if sign.task_id == task
            and sign.seen_ms > since
            and sign.agent_id.startswith(f"{self.client}-")
        }
        return sessions.pop() if len(sessions) == 1 else self.client


# --- results --------------------------------------------------------------------------------------


class Saved(BaseModel):
    checkpoint_id: str
    task_id: str
    agent_id: str
    advice: str
    warnings: list[str]


class Resumed(BaseModel):
    task_id: str
    checkpoint_id: str
    verified: bool
    stale_files: list[str]
    prompt: str


class Brief(BaseModel):
    checkpoint_id: str
    task_id: str
    at: str
    agent_id: str
    phase: str
    status: str
    done: int
    pending: int
    text: str


class Found(BaseModel):
    checkpoints: list[Brief]
    left_out: list[str]


class Handoff(BaseModel):
    id: str
    task_id: str
    state: str
    from_agent: str
    for_type: str
    holder: str


class Handoffs(BaseModel):
    handoffs: list[Handoff]
    prompt: str = ""


class Alive(BaseModel):
    agent_id: str
    task_id: str
    next_expected: str
    unread: list[str]


class Status(BaseModel):
    task_id: str
    agent_id: str
    verdict: str
    safe_to_close: bool
    to_send: int
    conflicts: int
    attention: list[str]
    unread: list[str]


# --- writing --------------------------------------------------------------------------------------


def save(desk: Desk, caller: Caller, said: Mapping[str, Any]) -> Saved:
    """The next checkpoint of a task: what the one before says, changed by what is said now."""
    service, task = desk.writing(), caller.task_id
    agent, values = caller.agent_id(service.node, task), {**_outside(), **said}
    last = drafting.before(service, task)
    warnings = [f"passed over {_gone(one)}" for one in last.skipped]
    if not said:
        warnings.append("it says nothing of the work: name what is completed, pending, decided")
    draft = (
        drafting.continued(last.checkpoint, {}, values, task, agent)
        if last.checkpoint
        else drafting.created({}, values, task, agent)
    )
    with _heard(warnings):
        written = service.save(drafting.with_workspace(draft, caller.start), parent=last.parent)
    told = advice(written.metrics.context_used_percent, service.node.settings)
    made = written.metadata
    return Saved(
        checkpoint_id=made.checkpoint_id, task_id=made.task_id, agent_id=made.agent_id,
        advice=told.text.replace("--", "") if told else "", warnings=warnings,
    )  # fmt: skip


_listeners: ContextVar[list[str] | None] = ContextVar("warnings", default=None)


class Ear(logging.Handler):
    """What a command prints as a warning goes back to the model that caused it."""

    def emit(self, record: logging.LogRecord) -> None:
        if (heard := _listeners.get()) is not None:
            heard.append(record.getMessage())


@contextmanager
def _heard(warnings: list[str]) -> Iterator[None]:
    token = _listeners.set(warnings)
    try:
        yield
    finally:
        _listeners.reset(token)


def _outside() -> dict[str, Any]:
    told = {path: os.environ.get(name) for path, name in _FROM_OUTSIDE.items()}
    return {path: value for path, value in told.items() if value}


def heartbeat(desk: Desk, caller: Caller, *, ended: bool) -> Alive:
    node, task = desk.writing().node, caller.task_id
    agent, until = caller.agent_id(node, task), ""
    if ended:
        presence.ended(node, agent, task)
    else:
        kind, session = (os.environ.get(f"SYNCD_{name}", "") for name in ("AGENT_TYPE", "SESSION"))
        sign = presence.heartbeat(node, agent, task, kind, session)
        until = clock.iso(int(sign.seen_ms + presence.minutes_ms(node, "heartbeat")))
    return Alive(
        agent_id=agent, task_id=task, next_expected=until, unread=list(_unread(node, agent))
    )


# --- from agent to agent --------------------------------------------------------------------------


def offer(desk: Desk, caller: Caller, trigger: str, target: str) -> Handoffs:
    given = caller.agent or os.environ.get("SYNCD_AGENT", "")  # else who wrote last
    wish = offering.Wish(HandoffTrigger(trigger), given, target or None)
    made, prompt = offering.request(desk.writing(), caller.task_id, wish)
    return Handoffs(handoffs=[_handoff(made)], prompt=prompt)


def waiting(desk: Desk) -> Handoffs:
    found = offers.ready(offers.everything(desk.reading()))
    return Handoffs(handoffs=[_handoff(offer) for offer in found])


def accept(desk: Desk, caller: Caller, handoff_id: str) -> Handoffs:
    node = desk.writing().node
    agent = caller.agent_id(node, offers.named(node, handoff_id).task_id)
    taken = offers.accept(
        node, handoff_id, offers.Taker(agent, os.environ.get("SYNCD_SESSION", ""))
    )
    found = resumed(node, taken.task_id, Reader(caller.start, (), agent))
    return Handoffs(handoffs=[_handoff(taken)], prompt=found.prompt)


def acknowledge(desk: Desk, caller: Caller, handoff_id: str) -> Handoffs:
    node = desk.writing().node
    agent = caller.agent_id(node, offers.named(node, handoff_id).task_id)
    done = offers.acknowledge(node, handoff_id, agent)
    return Handoffs(handoffs=[_handoff(done)])


def _handoff(offer: Offer) -> Handoff:
    """One that the replica has not confirmed is said to be provisional."""
    told = offer.document()
    state = f"{told['state']}, provisionally" if told["provisional"] else told["state"]
    return Handoff(
        id=told["id"], task_id=told["task_id"], state=state,
        from_agent=told["from_agent"], for_type=told["next_agent_type"],
        holder=told["holder"] or "",
    )  # fmt: skip


# --- reading --------------------------------------------------------------------------------------


def resume(desk: Desk, caller: Caller, max_chars: int) -> Resumed:
    node, task = desk.reading(), caller.task_id
    reader = Reader(caller.start, (), caller.agent_id(node, task), [Room(max_chars)])
    try:
        found = resumed(node, task, reader)
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(
            error.message, "Nothing was saved for it yet: begin the work, and call `save`."
        ) from None
    told = found.document()
    return Resumed.model_validate({name: told[name] for name in Resumed.model_fields})


def history(desk: Desk, caller: Caller, limit: int) -> Found:
    gaps = _Gaps([], [])
    records = desk.reading().store.select("history", (caller.task_id, limit), *gaps)
    return _found(records, gaps, "")


def search(desk: Desk, text: str, limit: int) -> Found:
    if not text.strip():
        raise UsageError("nothing to search for was given", "Pass `text`: a word of the work.")
    gaps = _Gaps([], [])
    return _found(desk.reading().store.search(text, limit, *gaps), gaps, text)


def latest(desk: Desk, task: str) -> dict[str, Any]:
    record = desk.reading().store.latest(task)
    if record is None:
        raise threads.no_checkpoint(desk.reading(), task)
    return record.document()


def status(desk: Desk, caller: Caller) -> Status:
    node, task = desk.reading(), caller.known_task
    told = gathered(node)
    failed = told["verdict"] == "failed"
    agent = caller.client if failed else caller.agent_id(node, task)
    return Status(
        task_id=task, agent_id=agent,
        verdict=told["verdict"], safe_to_close=told["safe_to_close"],
        to_send=told["push"]["pending"] or 0, conflicts=told["conflicts"]["open"] or 0,
        attention=[f"{need['what']} {need['remedy']}" for need in told["attention"]],
        unread=[] if failed else list(_unread(node, agent)),
    )  # fmt: skip


def _unread(node: Node, agent: str) -> Iterator[str]:
    for message in messages.inbox(node, agent):
        told = messages.document(node, message)
        yield f"{told['subject']} (`syncd inbox {agent}`, message {told['id']})"


class _Gaps(NamedTuple):
    """What a read had to leave out."""

    damaged: list[Skipped]
    sealed: list[Sealed]


def _found(records: list[Record], gaps: _Gaps, text: str) -> Found:
    gone: list[Skipped | Sealed] = [*gaps.damaged, *gaps.sealed]
    more = [f"and {len(gone) - _NAMED:,} more"] if len(gone) > _NAMED else []
    return Found(
        checkpoints=[_brief(record, text) for record in records],
        left_out=[*map(_gone, gone[:_NAMED]), *more],
    )


def _gone(skipped: Skipped | Sealed) -> str:
    return f"checkpoint {skipped.checkpoint_id}: {skipped.problem}"


def _brief(record: Record, text: str) -> Brief:
    document, row = record.document(), record.row
    state = document["execution_state"]
    done = state.get("completed_items", [])
    shown = _excerpt(document, text) if text else state.get("current_focus") or _last(done)
    return Brief(
        checkpoint_id=row.id, task_id=row.task_id, at=row.created_at, agent_id=row.agent_id,
        phase=row.phase, status=row.status, done=len(done),
        pending=len(state.get("pending_items", [])), text=shown,
    )  # fmt: skip


def _last(items: list[Any]) -> str:
    return next((word[:_EXCERPT] for word in _words(items[-1:])), "")


def _excerpt(document: Any, text: str) -> str:
    """The first of its words that contain the text, from a little before it; what it says of the
    work before all else."""
    for words in _words([*(document.get(part) for part in _ABOUT_WORK), document]):
        if (at := words.casefold().find(text.casefold())) >= 0:
            begin = max(0, at - _EXCERPT // 4)
            return words[begin : begin + _EXCERPT]
    return ""


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _words(inner)
