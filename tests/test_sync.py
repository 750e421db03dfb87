"""Entries on their way: in batches, again, damaged, forged, cut off, while others write."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest
from counts import full
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import AFTER, BEFORE, Device, Team, cloud, crew, folder

from syncd import CheckpointService, clock, conflicts, tasks
from syncd.audit import verify_database
from syncd.entry import HEADER_FIELDS, Entry, header_bytes, uuid7
from syncd.errors import CheckpointCorruptionError, CheckpointNotFoundError
from syncd.exchange import BATCH_BYTES, BATCH_ROWS
from syncd.replica import encoded
from syncd.seal import SigningKey, chain_value
from syncd.sql import sqlite_steps, statements

__all__ = ["cloud", "crew"]
HOUR = 3_600_000


def write(device: Device, count: int, task: str = "task", **parts: Any) -> list[str]:
    """Checkpoints, in one transaction: how they are written is tested elsewhere."""
    with device.node.store.transaction():
        made = [device.service.create_checkpoint(task, "agent", **parts) for _ in range(count)]
    return [checkpoint.metadata.checkpoint_id for checkpoint in made]


def checkpoints(device: Device) -> set[str]:
    return {name for (name,) in device.rows("SELECT id FROM checkpoints")}


def assert_alike(*devices: Device) -> None:
    """All have the same entries and checkpoints, intact, and nothing is in quarantine."""
    for device in devices:
        assert device.problems() == []
        assert device.proof().ok
        assert device.entry_ids() == devices[0].entry_ids()
        assert checkpoints(device) == checkpoints(devices[0])
        assert conflicts.quarantined(device.node, "open") == []


# --- batches ------------------------------------------------------------------------------------


def batches(crew: Team) -> list[tuple[int, int]]:
    """Rows and bytes of each batch at the replica."""
    return crew.sql(
        "SELECT count(*), sum(octet_length(body)) FROM syncd.log WHERE organization_id = %s"
        " GROUP BY batch ORDER BY min(cloud_seq)"
    )


def test_many_entries_go_in_batches_of_so_many_rows(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(one, 2 * BATCH_ROWS + 1)
    assert one.sync().pushed == 2 * BATCH_ROWS + 1
    assert [rows for rows, _ in batches(crew)] == [BATCH_ROWS, BATCH_ROWS, 1]
    assert two.sync().pulled == 2 * BATCH_ROWS + 1
    assert_alike(one, two)


@pytest.mark.parametrize(("count", "size"), [(100, 100_000), (9, 990_000)])
def test_large_entries_go_in_batches_of_so_many_bytes(crew: Team, count: int, size: int) -> None:
    one, two = crew.device(), crew.device()
    write(one, 1)
    write(one, count, context_summary={"next_actions": ["x" * (size - 3_000)]})
    one.sync()
    found = batches(crew)
    assert len(found) >= count * size // BATCH_BYTES
    assert max(size for _, size in found) <= BATCH_BYTES
    two.sync()
    assert_alike(one, two)
    bodies = "SELECT entry_id, body FROM log ORDER BY entry_id"
    assert two.rows(bodies) == one.rows(bodies)


# --- again --------------------------------------------------------------------------------------


def test_a_second_sync_does_nothing(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(one, 5)
    one.sync()
    two.sync()
    before = crew.sql("SELECT * FROM syncd.log WHERE organization_id = %s")
    for device in (one, two):
        assert device.sync()[:2] == (0, 0)
    assert crew.sql("SELECT * FROM syncd.log WHERE organization_id = %s") == before
    assert_alike(one, two)


def test_a_batch_sent_twice_is_there_once_and_keeps_its_numbers(crew: Team) -> None:
    one = crew.device()
    write(one, 5)
    entries = one.exchange.pending(0)
    one.engine.meet()
    first = one.replica.push(encoded(entries))
    again = one.replica.push(encoded(entries))
    assert [v.verdict for v in first] == ["accepted"] * 5
    assert [v.verdict for v in again] == ["duplicate"] * 5
    assert [v.cloud_seq for v in again] == [v.cloud_seq for v in first] == [1, 2, 3, 4, 5]
    assert one.sync().pushed == 5
    assert crew.sql("SELECT count(*) FROM syncd.log WHERE organization_id = %s") == [(5,)]
    assert_alike(one)


def test_an_old_entry_sent_again_does_not_take_an_acknowledgement_back(crew: Team) -> None:
    device = crew.device()
    for _ in range(3):
        device.service.create_checkpoint("task", "agent")
    device.sync()
    assert device.exchange.acknowledged() == device.exchange.head()
    with device.node.store.transaction():
        device.exchange.offer_again([1])
    assert device.exchange.pending_count() == 1
    device.sync()
    assert device.exchange.pending_count() == 0
    assert device.exchange.acknowledged() == device.exchange.head()


def test_a_clock_that_was_ahead_is_capped_and_forgotten_once_it_is_right(crew: Team) -> None:
    one, two = crew.device(skew_ms=10 * 365 * 24 * HOUR), crew.device()
    write(one, 3)
    write(two, 1)
    two.sync()
    one.sync(push=False)  # an entry of another device is the newest here now
    one.sync()
    latest = clock.wall_ms() + 5 * 60_000
    [(newest,)] = one.rows("SELECT max(effective_hlc) FROM log")
    assert clock.milliseconds(newest) <= latest
    one.skew_ms = 0
    (late,) = write(one, 1)
    [(claimed,)] = one.rows("SELECT hlc FROM log WHERE entry_id = ?", late)
    assert newest < claimed
    assert clock.milliseconds(claimed) <= latest
    one.sync()
    two.sync()
    assert two.node.store.current_id("task") == late
    assert_alike(one, two)


# --- poison -------------------------------------------------------------------------------------

CROWD = full(400, 10_000)


@pytest.fixture(scope="module")
def crowd() -> Iterator[Path]:
    """A home with many entries that were never sent."""
    with folder() as place:
        home = place / "home"
        service = CheckpointService(home=home)
        with service.node.store.transaction():
            for number in range(CROWD):
                service.create_checkpoint(f"task {number % 7}", "agent")
        service.close()
        yield home


def join(crew: Team, home: Path) -> Device:
    """A copy of a home that no replica has met, as one of the team's devices."""
    device = crew.device()
    device.node.close()
    shutil.rmtree(device.home)
    shutil.copytree(home, device.home)
    device.open()
    return device


