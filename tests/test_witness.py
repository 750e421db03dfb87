"""The replica's copy: whatever differs from what was written is found and named."""

from __future__ import annotations

from typing import Any

import machines
import pytest
from devices import Device, Team, cloud, crew

from syncd import retention, sealing, witness
from syncd.errors import ReplicaError

__all__ = ["cloud", "crew"]

machine_team = machines.team
runner = machines.runner


def wrote(device: Device, task: str, text: str = "work") -> str:
    made = device.service.create_checkpoint(task, "agent", {"current_focus": text})
    return made.metadata.checkpoint_id


def witnessed(device: Device) -> list[tuple[str, str]]:
    found = witness.examine(device.exchange, device.replica)
    return [(problem.entry_id, problem.problem) for problem in found.problems]


@pytest.fixture
def pair(crew: Team) -> tuple[Device, Device, list[str]]:
    """Two devices that have the same, in batches of several entries."""
    one, two = crew.device(), crew.device()
    ids = [wrote(one, "task") for _ in range(3)]
    one.sync()
    ids += [wrote(two, "task") for _ in range(3)]
    ids.append(two.service.finalize_checkpoint(ids[-1]).revision or "")
    crew.settle()
    return one, two, ids


def test_a_replica_that_has_the_same_testifies_so(crew: Team, pair: Any) -> None:
    one, two, ids = pair
    found = witness.examine(one.exchange, one.replica)
    assert found.problems == []
    assert (found.entries, found.not_here_yet) == (len(ids), 0)
    assert found.signatures >= 2
    later = wrote(two, "task")
    two.sync()
    found = witness.examine(one.exchange, one.replica)
    assert (found.problems, found.not_here_yet) == ([], 1), "what is still to be fetched"
    wrote(one, "task")
    assert witnessed(one) == [], "what is still to be sent"
    assert later


@pytest.mark.parametrize(
    ("change", "entry", "word"),
    [
        ("actor = 'mallory'", 1, "chain"),
        ("hash = repeat('0', 64)", 1, "chain"),
        ("body = convert_to('{}', 'UTF8')", 1, "body does not match"),
        ("body = NULL", 1, "body is missing"),
        ("signature = decode(repeat('00', 64), 'hex')", 2, "signature is not valid"),
        ("signature = NULL", 6, "signature of a finalized"),
        ("chain = decode(repeat('00', 32), 'hex')", 1, "chain"),
        ("device_seq = device_seq + 10", 6, "entries are missing"),
        ("cloud_seq = cloud_seq + 10", 6, "numbers are left out"),
        ("effective_hlc = effective_hlc - 1", 1, "place in time"),
        ("batch = gen_random_uuid()", 2, "its number"),
        ("entry_id = gen_random_uuid()", 1, ""),
    ],
)
def test_what_was_changed_at_the_replica_is_found_and_named(
    crew: Team, pair: Any, change: str, entry: int, word: str
) -> None:
    one, _, ids = pair
    crew.sql(f"UPDATE syncd.log SET {change} WHERE entry_id = %s AND organization_id = %s",
             ids[entry])  # fmt: skip
    found = witnessed(one)
    assert found, change
    assert all(problem.startswith("at the replica: ") for _, problem in found)
    if word:
        assert [p for name, p in found if name == ids[entry] and word in p], found


@pytest.mark.parametrize("entry", range(7))
def test_what_was_removed_at_the_replica_is_found(crew: Team, pair: Any, entry: int) -> None:
    one, _, ids = pair
    crew.sql("DELETE FROM syncd.log WHERE entry_id = %s AND organization_id = %s", ids[entry])
    found = dict(witnessed(one))
    named = {ids[entry], ids[min(entry + 1, len(ids) - 1)]}
    assert named & found.keys(), found


def test_another_key_at_the_replica_is_found(crew: Team, pair: Any) -> None:
    one, two, _ = pair
    device_id = two.node.store.device_id
    crew.sql("UPDATE syncd.devices SET public_key = decode(repeat('17', 32), 'hex')"
             " WHERE device_id = %s AND organization_id = %s", device_id)  # fmt: skip
    assert [problem for _, problem in witnessed(one) if "another key" in problem]


def test_unsigned_entries_at_the_end_are_found(crew: Team, pair: Any) -> None:
    one, *_ = pair
    crew.sql("UPDATE syncd.log SET signature = NULL WHERE organization_id = %s")
    assert [p for name, p in witnessed(one) if not name and "no signature covers" in p]


def test_an_entry_that_is_lost_here_is_named(crew: Team, pair: Any) -> None:
    one, _, ids = pair
    one.node.store.connection.execute("DELETE FROM log WHERE entry_id = ?", (ids[4],))
    assert (ids[4], "at the replica: it is not here") in witnessed(one)


def test_an_entry_that_was_rewritten_here_is_named(crew: Team, pair: Any) -> None:
    one, _, ids = pair
    one.node.store.connection.execute(
        "UPDATE log SET chain = zeroblob(32) WHERE entry_id = ?", (ids[4],)
    )
    assert (ids[4], "at the replica: another entry stands here under its id") in witnessed(one)


