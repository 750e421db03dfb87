"""A checkpoint made of a session: what was asked, what is done and pending, which files were
touched, the commit, and the last test result. It goes on from the task's newest checkpoint, so that
what agents wrote by themselves stays; where there is nothing new to say, none is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from syncd import clock, workspace
from syncd.checkpoint import Checkpoint
from syncd.hooks import transcript
from syncd.hooks.events import FILES
from syncd.hooks.journal import Journal
from syncd.hooks.session import DOING, DONE, Session, folded
from syncd.hooks.transcript import Usage
from syncd.node import Node
from syncd.service import CheckpointService
from syncd.triggers import Circumstances, action, thresholds
from syncd.vocabulary import CheckpointReason, ExecutionPhase, HandoffTrigger

_COMPLETED, _PENDING = 200, 100
_MORE = "(more than is recorded here: see the checkpoints before this one)"
_MORE_FILES = f"More files were touched than the {FILES} named here: git shows them."
# What only those say who know the work.
_SAID = ("blocked", "escalated", "complete", "failed")
_OVER = (ExecutionPhase.HANDOFF, ExecutionPhase.COMPLETE)
_REASONS = {"rate_limit": CheckpointReason.RATE_LIMIT, "overloaded": CheckpointReason.RATE_LIMIT}


class Moment(NamedTuple):
    """When and why it is written: by whom, in which state the session is."""

    task: str
    folder: Path | None
    status: str
    reason: str
    context: float | None = None
    cost: float | None = None
    phase: str = ""


def save(node: Node, journal: Journal, moment: Moment, *, ended: bool = False) -> str:
    """The id of the new checkpoint; nothing if there is nothing new to say, or another hook is
    saying it at this moment."""
    with journal.folding() as mine:
        if not mine:
            return ""
        size = journal.file.stat().st_size
        session = folded(journal.lines(), moment.task)
        written = (
            "" if session.empty or not session.task else _written(node, journal, session, moment)
        )
        if ended and (written or journal.file.stat().st_size == size):
            journal.remove()
        return written


def _written(node: Node, journal: Journal, session: Session, moment: Moment) -> str:
    usage = _usage(session, moment)
    seen = workspace.capture(moment.folder, session.files[-FILES:]) if moment.folder else None
    said = digest(session, moment, seen, usage)
    if said == session.written.digest:
        return ""
    service = CheckpointService(node=node)
    before = service.get_latest_checkpoint(session.task, skipped=[])
    known = before.body() if before else {}
    moment = heeding(moment, session, known)
    if moment.phase == ExecutionPhase.HANDOFF:
        return ""  # what it has handed over is no longer its own
    document = composed(session, moment, seen, usage, known)
    _judge(document, session, node)
    saved = service.save(Checkpoint.from_dict(document))
    journal.append(
        {"t": clock.wall_ms(), "k": session.task, "d": "written", "digest": said,
         "tokens": usage.total, "cost": usage.cost or 0.0, "tools": session.tools}
    )  # fmt: skip
    journal.mark(saved=clock.wall_ms())
    return saved.metadata.checkpoint_id


def _usage(session: Session, moment: Moment) -> Usage:
    """From the transcript, where there is one; the status line knows the cost better."""
    told = transcript.whole(session.head.get("transcript", ""), session.transcripts)
    tokens = {kind: told.tokens.get(kind, 0) + session.spent.get(kind, 0)
              for kind in {**told.tokens, **session.spent}}  # fmt: skip
    cost = moment.cost if moment.cost is not None else (told.cost or session.cost or None)
    return Usage(tokens, cost, moment.context if moment.context is not None else told.context)


def digest(session: Session, moment: Moment, seen: Mapping[str, Any] | None, usage: Usage) -> str:
    """Of all that a checkpoint would tell, but for when."""
    tests = {name: value for name, value in session.tests.items() if name != "at_ms"}
    said = (
        session.task, moment.status, session.requests, session.todos, session.files, tests,
        session.errors, session.refused, seen, usage.total,
    )  # fmt: skip
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def heeding(moment: Moment, session: Session, before: Mapping[str, Any]) -> Moment:
    """How the work stands, if somebody has said so since the last request: that it is complete,
    blocked, handed over. A hook knows nothing of that, and must not take it back."""
    state = before.get("execution_state", {})
    written = datetime.fromisoformat(before["metadata"]["timestamp"]) if before else None
    if written is None or written.timestamp() * 1000 < session.asked_ms:
        return moment
    phase, status = str(state.get("phase", "")), str(state.get("status", ""))
    if phase == ExecutionPhase.HANDOFF or status in _SAID:
        return moment._replace(phase=phase, status=status)
    return moment


# --- the document -------------------------------------------------------------------------------


def composed(
    session: Session,
    moment: Moment,
    seen: Mapping[str, Any] | None,
    usage: Usage,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """Pure. `before` is the body of the task's newest checkpoint, or nothing."""
    context = {**before.get("context_summary", {})}
    kept = context.get("state", {})
    listed, (files, more) = _listed(kept), _files(session, seen, before)
    context["state"] = {**kept, "session": _session(session, usage, listed)}
    document = {
        "metadata": _metadata(session, moment, before.get("metadata", {})),
        "execution_state": _state(session, moment, before.get("execution_state", {}), listed),
        "context_summary": context,
        "metrics": _metrics(session, usage, files, before),
        "recovery": {"resume_instructions": _last_words(session, more)},
    }
    if checked := _verification(session, before):
        document["verification"] = checked
    if seen:
        document["workspace"] = {**seen, "files": _contents(document, seen, before)}
    return document


