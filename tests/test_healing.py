"""Whatever one side forgot, both have everything again after the next exchange."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from daemons import dsn_of
from machines import Machine, Team, runner, team

from syncd import clock

__all__ = ["runner", "team"]

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
YEAR_MS = 365 * 24 * HOUR_MS


def device_of(machine: Machine) -> str:
    return machine.state("device_id")


# --- the replica forgot ---------------------------------------------------------------------------


def test_a_replica_restored_from_an_older_dump_gets_the_rest_again(team: Team) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    bob.create("u")
    team.settle(ann, bob)
    dump = team.dumped()
    ann.update(first, "after the dump")
    bob.create("u")
    team.settle(ann, bob, cem)
    team.restored(dump)
    assert ann.sync()["pushed"] == 1
    team.agree()


@pytest.mark.proof
def test_a_restored_replica_that_moved_on_before_the_others_came_back(team: Team) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    team.settle(ann, bob, cem)
    dump = team.dumped()
    for number in range(3):
        ann.update(first, f"lost {number}")
        ann.sync()
        bob.create("u")
        bob.sync()
    team.settle(ann, bob, cem)
    team.restored(dump)
    for _ in range(8):  # more than were lost: their numbers are given to others
        cem.create("v")
        cem.sync()
    team.agree()


@pytest.mark.proof
def test_a_replica_restored_twice_still_gets_everything(team: Team) -> None:
    ann, bob, _ = team.three()
    ann.create()
    dump = team.dumped()
    ann.sync()
    bob.create("u")
    team.settle(ann, bob)
    team.restored(dump)
    ann.create("after the first restore")
    ann.sync()
    team.restored(dump)
    team.agree()


# --- a device forgot ------------------------------------------------------------------------------


def test_a_device_restored_from_a_backup_gets_its_own_entries_back(team: Team) -> None:
    ann, bob, _ = team.three()
    first = ann.create()
    team.settle(ann, bob)
    backup = ann.json("backup", "create")
    ann.update(first, "after the backup")
    ann.create("u")
    bob.create("v")
    team.settle(ann, bob)
    before = device_of(ann)
    ann.restored(backup)
    assert ann.sync()["pulled"] == 3
    assert device_of(ann) == before
    ann.create()
    team.agree()


def test_a_device_restored_and_written_since_goes_on_under_a_new_id(team: Team) -> None:
    ann, bob, _ = team.three()
    first = ann.create()
    team.settle(ann, bob)
    backup = ann.json("backup", "create")
    ann.update(first, "after the backup")
    ann.create("u")
    team.settle(ann, bob)
    before = device_of(ann)
    ann.restored(backup)
    ann.update(first, "after the restore")
    ann.ok("checkpoint", "finalize", ann.create("u"))
    team.agree()
    assert device_of(ann) != before
    [(said,)] = ann.sql(
        "SELECT json_extract(meta, '$.continues.device_id') FROM log"
        " WHERE device_id = ? AND device_seq = 1",
        device_of(ann),
    )
    assert said == before


@pytest.mark.proof
def test_a_device_restored_to_before_its_first_exchange(team: Team) -> None:
    ann, bob, _ = team.three()
    first = ann.create()
    backup = ann.json("backup", "create")
    ann.update(first, "after the backup")
    team.settle(ann, bob)
    ann.restored(backup)
    ann.update(first, "after the restore")
    team.agree()


@pytest.mark.proof
def test_what_came_back_to_a_restored_device_is_sent_again_to_a_restored_replica(
    team: Team,
) -> None:
    ann, bob, _ = team.three()
    first = ann.create()
    team.settle(ann, bob)
    backup, dump = ann.json("backup", "create"), team.dumped()
    ann.update(first, "after both")
    team.settle(ann, bob)
    ann.restored(backup)
    assert ann.sync()["pulled"] == 1
    team.restored(dump)
    ann.create("u")
    assert ann.sync()["pushed"] == 2
    team.agree()


@pytest.mark.proof
def test_what_was_sent_without_an_answer_is_sent_again_to_a_restored_replica(team: Team) -> None:
    """The device has heard of it only when it fetched."""
    ann, bob, _ = team.three()
    first = ann.create()
    team.settle(ann, bob)
    dump, acknowledged, sent = team.dumped(), ann.state("acknowledged"), ann.state("push_seq")
    ann.update(first, "sent, and the answer lost")
    ann.sync()
    place = "UPDATE state SET value = ? WHERE name = ?"
    ann.sql(place, acknowledged, "acknowledged")
    ann.sql(place, sent, "push_seq")
    ann.sql("UPDATE log SET cloud_seq = NULL, batch = NULL WHERE cloud_seq = 2")
    ann.sql("DELETE FROM batches WHERE cloud_seq = 2")
    ann.ok("sync", "--pull-only")
    assert ann.state("acknowledged") != acknowledged
    team.restored(dump)
    ann.create("u")
    assert ann.sync()["pushed"] == 2
    team.agree()


# --- a home was copied ----------------------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize("image", [False, True], ids=["cp -a", "disk image"])
@pytest.mark.parametrize("unsent", [False, True], ids=["all sent", "some unsent"])
@pytest.mark.parametrize("copy_first", [False, True], ids=["original first", "copy first"])
def test_a_copied_home_gets_a_new_id_and_keeps_its_entries(
    team: Team, tmp_path: Path, unsent: bool, copy_first: bool, image: bool
) -> None:
    ann, *_ = team.three()
    first = ann.create()
    ann.sync()
    if unsent:
        ann.update(first, "not sent yet")
    copy = ann.copied_to(tmp_path / "copy", image=image)
    team.machines.append(copy)
    ann.update(first, "by the original")
    ann.create("u")
    copy.update(first, "by the copy")
    copy.create("v")
    for machine in (copy, ann) if copy_first else (ann, copy):
        machine.sync()
    ann.create("u")
    copy.create("v")
    team.agree()
    assert device_of(ann) != device_of(copy)


def test_a_copy_has_a_new_id_before_it_writes_and_keeps_it(team: Team, tmp_path: Path) -> None:
    ann, *_ = team.three()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy", image=False)
    team.machines.append(copy)
    copy.create()
    assert device_of(copy) != device_of(ann)
    ann.create()
    ann.sync()
    kept = device_of(copy)
    team.agree()
    assert device_of(copy) == kept
    assert copy.sql("SELECT * FROM quarantine") == []


@pytest.mark.proof
def test_a_copy_can_go_back_to_a_backup_that_came_with_it(team: Team, tmp_path: Path) -> None:
    ann, *_ = team.three()
    ann.create()
    ann.sync()
    backup = ann.json("backup", "create")
    copy = ann.copied_to(tmp_path / "copy", image=False)
    team.machines.append(copy)
    copy.create()
    copy.sync()
    assert device_of(copy) != device_of(ann)
    copy.restored(backup)
    copy.create()
    ann.create()
    team.agree()


def test_a_home_that_was_only_moved_keeps_its_id(team: Team, tmp_path: Path) -> None:
    ann, *_ = team.three()
    ann.create()
    before = device_of(ann)
    ann.home.rename(tmp_path / "moved")
    (tmp_path / "moved").rename(ann.home)
    ann.create()
    assert device_of(ann) == before


def test_a_copy_with_a_login_of_its_own_leaves_the_old_id_to_the_original(
    team: Team, tmp_path: Path
) -> None:
    ann, *_ = team.three()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy", image=False)
    team.machines.append(copy)
    copy.create()
    copy.environment["SYNCD_CLOUD_DSN"] = ann.json("device", "add", "second")["dsn"]
    copy.sync()
    copy.create()
    ann.create()
    team.agree()
    assert device_of(copy) != device_of(ann)


def test_two_copies_with_the_same_unsent_entries_and_logins_of_their_own_part_at_once(
    team: Team, tmp_path: Path
) -> None:
    ann, bob, _ = team.three()
    ann.create()
    ann.sync()
    ann.create("u")
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    for machine, name in ((copy, "second"), (ann, "third")):
        machine.environment["SYNCD_CLOUD_DSN"] = bob.json("device", "add", name)["dsn"]
        machine.sync()
    for machine in (ann, copy):
        machine.create()
    team.agree()
    assert device_of(copy) != device_of(ann)


def test_what_a_copy_with_another_login_has_sent_first_is_seen_by_its_author_as_by_all_others(
    team: Team, tmp_path: Path
) -> None:
    ann, bob = team.machine(), team.machine()
    second = bob.json("device", "add", "second")["dsn"]
    ann.sync()
    dump = team.dumped()
    ann.create()
    copy = ann.copied_to(tmp_path / "copy")
    copy.environment["SYNCD_CLOUD_DSN"] = second
    copy.sync()
    told = ann.run("sync")
    assert (told.code, ann.json("sync")["quarantined"]) == (0, 1), told
    bob.sync()
    who = "SELECT c.id, c.device_id, l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.seq"
    assert ann.sql(who) == bob.sql(who) == copy.sql(who)
    assert ann.json("rebuild")["differences"] == []
    # Nobody knows its place any more, and the author still has both.
    team.restored(dump)
    bob.sync()
    ann.ok("sync", "--pull-only")
    assert ann.sql("SELECT * FROM log WHERE cloud_seq IS NOT NULL AND refused IS NULL") == []
    assert ann.sql(who) == bob.sql(who)


@pytest.mark.proof
def test_what_a_restored_replica_lost_of_a_revoked_login_is_not_written_again_under_a_new_id(
    team: Team,
) -> None:
    """Others have it under the old one, and could not take it twice."""
    ann, bob, _ = team.three()
    ann.create()
    team.settle(ann, bob)
    second = bob.json("device", "add", "second")["dsn"]
    dump = team.dumped()
    ann.create("u")
    team.settle(ann, bob)
    team.restored(dump)
    ann.create("v")
    ann.environment["SYNCD_CLOUD_DSN"] = second
    team.settle(ann, bob)
    assert bob.sql("SELECT * FROM quarantine") == []
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert bob.json("prove", "--repair")["ok"]
    team.agree()


@pytest.mark.proof
def test_what_a_restored_replica_lost_stays_under_an_id_that_two_homes_had_before(
    team: Team, tmp_path: Path
) -> None:
    ann, bob, _ = team.three()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy", image=False)
    team.machines.append(copy)
    copy.create()
    copy.sync()
    logins = [bob.json("device", "add", name)["dsn"] for name in ("second", "third")]
    dump = team.dumped()
    ann.create("u")
    team.settle(ann, bob, copy)
    team.restored(dump)
    for machine, dsn in zip((copy, ann), logins, strict=True):
        machine.environment["SYNCD_CLOUD_DSN"] = dsn
    team.settle(copy, ann, bob)
    assert bob.sql("SELECT * FROM quarantine") == []
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert bob.json("prove", "--repair")["ok"]
    team.agree()


def test_what_a_replica_had_refused_it_takes_after_it_was_restored(team: Team) -> None:
    """The others had the headers alone."""
    ann, bob, cem = team.three()
    erased = ann.create()
    team.settle(ann, bob, cem)
    dump = team.dumped()
    bob.ok("task", "set", "t", "--retention", "legal_hold")
    bob.sync()
    team.sql("UPDATE syncd.organizations SET body_limit = 100")
    large = ann.create("u")
    ann.ok("erase", erased, "--yes")
    team.settle(ann, cem)
    assert len(ann.json("quarantine", "list")) == 2
    assert cem.sql("SELECT length(body) FROM log WHERE refused IS NOT NULL") == [(0,), (0,)]
    team.restored(dump)
    team.agree(ann, cem, bob)
    for machine in (ann, bob, cem):
        assert machine.json("quarantine", "list") == []
        assert machine.json("checkpoint", "show", large)["metadata"]["task_id"] == "u"
        assert machine.sql("SELECT length(body) FROM log WHERE purged IS NOT NULL") == [(0,)]


@pytest.mark.proof
def test_what_was_refused_and_lost_by_its_author_keeps_its_reason(team: Team) -> None:
    """Of it, nobody has more than the header: a restored replica cannot judge it again."""
    ann, bob, _ = team.three()
    ann.create()
    ann.sync()
    backup, dump = ann.json("backup", "create"), team.dumped()
    team.sql("UPDATE syncd.organizations SET body_limit = 100")
    large = ann.create("u")
    team.settle(ann, bob)
    told = bob.sql("SELECT entry_id, refused FROM log WHERE refused IS NOT NULL")
    ann.restored(backup)
    ann.sync()
    team.restored(dump)
    ann.sync()
    ann.ok("quarantine", "drop", large)
    team.agree()
    for machine in team.machines:
        assert machine.sql("SELECT entry_id, refused FROM log WHERE refused IS NOT NULL") == told


@pytest.mark.proof
def test_a_copy_that_has_written_nothing_yet_follows_until_it_writes(
    team: Team, tmp_path: Path
) -> None:
    ann, *_ = team.three()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    ann.create()
    team.settle(ann, copy)
    copy.create()
    copy.sync()
    ann.create()
    team.agree()


@pytest.mark.proof
def test_two_copies_of_one_home(team: Team, tmp_path: Path) -> None:
    ann, *_ = team.three()
    first = ann.create()
    ann.sync()
    ann.create("unsent")
    copies = [ann.copied_to(tmp_path / name) for name in ("one", "two")]
    team.machines += copies
    for number, machine in enumerate((ann, *copies)):
        machine.update(first, f"by machine {number}")
        machine.create("u")
    team.agree()
    assert len({device_of(machine) for machine in (ann, *copies)}) == 3


WRITER = """
import sys
from pathlib import Path
from syncd import CheckpointService, ExecutionState

