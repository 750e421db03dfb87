"""What a device asks of the replica."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from syncd.entry import Entry
from syncd.errors import LoginRefusedError, ReplicaOutdatedError
from syncd.replica import link
from syncd.replica.columns import Bigints, Blobs, Texts, bigints, blobs, register, texts
from syncd.replica.login import Login, Machine, credentials
from syncd.sql import POSTGRES_NEEDED, replica_queries
from syncd.version import __version__

PAGE_ROWS = 1_000
PAGE_BYTES = 8_000_000
# From this schema on, the replica keeps how far a device's clock is off.
_SKEW_REPORTED = 3


class Membership(NamedTuple):
    """Whose login this is."""

    organization_id: str
    organization: str
    member: str
    kind: str
    machine: str

    @property
    def reads_only(self) -> bool:
        return self.kind == "auditor"


class Standing(NamedTuple):
    """Where the replica stands with a device."""

    schema_version: int
    now_ms: int
    device_seq: int
    chain: bytes
    public_key: bytes
    cloud_seq: int
    recovery_open: bool
    channel: str


class Verdict(NamedTuple):
    """What became of one pushed entry: accepted, duplicate, capped or refused."""

    device_seq: int
    verdict: str
    cloud_seq: int
    batch: str
    effective_hlc: int
    reason: str | None


class Batch(NamedTuple):
    """Entries of one device that follow each other, column by column, ready to be sent."""

    device_id: str
    device_seq: int
    previous: bytes
    entry_ids: Texts
    entities: Texts
    ids: Texts
    ops: Texts
    bases: Texts
    hlcs: Bigints
    actors: Texts
    ats: Texts
    key_ids: Texts
    metas: Texts
    hashes: Texts
    chains: Blobs
    signatures: Blobs
    effective: Bigints
    bodies: Blobs
    given_up: Texts
    purged: Texts


def encoded(entries: Sequence[Entry], given_up: Sequence[str | None] = ()) -> Batch:
    """`given_up` says why only the headers of some are to be kept."""
    first, columns = entries[0], list(zip(*entries, strict=True))
    fields = dict(zip(Entry._fields, columns, strict=True))
    return Batch(
        first.device_id, first.device_seq, first.previous, texts(fields["entry_id"]),
        texts(fields["entity"]), texts(fields["entity_id"]), texts(fields["op"]),
        texts(fields["bases"]), bigints(fields["hlc"]), texts(fields["actor"]),
        texts(fields["at"]), texts(fields["key_id"]), texts(fields["meta"]),
        texts(fields["hash"]), blobs(fields["chain"]), blobs(fields["signature"]),
        bigints(fields["effective_hlc"]), blobs(_bodies(entries, fields)),
        texts(given_up or [None] * len(entries)), texts(fields["purged"]),
    )  # fmt: skip


def _bodies(entries: Sequence[Entry], fields: dict[str, Any]) -> Sequence[bytes | None]:
    if not any(fields["purged"]):
        return fields["body"]  # type: ignore[no-any-return]
    return [None if entry.purged else entry.body for entry in entries]


class Pulled(NamedTuple):
    """One entry as the replica has it. The body is None where the device has it itself, or where
    `purged` names the entry that took it away."""

    cloud_seq: int
    batch: str
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
    chain: bytes
    signature: bytes | None
    effective_hlc: int
    refused: str | None
    body: bytes | None
    purged: str | None = None


class Seen(NamedTuple):
    """An agent's last sign of life, so many milliseconds ago."""

    device_id: str
    agent_id: str
    task_id: str
    agent_type: str
    session_id: str
    age_ms: int


