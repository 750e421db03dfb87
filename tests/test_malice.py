"""An administrator of the replica who means harm: whom no rule of the database holds, who can write
any row and replace any function. What he cannot do is sign as somebody else.

Here is what `test_sync` (what arrives damaged) and `test_witness` (what was changed later) leave
out: whole histories made anew, keys exchanged, counters turned back, some told less than others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import machines
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import Device, Team, cloud, crew

from syncd import conflicts, proof, witness
from syncd.entry import HEADER_FIELDS, header_bytes
from syncd.errors import DivergedError, ReplicaError, TamperedError
from syncd.seal import GENESIS, SigningKey, chain_value

__all__ = ["cloud", "crew"]

machine_team = machines.team
runner = machines.runner
ORGANIZATION = "WHERE organization_id = %s"
DEVICE = "WHERE device_id = %s AND organization_id = %s"
Sql = Callable[..., list[tuple[Any, ...]]]


def write(device: Device, count: int, task: str = "task") -> list[str]:
    made = [device.service.create_checkpoint(task, "agent") for _ in range(count)]
    return [checkpoint.metadata.checkpoint_id for checkpoint in made]


class Own(NamedTuple):
    """What a device has of its own accord, and nobody may change."""

    device_id: str
    log: list[tuple[Any, ...]]
    shown: set[str]


def own(device: Device) -> Own:
    columns = "entry_id, device_id, device_seq, hash, chain, body, refused, purged"
    return Own(
        device.exchange.device_id,
        device.rows(f"SELECT {columns} FROM log ORDER BY seq"),
        {checkpoint_id for (checkpoint_id,) in device.rows("SELECT id FROM checkpoints")},
    )


def accused(device: Device) -> set[tuple[str, str]]:
    """The entries and devices that something is wrong with at the replica."""
    found = witness.examine(device.exchange, device.replica).problems
    return {(problem.entry_id, problem.device_id) for problem in found}


class Town(NamedTuple):
    """A device that has written five entries, another that has them too, and nobody's doubt."""

    crew: Team
    author: Device
    reader: Device
    ids: list[str]

    def kept(self) -> tuple[Own, Own]:
        return own(self.author), own(self.reader)


@pytest.fixture
def town(crew: Team) -> Town:
    author, reader = crew.device(), crew.device()
    ids = write(author, 3)
    author.sync()
    ids.append(str(author.service.finalize_checkpoint(ids[0]).revision))
    ids += write(author, 1)
    author.sync()
    reader.sync()
    return Town(crew, author, reader, ids)


# --- what the administrator does ------------------------------------------------------------------


def rows_of(sql: Sql, device_id: str) -> list[dict[str, Any]]:
    names = [*HEADER_FIELDS, "cloud_seq", "hash", "chain", "signature"]
    rows = sql(f"SELECT {', '.join(names)} FROM syncd.log {DEVICE} ORDER BY device_seq", device_id)
    return [dict(zip(names, row, strict=True)) for row in rows]


def make_anew(sql: Sql, device_id: str, since: int, key: SigningKey) -> None:
    """A device's history from some number on, as if somebody else had acted: each value is right,
    but for whose signature it is."""
    chain = GENESIS
    for row in rows_of(sql, device_id):
        if row["device_seq"] >= since:
            row["actor"] = "mallory"
            header = header_bytes([row[name] for name in HEADER_FIELDS])
            row["chain"] = chain_value(chain, header, row["hash"])
            change = "actor = %s, chain = %s, signature = %s"
            sql(f"UPDATE syncd.log SET {change} WHERE cloud_seq = %s AND organization_id = %s",
                "mallory", row["chain"], key.sign(row["chain"]), row["cloud_seq"])  # fmt: skip
        chain = row["chain"]
    sql(f"UPDATE syncd.devices SET chain = %s {DEVICE}", chain, device_id)


def repeat(crew: Team, number: int, changes: str) -> None:
    """One more row like the one of that number."""
    crew.sql(f"CREATE TEMP TABLE again AS SELECT * FROM syncd.log {ORGANIZATION}"
             f" AND cloud_seq = {number}")  # fmt: skip
    crew.cloud.sql(f"UPDATE again SET batch = gen_random_uuid(), {changes}")
    crew.cloud.sql("INSERT INTO syncd.log SELECT * FROM again")
    crew.cloud.sql("DROP TABLE again")
    crew.sql(counted(6))


