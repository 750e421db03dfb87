"""What is damaged here and can be made whole: views from the log, entries from the replica's copy.

Nothing is believed because the replica says so. A body must match the hash and the chain value that
the header here has; where the header itself is damaged, its entry must follow the one before it in
its device's chain, and something here must have known its chain value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from syncd import fold, proof, running
from syncd.arrival import entry_at
from syncd.entry import CHECKPOINT, Entry
from syncd.errors import ReplicaError, StoreBusyError
from syncd.examination import unfit
from syncd.exchange import Exchange, Head
from syncd.fallback import CANNOT_RESUME, Usable, usable
from syncd.node import Node
from syncd.replica import Pulled, Replica
from syncd.seal import GENESIS, header_intact, signature_valid, well_typed
from syncd.store import VIEW_COLUMNS, Skipped, Store
from syncd.sync import Engine
from syncd.views import Views, checkpoint_row

_PAGE = 2_000
_THOUSAND = 1_000
# A gap of more than this is no row that somebody lost.
_ASKED_FOR = 100


class Numbers(NamedTuple):
    """Entries of a device that are missing from the log."""

    device_id: str
    first: int
    last: int


class Damage(NamedTuple):
    """Entries whose header is not what was written, and numbers that are not there."""

    headers: list[Entry]
    missing: list[Numbers]

    @property
    def nothing(self) -> bool:
        return not self.headers and not self.missing


class Mended(NamedTuple):
    """What is whole again, by entry and what was wrong with it; what is lost; and why the replica
    could not be asked, if it could not."""

    entries: list[dict[str, str]]
    lost: list[str]
    unreachable: str = ""


def mend(node: Node, task_id: str, seconds: float) -> Mended:
    """Make whole what can be made whole of a task; asks the replica for so long at most."""
    found: list[dict[str, str]] = []
    damage = look(node.store)
    found += _mend_views(node.store, task_id, damage)
    unreachable = ""
    if node.settings["cloud.dsn"] and _wanted(node, task_id, damage):
        try:
            found += _with_replica(node, task_id, damage, seconds)
        except (ReplicaError, StoreBusyError) as error:
            unreachable = error.message
        damage = look(node.store)
        found += _mend_views(node.store, task_id, damage)
    return Mended(found, _lost(node.store, task_id, damage), unreachable)


def _wanted(node: Node, task_id: str, damage: Damage) -> bool:
    """Whether there is something to ask for. A daemon brings the news by itself."""
    return not (
        damage.nothing and not _bodies(usable(node.store, task_id)) and running.pid(node.home)
    )


def _with_replica(
    node: Node, task_id: str, damage: Damage, seconds: float
) -> Iterator[dict[str, str]]:
    """First what is here already, headers before all that continues them; then the news."""
    with closing(node.replica()) as replica, node.exchanging(seconds):
        exchange, engine = Exchange(node.store), node.engine(replica)
        for entry in damage.headers:
            if _mend_header(exchange, replica, entry, damage.missing):
                yield _told(entry, "the header does not match its chain value")
        left = look(node.store).headers
        # Else both sides would argue about those that both have.
        if damage.missing and all(entry.cloud_seq is None for entry in left):
            yield from _fetched(node.store, engine, damage.missing)
        yield from _mend_bodies(node, replica, task_id)
        if not left:
            engine.sync()


def _fetched(store: Store, engine: Engine, lost: Sequence[Numbers]) -> Iterator[dict[str, str]]:
    proof.fetch(engine)
    left = look(store).missing
    for missing in lost:
        if missing not in left:
            yield {"entry_id": "", "problem": f"{_named(missing)} missing from the log"}


def _told(entry: Entry, problem: str) -> dict[str, str]:
    return {"entry_id": str(entry.entry_id), "problem": problem}


def _named(missing: Numbers) -> str:
    device, first, last = missing
    which = f"entry {first} is" if first == last else f"entries {first} to {last} are"
    return f"device {device}: {which}"


# --- looking ------------------------------------------------------------------------------------


def look(store: Store) -> Damage:
    """The whole log, without its bodies."""
    headers, last = [], 0
    while rows := store.rows("headers_after", (last, _PAGE)):
        entries = [Entry(*row) for row in rows]
        headers += [entry for entry in entries if not _header_whole(entry)]
        last = entries[-1].seq
    return Damage(headers, [*_missing(store)])


def _header_whole(entry: Entry) -> bool:
    return well_typed(entry) and header_intact(entry)


def _missing(store: Store) -> Iterator[Numbers]:
    """Between others, and at the end, as far as the replica had them."""
    for row in store.rows("gaps"):
        if all(type(value) is int for value in row[1:]):
            yield Numbers(*row)
    last = dict(store.rows("last_numbers"))
    exchange = Exchange(store)
    known = {device: head.device_seq for device, head in exchange.heads().items()}
    known[exchange.device_id] = exchange.acknowledged().device_seq
    for device, number in known.items():
        here = last.get(device, 0)
        if type(here) is int and here < number:
            yield Numbers(device, here + 1, number)


def _lost(store: Store, task_id: str, damage: Damage) -> list[str]:
    """What may have been said of a task and is not here: its entries are numbered, by device.
    What the view knows is passed over by name."""
    broken = {entry.seq for entry in damage.headers}
    last: dict[str, int] = {}
    known: dict[str, set[int]] = {}
    for device, number in store.rows("numbers_in_view", (task_id,)):
        known.setdefault(device, set()).add(number)
    for seq, device, device_seq, number in store.rows("task_numbers", (task_id,)):
        if seq not in broken:
            known.setdefault(device, set()).add(number)
            last[device] = max(last.get(device, 0), device_seq)
    return [
        told
        for device, numbers in known.items()
        for told in _gone(device, numbers, last.get(device, 0), damage)
    ]


def _gone(device: str, numbers: set[int], last: int, damage: Damage) -> Iterator[str]:
    for earlier, later in pairwise([0, *sorted(numbers)]):
        if later > earlier + 1:
            which = f"{earlier + 1} to {later - 1}" if later > earlier + 2 else f"{earlier + 1}"
            yield f"device {device}: number {which} of this task is missing"
    for missing in damage.missing:
        if missing.device_id == device and missing.first > last:
            yield f"{_named(missing)} missing from the log, perhaps of this task"


# --- views --------------------------------------------------------------------------------------


def _mend_views(store: Store, task_id: str, damage: Damage) -> Iterator[dict[str, str]]:
    """Rows of a task's checkpoints that are not what the log says. Where a header is damaged, the
    view is what is left of its word, and stays."""
    broken = {entry.seq for entry in damage.headers}
    versions = store.rows("task_versions", (task_id,))
    for checkpoint_id, group in groupby(versions, key=lambda row: row[4]):
        rows = list(group)
        shown = store.row("checkpoint", (checkpoint_id,))
        if broken & {row[0] for row in rows} or _incomplete(shown, rows):
            continue
        opened = fold.versions(rows)
        if shown and shown[:VIEW_COLUMNS] == checkpoint_row(opened, fold.current(opened)):
            continue
        _fold_again(store, opened)
        yield {"entry_id": rows[-1][1], "problem": "the view row does not match its entry"}
    yield from _drop_strangers(store, task_id, broken)


def _incomplete(shown: tuple[Any, ...] | None, rows: list[tuple[Any, ...]]) -> bool:
    """Whether the view speaks of versions before or after all that the log has of a checkpoint."""
    if shown is None:
        return False
    seqs, (current, first) = [row[0] for row in rows], shown[11:13]
    return type(current) is not int or current > max(seqs) or first < min(seqs)


def _drop_strangers(store: Store, task_id: str, broken: set[int]) -> Iterator[dict[str, str]]:
    """Rows that are another's but for their id."""
    for *row, owner, entry_id in store.rows("strangers", (task_id,)):
        other = store.row("checkpoint", (owner,))
        if other and row[1:] == [*other[1:VIEW_COLUMNS]] and row[11] not in broken:
            with store.transaction():
                store.change("drop_stranger", (row[11], owner))
                store.change("forget_tally")
            yield {"entry_id": entry_id, "problem": "the view has it twice"}


