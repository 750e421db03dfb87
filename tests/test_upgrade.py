"""Homes and replicas that earlier versions left are brought up to date, with all that they hold.

`tests/fixtures/upgrade/make.py` made them, each with the program of its time.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, Runner
from postgres import Cluster

from syncd.langgraph import SyncdSaver
from syncd.sql import POSTGRES_VERSION, SQLITE_VERSION

KEPT = Path(__file__).parent / "fixtures" / "upgrade"
# By the schema of the home, with which the name of what is kept begins.
SEALED = ("2-sealed", "3-sealed", "4-sealed")
HOMES = (*map(str, range(1, SQLITE_VERSION)), *SEALED)
# The schema of the replica in those that have one.
REPLICA_OF = {"2": 1, "3": 2, "5": 3, "5-replica-4": 4, "2-sealed": 1, "3-sealed": 2, "4-sealed": 3}
WITH_A_GRAPH = ("4-sealed",)
OPENED = ("SYNCD_KEYS_PASSPHRASE", "kept for upgrades")
LOG = "SELECT entry_id, device_id, device_seq, entity, op, hex(hash), hex(chain), body FROM log"


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    made = Runner(tmp_path_factory.mktemp("commands"))
    yield made
    made.close()


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(KEPT / f"schema-{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):  # since 3.11.4
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder


def holdings(machine: Machine) -> dict[str, Any]:
    """What its user sees of it."""
    texts = ("completed_items", "pending_items", "blocked_items", "current_focus", "status")
    found = machine.json("checkpoint", "history", "parser", "--limit", "50")
    return {
        made["metadata"]["checkpoint_id"]: {name: made["execution_state"][name] for name in texts}
        for made in found
    }


def assert_whole(machine: Machine, kept: str) -> None:
    assert machine.json("audit", "verify")["ok"]
    shown = machine.json("task", "show", "parser")
    assert shown["title"] == "A parser"
    assert shown["budget"] == 50000
    said = [text for made in holdings(machine).values() for text in _texts(made)]
    assert {"lexer", "grammar", "tree", "another way", "a decision about Ünïcödé"} <= set(said)
    assert ("sealed end to end" in said) == (kept in SEALED)
    if kept in WITH_A_GRAPH:
        assert_goes_on(machine.home)


def _texts(state: dict[str, Any]) -> list[str]:
    texts = ([value] if isinstance(value, str) else value for value in state.values())
    return [text for several in texts for text in several]


def assert_goes_on(home: Path) -> None:
    """The thread that a graph left there."""
    with SyncdSaver(home=home) as saver:
        left = saver.get_tuple({"configurable": {"thread_id": "sums"}})
    assert left is not None
    assert left.checkpoint["channel_values"] == {"number": 2}


def test_there_is_one_of_every_version_before_this() -> None:
    """Whoever writes the next migration keeps what this version makes, first."""
    assert all((KEPT / f"schema-{name}.tar.gz").exists() for name in HOMES)
    assert set(range(1, POSTGRES_VERSION)) <= set(REPLICA_OF.values())
    assert f"{SQLITE_VERSION - 1}-sealed" in SEALED


@pytest.mark.parametrize("kept", HOMES)
def test_a_home_goes_on_where_an_earlier_version_left_it(
    kept: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*OPENED)
    machine = Machine(runner, unpacked(kept, tmp_path) / "home")
    assert machine.sql("PRAGMA user_version") == [(int(kept[0]),)]
    before = machine.sql(LOG)
    assert_whole(machine, kept)
    assert machine.sql("PRAGMA user_version") == [(SQLITE_VERSION,)]
    assert machine.sql(LOG) == before
    after = machine.create("parser", "--completed", "written by this version")
    assert machine.json("checkpoint", "latest", "parser")["revision"] == after
    assert machine.json("rebuild")
    assert_whole(machine, kept)


@pytest.mark.parametrize("kept", REPLICA_OF)
def test_a_replica_goes_on_where_an_earlier_version_left_it(
    kept: str, runner: Runner, tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its devices send and fetch, and one that is new gets all of it."""
    monkeypatch.setenv(*OPENED)
    folder = unpacked(kept, tmp_path)
    database = restored(cluster, folder)
    admin = Machine(runner, tmp_path / "admin", SYNCD_ADMIN_DSN=cluster.admin_dsn(database))
    done = admin.json("cloud", "migrate")
    assert done["schema_version"] == POSTGRES_VERSION
    assert len(done["applied"]) == POSTGRES_VERSION - REPLICA_OF[kept]

    old = Machine(runner, folder / "home")
    old.ok("login", "-", stdin=login(cluster, database, folder))
    old.create("parser", "--completed", "written by this version")
    old.sync()
    proof = old.json("prove")
    assert proof["ok"]
    assert proof["cloud"] == len(old.sql("SELECT 1 FROM log"))
    new = Machine(runner, tmp_path / "new")
    new.ok("login", "-", stdin=old.json("device", "add", "new")["dsn"])
    if kept in SEALED:
        new.ok("keys", "import", stdin=old.ok("keys", "export").out)
    new.sync()
    assert holdings(new) == holdings(old)
    assert_whole(new, kept)
    cluster.drop_database(database)


def restored(cluster: Cluster, folder: Path) -> str:
    """As its administrator brings a dump back; roles that are there already stay as they are."""
    database = cluster.create_database()
    for file, stop in (("roles.sql", 0), ("syncd.sql", 1)):
        options = ["-X", "-q", "-v", f"ON_ERROR_STOP={stop}", "-f", str(folder / file)]
        done = subprocess.run(
            [cluster.bin / "psql", *options, cluster.superuser_dsn(database)],
            capture_output=True, text=True, check=bool(stop), env=os.environ,
        )  # fmt: skip
        other = [line for line in done.stderr.splitlines() if "ERROR" in line]
        assert all(re.search("already exists|current user cannot", line) for line in other), other
    return database


def login(cluster: Cluster, database: str, folder: Path) -> str:
    """Its member with a new password: none is kept."""
    role, password = (folder / "login").read_text(), secrets.token_urlsafe(18)
    cluster.sql(database, f"ALTER ROLE {role} PASSWORD '{password}'")
    return (
        cluster.admin_dsn(database)
        .partition("?")[0]
        .replace("syncd_installer", f"{role}:{password}")
    )


@pytest.mark.parametrize("kept", SEALED)
def test_a_sealed_home_of_an_earlier_version_waits_for_its_passphrase(
    kept: str, runner: Runner, tmp_path: Path
) -> None:
    machine = Machine(runner, unpacked(kept, tmp_path) / "home")
    before = machine.sql(LOG)
    error = machine.fails(1, "checkpoint", "latest", "parser")
    assert "passphrase" in error["message"]
    assert "SYNCD_KEYS_PASSPHRASE" in error["remedy"]
    assert machine.sql(LOG) == before
    assert machine.ok("checkpoint", "latest", "parser", **dict([OPENED])).out


def test_what_a_newer_version_left_is_refused_with_a_word(runner: Runner, tmp_path: Path) -> None:
    machine = Machine(runner, tmp_path / "home")
    made = machine.create()
    machine.sql(f"PRAGMA user_version = {SQLITE_VERSION + 1}")
    error = machine.fails(1, "checkpoint", "create", "--task", "t", "--agent", "a")
    assert f"knows up to {SQLITE_VERSION}" in error["message"]
    assert "pgrade" in error["remedy"]
    assert error["data_safe"] is True
    machine.sql(f"PRAGMA user_version = {SQLITE_VERSION}")
    assert machine.json("checkpoint", "latest", "t")["revision"] == made
