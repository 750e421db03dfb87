"""The log as people ask for it: by task, agent, device, time and kind."""

from __future__ import annotations

from pathlib import Path

import machines
import pytest
from devices import Device, Team, cloud, crew
from machines import Machine

from syncd import CheckpointService, tasks, trail
from syncd.errors import CheckpointNotFoundError, DatabaseCorruptError, UsageError

__all__ = ["cloud", "crew"]

runner = machines.runner


def wrote(device: Device, task: str) -> str:
    return device.service.create_checkpoint(task, "agent").metadata.checkpoint_id


@pytest.fixture
def machine(runner: machines.Runner, tmp_path: Path) -> Machine:
    return Machine(runner, tmp_path / "machine")


def test_the_log_can_be_asked_by_task_agent_device_time_and_kind(
    service: CheckpointService,
) -> None:
    store = service.node.store
    one = service.create_checkpoint("alpha", "ann").metadata.checkpoint_id
    two = service.create_checkpoint("beta", "bob").metadata.checkpoint_id
    service.finalize_checkpoint(one)
    service.link_checkpoints(one, two)
    tasks.add(service.node, "beta", title="b")

    def found(limit: int = 99, **question: str | None) -> list[int]:
        wanted = trail.asked(store, question.pop("since", None), question.pop("until", None),
                             **question)  # fmt: skip
        return [entry["cursor"] for entry in trail.listed(store, wanted, limit)]

    assert found() == [5, 4, 3, 2, 1]
    assert found(limit=2) == [5, 4]
    assert found(task="alpha") == [3, 1]
    assert found(task="beta", limit=1) == [5]
    assert found(agent="ann") == [3, 1]
    assert found(agent="bob") == [2]
    store.connection.execute("UPDATE log SET actor = 'carol' WHERE seq = 2")
    assert found(agent="bob") == found(agent="carol") == [2], "carol did it in bob's name"
    assert found(entity="checkpoint") == [3, 2, 1]
    assert found(op="create") == [5, 4, 2, 1]
    assert found(entity="checkpoint", op="create", agent="ann") == [1]
    assert found(device=store.device_id[:13]) == [5, 4, 3, 2, 1]
    assert found(device=store.device_id, task="beta") == [5, 4, 2]
    with pytest.raises(CheckpointNotFoundError, match="no device"):
        found(device="00000000")
    at = [row[0] for row in store.connection.execute("SELECT at FROM log ORDER BY seq")]
    assert found(since=at[2]) == [n for n in (5, 4, 3, 2, 1) if at[n - 1] >= at[2]]
    assert found(until=at[2]) == [n for n in (5, 4, 3, 2, 1) if at[n - 1] < at[2]]
    assert found(since="2999-01-01T00:00:00Z") == found(until="1960-01-01T00:00:00Z") == []


def test_only_what_a_device_wrote_is_listed(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    mine, theirs = wrote(one, "task"), wrote(two, "task")
    crew.settle()
    for device, entry_id in ((one, mine), (two, theirs)):
        wanted = trail.asked(one.node.store, None, None, device=device.node.store.device_id)
        assert [e["entry_id"] for e in trail.listed(one.node.store, wanted, 9)] == [entry_id]
    store = one.node.store
    with pytest.raises(UsageError, match="more than one"):
        trail.asked(store, None, None, device=store.device_id[:6])


def test_the_list_is_an_array_for_scripts_and_a_table_for_people(machine: Machine) -> None:
    checkpoint_id = machine.create("task")
    machine.ok("checkpoint", "finalize", checkpoint_id)
    (entry,) = machine.json("audit", "list", "--op", "finalize", "--agent", "ann", "--limit", "5",
                            "--since", "2020-01-01T00:00:00Z")  # fmt: skip
    assert (entry["entity_id"], entry["signed"]) == (checkpoint_id, True)
    assert entry["meta"]["task_id"] == "task"
    assert machine.json("audit", "list", "--until", "2020-01-01T00:00:00Z") == []
    assert f"finalize checkpoint {checkpoint_id}" in machine.ok("audit", "list").out
    machine.fails(2, "audit", "list", "--since", "yesterday")
    machine.fails(4, "audit", "list", "--device", "ffff")


def test_damage_does_not_keep_the_rest_from_being_listed(service: CheckpointService) -> None:
    for _ in range(3):
        service.create_checkpoint("task", "ann")
    store = service.node.store
    store.connection.execute("UPDATE log SET meta = 'damaged' WHERE seq = 1")
    store.connection.execute("UPDATE log SET meta = '[]' WHERE seq = 2")
    found = trail.listed(store, trail.asked(store, None, None), 9)
    assert [entry["meta"].get("agent") for entry in found] == ["ann", None, None]
    store.connection.execute("UPDATE log SET actor = CAST(x'ff' AS TEXT) WHERE seq = 2")
    with pytest.raises(DatabaseCorruptError):
        trail.listed(store, trail.asked(store, None, None), 9)