def _fold_again(store: Store, rows: list[fold.VersionRow]) -> None:
    with store.transaction():
        views = Views(store.connection)
        store.change("drop_checkpoint", (rows[0].entity_id,))  # nothing of it is to be believed
        for row in rows:
            views.introduce(row.meta, row.effective_hlc, task=True, agent=True)
            store.change("clear_problem", (row.entry_id,))
        views.settle(CHECKPOINT, rows[0].entity_id, [row.seq for row in rows])
        store.change("forget_tally")


# --- bodies -------------------------------------------------------------------------------------


def _mend_bodies(node: Node, replica: Replica, task_id: str) -> Iterator[dict[str, str]]:
    """Of the newest checkpoints, until there is one to go on from, or no more can be had."""
    tried: set[str] = set()
    while left := [
        gone for gone in _bodies(usable(node.store, task_id)) if gone.entry_id not in tried
    ]:
        for gone in left:
            tried.add(gone.entry_id)
            if _mend_body(node.store, replica, gone.entry_id):
                yield {"entry_id": gone.entry_id, "problem": gone.problem}


def _bodies(found: Usable) -> list[Skipped]:
    """What was passed over and may be had elsewhere."""
    return [gone for gone in found.skipped if gone.entry_id and gone.problem != CANNOT_RESUME]


