"""When work should move to a fresh agent, and what each reason asks for.

Every threshold is a setting and has to be exceeded: at its value nothing happens yet. Without
pydantic, so that a hook can ask too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from syncd.config import default
from syncd.vocabulary import AgentType, ExecutionPhase, HandoffTrigger

# --- the context ladder -------------------------------------------------------------------------

_HAND_OVER = "hand the work over to a fresh agent"
# From the top: level, the setting with its threshold, what to do.
_LADDER = (
    (
        "stop",
        "handoff.stop_percent",
        "stop here, write a last checkpoint, and go on in a new session",
    ),
    ("insist", "handoff.insist_percent", f"{_HAND_OVER} now, before anything else"),
    (
        "checkpoint",
        "handoff.checkpoint_percent",
        f"have all you know in a checkpoint (--reason context_limit) and {_HAND_OVER}",
    ),
    ("handoff", "handoff.context_percent", f"{_HAND_OVER} at the next good moment"),
)


class Advice(NamedTuple):
    """What to do about a context that fills up. `level`: handoff, checkpoint, insist, stop."""

    level: str
    context_used_percent: float
    threshold_percent: float
    text: str


def advice(
    context_used_percent: float | None, settings: Mapping[str, Any] | None = None
) -> Advice | None:
    """The highest rung that is exceeded, if one is."""
    if context_used_percent is None:
        return None
    for level, name, action in _LADDER:
        limit = _setting(name, settings)
        if context_used_percent > limit:
            used = f"{context_used_percent:g} % of the context is used, more than {limit:g} %"
            return Advice(level, context_used_percent, limit, f"{used}: {action}")
    return None


# --- thresholds ---------------------------------------------------------------------------------


class Thresholds(NamedTuple):
    """Shares are of one, as the reference implementation has them."""

    context: float
    errors: int
    budget: float
    minutes: float


def thresholds(settings: Mapping[str, Any] | None = None) -> Thresholds:
    return Thresholds(
        _setting("handoff.context_percent", settings) / 100,
        _setting("handoff.errors", settings),
        _setting("handoff.budget_percent", settings) / 100,
        _setting("handoff.timeout_minutes", settings),
    )


def _setting(name: str, settings: Mapping[str, Any] | None) -> Any:
    return default(name) if settings is None else settings[name]


# --- what each trigger asks for -----------------------------------------------------------------

_USUAL, _URGENT, _AT_ONCE = 5, 8, 10
# Whose work begins when a phase ends.
_NEXT_AGENT: dict[str, str] = {
    ExecutionPhase.PLANNING: AgentType.IMPLEMENTATION,
    ExecutionPhase.IMPLEMENTING: AgentType.QA,
    ExecutionPhase.TESTING: AgentType.DOCUMENTATION,
    ExecutionPhase.REVIEWING: AgentType.ORCHESTRATOR,
}


class Circumstances(NamedTuple):
    """What is known where a trigger fires. Shares are of one."""

    phase: str = ""
    errors: int = 0
    last_error: str = ""
    context_used: float | None = None
    budget_used: float | None = None
    elapsed_minutes: float | None = None


class Action(NamedTuple):
    """Who goes on ("" is an agent of the same type), how urgent it is, and what to tell it."""

    target_agent_type: str
    priority: int
    note: str


def action(trigger: HandoffTrigger, known: Circumstances) -> Action:
    done = trigger == HandoffTrigger.PHASE_COMPLETE
    target = _NEXT_AGENT.get(known.phase, "") if done else ""
    return Action(target, _PRIORITY.get(trigger, _USUAL), _note(trigger, known))


_PRIORITY = {
    HandoffTrigger.EXPLICIT_REQUEST: _AT_ONCE,
    HandoffTrigger.ERROR_THRESHOLD: _URGENT,
    HandoffTrigger.TOKEN_BUDGET: _URGENT,
}


def _note(trigger: HandoffTrigger, known: Circumstances) -> str:
    if trigger == HandoffTrigger.ERROR_THRESHOLD:
        last = f" The last one: {known.last_error}" if known.last_error else ""
        return f"{known.errors} errors in a row: try another way.{last}"
    if trigger == HandoffTrigger.TOKEN_BUDGET:
        return f"Budget warning: {_share(known.budget_used)} of the task's tokens are used"
    if trigger == HandoffTrigger.CONTEXT_THRESHOLD:
        return f"The context of the agent before was full ({_share(known.context_used)})"
    if trigger == HandoffTrigger.TIMEOUT:
        minutes = "too long" if known.elapsed_minutes is None else f"{known.elapsed_minutes:g} min"
        return f"The agent before ran out of time ({minutes}); its last step may be half done"
    if trigger == HandoffTrigger.PHASE_COMPLETE:
        return f"The phase {known.phase or 'before'} is complete"
    return "The agent before asked to be relieved"


def _share(part: float | None) -> str:
    return "most" if part is None else f"{part * 100:.4g} %"