POISON = {
    "its body was changed": "body = CAST('{}' AS BLOB)",
    "its body is text": "body = CAST(body AS TEXT)",
    "its body is a number": "body = 7",
    "its actor was changed": "actor = 'somebody else'",
    "its actor is no text": "actor = CAST(x'ff41' AS TEXT)",
    "its actor has a zero byte": "actor = 'a' || char(0) || 'b'",
    "its time is no number": "hlc = 'late'",
    "its meta is no JSON": "meta = '{'",
    "its meta is that of another": "meta = replace(meta, 'task', 'cask')",
    "its id is no id": "entry_id = 'nobody'",
}


@pytest.mark.parametrize("damage", POISON)
def test_one_poisonous_entry_does_not_hold_up_the_others(
    crew: Team, crowd: Path, damage: str
) -> None:
    one, two = join(crew, crowd), crew.device()
    seq = CROWD // 2
    [(checkpoint,)] = one.rows("SELECT entity_id FROM log WHERE seq = ?", seq)
    one.rows(f"UPDATE log SET {POISON[damage]} WHERE seq = ?", seq)
    outcome = one.sync()
    assert (outcome.pushed, outcome.quarantined, outcome.pending) == (CROWD, 1, 0)
    [held] = conflicts.quarantined(one.node)
    assert held["reason"]
    assert held["state"] == "open"
    assert two.sync().pulled == CROWD
    assert len(checkpoints(two)) == CROWD - 1
    assert checkpoint not in checkpoints(two)
    numbers = [n for (n,) in two.rows("SELECT device_seq FROM log ORDER BY device_seq")]
    assert numbers == [*range(1, CROWD + 1)]
    assert two.problems() == []
    assert two.proof().ok
    (later,) = write(one, 1)
    one.sync()
    two.sync()
    assert later in checkpoints(two)
    assert two.problems() == []


