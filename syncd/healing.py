"""When both sides remember differently: who was restored or cloned, and what makes it whole.

Nothing is thrown away. The one thing ever rewritten is the place of entries that no replica has
acknowledged: their device id, number, chain and signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from syncd import clock
from syncd.entry import FINALIZE, KEY, Entry, header_bytes, uuid7
from syncd.errors import DeviceTakenError, TamperedError
from syncd.exchange import START, Exchange, Head
from syncd.fold import derived_id
from syncd.projection import rebuild
from syncd.replica import Replica, Standing
from syncd.seal import SigningKey, chain_value, signature_valid

_PROBES = 64
_REMEMBERED = 1_000
FOREVER = 2**63 - 1


def reconcile(exchange: Exchange, replica: Replica, standing: Standing, key: SigningKey) -> bool:
    """Compare this device's chain with the replica's memory of it; True if the id changed."""
    own = exchange.device_id
    _check_key(standing, own, key.public())
    theirs, mine = Head(standing.device_seq, standing.chain), exchange.head()
    if theirs == exchange.acknowledged() and theirs.device_seq <= mine.device_seq:
        return False
    shared = min(theirs.device_seq, mine.device_seq)
    if _agree(exchange, replica, own, shared):
        if shared < exchange.acknowledged().device_seq:
            resend_after(exchange, shared)
        return False
    common = last_common(exchange, replica, own, shared)
    if not _theirs(replica, own, [common + 1]):  # it has lost them, and kept count
        resend_after(exchange, common)
        return False
    _check_signed(exchange, replica, own, common, key.public())
    rechain(exchange, replica, common, key)
    return True


def _check_key(standing: Standing, device_id: str, public: bytes) -> None:
    if standing.public_key != public:
        raise TamperedError(
            f"the replica names another key for this device ({device_id}) than its own",
            f"Others cannot trust what this device sends. {TamperedError.remedy}",
        )


def _check_signed(
    exchange: Exchange, replica: Replica, device_id: str, common: int, public: bytes
) -> None:
    """Whoever wrote under this id elsewhere, on a copy of this home, has its key, and signed what
    he sent. What nobody signed was made up, and is no reason to touch what is here."""
    mine = {row[2] for row in exchange.store.rows("fingerprints") if row[0] == device_id}
    for chain, signature in replica.signed_after(device_id, common):
        if chain not in mine and signature_valid(public, chain, signature):
            return
    raise TamperedError(
        f"the replica has entries of this device ({device_id}) from number {common + 1} on that "
        "this device has never signed"
    )


def _agree(exchange: Exchange, replica: Replica, device_id: str, number: int) -> bool:
    return chains_here(exchange, device_id, [number]) == _theirs(replica, device_id, [number])


def chains_here(exchange: Exchange, device_id: str, numbers: list[int]) -> dict[int, bytes]:
    wanted = orjson.dumps(numbers).decode()
    found = dict(exchange.store.rows("chains_at", (device_id, wanted)))
    return {0: START.chain, **found} if 0 in numbers else found


def _theirs(replica: Replica, device_id: str, numbers: list[int]) -> dict[int, bytes]:
    found = replica.chains(device_id, numbers)
    return {0: START.chain, **found} if 0 in numbers else found


def last_common(exchange: Exchange, replica: Replica, device_id: str, upper: int) -> int:
    """The last number up to which both sides have the same chain of a device."""
    lower = 0
    while upper - lower > 1:
        step = max(1, (upper - lower) // _PROBES)
        numbers = list(range(lower + step, upper, step)) or [lower + 1]
        mine = chains_here(exchange, device_id, numbers)
        theirs = _theirs(replica, device_id, numbers)
        same = [n for n in numbers if n in mine and mine[n] == theirs.get(n)]
        differ = [n for n in numbers if n not in same]
        lower, upper = max(same, default=lower), min(differ, default=upper)
    return lower


def resend_after(exchange: Exchange, number: int) -> None:
    """The replica was restored from an older backup: send again what it no longer has."""
    device_id = exchange.device_id
    chain = chains_here(exchange, device_id, [number])[number]
    with exchange.store.transaction():
        first = exchange.run("first_after", device_id, number).fetchone()[0]
        exchange.run("forget_places_of", device_id, number)
        if first is not None:
            exchange.put_state("push_seq", str(first - 1))
        exchange.acknowledge(Head(number, chain))
        rebuild(exchange.store)  # of branches, only what the replica has counts


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
            begin_anew(exchange, key)
        exchange.put_state("whereabouts", whereabouts)


def begin_anew(exchange: Exchange, key: SigningKey) -> str:
    """What is written from now on goes under another id, and with this key."""
    old, new, head = exchange.device_id, uuid7(), exchange.head()
    exchange.run("add_device", new, key.public(), clock.iso(clock.wall_ms()))
    exchange.run("put_head", *head, old)
    _take_identity(exchange, new, START, {})
    return new


def depart(exchange: Exchange, replica: Replica, key: SigningKey) -> None:
    """This home has another login than the one its id belongs to: what the replica never had goes
    on under a new id. What it had and has lost since, others may have from there: that stays under
    the old id, for whoever relays it once an administrator has opened recovery."""
    left, last = exchange.device_id, exchange.head().device_seq
    common = last_common(exchange, replica, left, last + 1)
    if common < last and _theirs(replica, left, [common + 1]):
        _check_signed(exchange, replica, left, common, key.public())
    else:
        common = max(common, _once_there(exchange, left))
    rechain(exchange, replica, common, key)
    exchange.leave(left)


def _once_there(exchange: Exchange, device_id: str) -> int:
    return int(exchange.run("once_there", device_id).fetchone()[0])


# --- ids that this device had before ------------------------------------------------------------


def remind(exchange: Exchange, replica: Replica, key: SigningKey) -> None:
    """What was written here under earlier ids, as far as the replica lost it or never had it."""
    heads = exchange.heads()
    for device_id in sorted(exchange.own_ids() - {exchange.device_id}):
        if heads[device_id].device_seq:
            _remind(exchange, replica, device_id, heads[device_id], key)


def _remind(
    exchange: Exchange, replica: Replica, device_id: str, head: Head, key: SigningKey
) -> None:
    public, taken = exchange.keys()[device_id], False
    try:
        standing = replica.hello(device_id, public)
    except DeviceTakenError:  # it stays with the login that this home had before
        common, parted = _parting(exchange, replica, device_id, head, head.device_seq + 1, public)
        last = common if parted else max(common, _once_there(exchange, device_id))
        taken = True
    else:
        _check_key(standing, device_id, public)
        if standing.device_seq >= head.device_seq and not exchange.waits(device_id):
            return
        shared = min(standing.device_seq, head.device_seq)
        common, parted = _parting(exchange, replica, device_id, head, shared, public)
        last = common if parted else head.device_seq
        if not parted and public != key.public():  # nobody can sign for it any more
            last = exchange.sendable_to(device_id, common)
    if last < head.device_seq:
        new, its_head = split_off(exchange, replica, device_id, last, key)
        _remind(exchange, replica, new, its_head, key)
    if taken:
        exchange.leave(device_id)
    elif rows := exchange.store.rows("seqs_after", (device_id, common)):
        exchange.offer_again(seq for (seq,) in rows)


def _parting(
    exchange: Exchange, replica: Replica, device_id: str, head: Head, upper: int, public: bytes
) -> tuple[int, bool]:
    """The last number that both sides agree on, and whether they go on differently from there."""
    if upper <= head.device_seq and _agree(exchange, replica, device_id, upper):
        return upper, False
    common = last_common(exchange, replica, device_id, upper)
    if common == head.device_seq or not _theirs(replica, device_id, [common + 1]):
        return common, False
    _check_signed(exchange, replica, device_id, common, public)
    return common, True


# --- another id ---------------------------------------------------------------------------------


def rechain(exchange: Exchange, replica: Replica, common: int, key: SigningKey) -> None:
    """This home was cloned, or restored and written since: what came after the last common entry
    goes on under a new device id. The first such entry says where it parted from the old one."""
    old = exchange.device_id
    new = offspring(exchange, old, common)
    if _key_of(replica, new, key) != key.public():
        with exchange.store.transaction():
            begin_anew(exchange, key)
        split_off(exchange, replica, old, common, key)
        return
    with exchange.store.transaction():
        head, numbers = _move(exchange, old, new, common, key.public(), _by(key))
        _take_identity(exchange, new, head, numbers)
        rebuild(exchange.store)


def split_off(
    exchange: Exchange, replica: Replica, old: str, common: int, key: SigningKey
) -> tuple[str, Head]:
    """What was written under an earlier id and cannot be sent under it goes under one of its own,
    beside the one that this device has now. A copy of this home, or this one before a backup was
    restored, may have done the same with another key: then it is that one's id."""
    new = offspring(exchange, old, common)
    public = _key_of(replica, new, key)
    ours = public == key.public()
    sign = _by(key) if ours else _as_there(replica.signed_after(new, 0), public)
    with exchange.store.transaction():
        head, _ = _move(exchange, old, new, common, public, sign)
        exchange.run("put_head", *head, new)
        exchange.retire([new])
        rebuild(exchange.store)
    return new, head


