"""What must hold after every step, and at the end.

Nothing here asks the code under test what is right: logs are read with SQLite, the rule for heads
and winners is written down once more.
"""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import orjson

from soak.machine import Machine
from soak.world import BrokenError, World
from syncd import tenure
from syncd.entry import header_bytes
from syncd.seal import chain_value, digest

DURABLE = "acknowledged is durable"
CHAINS = "chains verify"
CONTIGUOUS = "cursors are contiguous"
LOST = "no version is lost"
HEADS = "heads and conflicts are equal everywhere they should be"
SCHEDULED = "a backlog implies a scheduled attempt"
CONVERGE = "everyone converges"
PROVE = "prove is clean"

_CHANGING = "SELECT seq, chain, effective_hlc, cloud_seq, refused, purged, length(body) FROM log"
_CHAINED = (
    "SELECT entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at, key_id,"
    " meta, hash, previous, chain FROM log WHERE seq = ?"
)
_VIEWS = (
    "SELECT c.id, l.entry_id, c.task_id, c.parent_id, c.hlc, c.device_id, c.final"
    " FROM checkpoints c JOIN log l ON l.seq = c.seq ORDER BY c.id",
    "SELECT id, kind, winner, loser, state FROM conflicts ORDER BY id",
    "SELECT task_id, agent_id, device_id, since, until FROM fences ORDER BY 1, 2, 3, 4",
    "SELECT id, status, budget, retention, revision FROM tasks ORDER BY id",
    "SELECT child_id, parent_id, revision FROM links ORDER BY 1, 2",
)
_RETRY_SECONDS = 300


class Row(NamedTuple):
    entry_id: str
    device_id: str
    device_seq: int
    entity: str
    entity_id: str
    op: str
    bases: str
    hlc: int
    actor: str
    at: str
    key_id: str
    meta: str
    hash: str
    previous: bytes
    chain: bytes
    effective_hlc: int
    cloud_seq: int | None
    refused: str | None
    purged: str | None
    body_size: int


class _Log(NamedTuple):
    """One machine's log as it was found, and what follows from it."""

    found: list[tuple[Any, ...]]
    entry_ids: set[str]
    chains: set[bytes]
    claims: list[Row]
    winners: dict[str, str]
    known: frozenset[Any]


class _Read(NamedTuple):
    """What was read of a database since it was opened, by chain value: what that vouches for does
    not change meanwhile, but for what is seen of it with each look."""

    chained: dict[bytes, tuple[Any, ...]]
    sound: set[tuple[Any, ...]]