service = CheckpointService(home=Path(sys.argv[1]))
for line in sys.stdin:
    made = service.create_checkpoint(
        task_id="long", agent_id="library", execution_state=ExecutionState(phase="implementing")
    )
    print(made.metadata.checkpoint_id, flush=True)
"""


def test_a_program_goes_on_writing_while_a_sync_gives_its_home_a_new_id(
    team: Team, tmp_path: Path
) -> None:
    ann, *_ = team.three()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    ann.create()
    ann.sync()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, copy.home],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin
        assert program.stdout

        def write(count: int) -> None:
            print("\n" * (count - 1), file=program.stdin, flush=True)

        write(50)
        copy.written.add(program.stdout.readline().strip())
        write(50)  # these meet the sync
        before = device_of(copy)
        copy.sync()
        assert device_of(copy) != before
        write(3)
        program.stdin.close()
        copy.written |= set(program.stdout.read().split())
    assert len(copy.written) == 1 + 103
    team.agree()


# --- a clock was wrong ----------------------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize(
    "skew_ms", [3 * HOUR_MS, -3 * HOUR_MS, 10 * YEAR_MS], ids=["+3 h", "-3 h", "+10 years"]
)
def test_a_wrong_clock_loses_nothing_and_does_not_win_for_ever(team: Team, skew_ms: int) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    team.settle(ann, bob, cem)
    ann.skew_ms = skew_ms
    wrong = ann.update(first, "with a wrong clock")
    ann.create("by the wrong clock")
    ann.sync()
    assert abs(int(ann.state("skew_ms")) - skew_ms) < MINUTE_MS
    [(latest,)] = team.sql("SELECT max(effective_hlc) >> 16 FROM syncd.log")
    assert latest < clock.wall_ms() + 5 * MINUTE_MS
    ann.skew_ms = 0
    ann.create("by the corrected clock")
    bob.sync()
    base = bob.json("checkpoint", "show", first)["revision"]
    assert base == wrong
    later = bob.update(first, "later, with a right clock")
    team.agree()
    for machine in team.machines:
        assert machine.json("checkpoint", "show", first)["revision"] == later
    assert abs(int(ann.state("skew_ms"))) < MINUTE_MS


@pytest.mark.parametrize("skew_ms", [3 * HOUR_MS, 10 * YEAR_MS], ids=["+3 h", "+10 years"])
def test_what_a_fast_clock_wrote_wins_for_five_minutes_at_most(team: Team, skew_ms: int) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    team.settle(ann, bob, cem)
    ann.skew_ms = skew_ms
    fast = ann.update(first, "with a fast clock")
    ann.sync()
    ann.skew_ms = 0
    # Six minutes later, and without having seen it: only time decides.
    bob.skew_ms = 6 * MINUTE_MS
    team.sql(
        "CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS $$SELECT clock_timestamp() + interval '6 minutes'$$"
    )
    later = bob.update(first, "with a right clock")
    team.agree()
    assert cem.json("checkpoint", "show", first)["revision"] == later
    [conflict] = cem.json("conflicts", "list")
    assert (conflict["winner"], conflict["loser"]) == (later, fast)


def test_branches_are_found_though_the_replicas_clock_was_set_back(team: Team) -> None:
    """Children are then earlier than the parent that they name."""
    ann, bob, cem = team.three()
    root = ann.create()
    team.settle(ann, bob, cem)
    team.sql(
        "CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS $$SELECT clock_timestamp() - interval '20 minutes'$$"
    )
    ann.create("t", "--parent", root)
    bob.create("t", "--parent", root)
    team.agree()
    for machine in (ann, bob, cem, team.machine()):
        machine.sync()
        [conflict] = machine.json("conflicts", "list")
        assert (conflict["kind"], conflict["bases"]) == ("fork", [root])
        assert machine.json("rebuild")["differences"] == []


def test_a_task_is_as_old_as_its_oldest_entry_though_that_is_written_last(team: Team) -> None:
    """By a machine that has the others already, and whose clock is behind, as the replica's is."""
    ann, bob = team.machine(), team.machine()
    ann.ok("task", "add", "t")
    ann.sync()
    bob.sync()
    [(before,)] = ann.sql("SELECT created_at FROM tasks")
    team.sql(
        "CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz LANGUAGE sql STABLE"
        " AS $$SELECT clock_timestamp() - interval '20 minutes'$$"
    )
    bob.skew_ms = -20 * MINUTE_MS
    bob.create("another")
    bob.sync()
    bob.create("t")
    team.settle(ann, bob)
    since = "SELECT created_at FROM tasks WHERE id = 't'"
    assert ann.sql(since) == bob.sql(since) < [(before,)]
    for machine in (ann, bob):
        assert machine.json("rebuild")["differences"] == []


