"""What comes from the replica, examined link by link before anything of it is taken in.

Nothing is believed because the replica says so. Each entry must continue its device's chain, and
the last one of each device in a page must be signed with that device's key: the chain makes that
one signature cover all before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from syncd.endorsement import unendorsed
from syncd.entry import CHECKPOINT, KEY, header_bytes
from syncd.exchange import START, Head
from syncd.replica import Pulled
from syncd.seal import DAMAGED, chain_value, digest, signature_valid
from syncd.shapes import complete
from syncd.vault import Vault


class Examined(NamedTuple):
    """A pulled entry: new (with the chain value before it), known already, or not acceptable."""

    row: Pulled
    previous: bytes | None = None
    meta: dict[str, Any] | None = None
    problem: str | None = None


def examine(
    page: Sequence[Pulled], heads: dict[str, Head], keys: dict[str, bytes], vault: Vault
) -> list[Examined]:
    """Check a page against what is known of each device; moves `heads` on."""
    examined = [_examined(row, heads, keys, vault) for row in page]
    return _signed(examined, heads, keys)


def _examined(
    row: Pulled, heads: dict[str, Head], keys: dict[str, bytes], vault: Vault
) -> Examined:
    head = heads.get(row.device_id, START)
    if row.device_seq <= head.device_seq:
        return Examined(row)
    if row.device_seq != head.device_seq + 1:
        return Examined(row, problem=f"it does not follow entry {head.device_seq} of its device")
    meta, problem = opened(row)
    if problem := problem or unfit(row, head.chain, vault) or _usurper(row, meta, keys):
        return Examined(row, problem=problem)
    heads[row.device_id] = Head(row.device_seq, row.chain)
    return Examined(row, head.chain, meta)


def _usurper(row: Pulled, meta: dict[str, Any] | None, keys: dict[str, bytes]) -> str | None:
    if row.entity != KEY or meta is None:
        return None
    return unendorsed(row.device_id, row.device_seq, row.entity_id, meta, keys)


def unfit(row: Pulled, previous: bytes, vault: Vault) -> str | None:
    """Why an entry cannot be the one that follows a chain value, or None."""
    if row.refused is not None:
        return None  # the replica has said why it keeps the header only, perhaps for this
    if chain_value(previous, header_bytes(row[2:14]), row.hash) != row.chain:
        return "it does not continue the chain of its device"
    if row.body is None:
        purged = row.purged is not None and row.entity == CHECKPOINT
        return None if purged else "its body is missing"
    if _altered(row, row.body, vault):
        return "its body does not match its hash"
    return None


def _altered(row: Pulled, body: bytes, vault: Vault) -> bool:
    """One that is sealed with a key that is not here is taken as it is: reading it will tell."""
    if row.key_id:
        return vault.plain(row.entry_id, row.key_id, row.hash, body).startswith(DAMAGED)
    return digest(body) != row.hash


def opened(row: Pulled) -> tuple[dict[str, Any] | None, str | None]:
    """The meta, or what is wrong with it; neither if that is why the replica refused the entry."""
    try:
        meta = orjson.loads(row.meta)
    except ValueError:
        return None, None if row.refused is not None else "its meta cannot be read"
    if complete(row.entity, meta):
        return meta, None
    return None, None if row.refused is not None else "its meta is incomplete"


def _signed(
    examined: list[Examined], heads: dict[str, Head], keys: dict[str, bytes]
) -> list[Examined]:
    """Each device's entries up to the last one that it has signed; nearly always all of them."""
    new: dict[str, list[Examined]] = {}
    for found in examined:
        if found.previous is not None:
            new.setdefault(found.row.device_id, []).append(found)
    doubtful: dict[str, tuple[int, str]] = {}
    for device, entries in new.items():
        if problem := _unsigned(entries[-1].row, keys.get(device)):
            heads[device] = _last_signed(entries, keys.get(device))
            doubtful[device] = heads[device].device_seq, problem
    return [_without_doubt(found, doubtful) for found in examined] if doubtful else examined


def _last_signed(entries: list[Examined], key: bytes | None) -> Head:
    for found in reversed(entries):
        if _unsigned(found.row, key) is None:
            return Head(found.row.device_seq, found.row.chain)
    first = entries[0]
    return Head(first.row.device_seq - 1, first.previous or b"")


def _without_doubt(found: Examined, doubtful: dict[str, tuple[int, str]]) -> Examined:
    last, problem = doubtful.get(found.row.device_id, (0, ""))
    if problem and found.previous is not None and found.row.device_seq > last:
        return Examined(found.row, problem=problem)
    return found


def _unsigned(row: Pulled, key: bytes | None) -> str | None:
    if key is None:
        return "the key of its device is not known"
    if row.signature is None:
        return "the last entry of its device is not signed"
    if not signature_valid(key, row.chain, row.signature):
        return "its signature is not valid for the key that is pinned for its device"
    return None
