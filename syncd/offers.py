"""Hand-offs: an agent offers its work, and one other takes it.

The offer, the claim to it and the acknowledgement are entries like all others, so an orchestrator
on any machine of the organization can watch for offers and take them. Who holds an offer follows
from the claims to it (leases.py).

Without pydantic: whoever starts agents waits for this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from syncd import facts, presence, tenure
from syncd.entry import ACKNOWLEDGE, CREATE, HANDOFF
from syncd.errors import CheckpointNotFoundError, HandoffError, UsageError
from syncd.facts import Fact
from syncd.leases import Claim
from syncd.node import Node
from syncd.vocabulary import checked_id

OPEN, ACCEPTED, ACKNOWLEDGED, SUPERSEDED = "open", "accepted", "acknowledged", "superseded"
EVENT = "AGENT_HANDOFF"


class Offer(NamedTuple):
    """A hand-off as it stands."""

    fact: Fact
    state: str
    claim: Claim | None

    @property
    def id(self) -> str:
        return self.fact.about

    @property
    def task_id(self) -> str:
        return self.fact.task_id

    @property
    def checkpoint_id(self) -> str:
        return str(self.fact.meta["checkpoint"])

    @property
    def provisional(self) -> bool:
        """Accepted, and the replica has not heard of it."""
        return self.claim is not None and not self.claim.fence

    def document(self, prompt: str = "") -> dict[str, Any]:
        """CONTRACT: the document of `syncd handoff …`."""
        meta, claim = self.fact.meta, self.claim
        return {
            "event": EVENT,
            "id": self.id,
            "task_id": self.task_id,
            "checkpoint_id": self.checkpoint_id,
            "trigger": meta["trigger"],
            "target_agent_type": meta["target"],
            "next_agent_type": meta["target"] or meta.get("giver_type", ""),
            "priority": meta["priority"],
            "from_agent": meta["giver"],
            "device_id": self.fact.device_id,
            "requested_at": self.fact.at,
            "state": self.state,
            "holder": claim.holder[0] if claim else None,
            "holder_device": claim.holder[1] if claim else None,
            "fence": claim.fence or None if claim else None,
            "provisional": self.provisional,
            "prompt": prompt,
        }


# --- what there is --------------------------------------------------------------------------------


def everything(node: Node, after: int = 0) -> list[Offer]:
    """All offers made after some place in the log, oldest first, as they stand now."""
    by_task: dict[str, list[Fact]] = {}
    for fact in facts.every(node, HANDOFF):
        by_task.setdefault(fact.task_id, []).append(fact)
    found = (offer for about in by_task.values() for offer in _of_task(node, about))
    return sorted((o for o in found if o.fact.seq > after), key=lambda offer: offer.fact.seq)


def ready(offers: Iterable[Offer]) -> list[Offer]:
    """Those that can be taken: the most urgent first, then the oldest."""
    waiting = [offer for offer in offers if offer.state == OPEN]
    return sorted(waiting, key=lambda offer: (-offer.fact.meta["priority"], offer.fact.hlc))


def _of_task(node: Node, about: list[Fact]) -> list[Offer]:
    claims = {claim.subject: claim for claim in tenure.standing(node, about[0].task_id)}
    acknowledged = {fact.about for fact in about if fact.op == ACKNOWLEDGE}
    made = [fact for fact in about if fact.op == CREATE]
    latest = max(fact.hlc for fact in made) if made else 0
    moved_on = max((claim.hlc for claim in claims.values()), default=0)
    return [
        Offer(
            fact, _state(fact, claims, acknowledged, max(latest, moved_on)), claims.get(fact.about)
        )
        for fact in made
    ]


def _state(fact: Fact, claims: dict[str, Claim], acknowledged: set[str], newest: int) -> str:
    """An offer that nobody took is off the table once there is a newer one, or the task has gone
    to somebody in another way."""
    if fact.about in claims:
        return ACKNOWLEDGED if fact.about in acknowledged else ACCEPTED
    return SUPERSEDED if newest > fact.hlc else OPEN


def named(node: Node, prefix: str) -> Offer:
    found = node.store.find("handoff_ids", prefix) if prefix else []
    if len(found) > 1 and prefix not in found:
        raise UsageError(f"{prefix!r} fits more than one hand-off: {', '.join(found)}")
    if not found:
        raise CheckpointNotFoundError(
            f"there is no hand-off {prefix!r}", "`syncd handoff list --all` shows what there is."
        )
    handoff_id = prefix if prefix in found else found[0]
    [fact, *_] = facts.concerning(node, HANDOFF, handoff_id)
    of_task = [other for other in facts.every(node, HANDOFF) if other.task_id == fact.task_id]
    return next(offer for offer in _of_task(node, of_task) if offer.id == handoff_id)


# --- taking ---------------------------------------------------------------------------------------


class Taker(NamedTuple):
    """Who goes on with the work; started by whom, if not by the one who gives it."""

    agent: str
    session: str = ""
    by: str = ""


def accept(node: Node, prefix: str, taker: Taker, seconds: float | None = None) -> Offer:
    """Take an offer: its checkpoint is verified first, then it is claimed. Of two machines one
    gets it; where the replica cannot be asked within so many seconds, provisionally."""
    offer = named(node, prefix)
    checked_id("agent id", taker.agent)
    if offer.state == SUPERSEDED:
        raise HandoffError(
            f"hand-off {offer.id} is superseded: the task has moved on since",
            "`syncd handoff list` shows what can be taken.",
        )
    node.store.version(offer.fact.entry_id)  # raises if the offer itself was altered
    node.store.checkpoint(offer.checkpoint_id)
    wait = node.settings["handoff.confirm_seconds"] if seconds is None else seconds
    giver = (offer.fact.meta["giver"], offer.fact.meta["giver_device"])
    held = tenure.take(node, offer.task_id, offer.id, taker.agent, giver, wait)
    kind = str(offer.document()["next_agent_type"])
    presence.heartbeat(node, taker.agent, offer.task_id, kind, taker.session, taker.by or giver[0])
    # A number alone is no word yet: another's claim with a lower one may still be on its way.
    claim = held.claim._replace(fence=0) if held.provisional else held.claim
    return named(node, offer.id)._replace(claim=claim)


def acknowledge(node: Node, prefix: str, agent: str = "") -> Offer:
    """The new agent has read the checkpoint and goes on from it."""
    offer = named(node, prefix)
    if offer.claim is None:
        raise HandoffError(
            f"hand-off {offer.id} was accepted by nobody", "`syncd handoff accept` it first."
        )
    holder, device = offer.claim.holder
    if (agent or holder, node.store.device_id) != (holder, device):
        raise tenure.held(offer.claim, f"{agent or 'this machine'} cannot acknowledge it")
    if offer.state != ACKNOWLEDGED:
        meta = {name: value for name, value in offer.fact.meta.items() if name != "task_seq"}
        facts.record(
            node, HANDOFF, offer.task_id, meta, about=offer.id, op=ACKNOWLEDGE,
            bases=(offer.fact.entry_id,), actor=holder,
        )  # fmt: skip
    return named(node, offer.id)
