"""Recovery: from where, by whom, how often; and what is said where there is no way on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import devices
import machines
import pytest
import resuming
from devices import Device
from machines import Machine

from syncd import (
    CheckpointService,
    attempts,
    audit,
    clock,
    credentials,
    facts,
    presence,
    recovery,
    tasks,
    tenure,
)
from syncd.breaker import CLOSED, HALF_OPEN, OPEN
from syncd.entry import AGENT, RECOVERY, header_bytes
from syncd.errors import (
    CheckpointNotFoundError,
    LeaseHeldError,
    RecoveryPausedError,
    UsageError,
    WorkAtRiskError,
)
from syncd.recovery import RESTART, RESUME, TAKEOVER, Recovery, Wish
from syncd.replica import Pulled, Replica
from syncd.seal import chain_value
from syncd.store import Store

runner = machines.runner
team = machines.team
cloud = devices.cloud
crew = devices.crew
HOUR_MS = 3_600_000


def recover(service: CheckpointService, mode: str = RESUME, **wish: Any) -> Recovery:
    return recovery.recover(service.node, Wish("t", mode, start=resuming.ELSEWHERE, **wish))


def spoil(service: CheckpointService, checkpoint_id: str, column: str = "body") -> None:
    """Damage on the disk, behind everybody's back."""
    value = {"body": b"{}", "meta": "{}", "chain": bytes(32)}[column]
    with closing(sqlite3.connect(service.node.database, isolation_level=None)) as database:
        where = "seq = (SELECT seq FROM checkpoints WHERE id = ?)"
        database.execute(f"UPDATE log SET {column} = ? WHERE {where}", (value, checkpoint_id))


def chain(service: CheckpointService, count: int) -> list[str]:
    return [
        resuming.saved(service, execution_state={"completed_items": [f"step {number}"]})
        for number in range(count)
    ]


def later(service: CheckpointService, minutes: float) -> None:
    """What is written from now on carries a later time."""
    node = service.node
    ahead = int(minutes * 60_000)
    node.store.close()
    node.store = Store(node.database, vault=node.vault, now_ms=lambda: clock.wall_ms() + ahead)
    service._store = node.store


# --- from where ---------------------------------------------------------------------------------


def test_the_same_agent_goes_on_from_the_newest_checkpoint_in_a_new_session(
    service: CheckpointService,
) -> None:
    newest = chain(service, 3)[-1]
    first, second = recover(service).document(), recover(service).document()
    assert (first["outcome"], first["checkpoint_id"], first["skipped"]) == ("resumed", newest, [])
    assert (first["agent"], first["mode"]) == ("ann", "resume")
    assert first["session_id"] != second["session_id"]
    assert f"--session {first['session_id']}" in first["prompt"]
    assert "This is a recovery: ann worked on it before" in first["prompt"]


def test_what_is_corrupt_is_passed_over_and_named(service: CheckpointService) -> None:
    names = chain(service, 4)
    spoil(service, names[3])
    spoil(service, names[2], "meta")
    done = recover(service).document()
    assert done["checkpoint_id"] == names[1]
    assert {gone["checkpoint_id"]: gone["problem"] for gone in done["skipped"]} == {
        names[3]: "the body does not match its hash",
        names[2]: "the header does not match its chain value",
    }
    for name in names[2:]:
        assert f"{name} was newer and cannot be used" in done["prompt"]
    assert "step 1" in done["prompt"]
    assert "step 3" not in done["prompt"]


@pytest.mark.parametrize("column", ["meta", "device_id"])
def test_text_that_is_no_text_any_more_is_passed_over_too(
    service: CheckpointService, column: str
) -> None:
    names = chain(service, 2)
    service.node.store.connection.execute(
        f"UPDATE log SET {column} = CAST(x'ff' AS TEXT) WHERE entry_id = ?", (names[1],)
    )
    assert recover(service).document()["checkpoint_id"] == names[0]
    assert "cannot be used" in resuming.resume(service).prompt


