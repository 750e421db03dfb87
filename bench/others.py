"""Other stores that an agent may keep its state in, side by side in one run.

Each gets the same bytes to keep and is asked for the newest of them. Each syncs every commit:
SQLite in WAL mode with synchronous = FULL, PostgreSQL with its defaults. What they do besides
differs, and the report says what.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from dbos import DBOS
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlite_sync import SyncEngine

from bench.disk import assert_durable, connection, raw_commit
from bench.figures import Figures
from bench.measure import Operation, interleaved, repeated
from bench.payload import TASK, Payload, create
from bench.server import server
from bench.stores import (
    AGENTS,
    AGENTS_READ,
    BESIDE,
    DBOS_STEP,
    LANGGRAPH,
    LANGGRAPH_READ,
    POSTGRES,
    POSTGRES_READ,
    RAW,
    READS,
    SYNC_CORE,
    SYNCD,
    SYNCD_READ,
    Others,
)
from syncd.service import CheckpointService


def measured(folder: Path, payload: Payload, samples: int, tell: Callable[[str], None]) -> Others:
    folder.mkdir(mode=0o711)
    tell(f"others: {samples:,} samples of each")
    with ExitStack() as opened, durable_engines():
        operations = [
            *_syncd(opened, folder, payload),
            *_langgraph(opened, folder, payload),
            *_postgres(opened, folder, payload),
            *_agents(opened, folder, payload),
            _sync_core(opened, folder, payload),
        ]
        found = _within_a_workflow(folder, payload, operations, samples)
    return Others(
        payload.label,
        {name: found[name] for name in BESIDE},
        {name: found[name] for name in READS},
    )


# --- syncd and bare SQLite ----------------------------------------------------------------------


def _syncd(opened: ExitStack, folder: Path, payload: Payload) -> list[Operation]:
    raw = opened.enter_context(closing(connection(folder / "raw.db")))
    service = opened.enter_context(closing(CheckpointService(home=folder / "syncd")))
    assert_durable(service.node.store.connection)
    create(service, payload)

    def latest(task: str) -> object:
        record = service.node.store.latest(task)
        return record.document() if record else None

    return [
        raw_commit(raw, TASK, payload.body, RAW),
        Operation(SYNCD, repeated(payload), lambda item: create(service, item)),
        Operation(SYNCD_READ, repeated(TASK), latest),
    ]


# --- LangGraph ----------------------------------------------------------------------------------

_METADATA: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}


def _langgraph(opened: ExitStack, folder: Path, payload: Payload) -> list[Operation]:
    database = connection(folder / "langgraph.db", isolation_level="DEFERRED")
    saver = SqliteSaver(opened.enter_context(closing(database)))
    saver.setup()
    assert_durable(saver.conn)
    return _saving(saver, payload, LANGGRAPH, LANGGRAPH_READ)


def _postgres(opened: ExitStack, folder: Path, payload: Payload) -> list[Operation]:
    started = opened.enter_context(server(folder / "postgres"))
    dsn = started.superuser_dsn("postgres")
    saver = opened.enter_context(PostgresSaver.from_conn_string(dsn))
    saver.setup()
    return _saving(saver, payload, POSTGRES, POSTGRES_READ)


def _saving(saver: Any, payload: Payload, write: str, read: str) -> list[Operation]:
    """Each put names the one before as its parent, as a graph does."""
    document = payload.document()
    thread = config = {"configurable": {"thread_id": TASK, "checkpoint_ns": ""}}

    def put(checkpoint: Checkpoint) -> None:
        nonlocal config
        config = saver.put(config, checkpoint, _METADATA, {})

    def fresh(count: int) -> list[Checkpoint]:
        return [{**empty_checkpoint(), "channel_values": document} for _ in range(count)]

    put(fresh(1)[0])
    return [Operation(write, fresh, put), Operation(read, repeated(thread), saver.get_tuple)]


# --- OpenAI Agents ------------------------------------------------------------------------------


def _agents(opened: ExitStack, folder: Path, payload: Payload) -> list[Operation]:
    session = opened.enter_context(closing(_DurableSession(TASK, folder / "agents.db")))
    loop = opened.enter_context(closing(asyncio.new_event_loop()))
    item: Any = {"role": "user", "content": payload.body.decode()}

    def add(items: list[Any]) -> None:
        loop.run_until_complete(session.add_items(items))

    def newest(count: int) -> object:
        return loop.run_until_complete(session.get_items(count))

    add([item])
    return [
        Operation(AGENTS, repeated([item]), add),
        Operation(AGENTS_READ, repeated(1), newest),
    ]


class _DurableSession(SQLiteSession):
    """Its own mode is WAL already; each connection syncs every commit."""

    @staticmethod
    def _configure_connection(conn: sqlite3.Connection) -> None:
        SQLiteSession._configure_connection(conn)
        conn.execute("PRAGMA synchronous = FULL")
        assert_durable(conn)


# --- sqlite-sync-core ---------------------------------------------------------------------------


def _sync_core(opened: ExitStack, folder: Path, payload: Payload) -> Operation:
    engine = opened.enter_context(SyncEngine(str(folder / "sync-core.db")))
    engine.initialize()
    execute = engine.connection.execute
    execute("CREATE TABLE checkpoints (id TEXT PRIMARY KEY, body TEXT)")
    engine.enable_sync_for_table("checkpoints")
    execute("PRAGMA synchronous = FULL")
    assert_durable(engine.connection)
    text = payload.body.decode()

    def insert(name: str) -> None:
        execute("INSERT INTO checkpoints VALUES (?, ?)", (name, text))

    return Operation(SYNC_CORE, lambda count: [str(uuid.uuid4()) for _ in range(count)], insert)


# --- DBOS ---------------------------------------------------------------------------------------


def _within_a_workflow(
    folder: Path, payload: Payload, operations: list[Operation], samples: int
) -> dict[str, Figures]:
    """A step is recorded only in a workflow: all turns are taken inside one."""
    found: dict[str, Figures] = {}
    DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder / 'dbos.db'}",
                 "log_level": "ERROR"})  # fmt: skip

    @DBOS.step()
    def keep(document: dict[str, Any]) -> dict[str, Any]:
        return document

    @DBOS.workflow()
    def measure() -> None:
        step = Operation(DBOS_STEP, repeated(payload.document()), keep)
        found.update(interleaved([*operations, step], samples))

    DBOS.launch()
    try:
        measure()
    finally:
        DBOS.destroy()
    return found


@contextmanager
def durable_engines() -> Iterator[None]:
    """DBOS leaves SQLite's mode as it is: the slower one, which syncs more often."""

    def wal(opened: sqlite3.Connection, _record: object) -> None:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("PRAGMA synchronous = FULL")

    event.listen(Engine, "connect", wal)
    try:
        yield
    finally:
        event.remove(Engine, "connect", wal)
