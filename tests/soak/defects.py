"""Mistakes that the simulation must find, each planted for as long as a test asks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from soak.ground import Ground
from syncd import arrival, fold, sync
from syncd.database import Database
from syncd.entry import winner
from syncd.examination import Examined
from syncd.exchange import Exchange
from syncd.leases import Claim

Plant = Callable[[Ground], AbstractContextManager[object]]

_PUSH = "SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.oid::regproc::text = 'syncd.push'"
# Numbers are taken where an identity column takes them: when rows are written, and by whoever
# comes first, not when they are committed.
_IDENTITY = (
    (
        "WHERE o.organization_id = organization FOR UPDATE;",
        "WHERE o.organization_id = organization;\n"
        "  PERFORM nextval('soak.numbers') FROM generate_series(1, size - (SELECT count(*)::integer"
        " FROM syncd.log l WHERE l.organization_id = organization AND l.device_id = device"
        " AND l.device_seq BETWEEN first_seq AND first_seq + size - 1));\n"
        "  last_seq := currval('soak.numbers') - size + (SELECT count(*) FROM syncd.log l"
        " WHERE l.organization_id = organization AND l.device_id = device"
        " AND l.device_seq BETWEEN first_seq AND first_seq + size - 1);",
    ),
    (
        "UPDATE syncd.organizations o SET cloud_seq = last_seq WHERE",
        "PERFORM 1 FROM syncd.organizations o WHERE",
    ),
)


@contextmanager
def identity_column(ground: Ground) -> Iterator[None]:
    """The cursor is a column that counts by itself."""
    [(before,)] = ground.sql(_PUSH)
    text = before
    for old, new in _IDENTITY:
        assert old in text, old
        text = text.replace(old, new)
    ground.sql("CREATE SEQUENCE soak.numbers; GRANT ALL ON SEQUENCE soak.numbers TO syncd_owner")
    ground.sql(text)
    with (
        patch.object(ground, "clear", _restarting(ground, ground.clear)),
        patch.object(ground, "restore", _restarting(ground, ground.restore)),
        patch.object(ground, "last", lambda: _highest(ground)),
    ):
        yield
    ground.sql(before)
    ground.sql("DROP SEQUENCE soak.numbers")


def _restarting(ground: Ground, change: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        change()
        ground.sql(f"ALTER SEQUENCE soak.numbers RESTART WITH {_highest(ground) + 1}")

    return changed


def _highest(ground: Ground) -> int:
    return int(ground.sql("SELECT coalesce(max(cloud_seq), 0) FROM syncd.log")[0][0])


def no_watermark(_ground: Ground) -> AbstractContextManager[object]:
    """Nobody compares what both sides remember."""
    return patch.object(sync, "reconcile", lambda *_: False)


def no_fence(_ground: Ground) -> AbstractContextManager[object]:
    """Of two claims the earlier one counts, by the clocks of those who made them."""
    by_clock = property(lambda claim: (claim.hlc, claim.hlc, claim.entry_id))
    return patch.object(Claim, "order", by_clock)


def pull_in_pieces(_ground: Ground) -> AbstractContextManager[object]:
    """The cursor is moved first, and the entries follow in a transaction of their own."""
    take_in = arrival.apply

    def apply(exchange: Exchange, page: Sequence[Examined], keys: dict[str, bytes]) -> int:
        before = exchange.cursor()
        with exchange.store.transaction():
            for found in page:
                exchange.run("add_batch", found.row.cloud_seq, found.row.batch)
        with patch.object(exchange, "cursor", lambda: before):
            return take_in(exchange, page, keys)

    return patch.object(sync, "apply", apply)


def no_fsync(_ground: Ground) -> AbstractContextManager[object]:
    """What was acknowledged may be in the kernel's memory alone."""
    opened = Database._open

    def unsynced(self: Database, how: str) -> sqlite3.Connection:
        connection = opened(self, how)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    return patch.object(Database, "_open", unsynced)


def pairwise(_ground: Ground) -> AbstractContextManager[object]:
    """Each version is compared with the current one when it arrives, and never again."""

    def current(rows: list[Any]) -> Any:
        best = rows[0]
        for row in rows[1:]:
            later = best.entry_id in row.bases
            pair = winner([fold._version(best), fold._version(row)]).entry_id
            best = row if later or pair == row.entry_id else best
        return best

    return patch.object(fold, "current", current)


PLANTED: dict[str, Plant] = {
    "identity column": identity_column, "no watermark": no_watermark, "no fence": no_fence,
    "pull in pieces": pull_in_pieces, "no fsync": no_fsync, "pairwise": pairwise,
}  # fmt: skip
