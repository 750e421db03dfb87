"""What is not kept: purged by a task's retention or erased, everywhere, while the proof stays."""

from __future__ import annotations

import os
import pty
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import machines
import orjson
import pytest
from devices import Device, Team, cloud, crew
from machines import SYNCD, Machine

from syncd import CheckpointService, backup, clock, conflicts, retention, tasks
from syncd.audit import verify, verify_database
from syncd.errors import ErasedError, LegalHoldError, PurgedError
from syncd.projection import rebuild
from syncd.proof import repair
from syncd.purges import recalled
from syncd.replica import encoded
from syncd.status import status

__all__ = ["cloud", "crew"]

machine_team = machines.team
runner = machines.runner
CANARY = "canary-6d1f0c2e"
DAY = 86_400_000


def secret(service: CheckpointService, task: str = "task", text: str = CANARY, **more: Any) -> str:
    state = {"current_focus": text}
    made = service.create_checkpoint(task, "agent", execution_state=state, **more)
    return made.metadata.checkpoint_id


def changed(service: CheckpointService, checkpoint_id: str, text: str) -> str:
    changes = {"execution_state": {"current_focus": text}}
    return service.update_checkpoint(checkpoint_id, changes).revision or ""


def holding(folder: Path, text: str = CANARY) -> set[str]:
    """The files below a folder that have these bytes anywhere in them."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.name for file in files if text.encode() in file.read_bytes()}


def problems(service: CheckpointService) -> list[str]:
    report = verify(service.node.store, service.node.key.public())
    return [f"{p.entry_id}: {p.problem}" for p in report.problems]


def bodies(service: CheckpointService) -> dict[str, bytes]:
    rows = service.node.store.connection.execute("SELECT entry_id, body FROM log")
    return dict(rows.fetchall())


def back_up(service: CheckpointService) -> Path:
    node = service.node
    return backup.create(node.database, node.home / "backups", 10).path


def aged(service: CheckpointService, days: float) -> CheckpointService:
    """The same home, whose next entries seem to be so old."""
    service.node.store.now_ms = lambda: clock.wall_ms() - int(days * DAY)
    return service


# --- policies -----------------------------------------------------------------------------------


def kept(service: CheckpointService) -> set[str]:
    text = "SELECT entry_id FROM log WHERE entity = 'checkpoint' AND body <> x''"
    return {row[0] for row in service.node.store.connection.execute(text)}


def test_days_let_go_what_is_older_but_not_the_newest_checkpoint(
    service: CheckpointService,
) -> None:
    old = [secret(aged(service, age)) for age in (20, 15)]
    young = secret(aged(service, 9))
    later = changed(aged(service, 8), old[0], "changed")
    tasks.add(service.node, "task", retention="days:10")
    told = retention.run(service.node, dry_run=True)
    assert (told["dry_run"], told["purged"], told["state"]) == (True, 2, "applied")
    assert kept(service) == {*old, young, later}, "a dry run changes nothing"
    done = retention.run(service.node)
    assert kept(service) == {young, later}
    assert done == {**told, "dry_run": False, "not_cleaned": []}
    assert done["bytes"] > 0
    assert retention.run(service.node)["purged"] == 0, "once is enough"
    assert problems(service) == []


def test_the_newest_checkpoint_of_a_task_stays_however_old(service: CheckpointService) -> None:
    first, newest = secret(aged(service, 400)), secret(aged(service, 300))
    final = service.finalize_checkpoint(first).revision
    tasks.add(service.node, "task", retention="days:1")
    retention.run(service.node)
    assert kept(service) == {newest}
    assert final not in kept(service), "a finalized one goes like any other"
    assert problems(service) == []


def test_revisions_keep_so_many_of_each_checkpoint_and_always_the_current(
    service: CheckpointService,
) -> None:
    one, two = secret(service), secret(service)
    versions = [changed(service, one, f"change {n}") for n in range(4)]
    tasks.add(service.node, "task", retention="revisions:2")
    told = retention.run(service.node, dry_run=True)["tasks"]
    retention.run(service.node)
    assert kept(service) == {two, *versions[-2:]}
    (found,) = told
    assert (found["id"], found["retention"], found["versions"]) == ("task", "revisions:2", 3)
    assert [c["id"] for c in found["checkpoints"]] == [one]
    assert set(found["checkpoints"][0]["versions"]) == {one, *versions[:2]}


@pytest.mark.parametrize("policy", ["default", "forever", "legal_hold"])
def test_other_policies_keep_everything(service: CheckpointService, policy: str) -> None:
    one = secret(aged(service, 4_000))
    changed(service, one, "newer")
    secret(aged(service, 3_000))
    tasks.add(service.node, "task", retention=policy)
    before = kept(service)
    assert retention.run(service.node)["purged"] == 0
    assert kept(service) == before


@pytest.mark.parametrize("kind", ["days", "revisions"])
def test_a_number_that_no_day_has_keeps_everything(service: CheckpointService, kind: str) -> None:
    """Such a one can only come from a machine with another syncd."""
    one = secret(aged(service, 4_000))
    changed(service, one, "newer")
    tasks.add(service.node, "task", retention=f"{kind}:1")
    service.node.store.connection.execute("UPDATE tasks SET retention = ?", (f"{kind}:{9**20}",))
    assert retention.run(service.node)["purged"] == 0


def test_a_clock_that_runs_ahead_makes_nothing_old(crew: Team) -> None:
    device = crew.device(skew_ms=-100 * DAY)
    old = secret(device.service)
    secret(device.service)
    tasks.change(device.node, "task", retention="days:30")
    device.sync()
    assert [doomed.entry_id for doomed in retention.plan(device.node)] == [old]
    with device.node.store.transaction():
        device.exchange.put_state("skew_ms", str(400 * DAY))
    assert retention.plan(device.node) == []


def test_what_the_replica_does_not_have_and_what_is_disputed_is_kept(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    shared = secret(one.service)
    crew.settle()
    mine = [changed(one.service, shared, text) for text in ("first", "second")]
    tasks.change(one.node, "task", retention="revisions:1")
    secret(one.service)
    assert [doomed.entry_id for doomed in retention.plan(one.node)] == [shared], "not the unsent"
    theirs = changed(two.service, shared, "theirs")
    crew.settle()
    assert len(conflicts.everything(one.node, "open")) == 1
    assert retention.plan(one.node) == []
    conflicts.dismiss(one.node, conflicts.everything(one.node, "open")[0].id)
    assert {doomed.entry_id for doomed in retention.plan(one.node)} == {shared, *mine, theirs}


# --- erasing: every byte ------------------------------------------------------------------------


def test_no_file_of_a_home_has_a_byte_of_what_was_erased(service: CheckpointService) -> None:
    home = service.node.home
    one = secret(service, text=CANARY * 3_000)  # on pages of its own
    changed(service, one, CANARY)
    back_up(service)
    last = changed(service, one, f"again {CANARY}")
    back_up(service)
    secret(service, text="other")
    leave_behind(service)
    back_up(service)
    assert {name.partition("-2")[0] for name in holding(home)} >= {"context.db-wal", "context"}
    service.node.store.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    assert "context.db" in holding(home), "the search finds what was planted"
    assert len(list((home / "backups").glob("*.db"))) == 3

    done = retention.erase(service.node, one, "a customer asked")
    assert done["purged"] == 3
    assert done["state"] == "applied"
    assert done["not_cleaned"] == []
    assert holding(home) == set()
    assert problems(service) == []
    for copy in backup.available(home / "backups"):
        with closing(sqlite3.connect(copy.path)) as connection:
            assert verify_database(connection, {}).problems == []
    with pytest.raises(PurgedError, match="a customer asked"):
        service.node.store.version(last)


def leave_behind(service: CheckpointService) -> None:
    """What SQLite leaves in pages that it no longer uses, when rows grow or move."""
    run = service.node.store.connection.execute
    run("PRAGMA secure_delete = OFF")
    run("CREATE TABLE passing (text TEXT)")
    run("INSERT INTO passing VALUES (?)", (CANARY * 2_000,))
    run("DROP TABLE passing")


def test_what_was_erased_stays_erased_in_a_restored_backup(service: CheckpointService) -> None:
    node = service.node
    one = secret(service)
    path = back_up(service)
    changed(service, one, "later")
    retention.erase(node, one, "mistake")
    backup.restore(node.database, node.home / "backups", path.name)
    assert holding(node.home) == set()
    assert problems(service) == []
    with pytest.raises(PurgedError, match="mistake"):
        service.get_checkpoint(one)
    secret(service, text="work goes on")
    assert problems(service) == []


@pytest.mark.plain
def test_a_backup_of_an_older_schema_is_cleaned_too(service: CheckpointService) -> None:
    node = service.node
    one = secret(service)
    path = back_up(service)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        _downgraded(old)
    assert path.name in holding(node.home)
    assert retention.erase(node, one)["not_cleaned"] == []
    assert holding(node.home) == set()
    with closing(sqlite3.connect(path)) as copy:
        assert verify_database(copy, {}).problems == []


def _downgraded(connection: sqlite3.Connection) -> None:
    """As it was before the second migration."""
    for statement in (
        "DROP INDEX log_by_entry", "DROP INDEX log_refused", "DROP INDEX log_by_entity",
        "DROP INDEX log_purged", "DROP INDEX checkpoints_changed", "DROP TABLE purges",
        "ALTER TABLE log DROP COLUMN purged", "ALTER TABLE log DROP COLUMN refused",
        "CREATE UNIQUE INDEX log_by_entry ON log (entry_id) WHERE entry_id <> entity_id",
        "DROP TABLE conflicts", "DROP TABLE batches", "DROP TABLE quarantine",
        "DROP TABLE attempts", "ALTER TABLE devices DROP COLUMN device_seq",
        "ALTER TABLE devices DROP COLUMN chain", "DROP TABLE numbers",
        "ALTER TABLE tasks ADD COLUMN task_seq INTEGER NOT NULL DEFAULT 0",
        "DROP INDEX log_by_kind", "DROP TABLE fences", "DROP TABLE presence", "DROP TABLE sources",
        "DROP TABLE working", "DELETE FROM _sqlite_migrations WHERE name > '0002'",
        "PRAGMA user_version = 1",
    ):  # fmt: skip
        connection.execute(statement)


def test_a_copy_that_cannot_be_read_is_named_until_it_is_gone(service: CheckpointService) -> None:
    node = service.node
    one = secret(service)
    good = back_up(service)
    bad = good.with_name("context-20000101T000000.000000Z.db")
    bad.write_bytes(b"SQLite format 3\0" + CANARY.encode() * 1_000)
    assert retention.erase(node, one)["not_cleaned"] == [str(bad)]
    assert holding(node.home) == {bad.name}, "the others are clean"
    assert retention.complete(node) == [bad]
    bad.unlink()
    assert retention.complete(node) == []
    assert retention.complete(node) == []


@pytest.mark.plain
def test_what_was_cut_off_is_done_later(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies after the purge is in the log, and again between two backups."""
    node = service.node
    one = secret(service)
    for _ in range(3):
        back_up(service)
        changed(service, one, f"another {CANARY}")
    replace = Path.replace
    left = [0]

    def dying(path: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        for survives in (0, 1):
            left[0] = survives
            with pytest.raises(KeyboardInterrupt):
                retention.erase(node, one) if not survives else retention.complete(node)
    (node.home / "backups" / "context-x.part").write_text(CANARY)
    assert len(holding(node.home)) >= 2
    assert retention.complete(node) == []
    assert holding(node.home) == set()
    assert problems(service) == []


def test_what_is_erased_among_writers_is_gone_and_rewritten_once(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers keep the write-ahead log in use; one who reads keeps all of it."""
    node = service.node
    one = secret(service)
    stop = threading.Event()

    def write() -> None:
        with closing(CheckpointService(home=node.home)) as other:
            while not stop.is_set():
                other.create_checkpoint("other", "writer")

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    try:
        assert retention.erase(node, one)["not_cleaned"] == []
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert holding(node.home) == set()


def test_while_somebody_reads_it_is_said_and_the_database_is_rewritten_only_once(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = service.node
    one = secret(service)
    monkeypatch.setenv("SYNCD_STORE_BUSY_SECONDS", "0.1")
    node.reload()
    with closing(sqlite3.connect(node.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        assert retention.erase(node, one)["not_cleaned"] == [str(node.database)]
        before = node.database.with_name("context.db-wal").stat().st_size
        assert retention.complete(node) == [node.database]
        after = node.database.with_name("context.db-wal").stat().st_size
        assert after == before, "not written anew"
        reader.execute("ROLLBACK")
    assert retention.complete(node) == []
    assert holding(node.home) == set()


def test_times_of_backups_stay_and_the_copies_are_the_owners_alone(
    service: CheckpointService,
) -> None:
    one = secret(service)
    path = back_up(service)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    before = backup.available(path.parent)
    retention.erase(service.node, one)
    assert [b.created_at for b in backup.available(path.parent)] == [b.created_at for b in before]
    assert path.stat().st_mode & 0o777 == 0o600


# --- the proof stays ----------------------------------------------------------------------------


def test_a_body_that_is_gone_without_a_purge_is_damage(service: CheckpointService) -> None:
    one, two = secret(service), secret(service)
    retention.erase(service.node, one)
    run = service.node.store.connection.execute
    purge = run("SELECT purged FROM log WHERE purged IS NOT NULL").fetchone()[0]
    assert problems(service) == []
    for named, said in (
        (None, "the body does not match its hash"),
        (purge, "its body is gone, and no purge in the log names it"),
        ("0198", "its body is gone, and no purge in the log names it"),
    ):
        run("UPDATE log SET body = x'', purged = ? WHERE entry_id = ?", (named, two))
        assert problems(service) == [f"{two}: {said}"]
    run("UPDATE log SET body = x'7b7d', purged = ? WHERE entry_id = ?", (purge, one))
    assert f"{one}: a body stands where one was purged" in problems(service)


def test_evidence_that_was_forged_accounts_for_nothing(service: CheckpointService) -> None:
    node = service.node
    one, two = secret(service), secret(service)
    path = back_up(service)
    retention.erase(node, one)
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        assert verify_database(copy, {}).problems == []
        (text,) = copy.execute("SELECT entry FROM purges").fetchone()
        assert recalled(text).entity == "purge"
        purge = recalled(text).entry_id
        copy.execute("UPDATE log SET body = x'', purged = ? WHERE entry_id = ?", (purge, two))
        copy.execute("UPDATE purges SET entry = replace(entry, ?, ?)", (one, two))
        found = verify_database(copy, {}).problems
        assert {p.entry_id for p in found} == {one, two}
        copy.execute("UPDATE purges SET entry = 'nothing'")
        assert {p.entry_id for p in verify_database(copy, {}).problems} == {one, two}


def test_views_rebuilt_from_a_log_with_purged_bodies_are_the_same(
    service: CheckpointService,
) -> None:
    one = secret(service)
    changed(service, one, "two")
    retention.erase(service.node, one)
    assert rebuild(service.node.store) == []
    assert problems(service) == []


# --- reading ------------------------------------------------------------------------------------


def test_single_reads_say_that_it_was_purged_and_lists_show_what_is_left(
    service: CheckpointService,
) -> None:
    parent, one = secret(service, text="parent"), secret(service)
    retention.erase(service.node, one, "on request")
    entry = service.node.store.connection.execute("SELECT entry_id FROM log WHERE entity='purge'")
    purge = entry.fetchone()[0]
    for read in (
        lambda: service.get_checkpoint(one),
        lambda: service.get_latest_checkpoint("task"),
        lambda: service.node.store.version(one),
        lambda: service.update_checkpoint(one, {}),
        lambda: service.finalize_checkpoint(one),
    ):
        with pytest.raises(PurgedError) as caught:
            read()
        assert caught.value.exit_code == 4
        assert "on request" in caught.value.message
        assert purge in caught.value.message
    newest, before = service.get_checkpoint_history("task")
    assert (newest.metadata.checkpoint_id, newest.verified) == (one, False)
    assert newest.to_dict()["purged"]["by"] == purge
    assert before.metadata.checkpoint_id == parent
    skipped: list[Any] = []
    found = service.get_latest_checkpoint("task", skipped=skipped)
    assert found
    assert found.metadata.checkpoint_id == parent
    assert [s.checkpoint_id for s in skipped] == [one]
    assert problems(service) == [], "what is gone on purpose is no damage"


def test_commands_tell_of_what_is_gone(runner: machines.Runner, tmp_path: Path) -> None:
    me = Machine(runner, tmp_path / "me")
    parent = me.create("t", "--focus", "parent")
    one = me.create("t", "--focus", CANARY)
    later = me.update(one, "decided")
    assert me.fails(2, "erase", one)["code"] == "usage"
    assert me.json("checkpoint", "show", one)["metadata"]["checkpoint_id"] == one
    done = me.json("erase", one[:20], "--yes", "--reason", "not ours")
    assert (done["id"], done["purged"], done["state"]) == (one, 2, "applied")
    for words in (("show", one), ("latest", "t"), ("diff", parent, one), ("diff", one, later)):
        error = me.fails(4, "checkpoint", *words)
        assert error["code"] == "purged"
        assert "not ours" in error["message"]
        assert error["data_safe"]
    listed = me.json("checkpoint", "history", "t")
    assert [(d["metadata"]["checkpoint_id"], "purged" in d) for d in listed] == [
        (one, True), (parent, False),
    ]  # fmt: skip
    assert me.json("checkpoint", "list")[0]["purged"]["reason"] == "not ours"
    assert one in me.ok("checkpoint", "list").out
    assert me.json("checkpoint", "search", CANARY) == []
    found = me.json("checkpoint", "latest", "t", "--fallback")
    assert found["metadata"]["checkpoint_id"] == parent
    assert found["skipped"][0]["checkpoint_id"] == one
    told = me.json("explain", one)
    assert [v["purged"]["kind"] for v in told["versions"]] == ["erase", "erase"]
    assert [v["problem"] for v in told["versions"]] == [None, None]
    assert "not ours" in me.ok("explain", one).out
    assert me.json("audit", "verify")["ok"]
    assert me.json("rebuild")["equal"]
    assert holding(me.home) == set()
    again = me.json("erase", one, "--yes")
    assert (again["purged"], again["state"]) == (0, "applied")
    me.fails(4, "erase", "nonsense", "--yes")


def test_erasing_asks_on_a_terminal(tmp_path: Path) -> None:
    service = CheckpointService(home=tmp_path / "home")
    one = secret(service)
    for answer, gone in ((b"n\n", False), (b"y\n", True)):
        ours, theirs = pty.openpty()
        asked = subprocess.Popen(
            [SYNCD, "--home", str(tmp_path / "home"), "erase", one],
            stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.write(ours, answer)
        _, err = asked.communicate(timeout=60)
        assert b"for ever?" in err
        assert (bodies(service)[one] == b"") is gone
        os.close(ours)
        os.close(theirs)
    service.close()


def test_a_task_on_hold_is_not_erased(service: CheckpointService) -> None:
    one = secret(service)
    tasks.add(service.node, "task", retention="legal_hold")
    with pytest.raises(LegalHoldError) as caught:
        retention.erase(service.node, one)
    assert (caught.value.code, caught.value.exit_code) == ("legal_hold", 7)
    assert bodies(service)[one]
    tasks.change(service.node, "task", retention="default")
    assert retention.erase(service.node, one)["purged"] == 1


def test_many_versions_are_named_in_several_entries(service: CheckpointService) -> None:
    one = secret(service)
    with service.node.store.transaction():
        for number in range(700):
            changed(service, one, f"version {number}")
    assert retention.erase(service.node, one)["purged"] == 701
    rows = service.node.store.connection.execute("SELECT meta FROM log WHERE entity = 'purge'")
    metas = [row[0] for row in rows]
    assert [len(orjson.loads(meta)["entries"]) for meta in metas] == [300, 300, 101]
    assert max(map(len, metas)) < 65_536
    assert not any(body for entry, body in bodies(service).items() if body.startswith(b'{"comp'))
    assert problems(service) == []


# --- the replica first --------------------------------------------------------------------------


def at_replica(crew: Team) -> dict[str, bytes | None]:
    rows = crew.sql("SELECT entry_id::text, body FROM syncd.log WHERE organization_id = %s")
    return dict(rows)


def views_of(crew: Team, checkpoint_id: str) -> Any:
    text = "SELECT checkpoint_data FROM syncd.checkpoints WHERE id = %s AND organization_id = %s"
    return crew.sql(text, checkpoint_id)[0][0]


@pytest.mark.plain
def test_a_purge_waits_for_the_replica_and_then_goes_everywhere(crew: Team) -> None:
    one, two, idle = crew.device(), crew.device(), crew.device()
    made = secret(one.service)
    for device in (one, two, idle):
        device.sync()
        back_up(device.service)
    assert views_of(crew, made)["execution_state"]["current_focus"] == CANARY
    done = retention.erase(two.node, made, "all of it")
    assert done["state"] == "waiting"
    assert bodies(two.service)[made]
    assert retention.waiting(two.node) == 1
    assert retention.erase(two.node, made)["purged"] == 0, "it is on its way"
    two.sync()
    assert retention.waiting(two.node) == 0
    assert bodies(two.service)[made] == b""
    assert at_replica(crew)[made] is None
    assert views_of(crew, made) is None
    assert bodies(one.service)[made], "not before it has been fetched"
    one.sync()
    idle.sync()
    for device in (one, two, idle):
        assert holding(device.home), "in backups still"
        assert retention.complete(device.node) == []
        assert holding(device.home) == set()
        assert device.problems() == []
        assert device.proof().ok
    late = crew.device()
    late.sync()
    assert bodies(late.service)[made] == b""
    with pytest.raises(PurgedError, match="all of it"):
        late.service.get_checkpoint(made)
    assert late.problems() == []
    assert late.proof().ok


def test_a_purge_whose_answer_was_lost_counts_when_it_is_fetched(crew: Team) -> None:
    one = crew.device()
    made = secret(one.service)
    one.sync()
    retention.erase(one.node, made)
    one.replica.push(encoded(one.exchange.pending(one.exchange.sent_to())))
    assert bodies(one.service)[made]
    one.sync(push=False)
    assert bodies(one.service)[made] == b""
    assert one.problems() == []


def test_a_hold_that_the_replica_knows_first_wins(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    retention.erase(one.node, made)
    tasks.change(two.node, "task", retention="legal_hold")
    two.sync()
    one.sync()
    (entry,) = conflicts.quarantined(one.node, "open")
    assert entry["reason"] == "its task is on legal hold"
    crew.settle()
    for device in (one, two):
        assert bodies(device.service)[made]
        assert device.problems() == []
    assert at_replica(crew)[made]
    with pytest.raises(LegalHoldError):
        retention.erase(one.node, made)
    tasks.change(two.node, "task", retention="default")
    two.sync()
    conflicts.retry(one.node, entry["entry_id"])
    crew.settle()
    for device in (one, two):
        assert bodies(device.service)[made] == b""
        assert device.problems() == []
    assert at_replica(crew)[made] is None
    assert one.proof().ok


def test_a_hold_that_comes_later_brings_nothing_back(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    retention.erase(one.node, made)
    one.sync()
    tasks.change(two.node, "task", retention="legal_hold")
    crew.settle()
    assert bodies(two.service)[made] == b""
    assert conflicts.quarantined(one.node, "open") == []


def test_a_conflict_about_what_was_erased_is_closed(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    changed(one.service, made, "one")
    changed(two.service, made, "two")
    crew.settle()
    (conflict,) = conflicts.everything(one.node, "open")
    retention.erase(one.node, made)
    crew.settle()
    for device in (one, two):
        assert [c.state for c in conflicts.everything(device.node)] == ["purged"]
        assert device.problems() == []
    states = crew.sql("SELECT id::text, state FROM syncd.conflicts WHERE organization_id = %s")
    assert states == [(conflict.id, "purged")]


def test_what_somebody_asked_to_erase_is_not_changed_any_more(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made, other = secret(one.service), secret(one.service)
    crew.settle()
    retention.erase(one.node, made)
    for change in (
        lambda: changed(one.service, made, "new"),
        lambda: one.service.finalize_checkpoint(made),
        lambda: one.service.revise(
            one.service.get_checkpoint(made), one.service.get_checkpoint(made)
        ),
    ):
        with pytest.raises(ErasedError, match=made) as caught:
            change()
        assert caught.value.exit_code == 7
    changed(one.service, other, "another one goes on")
    crew.settle()
    for device in (one, two):
        with pytest.raises(PurgedError):
            changed(device.service, made, "new")
        assert bodies(device.service)[made] == b""
    assert holding(one.home, "new") == set()


def test_what_retention_lets_go_leaves_its_checkpoint_open_to_changes(crew: Team) -> None:
    one = crew.device()
    made = secret(one.service)
    changed(one.service, made, "two")
    tasks.add(one.node, "task", retention="revisions:1")
    one.sync()
    assert retention.run(one.node)["state"] == "waiting"
    changed(one.service, made, "three")
    one.sync()
    assert bodies(one.service)[made] == b""
    assert changed(one.service, made, "four")


def test_an_erasure_that_was_refused_forbids_no_change(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    tasks.change(two.node, "task", retention="legal_hold")
    two.sync()
    retention.erase(one.node, made)
    one.sync()
    assert changed(one.service, made, "goes on")
    assert status(one.node)["erased_and_back"] == []


def test_a_conflict_about_what_is_being_erased_brings_nothing_back(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    changed(one.service, made, "one")
    changed(two.service, made, "two")
    crew.settle()
    (conflict,) = conflicts.everything(one.node, "open")
    retention.erase(one.node, made)
    for decide in (conflicts.restore, conflicts.dismiss):
        with pytest.raises(ErasedError):
            decide(one.node, conflict.id)


def test_a_version_written_meanwhile_survives_and_is_told_until_it_is_erased_too(
    crew: Team,
) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    first = changed(one.service, made, "one")
    second = changed(two.service, made, "two")
    one.sync()
    retention.erase(one.node, made)
    crew.settle()
    for device in (one, two):
        found = bodies(device.service)
        assert (found[made], found[first]) == (b"", b"")
        assert found[second]
        assert device.service.get_checkpoint(made).execution_state.current_focus == "two"
        assert device.problems() == []
        told = status(device.node)
        assert (told["verdict"], told["erased_and_back"]) == ("attention", [made])
        (need,) = [n for n in told["attention"] if made in n["what"]]
        assert f"syncd erase {made}" in need["remedy"]
        with pytest.raises(ErasedError) as caught:
            changed(device.service, made, "three")
        assert f"syncd erase {made}" in caught.value.remedy
        assert rebuild(device.node.store) == []
        assert status(device.node)["erased_and_back"] == [made]
    assert retention.erase(one.node, made)["purged"] == 1
    assert status(one.node)["erased_and_back"] == [], "it is on its way"
    crew.settle()
    for device in (one, two):
        assert bodies(device.service)[second] == b""
        assert status(device.node)["erased_and_back"] == []


def test_no_purge_is_looked_at_again_for_what_was_erased(service: CheckpointService) -> None:
    store = service.node.store
    kept, gone = secret(service), secret(service)
    tasks.add(service.node, "task", retention="revisions:1")
    retention.erase(service.node, gone)
    for n in range(5):
        changed(service, kept, f"change {n}")
        retention.run(service.node)
    seq, known = orjson.loads((store.row("state", ("erasures",)) or ("",))[0])
    assert store.rows("purges_waiting")[-1][0] == seq
    assert len(known) == 1
    assert store.rows("erasures_after", (seq,)) == []


# --- healing ------------------------------------------------------------------------------------


def test_a_home_that_had_no_replica_sends_what_is_left(crew: Team, tmp_path: Path) -> None:
    other = crew.device()
    alone = Device(tmp_path / "alone", crew.cloud.admin.add_machine(
        crew.organization_id, "member", "late").dsn)  # fmt: skip
    made = secret(alone.service)
    kept_one = secret(alone.service, text="kept")
    retention.erase(alone.node, made, "before there was a replica")
    assert bodies(alone.service)[made] == b""
    tasks.add(other.node, "task", retention="legal_hold")
    other.sync()
    crew.joined(alone)
    crew.settle()
    assert conflicts.quarantined(alone.node, "open") == []
    for device in (alone, other):
        assert bodies(device.service)[made] == b""
        assert bodies(device.service)[kept_one]
        assert device.problems() == []
        assert device.proof().ok
    with pytest.raises(PurgedError, match="before there was a replica"):
        other.service.get_checkpoint(made)


def test_an_entry_arrives_before_the_purge_that_accounts_for_it(crew: Team) -> None:
    """And the pull is cut off between the two."""
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    one.sync()
    secret(one.service, text="between")
    one.sync()
    retention.erase(one.node, made)
    one.sync()
    page = two.replica.pull(two.exchange.device_id, 0, None, 0)
    assert [row.purged is not None for row in page] == [True, False, False]
    two.engine.meet()
    two.exchange.store.row("cursor")
    from syncd.arrival import apply
    from syncd.examination import examine

    keys = two.replica.keys()
    vault = two.node.vault
    apply(two.exchange, examine(page[:1], two.exchange.heads(), keys, vault), keys)
    assert two.problems() == []
    with pytest.raises(PurgedError):
        two.service.get_checkpoint(made)
    two.sync()
    assert two.problems() == []
    assert two.rows("SELECT value FROM state WHERE name = 'purges_awaited'") == [("[]",)]


def lose(crew: Team, after: int) -> None:
    """The replica was restored from an older backup: nothing after a number is there."""
    organization = crew.organization_id
    crew.sql("DELETE FROM syncd.log WHERE cloud_seq > %s AND organization_id = %s", after)
    for table in ("checkpoints", "conflicts", "awaited"):
        crew.cloud.sql(f"DELETE FROM syncd.{table} WHERE organization_id = %s", organization)
    crew.sql("UPDATE syncd.organizations SET cloud_seq = %s WHERE organization_id = %s", after)
    crew.cloud.sql(
        "UPDATE syncd.devices d SET (device_seq, chain) = (SELECT coalesce(max(l.device_seq), 0),"
        " coalesce((array_agg(l.chain ORDER BY l.device_seq DESC))[1], decode(repeat('00', 32),"
        " 'hex')) FROM syncd.log l WHERE l.device_id = d.device_id)"
        " WHERE organization_id = %s",
        organization,
    )


@pytest.mark.parametrize("first", ["purger", "writer"])
@pytest.mark.parametrize("fetched", [True, False])
def test_after_the_replica_was_restored_what_was_purged_is_sent_again_without_its_body(
    crew: Team, first: str, fetched: bool
) -> None:
    writer, purger = crew.device(), crew.device()
    secret(writer.service, text="before")
    crew.settle()
    before = len(at_replica(crew))
    made = secret(writer.service)
    writer.sync()
    purger.sync()
    retention.erase(purger.node, made)
    purger.sync()
    if fetched:
        writer.sync()
    lose(crew, before)
    for device in (writer, purger) if first == "writer" else (purger, writer):
        device.sync()
    crew.settle()
    late = crew.device()
    late.sync()
    assert at_replica(crew)[made] is None
    for device in (writer, purger, late):
        assert bodies(device.service)[made] == b""
        assert device.problems() == []
        assert device.proof().ok
        assert conflicts.quarantined(device.node, "open") == []
    assert crew.sql("SELECT * FROM syncd.awaited WHERE organization_id = %s") == []


def test_an_older_database_put_back_loses_the_body_again(crew: Team, tmp_path: Path) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    copy = one.copy(tmp_path / "copy.db")
    retention.erase(two.node, made)
    crew.settle()
    retention.complete(one.node)
    assert holding(one.home) == set()
    one.restore(copy)
    assert bodies(one.service)[made]
    one.sync()
    assert bodies(one.service)[made] == b""
    assert retention.complete(one.node) == []
    assert holding(one.home) == set()
    assert one.problems() == []
    assert repair(one.engine).ok


def test_several_purges_of_one_body_are_named_alike_everywhere(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = secret(one.service)
    crew.settle()
    retention.erase(one.node, made, "one")
    retention.erase(two.node, made, "two")
    two.sync()
    crew.settle()
    named = {device.rows("SELECT purged FROM log WHERE purged IS NOT NULL")[0] for device in
             (one, two)}  # fmt: skip
    text = "SELECT purged_by::text FROM syncd.log WHERE purged_by IS NOT NULL AND organization_id ="
    assert named == set(crew.sql(f"{text} %s"))
    assert len(named) == 1


@pytest.mark.plain
def test_the_daemons_way_two_machines_over_the_command_line(
    machine_team: machines.Team,
) -> None:
    one, two = machine_team.machine(), machine_team.machine()
    made = one.create("t", "--focus", CANARY)
    later = one.update(made, "second")
    one.create("t", "--focus", "kept")
    one.json("task", "set", "t", "--retention", "revisions:1")
    machine_team.settle(one, two)
    for machine in (one, two):
        machine.ok("backup", "create")
        assert holding(machine.home)
    told = one.json("retention", "run", "--dry-run")
    assert (told["purged"], told["state"]) == (1, "waiting")
    said = one.ok("retention", "run").out
    assert "To be purged: 1 version" in said
    assert "Waiting:" in said
    assert "Would purge" in two.ok("retention", "run", "--dry-run").out
    machine_team.settle(one, two)
    assert one.json("retention", "run") == {
        "dry_run": False, "purged": 0, "bytes": 0, "tasks": [], "state": "applied",
        "not_cleaned": [],
    }  # fmt: skip
    for machine in (one, two):
        found = machine.sql("SELECT entry_id FROM log WHERE purged IS NOT NULL")
        assert found == [(made,)]
        assert machine.json("checkpoint", "show", made)["revision"] == later
    assert "Erase" not in two.ok("checkpoint", "show", made).out
    assert "erase_waiting" not in two.json("checkpoint", "show", made)
    assert "Waiting" in two.ok("erase", made, "--yes").out
    assert "Erase       asked for by" in two.ok("checkpoint", "show", made).out
    assert two.json("checkpoint", "show", made)["erase_waiting"]["at"]
    for words in (("update", made, "--decision", "X"), ("finalize", made)):
        assert two.fails(7, "checkpoint", *words)["code"] == "erased"
    machine_team.settle(one, two)
    for machine in (one, two):
        assert holding(machine.home) == set()
    machine_team.agree(one, two)
