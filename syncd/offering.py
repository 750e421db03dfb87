"""An agent gives its work away: a last checkpoint, and the offer."""

from __future__ import annotations

from typing import Any, NamedTuple

from syncd import facts, tasks, tenure
from syncd.checkpoint import Checkpoint
from syncd.entry import HANDOFF
from syncd.errors import CheckpointNotFoundError, LeaseHeldError
from syncd.handoff import HandoffProtocol, HandoffRequest
from syncd.node import Node
from syncd.offers import EVENT, Offer, named
from syncd.service import CheckpointService
from syncd.vocabulary import CheckpointReason, ExecutionPhase, HandoffTrigger

_REASONS = {
    HandoffTrigger.CONTEXT_THRESHOLD: CheckpointReason.CONTEXT_LIMIT,
    HandoffTrigger.ERROR_THRESHOLD: CheckpointReason.FAILURE,
    HandoffTrigger.EXPLICIT_REQUEST: CheckpointReason.MANUAL,
}


# Hand-offs in a row that are looked through for what was done before them.
_LOOKED_AT = 20


class Wish(NamedTuple):
    """What the agent that gives its work away says about it; what it leaves open follows from the
    trigger."""

    trigger: HandoffTrigger = HandoffTrigger.EXPLICIT_REQUEST
    agent: str = ""
    target: str | None = None
    priority: int | None = None


def request(service: CheckpointService, task_id: str, wish: Wish) -> tuple[Offer, str]:
    """Offer a task's work: a last checkpoint of the phase `handoff` and the offer itself, both or
    neither. The offer is signed, and with it all that this device wrote before."""
    node = service.node
    with node.store.transaction():
        current = service.get_latest_checkpoint(task_id)
        if current is None:
            raise CheckpointNotFoundError(
                f"task {task_id!r} has no checkpoint to hand over",
                "Write one first: `syncd checkpoint create`.",
            )
        giver = wish.agent or _usual_giver(node, current)
        _refuse_if_fenced(node, task_id, giver)
        asked = _asked(node, current, wish)
        last = _last_checkpoint(service, asked, giver)
        entry = facts.record(
            node, HANDOFF, task_id, _meta(node, asked, last, giver), {"event": EVENT},
            actor=giver, key=node.key,
        )  # fmt: skip
    return named(node, entry.entity_id), last.recovery.continuation_prompt


def _usual_giver(node: Node, current: Checkpoint) -> str:
    """Who wrote last; after a hand-off, who has taken it here and written nothing yet."""
    writer, claim = current.metadata.agent_id, tenure.holder(node, current.metadata.task_id)
    fenced = node.store.place(current.metadata.task_id, writer).fenced
    here = claim is not None and claim.holder[1] == node.store.device_id
    return claim.holder[0] if claim and here and fenced else writer


def _refuse_if_fenced(node: Node, task_id: str, agent: str) -> None:
    if node.store.place(task_id, agent).fenced:
        claim = tenure.holder(node, task_id)
        why = f"{agent} cannot hand it over"
        raise tenure.held(claim, why) if claim else LeaseHeldError(why)


def _asked(node: Node, current: Checkpoint, wish: Wish) -> HandoffRequest:
    cost = tasks.show(node, current.metadata.task_id, described=False)["cost"]
    protocol = HandoffProtocol.configured(node.settings)
    asked = protocol.request(
        wish.trigger, current, token_budget_used=cost["budget_used"], phase=_phase(node, current)
    )
    named = {"target_agent_type": wish.target, "priority": wish.priority}
    return asked.amended(**{name: value for name, value in named.items() if value is not None})


def _phase(node: Node, current: Checkpoint) -> str:
    """Whoever hands over for the second time hands over the same phase."""
    if current.execution_state.phase != ExecutionPhase.HANDOFF:
        return current.execution_state.phase
    history = node.store.select("history", (current.metadata.task_id, _LOOKED_AT), [], [])
    phases = (record.row.phase for record in history)
    return next((phase for phase in phases if phase != ExecutionPhase.HANDOFF), "")


def _last_checkpoint(service: CheckpointService, asked: HandoffRequest, giver: str) -> Checkpoint:
    before = asked.checkpoint
    last = before.renewed()
    reason = _REASONS.get(asked.trigger, CheckpointReason.REASSIGNMENT)
    return service.save(
        last.amended(
            metadata=last.metadata.amended(agent_id=giver, reason=reason),
            execution_state=last.execution_state.amended(phase=ExecutionPhase.HANDOFF),
        ),
        parent=before.metadata.checkpoint_id,
    )


def _meta(node: Node, asked: HandoffRequest, last: Checkpoint, giver: str) -> dict[str, Any]:
    return {
        "checkpoint": last.metadata.checkpoint_id, "trigger": str(asked.trigger),
        "target": asked.target_agent_type, "priority": asked.priority, "giver": giver,
        "giver_type": last.metadata.agent_type, "giver_device": node.store.device_id,
    }  # fmt: skip
