"""Signs of life: one row for each agent and task, replaced whenever there is a newer one. This is
state, not history; what follows from silence are transitions, and those are entries.

Light: hooks give a sign of life at every use of a tool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from syncd.entry import AGENT, LEASE
from syncd.node import Node
from syncd.store import VIEW_COLUMNS
from syncd.views import CheckpointRow

if TYPE_CHECKING:
    from syncd.entry import Entry

MINUTE_MS = 60_000
WARNED, CRASHED, RECOVERED, ENDED = "warned", "crashed", "recovered", "ended"
# So small a part of the interval between two signs of life is not worth a write.
_SOON = 60


class Sign(NamedTuple):
    """A row of the table `presence`. Without a task, it speaks for all that the agent works on."""

    device_id: str
    agent_id: str
    task_id: str
    agent_type: str
    session_id: str
    seen_ms: int

    @property
    def about(self) -> str:
        """What the transitions of this agent in this task are entries about."""
        return about(self.task_id, self.agent_id, self.device_id)


def about(task_id: str, agent: str, device_id: str) -> str:
    """An agent's name is its own on one device only."""
    import orjson

    from syncd.fold import derived_id

    names = orjson.dumps([task_id, agent, device_id], default=str).decode()
    return derived_id(f"syncd agent {names}")


def heartbeat(
    node: Node,
    agent: str,
    task_id: str = "",
    agent_type: str = "",
    session: str = "",
    started_by: str = "",
) -> Sign:
    """Say that an agent is alive, and who started it. Type and session stay as they were if they
    are not named."""
    if started_by:
        from syncd.invocations import invoked

        invoked(node, task_id, agent, started_by, session, agent_type)
    store, now = node.store, node.store.now_ms()
    row = store.row("sign", (store.device_id, agent, task_id))
    before = Sign(*row) if row else Sign(store.device_id, agent, task_id, "", "", 0)
    sign = before._replace(
        agent_type=agent_type or before.agent_type,
        session_id=session or before.session_id,
        seen_ms=now,
    )
    if before._replace(seen_ms=now) == sign and row:
        soon_ms = minutes_ms(node, "heartbeat") / _SOON
        if 0 <= now - before.seen_ms < soon_ms:
            return before
    else:
        _check(node, sign)
    with store.transaction():
        store.change("put_sign", sign)
    return sign


def _check(node: Node, sign: Sign) -> None:
    """Others see these names, in clear text."""
    from syncd import redaction
    from syncd.vocabulary import checked_id

    redactor = redaction.of(node.settings)
    for kind, text in (
        ("agent id", checked_id("agent id", sign.agent_id)),
        ("task id", sign.task_id),
        ("agent type", sign.agent_type),
        ("session id", sign.session_id),
    ):
        if text:
            redactor.refuse(kind.replace(" ", "_"), checked_id(kind, text))


def ended(node: Node, agent: str, task_id: str = "") -> None:
    """An agent has ended in good order; without a task, with all that it had on this device. Only
    where its newest checkpoint, or its claim to the task, says that it goes on must that be said
    in an entry."""
    import orjson

    with node.store.transaction():
        own, only = own_ids(node), orjson.dumps([task_id]).decode() if task_id else None
        for device_id in own:
            node.store.change("drop_sign", (device_id, agent, task_id))
        at_work = {(row[2], row[0]) for row in node.store.rows("at_work", (only,))
                   if row[0] in own and row[1] == agent}  # fmt: skip
        for task, device_id in sorted(at_work | _held(node, agent, task_id, own)):
            transition(node, task, agent, device_id, ENDED, actor=agent)


def _held(node: Node, agent: str, task_id: str, own: set[str]) -> set[tuple[str, str]]:
    """The task, if the agent holds it by a claim that nothing was written after."""
    from syncd import fold, leases

    rows = node.store.rows("versions_of", (task_id, LEASE)) if task_id else []
    claim = next(reversed(leases.standing(fold.versions(rows))), None)
    if claim is None or claim.holder[0] != agent or claim.holder[1] not in own:
        return set()
    row = node.store.row("checkpoint", (node.store.current_id(task_id),))
    written = row is not None and CheckpointRow(*row[:VIEW_COLUMNS]).hlc > claim.hlc
    over = written or ended_since(node, task_id, claim.holder, claim.hlc)
    return set() if over else {(task_id, claim.holder[1])}


def ended_since(node: Node, task_id: str, worker: tuple[str, str], hlc: int) -> bool:
    """Whether an agent has said that it has ended, after some reading of the clock."""
    from syncd import facts

    told = facts.concerning(node, AGENT, about(task_id, *worker))
    return any(fact.meta["state"] == ENDED and fact.hlc > hlc for fact in told)


def transition(
    node: Node,
    task_id: str,
    agent: str,
    device_id: str,
    state: str,
    body: Mapping[str, Any] | None = None,
    *,
    actor: str = "",
) -> Entry:
    """Record what has become of an agent: warned, crashed, recovered, ended, or how its state was
    archived."""
    from syncd import facts

    meta = {"who": agent, "where": device_id, "state": state}
    name = about(task_id, agent, device_id)
    return facts.record(node, AGENT, task_id, meta, body, about=name, actor=actor)


def own_signs(node: Node) -> list[Sign]:
    """The heartbeats of this device's agents."""
    import orjson

    own = orjson.dumps(sorted(own_ids(node))).decode()
    return [Sign(*row) for row in node.store.rows("signs_of", (own,))]


def own_ids(node: Node) -> set[str]:
    """This device's id, and those that it has had before."""
    return {node.store.device_id, *(row[0] for row in node.store.rows("own_ids"))}


def minutes_ms(node: Node, what: str) -> float:
    minutes: float = node.settings[f"liveness.{what}_minutes"]
    return minutes * MINUTE_MS
