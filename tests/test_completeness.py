"""Nothing changes without an entry: every command is driven, and what it changed is held against
the log. A command that is not in the table fails the test."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import machines
import pytest
from machines import Machine

from syncd import tenure
from syncd.cli.app import command_paths
from syncd.node import Node
from syncd.projection import VIEWS

runner = machines.runner
team = machines.team
LOG = "log"
# What a device keeps for itself: no state of any entity, and no part of the record.
ITS_OWN = {
    "attempts", "batches", "devices", "numbers", "presence", "problems", "purges", "quarantine",
    "sources", "state", "working",
}  # fmt: skip


# --- what there is, and what has changed ----------------------------------------------------------


class Snapshot(NamedTuple):
    log: dict[str, tuple[Any, ...]]
    views: dict[str, set[tuple[Any, ...]]]


def snapshot(machine: Machine) -> Snapshot:
    # Where a body lies, and whether it is sealed there, is no change of the entry.
    columns = "entry_id, chain, cloud_seq, batch, effective_hlc, refused, purged, entity, entity_id"
    log = {row[0]: row for row in machine.sql(f"SELECT {columns}, meta FROM log")}
    return Snapshot(log, {view: set(machine.sql(f"SELECT * FROM {view}")) for view in VIEWS})


class Told(NamedTuple):
    """What some entries are about."""

    entries: set[str]
    entities: set[str]
    tasks: set[str]
    agents: set[tuple[str, str]]


def told_by(rows: list[tuple[Any, ...]]) -> Told:
    metas = [json.loads(row[-1]) for row in rows]
    purged = {name for meta in metas for name in meta.get("entries", [])}
    return Told(
        {row[0] for row in rows} | purged,
        {row[-2] for row in rows},
        {meta["task_id"] for meta in metas},
        {(meta["agent"], meta["task_id"]) for meta in metas if "agent" in meta},
    )


def unaccounted(before: Snapshot, after: Snapshot, rows: list[tuple[Any, ...]]) -> list[Any]:
    """The rows of views that have changed and that none of these entries is about."""
    told = told_by(rows)
    accounts: dict[str, Callable[[tuple[Any, ...]], bool]] = {
        "checkpoints": lambda row: row[0] in told.entities,
        "tasks": lambda row: row[0] in told.tasks,
        "participants": lambda row: row[:2] in told.agents,
        "links": lambda row: f"{row[1]}:{row[0]}" in told.entities,
        "fences": lambda row: row[0] in told.tasks,
        "conflicts": lambda row: row[3] in told.entities or bool({row[5], row[6]} & told.entries),
    }
    return [
        (view, row)
        for view in VIEWS
        for row in before.views[view] ^ after.views[view]
        if not accounts[view](row)
    ]


# --- the table ------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """Two machines with a replica, and a checkpoint that both have."""

    team: machines.Team
    one: Machine
    two: Machine
    shared: str
    place: Path


class Step(NamedTuple):
    """How a command is driven, and what it may do to the views."""

    rule: str
    words: Callable[[Stage], tuple[str, ...]]


WRITES = "changes views, and writes entries about what it changed"
EXCHANGES = "changes views by entries of others, or by what the replica said about ours"
TELLS = "changes no view, and writes an entry: what it says takes effect later, or on other tables"
QUIET = "changes no view"
READS = "changes neither views nor log, and nothing that another command depends on"


def writes(words: Callable[[Stage], tuple[str, ...]]) -> Step:
    return Step(WRITES, words)


def quiet(*words: str) -> Step:
    return Step(QUIET, lambda _: words)


def reads(*words: str) -> Step:
    return Step(READS, lambda _: words)


def conflicting(stage: Stage) -> str:
    """Both change the same checkpoint; the id of the conflict."""
    stage.two.update(stage.shared, "theirs")
    stage.one.update(stage.shared, "ours")
    stage.team.settle(stage.one, stage.two)
    (conflict,) = stage.one.json("conflicts", "list")
    return str(conflict["id"])


def refused(stage: Stage) -> str:
    """An entry that the replica does not take."""
    limit = "UPDATE syncd.organizations SET body_limit = %s"
    stage.team.sql(limit, 2_000)
    entry_id = stage.one.create("large", "--pending", "x" * 4_000)
    stage.one.sync()
    stage.team.sql(limit, 4_000_000)
    return entry_id


def expired(stage: Stage) -> tuple[str, ...]:
    stage.one.update(stage.shared, "newer")
    stage.one.ok("task", "set", "t", "--retention", "revisions:1")
    stage.one.sync()
    return ("retention", "run")


def elsewhere(stage: Stage) -> None:
    """Both sides have something that the other has not."""
    stage.two.update(stage.shared, "theirs")
    stage.two.create("new task")
    stage.two.sync()
    stage.one.update(stage.shared, "ours")


def exchanging(*words: str) -> Step:
    def prepared(stage: Stage) -> tuple[str, ...]:
        elsewhere(stage)
        return words

    return Step(EXCHANGES, prepared)


def branching(stage: Stage) -> tuple[str, ...]:
    """The other's branch is here; this one becomes the second when the replica has it."""
    stage.two.create("t")
    stage.two.sync()
    stage.one.create("t")
    stage.one.ok("sync", "--pull-only")
    return ("flush",)


