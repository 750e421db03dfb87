"""What the tally says against what a look at everything says."""

from __future__ import annotations

from typing import Any

import orjson

from syncd import agents, liveness, tally, tenure
from syncd.node import Node
from syncd.status import status


def assert_it_is_true(node: Node) -> None:
    """Whether or not it is brought up to date first."""
    before = _told(tally.read(node), node)
    assert before == _plain(node)
    document = status(node)
    assert document["push"]["pending"] == _pending(node)
    local = document["local"]
    assert (local["checkpoints"], local["tasks"]) == before[:2]
    assert _told(tally.read(node), node) == before


def _told(found: tally.Tally, node: Node) -> tuple[Any, ...]:
    notices = liveness.notices(node, found.agents, found.lost)
    return (found.checkpoints, found.tasks, agents.counts(found.agents), _sorted(notices),
            found.lost)  # fmt: skip


def _plain(node: Node) -> tuple[Any, ...]:
    everybody = agents.everybody(node)
    tasks = sorted(row[0] for row in node.store.rows("task_ids"))
    (checkpoints,) = node.store.connection.execute("SELECT COUNT(*) FROM checkpoints").fetchone()
    lost = [task for task in tasks if tenure.lost(node, task)]
    return (checkpoints, len(tasks), agents.counts(everybody),
            _sorted(liveness.notices(node, everybody)), lost)  # fmt: skip


def _pending(node: Node) -> int:
    state = dict(node.store.rows("states"))
    own = {row[0] for row in node.store.rows("own_ids")} - {*orjson.loads(state.get("left", "[]"))}
    text = "SELECT COUNT(*) FROM log WHERE cloud_seq IS NULL AND seq > ? AND device_id IN (%s)"
    marks = ", ".join("?" * len(own | {state["device_id"]}))
    values = (int(state.get("push_seq", 0)), *(own | {state["device_id"]}))
    (count,) = node.store.connection.execute(text % marks, values).fetchone()
    return int(count)


def _sorted(notices: list[dict[str, Any]]) -> list[str]:
    return sorted(notice["what"] for notice in notices)