def test_what_its_agent_gave_up_is_passed_over(service: CheckpointService) -> None:
    good, bad = chain(service, 1)[0], resuming.saved(service, recovery={"can_resume": False})
    done = recover(service).document()
    assert done["checkpoint_id"] == good
    assert [gone["checkpoint_id"] for gone in done["skipped"]] == [bad]


def test_where_the_parents_lead_nowhere_the_newest_one_left_is_taken_and_that_is_said(
    service: CheckpointService,
) -> None:
    names = chain(service, 4)
    spoil(service, names[3])
    service.node.store.connection.execute("DELETE FROM log WHERE entity_id = ?", (names[2],))
    service.node.store.connection.execute("DELETE FROM checkpoints WHERE id = ?", (names[2],))
    done = recover(service).document()
    assert (done["checkpoint_id"], done["line_broken"]) == (names[1], True)
    assert done["lost"] == [
        f"device {service.node.store.device_id}: number 3 of this task is missing"
    ]
    assert "The line of parents is broken" in done["prompt"]


@pytest.mark.parametrize("column", ["hlc", "task_id", "parent_id", None])
def test_a_damaged_view_is_made_anew_from_the_log(
    service: CheckpointService, column: str | None
) -> None:
    newest = chain(service, 3)[-1]
    connection = service.node.store.connection
    if column:
        connection.execute(f"UPDATE checkpoints SET {column} = 1 WHERE id = ?", (newest,))
    else:
        connection.execute("DELETE FROM checkpoints WHERE id = ?", (newest,))
    done = recover(service).document()
    assert (done["checkpoint_id"], done["skipped"]) == (newest, [])
    assert done["mended"]
    assert connection.execute("SELECT COUNT(*) FROM problems").fetchone() == (0,)
    assert audit.verify(service.node.store, service.node.key.public()).ok


def test_the_next_checkpoint_follows_the_one_that_was_resumed(
    runner: machines.Runner, service: CheckpointService
) -> None:
    """Else the command in the prompt would fail on what the recovery has passed over."""
    names = chain(service, 2)
    spoil(service, names[1])
    machine = Machine(runner, service.node.home)
    command = recover(service).document()["prompt"].split("checkpoint create ")[1].split("'")[0]
    words = command.split()
    written = machine.ok("checkpoint", "create", *words, "step 2", "--json")
    assert "Skipped" in written.err
    assert written.json()["recovery"]["last_successful_state"] == names[0]
    assert [*written.json()["execution_state"]["completed_items"]] == ["step 0", "step 2"]
    assert recover(service).document()["skipped"] == []


def test_a_task_without_a_checkpoint_cannot_be_recovered(service: CheckpointService) -> None:
    tasks.add(service.node, "t")
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint"):
        recover(service)


# --- with the replica ---------------------------------------------------------------------------


@pytest.fixture
def device(crew: devices.Team) -> Device:
    made = crew.device()
    credentials.keep(made.home, made.dsn)
    made.node.reload()
    return made


@pytest.mark.parametrize("column", ["body", "meta", "chain"])
def test_a_corrupt_checkpoint_is_mended_from_the_replica(device: Device, column: str) -> None:
    names = chain(device.service, 3)
    device.sync()
    before = device.rows("SELECT * FROM log ORDER BY seq")
    spoil(device.service, names[2], column)
    spoil(device.service, names[0], "body")
    done = recover(device.service).document()
    assert (done["checkpoint_id"], done["skipped"]) == (names[2], [])
    assert [mended["entry_id"] for mended in done["mended"]] == [names[2]]
    after = device.rows("SELECT * FROM log ORDER BY seq")
    assert [row for row in after[:3] if row not in before] == [after[0]], "it was not asked for"
    assert "mended" in done["prompt"]
    assert device.rows("SELECT entry_id FROM problems") == []


