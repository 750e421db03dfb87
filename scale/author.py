"""A device without a database: what it would have written, chained and signed in advance.

The bodies are checkpoints that syncd itself has made, with ids of their own put in.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.device import save
from bench.payload import Payload, small, varied
from syncd import clock
from syncd.entry import CHECKPOINT, CREATE, UPDATE, Entry, header_bytes, uuid7
from syncd.replica import Batch, encoded
from syncd.seal import GENESIS, SigningKey, chain_value, digest
from syncd.service import CheckpointService

PER_TASK = 50
# One of so many entries is another version of the checkpoint before it: a task's last one.
UPDATES = 50
_TASK = "task-0000000000"
_NOBODY = "00000000-0000-0000-0000-000000000000"


class Template(NamedTuple):
    """A checkpoint with places for the ids: its own, its task's, its parent's."""

    checkpoint_id: bytes
    parent: bytes
    meta: dict[str, object]
    body: bytes

    def filled(self, checkpoint_id: str, task: str, parent: str) -> bytes:
        return (
            self.body.replace(self.checkpoint_id, checkpoint_id.encode())
            .replace(self.parent, (parent or _NOBODY).encode())
            .replace(_TASK.encode(), task.encode())
        )


def templates(count: int) -> list[Template]:
    base = small()
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(CheckpointService(home=Path(folder) / "home")) as service,
        service.node.store.transaction(),
    ):
        made = [_template(service, base, number) for number in range(count + 1)]
    return made[1:]  # the first has no parent


def _template(service: CheckpointService, base: Payload, number: int) -> Template:
    save(service, varied(base, number), _TASK)
    record = service.node.store.latest(_TASK)
    if record is None:
        raise AssertionError("the checkpoint just written is not there")
    meta = orjson.loads(record.entry.meta)
    return Template(
        record.entry.entity_id.encode(), str(meta["parent"]).encode() or b"\0", meta,
        record.entry.body,
    )  # fmt: skip


class Author:
    """Writes one device's entries, task after task."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self.device_id = str(uuid.uuid4())
        self.key = SigningKey(Ed25519PrivateKey.generate())
        self._templates, self._offset = templates, uuid.UUID(self.device_id).int
        self._seq, self._chain, self._hlc = 0, GENESIS, 0
        self._task, self._checkpoint, self._parent, self._entry = "", "", "", ""
        self.chains: list[bytes] = []

    def batch(self, size: int) -> Batch:
        """The next entries; the last one carries the signature for all of them."""
        entries = [self._next() for _ in range(size)]
        signature = self.key.sign(entries[-1].chain)
        entries[-1] = entries[-1]._replace(signature=signature)
        return encoded(entries)

    def _next(self) -> Entry:
        made, number = uuid7(), self._seq
        template = self._templates[(self._offset + number) % len(self._templates)]
        op, bases = CREATE, "[]"
        if number % UPDATES == UPDATES - 1:
            op, bases = UPDATE, f'["{self._entry}"]'
        else:
            self._begin(made, number % PER_TASK == 0)
        self._entry = made
        meta = {**template.meta, "task_id": self._task, "parent": self._parent,
                "task_seq": number % PER_TASK + 1}  # fmt: skip
        body = template.filled(self._checkpoint, self._task, self._parent)
        return self._chained(made, op, bases, orjson.dumps(meta).decode(), body)

    def _begin(self, checkpoint_id: str, new_task: bool) -> None:
        self._parent, self._checkpoint = self._checkpoint, checkpoint_id
        if new_task:
            self._task, self._parent = f"task-{uuid7()[-10:]}", ""

    def _chained(self, entry_id: str, op: str, bases: str, meta: str, body: bytes) -> Entry:
        now = clock.wall_ms()
        self._seq, self._hlc = self._seq + 1, clock.tick(self._hlc, now)
        words = (entry_id, self.device_id, self._seq, CHECKPOINT, self._checkpoint, op, bases,
                 self._hlc, "agent-7", clock.iso(now), "", meta)  # fmt: skip
        body_hash, previous = digest(body), self._chain
        self._chain = chain_value(previous, header_bytes(words), body_hash)
        self.chains.append(self._chain)
        proof = (body_hash, previous, self._chain, None, self._hlc)
        return Entry._make((0, *words, *proof, None, None, body, None, None))