def restoring(stage: Stage) -> tuple[str, ...]:
    name = stage.one.json("backup", "create")["name"]
    stage.one.create("since then")
    return ("backup", "restore", name)


def key_of_another(stage: Stage) -> tuple[str, ...]:
    stage.two.ok("keys", "encrypt", "--mode", "end_to_end")
    stage.two.ok("keys", "export", "--output", str(stage.place / "key"))
    return ("keys", "import", str(stage.place / "key"))


def sealed_first(*words: str) -> Step:
    def prepared(stage: Stage) -> tuple[str, ...]:
        stage.one.ok("keys", "encrypt", "--mode", "end_to_end")
        return tuple(word.replace("PLACE", str(stage.place)) for word in words)

    return Step(QUIET, prepared)


def a_bundle(stage: Stage) -> tuple[str, ...]:
    return ("audit", "export", "t", "--output", str(stage.place / "bundle"))


def two_heads(stage: Stage) -> tuple[str, ...]:
    """The older one is chosen."""
    left = stage.one.create("t", "--parent", stage.shared)
    stage.one.create("t", "--parent", stage.shared)
    return ("task", "choose", "t", left)


def linking(stage: Stage) -> tuple[str, ...]:
    return ("checkpoint", "link", stage.one.create("u"), stage.shared)


def offered(stage: Stage) -> str:
    return str(stage.one.json("handoff", "request", "--task", "t")["id"])


def accepted(stage: Stage) -> str:
    handoff = offered(stage)
    stage.one.ok("handoff", "accept", handoff, "--agent", "bob")
    return handoff


MESSAGE = ("message", "send", "--to", "ann", "--task", "t")


def an_import(stage: Stage) -> tuple[str, ...]:
    file = stage.place / "ann.json"
    file.write_text('{"agent_id": "ann", "feature": "f", "last_checkpoint": "2026-01-15T14:30Z"}')
    return ("import", "agent-json", str(file))


