"""Per-agent JSON files: what they say, what becomes of it, and what happens to the files."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import CHECKPOINTS, TEXT, VALUES
from counts import full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from syncd.canonical import canonical
from syncd.checkpoint import Checkpoint
from syncd.errors import CheckpointCorruptionError, InvalidInputError
from syncd.formats import agent_files, agent_json, files
from syncd.formats.agent_json import EXPECTED_AFTER, file_name, read, write
from syncd.formats.reading import FormatError, Reading

ROUNDS, FUZZED = full(60, 2_000), full(400, 50_000)


def many(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None,
                    suppress_health_check=list(HealthCheck))  # fmt: skip


# A file as an agent in the middle of its work has it, with every field of the format.
AGENT: dict[str, Any] = {
    "agent_id": "Secondary-A",
    "agent_type": "secondary",
    "session_id": "5f0c",
    "feature": "feature_02_team_penalty",
    "stage": "S2.P2",
    "phase": "Specification - In Progress",
    "last_checkpoint": "2026-01-15T14:30:00Z",
    "next_checkpoint_expected": "2026-01-15T14:45:00Z",
    "status": "IN_PROGRESS",
    "can_resume": True,
    "blockers": ["no access to the league's data"],
    "files_modified": ["penalty/spec.md", "penalty/checklist.md"],
    "recovery_instructions": "Finish the acceptance criteria, then the checklist.",
    "current_step": "Acceptance criteria",
    "completed_steps": ["Research", "Requirements"],
    "next_steps": ["Checklist", "S2.P3"],
    "coordination_state": {"last_inbox_check": "2026-01-15T14:28:00Z", "unread_messages": 0},
}


def encoded(document: Any) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


def reading(**changes: Any) -> Reading:
    return read(encoded(AGENT | changes), "secondary_a.json")


def written(checkpoint: Checkpoint) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(write(checkpoint))
    return document


def of(**fields: Any) -> Checkpoint:
    return Checkpoint.from_dict(
        {"agent_id": "a", "last_checkpoint": "2026-01-15T14:30:00Z"} | fields
    )


def edited(checkpoint: Checkpoint, **changes: Any) -> Checkpoint:
    """What is read after an agent has changed some fields of a file of ours."""
    return read(encoded(written(checkpoint) | changes), "a.json").checkpoint


def same(one: Checkpoint, other: Checkpoint) -> bool:
    return canonical(one.body()) == canonical(other.body())


# --- reading ------------------------------------------------------------------------------------


def test_every_field_of_the_format_has_its_place_in_the_checkpoint() -> None:
    checkpoint = reading().checkpoint
    metadata, state = checkpoint.metadata, checkpoint.execution_state
    assert (metadata.agent_id, metadata.agent_type) == ("Secondary-A", "secondary")
    assert (metadata.session_id, metadata.feature) == ("5f0c", "feature_02_team_penalty")
    assert metadata.timestamp == "2026-01-15T14:30:00Z"
    assert metadata.next_checkpoint_expected == "2026-01-15T14:45:00Z"
    assert (state.stage, state.phase, state.status) == ("S2.P2", "planning", "in_progress")
    assert state.raw == {"phase": "Specification - In Progress"}
    assert state.blocked_items == AGENT["blockers"]
    assert str(state.current_step) == "Acceptance criteria"
    assert state.completed_items == ["Research", "Requirements"]
    assert state.next_steps == ["Checklist", "S2.P3"]
    assert checkpoint.metrics.files_modified == AGENT["files_modified"]
    assert checkpoint.recovery.can_resume is True
    assert checkpoint.recovery.resume_instructions == AGENT["recovery_instructions"]
    assert checkpoint.context_summary.coordination_state == AGENT["coordination_state"]


def test_a_file_belongs_to_the_task_of_its_feature() -> None:
    assert reading().owner == "feature-02-team-penalty"
    assert reading().checkpoint.metadata.task_id == ""
    assert reading(feature=None).owner == ""


def test_a_time_without_a_zone_is_utc_and_the_user_is_told() -> None:
    found = reading(last_checkpoint="2026-01-15T14:30:00")
    assert found.checkpoint.metadata.timestamp == "2026-01-15T14:30:00+00:00"
    assert found.notes == ("last_checkpoint 2026-01-15T14:30:00 has no zone: read as UTC",)
    assert reading().notes == ()


def test_a_missing_time_is_that_of_the_reading_and_the_user_is_told() -> None:
    assert "last_checkpoint is missing" in reading(last_checkpoint=None).notes[0]


def test_what_a_file_leaves_open_or_null_is_blank() -> None:
    for blank in (read(b'{"agent_id": "x"}', "x.json"), read(encoded(dict.fromkeys(AGENT) | {
            "agent_id": "x"}), "x.json")):  # fmt: skip
        body = blank.checkpoint.body()
        assert body["execution_state"]["completed_items"] == []
        assert "current_step" not in body["execution_state"]
        assert "can_resume" not in body["recovery"]


def test_an_empty_step_is_none() -> None:
    assert reading(current_step="").checkpoint.execution_state.current_step is None


def test_unknown_fields_are_kept_and_written_again() -> None:
    document = written(reading(mood={"now": "good"}, sprint=7).checkpoint)
    assert (document["mood"], document["sprint"]) == ({"now": "good"}, 7)


def test_a_file_cannot_say_what_only_the_store_knows() -> None:
    found = reading(verified=True, revision="r", version=3)
    assert (found.checkpoint.verified, found.checkpoint.revision) == (False, "")
    assert found.checkpoint.version == "1.0"
    assert len(found.notes) == 3
    kept = read(encoded(AGENT | {"syncd": {"verified": True}}), "a.json").checkpoint
    assert kept.verified is False


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"status": "SLEEPING"}, "status", "status: .*'in_progress'"),
        ({"last_checkpoint": "soon"}, "last_checkpoint", "not an ISO 8601 time"),
        ({"session_id": 7}, "session_id", "session_id: .*string"),
        ({"can_resume": "perhaps"}, "can_resume", "can_resume: .*boolean"),
        ({"completed_steps": ["one", 2]}, "completed_steps", r"\[1\]: expected a text or an obj"),
        ({"next_steps": "all"}, "next_steps", "next_steps: .*list"),
        ({"files_modified": [{}]}, "files_modified", r"files_modified\[0\]: .*string"),
        ({"syncd": 5}, "syncd", "syncd: expected what syncd wrote"),
        ({"syncd": {"metrics": {"error_count": -1}}}, "syncd", "error_count"),
    ],
)
def test_a_fault_is_named_with_its_line(changes: Any, field: str, expected: str) -> None:
    data = encoded(AGENT | changes)
    lines = data.decode().splitlines()
    with pytest.raises(FormatError, match=expected) as found:
        read(data, "secondary_a.json")
    assert found.value.source == "secondary_a.json"
    start = next(n for n, line in enumerate(lines, 1) if line.startswith(f'  "{field}"'))
    assert start <= found.value.line <= start + 3
    assert "secondary_a.json, line" in str(found.value)


@pytest.mark.parametrize(
    ("data", "line", "expected"),
    [
        (b"", 1, "expected JSON"),
        (b'{\n "agent_id": "a",\n', 3, "expected JSON"),
        (b'{\n"agent_id": "a",\n"x": 1,\n"x": 2}', 4, "twice"),
        (b'{"agent_id": "a",\n"x": [1,\nNaN]}', 3, "NaN"),
        (b'{"agent_id": "a",\n"x": "\xff"}', 2, "expected UTF-8 at byte 24"),
        (b'{"agent_id": "a",\n"x": "\\ud800"}', 2, "surrogate"),
        (b'{"agent_id": "a",\n"x": 12345678901234567890123}', 2, "would lose digits"),
        (b'{"x": ' + b"[" * 300 + b"]" * 300 + b"}", 1, "nested deeper"),
        (b"[" * 100_000, 1, "nested deeper"),
        (b"[]", 1, "agent_id"),
        (b'{"feature": "f"}', 1, "agent_id"),
        (b'{"feature": "f",\n"agent_id": null}', 2, "agent_id"),
    ],
)
def test_what_is_no_such_file_is_refused_where_it_stops_being_one(
    data: bytes, line: int, expected: str
) -> None:
    with pytest.raises(FormatError, match=expected) as found:
        read(data, "a.json")
    assert found.value.line == line


# --- writing ------------------------------------------------------------------------------------


def test_the_fields_are_written_as_the_formats_users_know_them() -> None:
    document = written(reading().checkpoint)
    assert list(document) == [*AGENT, "syncd"]
    assert {name: document[name] for name in AGENT} == AGENT


@pytest.mark.parametrize(
    ("status", "shown"),
    [("in_progress", "IN_PROGRESS"), ("waiting", "WAITING"), ("blocked", "BLOCKED"),
     ("complete", "COMPLETE"), ("escalated", "BLOCKED"), ("failed", "BLOCKED")],
)  # fmt: skip
def test_every_status_is_written_in_the_formats_words_and_read_back(
    status: str, shown: str
) -> None:
    document = written(of(status=status))
    assert document["status"] == shown
    assert document["can_resume"] is (status != "complete")
    assert read(encoded(document), "a.json").checkpoint.execution_state.status == status


@pytest.mark.parametrize(
    ("last", "due"),
    [
        ("2026-01-15T14:30:00Z", "2026-01-15T14:45:00Z"),
        ("2026-12-31T23:50:00+02:00", "2027-01-01T00:05:00+02:00"),
        ("9999-12-31T23:50:00Z", "9999-12-31T23:50:00Z"),
    ],
)
def test_the_next_checkpoint_is_due_in_a_quarter_of_an_hour(last: str, due: str) -> None:
    checkpoint = of(last_checkpoint=last)
    assert EXPECTED_AFTER.total_seconds() == 15 * 60
    assert written(checkpoint)["next_checkpoint_expected"] == due
    back = read(write(checkpoint), "a.json").checkpoint
    assert back.metadata.next_checkpoint_expected is None, "nobody has said so"


def test_what_our_own_agents_call_otherwise_is_shown_too() -> None:
    checkpoint = Checkpoint.from_dict({
        "metadata": {"task_id": "dark-mode"},
        "execution_state": {"pending_items": ["wire", {"step": "test"}], "current_focus": "css",
                            "completed_items": [{"step": "x", "files_created": ["x.ts"]}],
                            "blocked_items": [{"description": "key", "impact": "no tests"}]},
        "recovery": {"continuation_prompt": "Go on with the CSS."},
    })  # fmt: skip
    document = written(checkpoint)
    assert document["feature"] == "dark-mode"
    assert document["next_steps"] == ["wire", "test"]
    assert document["current_step"] == "css"
    assert document["files_modified"] == ["x.ts"]
    assert document["blockers"] == ["key (no tests)"]
    assert document["recovery_instructions"] == "Go on with the CSS."
    assert same(read(write(checkpoint), "x.json").checkpoint, checkpoint)


def test_an_unknown_field_that_is_called_like_a_section_comes_back() -> None:
    checkpoint = Checkpoint.from_dict({"execution_state": {}, "executionState": {"phase": 5}})
    assert "executionState" not in written(checkpoint)
    assert same(read(write(checkpoint), "a.json").checkpoint, checkpoint)


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        write(of(coordination_state={"x": float("nan")}))


@many(ROUNDS)
@given(CHECKPOINTS)
def test_any_checkpoint_comes_back_from_its_file(checkpoint: Checkpoint) -> None:
    data = write(checkpoint)
    assert same(read(data, "a.json").checkpoint, checkpoint)
    crlf = data.replace(b"\n", b"\r\n")
    assert same(read(b"\xef\xbb\xbf" + crlf, "a.json").checkpoint, checkpoint)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        ("Secondary-A", "secondary_a.json"),
        ("Agent-Primary", "primary.json"),
        ("Agent", "agent.json"),
        ("../../etc/passwd", "etc_passwd.json"),
        ("Größe 3", "groe_3.json"),
    ],
)
def test_an_agents_file_has_its_name(agent: str, name: str) -> None:
    assert file_name(agent) == name


def test_agents_without_a_latin_letter_have_a_name_each() -> None:
    assert file_name("代理一") != file_name("代理二")


@given(st.text())
def test_a_file_name_is_harmless(agent: str) -> None:
    assert re.fullmatch(r"[a-z0-9_]+\.json", file_name(agent))


AS_OF = st.sampled_from(["2026-03-01T10:00:00.123+00:00", "9999-12-31T23:59:59+00:00"])


@many(ROUNDS)
@given(CHECKPOINTS, AS_OF)
def test_any_checkpoint_that_has_changed_comes_back_with_its_own_time(
    checkpoint: Checkpoint, as_of: str
) -> None:
    data = write(checkpoint, as_of)
    assert json.loads(data)["last_checkpoint"] == as_of
    assert same(read(data, "a.json").checkpoint, checkpoint)


def test_a_change_is_shown_with_its_time_and_the_next_is_due_after_it() -> None:
    before = "2026-01-15T14:45:00Z"
    checkpoint = of(last_checkpoint="2026-01-15T14:30:00Z", next_checkpoint_expected=before)
    shown = json.loads(write(checkpoint, "2026-01-15T15:00:00Z"))
    assert shown["last_checkpoint"] == "2026-01-15T15:00:00Z"
    assert shown["next_checkpoint_expected"] == "2026-01-15T15:15:00Z"
    soon = json.loads(write(checkpoint, "2026-01-15T14:31:00Z"))
    assert soon["next_checkpoint_expected"] == before


def test_who_goes_on_with_a_file_of_ours_counts_from_his_own_time() -> None:
    document = json.loads(write(of(last_checkpoint="2026-01-15T14:30:00Z"), "2026-01-15T15:00:00Z"))
    document["last_checkpoint"] = "2026-01-15T16:00:00Z"
    found = read(encoded(document), "a.json").checkpoint
    assert found.metadata.timestamp == "2026-01-15T16:00:00Z"


@pytest.mark.parametrize("as_of", ["", "soon", "2026-01-15T15:00:00", 7, None, {}])
def test_a_time_under_our_key_that_is_none_is_left(as_of: Any) -> None:
    document = json.loads(write(of(next_checkpoint_expected="2026-01-15T14:45:00Z")))
    document["syncd"]["as_of"] = as_of
    found = read(encoded(document), "a.json").checkpoint
    assert found.metadata.timestamp == document["last_checkpoint"]
    assert "as_of" not in found.body()


# --- files that were edited ---------------------------------------------------------------------

RICH = of(
    task_id="t", mission="m", status="escalated", phase="handoff", tokens_consumed=7,
    completed_steps=[{"step": "one", "files_created": ["1.py"]}, "two"],
    pending_items=[{"step": "four", "notes": "mind the gap"}, "five"], next_steps=["three"],
    current_focus="focus", blockers=[{"description": "b", "resolution_path": "wait"}],
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"agent_id": "b"}, lambda c: c.metadata.agent_id == "b"),
        ({"agent_type": "primary"}, lambda c: c.metadata.agent_type == "primary"),
        ({"session_id": "new"}, lambda c: c.metadata.session_id == "new"),
        ({"stage": "S9"}, lambda c: c.execution_state.stage == "S9"),
        ({"phase": "Testing"}, lambda c: c.execution_state.phase == "testing"),
        ({"status": "WAITING"}, lambda c: c.execution_state.status == "waiting"),
        ({"can_resume": False}, lambda c: c.recovery.can_resume is False),
        ({"current_step": "y"}, lambda c: str(c.execution_state.current_step) == "y"
         and c.execution_state.current_focus == ""),
        ({"current_step": ""}, lambda c: not c.execution_state.current_focus),
        ({"files_modified": ["9"]}, lambda c: c.metrics.files_modified == ["9"]),
        ({"recovery_instructions": "r"}, lambda c: c.recovery.resume_instructions == "r"),
        ({"last_checkpoint": "2026-01-15T15:00:00Z"},
         lambda c: c.metadata.timestamp == "2026-01-15T15:00:00Z"),
        ({"next_checkpoint_expected": "2026-01-15T15:00:00Z"},
         lambda c: c.metadata.next_checkpoint_expected == "2026-01-15T15:00:00Z"),
        ({"coordination_state": {"n": 1}},
         lambda c: c.context_summary.coordination_state == {"n": 1}),
        ({"completed_steps": []}, lambda c: c.execution_state.completed_items == []),
        ({"blockers": []}, lambda c: c.execution_state.blocked_items == []),
    ],
)  # fmt: skip
def test_a_field_that_was_edited_counts_and_the_rest_is_kept(
    changes: dict[str, Any], found: Callable[[Checkpoint], bool]
) -> None:
    checkpoint = edited(RICH, **changes)
    assert found(checkpoint)
    assert checkpoint.metrics.tokens_consumed == 7
    assert checkpoint.metadata.task_id == "t"
    assert checkpoint.metadata.checkpoint_id == RICH.metadata.checkpoint_id


def test_a_step_that_was_added_leaves_the_others_their_files() -> None:
    state = edited(RICH, completed_steps=["one", "two", "three"]).execution_state
    assert [str(item) for item in state.completed_items] == ["one", "two", "three"]
    assert state.completed_items[0] == RICH.execution_state.completed_items[0]


def test_a_next_step_that_was_done_leaves_the_list_that_it_came_from() -> None:
    assert written(RICH)["next_steps"] == ["three", "four", "five"]
    state = edited(RICH, next_steps=["four", "six"]).execution_state
    assert state.next_steps == ["six"]
    assert state.pending_items == RICH.execution_state.pending_items[:1]


def test_another_feature_is_another_task_and_another_checkpoint() -> None:
    checkpoint = edited(RICH, feature="other").metadata
    assert (checkpoint.feature, checkpoint.task_id, checkpoint.mission) == ("other", "", "")
    assert checkpoint.checkpoint_id != RICH.metadata.checkpoint_id


# --- any bytes ----------------------------------------------------------------------------------

FIELDS = st.sampled_from(
    [*AGENT, "syncd", "metadata", "metrics", "verification", "completed_items"]
)
KEPT = st.dictionaries(
    st.sampled_from(["metadata", "execution_state", "metrics", "version", "x"]),
    VALUES | st.dictionaries(st.sampled_from(["raw", "phase", "completed_items"]), VALUES),
    max_size=2,
)
NEARLY = st.builds(
    lambda changes, kept: encoded_roughly(AGENT | changes | kept),
    st.dictionaries(FIELDS | TEXT, VALUES | st.lists(VALUES, max_size=2), max_size=3),
    st.fixed_dictionaries({}, optional={"syncd": KEPT}),
)


def encoded_roughly(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """A good file with some bytes cut out and others put in."""
    data = write(RICH) if draw(st.booleans()) else encoded(AGENT)
    at, cut = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
    return data[:at] + draw(st.binary(max_size=6)) + data[at + cut :]


@many(FUZZED)
@given(st.binary(max_size=80) | NEARLY | mangled())
def test_whatever_the_bytes_they_are_read_or_refused_with_a_place(data: bytes) -> None:
    found = outcome(data)
    if isinstance(found, FormatError):
        assert found.source == "a.json"
        assert 1 <= found.line <= data.count(b"\n") + 1
        assert found.expected
    else:
        again = read(write(found.checkpoint), "a.json").checkpoint
        assert same(again, found.checkpoint)


def outcome(data: bytes) -> Reading | FormatError:
    try:
        return read(data, "a.json")
    except FormatError as error:
        return error


# --- the file on disk ---------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent_checkpoints" / "secondary_a.json"


def numbered(number: int) -> Checkpoint:
    return of(current_step=f"step {number}")


def step_of(path: Path) -> str:
    return str(read(path.read_bytes(), "a").checkpoint.execution_state.current_step)


def test_a_missing_file_is_made_anew(path: Path) -> None:
    agent_files.update(path, numbered(1))
    assert step_of(path) == "step 1"
    assert agent_files.backups(path) == []
    assert list(path.parent.iterdir()) == [path]


def test_before_a_change_the_file_is_backed_up_and_ten_backups_are_kept(path: Path) -> None:
    for number in range(13):
        agent_files.update(path, numbered(number))
    kept = agent_files.backups(path)
    assert [step_of(backup) for backup in kept] == [f"step {n}" for n in range(11, 1, -1)]
    assert all(re.match(r"secondary_a_\d{8}_\d{6}(_\d{3})?\.json", b.name) for b in kept)
    assert {backup.parent.name for backup in kept} == {"backups"}


def test_agents_whose_names_begin_alike_have_backups_of_their_own(path: Path) -> None:
    shorter = path.with_name("secondary.json")
    for number in range(3):
        agent_files.update(path, numbered(number))
    agent_files.update(shorter, numbered(7))
    agent_files.update(shorter, numbered(8))
    assert [step_of(backup) for backup in agent_files.backups(shorter)] == ["step 7"]
    assert len(agent_files.backups(path)) == 2


def test_a_change_keeps_the_files_mode(path: Path) -> None:
    agent_files.update(path, numbered(1))
    path.chmod(0o660)
    agent_files.update(path, numbered(2))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def fault(path: Path) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read(path.read_bytes(), str(path))
    return caught.value


def damaged(path: Path, content: bytes = b'{"agent_id": ') -> FormatError:
    """Long enough ago that it is not half written."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return fault(path)


