"""Machines for the sync part: homes with a backlog, and the engine that a login drives."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

from bench.payload import AGENT, Payload, varied
from syncd.checkpoint import CheckpointMetadata, assembled
from syncd.exchange import Exchange
from syncd.node import Node
from syncd.replica import Replica, Standing
from syncd.service import CheckpointService
from syncd.sync import Engine

PER_COMMIT = 5_000
# So many tasks are worked on at a time, and each ends after so many checkpoints.
AT_A_TIME, PER_TASK = 20, 50


class Device:
    """A home with its way to the replica."""

    def __init__(self, home: Path, dsn: str) -> None:
        self.node = Node(home)
        self.replica = Replica(dsn)
        exchange = Exchange(self.node.store)
        self.engine = Engine(exchange, self.replica, self.node.key)

    def push(self) -> None:
        self.engine.meet()
        self.engine.push()

    def standing(self) -> Standing:
        return self.replica.hello(self.node.store.device_id, self.node.key.public())

    def entries(self) -> int:
        return int((self.node.store.row("counts") or (0,))[0])

    def close(self) -> None:
        self.replica.close()
        self.node.close()


def fill(home: Path, payload: Payload, first: int, last: int) -> None:
    """Entries as a user writes them, but thousands to a commit."""
    with closing(CheckpointService(home=home)) as service:
        for start in range(first, last, PER_COMMIT):
            with service.node.store.transaction():
                for number in range(start, min(start + PER_COMMIT, last)):
                    save(service, varied(payload, number), task(number))


def save(service: CheckpointService, payload: Payload, task_id: str) -> None:
    service.save(
        assembled(
            metadata=CheckpointMetadata(task_id=task_id, agent_id=AGENT),
            execution_state=payload.state,
            context_summary=payload.context,
            metrics=payload.metrics,
        )
    )


def task(number: int) -> str:
    generation, place = divmod(number, AT_A_TIME * PER_TASK)
    return f"task-{generation * AT_A_TIME + place % AT_A_TIME}"


def copied(home: Path, place: Path) -> Path:
    """A machine with the same backlog: the same device, for another organization."""
    shutil.copytree(home, place)
    return place