def _key_of(replica: Replica, device_id: str, key: SigningKey) -> bytes:
    """Whose an id is that follows from what is to go under it: the first one's who asked."""
    try:
        return replica.hello(device_id, key.public()).public_key
    except DeviceTakenError:
        return replica.keys()[device_id]


# Gives an entry its signature under another id, given the new chain value.
_Sign = Callable[[Entry, bytes], bytes | None]


def _by(key: SigningKey) -> _Sign:
    return lambda entry, chain: key.sign(chain) if entry.op == FINALIZE else None


def _as_there(signed: Iterable[tuple[bytes, bytes]], public: bytes) -> _Sign:
    """With what another key has signed. If that is more than the replica tells at once, the rest
    comes with the entries when they are fetched."""
    valid = {chain: word for chain, word in signed if signature_valid(public, chain, word)}
    return lambda _entry, chain: valid.get(chain)


def _move(
    exchange: Exchange, old: str, new: str, common: int, public: bytes, sign: _Sign
) -> tuple[Head, dict[str, int]]:
    """Bring what follows an entry under a new id; how far that goes, and its numbers by task."""
    parted = Head(common, chains_here(exchange, old, [common])[common])
    first = exchange.run("first_after", old, common).fetchone()[0]
    head, numbers = START, dict[str, int]()
    for entry in tail(exchange, old, common):
        head = _rewrite(exchange, entry, new, head, numbers, parted, sign)
    exchange.run("add_device", new, public, clock.iso(clock.wall_ms()))
    exchange.run("put_head", *parted, old)
    if first is not None:
        exchange.put_state("push_seq", str(min(exchange.sent_to(), first - 1)))
    return head, numbers


