"""When both sides remember differently: who was restored or cloned, and what makes it whole.

Nothing is thrown away. The one thing ever rewritten is the place of entries that no replica has
acknowledged: their device id, number, chain and signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from syncd import clock
from syncd.audit import rebuild
from syncd.entry import FINALIZE, Entry, header_bytes, uuid7
from syncd.exchange import START, Exchange, Head
from syncd.fold import derived_id
from syncd.replica import Replica, Standing
from syncd.seal import SigningKey, chain_value

_PROBES = 64
_REMEMBERED = 1_000
FOREVER = 2**63 - 1


def reconcile(exchange: Exchange, replica: Replica, standing: Standing, key: SigningKey) -> bool:
    """Compare this device's chain with the replica's memory of it; True if the id changed."""
    theirs, mine = Head(standing.device_seq, standing.chain), exchange.head()
    if theirs == exchange.acknowledged() and theirs.device_seq <= mine.device_seq:
        return False
    shared = min(theirs.device_seq, mine.device_seq)
    if _agree(exchange, replica, shared):
        if shared < exchange.acknowledged().device_seq:
            resend_after(exchange, shared)
        return False
    rechain(exchange, last_common(exchange, replica, shared), key)
    return True


def _agree(exchange: Exchange, replica: Replica, number: int) -> bool:
    return _mine(exchange, [number]) == _theirs(exchange, replica, [number])


def _mine(exchange: Exchange, numbers: list[int]) -> dict[int, bytes]:
    wanted = orjson.dumps(numbers).decode()
    found = dict(exchange.store.rows("chains_at", (exchange.device_id, wanted)))
    return {0: START.chain, **found} if 0 in numbers else found


def _theirs(exchange: Exchange, replica: Replica, numbers: list[int]) -> dict[int, bytes]:
    found = replica.chains(exchange.device_id, numbers)
    return {0: START.chain, **found} if 0 in numbers else found


def last_common(exchange: Exchange, replica: Replica, upper: int) -> int:
    """The last number up to which both sides have the same chain."""
    lower = 0
    while upper - lower > 1:
        step = max(1, (upper - lower) // _PROBES)
        numbers = list(range(lower + step, upper, step)) or [lower + 1]
        mine, theirs = _mine(exchange, numbers), _theirs(exchange, replica, numbers)
        same = [n for n in numbers if n in mine and mine[n] == theirs.get(n)]
        differ = [n for n in numbers if n not in same]
        lower, upper = max(same, default=lower), min(differ, default=upper)
    return lower


def resend_after(exchange: Exchange, number: int) -> None:
    """The replica was restored from an older backup: send again what it no longer has."""
    device_id = exchange.device_id
    chain = _mine(exchange, [number])[number]
    with exchange.store.transaction():
        first = exchange.run("first_after", device_id, number).fetchone()[0]
        exchange.run("forget_places_of", device_id, number)
        if first is not None:
            exchange.put_state("push_seq", str(first - 1))
        exchange.acknowledge(Head(number, chain))


def roll_back(exchange: Exchange, replica: Replica) -> None:
    """The replica was restored and moved on: go back to the last batch that both know."""
    before = FOREVER
    common = 0
    while not common and (known := exchange.store.rows("batches_before", (before, _REMEMBERED))):
        common = replica.common([(row[0], row[1]) for row in known])
        before = known[-1][0]
    with exchange.store.transaction():
        exchange.run("drop_batches", common)
        exchange.run("forget_places", common)
        rebuild(exchange.store)


def settle_in(exchange: Exchange, key: SigningKey, whereabouts: str) -> None:
    """This home is new, or was copied: a copy goes on under an id of its own, so that both can
    write. Where entries wait it keeps the id, and the first sync finds out whose they are."""
    with exchange.store.transaction():
        known = exchange.state("whereabouts")
        if known and known != whereabouts and not exchange.pending_count():
            old, new, head = exchange.device_id, uuid7(), exchange.head()
            exchange.run("add_device", new, key.public(), clock.iso(clock.wall_ms()))
            exchange.run("put_head", *head, old)
            _take_identity(exchange, new, START, {})
        exchange.put_state("whereabouts", whereabouts)


def depart(exchange: Exchange, replica: Replica, key: SigningKey) -> None:
    """This home has another login than the one its id belongs to: what the replica does not have
    goes on under a new id."""
    left = exchange.device_id
    rechain(exchange, last_common(exchange, replica, exchange.head().device_seq + 1), key)
    exchange.leave(left)


def rechain(exchange: Exchange, common: int, key: SigningKey) -> str:
    """This home was cloned, or restored and written since: what came after the last common entry
    goes on under a new device id. The first such entry says where it parted from the old one."""
    old = exchange.device_id
    parted = Head(common, _mine(exchange, [common])[common])
    with exchange.store.transaction():
        new = _offspring(exchange, old, common)
        first = exchange.run("first_after", old, common).fetchone()[0]
        head, numbers = START, dict[str, int]()
        for entry in _tail(exchange, old, common):
            head = _rewrite(exchange, entry, new, head, numbers, parted, key)
        exchange.run("add_device", new, key.public(), clock.iso(clock.wall_ms()))
        exchange.run("put_head", *parted, old)
        _take_identity(exchange, new, head, numbers)
        if first is not None:
            before = int(exchange.state("push_seq") or 0)
            exchange.put_state("push_seq", str(min(before, first - 1)))
        rebuild(exchange.store)
    return new


def _offspring(exchange: Exchange, old: str, common: int) -> str:
    """The id that entries go on under follows from the first of them: several copies of one home
    that part with the same entries stay one device as long as they agree."""
    parted = _mine(exchange, [common + 1]).get(common + 1)
    return derived_id(f"syncd device {old} {parted.hex()}") if parted else uuid7()


def _tail(exchange: Exchange, device_id: str, common: int) -> Iterator[Entry]:
    """One by one: a long tail need not fit into memory."""
    for (seq,) in exchange.run("seqs_after", device_id, common).fetchall():
        yield Entry(*exchange.run("entry_at", seq).fetchone())


def _rewrite(
    exchange: Exchange, entry: Entry, new: str, head: Head, numbers: dict[str, int],
    parted: Head, key: SigningKey,
) -> Head:  # fmt: skip
    meta: dict[str, Any] = orjson.loads(entry.meta)
    task_id = meta["task_id"]
    numbers[task_id] = meta["task_seq"] = numbers.get(task_id, 0) + 1
    if head == START:
        meta["continues"] = {
            "device_id": entry.device_id, "device_seq": parted.device_seq,
            "chain": parted.chain.hex(),
        }  # fmt: skip
    text = orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode()
    moved = entry._replace(device_id=new, device_seq=head.device_seq + 1, meta=text)
    chain = chain_value(head.chain, header_bytes(moved[1:13]), entry.hash)
    signature = key.sign(chain) if entry.op == FINALIZE else None
    exchange.run("rechain", new, moved.device_seq, text, head.chain, chain, signature, entry.seq)
    return Head(moved.device_seq, chain)


def _take_identity(exchange: Exchange, new: str, head: Head, numbers: dict[str, int]) -> None:
    exchange.put_state("device_id", new)
    exchange.acknowledge(START)
    newest = exchange.store.row("newest")
    exchange.put_anchor(head, max(newest[4] if newest else 0, exchange.store.anchor()[2]))
    exchange.run("clear_numbers")
    for task_id, number in numbers.items():
        exchange.run("count_task", task_id, number)
