"""Devices for tests: real homes whose clock may be wrong, and whose connection may be cut."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from counts import ENCRYPTION
from postgres import Cluster
from replicas import Cloud, cloud_on

from syncd import CheckpointService, clock, proof
from syncd.audit import verify
from syncd.errors import ReplicaUnreachableError
from syncd.exchange import Exchange
from syncd.keychain import END_TO_END, DataKey, Keychain
from syncd.node import Node, whereabouts
from syncd.replica import Replica
from syncd.store import Store
from syncd.sync import Engine, Outcome

MEMORY = Path("/dev/shm")
BEFORE, AFTER = "before", "after"


_SHARED = DataKey.of(os.urandom(32), END_TO_END)


def share_key(home: Path) -> None:
    """All devices of the tests have one key, where they encrypt end to end."""
    if ENCRYPTION == END_TO_END:
        Keychain(home, lambda _: "").add(_SHARED)


class FrailReplica(Replica):
    """The real one. At one of its calls something else happens, or the connection is cut."""

    left = -1
    when = BEFORE
    event: Callable[[], object] | None = None
    dead = False

    def arm(self, calls: int, when: str, event: Callable[[], object] | None = None) -> None:
        self.left, self.when, self.event = calls, when, event

    def disarm(self) -> None:
        self.left, self.event = -1, None
        if self.dead:
            self.close()
            self.dead = False

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        if self.dead:
            raise ReplicaUnreachableError("cut by the test")
        self.left -= 1
        due = self.left == 0
        if due and self.when == BEFORE:
            self._happen()
        found = super().rows(query, *values)
        if due and self.when == AFTER:
            self._happen()
        return found

    def _happen(self) -> None:
        if self.event is None:
            self.dead = True
            raise ReplicaUnreachableError("cut by the test")
        self.event()


class Timed:
    """A home whose clock is the test's."""

    def __init__(self, home: Path) -> None:
        self.now = clock.wall_ms()
        self.node = Node(home)
        self.node.store.close()
        self.node.store = Store(self.node.database, vault=self.node.vault, now_ms=lambda: self.now)
        self.service = CheckpointService(node=self.node)


class Device:
    """A home, a login, and what a user does with them."""

    def __init__(self, home: Path, dsn: str, skew_ms: int = 0) -> None:
        self.home = home
        self.dsn = dsn
        self.skew_ms = skew_ms
        self.replica = FrailReplica(dsn)
        self.open()

    def open(self) -> None:
        self.node = Node(self.home)
        self.node.store.close()
        share_key(self.home)
        self.node.store = Store(self.node.database, vault=self.node.vault, now_ms=self._now)
        self.service = CheckpointService(node=self.node)

    def _now(self) -> int:
        return clock.wall_ms() + self.skew_ms

    def close(self) -> None:
        self.node.close()
        self.replica.close()

    @property
    def exchange(self) -> Exchange:
        return Exchange(self.node.store)

    @property
    def engine(self) -> Engine:
        return Engine(self.exchange, self.replica, self.node.key)

    def sync(self, *, push: bool = True, pull: bool = True) -> Outcome:
        return self.engine.sync(push=push, pull=pull)

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        return self.node.store.connection.execute(text, values).fetchall()

    # --- disasters ------------------------------------------------------------------------------

    def copy(self, target: Path) -> Path:
        """The database as it is now."""
        target.unlink(missing_ok=True)
        with closing(sqlite3.connect(target)) as copy:
            self.node.store.connection.backup(copy)
        return target

    def restore(self, copy: Path) -> None:
        self.node.close()
        for file in self.home.glob("context.db*"):
            file.unlink()
        shutil.copy(copy, self.node.database)
        self.open()

    def clone(self, home: Path, *, image: bool = True) -> Device:
        """The home directory copied to another machine; `image` so that it looks like the same."""
        (home / "keys").mkdir(parents=True)
        for name in ("backups", "run", "log"):
            (home / name).mkdir()
        shutil.copy(self.home / "keys" / "signing.pem", home / "keys")
        with closing(sqlite3.connect(self.copy(home / "context.db"), isolation_level=None)) as copy:
            if image:
                here = "UPDATE state SET value = ? WHERE name = 'whereabouts'"
                copy.execute(here, (whereabouts(home),))
        return Device(home, self.dsn, self.skew_ms)

    # --- what must hold -------------------------------------------------------------------------

    def problems(self) -> list[str]:
        report = verify(self.node.store, self.node.key.public())
        return [f"{p.entry_id}: {p.problem}" for p in report.problems]

    def proof(self) -> proof.Proof:
        return proof.prove(self.exchange, self.replica)

    def entry_ids(self) -> set[str]:
        return {entry_id for (entry_id,) in self.rows("SELECT entry_id FROM log")}


@contextmanager
def folder() -> Iterator[Path]:
    """In memory where there is such a place: nothing here tests the disk."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="syncd-test-") as name:
        yield Path(name)


class Team:
    """One organization and its devices, in a folder of its own."""

    def __init__(self, cloud: Cloud, place: Path) -> None:
        self.cloud = cloud
        self.place = place
        self.organization_id = cloud.organization()
        self.devices: list[Device] = []
        self._member = ""
        self._homes = 0

    def home(self) -> Path:
        self._homes += 1
        return self.place / f"home {self._homes}"

    def device(self, skew_ms: int = 0) -> Device:
        """A new machine with a login of its own."""
        if not self._member:
            self._member = "member"
            login = self.cloud.admin.add_member(self.organization_id, "member", "member", "first")
        else:
            name = f"machine {len(self.devices)} {self._homes}"
            login = self.cloud.admin.add_machine(self.organization_id, self._member, name)
        return self.joined(Device(self.home(), login.dsn, skew_ms))

    def joined(self, device: Device) -> Device:
        self.devices.append(device)
        return device

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """As superuser; `%s` for the organization comes last."""
        return self.cloud.sql(text, *values, self.organization_id)

    def settle(self) -> None:
        """Everybody syncs until there is nothing left to say."""
        for _ in range(12):
            outcomes = [device.sync() for device in self.devices]
            if not any(outcome.pushed or outcome.pulled for outcome in outcomes):
                return
        raise AssertionError("the devices never come to rest")


@contextmanager
def team(cloud: Cloud) -> Iterator[Team]:
    with folder() as place, closing(Team(cloud, place)) as made:
        yield made


@pytest.fixture(scope="module")
def cloud(cluster: Cluster) -> Iterator[Cloud]:
    """One for the tests of a module: each of them works in an organization of its own."""
    with cloud_on(cluster) as opened:
        yield opened


@pytest.fixture
def crew(cloud: Cloud) -> Iterator[Team]:
    """A new organization."""
    with team(cloud) as made:
        yield made
