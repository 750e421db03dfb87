"""Holding a task: to claim it, and to hear from the replica whether that came first.

While the replica can be reached, exactly one of several claims holds. Where it cannot, a claim
counts provisionally, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import orjson

from syncd import facts, fold, leases, running
from syncd.entry import LEASE, RELEASE
from syncd.errors import LeaseHeldError, ReplicaError, StoreBusyError
from syncd.leases import Claim, Worker
from syncd.node import Node

_LOOK_SECONDS = 0.004


class Tenure(NamedTuple):
    """A claim that holds; provisionally as long as the replica has not said so."""

    claim: Claim
    provisional: bool

    @property
    def fence(self) -> int | None:
        """Grows with every claim that is granted: whoever has the greatest holds the task."""
        return None if self.provisional else self.claim.fence


def standing(node: Node, task_id: str) -> list[Claim]:
    """The claims to a task that hold, the one that holds it now last. Where there is no replica,
    the place in the log is the fence."""
    found = leases.standing(_rows(node, task_id))
    if node.settings["cloud.dsn"]:
        return found
    return [claim._replace(fence=claim.fence or claim.seq) for claim in found]


def holder(node: Node, task_id: str) -> Claim | None:
    return next(reversed(standing(node, task_id)), None)


def lost(node: Node, task_id: str) -> list[Claim]:
    """Claims of this device that counted provisionally, and have lost since."""
    own = {row[0] for row in node.store.rows("own_ids")}
    return [claim for claim in leases.lost(_rows(node, task_id)) if claim.holder[1] in own]


def tasks_lost(node: Node, among: Iterable[str] | None = None) -> list[str]:
    """The tasks of such claims: whoever has made one is fenced off."""
    own = orjson.dumps([row[0] for row in node.store.rows("own_ids")]).decode()
    names = None if among is None else orjson.dumps(list(among)).decode()
    fenced = sorted(task for (task,) in node.store.rows("fenced_tasks", (own, names)))
    return [task for task in fenced if lost(node, task)]


def _rows(node: Node, task_id: str) -> list[fold.VersionRow]:
    return fold.versions(node.store.rows("versions_of", (task_id, LEASE)))


def take(
    node: Node, task_id: str, subject: str, agent: str, giver: Worker, seconds: float
) -> Tenure:
    """Claim a task. Waits so long for the replica's word; raises if another came first."""
    with node.store.transaction():
        claim_id = _claimed(node, task_id, subject, agent, giver)
    answered = _answered(node, claim_id, seconds)
    return _won(node, task_id, subject, claim_id, answered=answered)


def _claimed(node: Node, task_id: str, subject: str, agent: str, giver: Worker) -> str:
    """The claim that this agent has made before, perhaps a moment ago and without hearing what
    came of it, else a new one."""
    found = _of(node, task_id, subject)
    if found is None:
        meta = {"subject": subject, "holder": agent, "giver": giver[0], "giver_device": giver[1]}
        return facts.record(node, LEASE, task_id, meta, about=task_id, actor=agent).entry_id
    if found.holder != (agent, node.store.device_id):
        raise held(found, f"{agent} cannot have it too")
    return found.entry_id


def _of(node: Node, task_id: str, subject: str) -> Claim | None:
    return next((c for c in standing(node, task_id) if c.subject == subject), None)


def _won(node: Node, task_id: str, subject: str, entry_id: str, *, answered: bool) -> Tenure:
    with node.store.transaction():
        best = _of(node, task_id, subject)
        if best is not None and best.entry_id == entry_id:
            return Tenure(best, not answered)
        release(node, task_id, entry_id)
    if best is None:
        raise LeaseHeldError(f"the replica refused the claim {entry_id}", "See `syncd quarantine`.")
    raise held(best, "it came first")


def release(node: Node, task_id: str, claim_id: str) -> None:
    """Let go of a claim."""
    claim = next(f for f in facts.concerning(node, LEASE, task_id) if f.entry_id == claim_id)
    meta = {name: value for name, value in claim.meta.items() if name != "task_seq"}
    facts.record(node, LEASE, task_id, meta, about=task_id, op=RELEASE, bases=(claim_id,))


def held(claim: Claim, why: str) -> LeaseHeldError:
    agent, device = claim.holder
    return LeaseHeldError(f"{agent} holds it since {claim.at} (device {device}): {why}")


# --- the replica's word ---------------------------------------------------------------------------


def _answered(node: Node, entry_id: str, seconds: float) -> bool:
    """Whether it is settled who came first: the replica has the claim, and all that it has before
    it is here."""
    if not node.settings["cloud.dsn"]:
        return True
    deadline = time.monotonic() + seconds
    if not running.pid(node.home):
        _exchange(node, seconds)
    while not _settled(node, entry_id):
        if time.monotonic() >= deadline or not running.pid(node.home):
            return _settled(node, entry_id)
        time.sleep(_LOOK_SECONDS)
    return True


def _settled(node: Node, entry_id: str) -> bool:
    """A claim that was refused will never be: nobody else has it either."""
    row, cursor = node.store.row("placed", (entry_id,)), node.store.row("cursor")
    if row is None or row[7] is not None:
        return True
    return row[2] is not None and cursor is not None and cursor[0] >= row[2]


def _exchange(node: Node, seconds: float) -> None:
    """No daemon does it. Offline is nothing unusual: the claim waits."""
    from contextlib import closing

    try:
        with closing(node.replica()) as replica, node.exchanging(seconds):
            node.engine(replica).sync()
    except (ReplicaError, StoreBusyError):
        return