def _contents(
    document: Mapping[str, Any], seen: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, str]:
    """Of files that the checkpoint before named and this one still does, as they were then."""
    known = (before.get("workspace") or {}).get("files") or {}
    named = {*document["metrics"]["files_modified"]}
    return {**{name: known[name] for name in known if name in named}, **seen["files"]}


def _listed(kept: Mapping[str, Any]) -> list[str]:
    """What was open on the list of the session before."""
    earlier = kept.get("session")
    found = earlier.get("todos") if isinstance(earlier, dict) else None
    return found if isinstance(found, list) else []


def _session(session: Session, usage: Usage, listed: list[str]) -> dict[str, Any]:
    return {
        "host": session.head.get("host", ""),
        "requests": session.requests[-5:],
        "todos": session.open_todos if session.todos else listed,
        "tokens": usage.tokens,
        "subagents": session.subagents,
    }


def _metadata(session: Session, moment: Moment, before: Mapping[str, Any]) -> dict[str, Any]:
    head, agent = session.head, session.head.get("agent", "")
    same = before.get("session_id") == head.get("session")
    rounds = int(before.get("iteration", 0)) + (0 if same else 1)
    earlier = [*before.get("previous_agents", []), before.get("agent_id", "")]
    found = {
        "task_id": session.task, "agent_id": agent, "agent_type": head.get("type", ""),
        "session_id": head.get("session", ""), "reason": moment.reason,
        "iteration": _whole(os.environ.get("SYNCD_ITERATION", "")) or max(rounds, 1),
        "mission": session.mission or before.get("mission") or next(iter(session.requests), ""),
        "feature": before.get("feature", ""),
        "previous_agents": [n for n in dict.fromkeys(earlier) if n not in ("", agent)][-20:],
    }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _state(
    session: Session, moment: Moment, before: Mapping[str, Any], listed: list[str]
) -> dict[str, Any]:
    state = {name: value for name, value in before.items() if name not in ("error", "raw")}
    phase = state.get("phase", "implementing" if session.files else "planning")
    done = session.with_status(*DONE)
    state |= {
        "status": moment.status,
        "phase": moment.phase or ("implementing" if phase in _OVER else phase),
        "completed_items": _joined(before.get("completed_items", []), done)[-_COMPLETED:],
        "pending_items": _pending(session, before, listed),
    }
    if session.todos:
        state["current_focus"] = next(iter(session.with_status(*DOING)), "")
        state.pop("current_step", None)
    return state


