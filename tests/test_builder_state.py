"""Checkpoints inside builder-state.json: what is read, how it is written, and what stays."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import stat
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from checkpoints import CHECKPOINTS, TEXT, VALUES
from counts import full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncd.canonical import canonical
from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats import files
from syncd.formats.builder_state import cut, read, update, write
from syncd.formats.reading import FormatError, Reading
from syncd.formats.shape import faults, published

ROUNDS, FUZZED, STYLES = full(60, 2_000), full(300, 50_000), full(60, 5_000)
SCHEMA = published("builder-state.schema.json")


def many(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None,
                    suppress_health_check=list(HealthCheck))  # fmt: skip


CHECKPOINT: dict[str, Any] = {
    "phase": "implementation",
    "completedSteps": [
        {"step": "Toggle made", "filesCreated": ["src/Toggle.tsx"], "filesModified": [],
         "timestamp": "2026-02-28T10:00:00Z"},
        {"step": "Theme context added", "filesCreated": ["src/Theme.tsx"],
         "filesModified": ["src/App.tsx"], "timestamp": "2026-02-28T10:05:00Z"},
    ],
    "pendingSteps": ["Wire the toggle", "Write tests"],
    "currentStep": {"description": "Wire the toggle", "startedAt": "2026-02-28T10:10:00Z",
                    "partialWork": "imported the hook"},
    "decisions": [{"decision": "CSS variables", "rationale": "no work at run time",
                   "timestamp": "2026-02-28T10:02:00Z"}],
    "blockers": ["designer is away"],
    "verification": {"contractRef": "US-003.contract", "results": [
        {"activity": "unit tests", "status": "passed", "runAt": "2026-02-28T10:09:00Z"}]},
    "metadata": {"createdBy": "react-dev", "lastUpdatedAt": "2026-02-28T10:10:00Z",
                 "reason": "periodic", "previousAgents": ["planner"]},
}  # fmt: skip
STATE: dict[str, Any] = {
    "sessionId": "builder-1",
    "activePrd": {"id": "prd-dark-mode", "currentStory": "US-003", "checkpoint": CHECKPOINT},
    "adhocQueue": [
        {"id": "fix-7", "checkpoint": {"phase": "verification"}},
        {"description": "Rename it", "checkpoint": {}},
        {"id": "later", "checkpoint": None},
        "a task without any form",
    ],
}


def encoded(document: Any) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def holding(checkpoint: Any) -> bytes:
    return encoded({"activePrd": {"id": "p", "currentStory": "US-1", "checkpoint": checkpoint}})


def only(data: bytes) -> Reading:
    (reading,) = read(data, "builder-state.json")
    return reading


def put(checkpoint: Checkpoint, data: bytes = b'{"activePrd": {"id": "p"}}') -> dict[str, Any]:
    """The checkpoint as it stands in the file."""
    written = json.loads(write(data, "activePrd", checkpoint, "b.json"))
    found: dict[str, Any] = written["activePrd"]["checkpoint"]
    return found


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return canonical(one.body()) == canonical(other.body())


def of(**fields: Any) -> Checkpoint:
    return Checkpoint.from_dict(
        {"metadata": {"agent_id": "a", "timestamp": "2026-02-28T10:00:00Z"}} | fields
    )


# --- reading ------------------------------------------------------------------------------------


def test_every_field_of_the_format_has_its_place_in_the_checkpoint() -> None:
    checkpoint = only(holding(CHECKPOINT)).checkpoint
    state, metadata = checkpoint.execution_state, checkpoint.metadata
    assert (state.phase, state.raw) == ("implementing", {})
    assert [str(step) for step in state.completed_items] == ["Toggle made", "Theme context added"]
    assert checkpoint.named_files() == ["src/Toggle.tsx", "src/Theme.tsx", "src/App.tsx"]
    assert state.pending_items == ["Wire the toggle", "Write tests"]
    assert state.current_step is not None
    assert state.current_step.partial_work == "imported the hook"
    assert state.current_step.started_at == "2026-02-28T10:10:00Z"
    assert [str(d) for d in checkpoint.context_summary.key_decisions] == [
        "CSS variables (no work at run time)"
    ]
    assert state.blocked_items == ["designer is away"]
    assert checkpoint.verification is not None
    assert checkpoint.verification.contract_ref == "US-003.contract"
    assert checkpoint.verification.results[0].status == "passed"
    assert (metadata.agent_id, metadata.reason) == ("react-dev", "periodic")
    assert metadata.timestamp == "2026-02-28T10:10:00Z"
    assert metadata.previous_agents == ["planner"]


def test_every_checkpoint_has_its_place_and_the_task_that_it_is_about() -> None:
    found = read(encoded(STATE), "builder-state.json")
    assert [(reading.place, reading.owner) for reading in found] == [
        ("activePrd", "prd-dark-mode-us-003"),
        ("adhocQueue[fix-7]", "fix-7"),
        ("adhocQueue[1]", "rename-it"),
    ]


def test_tasks_of_one_id_are_told_apart_and_each_can_be_written() -> None:
    queue = [{"id": "x", "checkpoint": {}}, {"id": "x", "checkpoint": {}}, {"checkpoint": {}}]
    data = encoded({"adhocQueue": queue})
    places = [reading.place for reading in read(data, "b")]
    assert places == ["adhocQueue[x]", "adhocQueue[#1]", "adhocQueue[2]"]
    for number, place in enumerate(places):
        written = json.loads(write(data, place, of(phase="testing"), "b"))
        phases = [item["checkpoint"].get("phase") for item in written["adhocQueue"]]
        assert [n for n, phase in enumerate(phases) if phase] == [number]


@pytest.mark.parametrize(
    "document",
    [
        {}, {"activePrd": None}, {"activePrd": {}}, {"activePrd": {"checkpoint": None}},
        {"activePrd": "prd-1"}, {"adhocQueue": None}, {"adhocQueue": []}, {"adhocQueue": {}},
        {"adhocQueue": [{"id": 1}, None, 5]}, {"sessionId": "x"},
    ],
)  # fmt: skip
def test_a_file_without_a_checkpoint_is_valid_and_has_none(document: Any) -> None:
    assert read(encoded(document), "b.json") == []


def test_the_least_that_the_format_asks_for_is_enough() -> None:
    checkpoint = only(
        holding({"currentStep": {}, "verification": {"results": [{"status": "failed"}]}})
    ).checkpoint
    assert str(checkpoint.execution_state.current_step) == ""
    assert checkpoint.verification is not None
    assert checkpoint.verification.results[0].activity == ""
    assert (
        only(holding({"currentStep": None, "verification": None})).checkpoint.verification is None
    )


def test_a_time_without_a_zone_is_utc_and_the_user_is_told() -> None:
    times = {"metadata": {"lastUpdatedAt": "2026-02-28T10:00:00"},
             "completedSteps": [{"step": "s", "timestamp": "2026-02-28"}]}  # fmt: skip
    found = only(holding(times))
    assert found.checkpoint.metadata.timestamp == "2026-02-28T10:00:00+00:00"
    assert sorted(found.notes) == [
        "lastUpdatedAt 2026-02-28T10:00:00 has no zone: read as UTC",
        "timestamp 2026-02-28 has no zone: read as UTC",
    ]
    assert "lastUpdatedAt is missing" in only(holding({})).notes[0]


WRONG: list[tuple[Any, str, str]] = [
    ([], "checkpoint", r"activePrd\.checkpoint: expected an object or null"),
    ({"phase": "sleeping"}, "phase", "phase: expected one of planning, implementation, ver"),
    ({"phase": 3}, "phase", "expected one of"),
    ({"completedSteps": {}}, "completedSteps", "expected an array"),
    ({"completedSteps": [{"step": "x"}]}, "completedSteps", r"Steps\[0\]: expected a timestamp"),
    ({"completedSteps": [{"timestamp": "2026-01-01T00:00Z"}]}, "completedSteps", "expected a step"),
    ({"pendingSteps": ["a", 1]}, "pendingSteps", r"pendingSteps\[1\]: expected a text"),
    ({"currentStep": "x"}, "currentStep", "expected an object or null"),
    ({"currentStep": {"startedAt": "soon"}}, "startedAt", "expected an ISO 8601 time"),
    ({"decisions": ["x"]}, "decisions", r"decisions\[0\]: expected an object"),
    ({"decisions": [{"decision": "x"}]}, "decisions", "expected a timestamp"),
    ({"blockers": [None]}, "blockers", r"blockers\[0\]: expected a text"),
    ({"verification": {"results": [{"status": "green"}]}}, "status", "one of pending, passed"),
    ({"verification": {"contractRef": None}}, "contractRef", "expected a text"),
    ({"metadata": {"reason": "mood"}}, "reason", "expected one of periodic, context_limit"),
    ({"metadata": {"lastUpdatedAt": 5}}, "lastUpdatedAt", "expected a text"),
    ({"metadata": {"previousAgents": "x"}}, "previousAgents", "expected an array"),
    ({"metadata": None}, "metadata", "expected an object"),
    ({"error": 1}, "error", "error: expected a text"),
    ({"syncd": 1}, "syncd", "expected an object"),
    ({"iteration": -1}, "iteration", "greater than or equal to 0"),
    ({"mine": "\ud800"}, "mine", "surrogate"),
]


@pytest.mark.parametrize(("checkpoint", "key", "expected"), WRONG)
def test_wrong_content_is_named_with_its_line(checkpoint: Any, key: str, expected: str) -> None:
    state = {"sessionId": "x", "activePrd": {"id": "p", "checkpoint": checkpoint}}
    data = json.dumps(state, indent=2).encode()
    with pytest.raises(FormatError, match=expected) as found:
        read(data, "builder-state.json")
    lines = data.decode().splitlines()
    start = next(n for n, line in enumerate(lines, 1) if f'"{key}":' in line)
    assert start <= found.value.line <= start + 3
    assert str(found.value).startswith(f"builder-state.json, line {found.value.line}: ")


def test_a_list_is_no_builder_state() -> None:
    with pytest.raises(FormatError, match="line 1: expected an object"):
        read(b"[]", "b.json")


# --- the published schema -----------------------------------------------------------------------

CHECKER = jsonschema.FormatChecker(formats=())


@CHECKER.checks("date-time", raises=ValueError)
def _is_time(value: Any) -> bool:
    return not isinstance(value, str) or bool(datetime.fromisoformat(value))


VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=CHECKER)
KEYS = st.sampled_from([*CHECKPOINT, "error", "syncd", "step", "decision", "timestamp", "results",
                        "reason", "createdBy", "startedAt", "status", "activity"])  # fmt: skip
WORDS = st.sampled_from(["planning", "implementation", "passed", "manual", "2026-01-01T00:00:00Z"])
SHAPES = st.recursive(
    st.none() | st.integers(0, 3) | WORDS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXT, inner, max_size=4),
    max_leaves=10,
)
CHANGED = st.builds(lambda changes: CHECKPOINT | changes, st.dictionaries(KEYS, SHAPES, max_size=2))


def test_the_schema_is_one_and_takes_what_we_write() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(STATE)
    VALIDATOR.validate(json.loads(write(encoded(STATE), "activePrd", of(), "b")))


@pytest.mark.parametrize(("checkpoint", "key", "expected"), WRONG[:-2])
def test_the_schema_refuses_what_we_refuse(checkpoint: Any, key: str, expected: str) -> None:
    assert not VALIDATOR.is_valid({"activePrd": {"checkpoint": checkpoint}})
    assert not VALIDATOR.is_valid({"adhocQueue": [{"checkpoint": checkpoint}]})


@many(ROUNDS * 5)
@given(st.builds(lambda c: {"activePrd": {"checkpoint": c}}, SHAPES | CHANGED) | SHAPES)
def test_the_published_schema_and_our_reading_of_it_agree(document: Any) -> None:
    ours = [path for path, _ in faults(document, SCHEMA, SCHEMA)]
    theirs = [tuple(error.absolute_path) for error in VALIDATOR.iter_errors(document)]
    assert set(ours) == set(theirs)


# --- writing ------------------------------------------------------------------------------------


def test_what_was_read_is_written_as_it_was() -> None:
    document = put(only(holding(CHECKPOINT)).checkpoint)
    assert {name: document[name] for name in CHECKPOINT} == CHECKPOINT
    assert list(document) == [*CHECKPOINT, "syncd"]
    assert list(document["completedSteps"][0]) == list(CHECKPOINT["completedSteps"][0])


@pytest.mark.parametrize(
    ("phase", "shown"),
    [("planning", "planning"), ("implementing", "implementation"), ("testing", "verification"),
     ("reviewing", "documentation"), ("handoff", "implementation"), ("complete", "documentation")],
)  # fmt: skip
def test_every_phase_is_written_in_the_formats_words_and_read_back(phase: str, shown: str) -> None:
    document = put(of(phase=phase))
    assert document["phase"] == shown
    assert only(holding(document)).checkpoint.execution_state.phase == phase


def test_a_failure_stands_among_the_blockers_with_its_reason() -> None:
    checkpoint = of(error="3 tests fail", blockers=["no key"], reason="failure")
    document = put(checkpoint)
    assert document["error"] == "3 tests fail"
    assert document["blockers"] == ["no key", "failure: 3 tests fail"]
    assert document["metadata"]["reason"] == "failure"
    back = only(holding(document)).checkpoint
    assert back.execution_state.blocked_items == ["no key"]
    assert put(back)["blockers"] == ["no key", "failure: 3 tests fail"], "not once more each time"
    del document["syncd"]
    assert put(only(holding(document)).checkpoint)["blockers"] == document["blockers"]
    assert put(of(error="3 tests fail"))["blockers"] == ["3 tests fail"]


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_long_texts_and_old_steps_are_cut_at_the_formats_bounds(over: int) -> None:
    checkpoint = of(
        currentStep={"description": "d", "partialWork": "é" * (200 + over)},
        decisions=[{"decision": "d", "rationale": "😀" * (100 + over)}],
        completedSteps=[f"step {n}" for n in range(10 + over)],
    )
    document = put(checkpoint)
    assert document["currentStep"]["partialWork"] == "é" * min(200, 200 + over)
    assert document["decisions"][0]["rationale"] == "😀" * min(100, 100 + over)
    steps = [step["step"] for step in document["completedSteps"]]
    assert steps == [f"step {n}" for n in range(10 + over)][-10:]
    data = write(b'{"activePrd": {"id": "p"}}', "activePrd", checkpoint, "b")
    assert same(only(data).checkpoint, cut(checkpoint))
    assert same(cut(checkpoint), checkpoint) is (over <= 0)


def test_a_typical_checkpoint_takes_less_than_two_kilobytes() -> None:
    checkpoint = only(holding(CHECKPOINT)).checkpoint
    data = write(b'{"activePrd":{"id":"p"}}', "activePrd", checkpoint, "b")
    assert len(data) < 2048


def test_a_place_that_is_not_there_is_refused() -> None:
    for place in ("activePrd", "adhocQueue[0]", "elsewhere"):
        with pytest.raises(InvalidInputError, match=f"no place {place}".replace("[", r"\[")):
            write(b'{"activePrd": null, "adhocQueue": []}', place, of(), "b.json")


def test_without_a_file_one_is_made() -> None:
    data = write(b"", "activePrd", of(task_id="dark mode"), "b.json")
    assert data.startswith(b'{\n  "activePrd": {\n    "id": "dark mode",\n    "checkpoint": {\n')
    assert data.endswith(b"}\n")
    assert only(data).owner == "dark-mode"


def test_what_cannot_be_read_is_not_written() -> None:
    deep: Any = 1
    for _ in range(252):
        deep = [deep]
    with pytest.raises(InvalidInputError):
        put(of(context_summary={"state": {"x": float("inf")}}))
    with pytest.raises(InvalidInputError):
        put(of(mine=deep))


@many(ROUNDS)
@given(CHECKPOINTS)
def test_any_checkpoint_comes_back_cut_and_no_other_way_changed(checkpoint: Checkpoint) -> None:
    state = b'{"activePrd": {"id": "p", "currentStory": "US-1"}}'
    data = write(state, "activePrd", checkpoint, "b")
    found = only(data).checkpoint
    assert same(found, cut(checkpoint))
    VALIDATOR.validate(json.loads(data))
    assert write(data, "activePrd", found, "b") == data


def test_a_checkpoint_that_has_changed_is_shown_with_that_time_and_comes_back_with_its_own() -> (
    None
):
    changed = "2026-03-15T15:00:00+00:00"
    checkpoint = of(completed_items=["x"], key_decisions=["y"], current_focus="z")
    data = write(b'{"activePrd": {"id": "p"}}', "activePrd", checkpoint, "b", changed)
    shown = json.loads(data)["activePrd"]["checkpoint"]
    assert shown["metadata"]["lastUpdatedAt"] == changed
    assert shown["completedSteps"][0]["timestamp"] == changed
    assert shown["decisions"][0]["timestamp"] == changed
    assert same(only(data).checkpoint, checkpoint)
    later = data.replace(
        b'"lastUpdatedAt": "' + changed.encode(), b'"lastUpdatedAt": "2027-01-15T14:30:00Z'
    )
    found = only(later).checkpoint
    assert found.metadata.timestamp == "2027-01-15T14:30:00Z"
    assert found.execution_state.completed_items == ["x"]


# --- files that were edited ---------------------------------------------------------------------

RICH = of(
    task_id="t", phase="complete", error="boom", tokens_consumed=7, completed_items=["one", "two"],
    pending_items=[{"step": "four", "notes": "mind"}, "five"], next_steps=["six"],
    current_focus="focus", blockers=[{"description": "b", "resolution_path": "wait"}],
    decisions=["plain", {"decision": "rich", "rejected_alternatives": ["poor"]}],
)  # fmt: skip


def edited(**changes: Any) -> Checkpoint:
    return only(holding(put(RICH) | changes)).checkpoint


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"phase": "planning"}, lambda c: c.execution_state.phase == "planning"),
        ({"currentStep": None}, lambda c: c.execution_state.current_focus == ""),
        ({"currentStep": {"description": "y"}},
         lambda c: str(c.execution_state.current_step) == "y"),
        ({"error": "bang"}, lambda c: c.execution_state.error == "bang"),
        ({"completedSteps": []}, lambda c: c.execution_state.completed_items == []),
        ({"decisions": []}, lambda c: c.context_summary.key_decisions == []),
        ({"blockers": ["boom"]}, lambda c: c.execution_state.blocked_items == []),
        ({"blockers": ["boom", "new"]}, lambda c: c.execution_state.blocked_items == ["new"]),
        ({"verification": {"contractRef": "x"}}, lambda c: c.verification.contract_ref == "x"),
        ({"metadata": {"createdBy": "b", "lastUpdatedAt": "2026-03-01T00:00:00Z",
                       "reason": "manual", "previousAgents": ["a"]}},
         lambda c: (c.metadata.agent_id, c.metadata.reason, c.metadata.previous_agents)
         == ("b", "manual", ["a"])),
    ],
)  # fmt: skip
def test_a_field_that_was_edited_counts_and_the_rest_is_kept(
    changes: dict[str, Any], found: Callable[[Checkpoint], bool]
) -> None:
    checkpoint = edited(**changes)
    assert found(checkpoint)
    assert checkpoint.metrics.tokens_consumed == 7


def test_steps_that_were_done_or_added_leave_the_others_as_they_were() -> None:
    assert put(RICH)["pendingSteps"] == ["four", "five", "six"]
    state = edited(pendingSteps=["four", "six", "seven"]).execution_state
    assert [str(item) for item in state.pending_items] == ["four", "seven"]
    assert state.pending_items[0] == RICH.execution_state.pending_items[0]
    assert state.next_steps == ["six"]
    assert state.completed_items == ["one", "two"]


def test_another_story_is_another_task_and_another_checkpoint() -> None:
    state = {"activePrd": {"id": "p", "currentStory": "US-1"}}
    written = json.loads(write(encoded(state), "activePrd", RICH, "b"))
    assert only(encoded(written)).checkpoint.metadata.task_id == "t"
    written["activePrd"]["currentStory"] = "US-2"
    found = only(encoded(written))
    assert (found.owner, found.checkpoint.metadata.task_id) == ("p-us-2", "")
    assert found.checkpoint.metadata.checkpoint_id != RICH.metadata.checkpoint_id
    assert found.checkpoint.metrics.tokens_consumed == 7


# --- the file's style ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"activePrd":{"id":"p"}}', '{"activePrd":{"id":"p","checkpoint":C}}'),
        ('{"activePrd": {"id": "p"}}\n', '{"activePrd": {"id": "p", "checkpoint": C}}\n'),
        ('{"activePrd": {}}', '{"activePrd": {"checkpoint": C}}'),
        ('{"activePrd" : {"checkpoint" : null , "z" : 1}}',
         '{"activePrd" : {"checkpoint" : C , "z" : 1}}'),
        ('{\n  "activePrd": {}\n}', '{\n  "activePrd": {\n    "checkpoint": C\n  }\n}'),
        ('{\r\n\t"activePrd": {\r\n\t\t"id": 1\r\n\t}\r\n}\r\n',
         '{\r\n\t"activePrd": {\r\n\t\t"id": 1,\r\n\t\t"checkpoint": C\r\n\t}\r\n}\r\n'),
        ('{\n   "activePrd":\n   {\n      "checkpoint":{"phase":"planning"},"z":"\\u00e9\\/"\n}}',
         '{\n   "activePrd":\n   {\n      "checkpoint":C,"z":"\\u00e9\\/"\n}}'),
    ],
)  # fmt: skip
def test_the_checkpoint_is_put_in_and_all_else_stays(before: str, after: str) -> None:
    written = write(before.encode(), "activePrd", of(), "b").decode()
    head, tail = after.split("C", 1) if "C" in after else (after, "")
    assert written.startswith(head)
    assert written.endswith(tail)
    json.loads(written[len(head) : len(written) - len(tail)])


@pytest.mark.parametrize("indent", [None, 1, 2, 3, 4, 8, "\t", ""])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("old", [None, {"phase": "planning", "blockers": []}, "missing"])
def test_the_checkpoint_is_written_in_the_manner_of_the_file(
    indent: Any, newline: str, ascii_only: bool, old: Any
) -> None:
    state: dict[str, Any] = {"é": "ü", "activePrd": {"id": "p", "checkpoint": old, "z": [1]}}
    if old == "missing":
        del state["activePrd"]["checkpoint"]

    def in_style(document: Any) -> bytes:
        text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
        return text.replace("\n", newline).encode()

    written = write(in_style(state), "activePrd", of(blockers=["größer"]), "b")
    assert written == in_style(json.loads(written))
    assert list(json.loads(written)["activePrd"]) == list(state["activePrd"] | {"checkpoint": 0})


def test_a_byte_order_mark_stays() -> None:
    written = write(b'\xef\xbb\xbf{"activePrd": {}}', "activePrd", of(), "b")
    assert written.startswith(b'\xef\xbb\xbf{"activePrd": {"checkpoint"')
    assert len(read(written, "b")) == 1


BLANKS = st.text(alphabet=" \t\r\n", max_size=3)


@st.composite
def texts(draw: st.DrawFn, value: Any, hole: str) -> str:
    """A JSON text with blanks anywhere and every way of writing letters; `hole` for its mark."""
    blank = draw(BLANKS)
    if isinstance(value, dict):
        members = [
            blank + json.dumps(k, ensure_ascii=draw(st.booleans())) + draw(BLANKS) + ":"
            + draw(BLANKS) + draw(texts(v, hole)) + draw(BLANKS)
            for k, v in value.items()
        ]  # fmt: skip
        return "{" + (",".join(members) or blank) + "}"
    if isinstance(value, list):
        return "[" + (",".join(blank + draw(texts(v, hole)) + blank for v in value) or blank) + "]"
    if value is HOLE:
        return hole
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


HOLE = object()
MEMBERS = st.dictionaries(TEXT.filter(lambda t: t not in STATE and t != "checkpoint"), VALUES,
                          max_size=3)  # fmt: skip


@many(STYLES)
@given(st.data(), MEMBERS, MEMBERS, MEMBERS, st.sampled_from(["null", '{"phase" :"planning"}']))
def test_whatever_the_text_only_the_checkpoint_in_it_changes(
    data: st.DataObject, outer: Any, before: Any, after: Any, old: str
) -> None:
    state = outer | {"activePrd": before | {"checkpoint": HOLE} | after}
    text = data.draw(BLANKS) + data.draw(texts(state, "\0HOLE\0")) + data.draw(BLANKS)
    head, tail = text.split("\0HOLE\0")
    source = (head + old + tail).encode()
    written = write(source, "activePrd", RICH, "b").decode()
    assert written.startswith(head)
    assert written.endswith(tail)
    assert same(only(written.encode()).checkpoint, RICH)


# --- any bytes ----------------------------------------------------------------------------------

GOOD = write(encoded(STATE), "activePrd", RICH, "b")
NEARLY = st.builds(
    lambda checkpoint, kept: json.dumps(
        {"activePrd": {"checkpoint": checkpoint | kept}, "adhocQueue": [{"checkpoint": kept}]},
        ensure_ascii=False,
    ).encode(errors="surrogatepass"),
    CHANGED,
    st.fixed_dictionaries({}, optional={"syncd": st.dictionaries(
        st.sampled_from(["metadata", "execution_state", "owner", "x"]),
        VALUES | st.dictionaries(st.sampled_from(["raw", "phase", "next_steps"]), VALUES))}),
)  # fmt: skip


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    at, gone = draw(st.integers(0, len(GOOD))), draw(st.integers(0, 40))
    return GOOD[:at] + draw(st.binary(max_size=6)) + GOOD[at + gone :]


@many(FUZZED)
@given(st.binary(max_size=80) | NEARLY | mangled() | SHAPES.map(lambda v: json.dumps(v).encode()))
def test_whatever_the_bytes_they_are_read_or_refused_with_a_place(data: bytes) -> None:
    found = outcome(data)
    if isinstance(found, FormatError):
        assert found.source == "b.json"
        assert 1 <= found.line <= data.count(b"\n") + 1
        assert found.expected
    for reading in found if isinstance(found, list) else ():
        written = read(write(data, reading.place, reading.checkpoint, "b"), "b")
        (again,) = (r.checkpoint for r in written if r.place == reading.place)
        assert same(again, cut(reading.checkpoint))


def outcome(data: bytes) -> list[Reading] | FormatError:
    try:
        return read(data, "b.json")
    except FormatError as error:
        return error


# --- the file on disk ---------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "builder-state.json"
    path.write_bytes(encoded({"count": 0, "activePrd": {"id": "p", "storiesPending": ["é"]}}))
    return path


def done(step: str) -> Callable[[Checkpoint | None], Checkpoint]:
    def change(before: Checkpoint | None) -> Checkpoint:
        checkpoint = before or of()
        return checkpoint.amended(execution_state=checkpoint.execution_state.complete(step))

    return change


def steps(path: Path) -> list[str]:
    return [str(i) for i in only(path.read_bytes()).checkpoint.execution_state.completed_items]


def test_an_update_gets_what_is_there_and_writes_what_becomes_of_it(path: Path) -> None:
    update(path, "activePrd", done("one"))
    update(path, "activePrd", done("two"))
    assert steps(path) == ["one", "two"]
    assert json.loads(path.read_bytes())["activePrd"]["storiesPending"] == ["é"]
    assert list(path.parent.iterdir()) == [path], "no draft and no lock lies about"


def test_a_step_and_a_decision_are_one_write(path: Path) -> None:
    update(path, "activePrd", lambda _: of(pending_items=["wire", "test"], current_step="wire"))

    def change(before: Checkpoint | None) -> Checkpoint:
        checkpoint = done("wire")(before)
        context = checkpoint.context_summary.amended(key_decisions=["hooks"])
        return checkpoint.amended(context_summary=context)

    update(path, "activePrd", change)
    document = json.loads(path.read_bytes())["activePrd"]["checkpoint"]
    assert [step["step"] for step in document["completedSteps"]] == ["wire"]
    assert (document["pendingSteps"], document["currentStep"]) == (["test"], None)
    assert [decision["decision"] for decision in document["decisions"]] == ["hooks"]


def test_others_of_us_wait_while_a_change_is_made(path: Path) -> None:
    def change(before: Checkpoint | None) -> Checkpoint:
        descriptor = os.open(path.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        return of()

    update(path, "activePrd", change)


def test_a_missing_file_is_made(tmp_path: Path) -> None:
    update(tmp_path / "new.json", "activePrd", done("one"))
    assert steps(tmp_path / "new.json") == ["one"]


def test_an_update_keeps_mode_and_link(path: Path) -> None:
    path.chmod(0o640)
    link = path.with_name("link.json")
    link.symlink_to(path)
    update(link, "activePrd", done("one"))
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert steps(path) == ["one"]


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    before = path.read_bytes()

    def fail(checkpoint: Checkpoint | None) -> Checkpoint:
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        update(path, "activePrd", fail)
    with pytest.raises(InvalidInputError, match="no place"):
        update(path, "adhocQueue[0]", done("one"))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def foreign(path: Path, **changes: Any) -> None:
    """An editor that knows nothing of us: reads, changes, writes all of it anew, renames."""
    state = json.loads(path.read_bytes()) | changes
    draft = path.with_name(f"editor-{os.getpid()}.tmp")
    draft.write_text(json.dumps(state, indent=4))
    draft.replace(path)


def test_an_edit_while_the_change_is_made_is_kept_and_the_change_made_on_it(path: Path) -> None:
    calls = []

    def change(before: Checkpoint | None) -> Checkpoint:
        calls.append(before)
        if len(calls) == 1:
            foreign(path, count=1)
        return done("one")(before)

    update(path, "activePrd", change)
    assert json.loads(path.read_bytes())["count"] == 1
    assert steps(path) == ["one"]
    assert len(calls) == 2


@pytest.mark.parametrize("edits", [1, 2])
def test_an_edit_in_the_last_moment_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch, edits: int
) -> None:
    """Between the last look at the file and its replacement, and again while that is undone."""
    swapped, moments = files._swapped, []

    def late(one: Path, other: Path) -> bool:
        moments.append(one)
        if len(moments) <= edits:
            foreign(path, count=len(moments))
        return swapped(one, other)

    monkeypatch.setattr(files, "_swapped", late)
    update(path, "activePrd", done("one"))
    assert json.loads(path.read_bytes())["count"] == edits
    assert steps(path)[-1] == "one"


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new.json"

    def change(before: Checkpoint | None) -> Checkpoint:
        if not path.exists():
            path.write_bytes(b'{"count": 1, "activePrd": {}}')
        return done("one")(before)

    update(path, "activePrd", change)
    assert json.loads(path.read_bytes())["count"] == 1
    assert steps(path) == ["one"]


def test_where_names_cannot_be_swapped_the_file_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_swapped", lambda one, other: False)
    update(path, "activePrd", done("one"))
    assert steps(path) == ["one"]


def _counting(path: Path, name: str, times: int) -> None:
    """One of us: counts in a field of the checkpoint that is its own."""
    for number in range(1, times + 1):
        update(path, "activePrd", lambda c, n=number: counted(c, name, n))  # type: ignore[misc]


def counted(before: Checkpoint | None, name: str, number: int) -> Checkpoint:
    context = (before or of()).context_summary
    state = context.state | {name: number}
    return (before or of()).amended(context_summary=context.amended(state=state))


def _editing(path: Path, seconds: float, seen: Any) -> None:
    """An editor that knows nothing of us, and notes what it finds its own key to be."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        seen.append((number, json.loads(path.read_bytes())["count"]))
        number += 1
        foreign(path, count=number)
        time.sleep(0.003)


@pytest.mark.parametrize("can_swap", [True, False])
def test_our_own_processes_never_lose_each_others_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    if not can_swap:
        monkeypatch.setattr(files, "_swapped", lambda one, other: False)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_counting, args=(path, f"w{n}", 12)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert only(path.read_bytes()).checkpoint.context_summary.state == {
        f"w{n}": 12 for n in range(4)
    }


def test_an_editor_that_knows_nothing_of_us_never_loses_its_change_to_us(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        seen = manager.list()
        workers = [context.Process(target=_counting, args=(path, f"w{n}", 15)) for n in range(2)]
        workers.append(context.Process(target=_editing, args=(path, 1.5, seen)))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        found = list(seen)
    assert len(found) > 20
    assert [pair for pair in found if pair[0] != pair[1]] == []
    assert all(one[0] < other[0] for one, other in pairwise(found))
    assert len(read(path.read_bytes(), "b")) == 1
