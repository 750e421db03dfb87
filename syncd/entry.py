"""The log entry: one immutable change, and the rule that says which version is current.

Plain tuples and functions without I/O: reading the newest checkpoint must start fast.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import orjson

CHECKPOINT, TASK, LINK, CHOICE, PURGE = "checkpoint", "task", "link", "choice", "purge"
# The first entry of a device that continues another one under a new key. It belongs to no task.
KEY = "key"
# What agents have to do with each other. Nobody chooses between versions of these: each is a fact.
HANDOFF, LEASE, MESSAGE, AGENT = "handoff", "lease", "message", "agent"
INVOCATION, RECOVERY = "invocation", "recovery"
# The states of a graph's threads, what its steps have written beside them, large values in pieces,
# and what was deleted of these.
GRAPH, GRAPH_WRITE, GRAPH_BLOB = "graph", "graph_write", "graph_blob"
GRAPH_DELETE = "graph_delete"
KINDS = (CHECKPOINT, TASK, HANDOFF, LEASE, MESSAGE, AGENT, INVOCATION, RECOVERY, CHOICE, LINK,
         PURGE, KEY, GRAPH, GRAPH_WRITE, GRAPH_BLOB, GRAPH_DELETE)  # fmt: skip
CREATE, UPDATE, FINALIZE = "create", "update", "finalize"
ACKNOWLEDGE, RELEASE = "acknowledge", "release"

# The order is part of the format: it is the order in which the header is chained.
HEADER_FIELDS = (
    "entry_id",
    "device_id",
    "device_seq",
    "entity",
    "entity_id",
    "op",
    "bases",
    "hlc",
    "actor",
    "at",
    "key_id",
    "meta",
)


class Entry(NamedTuple):
    """A row of the log, columns in the order of the table."""

    seq: int
    entry_id: str
    device_id: str
    device_seq: int
    entity: str
    entity_id: str
    op: str
    bases: str
    hlc: int
    actor: str
    at: str
    key_id: str
    meta: str
    hash: str
    previous: bytes
    chain: bytes
    signature: bytes | None
    effective_hlc: int
    cloud_seq: int | None
    batch: str | None
    body: bytes
    refused: str | None = None
    purged: str | None = None

    def header(self) -> bytes:
        return header_bytes(self[1:13])


class Draft(NamedTuple):
    """What a writer wants to say; the store adds place, time and proof."""

    entry_id: str
    entity: str
    entity_id: str
    op: str
    actor: str
    meta: dict[str, Any]
    body: bytes
    bases: tuple[str, ...] = ()


class Version(NamedTuple):
    """What the choice between versions of one entity depends on, and nothing else."""

    entry_id: str
    bases: Sequence[str]
    final: bool
    effective_hlc: int
    device_id: str
    hash: str


V = TypeVar("V", bound=Version)


def header_bytes(fields: Sequence[object]) -> bytes:
    """The header as a JSON array of texts: unambiguous, and easy to build in SQL too."""
    return orjson.dumps([str(field) for field in fields])


def heads(versions: Sequence[V]) -> list[V]:
    """The versions that no other names as its base.

    A final version stays a head whatever is based on it: a signed record is never replaced.
    """
    final = {version.entry_id for version in versions if version.final}
    superseded = {base for version in versions for base in version.bases} - final
    return [version for version in versions if version.entry_id not in superseded]


def winner(candidates: Iterable[V]) -> V:
    """The current version: a pure function of the set, so every node chooses the same."""
    return max(candidates, key=lambda v: (v.final, v.effective_hlc, v.device_id, v.entry_id))


def uuid7() -> str:
    """A UUID that sorts by time (RFC 9562, version 7), to a quarter of a microsecond.

    Ids that grow let SQLite append to its indexes instead of splitting their pages.
    """
    ms, rest = divmod(max(0, time.time_ns()), 1_000_000)  # before 1970, as clock.wall_ms
    noise = int.from_bytes(os.urandom(8)) >> 2
    number = ms << 80 | 0x7 << 76 | rest * 4096 // 1_000_000 << 64 | 0x2 << 62 | noise
    text = number.to_bytes(16).hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
