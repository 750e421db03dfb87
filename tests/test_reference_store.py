"""The reference implementation's store: verified when it is read, accepted by it when written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from typing import Any

import pytest
from arbitrary import checkpoints, mangled
from counts import full
from hypothesis import given, settings

from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats import reference_store as store
from syncd.formats.reading import FormatError

# --- the documented rules of the other side -----------------------------------------------------

FIELDS = {
    "metadata": "checkpoint_id task_id agent_id agent_type iteration timestamp",
    "execution_state": "phase completed_items pending_items blocked_items current_focus",
    "context_summary": "key_decisions assumptions constraints external_dependencies",
    "metrics": "tokens_consumed tools_invoked files_modified tests_status duration_seconds "
    "error_count",
    "recovery": "last_successful_state rollback_instructions continuation_prompt",
    "compliance": "event_log_ref hash signature retention_policy",
}


@dataclasses.dataclass
class Tests:
    """It is built from all that `tests_status` has: an unknown field is a TypeError."""

    __test__ = False
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    coverage_percent: float = 0.0


def taken(text: bytes) -> dict[str, Any]:
    """What the other side makes of a file: of each section the fields that it knows."""
    given = json.loads(text)
    document = {"version": given["version"]}
    for section, names in FIELDS.items():
        document[section] = {name: given[section][name] for name in names.split()}
    tests = Tests(**document["metrics"]["tests_status"])
    document["metrics"]["tests_status"] = dataclasses.asdict(tests)
    return document


def hashed(document: dict[str, Any]) -> str:
    emptied = {**document, "compliance": {**document["compliance"], "hash": ""}}
    return hashlib.sha256(json.dumps(emptied, sort_keys=True).encode()).hexdigest()


def sealed(document: dict[str, Any]) -> bytes:
    """A file as the other side writes it."""
    document["compliance"]["hash"] = hashed(document)
    return json.dumps(document, indent=2).encode()


def theirs() -> dict[str, Any]:
    return {
        "version": "1.0",
        "metadata": {
            "checkpoint_id": "5f0c2f2e-0c57-4f38-9f8e-5b3a4d2b8f11",
            "task_id": "task-2026-01-24-001",
            "agent_id": "implementation-agent-3",
            "agent_type": "implementation",
            "iteration": 2,
            "timestamp": "2026-01-24T09:30:00.123456+00:00",
        },
        "execution_state": {
            "phase": "implementing",
            "completed_items": ["the schema", "é漢😀"],
            "pending_items": ["the form"],
            "blocked_items": [],
            "current_focus": "the form",
        },
        "context_summary": {
            "key_decisions": ["cents, not floats"],
            "assumptions": [],
            "constraints": ["no downtime"],
            "external_dependencies": [],
        },
        "metrics": {
            "tokens_consumed": 48_000,
            "tools_invoked": 12,
            "files_modified": ["a.py"],
            "tests_status": {"passed": 4, "failed": 0, "skipped": 1, "coverage_percent": 80.0},
            "duration_seconds": 0.0,
            "error_count": 0,
        },
        "recovery": {
            "last_successful_state": "an-older-one",
            "rollback_instructions": "",
            "continuation_prompt": "## Continuation\n\ngo on",
        },
        "compliance": {
            "event_log_ref": "fdb://events/t/checkpoint/c",
            "hash": "",
            "signature": "",
            "retention_policy": "default",
        },
    }


SOURCE = "task-2026-01-24-001/5f0c2f2e.json"


# --- reading ------------------------------------------------------------------------------------


def test_a_file_of_theirs_is_read_and_verified() -> None:
    reading = store.read(sealed(theirs()), SOURCE)
    body = reading.checkpoint.body()
    for section, names in FIELDS.items():
        for name in set(names.split()) - {"hash", "signature"}:
            assert body[section][name] == theirs()[section][name]
    assert reading.owner == "task-2026-01-24-001"
    assert reading.notes == ()
    assert reading.checkpoint.compliance.hash == "", "the proof is one by another rule"


def test_a_file_without_a_task_belongs_to_its_folder() -> None:
    document = theirs()
    document["metadata"]["task_id"] = ""
    assert store.read(sealed(document), SOURCE).owner == "task-2026-01-24-001"


def test_fields_that_are_not_there_are_what_the_other_side_takes_them_for() -> None:
    whole = theirs()
    whole["execution_state"]["current_focus"] = ""
    whole["recovery"] = dict.fromkeys(whole["recovery"], "")
    document = json.loads(sealed(whole))
    del document["execution_state"]["current_focus"], document["recovery"], document["version"]
    reading = store.read(json.dumps(document).encode(), SOURCE)
    assert reading.checkpoint.execution_state.completed_items == ["the schema", "é漢😀"]


def test_what_the_hash_does_not_cover_is_left_out_and_said() -> None:
    document = json.loads(sealed(theirs()))
    document["metadata"]["mood"] = document["extra"] = "good"
    reading = store.read(json.dumps(document).encode(), SOURCE)
    assert "mood" not in reading.checkpoint.body()["metadata"]
    assert "extra" not in reading.checkpoint.body()
    assert reading.notes == (
        "extra was left out: the hash does not cover it",
        "metadata.mood was left out: the hash does not cover it",
    )


def test_a_time_without_a_zone_is_read_as_utc_and_said() -> None:
    document = theirs()
    document["metadata"]["timestamp"] = "2026-01-24T09:30:00"
    reading = store.read(sealed(document), SOURCE)
    assert reading.checkpoint.metadata.timestamp == "2026-01-24T09:30:00+00:00"
    assert reading.notes == ("the time 2026-01-24T09:30:00 has no zone: read as UTC",)


def changed(value: Any) -> Any:
    if isinstance(value, list | dict):
        return ["x"] if isinstance(value, list) else {"passed": 9}
    return f"{value}x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("section", FIELDS)
def test_a_change_of_any_field_is_found(section: str) -> None:
    for name in FIELDS[section].split():
        document = json.loads(sealed(theirs()))
        document[section][name] = changed(document[section][name])
        text = json.dumps(document, indent=2)
        with pytest.raises(FormatError, match="expected the hash of the content") as caught:
            store.read(text.encode(), SOURCE)
        assert '"hash"' in text.splitlines()[caught.value.line - 1]


@pytest.mark.parametrize(
    ("data", "line", "expected"),
    [
        (b"", 1, "expected JSON"),
        (b"{\n\n,}", 3, "expected JSON"),
        (b"[]", 1, "expected a JSON object"),
        (b"{}", 1, "expected `metadata.checkpoint_id`"),
        (b'{\n"metadata": 1}', 2, "expected an object for `metadata`"),
        (b'{"metadata":\n{"checkpoint_id": "c"}}', 1, "expected `metadata.timestamp`"),
        (b'{"a": "\xff"}', 1, "expected UTF-8"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(data: bytes, line: int, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        store.read(data, SOURCE)
    assert caught.value.line == line


def test_a_file_without_a_hash_is_not_verified_which_is_an_error() -> None:
    with pytest.raises(FormatError, match="line 53: expected a hash"):
        store.read(json.dumps(theirs(), indent=2).encode(), SOURCE)


@pytest.mark.parametrize(
    ("section", "name", "value", "expected"),
    [
        ("metadata", "timestamp", 5, "ISO 8601"),
        ("metadata", "iteration", -1, "metadata.iteration"),
        ("execution_state", "completed_items", [1], "execution_state.completed_items"),
        ("metrics", "tests_status", [], "an object for `tests_status`"),
        ("metrics", "tokens_consumed", 2**60 + 1, "metrics.tokens_consumed"),
    ],
)
def test_a_verified_file_that_is_no_checkpoint_is_refused(
    section: str, name: str, value: Any, expected: str
) -> None:
    document = theirs()
    document[section][name] = value
    with pytest.raises(FormatError, match=expected) as caught:
        store.read(sealed(document), SOURCE)
    assert f'"{name}"' in json.dumps(document, indent=2).splitlines()[caught.value.line - 1]


def test_half_a_character_is_refused() -> None:
    document = theirs()
    document["recovery"]["continuation_prompt"] = "\ud800"
    with pytest.raises(FormatError, match="surrogate"):
        store.read(sealed(document), SOURCE)


# --- writing ------------------------------------------------------------------------------------


def structured() -> Checkpoint:
    document = theirs()
    document["execution_state"]["completed_items"] = [{"step": "s", "files_created": ["f"]}]
    document["execution_state"]["status"] = "blocked"
    document["context_summary"]["key_decisions"] = [{"decision": "d", "rationale": "r"}]
    document["metrics"]["tests_status"]["flaky"] = 2
    document["x"] = [1.5]
    return Checkpoint.from_dict(document)


def test_what_is_written_is_accepted_on_the_other_side_and_reads_the_same_here() -> None:
    written = store.write(structured())
    document = taken(written)
    assert document["compliance"]["hash"] == hashed(document)
    assert document["execution_state"]["completed_items"] == ["s"]
    assert document["context_summary"]["key_decisions"] == ["d (r)"]
    assert store.read(written, SOURCE).checkpoint.body() == structured().body()


def test_a_checkpoint_that_the_other_side_can_say_in_full_is_written_as_it_would() -> None:
    document = theirs()
    for name, number in (("duration_seconds", 0), ("tests_status", {"passed": 1, "failed": 0,
                         "skipped": 0, "coverage_percent": 0})):  # fmt: skip
        document["metrics"][name] = number
    assert store.write(Checkpoint.from_dict(document)) == sealed(document)


def test_once_the_other_side_has_rewritten_a_file_it_is_still_read() -> None:
    document = taken(store.write(structured()))
    document["recovery"]["last_successful_state"] = "linked"
    reading = store.read(sealed(document), SOURCE)
    assert reading.checkpoint.recovery.last_successful_state == "linked"
    assert reading.checkpoint.execution_state.completed_items == ["s"]


@pytest.mark.parametrize("change", ["fields", "hash", "known", "shape"])
def test_a_change_of_what_syncd_added_is_found(change: str) -> None:
    document = json.loads(store.write(structured()))
    if change == "fields":
        document["syncd"]["fields"]["execution_state"]["status"] = "complete"
    elif change == "hash":
        document["syncd"]["hash"] = "0" * 64
    elif change == "known":
        document = {**taken(store.write(structured())), "syncd": document["syncd"]}
        document["recovery"]["last_successful_state"] = "linked"
        ours = document.pop("syncd")
        document = {**json.loads(sealed(document)), "syncd": ours}
    else:
        document["syncd"] = ["x"]
    with pytest.raises(FormatError, match="expected"):
        store.read(json.dumps(document).encode(), SOURCE)


def test_the_pointer_names_the_newest() -> None:
    checkpoint = Checkpoint.from_dict(theirs())
    assert json.loads(store.latest(checkpoint)) == {
        "checkpoint_id": checkpoint.metadata.checkpoint_id,
        "timestamp": checkpoint.metadata.timestamp,
    }
    assert not store.is_name(store.LATEST)
    name = store.file_name(checkpoint)
    assert name == f"task-2026-01-24-001/{checkpoint.metadata.checkpoint_id}.json"
    assert store.is_name(name)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a/b", "/etc", "a\\b", "C:", "a\0", "latest", "a\n"]
)
def test_an_id_that_leads_elsewhere_is_no_name_of_a_file(text: str) -> None:
    for name in ("task_id", "checkpoint_id"):
        metadata = {"task_id": "t", "checkpoint_id": "c", name: text}
        with pytest.raises(InvalidInputError, match="cannot be the name of a file"):
            store.file_name(Checkpoint.from_dict({"metadata": metadata}))


@settings(max_examples=full(60, 10_000))
@given(checkpoints)
def test_any_checkpoint_is_accepted_there_and_reads_as_it_was_written(
    checkpoint: Checkpoint,
) -> None:
    written = store.write(checkpoint)
    document = taken(written)
    assert document["compliance"]["hash"] == hashed(document)
    assert store.read(written, SOURCE).checkpoint.body() == checkpoint.body()


def test_whatever_the_bytes_a_file_is_verified_or_refused() -> None:
    chance = random.Random(8)
    whole = sealed(theirs())
    original = store.read(whole, SOURCE).checkpoint.body()
    samples, count, refused = [whole], full(2_000, 50_000), 0
    for _ in range(count):
        try:
            reading = store.read(mangled(chance, samples), SOURCE)
        except FormatError:
            refused += 1
        else:
            assert reading.checkpoint.body() == original, "only what no hash covers may change"
    assert refused > 0.9 * count
