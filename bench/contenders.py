"""Who is compared: bare SQLite, syncd and its saver, LangGraph's SqliteSaver. Same payload, same
durability; one line has LangGraph's as it comes, whatever it syncs.

Each writing line has a database of its own, so that nobody pays for another's WAL or cache.
Every other database lies in one folder and is checked to be in WAL mode with synchronous = FULL.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    empty_checkpoint,
)
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.disk import assert_durable, connection, raw_commit
from bench.lines import (
    CREATE,
    CREATE_AT_REST,
    CREATE_END_TO_END,
    CREATE_UNREDACTED,
    GET_TUPLE,
    HISTORY,
    LATEST,
    LATEST_DOCUMENT,
    LIST_10,
    PUT,
    PUT_DEFAULTS,
    PUT_ENVELOPE,
    RAW_READ,
    RAW_READ_10,
    RAW_WRITE,
    SAVER_GET,
    SAVER_LIST,
    SAVER_PUT,
    UPDATE,
)
from bench.measure import Operation, repeated
from bench.payload import TASK, Payload, create
from syncd.langgraph import SyncdSaver
from syncd.service import CheckpointService

SHOWN = 10


@contextmanager
def contenders(folder: Path, payload: Payload) -> Iterator[list[Operation]]:
    """Every operation on `payload`, on fresh databases in `folder`."""
    folder.mkdir()
    with (
        closing(CheckpointService(home=folder / "syncd-create")) as creator,
        closing(_set(folder / "plain", "redaction.enabled = false")) as unredacted,
        closing(_set(folder / "at-rest", 'encryption = "at_rest"')) as at_rest,
        closing(_set(folder / "end-to-end", 'encryption = "end_to_end"')) as end_to_end,
        closing(CheckpointService(home=folder / "syncd-update")) as updater,
        closing(connection(folder / "raw.db")) as raw,
        closing(connection(folder / "put.db", isolation_level="DEFERRED")) as put,
        closing(connection(folder / "envelope.db", isolation_level="DEFERRED")) as envelope,
        closing(sqlite3.connect(folder / "defaults.db", check_same_thread=False)) as defaults,
        closing(SyncdSaver(home=folder / "syncd-saver")) as saver,
    ):
        for home in (creator, unredacted, at_rest, end_to_end, updater, saver):
            assert_durable(home.node.store.connection)
        yield [
            *_raw(raw, payload),
            *_syncd(creator, payload),
            _create(CREATE_UNREDACTED, unredacted, payload),
            _create(CREATE_AT_REST, at_rest, payload),
            _create(CREATE_END_TO_END, end_to_end, payload),
            _update(updater, payload),
            *_langgraph(_saver(put), payload, (PUT, GET_TUPLE, LIST_10)),
            *_langgraph(saver, payload, (SAVER_PUT, SAVER_GET, SAVER_LIST)),
            _langgraph(SqliteSaver(defaults), payload, (PUT_DEFAULTS, "", ""))[0],
            _enveloped(_saver(envelope), payload),
        ]


# --- bare SQLite ------------------------------------------------------------------------------


def _raw(opened: sqlite3.Connection, payload: Payload) -> list[Operation]:
    def newest(limit: int) -> object:
        rows = opened.execute("SELECT body FROM raw ORDER BY id DESC LIMIT ?", (limit,))
        return rows.fetchall()

    return [
        raw_commit(opened, TASK, payload.body, RAW_WRITE),
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


def _set(home: Path, setting: str) -> CheckpointService:
    """A home with one setting that is not as usual: what it costs is the difference."""
    home.mkdir()
    (home / "config.toml").write_text(setting + "\n")
    return CheckpointService(home=home)


def _create(line: str, service: CheckpointService, payload: Payload) -> Operation:
    return Operation(line, repeated(payload), lambda item: create(service, item))


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


def _saver(opened: sqlite3.Connection) -> SqliteSaver:
    saver = SqliteSaver(opened)
    saver.setup()
    assert_durable(saver.conn)
    return saver


def _thread() -> Any:
    """A RunnableConfig: its type belongs to another package, and it is a plain dict."""
    return {"configurable": {"thread_id": TASK, "checkpoint_ns": ""}}


def _checkpoint(document: dict[str, Any]) -> Checkpoint:
    """Channel versions stay empty: less than a real graph would store."""
    return {**empty_checkpoint(), "channel_values": document}


def _putting(saver: BaseCheckpointSaver[Any]) -> Callable[[Checkpoint], None]:
    """Each put names the one before as its parent, as a graph does and as syncd's create does."""
    config = _thread()

    def put(checkpoint: Checkpoint) -> None:
        nonlocal config
        config = saver.put(config, checkpoint, _METADATA, {})

    return put


def _langgraph(
    saver: BaseCheckpointSaver[Any], payload: Payload, names: tuple[str, str, str]
) -> list[Operation]:
    document, put = payload.document(), _putting(saver)

    def fresh(count: int) -> Sequence[Checkpoint]:
        return [_checkpoint(document) for _ in range(count)]

    put(_checkpoint(document))
    return [
        Operation(names[0], fresh, put),
        Operation(names[1], repeated(_thread()), saver.get_tuple),
        Operation(names[2], repeated(_thread()), lambda at: list(saver.list(at, limit=SHOWN))),
    ]


def _enveloped(saver: SqliteSaver, payload: Payload) -> Operation:
    """Id and time are made inside the measured part, as syncd's create makes its own."""
    put = _putting(saver)
    return Operation(
        PUT_ENVELOPE, repeated(payload.document()), lambda document: put(_checkpoint(document))
    )
