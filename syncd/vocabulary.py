"""The words of the domain: phases, statuses, reasons and what other tools call them; times; ids."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum

from syncd.clock import iso, wall_ms
from syncd.errors import InvalidInputError

log = logging.getLogger("syncd")


class ExecutionPhase(StrEnum):
    PLANNING = "planning"
    IMPLEMENTING = "implementing"
    TESTING = "testing"
    REVIEWING = "reviewing"
    HANDOFF = "handoff"
    COMPLETE = "complete"


class CheckpointStatus(StrEnum):
    IN_PROGRESS = "in_progress"
    WAITING = "waiting"
    BLOCKED = "blocked"
    ESCALATED = "escalated"
    COMPLETE = "complete"
    FAILED = "failed"


class CheckpointReason(StrEnum):
    PERIODIC = "periodic"
    CONTEXT_LIMIT = "context_limit"
    FAILURE = "failure"
    REASSIGNMENT = "reassignment"
    RATE_LIMIT = "rate_limit"
    MANUAL = "manual"


class HandoffTrigger(StrEnum):
    CONTEXT_THRESHOLD = "context_threshold"
    PHASE_COMPLETE = "phase_complete"
    ERROR_THRESHOLD = "error_threshold"
    EXPLICIT_REQUEST = "explicit_request"
    TOKEN_BUDGET = "token_budget"  # noqa: S105 (the name of a trigger)
    TIMEOUT = "timeout"


class AgentType(StrEnum):
    """The usual ones; any other text is accepted too."""

    ARCHITECTURE = "architecture"
    IMPLEMENTATION = "implementation"
    QA = "qa"
    DOCUMENTATION = "documentation"
    ORCHESTRATOR = "orchestrator"


PHASE_ALIASES = {
    "design": "planning", "specification": "planning", "research": "planning",
    "analysis": "planning", "plan": "planning", "discovery": "planning",
    "implementation": "implementing", "implement": "implementing", "coding": "implementing",
    "development": "implementing", "building": "implementing", "in_progress": "implementing",
    "verification": "testing", "validation": "testing", "test": "testing", "qa": "testing",
    "documentation": "reviewing", "review": "reviewing",
    "hand_off": "handoff", "done": "complete", "completed": "complete", "finished": "complete",
}  # fmt: skip
STATUS_ALIASES = {
    "active": "in_progress", "running": "in_progress", "resumed": "in_progress",
    "pending": "waiting", "paused": "waiting", "completed": "complete", "done": "complete",
    "finished": "complete", "success": "complete", "failure": "failed", "error": "failed",
    "crashed": "failed", "aborted": "failed",
}  # fmt: skip
REASON_ALIASES = {
    "heartbeat": "periodic", "context": "context_limit", "context_threshold": "context_limit",
    "error": "failure", "handoff": "reassignment", "explicit": "manual", "user": "manual",
}  # fmt: skip


def word(text: str) -> str:
    """`In Progress`, `IN-PROGRESS` and `in_progress` are one word."""
    return re.sub(r"[\s\-_]+", "_", text.strip()).lower()


def known(text: str, names: type[StrEnum], aliases: Mapping[str, str]) -> str | None:
    """The canonical name for a text, if there is one."""
    name = word(text)
    name = aliases.get(name, name)
    return name if name in {str(member) for member in names} else None


def nearest_phase(text: str) -> str:
    """The phase that a free text speaks of; planning where it names none."""
    names = {**{str(phase): str(phase) for phase in ExecutionPhase}, **PHASE_ALIASES}
    for part in re.findall(r"[a-z]+", text.lower()):
        if close := difflib.get_close_matches(part, names, n=1, cutoff=0.8):
            return names[close[0]]
    return ExecutionPhase.PLANNING


def now() -> str:
    return iso(wall_ms())


def zoned(text: str) -> str:
    """ISO 8601 with a zone; without one it is read as UTC, aloud."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an ISO 8601 time") from None
    if moment.tzinfo is None:
        log.warning("the time %s has no zone: read as UTC", text)
        return moment.replace(tzinfo=UTC).isoformat()
    return text


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
MAX_ID = 512


def not_utf8(text: str) -> bool:
    """Python stands in for bytes that are none with halves of characters."""
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def checked_id(kind: str, text: str, longest: int = MAX_ID) -> str:
    """An id is any text on one line: it never becomes a path or part of a statement."""
    if not text.strip():
        raise InvalidInputError(f"the {kind} is empty")
    if len(text) > longest:
        raise InvalidInputError(f"the {kind} has {len(text)} characters; {longest} are allowed")
    if not_utf8(text):
        raise InvalidInputError(f"the {kind} is not UTF-8")
    if control := _CONTROL.search(text):
        raise InvalidInputError(
            f"the {kind} contains a control character (U+{ord(control[0]):04X})"
        )
    return text


def checked_count(name: str, value: object) -> int:
    """How many at most."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInputError(
            f"{name} is {value!r}, which is no whole number from 0 on",
            f"Give a number, for example {name}=10, or a large one for all.",
        )
    return value
