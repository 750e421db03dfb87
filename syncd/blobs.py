"""Large values, in pieces that fit into entries; each once in a task, as its name follows from its
content."""

from __future__ import annotations

import base64
from itertools import groupby
from typing import Any

import orjson

from syncd.entry import CREATE, GRAPH_BLOB, Draft, Entry, uuid7
from syncd.errors import GraphDamagedError
from syncd.node import Node
from syncd.seal import flaw

# An entry's body may be that long; a replica takes four times as much.
_LONGEST = 1_000_000
_SHORTEST = 4_000
_FRAME = 64


class Blobs:
    """The large values of one home."""

    def __init__(self, node: Node, actor: str) -> None:
        self._store = node.store
        self._actor = actor
        limit = min(max(node.settings["limits.body_bytes"], _SHORTEST), _LONGEST)
        self.piece = (limit - _FRAME) // 4 * 3

    def keep(self, task_id: str, prefix: str, content: bytes) -> dict[str, Any]:
        """Store a value in the caller's transaction, unless it is there; what it is found by."""
        found = {
            "address": self._store.vault.address(content),
            "bytes": len(content),
            "piece": self.piece,
        }
        low, high = _range(prefix, found)
        [count] = self._store.row("graph_piece_count", (low, high)) or (0,)
        if count != _pieces(found):
            for number in range(_pieces(found)):
                part = content[number * self.piece : (number + 1) * self.piece]
                self._append(task_id, f"{low}{number:06}", part)
        return found

    def _append(self, task_id: str, name: str, part: bytes) -> None:
        body = orjson.dumps({"piece": base64.b64encode(part).decode()})
        meta = {"task_id": task_id}
        draft = Draft(uuid7(), GRAPH_BLOB, name, CREATE, self._actor, meta, body)
        self._store.append(draft, self._store.graph_place(task_id))

    def read(self, prefix: str, found: dict[str, Any]) -> bytes:
        """A value, as it was given; raises if a piece is damaged or missing."""
        rows = self._store.rows("graph_pieces", _range(prefix, found))
        copies = groupby((self._store.read(row) for row in rows), key=lambda e: e.entity_id)
        pieces = [self._intact(list(entries)) for _, entries in copies]
        content = b"".join(_opened(entry) for entry in pieces)
        if len(pieces) != _pieces(found):
            raise self._damaged(prefix, found, f"{len(pieces)} of {_pieces(found)} pieces are here")
        key_id = pieces[0].key_id if pieces else ""
        if self._store.vault.address(content, key_id) != found["address"]:
            raise self._damaged(prefix, found, "its pieces are not what its name says")
        return content

    def _intact(self, copies: list[Entry]) -> Entry:
        """Two machines may have stored the same."""
        problems = [flaw(entry) for entry in copies]
        for entry, problem in zip(copies, problems, strict=True):
            if problem is None:
                return self._store.vault.readable(entry)
        entry, problem = copies[0], str(problems[0])
        subject = f"a piece of a value, {entry.entity_id}"
        raise self._store.damaged(subject, entry.entry_id, problem, GraphDamagedError)

    def _damaged(self, prefix: str, found: dict[str, Any], problem: str) -> GraphDamagedError:
        name = f"{prefix}{found['address']}"
        return GraphDamagedError(f"the value {name}: {problem}", entry_id=name, problem=problem)


def _range(prefix: str, found: dict[str, Any]) -> tuple[str, str]:
    low = f"{prefix}{found['address']}/{found['piece']}/"
    return low, f"{low[:-1]}0"


def _pieces(found: dict[str, Any]) -> int:
    return -(-int(found["bytes"]) // int(found["piece"]))


def _opened(entry: Entry) -> bytes:
    return base64.b64decode(orjson.loads(entry.body)["piece"])
