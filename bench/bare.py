"""What sync is held against: the same rows through the same doors, nothing checked or derived."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import sql

PAGE = 1_000
_SELECT = """
  SELECT cloud_seq, batch::text, entry_id::text, device_id::text, device_seq, entity, entity_id, op,
    bases, hlc, actor, at, key_id, meta, hash, chain, signature, effective_hlc, refused, body
  FROM bare_log WHERE cloud_seq > %s ORDER BY cloud_seq LIMIT %s
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


def make_table(opened: psycopg.Connection[Any], *, gin: bool) -> str:
    """A new table; its name."""
    name = "with_gin" if gin else "without_gin"
    table = sql.Identifier(name)
    opened.execute(sql.SQL("CREATE TABLE {} (entry_id uuid, body jsonb)").format(table))
    if gin:
        opened.execute(sql.SQL("CREATE INDEX ON {} USING gin (body jsonb_path_ops)").format(table))
    # As the replica's functions do for themselves: GIN merges what is new in so much memory.
    opened.execute("SET work_mem = '64MB'")
    return name


def copy(opened: psycopg.Connection[Any], name: str, rows: Iterable[tuple[str, str]]) -> None:
    statement = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(name))
    with opened.cursor() as cursor, cursor.copy(statement) as out:
        for row in rows:
            out.write_row(row)


def rows_in(opened: psycopg.Connection[Any], name: str) -> int:
    counted = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))
    return int((opened.execute(counted).fetchone() or (0,))[0])


def make_log(opened: psycopg.Connection[Any]) -> None:
    """The log once more, as a table that anybody may read."""
    opened.execute("CREATE TABLE bare_log AS SELECT * FROM syncd.log")
    opened.execute("ALTER TABLE bare_log ADD PRIMARY KEY (cloud_seq)")
    opened.execute("ANALYZE bare_log")


def make_local(database: sqlite3.Connection) -> None:
    database.execute(_LOCAL_TABLE)


def fetched(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT count(*) FROM bare").fetchone()[0])


def fetch(opened: psycopg.Connection[Any], database: sqlite3.Connection) -> None:
    """Page by page into SQLite, each page durable before the next is asked for."""
    after = 0
    while page := opened.execute(_SELECT, (after, PAGE), binary=True).fetchall():
        database.execute("BEGIN IMMEDIATE")
        database.executemany(_LOCAL_INSERT, page)
        database.execute("COMMIT")
        after = page[-1][0]
