"""Who is compared: bare SQLite, syncd, LangGraph's SqliteSaver. Same payload, same durability.

Each writing line has a database of its own, so that nobody pays for another's WAL or cache.
Every database lies in one folder and is checked to be in WAL mode with synchronous = FULL.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.measure import Operation, repeated
from bench.payload import TASK, Payload, create
from syncd.service import CheckpointService

RAW_WRITE, RAW_READ, RAW_READ_10 = "raw commit", "raw read", "raw read 10"
CREATE, UPDATE = "syncd create", "syncd update"
LATEST, LATEST_DOCUMENT, HISTORY = "syncd latest", "syncd latest document", "syncd history 10"
PUT, PUT_ENVELOPE = "LangGraph put", "LangGraph put + envelope"
GET_TUPLE, LIST_10 = "LangGraph get_tuple", "LangGraph list 10"

# For each line, the lines that it is held against: bare SQLite's and LangGraph's.
REFERENCES = {
    **dict.fromkeys((RAW_WRITE, CREATE, UPDATE, PUT, PUT_ENVELOPE), (RAW_WRITE, PUT)),
    **dict.fromkeys((RAW_READ, LATEST, LATEST_DOCUMENT, GET_TUPLE), (RAW_READ, GET_TUPLE)),
    **dict.fromkeys((RAW_READ_10, HISTORY, LIST_10), (RAW_READ_10, LIST_10)),
}
WRITES = (RAW_WRITE, CREATE, UPDATE, PUT, PUT_ENVELOPE)
FULL = 2
SHOWN = 10


@contextmanager
def contenders(folder: Path, payload: Payload) -> Iterator[list[Operation]]:
    """Every operation on `payload`, on fresh databases in `folder`."""
    folder.mkdir()
    with (
        closing(CheckpointService(home=folder / "syncd-create")) as creator,
        closing(CheckpointService(home=folder / "syncd-update")) as updater,
        closing(_connection(folder / "raw.db")) as raw,
        closing(_connection(folder / "put.db", isolation_level="DEFERRED")) as put,
        closing(_connection(folder / "envelope.db", isolation_level="DEFERRED")) as envelope,
    ):
        for service in (creator, updater):
            assert_durable(service.node.store.connection)
        yield [
            *_raw(raw, payload),
            *_syncd(creator, payload),
            _update(updater, payload),
            *_langgraph(_saver(put), payload),
            _enveloped(_saver(envelope), payload),
        ]


def _connection(path: Path, isolation_level: Any = None) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=isolation_level)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":
        # As syncd does: without it macOS acknowledges what its drive has not written.
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
    assert_durable(connection)
    return connection


def assert_durable(connection: sqlite3.Connection) -> None:
    """A comparison with somebody who syncs less would be worth nothing."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    if (mode, level) != ("wal", FULL):
        raise AssertionError(f"not WAL with synchronous FULL but {mode}, {level}")


# --- bare SQLite ------------------------------------------------------------------------------


def _raw(connection: sqlite3.Connection, payload: Payload) -> list[Operation]:
    """The floor: the same bytes, nothing computed, nothing checked, nothing parsed."""
    execute, row = connection.execute, (TASK, payload.body)
    execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, task TEXT, body BLOB)")

    def commit(_: None) -> None:
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO raw (task, body) VALUES (?, ?)", row)
        execute("COMMIT")

    def newest(limit: int) -> object:
        return execute("SELECT body FROM raw ORDER BY id DESC LIMIT ?", (limit,)).fetchall()

    return [
        Operation(RAW_WRITE, repeated(None), commit),
        Operation(RAW_READ, repeated(1), newest),
        Operation(RAW_READ_10, repeated(SHOWN), newest),
    ]


# --- syncd ------------------------------------------------------------------------------------


def _syncd(service: CheckpointService, payload: Payload) -> list[Operation]:
    store = service.node.store

    def latest_document(task: str) -> object:
        record = store.latest(task)
        return record.document() if record else None

    def history(task: str) -> object:
        return service.get_checkpoint_history(task, SHOWN)

    create(service, payload)
    return [
        Operation(CREATE, repeated(payload), lambda item: create(service, item)),
        Operation(LATEST, repeated(TASK), service.get_latest_checkpoint),
        Operation(LATEST_DOCUMENT, repeated(TASK), latest_document),
        Operation(HISTORY, repeated(TASK), history),
    ]


def _update(service: CheckpointService, payload: Payload) -> Operation:
    """One more item done. A merge patch replaces a list, so each carries the whole of it; the
    added item differs every time and the body keeps its size."""
    checkpoint_id = create(service, payload)
    done = payload.document()["execution_state"]["completed_items"]
    numbers = iter(range(10**6, 10**7))

    def patches(count: int) -> list[dict[str, Any]]:
        return [
            {"execution_state": {"completed_items": [*done, f"Review PAY-{next(numbers)}"]}}
            for _ in range(count)
        ]

    def update(patch: dict[str, Any]) -> None:
        service.update_checkpoint(checkpoint_id, patch)

    return Operation(UPDATE, patches, update)


# --- LangGraph --------------------------------------------------------------------------------

_METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}


def _saver(connection: sqlite3.Connection) -> SqliteSaver:
    saver = SqliteSaver(connection)
    saver.setup()
    assert_durable(saver.conn)
    return saver


def _thread() -> RunnableConfig:
    return {"configurable": {"thread_id": TASK, "checkpoint_ns": ""}}


def _checkpoint(document: dict[str, Any]) -> Checkpoint:
    """Channel versions stay empty: less than a real graph would store."""
    return {**empty_checkpoint(), "channel_values": document}


def _putting(saver: SqliteSaver) -> Callable[[Checkpoint], None]:
    """Each put names the one before as its parent, as a graph does and as syncd's create does."""
    config = _thread()

    def put(checkpoint: Checkpoint) -> None:
        nonlocal config
        config = saver.put(config, checkpoint, _METADATA, {})

    return put


def _langgraph(saver: SqliteSaver, payload: Payload) -> list[Operation]:
    document, put = payload.document(), _putting(saver)

    def fresh(count: int) -> Sequence[Checkpoint]:
        return [_checkpoint(document) for _ in range(count)]

    put(_checkpoint(document))
    return [
        Operation(PUT, fresh, put),
        Operation(GET_TUPLE, repeated(_thread()), saver.get_tuple),
        Operation(LIST_10, repeated(_thread()), lambda at: list(saver.list(at, limit=SHOWN))),
    ]


def _enveloped(saver: SqliteSaver, payload: Payload) -> Operation:
    """Id and time are made inside the measured part, as syncd's create makes its own."""
    put = _putting(saver)
    return Operation(
        PUT_ENVELOPE, repeated(payload.document()), lambda document: put(_checkpoint(document))
    )