@contextmanager
def told_less(crew: Team, device: Device, condition: str) -> Iterator[None]:
    """A device is not given the entries of some condition; all others are."""
    names = "organization, device, after, after_batch, own_seq, max_rows, max_bytes"
    types = "uuid, uuid, bigint, uuid, bigint, integer, bigint"
    given = ", ".join(map(" ".join, zip(names.split(", "), types.split(", "), strict=True)))
    [(columns,)] = crew.cloud.sql(
        "SELECT pg_get_function_result(%s::regprocedure)", f"syncd.pull({types})"
    )
    crew.cloud.sql(f"ALTER FUNCTION syncd.pull({types}) RENAME TO true_pull")
    crew.cloud.sql(
        f"CREATE FUNCTION syncd.pull({given}) RETURNS {columns} LANGUAGE sql STABLE AS $$"
        f" SELECT * FROM syncd.true_pull({names}) t WHERE device <> '{device.exchange.device_id}'"
        f" OR NOT ({condition}) $$"
    )
    crew.cloud.sql(f"GRANT EXECUTE ON FUNCTION syncd.pull({types}) TO syncd_auditor, syncd_member")
    try:
        yield
    finally:
        crew.cloud.sql(f"DROP FUNCTION syncd.pull({types})")
        crew.cloud.sql(f"ALTER FUNCTION syncd.true_pull({types}) RENAME TO pull")


def stranger() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.generate())


# --- a history made anew --------------------------------------------------------------------------


@pytest.mark.parametrize("since", [1, 3, 5], ids=["all of it", "some of it", "the last entry"])
@pytest.mark.parametrize("with_key", [False, True], ids=["by a stranger", "by a stranger's key"])
def test_a_history_made_anew_is_noticed_by_all_who_knew_it_and_changes_nothing_there(
    town: Town, since: int, with_key: bool
) -> None:
    """For the author it looks as if a copy of this home had written: he must not give way to it,
    as he does to a copy, which has his key."""
    crew, author, reader, ids = town
    before, device_id, key = town.kept(), author.exchange.device_id, stranger()
    make_anew(crew.sql, device_id, since, key)
    if with_key:
        crew.sql(f"UPDATE syncd.devices SET public_key = %s {DEVICE}", key.public(), device_id)
    for _ in range(2):
        with pytest.raises(TamperedError, match=device_id) as told:
            author.sync()
        assert (told.value.exit_code, told.value.data_safe) == (5, True)
        assert with_key or f"from number {since} on" in told.value.message
    reader.sync()
    assert town.kept() == before
    for device in (author, reader):
        assert device.problems() == []
        assert {name for name, _ in accused(device)} >= {*ids[since - 1 :]}
        assert {*device.proof().missing_in_cloud} == {*ids[since - 1 :]}


def test_a_history_made_anew_after_a_restore_takes_nothing_out_of_anybodys_log(town: Town) -> None:
    """What a restored replica has lost may be written over by whoever has the device's key."""
    crew, author, reader, _ = town
    device_id, before = author.exchange.device_id, own(reader)
    made = SigningKey(Ed25519PrivateKey.generate())
    make_anew(crew.sql, device_id, 3, made)
    crew.sql(
        f"UPDATE syncd.log SET batch = gen_random_uuid() {DEVICE} AND device_seq > 2", device_id
    )
    reader.sync()
    assert own(reader) == before
    assert {e["reason"] for e in conflicts.quarantined(reader.node)} == {
        f"this device has another entry {number} of its device" for number in (3, 4, 5)
    }


def test_what_the_author_wrote_since_waits_until_the_replica_is_put_right(town: Town) -> None:
    crew, author, reader, _ = town
    crew.sql(f"CREATE TEMP TABLE kept AS SELECT * FROM syncd.log {ORGANIZATION}")
    make_anew(crew.sql, author.exchange.device_id, 2, stranger())
    later = write(author, 2)
    with pytest.raises(TamperedError):
        author.sync()
    assert author.exchange.pending_count() == 2
    crew.sql(f"DELETE FROM syncd.log {ORGANIZATION}")
    crew.cloud.sql("INSERT INTO syncd.log SELECT * FROM kept")
    crew.cloud.sql("DROP TABLE kept")
    assert author.sync().pushed == 2
    reader.sync()
    assert {*later} <= own(reader).shown
    assert author.proof().ok
    assert accused(author) == accused(reader) == set()