class Replica:
    """A device's way to its organization's replica; connects when first used."""

    def __init__(self, dsn: str, tls: str = link.VERIFIED) -> None:
        self._dsn = dsn
        self._tls = tls
        self._connection: psycopg.Connection[Any] | None = None
        self._membership: Membership | None = None
        self._schema = POSTGRES_NEEDED
        self._sql = replica_queries()

    @property
    def connection(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = link.connect(self._dsn, self._tls)
            register(self._connection.adapters)
        return self._connection

    @property
    def password(self) -> str:
        """For whoever must make sure that it is not written anywhere."""
        return link.without_password(self._dsn)[1]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self.connection
        with link.translated():
            return connection.execute(self._sql[query], values, binary=True).fetchall()

    # --- who and where ----------------------------------------------------------------------

    @property
    def membership(self) -> Membership:
        if self._membership is None:
            found = self.rows("whoami")
            if not found:
                raise LoginRefusedError(
                    "the replica refused: this login belongs to no organization"
                )
            self._membership = Membership(*found[0])
        return self._membership

    @property
    def organization(self) -> str:
        return self.membership.organization_id

    def hello(self, device_id: str, public_key: bytes) -> Standing:
        """Make this device known, and learn where the replica stands with it."""
        rows = self.rows("hello", self.organization, device_id, public_key, __version__)
        standing = Standing(*rows[0])
        if standing.schema_version < POSTGRES_NEEDED:
            raise ReplicaOutdatedError(
                f"the replica has schema {standing.schema_version}, "
                f"this syncd needs {POSTGRES_NEEDED}"
            )
        self._schema = standing.schema_version
        return standing

    def introduce(self, device_id: str, public_key: bytes) -> None:
        """Make a lost machine's device known again, while recovery is open."""
        self.rows("introduce", self.organization, device_id, public_key)

    def keys(self) -> dict[str, bytes]:
        """The public keys of the organization's devices."""
        return dict(self.rows("keys", self.organization))

    # --- entries ----------------------------------------------------------------------------

    def push(self, batch: Batch) -> list[Verdict]:
        """A verdict for each entry of a batch."""
        return [Verdict(*row) for row in self.rows("push", self.organization, *batch)]

    def pull(self, device_id: str, after: int, batch: str | None, own_seq: int) -> list[Pulled]:
        """The next whole batches after a cursor."""
        values = (self.organization, device_id, after, batch, own_seq, PAGE_ROWS, PAGE_BYTES)
        return [Pulled(*row) for row in self.rows("pull", *values)]

    def announce(self) -> float:
        """Tell the other devices that there is news. If they were told a moment ago they may have
        looked before there was: then, how many seconds to wait before telling them again."""
        return float(self.rows("announce", self.organization)[0][0]) / 1000

    # --- news ---------------------------------------------------------------------------------

    def listen(self, channel: str) -> bool:
        """Have news announced on this connection; False if somebody stands in between who lends
        out connections one statement at a time: then nothing will come."""
        connection = self.connection
        with link.translated():
            row = connection.execute("SELECT pg_backend_pid()").fetchone()
            if not row or row[0] != connection.info.backend_pid:
                return False
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        return True

    def fileno(self) -> int:
        """Becomes readable with news, or when the connection ends; -1 without one."""
        connected = self._connection is not None and not self._connection.closed
        return self._connection.fileno() if self._connection and connected else -1

    def cut(self) -> None:
        """End the connection under whoever waits for an answer on it, from another thread."""
        descriptor = self.fileno()
        if descriptor >= 0:
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as line:
                line.shutdown(socket.SHUT_RDWR)

    def news(self) -> bool:
        """Whether another has announced something since the last call. Raises if the connection
        ended."""
        if self._connection is None:
            return False
        with link.translated():
            told = {notice.pid for notice in self._connection.notifies(timeout=0)}
            return bool(told - {self._connection.info.backend_pid})

    def report(self, device_id: str, pulled: int, pending: int, skew_ms: int) -> None:
        """How this device is doing, as far as the replica it said hello to can note it."""
        told = (self.organization, device_id, pulled, pending)
        if self._schema < _SKEW_REPORTED:
            self.rows("report", *told)
        else:
            self.rows("report_skew", *told, skew_ms)

    def presence(self, device_id: str, own: Sequence[Seen]) -> list[Seen]:
        """Tell of this device's agents; hear of those on all others."""
        columns = ([getattr(seen, name) for seen in own] for name in Seen._fields[1:])
        return [Seen(*row) for row in
                self.rows("presence", self.organization, device_id, *columns)]  # fmt: skip

    def entry(self, entry_id: str) -> Pulled | None:
        """One entry as the replica has it."""
        rows = self.rows("entry", self.organization, entry_id)
        return Pulled(*rows[0]) if rows else None

    # --- comparing --------------------------------------------------------------------------

    def common(self, batches: Sequence[tuple[int, str]]) -> int:
        """The greatest of the device's cursors that the replica still agrees with, or 0."""
        seqs, names = [row[0] for row in batches], [row[1] for row in batches]
        return int(self.rows("common", self.organization, seqs, names)[0][0] or 0)

    def chains(self, device_id: str, numbers: Iterable[int]) -> dict[int, bytes]:
        rows = self.rows("chains", self.organization, device_id, list(numbers))
        return dict(rows)

    def signed_after(self, device_id: str, number: int) -> list[tuple[bytes, bytes]]:
        """Chain value and signature of the next entries that a device has signed."""
        return [(row[0], row[1]) for row in
                self.rows("signed_after", self.organization, device_id, number)]  # fmt: skip

    def digests(self) -> dict[tuple[str, int], tuple[int, str]]:
        """By device and thousand: how many entries, and the digest of their chain values."""
        rows = self.rows("digests", self.organization)
        return {(device, number): (count, digest) for device, number, count, digest in rows}

    def thousand(self, device_id: str, number: int) -> list[tuple[Any, ...]]:
        """Number, id, chain value and cloud_seq of the entries behind one digest."""
        return self.rows("thousand", self.organization, device_id, number)

    def pullers(self, cloud_seq: int) -> list[tuple[Any, ...]]:
        """Each device, the name of its machine, and whether it has pulled that far."""
        return self.rows("pullers", cloud_seq, self.organization)

    # --- the member's own machines ------------------------------------------------------------

    def machines(self) -> list[Machine]:
        """Those of this login's member."""
        member = self.membership.member
        return [Machine(*row) for row in self.rows("machines", self.organization, member, member)]

    def add_machine(self, name: str) -> Login:
        login = credentials(self.connection)
        self.rows("add_own_machine", self.organization, name, login.role, login.verifier)
        return login

    def rename_machine(self, login: str, name: str) -> None:
        self.rows("rename_own_machine", self.organization, login, name)

    def revoke_machine(self, login: str, reason: str) -> None:
        this_one = login == self.connection.info.user
        self.rows("revoke_own_machine", self.organization, login, reason)
        if not this_one:  # which may not ask for anything any more
            self.rows("end_own_sessions", self.organization, login)