def _pending(session: Session, before: Mapping[str, Any], listed: list[str]) -> list[Any]:
    """This session's list first. It takes the place of the one that the session before it had: what
    was open there was told at the start. What agents wrote in checkpoints of their own stays."""
    known = {words for words, _ in session.todos} | {*(listed if session.todos else ())}
    open_before = before.get("pending_items", [])
    left = [item for item in open_before if _words(item) not in known | {_MORE}]
    found = [*session.open_todos, *left]
    cut = len(found) > _PENDING or _MORE in open_before
    return [*found[:_PENDING], _MORE] if cut else found


def _joined(before: Sequence[Any], more: Sequence[str]) -> list[Any]:
    known = {_words(item) for item in before}
    return [*before, *(item for item in dict.fromkeys(more) if item not in known)]


def _words(item: Any) -> str:
    return str(item.get("step", "")) if isinstance(item, dict) else str(item)


def _files(
    session: Session, seen: Mapping[str, Any] | None, before: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """Those touched since the last commit, and whether there were more."""
    if (before.get("workspace") or {}).get("head") != (seen or {}).get("head"):
        before = {}
    known = before.get("metrics", {}).get("files_modified", [])
    named = list(dict.fromkeys([*session.files[-FILES:], *known]))
    told = _MORE_FILES in before.get("recovery", {}).get("resume_instructions", "")
    return named[:FILES], told or max(len(session.files), len(named)) > FILES


def _metrics(
    session: Session, usage: Usage, files: list[str], before: Mapping[str, Any]
) -> dict[str, Any]:
    """What is counted is counted since the checkpoint before of this session."""
    last, known = session.written, before.get("metrics", {})
    tokens = usage.total - (last.tokens or session.baseline)
    found = {
        "tokens_consumed": max(tokens, 0),
        "tools_invoked": max(session.tools - last.tools, 0),
        "files_modified": files,
        "tests_status": _counts(session.tests) or known.get("tests_status"),
        "duration_seconds": max(session.ended_ms - (last.at_ms or session.began_ms), 0) / 1000,
        "error_count": session.errors,
        "context_used_percent": usage.context,
        "cost_usd": None if usage.cost is None else _more(usage.cost, last.cost),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def _more(cost: float, before: float) -> float:
    """A host that starts to count again has spent what it says."""
    return round(cost - before if before <= cost else cost, 6)


def _counts(tests: Mapping[str, Any]) -> dict[str, int] | None:
    names = ("passed", "failed", "skipped")
    return {name: tests.get(name, 0) for name in names} if tests else None


def _verification(session: Session, before: Mapping[str, Any]) -> dict[str, Any]:
    known = before.get("verification") or {}
    if not session.tests:
        return dict(known)
    ran = {"activity": session.tests["ran"], "status": session.tests["status"],
           "run_at": clock.iso(session.tests["at_ms"])}  # fmt: skip
    others = [r for r in known.get("results", []) if r.get("activity") != ran["activity"]]
    return {**known, "results": [*others[-9:], ran]}


def _last_words(session: Session, more_files: bool) -> str:
    asked = session.requests[-1] if session.requests else ""
    last = f"The user's last request: {asked}" if asked not in ("", session.mission) else ""
    stopped = f"The host stopped: {session.refused}" if session.refused else ""
    return "\n".join(filter(None, (last, stopped, _MORE_FILES if more_files else "")))


def _judge(document: dict[str, Any], session: Session, node: Node) -> None:
    """Too many errors in a row, or a model that refused, is why the next one reads it."""
    if session.errors > thresholds(node.settings).errors:
        known = Circumstances(errors=session.errors, last_error=session.last_error)
        document["execution_state"]["error"] = action(HandoffTrigger.ERROR_THRESHOLD, known).note
        document["metadata"]["reason"] = CheckpointReason.FAILURE
    if session.refused in _REASONS:
        document["metadata"]["reason"] = _REASONS[session.refused]