def test_who_is_refused_learns_what_was_mended_all_the_same(device: Device) -> None:
    names = chain(device.service, 2)
    device.sync()
    spoil(device.service, names[1])
    with pytest.raises(UsageError, match="not zed; 1 damaged entry was mended"):
        recover(device.service, agent="zed")
    with pytest.raises(UsageError, match=r"not zed$"):
        recover(device.service, agent="zed")


def test_a_lost_row_comes_back_from_the_replica(device: Device) -> None:
    names = chain(device.service, 3)
    device.sync()
    device.rows("DELETE FROM log WHERE entity_id IN (?, ?)", *names[1:])
    device.rows("DELETE FROM checkpoints WHERE id = ?", names[2])
    done = recover(device.service).document()
    assert (done["checkpoint_id"], done["skipped"], done["lost"]) == (names[2], [], [])
    assert device.problems() == []


class Liar(Replica):
    """A replica that answers with something else."""

    answer: Callable[[Pulled], Pulled]

    def entry(self, entry_id: str) -> Pulled | None:
        found = super().entry(entry_id)
        return found and Liar.answer(found)


@pytest.mark.parametrize("column", ["body", "meta"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda row: row._replace(body=b'{"made": "up"}'),
        lambda row: row._replace(body=b'{"made": "up"}', hash="0" * 64),
        lambda row: row._replace(chain=bytes(32)),
        lambda row: row._replace(meta=row.meta.replace("ann", "eve")),
    ],
)
def test_the_replica_is_not_believed(
    device: Device, monkeypatch: pytest.MonkeyPatch, column: str, answer: Any
) -> None:
    names = chain(device.service, 2)
    device.sync()
    spoil(device.service, names[1], column)
    Liar.answer = answer
    monkeypatch.setattr(device.node, "replica", lambda: Liar(device.dsn))
    done = recover(device.service).document()
    assert (done["checkpoint_id"], done["mended"]) == (names[0], [])
    assert [gone["checkpoint_id"] for gone in done["skipped"]] == [names[1]]


