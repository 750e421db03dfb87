"""LangGraph's checkpoints in the log: what LangGraph demands of a saver, and what syncd promises of
everything that it keeps."""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import operator
import os
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import devices
import pytest
from click.testing import CliRunner
from counts import full
from devices import Team
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from syncd import CheckpointService, ExecutionState, projection, tasks
from syncd.audit import verify
from syncd.cli.app import syncd
from syncd.errors import CheckpointNotFoundError, GraphDamagedError, InvalidInputError
from syncd.graphs import LARGE
from syncd.langgraph import SyncdSaver
from syncd.node import Node

cloud = devices.cloud
crew = devices.crew
LARGE_BYTES = full(5_000_000, 100_000_000)


@pytest.fixture
def saver(home: Path) -> Iterator[SyncdSaver]:
    with SyncdSaver(home=home) as opened:
        yield opened


def at(thread: str = "t", checkpoint_id: str = "", namespace: str = "") -> Any:
    found = {"thread_id": thread, "checkpoint_ns": namespace}
    return {
        "configurable": {**found, **({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}
    }


def state(checkpoint_id: str = "", **values: Any) -> Checkpoint:
    made = empty_checkpoint()
    return {**made, "id": checkpoint_id or made["id"], "channel_values": values}


def put(saver: BaseCheckpointSaver[Any], config: Any, checkpoint: Checkpoint, **said: Any) -> Any:
    metadata: CheckpointMetadata = {"source": "loop", "step": 1, "parents": {}}
    return saver.put(config, checkpoint, {**metadata, **said}, {})  # type: ignore[typeddict-item]


def ids(saver: BaseCheckpointSaver[Any], config: Any, **options: Any) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(config, **options)]


def newest(saver: SyncdSaver, thread: str = "t") -> CheckpointTuple:
    found = saver.get_tuple(at(thread))
    assert found is not None
    return found


def sound(node: Node) -> None:
    """Every hash, chain link, number and view row is what it should be."""
    assert verify(node.store, node.key.public()).problems == []
    assert projection.rebuild(node.store) == []


# --- what LangGraph demands -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["none", "at_rest", "end_to_end"])
def test_all_eight_capabilities_are_detected_and_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("SYNCD_ENCRYPTION", mode)

    async def made() -> AsyncIterator[SyncdSaver]:
        with SyncdSaver(home=tmp_path / uuid.uuid4().hex) as opened:
            yield opened
            sound(opened.node)

    report = asyncio.run(validate(checkpointer_test(name=mode)(made)))
    found = {name: (result.detected, result.passed) for name, result in report.results.items()}
    assert found == {each.value: (True, True) for each in Capability}
    assert len(found) == 8


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
_channels = st.dictionaries(st.sampled_from(["a", "b", "é/~%", "large"]), _values, max_size=3)
_steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "write", "special", "delete"]),
        st.integers(0, 99), st.integers(0, 2), st.integers(0, 3), _channels,
    ),
    max_size=14,
)  # fmt: skip