def test_a_damaged_entry_cannot_be_offered_again_but_dropped(crew: Team) -> None:
    one = crew.device()
    write(one, 3)
    one.rows("UPDATE log SET body = CAST('{}' AS BLOB) WHERE seq = 2")
    one.sync()
    [held] = conflicts.quarantined(one.node)
    with pytest.raises(CheckpointCorruptionError):
        conflicts.retry(one.node, held["entry_id"])
    conflicts.drop(one.node, held["entry_id"][:30])
    assert conflicts.quarantined(one.node, "open") == []
    assert one.sync().quarantined == 0
    with pytest.raises(CheckpointNotFoundError):
        conflicts.drop(one.node, "nothing")


def test_what_was_too_large_arrives_once_the_replica_allows_it(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    crew.sql("UPDATE syncd.organizations SET body_limit = 10000 WHERE organization_id = %s")
    write(one, 2)
    much = {"next_actions": ["x" * 20_000]}
    (large,) = write(one, 1, context_summary=much)
    (small,) = write(one, 1)
    one.sync()
    one.service.update_checkpoint(small, {"context_summary": much})
    assert one.sync().quarantined == 2
    two.sync()
    assert len(checkpoints(two)) == 3
    assert two.problems() == one.problems() == []
    crew.sql("UPDATE syncd.organizations SET body_limit = 99999 WHERE organization_id = %s")
    for held in conflicts.quarantined(one.node):
        assert "at most 10000 are allowed" in held["reason"]
        conflicts.retry(one.node, held["entry_id"])
    assert one.problems() == []
    assert one.sync().quarantined == 0
    assert two.sync().conflicts == 0
    for name in (large, small):
        assert two.service.get_checkpoint(name).body()["context_summary"] == much_of(one, name)
    assert_alike(one, two)


def much_of(device: Device, checkpoint_id: str) -> Any:
    return device.service.get_checkpoint(checkpoint_id).body()["context_summary"]


def test_two_devices_with_one_id_of_an_entry_do_not_hold_up_a_third(crew: Team) -> None:
    """Whoever knows an id could use it: the replica keeps the first and refuses the second."""
    one, two, three = crew.device(), crew.device(), crew.device()
    (made,) = write(one, 1)
    written = one.service.update_checkpoint(made, {"execution_state": {"current_focus": "x"}})
    one.sync()
    _forge_id(two, written.revision)
    (later,) = write(two, 1)
    assert two.sync().quarantined == 1
    assert {made, later} <= checkpoints(two)
    three.sync()
    three.sync()
    assert checkpoints(three) == {made, later}
    assert three.problems() == []


def _forge_id(device: Device, entry_id: str) -> None:
    """A task's entry under an id that is another's."""
    tasks.add(device.node, "other")
    device.rows("UPDATE log SET entry_id = ? WHERE entity = 'task'", entry_id)
    [row] = device.rows("SELECT * FROM log WHERE entity = 'task'")
    entry = Entry(*row)
    chain = chain_value(entry.previous, header_bytes(entry[1:13]), entry.hash)
    device.rows("UPDATE log SET chain = ? WHERE seq = ?", chain, entry.seq)
    device.rows("UPDATE tasks SET revision = ?", entry_id)


@pytest.mark.plain
def test_one_id_of_a_checkpoint_in_two_tasks_is_a_conflict_that_can_be_read(crew: Team) -> None:
    """Two machines may read in the same file, each for a task of its own."""
    devices = [crew.device(), crew.device(skew_ms=1_000)]
    for number, device in enumerate(devices):
        device.service.create_checkpoint(f"task {number}", "agent", checkpoint_id="same")
    crew.settle()
    for device in devices:
        service = device.service
        assert service.get_checkpoint("same").metadata.task_id == "task 1"
        assert [each.metadata.checkpoint_id for each in service.get_checkpoint_history("task 0")]
        [conflict] = conflicts.everything(device.node, "open")
        assert conflict.entity_id == "same"
    devices[0].service.update_checkpoint("same", {"execution_state": {"current_focus": "this"}})
    crew.settle()
    conflicts.restore(devices[1].node, conflict.id)
    crew.settle()
    for device in devices:
        assert device.service.get_checkpoint("same").metadata.task_id == "task 0"
    assert_alike(*devices)


def test_an_id_that_is_in_use_here_is_not_taken_in_again(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    (made,) = write(one, 1)
    written = one.service.update_checkpoint(made, {"execution_state": {"current_focus": "x"}})
    _forge_id(two, written.revision)
    two.sync()
    assert one.sync(push=False).quarantined == 1
    assert one.problems() == []
    one.sync()
    assert checkpoints(one) == {made}
    assert one.problems() == []


# --- a replica that is not to be trusted --------------------------------------------------------


WHERE = "WHERE organization_id = %s AND cloud_seq ="
# What is done to the first device's eight entries, of which the fourth must not be shown then.
TAMPERINGS = {
    "a body": [f"UPDATE syncd.log SET body = convert_to('{{}}', 'UTF8') {WHERE} 4"],
    "a body with its hash": [
        "UPDATE syncd.log SET body = convert_to('{}', 'UTF8'),"
        f" hash = encode(sha256('{{}}'), 'hex') {WHERE} 4"
    ],
    "no body": [f"UPDATE syncd.log SET body = NULL {WHERE} 4"],
    "a meta": [f"UPDATE syncd.log SET meta = replace(meta, 'in_progress', 'failed') {WHERE} 4"],
    "a meta that cannot be read": [f"UPDATE syncd.log SET meta = '[' {WHERE} 4"],
    "a meta that is no meta": [f"UPDATE syncd.log SET meta = '{{}}' {WHERE} 4"],
    "a time": [f"UPDATE syncd.log SET hlc = hlc + 1 {WHERE} 4"],
    "the bases": [f"UPDATE syncd.log SET bases = '[\"x\"]' {WHERE} 4"],
    "a signature": [f"UPDATE syncd.log SET signature = sha256(chain) || sha256(chain) {WHERE} 8"],
    "no signature": [f"UPDATE syncd.log SET signature = NULL {WHERE} 8"],
    "a chain value": [f"UPDATE syncd.log SET chain = sha256(chain) {WHERE} 4"],
    "a body withheld": [f"UPDATE syncd.log SET refused = 'censored', body = NULL {WHERE} 4"],
    "two entries in each other's place": [
        f"UPDATE syncd.log SET cloud_seq = -4 {WHERE} 4",
        f"UPDATE syncd.log SET cloud_seq = 4 {WHERE} 5",
        f"UPDATE syncd.log SET cloud_seq = 5 {WHERE} -4",
    ],
    "an entry less": [f"DELETE FROM syncd.log {WHERE} 4"],
    "the key of a device": [
        "UPDATE syncd.devices d SET public_key = sha256(d.public_key) FROM syncd.log l"
        " WHERE d.device_id = l.device_id AND l.cloud_seq = 4 AND l.organization_id = %s"
    ],
}


@contextmanager
def tampered(crew: Team, statements: list[str]) -> Iterator[None]:
    """The replica changed by somebody whom no policy holds, and put right in the end."""
    where = "WHERE organization_id = %s"
    crew.sql(f"CREATE TEMP TABLE kept AS SELECT * FROM syncd.log {where}")
    crew.sql(f"CREATE TEMP TABLE keys AS SELECT * FROM syncd.devices {where}")
    for statement in statements:
        crew.sql(statement)
    yield
    crew.sql(f"DELETE FROM syncd.log {where} AND batch IN (SELECT batch FROM kept)")
    crew.cloud.sql("INSERT INTO syncd.log SELECT * FROM kept")
    crew.cloud.sql(
        "UPDATE syncd.devices d SET public_key = k.public_key FROM keys k"
        " WHERE k.device_id = d.device_id"
    )
    crew.cloud.sql("DROP TABLE kept, keys")


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_changed_at_the_replica_is_held_back_until_it_is_right_again(
    crew: Team, what: str
) -> None:
    one, two, three = crew.device(), crew.device(), crew.device()
    victim = write(one, 8)[3]
    one.sync()
    others = write(two, 3)
    two.sync(pull=False)
    with tampered(crew, TAMPERINGS[what]):
        three.sync()
        assert victim not in checkpoints(three)
        assert {*others} <= checkpoints(three)
        assert three.problems() == []
        held = conflicts.quarantined(three.node, "open")
        assert all(row["reason"] for row in held)
        others += write(two, 1)
        two.sync(pull=False)
        three.sync()
        assert {*others} <= checkpoints(three)
    if what == "a body withheld":  # the replica may refuse; that it did is kept, and can be proven
        text = "SELECT refused FROM log WHERE entry_id = ?"
        assert three.rows(text, victim) == [("censored",)]
        return
    assert held
    first = min(held, key=lambda row: _cloud_seq(three, row["entry_id"]))
    conflicts.retry(three.node, first["entry_id"])
    three.sync()
    one.sync()
    two.sync()
    assert_alike(one, two, three)


def _cloud_seq(device: Device, name: str) -> int:
    text = "SELECT json_extract(content, '$.cloud_seq') FROM quarantine WHERE entry_id = ?"
    return int(device.rows(text, name)[0][0])


def forge(crew: Team, device: Device, key: SigningKey) -> str:
    """One more entry of a device, made at the replica: all is right about it but who signed."""
    row = crew.sql(
        "SELECT * FROM syncd.log WHERE organization_id = %s ORDER BY cloud_seq DESC LIMIT 1"
    )[0]
    names = [n for (n,) in crew.cloud.sql(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = 'syncd.log'::regclass"
        " AND attnum > 0 ORDER BY attnum"
    )]  # fmt: skip
    entry = dict(zip(names, row, strict=True))
    entry_id = uuid7()
    entry |= {"entry_id": entry_id, "entity_id": entry_id, "batch": uuid.uuid4(),
              "device_seq": entry["device_seq"] + 1, "cloud_seq": entry["cloud_seq"] + 1,
              "meta": entry["meta"].replace('"task_seq":1', '"task_seq":2')}  # fmt: skip
    header = header_bytes([entry[name] for name in HEADER_FIELDS])
    entry["chain"] = chain_value(entry["chain"], header, entry["hash"])
    entry["signature"] = key.sign(entry["chain"])
    marks = ", ".join(["%s"] * len(names))
    crew.cloud.sql(f"INSERT INTO syncd.log VALUES ({marks})", *entry.values())
    return entry_id


@pytest.mark.plain
def test_an_entry_that_the_replica_made_up_is_never_shown(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(one, 1)
    one.sync()
    forged = forge(crew, one, SigningKey(Ed25519PrivateKey.generate()))
    assert two.sync().quarantined == 1
    assert two.entry_ids() == one.entry_ids()
    assert forged not in checkpoints(two)
    [held] = conflicts.quarantined(two.node)
    assert held["entry_id"] == forged
    assert "signature" in held["reason"]


def test_a_key_once_pinned_stays_whatever_the_replica_says(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(one, 1)
    one.sync()
    two.sync()
    impostor = SigningKey(Ed25519PrivateKey.generate())
    crew.sql(
        "UPDATE syncd.devices SET public_key = %s WHERE device_id = %s AND organization_id = %s",
        impostor.public(), one.exchange.device_id,
    )  # fmt: skip
    forged = forge(crew, one, impostor)
    three = crew.device()
    (honest,) = write(three, 1)
    crew.sql("UPDATE syncd.organizations SET cloud_seq = 2 WHERE organization_id = %s")
    three.sync(pull=False)  # its key is asked for, and that of the first is told again
    assert two.sync().quarantined == 1
    assert forged not in checkpoints(two)
    assert honest in checkpoints(two)
    assert two.exchange.keys()[one.exchange.device_id] == one.node.key.public()


# --- while others write -------------------------------------------------------------------------

WRITER = """
import sys, threading, time
from syncd import CheckpointService

def write(number):
    service = CheckpointService(home=sys.argv[1])
    while not done.is_set():
        began = time.monotonic()
        made = service.create_checkpoint(f"task {number % 3}", f"agent {number}")
        with telling:
            print(made.metadata.checkpoint_id, began, time.monotonic(), flush=True)
        time.sleep(float(sys.argv[3]))

done, telling = threading.Event(), threading.Lock()
threads = [threading.Thread(target=write, args=(number,)) for number in range(int(sys.argv[2]))]
for thread in threads: thread.start()
sys.stdin.read()
done.set()
"""


class Write(NamedTuple):
    checkpoint_id: str
    began: float
    ended: float


@contextmanager
def writers(home: Path, processes: int, threads: int, pause: float) -> Iterator[list[Write]]:
    """Long-lived processes that write; what they were told, once they have ended."""
    command = [sys.executable, "-c", WRITER, str(home), str(threads), str(pause)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    told: list[Write] = []

    def listen(process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            name, began, ended = line.split()
            told.append(Write(name, float(began), float(ended)))

    listeners = [threading.Thread(target=listen, args=(process,)) for process in started]
    for listener in listeners:
        listener.start()
    while len(told) < processes * threads:
        time.sleep(0.01)
    yield told
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
    for listener in listeners:
        listener.join()
    for process in started:
        assert process.stdout is not None
        process.stdout.close()


def test_what_came_from_the_replica_is_not_looked_at_again_when_sending(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(two, 3)
    two.sync()
    one.sync()
    assert [(one.exchange.sent_to(),)] == one.rows("SELECT max(seq) FROM log")
    write(one, 1)
    write(two, 2)
    two.sync()
    one.sync(push=False)
    assert one.exchange.pending_count() == 1
    one.sync()
    assert one.exchange.pending_count() == 0
    two.sync()
    assert_alike(one, two)


def test_those_who_write_during_pulls_keep_their_numbers_and_their_chain(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    with writers(one.home, 2, 2, 0.005) as told:
        for _ in range(full(6, 20)):
            write(two, 20, "task 0")
            write(two, 20, "task 1")
            two.sync()
            one.sync()
            assert one.problems() == []
    one.sync()
    two.sync()
    assert {name for name, *_ in told} <= checkpoints(two)
    assert_alike(one, two)


def test_a_process_that_writes_while_its_home_turns_out_to_be_a_clone_goes_on(crew: Team) -> None:
    one = crew.device()
    write(one, 5)
    one.sync()
    clone = crew.joined(one.clone(crew.home()))
    before = clone.exchange.device_id
    (elsewhere,) = write(one, 1)
    one.sync()
    with writers(clone.home, 2, 1, 0.001) as told:
        clone.sync()
        clone.sync()
        assert clone.exchange.device_id != before
    clone.sync()
    one.sync()
    assert {elsewhere, *(name for name, *_ in told)} <= checkpoints(one)
    assert_alike(one, clone)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("call", range(1, 8))
def test_what_is_written_while_lost_entries_come_back_goes_on_under_a_new_id(
    crew: Team, call: int, when: str
) -> None:
    one, two = crew.device(), crew.device()
    written = {*write(one, 2)}
    one.sync()
    copy = one.copy(crew.place / "copy.db")
    written |= {*write(one, 4)}
    one.sync()
    one.restore(copy)

    def beside() -> None:
        service = CheckpointService(home=one.home)
        written.add(service.create_checkpoint("task", "beside").metadata.checkpoint_id)
        service.close()

    one.replica.arm(call, when, beside)
    one.sync()
    one.replica.disarm()
    assert one.problems() == []
    crew.settle()
    assert checkpoints(two) == written
    assert_alike(one, two)


def test_a_checkpoint_that_was_moved_before_it_was_sent_branches_where_it_is(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    root, leaf = write(one, 2)
    one.sync()
    two.sync()
    (child,) = write(two, 1)
    two.service.update_checkpoint(child, {"recovery": {"last_successful_state": root}})
    crew.settle()
    for device in (one, two):
        [fork] = conflicts.everything(device.node)
        assert (fork.kind, fork.entity_id, orjson.loads(fork.bases)) == ("fork", leaf, [root])
    assert_alike(one, two)


def test_a_branch_is_found_though_the_replica_has_refused_the_entry_that_created_it(
    crew: Team,
) -> None:
    one, two, three = crew.device(), crew.device(), crew.device()
    (root,) = write(one, 1)
    crew.settle()
    (leaf,) = write(two, 1)
    two.sync()
    three.sync()
    (child,) = write(one, 1)
    one.service.update_checkpoint(child, {"execution_state": {"current_focus": "later"}})
    one.rows("UPDATE log SET body = CAST('{}' AS BLOB) WHERE entry_id = ?", child)
    assert one.sync().quarantined == 1
    three.sync()
    [fork] = conflicts.everything(three.node)
    assert (fork.kind, fork.entity_id, orjson.loads(fork.bases)) == ("fork", leaf, [root])
    assert three.problems() == []


def test_fifty_writers_do_not_wait_for_a_long_pull(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    write(two, full(3_000, 50_000), "long")
    two.sync()
    with writers(one.home, 5, 10, 0.2) as told:
        began = time.monotonic()
        one.sync(push=False)
        ended = time.monotonic()
        calm = time.monotonic() + 2.0
        time.sleep(2.0)
    assert checkpoints(two) <= checkpoints(one)
    during = [w.ended - w.began for w in told if w.began < ended and w.ended > began]
    after = [w.ended - w.began for w in told if calm - 2.0 < w.began < calm]
    assert len(during) >= full(10, 50)
    # Fifty processes on two processors wait for each other too: only what a pull adds counts.
    assert max(during) < max(after) + full(2.0, 0.3), (max(during), max(after))
    assert one.problems() == []


# --- cut off ------------------------------------------------------------------------------------


def syncd_sync(device: Device) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "SYNCD_HOME": str(device.home), "SYNCD_CLOUD_DSN": device.dsn}
    return subprocess.Popen(
        [sys.executable, "-m", "syncd", "sync", "--json"], env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_killed_sync_is_simply_begun_again(crew: Team, crowd: Path) -> None:
    one, two = join(crew, crowd), crew.device()
    write(two, full(500, 5_000), "elsewhere")
    two.sync()
    chance = random.Random(4)
    for _ in range(full(5, 50)):
        process = syncd_sync(one)
        time.sleep(chance.uniform(0.3, 1.2))
        process.kill()
        process.communicate()
        assert one.problems() == []
        write(one, 3, "between")
    one.sync()
    two.sync()
    one.sync()
    assert_alike(one, two)
    rows = crew.sql("SELECT count(*), max(cloud_seq) FROM syncd.log WHERE organization_id = %s")
    assert rows == [(len(one.entry_ids()), len(one.entry_ids()))]


# --- memory -------------------------------------------------------------------------------------

BACKLOG = """
import resource, sys
from pathlib import Path
from syncd.exchange import Exchange
from syncd.node import Node
from syncd.replica import Replica
from syncd.sync import Engine

node = Node(Path(sys.argv[1]))
engine = Engine(Exchange(node.store), Replica(sys.argv[2]), node.key)
pushed = engine.sync().pushed
try:  # what a process started out as counts for getrusage on Linux
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(pushed, peak)
"""


def test_a_long_backlog_does_not_fill_the_memory(crew: Team) -> None:
    one, count = crew.device(), full(10_000, 200_000)
    for _ in range(count // 10_000):
        write(one, 10_000, context_summary={"next_actions": ["x" * 600]})
    done = subprocess.run(
        [sys.executable, "-c", BACKLOG, str(one.home), one.dsn], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    pushed, kilobytes = map(int, done.stdout.split())
    assert pushed == count
    assert kilobytes < 150_000


# --- a home of the version before ---------------------------------------------------------------


def test_a_home_of_the_first_version_joins_with_all_it_has(crew: Team) -> None:
    written = first_version(crew.place / "old")
    one, two = join(crew, crew.place / "old"), crew.device()
    assert dict(one.rows("SELECT entry_id, body FROM log")) == written
    assert one.problems() == []
    (later,) = write(one, 1, "task 0")
    assert one.problems() == []
    one.sync()
    two.sync()
    assert later in checkpoints(two)
    assert_alike(one, two)
    [backup] = (one.home / "backups").glob("*before-migration*.db")
    with closing(sqlite3.connect(backup)) as kept:
        assert kept.execute("PRAGMA user_version").fetchone() == (1,)
        assert dict(kept.execute("SELECT entry_id, body FROM log")) == written
        own = {one.exchange.device_id: one.node.key.public()}
        assert verify_database(kept, own).problems == []


def first_version(home: Path) -> dict[str, bytes]:
    """A home with some of everything, as the first version left it; its bodies by entry."""
    service = CheckpointService(home=home)
    made = [service.create_checkpoint(f"task {n % 3}", "agent") for n in range(9)]
    ids = [checkpoint.metadata.checkpoint_id for checkpoint in made]
    tasks.add(service.node, "task 1", title="One")
    service.update_checkpoint(ids[0], {"execution_state": {"current_focus": "x"}})
    service.finalize_checkpoint(ids[1])
    service.link_checkpoints(ids[2], ids[3])
    database = service.node.database
    service.close()
    today = database.rename(home / "today.db")
    with closing(sqlite3.connect(database, isolation_level=None)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        for statement in statements(sqlite_steps()[0].read_text()):
            old.execute(statement)
        old.execute("PRAGMA user_version = 1")
        old.execute("ATTACH ? AS today", (str(today),))
        for table in ("log", "checkpoints", "tasks", "participants", "links", "devices", "state"):
            _copy(old, table)
        # The first version kept the counters with the tasks.
        old.execute(
            "UPDATE tasks SET task_seq = coalesce((SELECT task_seq FROM today.numbers n"
            " WHERE n.task_id = tasks.id), 0)"
        )
        _record_first_step(old)
        bodies = dict(old.execute("SELECT entry_id, body FROM log").fetchall())
    today.unlink()
    return bodies


def _copy(old: sqlite3.Connection, table: str) -> None:
    """The columns that there were."""
    columns = [row[1] for row in old.execute(f"PRAGMA main.table_info({table})")]
    there = [row[1] for row in old.execute(f"PRAGMA today.table_info({table})")]
    values = ", ".join(name if name in there else "0" for name in columns)
    old.execute(f"INSERT INTO {table} SELECT {values} FROM today.{table}")


def _record_first_step(old: sqlite3.Connection) -> None:
    old.execute("CREATE TABLE _sqlite_migrations AS SELECT * FROM today._sqlite_migrations")
    old.execute("DELETE FROM _sqlite_migrations WHERE name <> ?", (sqlite_steps()[0].stem,))