def mend_bodies(store: Store, replica: Replica, entry_ids: Iterable[str]) -> list[str]:
    """The entries whose body could not be fetched anew."""
    return [name for name in entry_ids if not _mend_body(store, replica, name)]


def _mend_body(store: Store, replica: Replica, entry_id: str) -> bool:
    entry = store.entry(entry_id)
    row = _asked(replica, entry_id) if entry is not None else None
    if entry is None or row is None or row.body is None or not _header_whole(entry):
        return False
    if row.chain != entry.chain or unfit(row, entry.previous, store.vault):
        return False
    with store.transaction():
        body = store.vault.kept(entry_id, row.key_id, row.body)
        store.change("mend_body", (body, entry.seq))
        store.change("clear_problem", (entry_id,))
    return True


def _asked(replica: Replica, entry_id: Any) -> Pulled | None:
    """The replica's copy, if an id is one."""
    try:
        return replica.entry(str(UUID(str(entry_id))))
    except ValueError:
        return None


# --- headers ------------------------------------------------------------------------------------


def _mend_header(
    exchange: Exchange, replica: Replica, damaged: Entry, missing: Sequence[Numbers]
) -> bool:
    for row in _candidates(replica, damaged, missing):
        if _is_elsewhere(exchange.store, row, damaged):
            continue
        previous = _followed(exchange.store, replica, row, damaged)
        if previous is not None and _known_here(exchange, replica, row, damaged):
            _put_back(exchange.store, entry_at(damaged.seq, row, previous), damaged)
            return True
    return False


def _candidates(replica: Replica, damaged: Entry, missing: Sequence[Numbers]) -> Iterator[Pulled]:
    """Entries at the replica that may be the one: by an id, or by a number. Any may be damaged."""
    names = [damaged.entry_id, damaged.entity_id, *_at_numbers(replica, damaged, missing)]
    for name in dict.fromkeys(names):
        row = _asked(replica, name)
        if row is not None and _alike(row, damaged):
            yield row