def test_a_damaged_file_is_replaced_by_its_newest_good_backup(path: Path) -> None:
    for number in range(3):
        agent_files.update(path, numbered(number))
    newest, older = agent_files.backups(path)
    newest.write_bytes(b"{")
    found = agent_files.restored(path, damaged(path))
    (kept,) = agent_files.backups(path, ".damaged")
    names = f"restored from backups/{older.name}, and kept as backups/{kept.name}"
    assert found.note.startswith("line 1: expected JSON")
    assert found.note.endswith(names)
    assert path.read_bytes() == older.read_bytes() == found.data
    assert kept.read_bytes() == b'{"agent_id": '
    assert step_of(path) == "step 0"


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b"\xff", bytes(9)])
def test_without_a_good_backup_a_damaged_file_stays_and_what_to_do_is_told(
    path: Path, content: bytes
) -> None:
    error = damaged(path, content)
    with pytest.raises(FormatError, match="no good backup of it: correct it, or let its agent"):
        agent_files.restored(path, error)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_whole_and_wrong_is_not_replaced(path: Path) -> None:
    """Somebody wrote it so."""
    agent_files.update(path, numbered(1))
    agent_files.update(path, numbered(2))
    error = damaged(path, b'{"agent_id": "a", "status": 7}')
    with pytest.raises(FormatError) as caught:
        agent_files.restored(path, error)
    assert caught.value is error
    assert agent_files.backups(path, ".damaged") == []