def test_a_device_that_is_said_to_be_anothers_does_not_give_way_to_it_either(town: Town) -> None:
    """As if this home had been given another login: then it goes on under another id."""
    crew, author, _, _ = town
    before, device_id = town.kept(), author.exchange.device_id
    make_anew(crew.sql, device_id, 2, stranger())
    crew.sql(f"UPDATE syncd.devices SET login = 'somebody' {DEVICE}", device_id)
    with pytest.raises(TamperedError, match="from number 2 on"):
        author.sync()
    assert town.kept() == before


def test_a_newcomer_believes_no_history_that_its_device_did_not_sign(town: Town) -> None:
    crew, author, _, ids = town
    make_anew(crew.sql, author.exchange.device_id, 1, stranger())
    newcomer = crew.device()
    assert newcomer.sync().quarantined == 5
    assert own(newcomer).shown == set()
    held = conflicts.quarantined(newcomer.node, "open")
    assert {row["entry_id"] for row in held} == {*ids}
    assert {row["device_id"] for row in held} == {author.exchange.device_id}


def test_a_newcomer_trusts_the_first_key_it_is_given_and_those_who_knew_another_notice(
    town: Town,
) -> None:
    """The limit of what can be noticed, which SECURITY.md tells of."""
    crew, author, reader, ids = town
    device_id, key = author.exchange.device_id, stranger()
    make_anew(crew.sql, device_id, 1, key)
    crew.sql(f"UPDATE syncd.devices SET public_key = %s {DEVICE}", key.public(), device_id)
    newcomer = crew.device()
    newcomer.sync()
    assert own(newcomer).shown == {*ids} - {ids[3]}
    assert accused(newcomer) == set()
    assert ("", device_id) in accused(reader)
    assert newcomer.exchange.keys()[device_id] != reader.exchange.keys()[device_id]


# --- keys -----------------------------------------------------------------------------------------


def test_a_device_whose_key_was_exchanged_is_told_at_the_next_sync(town: Town) -> None:
    crew, author, reader, _ = town
    before, device_id = town.kept(), author.exchange.device_id
    crew.sql(f"UPDATE syncd.devices SET public_key = %s {DEVICE}", stranger().public(), device_id)
    with pytest.raises(TamperedError, match=f"another key for this device .{device_id}."):
        author.sync()
    reader.sync()
    assert ("", device_id) in accused(reader)
    assert town.kept() == before
    crew.sql(
        f"UPDATE syncd.devices SET public_key = %s {DEVICE}", author.node.key.public(), device_id
    )
    author.sync()
    assert accused(reader) == set()


def test_nobody_can_write_for_a_device_that_has_not_written_yet(town: Town) -> None:
    crew, author, reader, _ = town
    silent = crew.device()
    silent.sync()
    add = f"device_id = '{silent.exchange.device_id}', device_seq = 1, entry_id = gen_random_uuid()"
    repeat(crew, 5, f"cloud_seq = 6, {add}")
    key, [row] = stranger(), rows_of(crew.sql, silent.exchange.device_id)
    make_anew(crew.sql, silent.exchange.device_id, 1, key)
    crew.sql(f"UPDATE syncd.devices SET device_seq = 1 {DEVICE}", silent.exchange.device_id)
    for device in (author, reader):
        assert device.sync().quarantined == 1
        [held] = conflicts.quarantined(device.node, "open")
        assert held["entry_id"] == str(row["entry_id"])
        assert held["device_id"] == silent.exchange.device_id
    assert silent.sync().quarantined == 1
    assert str(row["entry_id"]) not in own(silent).shown
    write(silent, 1)
    with pytest.raises(TamperedError, match="from number 1 on"):
        silent.sync()


# --- again, under another number ------------------------------------------------------------------