def test_a_device_that_was_never_met_here_is_checked_with_the_key_that_the_replica_names(
    crew: Team, pair: Any
) -> None:
    one, *_ = pair
    three = crew.device()
    wrote(three, "task")
    three.sync()
    found = witness.examine(one.exchange, one.replica)
    assert (found.problems, found.not_here_yet) == ([], 1)


def test_a_replica_full_of_problems_is_not_read_to_its_end(
    crew: Team, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, *_ = pair
    crew.sql("UPDATE syncd.log SET body = NULL WHERE organization_id = %s")
    monkeypatch.setattr(witness, "_NAMED_PROBLEMS", 3)
    assert witnessed(one)[-1] == ("", "at the replica: there are more problems than are named here")


def test_a_replica_that_goes_round_in_circles_is_refused(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, *_ = pair
    page = one.replica.pull(one.exchange.device_id, 0, None, 0)
    monkeypatch.setattr(one.replica, "pull", lambda *_: page)
    with pytest.raises(ReplicaError, match="out of order"):
        witnessed(one)


def test_the_replica_of_another_organization_is_no_witness(crew: Team, pair: Any) -> None:
    one, *_ = pair
    with one.node.store.transaction():
        one.exchange.put_state("organization", "another")
    with pytest.raises(ReplicaError, match="another organization"):
        witnessed(one)


def test_purges_are_compared_on_both_sides(crew: Team, pair: Any) -> None:
    one, two, ids = pair
    retention.erase(one.node, ids[0])
    one.sync()
    assert witnessed(one) == []
    assert witnessed(two) == [], "the purge is still to be fetched"
    crew.settle()
    assert witnessed(two) == []
    purged = "SELECT purged FROM log WHERE entry_id = ?"
    (purge,) = two.node.store.connection.execute(purged, (ids[0],)).fetchone()
    put = "UPDATE log SET purged = ? WHERE entry_id = ?"
    two.node.store.connection.execute(put, (None, ids[0]))
    assert witnessed(two) == [
        (ids[0], "at the replica: its body was purged there, and is still here")
    ]
    two.node.store.connection.execute(put, (purge, ids[0]))
    crew.sql("UPDATE syncd.log SET body = convert_to('{}', 'UTF8') WHERE entry_id = %s"
             " AND organization_id = %s", ids[0])  # fmt: skip
    assert [p for name, p in witnessed(two) if name == ids[0] and "was purged here" in p]
    crew.sql("UPDATE syncd.log SET body = NULL, purged_by = gen_random_uuid() WHERE entry_id = %s"
             " AND organization_id = %s", ids[1])  # fmt: skip
    assert [p for name, p in witnessed(two) if name == ids[1] and "no purge there names it" in p]


def test_a_replica_that_lost_what_it_had_acknowledged_is_found(crew: Team, pair: Any) -> None:
    one, _, ids = pair
    crew.sql("DELETE FROM syncd.log WHERE cloud_seq > 4 AND organization_id = %s")
    lost = {name for name, problem in witnessed(one) if "had been acknowledged" in problem}
    assert lost == set(ids[4:])


def test_what_is_encrypted_end_to_end_is_checked_with_the_key(crew: Team) -> None:
    one = crew.device()
    sealing.encrypt(one.node, "end_to_end")
    one.open()
    first, second = wrote(one, "task", "one"), wrote(one, "task", "two")
    one.sync()
    assert witnessed(one) == []
    crew.sql("UPDATE syncd.log SET body = (SELECT body FROM syncd.log WHERE entry_id = %s)"
             " WHERE entry_id = %s AND organization_id = %s", first, second)  # fmt: skip
    assert witnessed(one) == [(second, "at the replica: its body does not match its hash")]


def test_the_pages_of_the_replica_are_read_one_by_one(
    crew: Team, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _, ids = pair
    sizes: list[int] = []
    pull = one.replica.pull

    def small(*values: Any) -> Any:
        monkeypatch.setattr("syncd.replica.device.PAGE_ROWS", 1)
        page = pull(*values)
        sizes.append(len(page))
        return page

    monkeypatch.setattr(one.replica, "pull", small)
    assert witnessed(one) == []
    assert sum(sizes) == len(ids)
    assert len(sizes) > 2
    assert max(sizes) <= 4


def test_the_command_compares_with_the_replica(machine_team: machines.Team) -> None:
    one, two = machine_team.machine(), machine_team.machine()
    first = one.create()
    two.create()
    machine_team.settle(one, two)
    found = one.json("audit", "verify", "--cloud")
    assert (found["ok"], found["entries"]) == (True, 2)
    assert found["cloud"] == {"entries": 2, "signatures": 2, "not_here_yet": 0}
    assert "The replica agrees: 2 entries" in one.ok("audit", "verify", "--cloud").out
    machine_team.sql("UPDATE syncd.log SET actor = 'mallory' WHERE entry_id = %s", first)
    result = one.run("audit", "verify", "--cloud", "--json")
    assert result.code == 5
    assert first in {problem["entry_id"] for problem in result.json()["problems"]}
    assert one.json("audit", "verify")["ok"], "what is here is in order"
    broken = "postgresql://nobody@127.0.0.1:1/nothing"
    assert (
        one.fails(6, "audit", "verify", "--cloud", SYNCD_CLOUD_DSN=broken)["code"] == "unreachable"
    )
    blank = machine_team.blank()
    blank.fails(1, "audit", "verify", "--cloud")