def _at_numbers(replica: Replica, damaged: Entry, missing: Sequence[Numbers]) -> Iterator[str]:
    places = [(m.device_id, n) for m in missing if m.last - m.first < _ASKED_FOR
              for n in range(m.first, m.last + 1)]  # fmt: skip
    if type(damaged.device_seq) is int and 0 < damaged.device_seq < 1 << 62:
        places.append((damaged.device_id, damaged.device_seq))
    for device, number in places:
        if _is_id(device) and (found := _numbered(replica, device, number)):
            yield found


def _numbered(replica: Replica, device: str, number: int) -> str:
    """The id of a device's entry of some number."""
    rows = replica.thousand(device, (number - 1) // _THOUSAND)
    return next((str(row[1]) for row in rows if row[0] == number), "")


def _is_id(value: Any) -> bool:
    try:
        return bool(str(UUID(str(value))) == value)
    except ValueError:
        return False


def _alike(row: Pulled, damaged: Entry) -> bool:
    """Damage changes a column or two, not all that tell entries apart."""
    same = (
        (row.device_id, row.device_seq) == (damaged.device_id, damaged.device_seq),
        row.entry_id == damaged.entry_id,
        row.hash == damaged.hash,
        row.chain == damaged.chain,
    )
    return sum(same) > 1


def _is_elsewhere(store: Store, row: Pulled, damaged: Entry) -> bool:
    """Whether an entry stands in the log already: a damaged number may be another's."""
    held = (Entry(*found) for found in store.rows("entry_of", (row.device_id, row.device_seq)))
    return any(entry.seq != damaged.seq and _header_whole(entry) for entry in held)


def _followed(store: Store, replica: Replica, row: Pulled, damaged: Entry) -> bytes | None:
    """The chain value that an entry follows, if its header and body fit there. Whoever says which
    one that is need not be believed: no other would give the entry's own."""
    before = row.device_seq - 1
    told = replica.chains(row.device_id, [before])
    here = store.row("seq_of", (row.device_id, before))
    for previous in (GENESIS, here and here[1], damaged.previous, told.get(before)):
        if type(previous) is bytes and unfit(row, previous, store.vault) is None:
            return previous
    return None


def _known_here(exchange: Exchange, replica: Replica, row: Pulled, damaged: Entry) -> bool:
    """Whether this device has met an entry's chain value, or its device has signed it, or this is
    so of one that follows. What merely continues the entry before it, anybody could make up."""
    for _ in range(_ASKED_FOR):
        if row.chain == damaged.chain or _is_head(exchange, row) or _is_signed(exchange, row):
            return True
        after = exchange.store.row("entry_of", (row.device_id, row.device_seq + 1))
        if after is not None and _header_whole(following := Entry(*after)):
            return bool(following.previous == row.chain)
        then = _asked(replica, _numbered(replica, row.device_id, row.device_seq + 1))
        if then is None or unfit(then, row.chain, exchange.store.vault):
            return False
        row = then
    return False


def _is_head(exchange: Exchange, row: Pulled) -> bool:
    heads = (*exchange.heads().items(), (exchange.device_id, exchange.acknowledged()))
    return (row.device_id, Head(row.device_seq, row.chain)) in heads


def _is_signed(exchange: Exchange, row: Pulled) -> bool:
    key = exchange.keys().get(row.device_id)
    return bool(key and row.signature and signature_valid(key, row.chain, row.signature))


def _put_back(store: Store, entry: Entry, damaged: Entry) -> None:
    body = store.vault.kept(entry.entry_id, entry.key_id, entry.body)
    with store.transaction():
        store.change("keep_number")
        store.change("put_entry", entry._replace(body=body))
        for name in (entry.entry_id, str(damaged.entry_id)):
            store.change("clear_problem", (name,))
        views = Views(store.connection)
        meta = orjson.loads(entry.meta)
        views.introduce(meta, entry.effective_hlc, task=True, agent=entry.entity == CHECKPOINT)
        views.settle(entry.entity, entry.entity_id, [entry.seq])
        store.change("forget_tally")
