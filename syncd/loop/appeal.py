"""What a person has to see before another run is worth it: asked when the loop gives up, and taken
back when it is started again."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote

from syncd import tasks
from syncd.attempts import LOOP
from syncd.loop import judge
from syncd.node import Node, user
from syncd.vocabulary import CheckpointStatus

_WAITING = (CheckpointStatus.BLOCKED, CheckpointStatus.ESCALATED)
_TO_DECIDE = (
    "what to mend in the command or around it; then start `syncd loop --task {task} -- …` again, "
    "or say what was decided: `syncd task resolve {task} --resolution …`"
)


def ask(node: Node, task: str, reason: str) -> dict[str, str]:
    """Mark a task blocked, and say who has to decide what; a question that waits already is left
    as it is. Returns the one that waits."""
    with node.store.transaction():
        if waiting := _waiting(node, task):
            return dict(waiting)
        decision = _TO_DECIDE.format(task=quote(task))
        shown = tasks.escalate(
            node, task, user(), reason, decision, status=CheckpointStatus.BLOCKED, by=LOOP
        )
    return dict(shown["escalation"])


def take_back(node: Node, task: str) -> None:
    """Whoever starts the loop again has seen what it asked; what others asked is theirs."""
    with node.store.transaction():
        if _waiting(node, task).get("by") == LOOP:
            tasks.resolve(node, task, "the loop was started again")


def _waiting(node: Node, task: str) -> Mapping[str, str]:
    """The question that the task waits for, if it does."""
    asked: Mapping[str, str] = tasks.readable(node, task).get("escalation", {})
    if not asked or tasks.show(node, task, described=False)["status"] not in _WAITING:
        return {}
    return asked


def reason(stop: str, last: judge.Iteration, limits: judge.Limits) -> str:
    """Why runs of its command are not worth going on with."""
    if stop == judge.SAME_ERROR:
        return f"{limits.same_error} runs of `syncd loop` in a row ended with: {last.error}"
    how = "took too long" if last.outcome == judge.TIMED_OUT else f"ended with {last.exit_code}"
    why = f": {last.error}" if last.error else ""
    return f"{limits.idle} runs of `syncd loop` in a row completed nothing; the last one {how}{why}"