@given(_steps)
@settings(max_examples=full(40, 1_000))
def test_whatever_is_put_is_found_as_in_memory(shared: SyncdSaver, steps: list[Any]) -> None:
    """Against LangGraph's own saver, which is the model."""
    model = InMemorySaver()
    thread, known = uuid.uuid4().hex, list[str]()
    for number, (what, chosen, namespace, task, channels) in enumerate(steps):
        where = at(
            thread, known[chosen % len(known)] if known else "", ["", "x", "x|y/~"][namespace]
        )
        if what == "put":
            made = state(f"{number:04}-{chosen:02}", **channels)
            made["channel_versions"] = {name: f"{number}.{name}" for name in channels}
            known.append(made["id"])
            for each in (shared, model):
                metadata: Any = {"source": "loop", "step": number, "kind": chosen % 2}
                each.put(where, made, metadata, made["channel_versions"])
        elif what == "delete":
            shared.delete_thread(thread)
            model.delete_thread(thread)
        elif known:
            special = [(ERROR, "e"), (INTERRUPT, channels)][: 1 + task % 2]
            writes = special if what == "special" else list(channels.items())
            for each in (shared, model):
                each.put_writes(where, writes, f"task {task % 2}", f"~{task}")
    everywhere: Any = {"configurable": {"thread_id": thread}}
    for config in (at(thread), at(thread, namespace="x"), everywhere):
        for options in ({}, {"limit": 2}, {"filter": {"kind": 1}}, {"before": at(thread, "0005")}):
            ours, theirs = shared.list(config, **options), model.list(config, **options)
            if "checkpoint_ns" in config["configurable"]:
                assert [*map(told, ours)] == [*map(told, theirs)]
            elif "limit" not in options:  # in memory, one namespace comes after the other
                assert sorted(map(told, ours), key=_place) == sorted(map(told, theirs), key=_place)
        assert told(shared.get_tuple(config)) == told(model.get_tuple(config))
    for name in known:
        assert told(shared.get_tuple(at(thread, name))) == told(model.get_tuple(at(thread, name)))


def told(found: CheckpointTuple | None) -> Any:
    if found is None:
        return None
    where = found.config["configurable"]
    before = found.parent_config and found.parent_config["configurable"]
    return where, found.checkpoint, found.metadata, before, found.pending_writes


def _place(found: Any) -> tuple[str, ...]:
    return tuple(found[0].values())


@pytest.fixture(scope="module")
def shared() -> Iterator[SyncdSaver]:
    with devices.folder() as place, SyncdSaver(home=place / "home") as opened:
        yield opened
        sound(opened.node)


def test_what_a_channel_is_worked_out_from_is_found_and_outlives_pruning(saver: SyncdSaver) -> None:
    """A channel that keeps differences: each state names what it has of them."""
    memory, last = InMemorySaver(), dict[Any, Any]()
    for each in (saver, memory):
        config = at()
        for step in range(6):
            made = state(f"{step}", **({"log": ["seed"]} if step == 2 else {}), other=step)
            made["channel_versions"] = dict.fromkeys(made["channel_values"], f"{step}")
            counters = {"log": (step, step)}
            said: Any = {"source": "loop", "step": step, "counters_since_delta_snapshot": counters}
            config = each.put(config, made, said, made["channel_versions"])
            each.put_writes(config, [("log", f"{step} b")], "task b", "~b")
            each.put_writes(config, [("log", f"{step} a")], "task c", "~a")
        last[each] = config

    def history(each: BaseCheckpointSaver[Any]) -> Any:
        return each.get_delta_channel_history(config=last[each], channels=["log", "none"])

    assert history(saver) == history(memory)
    assert history(saver)["log"]["seed"] == ["seed"]
    saver.prune(["t"])
    assert ids(saver, at()) == ["5", "4", "3", "2"]
    assert asyncio.run(saver.aget_delta_channel_history(config=last[saver], channels=["log"])) == {
        "log": history(memory)["log"]
    }
    with pytest.raises(InvalidInputError):
        saver.prune(["t"], strategy="keep latest")


# --- a graph on two machines ----------------------------------------------------------------------


class Work(TypedDict):
    done: Annotated[list[str], operator.add]


def graph(saver: SyncdSaver, ran: Path) -> Any:
    """Four steps; each leaves a trace. The second one never ends on a machine that is to crash, and
    the third one has a question."""

    def step(name: str) -> dict[str, list[str]]:
        with ran.open("a") as file:
            file.write(f"{name}\n")
        return {"done": [name]}

    def second(_: Work) -> dict[str, list[str]]:
        while os.environ.get("CRASH"):
            ran.with_suffix(".reached").touch()
            time.sleep(60)
        return step("second")

    def third(_: Work) -> dict[str, list[str]]:
        answer = interrupt("Which colour?")
        return step(f"third, {answer}")

    builder: Any = StateGraph(Work)
    builder.add_node("first", lambda _: step("first"))
    builder.add_node("second", second)
    builder.add_node("third", third)
    builder.add_node("fourth", lambda _: step("fourth"))
    for before, after in (
        (START, "first"), ("first", "second"), ("second", "third"), ("third", "fourth"),
        ("fourth", END),
    ):  # fmt: skip
        builder.add_edge(before, after)
    return builder.compile(checkpointer=saver)