def test_an_old_entry_shown_again_as_a_devices_next_one_is_no_reason_to_give_way(
    town: Town,
) -> None:
    """Its signature is the author's own, for what it signed then."""
    crew, author, reader, ids = town
    number = "device_seq = 6, cloud_seq = 6, entry_id = gen_random_uuid()"
    repeat(crew, 5, number)
    crew.sql(f"UPDATE syncd.devices SET device_seq = 6 {DEVICE}", author.exchange.device_id)
    assert author.sync().quarantined == reader.sync().quarantined == 1
    write(author, 1)
    before = town.kept()
    with pytest.raises(TamperedError, match="from number 6 on"):
        author.sync()
    assert town.kept() == before
    assert before[0].shown >= {ids[4]}


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_another_content_under_an_old_number_changes_nothing(town: Town, whose: str) -> None:
    """Something comes again, as after a restore of the replica, and is not what it was."""
    crew, author, reader, ids = town
    crew.cloud.sql("DROP INDEX syncd.log_by_device")
    try:
        repeat(crew, 2, "cloud_seq = 6, entry_id = gen_random_uuid(), chain = sha256(chain)")
        device, before = (author if whose == "its own" else reader), town.kept()
        noticed: list[str] = []
        try:
            device.sync()
        except (DivergedError, TamperedError) as error:
            noticed.append(error.message)
        noticed += [row["reason"] for row in conflicts.quarantined(device.node, "open")]
        assert noticed
        assert town.kept() == before
        assert device.problems() == []
        assert ids[1] in own(device).shown
    finally:
        crew.sql(f"DELETE FROM syncd.log {ORGANIZATION} AND cloud_seq = 6")
        crew.cloud.sql("CREATE UNIQUE INDEX log_by_device ON syncd.log"
                       " (organization_id, device_id, device_seq)")  # fmt: skip


# --- cut off, counted back ------------------------------------------------------------------------

CUT = f"DELETE FROM syncd.log {ORGANIZATION} AND cloud_seq > 3"


def counted(number: int) -> str:
    return f"UPDATE syncd.organizations SET cloud_seq = {number} {ORGANIZATION}"


def heads(number: int) -> str:
    """As far as it says to have a device's entries; it keeps what it last had of the chain."""
    return f"UPDATE syncd.devices SET device_seq = {number} {ORGANIZATION} AND device_seq > 0"


@pytest.mark.parametrize(
    ("statements", "pushed"),
    [
        ([CUT, counted(3), heads(3)], 2),
        ([CUT, counted(3), heads(4)], 2),
        ([CUT, heads(4)], 2),
        ([f"DELETE FROM syncd.log {ORGANIZATION}", counted(0), heads(0)], 5),
        ([heads(2)], 3),
    ],
    ids=["the end", "the end, of which some is counted", "the end, and the numbers stay",
         "everything", "nothing, but it says so"],
)  # fmt: skip
def test_what_was_cut_off_is_sent_again_as_it_was(
    town: Town, statements: list[str], pushed: int
) -> None:
    crew, author, reader, ids = town
    before = town.kept()
    for statement in statements:
        crew.sql(statement)
    assert author.sync().pushed == pushed
    reader.sync()
    assert town.kept() == before, "under the same id, with the same proof"
    newcomer = crew.device()
    newcomer.sync()
    assert newcomer.entry_ids() == {*ids}
    for device in (author, reader, newcomer):
        assert device.proof().ok
        assert device.problems() == []


def test_what_was_cut_off_without_a_trace_is_named_and_can_be_repaired(town: Town) -> None:
    crew, author, reader, ids = town
    crew.sql(CUT)
    for device in (author, reader):
        device.sync()
        assert {*device.proof().missing_in_cloud} == {*ids[3:]}
    write(author, 1)
    with pytest.raises(DivergedError) as told:
        author.sync()
    assert "prove --repair" in told.value.remedy
    assert proof.repair(author.engine).ok
    reader.sync()
    assert reader.proof().ok


def test_a_counter_turned_back_keeps_the_next_entries_here(town: Town) -> None:
    crew, author, reader, ids = town
    crew.sql(counted(3))
    later = write(author, 1)
    with pytest.raises(ReplicaError, match="duplicate key"):
        author.sync()
    assert author.exchange.pending_count() == 1
    assert author.proof().missing_in_cloud == later
    crew.sql(counted(5))
    assert author.sync().pushed == 1
    reader.sync()
    assert own(reader).shown >= {*later, ids[4]}


# --- some are told less than others ---------------------------------------------------------------


def test_a_log_that_ends_where_its_device_has_not_signed_is_held_back(town: Town) -> None:
    crew, _, _, ids = town
    newcomer = crew.device()
    with told_less(crew, newcomer, "t.cloud_seq > 2"):
        assert newcomer.sync().quarantined == 2
        assert own(newcomer).shown == set()
        held = conflicts.quarantined(newcomer.node, "open")
        assert {row["reason"] for row in held} == {"the last entry of its device is not signed"}
    newcomer.sync()
    assert newcomer.entry_ids() <= {*ids}


