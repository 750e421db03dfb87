"""Random crashes, damage and lost files: a recovery goes on from the newest good state and tells
what it passed over, or it escalates. It is never silently wrong."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import devices
import pytest
import resuming
from counts import ENCRYPTION, full
from devices import folder
from replicas import Cloud

from syncd import CheckpointService, audit, config, credentials, recovery
from syncd.keychain import END_TO_END, DataKey, Keychain
from syncd.node import Node
from syncd.recovery import Wish

cloud = devices.cloud
CASES, GROUP = full(20, 1_000), 20
NOBODY = "host=127.0.0.1 port=1 dbname=none user=nobody connect_timeout=1"
HEADER = ("entry_id", "device_id", "device_seq", "entity_id", "op", "hlc", "actor", "at", "meta",
          "hash", "previous", "chain")  # fmt: skip
VIEW = ("task_id", "agent_id", "iteration", "phase", "status", "parent_id", "hlc", "id", "tokens")
KINDS = ("body", "body", "header", "header", "row", "view", "view gone", "both")
FILES = ("a.py", "b.py", "c.py")
SHARED = DataKey.of(bytes(range(32)), END_TO_END)


class Good(NamedTuple):
    """A checkpoint as it was before anything was damaged."""

    id: str
    seq: int
    at_replica: bool


class Case:
    """One home, what was written there, and what became of it. It knows what should be found."""

    def __init__(self, number: int, place: Path, repository: Path, cloud: Cloud, org: str) -> None:
        self.number, self.place, self.repository = number, place, repository
        self.cloud, self.organization = cloud, org
        self.dice = random.Random(number)
        self.task, self.home = f"work {number}", place / f"home {number}"
        self.replica = self.dice.choice(("none", "none", "good", "good", "behind", "unreachable"))
        self.foreign = self.replica == "good" and self.dice.random() < 0.3
        mode = self.dice.choice(("none", "none", "at_rest", "end_to_end"))
        self.encryption = ENCRYPTION if ENCRYPTION != "none" else mode
        self.files = [name for name in FILES if self.dice.random() < 0.2]
        self.given_up: set[str] = set()
        self.lost: set[str] = set()
        self.vanished: set[str] = set()
        self.done: list[str] = []

    # --- before -------------------------------------------------------------------------------

    def build(self) -> None:
        here = self._node(self.home)
        writer = self._node(self.home.with_name(f"other {self.number}")) if self.foreign else here
        self._write(writer, self.dice.randint(1, 7))
        if self.replica in ("good", "behind"):
            for node in dict.fromkeys((writer, here)):
                with node.syncing() as engine:
                    engine.sync()
        if self.replica == "behind":
            self._write(here, self.dice.randint(1, 3))
        for node in {here, writer}:
            node.close()
        if not self.foreign and self.dice.random() < 0.15:
            self._killed_while_writing()
        if self.replica == "unreachable":
            credentials.keep(self.home, NOBODY)
        self.written = self._looked()

    def _node(self, home: Path) -> Node:
        home.mkdir(parents=True)
        config.put(home / "config.toml", "encryption", self.encryption)
        node = Node(home)
        assert node.store.device_id
        Keychain(home, lambda _: "").add(SHARED)
        if self.replica in ("good", "behind"):
            name = f"member {home.name}"
            login = self.cloud.admin.add_member(self.organization, name, "member", "laptop")
            credentials.keep(home, login.dsn)
        node.reload()
        return node

    def _write(self, node: Node, count: int) -> None:
        service = CheckpointService(node=node)
        for _ in range(count):
            self._checkpoint(service)
            if self.dice.random() < 0.2:
                service.create_checkpoint(f"other {self.number}", "bob", {"pending_items": ["x"]})

    def _checkpoint(self, service: CheckpointService) -> None:
        given_up = self.dice.random() < 0.08
        step = {"step": f"step {self.dice.random()}", "files_modified": [*FILES]}
        document = {"execution_state": {"completed_items": [step]}}
        name = resuming.saved(
            service, self.task, **document,
            workspace=workspace_of(self.repository, document) if self.files else None,
            recovery={"can_resume": False} if given_up else None,
        )  # fmt: skip
        self.given_up |= {name} if given_up else set()
        if self.dice.random() < 0.2:
            service.update_checkpoint(name, {"metrics": {"tokens_consumed": 7}})

    def _killed_while_writing(self) -> None:
        pid = os.fork()
        if pid == 0:
            service = CheckpointService(home=self.home)
            while True:
                service.create_checkpoint(self.task, "ann", {"completed_items": ["more"]})
        time.sleep(self.dice.uniform(0.002, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _looked(self) -> list[Good]:
        """What there is, read by nobody but SQLite."""
        with closing(sqlite3.connect(self.home / "context.db")) as database:
            rows = database.execute(
                "SELECT c.id, c.seq, l.cloud_seq IS NOT NULL FROM checkpoints c JOIN log l "
                "ON l.seq = c.seq WHERE c.task_id = ? ORDER BY c.first_seq", (self.task,)
            ).fetchall()  # fmt: skip
        return [Good(*row) for row in rows]

    # --- damage -------------------------------------------------------------------------------

    def damage(self) -> None:
        with closing(sqlite3.connect(self.home / "context.db", isolation_level=None)) as database:
            for good in self.written[-self.dice.randint(1, 3) :]:
                if self.dice.random() < 0.85:
                    self._damage(database, good, self.dice.choice(KINDS))

    def _damage(self, database: sqlite3.Connection, good: Good, kind: str) -> None:
        had_elsewhere = good.at_replica and self.replica in ("good", "behind")
        if kind == "both" and good is self.written[-1] and not had_elsewhere:
            kind = "row"  # of the end of a log that nobody else has, nothing could tell
        if kind == "row":
            database.execute("DELETE FROM log WHERE seq = ?", (good.seq,))
        elif kind == "both":
            database.execute("DELETE FROM log WHERE entity_id = ?", (good.id,))
        if kind in ("view gone", "both"):
            database.execute("DELETE FROM checkpoints WHERE id = ?", (good.id,))
        if kind in ("body", "header"):
            column = "body" if kind == "body" else self.dice.choice(HEADER)
            self._spoil(database, "log", column, "seq", good.seq)
        if kind == "view":
            self._spoil(database, "checkpoints", self.dice.choice(VIEW), "id", good.id)
        if not kind.startswith("view") and not had_elsewhere:
            self.lost.add(good.id)
            self.vanished |= {good.id} if kind == "both" else set()
        self.done.append(f"{kind} of {good.id}")

    def _spoil(
        self, database: sqlite3.Connection, table: str, column: str, key: str, name: Any
    ) -> None:
        wanted = f"SELECT {column} FROM {table} WHERE {key} = ?"
        (before,) = database.execute(wanted, (name,)).fetchone()
        value = "CAST(? AS TEXT)" if isinstance(before, str) else "?"
        change = f"UPDATE {table} SET {column} = {value} WHERE {key} = ?"
        database.execute(change, (self._flipped(before), name))
        self.done.append(f"{table}.{column}")

    def _flipped(self, value: Any) -> Any:
        """Another value of the same type; what was text may be none any more."""
        if isinstance(value, int):
            return value ^ 1 << self.dice.randrange(4, 20)
        raw = bytearray(value.encode() if isinstance(value, str) else value)
        if isinstance(value, bytes) and self.dice.random() < 0.3:
            return self.dice.choice((b"", b"{}", bytes(len(raw))))
        if not raw:
            return b"x"
        raw[self.dice.randrange(len(raw))] ^= 1 << self.dice.randrange(8)
        return bytes(raw)

    # --- after --------------------------------------------------------------------------------

    def check(self) -> bool:
        """Whether it went on; after making sure that this is right, and that all was told."""
        with without(self.repository, self.files), closing(Node(self.home)) as node:
            mode, agent = (recovery.TAKEOVER, "bob") if self.foreign else (recovery.RESUME, "")
            wish = Wish(self.task, mode, agent, True, self.repository)
            done = recovery.recover(node, wish).document()
            found = audit.verify(node.store, node.key.public()).problems
        names = [good.id for good in self.written]
        left = [name for name in names if name not in self.lost | self.given_up]
        words = f"{self.number} {self.replica} {self.encryption}: {names}, {self.done}: {done}"
        assert done["checkpoint_id"] == (left[-1] if left else ""), words
        assert done["outcome"] == ("resumed" if left else "escalated"), words
        newer = set(names[names.index(left[-1]) + 1 :] if left else names)
        told = {gone["checkpoint_id"] for gone in done["skipped"]}
        assert newer - self.vanished <= told, words
        assert newer & self.vanished <= told or done["lost"], words
        assert not told & set(left), words
        if not self.lost:  # what an older one says was not needed, and stays as it is
            wrong = [p for p in found if p.problem != "the body does not match its hash"]
            assert not wrong, f"{wrong} {words}"
        if left:
            assert all(name in done["prompt"] for name in newer - self.vanished), words
            self._check_files(done["claims"], words)
        else:
            assert done["escalation"]["to"], words
        return bool(left)

    def _check_files(self, claims: list[dict[str, str]], words: str) -> None:
        states = {claim["claim"]: claim["state"] for claim in claims}
        for name in FILES if self.files and f"file {FILES[0]}" in states else ():
            gone = name in self.files
            assert states[f"file {name}"] == ("UNVERIFIED" if gone else "VERIFIED"), words


_captured: dict[Path, Any] = {}


def workspace_of(repository: Path, document: dict[str, Any]) -> Any:
    """The same for all: nobody changes the repository between them."""
    if repository not in _captured:
        _captured[repository] = resuming.captured(repository, document)
    return _captured[repository]


@contextmanager
def without(repository: Path, files: list[str]) -> Iterator[None]:
    """Some files are lost."""
    kept = {name: (repository / name).read_bytes() for name in files}
    for name in files:
        (repository / name).unlink()
    yield
    for name, content in kept.items():
        (repository / name).write_bytes(content)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("project")
    resuming.git(place, "init", "-q")
    resuming.commit(place, **{name.replace(".", "_"): name for name in FILES})
    return place


@pytest.mark.parametrize("group", range(CASES // GROUP))
def test_a_recovery_goes_on_from_the_newest_good_state(
    group: int, cloud: Cloud, repository: Path
) -> None:
    """At most one in a thousand may be left to a person although there is a good state: none is."""
    organization = cloud.organization()
    with folder() as place:
        for number in range(group * GROUP, (group + 1) * GROUP):
            case = Case(number, place, repository, cloud, organization)
            case.build()
            case.damage()
            case.check()