def offspring(exchange: Exchange, old: str, common: int) -> str:
    """The id that entries go on under follows from the first of them: several copies of one home
    that part with the same entries stay one device as long as they agree."""
    parted = chains_here(exchange, old, [common + 1]).get(common + 1)
    return derived_id(f"syncd device {old} {parted.hex()}") if parted else uuid7()


def tail(exchange: Exchange, device_id: str, common: int) -> Iterator[Entry]:
    """One by one: a long tail need not fit into memory."""
    for (seq,) in exchange.run("seqs_after", device_id, common).fetchall():
        yield Entry(*exchange.run("entry_at", seq).fetchone())


def _rewrite(
    exchange: Exchange, entry: Entry, new: str, head: Head, numbers: dict[str, int],
    parted: Head, sign: _Sign,
) -> Head:  # fmt: skip
    meta: dict[str, Any] = orjson.loads(entry.meta)
    task_id = meta["task_id"]
    numbers[task_id] = meta["task_seq"] = numbers.get(task_id, 0) + 1
    if head == START and entry.entity != KEY:  # which says already whom it continues
        meta["continues"] = {
            "device_id": entry.device_id, "device_seq": parted.device_seq,
            "chain": parted.chain.hex(),
        }  # fmt: skip
    text = orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode()
    moved = entry._replace(device_id=new, device_seq=head.device_seq + 1, meta=text)
    chain = chain_value(head.chain, header_bytes(moved[1:13]), entry.hash)
    proof = (head.chain, chain, sign(entry, chain))
    exchange.run("rechain", new, moved.device_seq, text, *proof, entry.seq)
    return Head(moved.device_seq, chain)


def _take_identity(exchange: Exchange, new: str, head: Head, numbers: dict[str, int]) -> None:
    exchange.retire({row[0] for row in exchange.store.rows("signing_ids")} - {new})
    exchange.put_state("device_id", new)
    exchange.acknowledge(START)
    newest = exchange.store.row("newest")
    exchange.put_anchor(head, max(newest[4] if newest else 0, exchange.store.anchor()[2]))
    exchange.run("clear_numbers")
    for task_id, number in numbers.items():
        exchange.run("count_task", task_id, number)