CREATE = ("checkpoint", "create", "--task", "another", "--agent", "bob", "--pending", "x")
STEPS: dict[str, Step] = {
    "checkpoint create": writes(lambda s: CREATE),
    "checkpoint update": writes(
        lambda s: ("checkpoint", "update", s.shared, "--completed", "x", "--agent", "bob")
    ),
    "checkpoint finalize": writes(lambda s: ("checkpoint", "finalize", s.shared)),
    "checkpoint link": writes(linking),
    "task add": writes(lambda s: ("task", "add", "described", "--title", "x")),
    "task set": writes(lambda s: ("task", "set", "t", "--retention", "days:3")),
    "import": writes(an_import),
    "export": Step(READS, lambda s: ("export", "markdown", str(s.place), "--task", "t")),
    "handoff request": writes(lambda s: ("handoff", "request", "--task", "t")),
    "handoff accept": Step(
        EXCHANGES, lambda s: ("handoff", "accept", offered(s), "--agent", "bob")
    ),
    "handoff acknowledge": Step(TELLS, lambda s: ("handoff", "acknowledge", accepted(s))),
    "handoff list": reads("handoff", "list"),
    "task escalate": writes(
        lambda s: ("task", "escalate", "t", "--to", "x", "--reason", "y", "--decision", "z")
    ),
    "task resolve": writes(lambda s: ("task", "resolve", "t", "--resolution", "x")),
    "task defer": writes(lambda s: ("task", "defer", "t")),
    "task choose": writes(two_heads),
    "recover": Step(TELLS, lambda s: ("recover", "t")),
    "recover --takeover": writes(
        lambda s: ("recover", "--takeover", "--agent", "bob", "--force", "t")
    ),
    "recover --restart": writes(lambda s: ("recover", "--restart", "t")),
    "conflicts restore": writes(lambda s: ("conflicts", "restore", conflicting(s))),
    "conflicts dismiss": writes(lambda s: ("conflicts", "dismiss", conflicting(s))),
    "quarantine retry": writes(lambda s: ("quarantine", "retry", refused(s))),
    "quarantine drop": Step(QUIET, lambda s: ("quarantine", "drop", refused(s))),
    # A purge takes effect once the replica has accepted it.
    "erase": Step(TELLS, lambda s: ("erase", s.shared, "--yes")),
    "retention run": Step(TELLS, expired),
    "sync": exchanging("sync"),
    "flush": Step(EXCHANGES, branching),
    "prove": exchanging("prove", "--repair"),
    "backup restore": Step("goes back to an earlier log", restoring),
    "backup create": reads("backup", "create"),
    "backup list": reads("backup", "list"),
    "rebuild": reads("rebuild"),
    "checkpoint show": Step(READS, lambda s: ("checkpoint", "show", s.shared)),
    "checkpoint latest": reads("checkpoint", "latest", "t"),
    "checkpoint history": reads("checkpoint", "history", "t"),
    "checkpoint list": reads("checkpoint", "list"),
    "checkpoint search": reads("checkpoint", "search", "x"),
    "checkpoint diff": Step(READS, lambda s: ("checkpoint", "diff", s.shared, s.shared)),
    "message send": Step(TELLS, lambda s: (*MESSAGE, "look")),
    "message ack": Step(
        TELLS, lambda s: ("message", "ack", s.one.json(*MESSAGE, "look")["id"], "--agent", "ann")
    ),
    "heartbeat": quiet("heartbeat", "--agent", "ann", "--task", "t", "--session", "s"),
    # The agent wrote the task's newest checkpoint: that it has ended is worth an entry.
    "heartbeat --ended": Step(TELLS, lambda s: ("heartbeat", "--ended", "--agent", "ann")),
    # Without an event on standard input it has nothing to tell; what an event writes, it writes
    # through the same functions as `checkpoint create` and `heartbeat`.
    "hook": reads("hook", "claude-code"),
    "agents": reads("agents", "--all"),
    "inbox": reads("inbox", "ann"),
    "invocations": reads("invocations"),
    "task list": reads("task", "list"),
    "task heads": reads("task", "heads", "t"),
    "resume": reads("resume", "t"),
    "task show": reads("task", "show", "t"),
    "audit list": reads("audit", "list"),
    "audit verify": reads("audit", "verify", "--cloud"),
    "audit export": Step(READS, a_bundle),
    "explain": Step(READS, lambda s: ("explain", s.shared)),
    "conflicts list": reads("conflicts", "list"),
    "conflicts show": Step(QUIET, lambda s: ("conflicts", "show", conflicting(s))),
    "quarantine list": reads("quarantine", "list"),
    "keys show": reads("keys", "show"),
    "keys encrypt": quiet("keys", "encrypt"),
    "keys decrypt": sealed_first("keys", "decrypt"),
    "keys rotate": sealed_first("keys", "rotate"),
    "keys rotate --signing": Step(TELLS, lambda s: ("keys", "rotate", "--signing")),
    "keys export": sealed_first("keys", "export", "--output", "PLACE/key"),
    "keys import": Step(QUIET, key_of_another),
    "login": Step(QUIET, lambda s: ("login", s.team.login())),
    "logout": quiet("logout"),
    "device add": quiet("device", "add", "desktop"),
    "device list": reads("device", "list"),
    "device rename": quiet("device", "rename", "laptop", "desktop"),
    "device revoke": quiet("device", "revoke", "laptop"),
    "init": reads("init"),
    "config": reads("config"),
    "doctor": reads("doctor"),
    "stats": reads("stats"),
    "status": reads("status"),
    "completion": reads("completion", "bash"),
    "stop": reads("stop"),
}  # fmt: skip
# These need what this test should not start. What they write of entities, they write through the
# same functions as the commands above.
NOT_DRIVEN = {
    "the daemon: sync, retention and backups": ("run", "start", "restart", "logs"),
    "the daemon in the hands of another": ("service install", "service status",
                                           "service uninstall"),
    "homes of its own, removed afterwards": ("demo",),
    "whatever command it is given": ("loop",),
    "as import does, until it is stopped": ("watch",),
    "the same functions, as tools": ("mcp",),
    "settings of other programs": ("setup",),
    "as conflicts restore and dismiss do, until it is stopped": ("ui",),
    "the embedded PostgreSQL": ("cloud try", "cloud up", "cloud down", "cloud status"),
    "the replica's tables, no home": (
        "cloud migrate", "admin org create", "admin org list", "admin member add",
        "admin member list", "admin member remove", "admin member reset", "admin device add",
        "admin device list", "admin device revoke", "admin roles sync", "admin recovery open",
        "admin recovery close", "admin distribute", "admin fleet", "admin tasks", "admin cost",
        "admin segments", "admin stale", "admin conflicts", "admin audit", "admin growth",
        "admin days", "admin handoffs", "admin query",
    ),
}  # fmt: skip


