"""When work should move to a fresh agent, and the prompt that it takes along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from syncd import triggers
from syncd.checkpoint import Checkpoint
from syncd.part import Part, stored
from syncd.triggers import Circumstances
from syncd.vocabulary import HandoffTrigger

# A prompt is a rendering: the record keeps everything, the reader gets what is useful.
SHOWN_ITEMS = 10
SHOWN_CHARACTERS = 200


_INSTRUCTIONS = (
    "",
    "### Instructions",
    "1. Read what is completed and pending before you begin",
    "2. Go on where the work stopped; do not redo what is completed",
    "3. Write a checkpoint after each significant step",
    "4. Ask for a hand-off before your context is full",
)


class HandoffRequest(Part):
    trigger: HandoffTrigger = stored(HandoffTrigger.CONTEXT_THRESHOLD)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    target_agent_type: str = ""
    priority: int = Field(5, ge=1, le=10)


_USUAL = triggers.thresholds()


class HandoffProtocol:
    """The thresholds, each of them to be exceeded, and the order in which they are asked.

    A subclass may set others; `configured` makes one of a home's settings.
    """

    CONTEXT_THRESHOLD = _USUAL.context
    ERROR_THRESHOLD = _USUAL.errors
    TOKEN_BUDGET_THRESHOLD = _USUAL.budget
    TIMEOUT_MINUTES = _USUAL.minutes

    @classmethod
    def configured(cls, settings: Mapping[str, Any]) -> type[HandoffProtocol]:
        found = triggers.thresholds(settings)

        class Configured(cls):  # type: ignore[valid-type, misc]
            CONTEXT_THRESHOLD = found.context
            ERROR_THRESHOLD = found.errors
            TOKEN_BUDGET_THRESHOLD = found.budget
            TIMEOUT_MINUTES = found.minutes

        return Configured

    @classmethod
    def should_handoff(
        cls,
        context_utilization: float,
        consecutive_errors: int,
        token_budget_used: float,
        phase_complete: bool = False,
        explicit_request: bool = False,
        *,
        elapsed_minutes: float = 0.0,
    ) -> HandoffTrigger | None:
        if explicit_request:
            return HandoffTrigger.EXPLICIT_REQUEST
        if phase_complete:
            return HandoffTrigger.PHASE_COMPLETE
        if consecutive_errors > cls.ERROR_THRESHOLD:
            return HandoffTrigger.ERROR_THRESHOLD
        if context_utilization > cls.CONTEXT_THRESHOLD:
            return HandoffTrigger.CONTEXT_THRESHOLD
        if token_budget_used > cls.TOKEN_BUDGET_THRESHOLD:
            return HandoffTrigger.TOKEN_BUDGET
        if elapsed_minutes > cls.TIMEOUT_MINUTES:
            return HandoffTrigger.TIMEOUT
        return None

    @classmethod
    def request(
        cls,
        trigger: HandoffTrigger,
        checkpoint: Checkpoint,
        *,
        consecutive_errors: int = 0,
        token_budget_used: float | None = None,
        elapsed_minutes: float | None = None,
        phase: str = "",
    ) -> HandoffRequest:
        """The hand-off that a trigger asks for: to whom, how urgent, and a prompt that says why.
        `phase`: the one that ends, if the checkpoint does not say so."""
        used = checkpoint.metrics.context_used_percent
        known = Circumstances(
            phase or checkpoint.execution_state.phase,
            consecutive_errors or checkpoint.metrics.error_count,
            checkpoint.execution_state.error,
            None if used is None else used / 100,
            token_budget_used,
            elapsed_minutes,
        )
        target, priority, note = triggers.action(trigger, known)
        lines = [*_lines(checkpoint), "", "### Why it was handed over", f"- {_short(note)}"]
        recovery = checkpoint.recovery.amended(continuation_prompt="\n".join(lines))
        return HandoffRequest(
            trigger=trigger,
            checkpoint=checkpoint.amended(recovery=recovery),
            target_agent_type=target,
            priority=priority,
        )

    @staticmethod
    def generate_continuation_prompt(checkpoint: Checkpoint) -> str:
        return "\n".join(_lines(checkpoint))


def _lines(checkpoint: Checkpoint) -> list[str]:
    state, context = checkpoint.execution_state, checkpoint.context_summary
    lines = [
        "## Continuing earlier work",
        "",
        f"**Task:** {checkpoint.metadata.task_id}",
        f"**Iteration:** {checkpoint.metadata.iteration}",
        f"**Phase:** {state.phase}",
    ]
    _section(lines, "Completed", state.completed_items, "nothing yet", newest=True)
    _section(lines, "Pending", state.pending_items, "nothing")
    _section(lines, "Blocked", state.blocked_items)
    _section(lines, "Decisions", context.key_decisions, newest=True)
    _section(lines, "Constraints", context.constraints)
    if focus := state.current_focus or state.current_step:
        lines += ("", "### Focus", f"Go on with: {_short(focus)}")
    lines += _INSTRUCTIONS
    return lines


def _section(
    lines: list[str], title: str, items: Sequence[Any], if_empty: str = "", *, newest: bool = False
) -> None:
    count = len(items)
    if not count:
        if if_empty:
            lines += ("", f"### {title}", f"- {if_empty}")
        return
    lines += ("", f"### {title}")
    if count <= SHOWN_ITEMS:
        lines += [f"- {_short(item)}" for item in items]
    elif newest:
        lines.append(f"- ({count - SHOWN_ITEMS} earlier in the checkpoint)")
        lines += [f"- {_short(item)}" for item in items[-SHOWN_ITEMS:]]
    else:
        lines += [f"- {_short(item)}" for item in items[:SHOWN_ITEMS]]
        lines.append(f"- ({count - SHOWN_ITEMS} more in the checkpoint)")


def _short(item: Any) -> str:
    """One line, so that no item can pose as a section of the prompt."""
    text = item if type(item) is str else str(item)
    if not text.isprintable():
        text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
