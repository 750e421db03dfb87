"""A backup can be made at any time, and the way back loses nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from machines import SYNCD, Machine, Runner, Team, runner, team

from syncd import CheckpointService, ExecutionState, audit, backup
from syncd.errors import BackupRefusedError, CheckpointNotFoundError

__all__ = ["runner", "team"]


def make(service: CheckpointService, keep: int = 10) -> backup.Backup:
    return backup.create(service.node.database, service.node.home / "backups", keep)


def restore(service: CheckpointService, name: str) -> backup.Restored:
    return backup.restore(service.node.database, service.node.home / "backups", name)


def test_a_restored_backup_holds_what_it_held_and_the_replaced_database_is_kept(
    service: CheckpointService,
) -> None:
    kept = service.create_checkpoint("t", "a", ExecutionState(completed_items=["kept"]))
    made = make(service)
    newer = service.create_checkpoint("t", "a", ExecutionState(completed_items=["newer"]))
    done = restore(service, made.name)
    assert done.entries == 1
    assert done.only_in_replaced == 1
    latest = service.get_latest_checkpoint("t")
    assert latest is not None
    assert latest.metadata.checkpoint_id == kept.metadata.checkpoint_id
    assert audit.verify(service.node.store, service.node.key.public()).ok
    with sqlite3.connect(done.replaced) as old:
        ids = {row[0] for row in old.execute("SELECT entity_id FROM log")}
    old.close()
    assert newer.metadata.checkpoint_id in ids


def test_work_goes_on_after_a_restore(service: CheckpointService) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    restore(service, make(service).name)
    service.create_checkpoint("t", "a", ExecutionState())
    assert audit.verify(service.node.store, service.node.key.public()).entries == 2


def test_a_damaged_backup_is_refused_and_nothing_changes(service: CheckpointService) -> None:
    service.create_checkpoint("t", "a", ExecutionState(completed_items=["before"]))
    made = make(service)
    with sqlite3.connect(made.path) as connection:
        connection.execute("UPDATE log SET body = replace(body, 'before', 'after!')")
    connection.close()
    service.create_checkpoint("t", "a", ExecutionState())
    with pytest.raises(BackupRefusedError, match="damaged"):
        restore(service, made.name)
    assert len(service.get_checkpoint_history("t")) == 2
    assert [b.name for b in backup.available(service.node.home / "backups")] == [made.name]


@pytest.mark.parametrize("content", [b"", b"not a database at all", b"SQLite format 3\0" * 300])
def test_a_file_that_is_no_backup_is_refused(
    service: CheckpointService, tmp_path: Path, content: bytes
) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    file = tmp_path / "nonsense.db"
    file.write_bytes(content)
    with pytest.raises(BackupRefusedError):
        restore(service, str(file))
    assert file.read_bytes() == content


def test_another_devices_backup_is_refused(service: CheckpointService, tmp_path: Path) -> None:
    other = CheckpointService(home=tmp_path / "other")
    other.create_checkpoint("t", "a", ExecutionState())
    foreign = make(other)
    other.close()
    service.create_checkpoint("t", "a", ExecutionState())
    with pytest.raises(BackupRefusedError, match="another device"):
        restore(service, str(foreign.path))
    assert backup.available(service.node.home / "backups") == []


def test_an_unknown_backup_is_not_found(service: CheckpointService) -> None:
    with pytest.raises(CheckpointNotFoundError):
        restore(service, "context-never")


def test_the_last_ten_are_kept(service: CheckpointService) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    made = [make(service, keep=10).name for _ in range(13)]
    kept = [b.name for b in backup.available(service.node.home / "backups")]
    assert kept == sorted(made, reverse=True)[:10]


def test_a_destroyed_database_comes_back_from_its_backup(service: CheckpointService) -> None:
    service.create_checkpoint("t", "a", ExecutionState(completed_items=["kept"]))
    made = make(service)
    service.close()
    database = service.node.database
    database.write_bytes(b"\0garbage" * 1000)
    done = restore(service, made.name)
    assert done.replaced.read_bytes().startswith(b"\0garbage")
    again = CheckpointService(home=service.node.home)
    assert len(again.get_checkpoint_history("t")) == 1
    again.create_checkpoint("t", "a", ExecutionState())
    assert audit.verify(again.node.store, again.node.key.public()).entries == 2
    again.close()


def test_the_list_says_how_much_each_copy_holds(runner: Runner, tmp_path: Path) -> None:
    machine = Machine(runner, tmp_path / "machine")
    for _ in range(2):
        machine.create()
        machine.ok("backup", "create")
    kept = machine.home / "backups" / "context-20200101T000000Z.db"
    kept.write_bytes(b"no database")
    listed = machine.json("backup", "list")
    assert [copy["entries"] for copy in listed] == [2, 1, None]
    assert machine.ok("backup", "list").out.splitlines()[-1].split()[2] == "?"


@pytest.mark.parametrize("left", [None, b""])
def test_a_database_that_is_gone_is_told_and_comes_back_from_its_backup(
    runner: Runner, tmp_path: Path, left: bytes | None
) -> None:
    machine = Machine(runner, tmp_path / "machine")
    first = machine.create()
    made = machine.json("backup", "create")["name"]
    lose(machine, left)
    assert "is gone" in machine.ok("task", "list").err
    told = machine.run("status", "--json")
    assert told.code == 3
    [need] = told.json()["attention"]
    assert "was gone" in need["what"]
    assert f"`syncd backup restore {made}`" in need["remedy"]
    machine.create()
    machine.ok("backup", "restore", made)
    assert [row[0] for row in machine.sql("SELECT id FROM checkpoints")] == [first]
    assert machine.json("status")["attention"] == []
    assert machine.json("audit", "verify")["ok"]


def lose(machine: Machine, left: bytes | None) -> None:
    for file in machine.home.glob("context.db*"):
        file.unlink()
    if left is not None:
        (machine.home / "context.db").write_bytes(left)


@pytest.mark.parametrize("left", [None, b""])
def test_what_is_restored_first_of_all_takes_the_place_of_a_database_that_is_gone(
    runner: Runner, tmp_path: Path, left: bytes | None
) -> None:
    machine = Machine(runner, tmp_path / "machine")
    first = machine.create()
    made = machine.json("backup", "create")["name"]
    lose(machine, left)
    assert machine.json("backup", "restore", made)["entries"] == 1
    assert [row[0] for row in machine.sql("SELECT id FROM checkpoints")] == [first]


def test_who_goes_on_without_what_is_gone_is_asked_no_more_and_keeps_the_copies(
    runner: Runner, tmp_path: Path
) -> None:
    machine = Machine(runner, tmp_path / "machine", SYNCD_BACKUP_KEEP="1")
    machine.create()
    made = machine.json("backup", "create")["name"]
    lose(machine, None)
    machine.create()
    machine.ok("backup", "create")
    machine.ok("init")
    assert machine.json("status")["attention"] == []
    assert made in {copy["name"] for copy in machine.json("backup", "list")}
    assert machine.json("backup", "restore", made)["only_in_replaced"] == 1


def test_to_say_so_waits_for_other_programs(runner: Runner, tmp_path: Path) -> None:
    machine = Machine(runner, tmp_path / "machine", SYNCD_STORE_BUSY_SECONDS="0.2")
    machine.create()
    lose(machine, None)
    machine.create()
    with closing(sqlite3.connect(machine.home / "context.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        error = machine.fails(1, "init")
    assert (error["code"], machine.run("status").code) == ("busy", 3)
    machine.ok("init")
    assert machine.json("status")["attention"] == []


def test_two_that_make_a_home_at_once_miss_no_database(tmp_path: Path) -> None:
    """Each may find what the other has made so far."""
    command = [SYNCD, "--home", str(tmp_path / "home"), "task", "list"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(6)]
    assert [process.communicate()[1] for process in started] == [b""] * 6


def test_after_a_loss_a_machine_gets_back_what_the_replica_has_and_then_its_backup(
    team: Team,
) -> None:
    ann, bob = team.machine(), team.machine()
    ann.create()
    made = ann.json("backup", "create")["name"]
    ann.create()
    ann.sync()
    lose(ann, None)
    ann.create()
    assert not ann.run("status", "--json").json()["safe_to_close"]
    assert ann.run("status").out.startswith("Begun anew: ")
    team.settle(ann, bob)
    ann.ok("backup", "restore", made)
    team.agree(ann, bob)
    assert len(ann.entries()) == 3


def test_a_backup_taken_under_load_is_intact_and_readable_by_its_owner_only(
    service: CheckpointService,
) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    script = (
        "from syncd import CheckpointService, ExecutionState\n"
        "s = CheckpointService()\n"
        "for _ in range(400): s.create_checkpoint('t', 'b', ExecutionState())\n"
    )
    environment = {**os.environ, "SYNCD_HOME": str(service.node.home)}
    writer = subprocess.Popen([sys.executable, "-c", script], env=environment)
    made = [make(service) for _ in range(8)]
    assert writer.wait(timeout=60) == 0
    for copy in made:
        connection = sqlite3.connect(copy.path, isolation_level=None)
        assert audit.verify_database(connection, {}).ok
        connection.close()
        assert copy.path.stat().st_mode & 0o077 == 0


def test_entries_written_while_a_restore_runs_are_in_one_database_or_the_other(
    service: CheckpointService,
) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    made = make(service)
    script = (
        "from syncd import CheckpointService, ExecutionState\n"
        "s = CheckpointService()\n"
        "for _ in range(300):\n"
        "    print(s.create_checkpoint('t', 'b', ExecutionState()).metadata.checkpoint_id)\n"
    )
    environment = {**os.environ, "SYNCD_HOME": str(service.node.home)}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [next(writer.stdout).strip() for _ in range(20)]
        done = restore(service, made.name)
        acknowledged += [line.strip() for line in writer.stdout]
    assert writer.returncode == 0
    ids = "SELECT entity_id FROM log"
    with sqlite3.connect(done.replaced) as old:
        there = {row[0] for row in old.execute(ids)}
    old.close()
    there |= {row[0] for row in service.node.store.connection.execute(ids)}
    assert set(acknowledged) <= there
