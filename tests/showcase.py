"""A home as people have it: several agents and tasks, a fork, a conflict, a damaged checkpoint."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import NamedTuple

import orjson

from syncd import Checkpoint, CheckpointService, tasks
from syncd.canonical import canonical
from syncd.entry import CHECKPOINT, UPDATE, Draft, uuid7
from syncd.graphs import At, Graphs
from syncd.node import Node
from syncd.views import Views

_HOUR_MS = 3_600_000
_WORK = {
    "checkout-redesign": ("One-page checkout", "ann", "planner-1", "qa-2"),
    "dark-mode": ("Dark mode for the shop", "ann", "bob"),
    "invoice-export": ("Export invoices as PDF and XML", "ledger-agent", "qa-2"),
    "login-rate-limit": ("Slow down password guessing", "sec-agent"),
    "search-index": ("Move search to its own index", "bob", "indexer"),
}
THREAD = "support-bot"
TASKS = (*_WORK, THREAD)
_STEPS = (
    "read the code and wrote a plan", "toggle component", "store the choice per user",
    "wire it into the header", "unit tests for the reducer", "contrast of all colours checked",
    "migration behind a flag", "handled the empty cart", "retry when the gateway times out",
    "covered refunds with tests", "removed the polling worker", "documented the error codes",
)  # fmt: skip
_DECISIONS = (
    ("CSS custom properties", "no style is calculated at run time"),
    ("amounts are integers of minor units", "floats lost a cent in the reconciliation"),
    ("lock the row, not the table", "table locks queued every refund of a merchant"),
)
_PHASES = ("planning", "implementing", "implementing", "testing", "reviewing")


class Showcase(NamedTuple):
    """The home and the ids of what is special in it."""

    home: Path
    forked: str
    conflict: str
    damaged: str
    final: str


def built(home: Path) -> Showcase:
    """Three weeks of work, the same each time but for ids and dates."""
    service = CheckpointService(home=home)
    try:
        return _built(service)
    finally:
        service.close()


def _built(service: CheckpointService) -> Showcase:
    node, chosen = service.node, random.Random(7)
    now = int(time.time() * 1000)
    at = now - 21 * 24 * _HOUR_MS
    node.store.now_ms = lambda: at
    for task, (title, *_) in _WORK.items():
        tasks.add(node, task, title=title, budget=900_000 if task == "dark-mode" else None)
    damaged = final = ""
    for number in range(90):
        at = now - int((90 - number) * 5.5 * _HOUR_MS)
        task = chosen.choice(list(_WORK))
        made = _step(service, task, chosen.choice(_WORK[task][1:]), number, chosen)
        damaged = made if task == "search-index" and number < 70 else damaged
        final = made if task == "invoice-export" else final
    at = now - 3 * _HOUR_MS
    forked = _fork(service, "dark-mode", chosen)
    at = now - 2 * _HOUR_MS
    conflict = _conflict(service, "checkout-redesign")
    service.finalize_checkpoint(final, sign_as="Ann Example", meaning="reviewed")
    tasks.escalate(node, "login-rate-limit", "security team", "two rules contradict",
                   "lock accounts, or slow down answers?")  # fmt: skip
    at = now - 60_000
    service.heartbeat("ann", "dark-mode", agent_type="implementation")
    service.heartbeat("bob", "search-index", agent_type="implementation")
    thread(node, THREAD, 12)
    _attempts(node, now)
    damage(node, damaged)
    return Showcase(service.node.home, forked, conflict, damaged, final)


def _step(
    service: CheckpointService, task: str, agent: str, number: int, chosen: random.Random
) -> str:
    latest = service.get_latest_checkpoint(task)
    done = [str(item) for item in latest.execution_state.completed_items] if latest else []
    decision, why = _DECISIONS[number % 3]
    return service.create_checkpoint(
        task, agent,
        {"phase": _PHASES[min(len(done) // 3, 4)],
         "completed_items": [*done, f"{_STEPS[number % 12]} ({number})"][-6:],
         "pending_items": [_STEPS[(number + 1) % 12], _STEPS[(number + 2) % 12]]},
        {"key_decisions": [{"decision": decision, "rationale": why}]},
        {"tokens_consumed": chosen.randrange(4_000, 60_000), "tools_invoked": 12,
         "files_modified": [f"src/{task.replace('-', '_')}.py", "tests/test_shop.py"],
         "tests_status": {"passed": 180 + number, "failed": number % 3, "skipped": 2}},
        iteration=1 + number // 30,
    ).metadata.checkpoint_id  # fmt: skip


def _fork(service: CheckpointService, task: str, chosen: random.Random) -> str:
    """Two go on from the same checkpoint."""
    current = service.get_latest_checkpoint(task)
    assert current is not None
    base = current.metadata.checkpoint_id
    first = _step(service, task, "bob", 201, chosen)
    service.create_checkpoint(
        task, "ann", {"phase": "testing", "completed_items": ["another way: a web component"]},
        metrics={"tokens_consumed": 21_000}, parent=base,
    )  # fmt: skip
    return first


def _conflict(service: CheckpointService, task: str) -> str:
    """A version of a checkpoint that another machine wrote at the same time, and that lost."""
    current = service.get_latest_checkpoint(task)
    assert current is not None
    name = current.metadata.checkpoint_id
    refocused(service, current, "guest checkout", ["address form", "guest e-mail"])
    refocused(service, current, "saved cards", ["card vault", "3-D Secure"])
    (row,) = service.node.store.rows("conflicts_of", (name,))
    return str(row[0])


def refocused(
    service: CheckpointService, current: Checkpoint, focus: str, pending: list[str]
) -> None:
    """A version beside others, based on one that may have been replaced since."""
    store, name = service.node.store, current.metadata.checkpoint_id
    body = current.body()
    body["execution_state"].update(current_focus=focus, pending_items=pending)
    with store.transaction():
        row = store.row("checkpoint", (name,))
        assert row is not None
        meta = orjson.loads(row[29])
        for left_out in ("task_seq", "continues"):
            meta.pop(left_out, None)
        draft = Draft(uuid7(), CHECKPOINT, name, UPDATE, current.metadata.agent_id, meta,
                      canonical(body), (current.revision or "",))  # fmt: skip
        store.append(draft, store.place(current.metadata.task_id))
        Views(store.connection).settle(CHECKPOINT, name)


def _attempts(node: Node, now: int) -> None:
    from syncd import clock

    with node.store.transaction():
        for number in range(40):
            error = "the replica cannot be reached" if number in (11, 12, 13) else ""
            sent, got = (0, 0) if error else ((number * 7) % 23, (number * 5) % 11)
            at = clock.iso(now - (40 - number) * 7 * 60_000)
            node.store.change("add_attempt", (at, sent, got, error))


def thread(node: Node, name: str, states: int) -> None:
    """As a graph puts them through SyncdSaver."""
    found, before = Graphs(node), ""
    for number in range(states):
        at, value = At(name, "", f"1f0c2a10-{number:04}"), ("json", b"{}")
        found.put(at, before, {"checkpoint": value, "metadata": value}, {}, step=number)
        found.write(at, "a step", "", [(0, "messages", value)], replace=False)
        before = at.id


def damage(node: Node, checkpoint_id: str) -> None:
    """What a broken disk, or a curious hand, does."""
    node.store.connection.execute(
        "UPDATE log SET body = x'7b7d' WHERE seq = (SELECT seq FROM checkpoints WHERE id = ?)",
        (checkpoint_id,),
    )