def test_what_the_replica_made_up_is_not_believed_though_it_fits(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It continues the entry before it; but nothing here has ever met it, and nobody signed it."""
    names = chain(device.service, 2)
    device.sync()
    ((before,),) = device.rows("SELECT chain FROM log WHERE entry_id = ?", names[0])
    spoil(device.service, names[1], "chain")
    device.rows("UPDATE log SET meta = '{}' WHERE entry_id = ?", names[1])

    def made_up(row: Pulled) -> Pulled:
        row = row._replace(meta=row.meta.replace("ann", "eve"), signature=None)
        return row._replace(chain=chain_value(before, header_bytes(row[2:14]), row.hash))

    Liar.answer = made_up
    monkeypatch.setattr(device.node, "replica", lambda: Liar(device.dsn))
    done = recover(device.service).document()
    assert (done["checkpoint_id"], done["mended"]) == (names[0], [])


def test_a_damaged_number_does_not_bring_another_entry_in_its_place(device: Device) -> None:
    names = chain(device.service, 3)
    device.sync()
    (unsent,) = chain(device.service, 1)
    device.rows("UPDATE log SET device_seq = 1 WHERE entry_id = ?", unsent)
    done = recover(device.service).document()
    assert (done["checkpoint_id"], done["mended"]) == (names[2], [])
    assert device.rows("SELECT entry_id FROM log WHERE seq = 4") == [(unsent,)]


def test_offline_it_falls_back_and_says_so(device: Device) -> None:
    names = chain(device.service, 2)
    device.sync()
    spoil(device.service, names[1])
    credentials.keep(device.home, "host=127.0.0.1 port=1 dbname=none user=nobody")
    device.node.reload()
    done = recover(device.service).document()
    assert done["checkpoint_id"] == names[0]
    assert done["replica_unreachable"]
    assert "could not be asked for good copies" in done["prompt"]


# --- no way left --------------------------------------------------------------------------------


def test_without_an_intact_checkpoint_the_task_is_blocked_and_a_person_is_told(
    runner: machines.Runner, service: CheckpointService
) -> None:
    names = chain(service, 2)
    for name in names:
        spoil(service, name)
    result = Machine(runner, service.node.home).run("recover", "t", "--json")
    assert result.code == 5
    done = result.json()
    assert (done["outcome"], done["checkpoint_id"], done["prompt"]) == ("escalated", "", "")
    assert [gone["checkpoint_id"] for gone in done["skipped"]] == names[::-1]
    assert "--restart" in done["escalation"]["decision_needed"]
    assert "has to decide" in result.err
    shown = tasks.show(service.node, "t")
    assert shown["status"] == "blocked"
    assert shown["escalation"]["reason"].startswith("no checkpoint is left")
    (fact,) = facts.concerning(service.node, RECOVERY, "t")
    assert fact.meta["outcome"] == "escalated"


def test_a_restart_is_the_way_on_when_everything_is_corrupt(service: CheckpointService) -> None:
    names = chain(service, 2)
    for name in names:
        spoil(service, name)
    assert recover(service).document()["outcome"] == "escalated"
    done = recover(service, RESTART).document()
    fresh = service.get_checkpoint(done["checkpoint_id"])
    assert done["outcome"] == "resumed"
    assert fresh.recovery.last_successful_state == names[1]
    assert fresh.execution_state.phase == "planning"
    assert fresh.execution_state.completed_items == []
    assert "from scratch, because nothing intact is left" in fresh.recovery.resume_instructions
    shown = tasks.show(service.node, "t")
    assert shown["status"] == "in_progress"
    assert "no checkpoint is left" in shown["resolution"]["original_blocker"]
    (fact,) = facts.every(service.node, AGENT)
    assert fact.meta["state"] == recovery.ABORTED


def test_damaged_words_about_a_task_do_not_keep_anybody_from_calling_for_help(
    service: CheckpointService,
) -> None:
    tasks.add(service.node, "t", title="work", budget=7)
    (name,) = chain(service, 1)
    spoil(service, name)
    service.node.store.connection.execute("UPDATE log SET body = x'7b7d' WHERE entity = 'task'")
    assert recover(service).document()["outcome"] == "escalated"
    assert tasks.show(service.node, "t")["budget"] == 7


# --- from scratch -------------------------------------------------------------------------------


@pytest.mark.parametrize(("minutes", "refused"), [(29.0, False), (30.0, False), (31.0, True)])
def test_much_intact_work_is_put_aside_only_on_request(
    service: CheckpointService, minutes: float, refused: bool
) -> None:
    metrics = {"duration_seconds": minutes * 60}
    resuming.saved(service, metrics=metrics)
    if refused:
        with pytest.raises(WorkAtRiskError, match="31 minutes of intact work"):
            recover(service, RESTART)
    done = recover(service, RESTART, force=refused).document()
    assert "because it was asked for" in done["prompt"]


def test_work_counts_from_the_first_checkpoint_of_the_line(service: CheckpointService) -> None:
    chain(service, 1)
    later(service, 45)
    chain(service, 1)
    record = service.node.store.latest("t")
    assert record
    assert round(recovery.worked_minutes(service.node, record)) == 45


# --- another agent ------------------------------------------------------------------------------


def test_who_gave_a_sign_of_life_is_not_replaced(service: CheckpointService) -> None:
    chain(service, 1)
    with pytest.raises(LeaseHeldError, match="ann gave a sign of life 0 minutes ago"):
        recover(service, TAKEOVER, agent="bob")
    done = recover(service, TAKEOVER, agent="bob", force=True).document()
    assert (done["agent"], done["former_agent"]) == ("bob", "ann")
    assert "ann worked on it before and did not finish; bob takes over" in done["prompt"]
    assert "--agent bob" in done["prompt"]


@pytest.mark.parametrize(("minutes", "refused"), [(29.5, True), (30.5, False)])
def test_who_is_silent_for_half_an_hour_is_replaced(
    service: CheckpointService, minutes: float, refused: bool
) -> None:
    later(service, -minutes)
    chain(service, 1)
    later(service, 0)
    if refused:
        with pytest.raises(LeaseHeldError):
            recover(service, TAKEOVER, agent="bob")
    else:
        assert recover(service, TAKEOVER, agent="bob").tenure
        (fact,) = facts.every(service.node, AGENT)
        assert (fact.meta["who"], fact.meta["state"]) == ("ann", recovery.CRASHED)


def test_a_heartbeat_is_a_sign_of_life(service: CheckpointService) -> None:
    later(service, -60)
    chain(service, 1)
    later(service, 0)
    store = service.node.store
    store.connection.execute(
        "INSERT INTO presence VALUES (?, 'ann', 't', '', '', ?)",
        (store.device_id, clock.wall_ms() - 5 * 60_000),
    )
    with pytest.raises(LeaseHeldError, match="5 minutes ago"):
        recover(service, TAKEOVER, agent="bob")


def test_who_handed_off_need_not_be_waited_for(service: CheckpointService) -> None:
    resuming.saved(service, execution_state={"phase": "handoff"})
    assert recover(service, TAKEOVER, agent="bob").tenure


def test_who_said_that_it_has_ended_need_not_be_waited_for(service: CheckpointService) -> None:
    chain(service, 1)
    presence.heartbeat(service.node, "ann", "t")
    presence.ended(service.node, "ann", "t")
    assert recover(service, TAKEOVER, agent="bob").tenure
    presence.ended(service.node, "bob", "t")
    assert recover(service, TAKEOVER, agent="eve").tenure, "bob wrote nothing, and has ended"


def test_who_came_back_after_the_end_is_waited_for(service: CheckpointService) -> None:
    chain(service, 1)
    presence.ended(service.node, "ann", "t")
    presence.heartbeat(service.node, "ann", "t")
    with pytest.raises(LeaseHeldError, match="ann gave a sign of life"):
        recover(service, TAKEOVER, agent="bob")


def test_who_has_lost_the_task_cannot_go_on_with_it(service: CheckpointService) -> None:
    chain(service, 1)
    recover(service, TAKEOVER, agent="bob", force=True)
    with pytest.raises(LeaseHeldError, match="bob holds it"):
        recover(service, agent="ann")
    assert recover(service, agent="bob").document()["agent"] == "bob"


def test_another_agent_must_say_that_it_takes_over(service: CheckpointService) -> None:
    chain(service, 1)
    with pytest.raises(UsageError, match="ann worked on 't', not bob"):
        recover(service, agent="bob")


def test_who_took_over_and_crashed_at_once_is_replaced_too(service: CheckpointService) -> None:
    (name,) = chain(service, 1)
    recover(service, TAKEOVER, agent="bob", force=True)
    with pytest.raises(LeaseHeldError, match="bob gave a sign of life"):
        recover(service, TAKEOVER, agent="eve")
    done = recover(service, TAKEOVER, agent="eve", force=True).document()
    assert (done["checkpoint_id"], done["former_agent"]) == (name, "bob")
    holder = tenure.holder(service.node, "t")
    assert holder
    assert holder.holder[0] == "eve"


def test_of_two_machines_exactly_one_takes_over(crew: devices.Team) -> None:
    first, *others = crew.device(skew_ms=-HOUR_MS), crew.device(), crew.device()
    chain(first.service, 2)
    crew.settle()
    for device in others:
        credentials.keep(device.home, device.dsn)
        device.node.reload()
    with ThreadPoolExecutor(2) as both:
        started = [both.submit(recover, d.service, TAKEOVER, agent="bob") for d in others]
    failed = [attempt.exception() for attempt in started]
    (lost,) = filter(None, failed)
    assert isinstance(lost, LeaseHeldError)
    winner = others[failed.index(None)].node.store.device_id
    crew.settle()
    for device in crew.devices:
        holder = tenure.holder(device.node, "t")
        assert holder
        assert holder.holder == ("bob", winner)


def test_a_name_is_its_own_on_one_machine_only(crew: devices.Team) -> None:
    first, second = crew.device(), crew.device()
    chain(first.service, 1)
    crew.settle()
    with pytest.raises(LeaseHeldError, match="on another machine"):
        recover(second.service)


# --- again and again ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tried", "now", "state"),
    [
        ([], 0, CLOSED),
        ([1, 2], 3, CLOSED),
        ([1, 2, 3], 3, OPEN),
        ([1, 2, 3], 12, OPEN),
        ([1, 2, 3], 13, HALF_OPEN),
        ([1, 2, 3, 13], 14, OPEN),
        ([1, 2, 3, 13], 23, HALF_OPEN),
    ],
)
def test_the_breaker(tried: list[int], now: int, state: str) -> None:
    assert attempts.paused(tried, 3, 10, now).state == state


def test_three_recoveries_that_bring_nothing_are_followed_by_a_pause(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(service, 1)
    for _ in range(3):
        recover(service)
    for _ in range(2):
        with pytest.raises(RecoveryPausedError, match="3 recoveries in a row") as refused:
            recover(service)
    assert "allowed from" in refused.value.message
    shown = tasks.show(service.node, "t")
    assert (shown["status"], shown["escalation"]["by"]) == ("escalated", attempts.SELF)
    assert len(facts.concerning(service.node, RECOVERY, "t")) == 3, "a refusal is no attempt"
    now = clock.wall_ms()
    monkeypatch.setattr(clock, "wall_ms", lambda: now + HOUR_MS // 2 + 1_000)
    later(service, 31)
    recover(service)
    with pytest.raises(RecoveryPausedError, match="4 recoveries"):
        recover(service)


def test_a_new_checkpoint_ends_the_pause(service: CheckpointService) -> None:
    chain(service, 1)
    for _ in range(3):
        recover(service)
    chain(service, 1)
    assert recover(service).outcome == "resumed"


def test_a_decision_ends_the_pause(service: CheckpointService) -> None:
    chain(service, 1)
    for _ in range(3):
        recover(service)
    tasks.resolve(service.node, "t", "the disk was full", "ann")
    assert recover(service).outcome == "resumed"


def test_restarts_count_although_each_writes_a_checkpoint(service: CheckpointService) -> None:
    chain(service, 1)
    for _ in range(3):
        recover(service, RESTART)
    with pytest.raises(RecoveryPausedError):
        recover(service, RESTART)


# --- the record ---------------------------------------------------------------------------------


def test_every_attempt_is_an_entry_that_says_who_how_and_past_what(
    service: CheckpointService,
) -> None:
    names = chain(service, 2)
    spoil(service, names[1])
    recover(service, TAKEOVER, agent="bob", force=True)
    (fact,) = facts.concerning(service.node, RECOVERY, "t")
    assert fact.meta["checkpoint"] == names[0]
    told = facts.told(service.node, fact)
    assert (told["who"], told["former"]) == ("bob", "ann")
    assert [gone["checkpoint_id"] for gone in told["skipped"]] == [names[1]]


def test_the_command_line(runner: machines.Runner, service: CheckpointService) -> None:
    newest = chain(service, 2)[-1]
    machine = Machine(runner, service.node.home)
    assert "sign of life" in machine.fails(7, "recover", "t", "--takeover")["message"]
    assert machine.ok("recover", "t").out.startswith("# Resume: t")
    assert machine.json("recover", "t", "--max-chars", "300")["checkpoint_id"] == newest
    assert len(machine.ok("recover", "t", "--max-chars", "300").out) <= 300
    assert "exclude" in machine.fails(2, "recover", "t", "--takeover", "--restart")["message"]
    assert machine.fails(7, "recover", "t")["code"] == "recovery_paused"