def test_one_that_is_being_written_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_files.update(path, numbered(1))
    agent_files.update(path, numbered(2))
    path.write_bytes(b'{"agent_id": ')
    error, slept = fault(path), []

    def finish(seconds: float) -> None:
        slept.append(seconds)
        path.write_bytes(write(numbered(3)))

    monkeypatch.setattr(time, "sleep", finish)
    found = agent_files.restored(path, error)
    assert (found.data, found.note) == (path.read_bytes(), "")
    assert step_of(path) == "step 3"
    assert 0 < slept[0] <= agent_files.HALF_WRITTEN_SECONDS


def test_what_was_written_in_the_last_moment_is_not_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_files.update(path, numbered(1))
    agent_files.update(path, numbered(2))
    error = damaged(path)

    def overtaken(target: Path, content: bytes) -> None:
        files.replace(target, content)
        path.write_bytes(write(numbered(3)))

    monkeypatch.setattr(agent_files, "replace", overtaken)
    with pytest.raises(FormatError, match="it is being written: look again"):
        agent_files.restored(path, error)
    assert step_of(path) == "step 3"


def test_damaged_files_do_not_push_out_good_backups(path: Path) -> None:
    agent_files.update(path, numbered(1))
    for _ in range(12):
        agent_files.update(path, numbered(2))
        path.write_bytes(b"{")
    assert len(agent_files.backups(path)) == 1
    assert len(agent_files.backups(path, ".damaged")) == 10