# --- the tests ------------------------------------------------------------------------------------


def test_every_command_is_in_the_table() -> None:
    left = [name for names in NOT_DRIVEN.values() for name in names]
    listed = {f"syncd {name.partition(' --')[0]}" for name in (*STEPS, *left)}
    assert listed == set(command_paths())


def test_every_table_is_the_log_or_a_view_or_the_devices_own(
    runner: machines.Runner, tmp_path: Path
) -> None:
    machine = Machine(runner, tmp_path / "machine")
    machine.ok("init")
    tables = {row[0] for row in machine.sql("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {name for name in tables if not name.startswith(("sqlite_", "_sqlite_"))} == {
        LOG, *VIEWS, *ITS_OWN}  # fmt: skip


@pytest.fixture
def stage(team: machines.Team, tmp_path: Path) -> Stage:
    one, two = team.machine(), team.machine()
    shared = one.create("t", "--pending", "x")
    team.settle(one, two)
    return Stage(team, one, two, shared, tmp_path)


def test_reading_changes_nothing(stage: Stage) -> None:
    before = snapshot(stage.one)
    for name, step in STEPS.items():
        if step.rule == READS:
            words = step.words(stage)
            assert " ".join(words).startswith(name)
            result = stage.one.run(*words)
            assert result.code in (0, 3), result
            assert snapshot(stage.one) == before, name


@pytest.mark.parametrize("name", [name for name, step in STEPS.items() if step.rule != READS])
def test_no_view_changes_without_an_entry_that_says_so(stage: Stage, name: str) -> None:
    step = STEPS[name]
    words = step.words(stage)
    assert " ".join(words).startswith(name)
    before = snapshot(stage.one)
    result = stage.one.run(*words)
    assert result.code in (0, 3), result
    after = snapshot(stage.one)
    new = [row for entry_id, row in after.log.items() if entry_id not in before.log]
    placed = [row for row in after.log.values() if row not in before.log.values()]
    if step.rule == WRITES:
        assert new
        assert before.views != after.views, "the command is driven to some effect"
        assert unaccounted(before, after, new) == []
    elif step.rule == EXCHANGES:
        assert before.views != after.views
        assert unaccounted(before, after, placed) == []
    elif step.rule in (TELLS, QUIET):
        assert before.views == after.views
        assert bool(new) == (step.rule == TELLS)
    assert before.log.keys() <= after.log.keys() or name == "backup restore"
    if before.views != after.views:
        reproduced(stage.one, stage.place / "copy")


def reproduced(machine: Machine, place: Path) -> None:
    """The views, made anew from nothing but the log, are the same."""
    wanted = snapshot(machine).views
    copy = machine.copied_to(place)
    with closing(sqlite3.connect(copy.home / "context.db", isolation_level=None)) as database:
        for view in VIEWS:
            database.execute(f"DELETE FROM {view}")
    assert not copy.json("rebuild")["equal"]
    assert snapshot(copy).views == wanted
    shutil.rmtree(copy.home)


def test_a_purge_changes_views_only_by_its_entry(stage: Stage) -> None:
    """A conflict whose loser was erased is closed on both machines, by the entry that both have."""
    conflicting(stage)
    stage.one.ok("erase", stage.shared, "--yes")
    for machine in (stage.one, stage.two):
        before = snapshot(machine)
        machine.sync()
        after = snapshot(machine)
        assert {row[8] for row in after.views["conflicts"]} == {"purged"}
        placed = [row for row in after.log.values() if row not in before.log.values()]
        assert unaccounted(before, after, placed) == []
        assert any(row[7] == "purge" for row in after.log.values())
        reproduced(machine, stage.place / "copy")


def test_a_view_that_is_changed_behind_the_log_is_noticed(stage: Stage) -> None:
    """The comparison itself: each view, changed by hand."""
    stage.one.ok("task", "set", "t", "--title", "described")
    stage.one.ok("checkpoint", "link", stage.one.create("u"), stage.shared)
    conflicting(stage)
    tenure.take(Node(stage.one.home), "t", stage.shared, "bob", ("ann", "elsewhere"), 0)
    before = snapshot(stage.one)
    for view in VIEWS:
        assert before.views[view], view
        stage.one.sql(f"CREATE TABLE kept AS SELECT * FROM {view}")
        stage.one.sql(f"DELETE FROM {view}")
        found = unaccounted(before, snapshot(stage.one), [])
        assert {name for name, _ in found} == {view}
        stage.one.sql(f"INSERT INTO {view} SELECT * FROM kept")
        stage.one.sql("DROP TABLE kept")