TWENTY_MINUTES_LATER = (
    "CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz LANGUAGE sql STABLE"
    " AS $$SELECT clock_timestamp() + interval '20 minutes'$$"
)


def test_a_task_is_as_old_as_its_oldest_entry_though_that_was_dated_anew(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    team.settle(ann, bob)
    dump = team.dumped()
    ann.skew_ms = 3 * HOUR_MS
    ann.create()
    backup = ann.json("backup", "create")
    team.settle(ann, bob)
    [(before,)] = bob.sql("SELECT created_at FROM tasks")
    ann.restored(backup)
    team.restored(dump)
    team.sql(TWENTY_MINUTES_LATER)
    ann.sync()
    bob.sync()
    [(after,)] = bob.sql("SELECT created_at FROM tasks")
    assert after > before
    for machine in (ann, bob):
        assert machine.json("rebuild")["differences"] == []


def test_branches_are_found_though_their_parent_was_dated_anew_after_a_restore(team: Team) -> None:
    """What a child names has a later date than when the child was written, if neither the replica
    nor its author know what date it had."""
    ann, bob, cem = team.three()
    team.settle(ann, bob)
    dump = team.dumped()
    ann.skew_ms = 3 * HOUR_MS
    root = ann.create()
    backup = ann.json("backup", "create")
    team.settle(ann, bob)
    bob.create("t", "--parent", root)
    ann.restored(backup)
    team.restored(dump)
    team.sql(TWENTY_MINUTES_LATER)
    ann.sync()
    team.settle(bob, cem)
    ann.create("t", "--parent", root)
    team.agree()
    for machine in (ann, bob, cem, team.machine()):
        machine.sync()
        [conflict] = machine.json("conflicts", "list")
        assert (conflict["kind"], conflict["bases"]) == ("fork", [root])
        assert machine.json("rebuild")["differences"] == []


def test_a_branch_whose_first_entry_was_refused_is_found_again_after_a_restore(team: Team) -> None:
    """What begins it then is a later version, which the restored replica gets again."""
    ann, bob, cem = team.three()
    root = ann.create()
    team.settle(ann, bob)
    leaf = bob.create("t", "--parent", root)
    team.settle(bob, cem)
    dump = team.dumped()
    child = ann.create("t", "--parent", root)
    ann.update(child, "later")
    ann.sql("UPDATE log SET body = CAST('{}' AS BLOB) WHERE entry_id = ?", child)
    ann.sync()
    cem.sync()
    team.restored(dump)
    cem.sync()
    ann.sync()
    cem.sync()
    [conflict] = cem.json("conflicts", "list")
    assert (conflict["entity_id"], conflict["bases"]) == (leaf, [root])
    assert cem.json("rebuild")["differences"] == []


# --- a machine was lost ---------------------------------------------------------------------------


def lost_machine(team: Team) -> tuple[Machine, Machine, set[str]]:
    """Its entries are gone from the replica too; other machines have them."""
    ann, bob, lost = team.three()
    lost.create()
    team.settle(ann, bob, lost)
    dump = team.dumped()
    wanted = {lost.create("u") for _ in range(3)}
    lost.sync()
    team.settle(ann, bob)
    team.restored(dump)
    team.settle(ann, bob)
    team.machines.remove(lost)
    ann.written |= lost.written
    return ann, bob, wanted


def test_a_lost_machines_entries_return_only_while_recovery_is_open(team: Team) -> None:
    ann, bob, wanted = lost_machine(team)
    admin = team.administrator()
    missing = ann.run("prove", "--repair", "--json")
    assert missing.code == 3
    assert set(missing.json()["missing_in_cloud"]) == wanted
    assert "recovery" in ann.run("prove", "--repair").out
    admin.ok("admin", "recovery", "open", team.organization)
    assert bob.json("prove", "--repair")["ok"]
    admin.ok("admin", "recovery", "close", team.organization)
    team.machine()
    team.agree()


def test_a_relay_does_not_keep_back_what_this_machine_had_not_sent(team: Team) -> None:
    ann, *_ = lost_machine(team)
    ann.create("unsent")
    ann.ok("sync", "--pull-only")
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert ann.json("prove", "--repair")["ok"]
    team.agree()


@pytest.mark.proof
def test_a_lost_machine_that_the_restored_replica_never_met(team: Team) -> None:
    ann, bob, lost = team.three()
    team.settle(ann, bob)
    dump = team.dumped()
    wanted = {lost.create("u") for _ in range(3)}
    lost.sync()
    team.settle(ann, bob)
    team.restored(dump)
    team.machines.remove(lost)
    ann.written |= wanted
    team.administrator().ok("admin", "recovery", "open", team.organization)
    ann.sync()
    assert ann.json("prove", "--repair")["ok"]
    team.machine()
    team.agree()


def test_a_machine_whose_device_id_another_member_took_loses_nothing(team: Team) -> None:
    """While recovery is open, an id that the restored replica had never met is nobody's."""
    ann, bob, lost = team.three()
    team.settle(ann, bob)
    dump = team.dumped()
    lost.create("u")
    lost.sync()
    team.settle(ann, bob)
    team.restored(dump)
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert ann.json("prove", "--repair")["ok"]
    taken = device_of(lost)
    with closing(psycopg.connect(dsn_of(bob), autocommit=True)) as connection:
        connection.execute(
            "SELECT syncd.hello(organization_id, device_id, public_key, 'bob')"
            " FROM syncd.devices WHERE device_id = %s",
            [taken],
        )
    unsent = lost.create("u")
    lost.sync()
    assert device_of(lost) != taken
    assert [(unsent, device_of(lost))] == lost.sql(
        "SELECT entry_id, device_id FROM log WHERE entry_id = ?", unsent
    )
    team.agree()


# --- holes ----------------------------------------------------------------------------------------


def with_entries(team: Team) -> tuple[Machine, Machine, list[str]]:
    """Two machines with several batches each; the ids of Ann's in their order."""
    ann, bob = team.machine(), team.machine()
    ids = []
    for _ in range(3):
        ids += [ann.create(), ann.create(), ann.create()]
        bob.create("u")
        team.settle(ann, bob)
    return ann, bob, ids


@pytest.mark.parametrize("places", [[1], [0, 3, 4, 8]], ids=["one", "several"])
def test_entries_deleted_at_the_replica_are_named_and_sent_again(
    team: Team, places: list[int]
) -> None:
    ann, bob, ids = with_entries(team)
    gone = {ids[place] for place in places}
    team.sql("DELETE FROM syncd.log WHERE entry_id = ANY (%s::text[]::uuid[])", list(gone))
    for machine in (ann, bob):
        found = machine.run("prove", "--json")
        assert found.code == 3
        assert set(found.json()["missing_in_cloud"]) == gone
        assert found.json()["missing_here"] == []
    assert ann.json("prove", "--repair")["ok"]
    team.machine()  # a newcomer gets all of it
    team.agree()


@pytest.mark.variants
@pytest.mark.parametrize("own", [True, False], ids=["its own", "another's"])
@pytest.mark.parametrize("places", [[1], [0, 3, 4, 8]], ids=["one", "several"])
def test_entries_deleted_from_a_machine_are_named_and_fetched_again(
    team: Team, places: list[int], own: bool
) -> None:
    ann, bob, ids = with_entries(team)
    victim = ann if own else bob
    gone = {ids[place] for place in places}
    for entry_id in gone:
        victim.sql("DELETE FROM log WHERE entry_id = ?", entry_id)
    found = victim.run("prove", "--json")
    assert found.code == 3
    assert set(found.json()["missing_here"]) == gone
    assert found.json()["missing_in_cloud"] == []
    assert victim.json("prove", "--repair")["ok"]
    team.agree()


@pytest.mark.plain
def test_a_body_that_is_damaged_here_is_named_and_fetched_again(team: Team) -> None:
    """Both sides still have the same entries: what a chain says of them is whole."""
    ann, bob, ids = with_entries(team)
    sound = ann.entries()
    for spoiled in ids[:2]:
        ann.sql("UPDATE log SET body = CAST('{}' AS BLOB) WHERE entry_id = ?", spoiled)
    found = ann.run("prove", "--json")
    assert found.code == 3
    assert found.json()["missing_in_cloud"] == found.json()["missing_here"] == []
    assert found.json()["damaged"] == ids[:2]
    assert ids[0] in ann.run("prove").out
    assert ann.run("status", "--json").json()["local"]["problems"] == 2
    assert bob.json("prove")["ok"]
    mended = ann.json("prove", "--repair")
    assert (mended["ok"], mended["damaged"]) == (True, [])
    assert ann.entries() == sound
    assert ann.json("status")["local"]["problems"] == 0
    ann.sql("UPDATE log SET body = CAST('{}' AS BLOB) WHERE entry_id = ?", ids[0])
    team.sql("UPDATE syncd.log SET body = NULL WHERE entry_id = %s::text::uuid", ids[0])
    left = ann.run("prove", "--repair")
    assert left.code == 3
    assert "syncd audit verify" in left.out


# --- several at once ------------------------------------------------------------------------------


@pytest.mark.proof
def test_the_replica_and_a_device_restored_together(team: Team) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    team.settle(ann, bob, cem)
    backup = ann.json("backup", "create")
    ann.create("u")
    team.settle(ann, bob, cem)
    dump = team.dumped()
    ann.update(first, "lost on both sides, but others have it")
    team.settle(ann, bob, cem)
    ann.restored(backup)
    team.restored(dump)
    ann.update(first, "after both")
    team.settle(*team.machines)
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert bob.json("prove", "--repair")["ok"]
    team.agree()


@pytest.mark.proof
def test_a_restored_replica_gets_back_what_was_written_under_an_earlier_id(team: Team) -> None:
    ann, bob, _ = team.three()
    team.settle(ann, bob)
    dump = team.dumped()
    first = ann.create()
    backup = ann.json("backup", "create")
    ann.update(first, "after the backup")
    ann.sync()
    ann.restored(backup)
    ann.update(first, "after the restore")
    ann.sync()
    team.restored(dump)
    assert ann.sync()["pushed"] == 3
    team.agree()


@pytest.mark.proof
def test_the_replica_restored_while_a_copy_has_a_new_id(team: Team, tmp_path: Path) -> None:
    ann, bob, _ = team.three()
    first = ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    dump = team.dumped()
    ann.update(first, "by the original")
    copy.update(first, "by the copy")
    team.settle(ann, copy, bob)
    copy.create("u")
    copy.sync()
    team.restored(dump)
    bob.create("v")
    team.agree(bob, copy, ann)


# --- what a machine wrote and a copy of its home wrote over ---------------------------------------


def written_over(team: Team, place: Path) -> tuple[Machine, Machine, Machine, Path, str]:
    """Bob has what Ann wrote; the replica, restored, has in its place what a copy of her home did.
    Ann, the copy, Bob, the replica's backup, and the entry that it lost."""
    ann, bob, _ = team.three()
    first = ann.create()
    ann.sync()
    copy = ann.copied_to(place / "copy")
    team.machines.append(copy)
    dump = team.dumped()
    lost = ann.update(first, "by the original")
    team.settle(ann, bob)
    team.restored(dump)
    copy.update(first, "by the copy")
    copy.sync()
    return ann, copy, bob, dump, lost


def set_aside(machine: Machine) -> list[str]:
    return [entry["entry_id"] for entry in machine.json("quarantine", "list")]


def test_what_a_copy_wrote_over_is_set_aside_until_its_author_comes_back(
    team: Team, tmp_path: Path
) -> None:
    ann, _, bob, _, lost = written_over(team, tmp_path)
    before = device_of(ann)
    bob.sync()
    assert set_aside(bob) == [lost]
    assert bob.json("prove")["ok"]
    ann.sync()
    assert device_of(ann) != before
    bob.sync()
    assert set_aside(bob) == []
    team.agree()


def test_branches_are_found_though_their_parent_was_set_aside_and_has_a_later_date(
    team: Team, tmp_path: Path
) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    dump = team.dumped()
    ann.skew_ms = 3 * HOUR_MS
    root = ann.create()
    team.settle(ann, bob, cem)
    bob.create("t", "--parent", root)
    bob.sync()
    team.restored(dump)
    bob.sync()
    copy.update(first, "by the copy")
    copy.sync()
    bob.sync()
    assert set_aside(bob) == [root]
    team.sql(TWENTY_MINUTES_LATER)
    team.settle(ann, bob, cem)
    cem.create("t", "--parent", root)
    team.agree()
    for machine in (ann, bob, cem, copy):
        [conflict] = machine.json("conflicts", "list")
        assert (conflict["kind"], conflict["bases"]) == ("fork", [root])
        assert machine.json("rebuild")["differences"] == []


@pytest.mark.proof
def test_what_a_copy_wrote_over_comes_back_before_what_took_its_place(
    team: Team, tmp_path: Path
) -> None:
    ann, copy, bob, dump, lost = written_over(team, tmp_path)
    ann.sync()
    team.restored(dump)
    ann.sync()
    bob.sync()
    assert set_aside(bob) == []
    assert (lost, device_of(ann)) in bob.sql("SELECT entry_id, device_id FROM log")
    team.agree(copy, bob, ann)


def test_what_was_set_aside_can_be_written_again_by_whoever_has_it(
    team: Team, tmp_path: Path
) -> None:
    _, copy, bob, _, lost = written_over(team, tmp_path)
    bob.sync()
    bob.ok("quarantine", "retry", lost)
    bob.sync()
    team.machines = [copy, bob, team.machines[2]]
    copy.written, bob.written = copy.written - {lost}, bob.written
    team.agree()
    decided = [
        copy.json("checkpoint", "show", row[0]) for row in copy.sql("SELECT id FROM checkpoints")
    ]
    assert "by the original" in str(decided)


def test_prove_repair_makes_way_for_what_a_copy_wrote_over(team: Team, tmp_path: Path) -> None:
    """Bob would relay what the replica lost, and it has something else there."""
    ann, _, bob, _, lost = written_over(team, tmp_path)
    team.administrator().ok("admin", "recovery", "open", team.organization)
    assert bob.json("prove", "--repair")["ok"]
    assert set_aside(bob) == [lost]
    team.agree(ann, *team.machines[1:])