def crash(home: Path, ran: Path) -> None:
    """Run the graph in a process of its own, and kill that in the second step."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(home), str(ran)], env={**os.environ, "CRASH": "1"}
    )
    reached, deadline = ran.with_suffix(".reached"), time.monotonic() + 60
    while not reached.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert reached.exists()


def test_a_graph_that_was_killed_goes_on_at_another_machine(crew: Team, tmp_path: Path) -> None:
    ann, bob = crew.device(), crew.device()
    ran, config = tmp_path / "ran", {"configurable": {"thread_id": "a/thread %"}}
    crash(ann.home, ran)
    ann.sync()
    bob.sync()
    saver = SyncdSaver(node=bob.node)
    there = graph(saver, ran)
    asked = there.invoke(None, config)
    assert ran.read_text().splitlines() == ["first", "second"]
    assert asked["__interrupt__"][0].value == "Which colour?"
    bob.sync()
    ann.sync()
    here = graph(SyncdSaver(node=ann.node), ran)
    done = here.invoke(Command(resume="green"), config)
    assert done["done"] == ["first", "second", "third, green", "fourth"]
    crew.settle()
    assert there.get_state(config).values == done
    [past] = [found for found in there.get_state_history(config) if found.next == ("second",)]
    there.invoke(None, past.config)  # time travel
    again = there.invoke(Command(resume="red"), config)
    assert again["done"] == ["first", "second", "third, red", "fourth"]
    crew.settle()
    assert here.get_state(config).values == again
    assert ran.read_text().splitlines() == [
        "first", "second", "third, green", "fourth", "second", "third, red", "fourth",
    ]  # fmt: skip
    for device in (ann, bob):
        assert device.problems() == []
        assert device.proof().ok
        [task] = tasks.everything(device.node)
        assert task["id"] == "a/thread %"
        assert task["states"]["count"] == len([*there.get_state_history(config)])
        assert projection.rebuild(device.node.store) == []


def test_two_machines_at_once_both_are_kept_and_all_agree_on_the_last(crew: Team) -> None:
    ann, bob = crew.device(), crew.device()
    savers = [SyncdSaver(node=device.node) for device in (ann, bob)]
    start = put(savers[0], at(), state("1", said="start"))
    crew.settle()
    for number, saver in enumerate(savers):
        config = start
        for step in range(3):
            config = put(saver, config, state(f"2{step}{number}", said=number))
            saver.put_writes(config, [("said", number)], "task")
    put(savers[0], start, state("shared id", said="ann"))
    put(savers[1], start, state("shared id", said="bob"))
    crew.settle()
    assert ids(savers[0], at()) == ids(savers[1], at())
    assert ids(savers[0], at()) == ["shared id", "221", "220", "211", "210", "201", "200", "1"]
    assert newest(savers[0]) == newest(savers[1])
    assert newest(savers[0]).checkpoint["channel_values"] == {"said": "bob"}
    assert len(ann.rows("SELECT 1 FROM log WHERE entity_id LIKE '%shared id'")) == 2
    assert [device.problems() for device in (ann, bob)] == [[], []]


def test_what_follows_a_state_comes_after_it_though_the_clock_is_behind(crew: Team) -> None:
    """Ids are made from clocks: one that is behind must not hide what its machine does."""
    ann, bob = crew.device(), crew.device()
    ahead, behind = SyncdSaver(node=ann.node), SyncdSaver(node=bob.node)
    config = put(ahead, at(), state("500"))
    config = put(ahead, config, state("510"))
    crew.settle()
    for number in (301, 302, 300, 303):
        config = put(behind, config, state(str(number)))
        behind.put_writes(config, [("said", number)], "task")
        assert newest(behind).checkpoint["id"] == str(number)
    crew.settle()
    for saver in (ahead, behind):
        assert ids(saver, at()) == ["303", "300", "302", "301", "510", "500"]
        assert ids(saver, at(), before=at(checkpoint_id="302")) == ["301", "510", "500"]
        [(_, _, said)] = saver.get_tuple(at(checkpoint_id="302")).pending_writes  # type: ignore[union-attr,misc]
        assert said == 302
    put(ahead, at(checkpoint_id="303"), state("520"))
    assert newest(ahead).checkpoint["id"] == "520"
    behind.prune(["t"])
    assert ids(behind, at()) == ["303"]


# --- deletion -------------------------------------------------------------------------------------


def test_what_is_deleted_is_hidden_everywhere_and_stays_in_the_log(crew: Team) -> None:
    ann, bob = crew.device(), crew.device()
    here, there = SyncdSaver(node=ann.node), SyncdSaver(node=bob.node)
    first = put(here, at(), state("1", large=b"x" * 2 * LARGE), run_id="r1")
    here.put_writes(first, [("a", 1)], "task")
    put(here, first, state("2"), run_id="r2")
    put(here, at("other"), state("1"), run_id="r2")
    crew.settle()
    there.delete_for_runs(["r2"])
    assert ids(there, None) == ["1"]
    there.delete_thread("t")
    put(there, at(), state("1", large=b"x" * 2 * LARGE))
    crew.settle()
    for saver in (here, there):
        assert ids(saver, None) == ["1"]
        assert newest(saver).checkpoint["channel_values"] == {"large": b"x" * 2 * LARGE}
        assert newest(saver).pending_writes == []
        assert saver.get_tuple(at("other")) is None
    assert ann.rows("SELECT count(*) FROM log WHERE entity = 'graph'") == [(4,)]
    assert tasks.show(ann.node, "other")["states"] == {"count": 0, "last_at": ""}
    assert [device.problems() for device in (ann, bob)] == [[], []]
    here.delete_thread("never was")
    assert ann.rows("SELECT 1 FROM tasks WHERE id = 'never was'") == []


# --- large values ---------------------------------------------------------------------------------


def test_a_large_value_is_stored_once_and_arrives_whole(crew: Team) -> None:
    ann, bob = crew.device(), crew.device()
    saver = SyncdSaver(node=ann.node)
    value, config = os.urandom(LARGE_BYTES), at()
    for step in range(3):
        config = put(saver, config, state(f"{step}", large=value, step=step))
    saver.put_writes(config, [("large", value), ("small", 1)], "task")
    saver.copy_thread("t", "copy")
    [(stored, longest)] = ann.rows(
        "SELECT sum(length(body)), max(length(body)) FROM log WHERE entity_id LIKE 't/%'"
    )
    assert LARGE_BYTES < stored < 1.4 * LARGE_BYTES
    assert longest <= ann.node.settings["limits.body_bytes"] + 64
    crew.settle()
    assert bob.proof().ok
    there = SyncdSaver(node=bob.node)
    for found in (newest(there), newest(there, "copy")):
        assert found.checkpoint["channel_values"] == {"large": value, "step": 2}
        assert found.pending_writes == [("task", "large", value), ("task", "small", 1)]


def test_a_limit_on_bodies_holds_for_states_too(home: Path) -> None:
    home.mkdir()
    (home / "config.toml").write_text("limits.body_bytes = 4000\n")
    values = {f"channel {number}": "\0é" * 200 for number in range(100)}
    with SyncdSaver(home=home) as saver:
        config = put(saver, at(), state("1", **values, large="x" * 50_000))
        saver.put_writes(config, list(values.items()), "task")
        found = newest(saver)
        assert found.checkpoint["channel_values"] == {**values, "large": "x" * 50_000}
        assert [(name, value) for _, name, value in found.pending_writes or []] == [*values.items()]
        [(longest,)] = saver.node.store.connection.execute("SELECT max(length(body)) FROM log")
        assert longest <= 4_000
        sound(saver.node)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.plain
@pytest.mark.parametrize("entity", ["graph", "graph_write", "graph_blob"])
def test_damage_is_told_instead_of_handed_over(saver: SyncdSaver, entity: str) -> None:
    first = put(saver, at(), state("1", sound=True))
    second = put(saver, first, state("2", large="x" * 2 * LARGE))
    saver.put_writes(second, [("a", "written")], "task")
    with saver.node.store.transaction():
        saver.node.store.connection.execute(
            "UPDATE log SET body = replace(CAST(body AS TEXT), 'e', 'f') WHERE seq ="
            " (SELECT max(seq) FROM log WHERE entity = ?)", (entity,),
        )  # fmt: skip
        saver.node.store.connection.execute("UPDATE log SET body = CAST(body AS BLOB)")
    with pytest.raises(GraphDamagedError) as caught:
        saver.get_tuple(at())
    assert "hash" in caught.value.message
    with pytest.raises(GraphDamagedError):
        [*saver.list(at())]
    assert ids(saver, at(), before=second) == ["1"]
    assert verify(saver.node.store, saver.node.key.public()).problems != []


def test_a_piece_that_is_missing_is_told(saver: SyncdSaver) -> None:
    put(saver, at(), state("1", large=os.urandom(2_000_000)))
    with saver.node.store.transaction():
        saver.node.store.connection.execute(
            "DELETE FROM log WHERE entity = 'graph_blob' AND entity_id LIKE '%1'"
        )
    with pytest.raises(GraphDamagedError, match="2 of 3 pieces"):
        saver.get_tuple(at())


@pytest.mark.parametrize(
    "config",
    [at(""), at("a\nb"), at("x" * 600), at("t", namespace="n" * 2_000),
     at("ghp_0123456789abcdefghijABCDEFGHIJ012345")],
)  # fmt: skip
def test_names_that_the_log_cannot_hold_are_refused(saver: SyncdSaver, config: Any) -> None:
    with pytest.raises(InvalidInputError):
        put(saver, config, state("1"))
    assert saver.node.store.row("newest") is None


# --- many at once ---------------------------------------------------------------------------------

PUTS = full(15, 200)


def _put_many(saver: SyncdSaver, name: str) -> None:
    config = at(name)
    for step in range(PUTS):
        config = put(saver, config, state(f"{step:04}", by=name))
        saver.put_writes(config, [("a", step)], name)
        put(saver, at("common"), state(f"{name} {step:04}", by=name))


def _in_process(home: Path, name: str) -> None:
    with SyncdSaver(home=home) as own:
        _put_many(own, name)


def test_threads_and_processes_write_at_once_and_nothing_is_lost(saver: SyncdSaver) -> None:
    """Beside them somebody writes checkpoints, of a thread's task too."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_in_process, args=(saver.node.home, f"p{n}")) for n in (1, 2)]
    for process in processes:
        process.start()
    threads = [threading.Thread(target=_put_many, args=(saver, f"t{n}")) for n in (1, 2)]
    for thread in threads:
        thread.start()
    with closing(CheckpointService(home=saver.node.home)) as service:
        for _ in range(PUTS):
            service.create_checkpoint("common", "ann", ExecutionState())
    for thread in threads:
        thread.join()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    names = ["p1", "p2", "t1", "t2"]
    wanted = [f"{name} {step:04}" for name in names for step in range(PUTS)]
    assert ids(saver, at("common")) == wanted[::-1]
    for name in names:
        assert [found.pending_writes for found in saver.list(at(name))] == [
            [(name, "a", step)] for step in reversed(range(PUTS))
        ]
    sound(saver.node)


