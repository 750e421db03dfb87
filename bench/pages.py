"""How long the pages of `syncd ui` take, and how heavy they are, over a long history."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.payload import Payload
from syncd import tasks
from syncd.entry import CHECKPOINT, CREATE, UPDATE, Draft, uuid7
from syncd.service import CheckpointService
from syncd.store import Store

TASKS, AGENTS, DAYS = 2_000, 40, 60
PER_COMMIT = 5_000
LONG_TASK = "task-0000"
_DAY_MS = 86_400_000
_PHASES = ("planning", "implementing", "testing", "reviewing")


def filled(home: Path, payload: Payload, entries: int) -> Path:
    """Checkpoints as anybody writes them, thousands to a commit and two months in minutes. Every
    twentieth is of one long task, every tenth a later version of the one before, and now and then
    one begins a branch."""
    with closing(CheckpointService(home=home)) as service:
        store = service.node.store
        begin = int(time.time() * 1000) - DAYS * _DAY_MS
        number = 0
        store.now_ms = lambda: begin + number * DAYS * _DAY_MS // entries
        for name in range(min(TASKS, entries)):
            tasks.add(service.node, f"task-{name:04}", title=f"What task {name} is about")
        for first in range(0, entries, PER_COMMIT):
            with store.transaction():
                for number in range(first, min(first + PER_COMMIT, entries)):
                    _write(store, payload, number)
    return home


def _write(store: Store, payload: Payload, number: int) -> None:
    task = LONG_TASK if number % 20 == 0 else f"task-{number % TASKS:04}"
    agent = f"agent-{(number // 50_000 + number) % AGENTS:02}"
    place = store.place(task, agent)
    again = number % 10 == 9 and place.current_id
    entry_id = uuid7()
    name = place.current_id if again and place.current_id else entry_id
    parent = _parent(store, number, place.current_id or "", name)
    meta = {
        "task_id": task, "agent": agent, "agent_type": "implementation", "iteration": 1,
        "phase": _PHASES[number % 4], "status": "in_progress", "reason": "",
        "tokens": number % 9_000, "parent": parent,
    }  # fmt: skip
    body = payload.body.replace(b'"pay-api"', f'"{task}"'.encode())
    draft = Draft(entry_id, CHECKPOINT, name, UPDATE if again else CREATE, agent, meta, body,
                  _bases(store, name) if again else ())  # fmt: skip
    store.append(draft, place)


def _parent(store: Store, number: int, current: str, name: str) -> str:
    """Its predecessor; for one in a thousand that one's own, so that a branch begins."""
    if current and (name == current or number % 1_000 == 500):
        row: tuple[Any, ...] | None = store.row("branch_of", (current,))
        return str(row[1]) if row else ""
    return current


def _bases(store: Store, name: str) -> tuple[str, ...]:
    row = store.row("checkpoint", (name,))
    return (str(row[18]),) if row else ()
