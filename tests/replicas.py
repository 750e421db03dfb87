"""Replicas for tests: a migrated database per test, organizations with members and logins, and
devices that write signed, chained entries without a local database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from counts import ENCRYPTION
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from postgres import Cluster

from syncd import clock
from syncd.entry import (
    CHECKPOINT,
    CHOICE,
    CREATE,
    FINALIZE,
    MESSAGE,
    PURGE,
    TASK,
    UPDATE,
    Draft,
    Entry,
    header_bytes,
    uuid7,
)
from syncd.keychain import END_TO_END, DataKey, Keychain
from syncd.replica import Administration, Replica, Standing, Verdict, encoded
from syncd.replica.login import Login
from syncd.seal import GENESIS, SigningKey, chain_value, digest
from syncd.vault import Vault


def build(admin_dsn: str) -> None:
    """What `Cluster.template` calls once."""
    administration = Administration(admin_dsn)
    administration.migrate()
    administration.close()


# --- entries ------------------------------------------------------------------------------------


def checkpoint_meta(task: str, **changes: Any) -> dict[str, Any]:
    return {
        "task_id": task, "agent": "agent", "agent_type": "implementation", "iteration": 1,
        "phase": "implementing", "status": "in_progress", "reason": "", "tokens": 0, "parent": "",
        **changes,
    }  # fmt: skip


class _OneKey(Keychain):
    """What all writers seal with, where everything is sealed end to end."""

    _key = DataKey.of(bytes(32), END_TO_END)

    def current(self, use: str) -> DataKey:
        return self._key


_VAULT = Vault(_OneKey(Path(), lambda _: ""), END_TO_END)


class Writer:
    """A device: each entry continues its chain and is signed."""

    def __init__(self, device_id: str = "", wall: clock.Wall = clock.wall_ms) -> None:
        self.device_id = device_id or str(uuid.uuid4())
        self.key = SigningKey(Ed25519PrivateKey.generate())
        self.wall = wall
        self.device_seq = 0
        self.chain = GENESIS
        self.hlc = 0
        self._task_seq: dict[str, int] = {}

    def append(self, draft: Draft, *, hlc: int | None = None, key_id: str = "") -> Entry:
        now = self.wall()
        self.hlc = clock.tick(self.hlc, now) if hlc is None else hlc
        meta = {**draft.meta, "task_seq": self._next_of(str(draft.meta.get("task_id")))}
        text = orjson.dumps(meta, option=orjson.OPT_SORT_KEYS).decode()
        bases = orjson.dumps(draft.bases).decode()
        body, body_hash = draft.body, ""
        if ENCRYPTION == END_TO_END and not key_id:
            key_id, body_hash, body = _VAULT.sealed(draft.entry_id, draft.body)
        return self.chained(
            draft.entry_id, draft.entity, draft.entity_id, draft.op, bases, self.hlc, draft.actor,
            clock.iso(now), key_id, text, body=body, body_hash=body_hash,
        )  # fmt: skip

    def chained(self, entry_id: str, *header: Any, body: bytes, body_hash: str = "") -> Entry:
        """An entry of exactly these words, however odd: entity, entity_id, op, bases, hlc,
        actor, at, key_id, meta."""
        words = (entry_id, self.device_id, self.device_seq + 1, *header)
        body_hash = body_hash or digest(body)
        chain = chain_value(self.chain, header_bytes(words), body_hash)
        proof = (body_hash, self.chain, chain, self.key.sign(chain), words[7])
        self.device_seq, self.chain = self.device_seq + 1, chain
        return Entry._make((0, *words, *proof, None, None, body, None, None))

    def _next_of(self, task: str) -> int:
        self._task_seq[task] = self._task_seq.get(task, 0) + 1
        return self._task_seq[task]

    # --- of one kind ----------------------------------------------------------------------------

    def create(
        self, task: str = "task", body: Any = None, entity_id: str = "", entry_id: str = "",
        **changes: Any,
    ) -> Entry:  # fmt: skip
        """A checkpoint. `changes` are to its meta, or `hlc` and `key_id`."""
        entry_id = entry_id or entity_id or uuid7()
        return self._checkpoint(CREATE, entity_id or entry_id, (), task, body, entry_id, changes)

    def update(
        self, entity_id: str, bases: Sequence[str], body: Any = None, task: str = "task",
        entry_id: str = "", op: str = UPDATE, **changes: Any,
    ) -> Entry:  # fmt: skip
        return self._checkpoint(op, entity_id, tuple(bases), task, body, entry_id, changes)

    def finalize(self, entity_id: str, bases: Sequence[str], **changes: Any) -> Entry:
        return self.update(entity_id, bases, op=FINALIZE, **changes)

    def _checkpoint(
        self, op: str, entity_id: str, bases: tuple[str, ...], task: str, body: Any,
        entry_id: str, changes: dict[str, Any],
    ) -> Entry:  # fmt: skip
        options = {name: changes.pop(name) for name in ("hlc", "key_id") if name in changes}
        meta = checkpoint_meta(task, **changes)
        content = content_of({"metadata": {"task_id": task}} if body is None else body)
        made = entry_id or uuid7()
        draft = Draft(made, CHECKPOINT, entity_id, op, "tester", meta, content, bases)
        return self.append(draft, **options)

    def describe_task(
        self, task: str, title: str = "", bases: Sequence[str] = (), **changes: Any
    ) -> Entry:
        meta = {"task_id": task, "status": "", "budget": None, "retention": "default", **changes}
        op = UPDATE if bases else CREATE
        body = content_of({"title": title})
        return self.append(Draft(uuid7(), TASK, task, op, "tester", meta, body, tuple(bases)))

    def purge(self, names: Sequence[str], task: str = "task", **changes: Any) -> Entry:
        """Take away the bodies of some entries."""
        meta = {"task_id": task, "kind": "erase", "entries": list(names), **changes}
        draft = Draft(uuid7(), PURGE, f"purge:{uuid7()}", CREATE, "tester", meta, b"{}")
        return self.append(draft)

    def send_message(self, recipient: str, text: str, task: str = "task") -> Entry:
        meta = {"task_id": task, "sender": "tester", "recipient": recipient}
        draft = Draft(uuid7(), MESSAGE, uuid7(), CREATE, "tester", meta, content_of({"text": text}))
        return self.append(draft)

    def choose(
        self, checkpoint_id: str, fork: str, resolution: str = "chosen", task: str = "task",
        hlc: int | None = None,
    ) -> Entry:  # fmt: skip
        """The word on a branch that lost: `fork` is the parent it shares with the winner."""
        meta = {"task_id": task, "fork": fork, "resolution": resolution}
        draft = Draft(uuid7(), CHOICE, checkpoint_id, CREATE, "tester", meta, b"{}")
        return self.append(draft, hlc=hlc)


def content_of(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


# --- people -------------------------------------------------------------------------------------


class Person:
    """A login of a member, and one device that uses it."""

    def __init__(self, organization_id: str, name: str, login: Login, wall: clock.Wall) -> None:
        self.organization_id = organization_id
        self.name = name
        self.login = login
        self.writer = Writer(wall=wall)
        self._open: list[psycopg.Connection[Any]] = []

    @cached_property
    def replica(self) -> Replica:
        return Replica(self.login.dsn)

    @cached_property
    def plain(self) -> psycopg.Connection[Any]:
        """What anybody can do who has the password."""
        return self.connect()

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        self._open.append(psycopg.connect(self.login.dsn, autocommit=autocommit))
        return self._open[-1]

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        if "replica" in vars(self):
            self.replica.close()

    def hello(self) -> Standing:
        return self.replica.hello(self.writer.device_id, self.writer.key.public())

    def push(self, *entries: Entry) -> list[Verdict]:
        return self.replica.push(encoded(entries))


class Cloud:
    """A migrated database and its administrator."""

    def __init__(self, cluster: Cluster, database: str, wall: clock.Wall = clock.wall_ms) -> None:
        self.cluster = cluster
        self.database = database
        self._wall = wall
        self._opened = ExitStack()
        self.admin = Administration(cluster.admin_dsn(database))
        self._opened.callback(self.admin.close)

    def close(self) -> None:
        self._opened.close()

    @cached_property
    def _superuser(self) -> psycopg.Connection[Any]:
        dsn = self.cluster.superuser_dsn(self.database)
        return self._opened.enter_context(closing(psycopg.connect(dsn, autocommit=True)))

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """As superuser, whom no policy holds."""
        cursor = self._superuser.execute(text.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def organization(self, name: str = "") -> str:
        return self.admin.create_organization(name or f"organization {uuid.uuid4()}")

    def person(
        self, organization_id: str = "", name: str = "", kind: str = "member", *, greet: bool = True
    ) -> Person:
        """A new member with one machine, whose device the replica knows."""
        organization_id = organization_id or self.organization()
        name = name or f"person {uuid.uuid4()}"
        login = self.admin.add_member(organization_id, name, kind, "laptop")
        return self.of(organization_id, name, login, greet=greet)

    def machine(self, person: Person, name: str = "") -> Person:
        """Another machine of the same member."""
        login = self.admin.add_machine(
            person.organization_id, person.name, name or f"machine {uuid.uuid4()}"
        )
        return self.of(person.organization_id, person.name, login)

    def of(self, organization_id: str, name: str, login: Login, *, greet: bool = True) -> Person:
        person = Person(organization_id, name, login, self._wall)
        self._opened.callback(person.close)
        if greet:
            person.hello()
        return person


@contextmanager
def cloud_on(cluster: Cluster) -> Iterator[Cloud]:
    """A fresh one, gone afterwards."""
    database = cluster.create_database(template=cluster.template(build))
    opened = Cloud(cluster, database)
    try:
        yield opened
    finally:
        opened.close()
        cluster.drop_database(database)


CloudFactory = Callable[[Cluster], Cloud]


@pytest.fixture
def clouds() -> Iterator[CloudFactory]:
    """Makes several, on any cluster."""
    with ExitStack() as stack:
        yield lambda cluster: stack.enter_context(cloud_on(cluster))


@pytest.fixture
def cloud(cluster: Cluster) -> Iterator[Cloud]:
    """One of this test's own, on PostgreSQL 18."""
    with cloud_on(cluster) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_cloud(cluster: Cluster) -> Iterator[Cloud]:
    """One for a whole module: its tests keep apart by organization."""
    with cloud_on(cluster) as opened:
        yield opened


@pytest.fixture
def any_cloud(any_cluster: Cluster) -> Iterator[Cloud]:
    """One of this test's own, on each supported PostgreSQL."""
    with cloud_on(any_cluster) as opened:
        yield opened