class Watcher:
    """Looks at what has changed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._versions: dict[Machine, tuple[Any, int]] = {}
        self._logs: dict[Machine, _Log] = {}
        self._read: dict[sqlite3.Connection, _Read] = {}
        self._seen: dict[frozenset[Any], tuple[Any, str]] = {}
        self._replica: list[tuple[Any, ...]] = []
        self._restored = 0
        self._calls = -1
        self._compared = (0, 0)
        self._bases: dict[str, list[str]] = {}

    def look(self) -> None:
        self._look_at_replica()
        for machine in self.world.machines:
            self._look_at(machine)
            self._look_at_schedule(machine)

    def at_replica(self) -> set[str]:
        self._look_at_replica()
        return {row[2] for row in self._replica}

    # --- the replica ------------------------------------------------------------------------------

    def _look_at_replica(self) -> None:
        ground = self.world.ground
        if self._restored != self.world.restored:
            self._restored, self._replica = self.world.restored, []
            self._versions, self._calls = {}, -1
        if self._calls == self.world.calls:
            return
        self._calls = self.world.calls
        new = ground.log(len(self._replica))
        if not new:
            return
        self._replica += new
        numbers = [row[0] for row in self._replica]
        if numbers != list(range(1, len(numbers) + 1)):
            raise BrokenError(CONTIGUOUS, f"the replica has given out {_gaps(numbers)}")

    # --- a machine --------------------------------------------------------------------------------

    def _look_at(self, machine: Machine) -> None:
        [(version,)] = machine.rows("PRAGMA data_version")
        seen = (machine.inspector, version), len(self._replica)
        if self._versions.get(machine) == seen:
            return
        self._versions[machine] = seen
        log = self._log(machine)
        if gone := machine.told.keys() - log.entry_ids:
            raise BrokenError(DURABLE, f"{machine.home.name} has lost {sorted(gone)}")
        cursor = self.cursor(machine)
        self._look_at_cursor(machine, log, cursor)
        self._look_at_holders(machine, log, cursor)
        views = [machine.rows(text) for text in _VIEWS]
        self._look_at_heads(machine, log, views[0])
        self._look_at_views(machine, log, views)
        self._look_at_replicas_views(machine, log, views)

    def _log(self, machine: Machine) -> _Log:
        """What follows from a log alone is worked out when it has changed: most of what a daemon
        writes is where it stands."""
        found = machine.rows(_CHANGING)
        log = self._logs.get(machine)
        if log is None or log.found != found:
            rows = [self._row(machine, *each) for each in found]
            self._look_at_chains(machine, rows)
            log = self._logs[machine] = self._follows(found, rows)
        return log

    def _follows(self, found: list[tuple[Any, ...]], rows: list[Row]) -> _Log:
        versions: dict[str, list[Row]] = {}
        for row in rows:
            if row.entity == "checkpoint" and row.refused is None:
                versions.setdefault(row.entity_id, []).append(row)
        return _Log(
            found,
            {row.entry_id for row in rows},
            {row.chain for row in rows},
            [row for row in rows if row.entity == "lease"],
            {name: self._winner(each) for name, each in versions.items()},
            frozenset(
                (row.chain, row.cloud_seq, row.effective_hlc, row.refused, row.purged)
                for row in rows
            ),
        )

    def _row(self, machine: Machine, seq: int, chain: bytes, *changing: Any) -> Row:
        read = self._read.setdefault(machine.inspector, _Read({}, set()))
        if chain not in read.chained:
            [read.chained[chain]] = machine.rows(_CHAINED, seq)
        row = Row(*read.chained[chain], *changing)
        state = chain, *changing[2:]
        if state not in read.sound:
            read.sound.add(state)
            self._look_at_row(machine, row, seq)
        return row

    def _look_at_row(self, machine: Machine, row: Row, seq: int) -> None:
        if row.refused is not None:
            return
        if chain_value(row.previous, header_bytes(row[:12]), row.hash) != row.chain:
            raise BrokenError(CHAINS, f"{machine.home.name}: the header of {row.entry_id}")
        if row.purged is None and not row.key_id:
            [(body,)] = machine.rows("SELECT body FROM log WHERE seq = ?", seq)
            if digest(body) != row.hash:
                raise BrokenError(CHAINS, f"{machine.home.name}: the body of {row.entry_id}")

    def _look_at_chains(self, machine: Machine, rows: list[Row]) -> None:
        place = {(row.device_id, row.device_seq): row.chain for row in rows}
        for row in rows:
            before = place.get((row.device_id, row.device_seq - 1))
            if before != row.previous and (row.device_seq > 1 or any(row.previous)):
                raise BrokenError(
                    CHAINS,
                    f"{machine.home.name}: number {row.device_seq} of {row.device_id}"
                    f" ({row.entry_id}) does not follow the one before",
                )

    def _look_at_cursor(self, machine: Machine, log: _Log, cursor: int) -> None:
        """All that the replica has up to the cursor is here."""
        lacking = [row[0] for row in self._replica[:cursor] if row[5] not in log.chains]
        if lacking and not self._is_quarantined(machine, lacking):
            raise BrokenError(
                CONTIGUOUS,
                f"{machine.home.name} is at number {cursor} and has never seen {lacking}",
            )

    def cursor(self, machine: Machine) -> int:
        """Up to where a machine and the replica agree; none where it has yet to hear that the
        replica was restored, and its cursor is one of a history that is gone."""
        newest = "SELECT cloud_seq, batch FROM batches ORDER BY cloud_seq DESC LIMIT 1"
        for cursor, batch in machine.rows(newest):
            if cursor <= len(self._replica) and self._replica[cursor - 1][1] == batch:
                return int(cursor)
            if (cursor, batch) not in self.world.gone:
                raise BrokenError(
                    CONTIGUOUS,
                    f"{machine.home.name} is at number {cursor}, which the replica never gave out",
                )
        return 0

    def _is_quarantined(self, machine: Machine, numbers: list[int]) -> bool:
        known = {row[0] for row in machine.rows("SELECT entry_id FROM quarantine")}
        return all(self._replica[number - 1][2] in known for number in numbers)

    # --- who holds what ---------------------------------------------------------------------------

    def _look_at_holders(self, machine: Machine, log: _Log, cursor: int) -> None:
        """Who has all that the replica had before a claim knows whether it came first; unless the
        replica was restored since."""
        for row in log.claims:
            if row.op == "release":
                self.world.released(*self._based_on(row))
        with self.world.acting(machine):
            for task in {row.entity_id for row in log.claims}:
                for claim in tenure.standing(machine.node, task):
                    numbered = self._replica[claim.fence - 1 : claim.fence] if claim.fence else []
                    if cursor >= claim.fence and [row[2] for row in numbered] == [claim.entry_id]:
                        subject = f"{task}, {claim.subject}"
                        self.world.granted(subject, claim.entry_id, machine.home.name)

    # --- which version counts ---------------------------------------------------------------------

    def _look_at_heads(
        self, machine: Machine, log: _Log, checkpoints: list[tuple[Any, ...]]
    ) -> None:
        ruled = log.winners
        viewed = {row[0]: row[1] for row in checkpoints}
        if ruled == viewed:
            return
        for name in ruled.keys() | viewed.keys():
            if ruled.get(name) != viewed.get(name):
                raise BrokenError(
                    HEADS,
                    f"{machine.home.name} takes {viewed.get(name)} for the current version of"
                    f" {name}, the rule says {ruled.get(name)}",
                )

    def _winner(self, rows: list[Row]) -> str:
        final = {row.entry_id for row in rows if row.op == "finalize"}
        based = {base for row in rows for base in self._based_on(row)} - final
        heads = [row for row in rows if row.entry_id not in based]
        best = max(
            heads, key=lambda r: (r.entry_id in final, r.effective_hlc, r.device_id, r.entry_id)
        )
        return best.entry_id

    def _based_on(self, row: Row) -> list[str]:
        if row.bases == "[]":
            return []
        if row.entry_id not in self._bases:
            self._bases[row.entry_id] = orjson.loads(row.bases)
        return self._bases[row.entry_id]

    def _look_at_views(self, machine: Machine, log: _Log, views: list[Any]) -> None:
        """Whoever has the same entries in the same places has the same views."""
        before, whose = self._seen.setdefault(log.known, (views, machine.home.name))
        for mine, theirs in zip(views, before, strict=True):
            if mine != theirs:
                differ = set(mine) ^ set(theirs)
                raise BrokenError(
                    HEADS, f"{machine.home.name} and {whose} have the same log, and not {differ}"
                )

    def _look_at_replicas_views(self, machine: Machine, log: _Log, views: list[Any]) -> None:
        """So has the replica, as soon as one machine has just what it has."""
        state = self.world.restored, len(self._replica)
        if state == self._compared or len(log.found) != len(self._replica):
            return
        here = {(chain, number, hlc, refused) for _, chain, hlc, number, refused, *_ in log.found}
        if here != {(row[5], row[0], row[6], row[7]) for row in self._replica}:
            return
        self._compared = state
        mine = {row[:2] for row in views[0]} | set(views[1])
        if differ := mine ^ self.world.ground.views():
            who = f"{machine.home.name} and the replica"
            raise BrokenError(HEADS, f"{who} have the same log, and not {differ}")

    # --- what is to be done -----------------------------------------------------------------------

    def _look_at_schedule(self, machine: Machine) -> None:
        """While something waits to be sent, the daemon has been rung for or has a time to try."""
        daemon = machine.exchanger
        if daemon._wanted or (machine.wire.news and machine.wire.daemon):
            return
        wakes = daemon.wakes_at()
        if wakes - self.world.monotonic() <= _RETRY_SECONDS:
            return
        with self.world.acting(machine):
            waiting = machine.exchange.pending_count()
        if waiting:
            raise BrokenError(
                SCHEDULED, f"{machine.home.name} has {waiting} to send and the daemon sleeps"
                f" until {wakes} ({daemon.breaker.state}, {daemon.cloud.last_error})",
            )  # fmt: skip


def _gaps(numbers: list[int]) -> str:
    missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
    return f"numbers up to {max(numbers)} without {missing}"