def test_who_asks_a_thread_for_checkpoints_is_told_what_it_is(saver: SyncdSaver) -> None:
    for _ in range(2):
        put(saver, at("sums"), state())
    for words in (["resume"], ["checkpoint", "latest"], ["checkpoint", "latest", "--fallback"],
                  ["recover"]):  # fmt: skip
        error = CliRunner().invoke(syncd, [*words, "sums"]).exception
        assert isinstance(error, CheckpointNotFoundError), words
        assert "a LangGraph thread with 2 states, the last one of 2" in error.message
        assert "SyncdSaver().get_tuple({'configurable': {'thread_id': 'sums'}})" in error.remedy
        other = CliRunner().invoke(syncd, [*words, "none"]).exception
        assert "LangGraph" not in str(other)
    saver.delete_thread("sums")
    assert "LangGraph" not in str(CliRunner().invoke(syncd, ["resume", "sums"]).exception)


def test_numbers_in_a_task_go_on_whoever_writes_next(crew: Team) -> None:
    """The counter of a thread lags behind as long as nobody else writes."""
    ann, bob = crew.device(), crew.device()
    here, there = SyncdSaver(node=ann.node), SyncdSaver(node=bob.node)
    for step in range(3):
        put(here, at("a"), state(f"1{step}"))
        put(here, at("a"), state(f"2{step}"))
        put(here, at("b"), state(f"1{step}"))
        ann.service.create_checkpoint("a", "ann", ExecutionState())
        put(here, at("a"), state(f"3{step}"))
        assert ann.problems() == []
        put(there, at("a"), state(f"4{step}"))
        put(there, at("a"), state(f"5{step}"))
        crew.settle()
        assert ann.problems() == bob.problems() == []
        tasks.change(ann.node, "a", title=f"title {step}")
        assert ann.problems() == []


