"""The signing key of a home: which one it is, and how another takes its place.

A key belongs to one device id for ever. A home that changes its key goes on under a new id, and
the first entry of that has the old key's word for the new one.

The database says which key is the right one, and its write lock is the lock of the key files: they
change only in a transaction. Whoever is cut off in one leaves files behind that tell the next
opener to look.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import orjson

from syncd.canonical import canonical
from syncd.endorsement import Succession
from syncd.entry import CREATE, KEY, Draft, uuid7
from syncd.errors import HomeError
from syncd.exchange import Exchange, Head
from syncd.healing import begin_anew
from syncd.keychain import synced, written
from syncd.seal import SigningKey

CURRENT, OLD, NEXT = "signing.pem", "signing.pem.old", "signing.pem.next"


def mended(exchange: Exchange, folder: Path) -> SigningKey:
    """The key of this home's id. If that is gone for good, because the database is from before it
    was changed or the file was lost, this home goes on under a new id. What is here under the old
    one stays there, for the next exchange to find out what the replica has of it."""
    with exchange.store.transaction():
        row = exchange.store.row("own_key")
        pinned: bytes = row[0] if row else b""
        _tidy(folder, pinned)
        key = SigningKey.at(folder / CURRENT)
        if key.public() != pinned:
            begin_anew(exchange, key)
    return key


def _tidy(folder: Path, pinned: bytes) -> None:
    """Keep the one key that is the right one. If none is, nothing is touched."""
    files = [folder / name for name in (CURRENT, OLD, NEXT)]
    right = next((file for file in files if _public(file) == pinned), None)
    if right is None or not any(file.exists() for file in files[1:]):
        return
    if right != files[0]:
        right.replace(files[0])
    for file in files[1:]:
        file.unlink(missing_ok=True)
    synced(folder)


def _public(file: Path) -> bytes | None:
    with suppress(HomeError):
        return SigningKey.load(file).public()
    return None


def sign_head(exchange: Exchange, key: SigningKey) -> None:
    """Before a copy is made of the database: whoever restores it may not have the key any more."""
    newest = exchange.store.row("unsigned_head", (exchange.device_id,))
    if newest and isinstance(newest[1], bytes):
        with exchange.store.transaction():
            if exchange.store.row("own_key") == (key.public(),):
                exchange.run("put_signature", key.sign(newest[1]), *newest)


# --- another key --------------------------------------------------------------------------------


def change(exchange: Exchange, folder: Path, actor: str, reason: str) -> SigningKey:
    """Give this home a new key and a new id. The caller sees to it that nobody sends meanwhile.

    What was not sent yet is signed with the old key, and sent under the old id."""
    try:
        with exchange.store.transaction():
            old_key, new_key = mended(exchange, folder), SigningKey.new()
            _sign_rest(exchange, old_key)
            _put_in_place(folder, new_key)
            _succeed(exchange, old_key, new_key, actor, reason)
    except BaseException:
        with suppress(Exception):
            mended(exchange, folder)
        raise
    return mended(exchange, folder)


def _sign_rest(exchange: Exchange, key: SigningKey) -> None:
    ids = orjson.dumps([row[0] for row in exchange.store.rows("signing_ids")]).decode()
    for seq, chain in exchange.run("unsigned", ids).fetchall():
        if isinstance(chain, bytes):
            exchange.run("put_signature", key.sign(chain), seq, chain)


def _put_in_place(folder: Path, key: SigningKey) -> None:
    """There is a key under the usual name at every moment: without one, another process would make
    one."""
    for name in (OLD, NEXT):  # if they were the right ones, they would have been used
        (folder / name).unlink(missing_ok=True)
    written(folder / NEXT, key.pem())
    os.link(folder / CURRENT, folder / OLD)
    (folder / NEXT).replace(folder / CURRENT)
    synced(folder)


def _succeed(
    exchange: Exchange, old_key: SigningKey, new_key: SigningKey, actor: str, reason: str
) -> None:
    before = _written_as(exchange)
    new = begin_anew(exchange, new_key)
    if before is None:  # nobody has ever seen the old key: there is nothing to continue
        return
    old, head = before
    succession = Succession(old, head.device_seq, head.chain, new, new_key.public())
    meta, body = succession.meta(old_key), canonical({"reason": reason})
    draft = Draft(uuid7(), KEY, new, CREATE, actor, meta, body)
    exchange.store.append(draft, exchange.store.place(""), new_key)


def _written_as(exchange: Exchange) -> tuple[str, Head] | None:
    """The last id that something was written under with the present key, and how far it goes."""
    heads, ended = exchange.heads(), exchange.former_ids()
    known = {row[0] for row in exchange.store.rows("signing_ids") if heads[row[0]].device_seq}
    if exchange.device_id in known:
        return exchange.device_id, exchange.head()
    last = max(known, key=lambda device_id: ended.get(device_id, ""), default=None)
    return (last, heads[last]) if last else None
