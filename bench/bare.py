"""What sync is held against: the same rows through the same doors, nothing checked or derived."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

PAGE = 1_000
_SERVER_COLUMNS = """
  cloud_seq, batch::text, entry_id::text, device_id::text, device_seq, entity, entity_id, op, bases,
  hlc, actor, at, key_id, meta, hash, chain, signature, effective_hlc, refused, body
"""
_LOCAL_TABLE = """
  CREATE TABLE bare (cloud_seq INTEGER PRIMARY KEY, batch TEXT, entry_id TEXT, device_id TEXT,
    device_seq INTEGER, entity TEXT, entity_id TEXT, op TEXT, bases TEXT, hlc INTEGER, actor TEXT,
    at TEXT, key_id TEXT, meta TEXT, hash TEXT, chain BLOB, signature BLOB, effective_hlc INTEGER,
    refused TEXT, body BLOB)
"""
_LOCAL_INSERT = f"INSERT INTO bare VALUES ({', '.join('?' * 20)})"


def bodies(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return database.execute("SELECT entry_id, CAST(body AS TEXT) FROM log ORDER BY seq").fetchall()


def make_table(connection: psycopg.Connection[Any], name: str, *, gin: bool) -> None:
    table = sql.Identifier(name)
    connection.execute(sql.SQL("CREATE TABLE {} (entry_id uuid, body jsonb)").format(table))
    if gin:
        connection.execute(
            sql.SQL("CREATE INDEX ON {} USING gin (body jsonb_path_ops)").format(table)
        )
    # What the replica's functions set for themselves: it is the memory that GIN merges in.
    connection.execute("SET work_mem = '64MB'")


def copy(connection: psycopg.Connection[Any], name: str, rows: Sequence[tuple[str, str]]) -> None:
    statement = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name))
    with connection.cursor() as cursor, cursor.copy(statement) as out:
        for row in rows:
            out.write_row(row)


def make_log(connection: psycopg.Connection[Any]) -> None:
    """The log once more, as a table that anybody may read."""
    connection.execute("CREATE TABLE bare_log AS SELECT * FROM syncd.log")
    connection.execute("ALTER TABLE bare_log ADD PRIMARY KEY (cloud_seq)")
    connection.execute("ANALYZE bare_log")


def make_local(database: sqlite3.Connection) -> None:
    database.execute(_LOCAL_TABLE)


def fetch(connection: psycopg.Connection[Any], database: sqlite3.Connection) -> None:
    """Page by page into SQLite, each page durable before the next is asked for."""
    statement = sql.SQL(
        f"SELECT {_SERVER_COLUMNS} FROM bare_log WHERE cloud_seq > %s ORDER BY cloud_seq LIMIT %s"
    )
    after = 0
    while page := connection.execute(statement, (after, PAGE), binary=True).fetchall():
        database.execute("BEGIN IMMEDIATE")
        database.executemany(_LOCAL_INSERT, page)
        database.execute("COMMIT")
        after = page[-1][0]