def test_who_awaits_does_not_hold_up_the_loop_nor_need_the_same_one(saver: SyncdSaver) -> None:
    async def putting() -> int:
        ticks, waiting = 0, asyncio.create_task(saver.aput(at(), state(), {}, {}))
        while not waiting.done():
            await asyncio.sleep(0.01)
            ticks += 1
            if ticks == 5:
                other.execute("ROLLBACK")
        await waiting
        return ticks

    put(saver, at(), state())
    with closing(sqlite3.connect(saver.node.database, isolation_level=None)) as other:
        for _ in range(2):
            other.execute("BEGIN IMMEDIATE")
            assert asyncio.run(putting()) >= 5

    async def listed() -> list[Any]:
        return [found async for found in saver.alist(at())]

    assert len(asyncio.run(listed())) == 3


# --- the rest -------------------------------------------------------------------------------------


def test_errors_and_answers_replace_what_a_step_said_before(saver: SyncdSaver) -> None:
    config = put(saver, at(), state("1"))
    for attempt in ("first", "second"):
        saver.put_writes(config, [("a", attempt), ("b", attempt)], "task", "~path")
        saver.put_writes(config, [(INTERRUPT, attempt)], "task", "~path")
        saver.put_writes(config, [(ERROR, attempt)], "another", "~before")
    assert INTERRUPT in WRITES_IDX_MAP
    assert newest(saver).pending_writes == [
        ("another", ERROR, "second"), ("task", INTERRUPT, "second"), ("task", "a", "first"),
        ("task", "b", "first"),
    ]  # fmt: skip


def test_without_langgraph_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langgraph.checkpoint.base", None)
    monkeypatch.delitem(sys.modules, "syncd.langgraph")
    with pytest.raises(ImportError, match=r"pip install -e '.\[langgraph\]'"):
        importlib.import_module("syncd.langgraph")


if __name__ == "__main__":
    home, ran = map(Path, sys.argv[1:])
    with SyncdSaver(home=home) as own:
        # Else the second step may be reached, and the kill come, before the first one is put.
        config = {"configurable": {"thread_id": "a/thread %"}}
        graph(own, ran).invoke({"done": []}, config, durability="sync")