def test_who_is_told_less_has_a_true_beginning_of_each_log_and_gets_the_rest_later(
    town: Town,
) -> None:
    """That there is more, nobody can tell from what he has: SECURITY.md says so."""
    crew, _, reader, ids = town
    newcomer = crew.device()
    with told_less(crew, newcomer, "t.cloud_seq > 3"):
        newcomer.sync()
        assert own(newcomer).log == own(reader).log[:3]
        assert newcomer.problems() == []
        assert {*newcomer.proof().missing_here} == {*ids[3:]}, "unless he is lied to there as well"
    newcomer.sync()
    assert own(newcomer).log == own(reader).log


def test_what_is_left_out_in_between_is_named_by_its_number(town: Town) -> None:
    crew, _, reader, _ = town
    newcomer, other = crew.device(), crew.device()
    write(other, 1)
    other.sync()
    with told_less(crew, newcomer, "t.cloud_seq BETWEEN 4 AND 5"):
        newcomer.sync()
        names = {row["entry_id"] for row in conflicts.quarantined(newcomer.node, "open")}
        assert names == {"number 4 to 5"}
        assert own(newcomer).log[:3] == own(reader).log[:3]


# --- said to be refused, or gone ------------------------------------------------------------------

REFUSED = "refused = 'it is too large', body = NULL"


@pytest.mark.parametrize("change", [REFUSED, f"{REFUSED}, actor = 'mallory'"])
def test_an_entry_that_is_said_to_be_refused_after_it_was_accepted_is_named(
    town: Town, change: str
) -> None:
    crew, author, reader, ids = town
    crew.sql(f"UPDATE syncd.log SET {change} {ORGANIZATION} AND cloud_seq = 2")
    for device in (author, reader):
        assert ids[1] in {name for name, _ in accused(device)}


def test_a_body_that_no_purge_took_away_is_named_by_who_never_had_it(town: Town) -> None:
    crew, _, _, ids = town
    gone = "purged_by = gen_random_uuid(), body = NULL"
    crew.sql(f"UPDATE syncd.log SET {gone} {ORGANIZATION} AND cloud_seq = 2")
    newcomer = crew.device()
    newcomer.sync()
    told = newcomer.problems() + [name for name, _ in accused(newcomer)]
    assert [problem for problem in told if ids[1] in problem]


def test_a_later_date_than_its_device_gave_it_is_named_and_an_earlier_one_by_who_had_it(
    town: Town,
) -> None:
    """An earlier one may be right: the clock of the device may have been ahead."""
    crew, _, reader, ids = town
    crew.sql(f"UPDATE syncd.log SET effective_hlc = hlc + 1 {ORGANIZATION} AND cloud_seq = 2")
    crew.sql(f"UPDATE syncd.log SET effective_hlc = 1000 {ORGANIZATION} AND cloud_seq = 3")
    newcomer = crew.device()
    newcomer.sync()
    assert newcomer.problems() == [f"{ids[1]}: its place in time was changed"]
    assert {name for name, _ in accused(reader)} == {ids[1], ids[2]}


# --- through the command line ---------------------------------------------------------------------


def test_a_user_reads_what_was_done_and_that_nothing_here_has_changed(
    machine_team: machines.Team,
) -> None:
    ann, bob = machine_team.machine(), machine_team.machine()
    for _ in range(3):
        ann.create()
    machine_team.settle(ann, bob)
    before, device_id = ann.entries(), ann.state("device_id")

    def sql(text: str, *values: object) -> list[tuple[Any, ...]]:
        return machine_team.sql(text, *values, machine_team.organization_id)

    make_anew(sql, device_id, 2, stranger())
    ann.create()
    for words in (("sync",), ("prove",)):
        error = machines.refused(ann, 5, *words)
        assert error["code"] == "replica_tampered"
        assert device_id in error["message"]
        assert "audit verify --cloud" in error["remedy"]
    told = ann.run("audit", "verify", "--cloud", "--json")
    assert told.code == 5
    named = {problem["entry_id"] for problem in told.json()["problems"]}
    assert named >= {before[1][0], before[2][0]}
    assert ann.entries()[:3] == before
    assert ann.json("audit", "verify")["ok"]
    assert bob.run("prove", "--json").code == 3