def test_what_was_damaged_while_it_was_written_is_brought_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_files.update(path, numbered(1))

    def torn(target: Path, content: bytes) -> None:
        new = b"step 2" in content
        files.replace(target, content[:50] if new else content)

    monkeypatch.setattr(agent_files, "replace", torn)
    with pytest.raises(CheckpointCorruptionError, match="restored from backups"):
        agent_files.update(path, numbered(2))
    assert step_of(path) == "step 1"


def test_what_another_wrote_meanwhile_is_noticed_and_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overtaken(target: Path, content: bytes) -> None:
        files.replace(target, write(numbered(9)))

    monkeypatch.setattr(agent_files, "replace", overtaken)
    with pytest.raises(CheckpointCorruptionError, match="something else"):
        agent_files.update(path, numbered(2))
    assert step_of(path) == "step 9"


@pytest.mark.parametrize("kind", ["crashed", "aborted"])
def test_a_file_is_put_aside_under_a_name_of_its_own(path: Path, kind: Any) -> None:
    names = []
    for number in range(3):
        agent_files.update(path, numbered(number))
        names.append(agent_files.archive(path, kind))
        assert not path.exists()
    assert [step_of(name) for name in names] == ["step 0", "step 1", "step 2"]
    assert all(re.fullmatch(rf"secondary_a_{kind}_\d{{10}}\.json", name.name) for name in names)


def test_a_failed_write_leaves_the_file_and_no_draft(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent_files.update(path, numbered(1))
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.replace(path, b"{}")
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".*"))


def test_a_link_to_a_file_stays_and_what_is_no_file_is_never_replaced(path: Path) -> None:
    link, fifo = path.with_name("link"), path.with_name("fifo")
    agent_files.update(path, numbered(2))
    link.symlink_to(path)
    agent_files.update(link, numbered(1))
    files.replace(link, b"{}")
    assert link.is_symlink()
    assert path.read_bytes() == b"{}"
    os.mkfifo(fifo)
    with pytest.raises(InvalidInputError, match="is no file"):  # it would be read, without an end
        agent_files.update(fifo, numbered(1))
    reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    files.replace(fifo, b"{}")
    assert os.read(reading, 10) == b"{}"
    os.close(reading)
    assert fifo.is_fifo()


def test_names_are_written_in_full(path: Path) -> None:
    agent_files.update(path, of(feature="Größe 日本"))
    assert "Größe 日本" in path.read_text("utf-8")
    assert agent_json.read(path.read_bytes(), "a").owner == "groe"
