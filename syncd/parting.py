"""What is here of another device, while the replica goes on without it.

A restored replica has lost entries that other machines have from it. Their author sends them again;
but a copy of its home may have come first, and have written something else under the same id and
number. Then the author goes on under an id of its own. Here its entries are in the way of both: of
what the copy wrote under their numbers, and of themselves under that id. They are set aside, in
quarantine, until they come back.

Nobody can bring that about who does not have the device's key: without its signature, what differs
from what is here is not taken in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from syncd.entry import PURGE, Entry, header_bytes
from syncd.examination import opened
from syncd.exchange import START, Exchange, Head
from syncd.healing import chains_here, offspring, split_off, tail
from syncd.projection import rebuild
from syncd.purges import evidence
from syncd.replica import Pulled, Replica
from syncd.seal import SigningKey, chain_value, signature_valid

_REASON = "the replica lost it, and has another entry {} of its device; its author sends it again"
_Parting = tuple[str, int]


def give_way(
    exchange: Exchange, replica: Replica, page: Sequence[Pulled], keys: dict[str, bytes],
    key: SigningKey,
) -> bool:  # fmt: skip
    """Make room for what a page brings. If so, the cursor may have moved, and the heads have."""
    partings: dict[str, int] = {}
    for device_id, common in _partings(exchange, page, keys):
        partings[device_id] = min(common, partings.get(device_id, common))
    for device_id, common in partings.items():
        # Whoever has written it need not wait for anybody.
        if device_id in exchange.own_ids() or device_id in exchange.left_ids():
            split_off(exchange, replica, device_id, common, key)
        else:
            _set_aside(exchange, device_id, common)
    return bool(partings)


def _partings(
    exchange: Exchange, page: Sequence[Pulled], keys: dict[str, bytes]
) -> Iterator[_Parting]:
    """The devices that go on differently at the replica than here, and after which number."""
    heads = exchange.heads()
    for device_id, rows in _by_device(page).items():
        head = heads.get(device_id, START)
        known = [row for row in rows if row.device_seq <= head.device_seq]
        if known:
            found = _other_branch(exchange, known, rows, keys.get(device_id))
        else:
            found = _moved(exchange, rows, keys) if head == START else None
        if found and found[0] != exchange.device_id and not _placed_after(exchange, *found):
            yield found


def _by_device(page: Sequence[Pulled]) -> dict[str, list[Pulled]]:
    found: dict[str, list[Pulled]] = {}
    for row in page:
        found.setdefault(row.device_id, []).append(row)
    return found


def _placed_after(exchange: Exchange, device_id: str, number: int) -> bool:
    """Whether the replica has said of any of them, and not lost since, that it has them: then it
    contradicts itself."""
    return bool(exchange.store.rows("acknowledged_after", (device_id, number, 1)))


def _other_branch(
    exchange: Exchange, known: list[Pulled], rows: list[Pulled], public: bytes | None
) -> _Parting | None:
    """Where the device has signed something else than what is here."""
    last = known[-1]
    if any(found[1] == last.chain for found in exchange.store.rows("placed", (last.entry_id,))):
        return None  # and so is all before it
    numbers = [known[0].device_seq - 1, *(row.device_seq for row in known)]
    mine = chains_here(exchange, last.device_id, numbers)
    differs = next((row for row in known if mine.get(row.device_seq, row.chain) != row.chain), None)
    if differs is None:
        return None
    common = differs.device_seq - 1
    if not _signed(rows[rows.index(differs) :], mine.get(common), public):
        return None
    return last.device_id, common


def _moved(exchange: Exchange, rows: list[Pulled], keys: dict[str, bytes]) -> _Parting | None:
    """Entries of a device that is known here, under the id that follows from the first of them."""
    meta, _ = opened(rows[0])
    match (meta or {}).get("continues"):
        case {"device_id": str(old), "device_seq": int(common)}:
            new = rows[0].device_id
            if keys.get(new) != exchange.keys().get(old, b"") or rows[0].device_seq != 1:
                return None
            if offspring(exchange, old, common) == new and _signed(rows, START.chain, keys[new]):
                return old, common
    return None


def _signed(rows: Sequence[Pulled], previous: bytes | None, public: bytes | None) -> bool:
    """Whether these entries continue a chain, and the key has signed one of them."""
    for row in rows:
        if previous is None or public is None:
            return False
        if chain_value(previous, header_bytes(row[2:14]), row.hash) != row.chain:
            return False
        if row.signature is not None and signature_valid(public, row.chain, row.signature):
            return True
        previous = row.chain
    return False


def _set_aside(exchange: Exchange, device_id: str, common: int) -> None:
    """What follows an entry of a device, with its proof."""
    with exchange.store.transaction():
        parted = Head(common, chains_here(exchange, device_id, [common])[common])
        head, newest = exchange.head(), exchange.store.row("newest")
        first = exchange.run("first_after", device_id, common).fetchone()[0]
        ids = []
        for entry in tail(exchange, device_id, common):
            _keep(exchange, entry)
            exchange.run("take_out", entry.seq)
            ids.append(entry.entry_id)
        _fetch_again(exchange, ids)
        exchange.run("put_head", *parted, device_id)
        exchange.put_anchor(head, max(newest[4] if newest else 0, exchange.store.anchor()[2]))
        exchange.put_state("push_seq", str(min(exchange.sent_to(), first - 1)))
        exchange.run("forget_tally")
        rebuild(exchange.store)


def _fetch_again(exchange: Exchange, ids: list[str]) -> None:
    """What came under its new id before it was set aside, and could not be taken then."""
    first = exchange.run("first_quarantined", orjson.dumps(ids).decode()).fetchone()[0]
    if first is not None:
        exchange.run("drop_batches", first - 1)


def _keep(exchange: Exchange, entry: Entry) -> None:
    told, reason = evidence(entry), _REASON.format(entry.device_seq)
    exchange.quarantine(entry.entry_id, entry.device_id, reason, told)
    if entry.entity == PURGE:  # what it took away is gone here
        exchange.run("add_purge", entry.entry_id, told)
