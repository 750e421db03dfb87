"""The bodies of a database, sealed or made plain again where they lie: of this home's and of its
backups. What came sealed from another machine stays as it came."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import orjson

from syncd.seal import DAMAGED, SEALED
from syncd.sql import queries
from syncd.vault import Vault

_PIECE = 200
Change = Callable[[str, bytes], bytes]


def plain_left(connection: sqlite3.Connection) -> bool:
    """Whether anything lies plain in it."""
    if connection.execute(queries()["plain_bodies"], (0, 1)).fetchone():
        return True
    return any(changed != text for _, _, text, changed in _texts(connection, _marked))


def seal(connection: sqlite3.Connection, vault: Vault, after: int = 0) -> int:
    """One piece of the log, inside the caller's transaction; where to go on, 0 at the end."""
    return _change(connection, "plain_bodies", after, _sealing(vault))


def unseal(connection: sqlite3.Connection, vault: Vault, after: int = 0) -> int:
    """The same, the other way round. What cannot be opened stays as it is."""
    return _change(connection, "sealed_bodies", after, _opening(vault))


def seal_rest(connection: sqlite3.Connection, vault: Vault) -> None:
    """What lies outside the log: quarantine, and the evidence of purges."""
    _change_texts(connection, _sealing(vault))


def unseal_rest(connection: sqlite3.Connection, vault: Vault) -> None:
    _change_texts(connection, _opening(vault))


def _sealing(vault: Vault) -> Change:
    return lambda entry_id, body: vault.kept(entry_id, "", body)


def _opening(vault: Vault) -> Change:
    def opened(entry_id: str, body: bytes) -> bytes:
        plain = vault.plain(entry_id, "", "", body)
        return body if plain.startswith(DAMAGED) else plain

    return opened


def _marked(_: str, body: bytes) -> bytes:
    """Stands for sealing where only the difference counts."""
    return body if body.startswith(SEALED) else SEALED + body


def _change(connection: sqlite3.Connection, which: str, after: int, change: Change) -> int:
    rows = connection.execute(queries()[which], (after, _PIECE)).fetchall()
    changes = ((change(entry_id, body), body, seq) for seq, entry_id, body in rows)
    changed = [(new, seq) for new, body, seq in changes if new != body]
    connection.executemany(queries()["put_body"], changed)
    return rows[-1][0] if len(rows) == _PIECE else 0


def _texts(connection: sqlite3.Connection, change: Change) -> list[tuple[str, str, str, str]]:
    """Statement, name, text and changed text of each that has a body in it."""
    sql, found = queries(), []
    for which, put in (("quarantine_texts", "put_quarantine"), ("purges", "put_purge")):
        for name, text in connection.execute(sql[which]).fetchall():
            found.append((put, name, text, _changed(text, change)))
    return found


def _changed(text: str, change: Change) -> str:
    try:
        content: dict[str, Any] = orjson.loads(text)
        entry_id, body = content["entry_id"], bytes.fromhex(content["body"])
        if content.get("key_id") or not body:
            return text
    except (ValueError, KeyError, TypeError):
        return text
    return orjson.dumps({**content, "body": change(entry_id, body).hex()}).decode()


def _change_texts(connection: sqlite3.Connection, change: Change) -> None:
    for put, name, text, changed in _texts(connection, change):
        if changed != text:
            connection.execute(queries()[put], (changed, name))


def keys_named(connection: sqlite3.Connection) -> dict[str, int]:
    """The keys that bodies are sealed with, and how many by each; "" for those that are plain."""
    rows = connection.execute(queries()["bodies_by_key"]).fetchall()
    return {bytes(head[1:9]).hex() if head[:1] == SEALED else "": count for head, count in rows}


def plain_for_replica(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many bodies the replica has, and will be sent, that can be read without a key."""
    there, waiting = connection.execute(queries()["plain_for_replica"]).fetchone()
    return int(there), int(waiting)
