from __future__ import annotations

import json
import logging
import re
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from syncd import checkpoint as domain
from syncd.canonical import canonical
from syncd.checkpoint import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointMetrics,
    ContextSummary,
    ExecutionState,
    RecoveryInfo,
)
from syncd.errors import InvalidInputError
from syncd.items import Step, Workspace
from syncd.part import Part
from syncd.seal import digest
from syncd.service import CheckpointService
from syncd.vocabulary import ExecutionPhase

SCHEMA_FILE = Path(__file__).parent.parent / "schema" / "checkpoint.schema.json"

# A checkpoint of schema 1.0 with every field it names and nothing else.
SCHEMA_1_0: dict[str, Any] = {
    "version": "1.0",
    "metadata": {
        "checkpoint_id": "01a1e481-b340-75e3-963a-28bfc4849eaa",
        "task_id": "payments",
        "agent_id": "implementation-3",
        "agent_type": "implementation",
        "iteration": 4,
        "timestamp": "2026-01-24T09:30:00+01:00",
    },
    "execution_state": {
        "phase": "implementing",
        "completed_items": ["schema", "migration"],
        "pending_items": ["endpoint"],
        "blocked_items": ["deploy: no credentials"],
        "current_focus": "endpoint",
    },
    "context_summary": {
        "key_decisions": ["amounts are integers of cents"],
        "assumptions": ["one currency"],
        "constraints": ["no downtime"],
        "external_dependencies": ["bank API v2"],
    },
    "metrics": {
        "tokens_consumed": 48_000,
        "tools_invoked": 112,
        "files_modified": ["src/payments.py"],
        "tests_status": {"passed": 40, "failed": 1, "skipped": 2, "coverage_percent": 87.5},
    },
    "recovery": {
        "last_successful_state": "",
        "rollback_instructions": "git reset --hard HEAD~1",
        "continuation_prompt": "Finish the endpoint.",
    },
    "compliance": {
        "event_log_ref": "",
        "hash": "",
        "signature": "",
        "retention_policy": "7 years",
    },
}

# What a builder keeps under `activePrd.checkpoint`.
BUILDER_STATE: dict[str, Any] = {
    "phase": "implementation",
    "completedSteps": [
        {
            "step": "Created DarkModeToggle component",
            "filesCreated": ["src/components/DarkModeToggle.tsx"],
            "filesModified": [],
            "timestamp": "2026-02-28T10:00:00Z",
        },
        {
            "step": "Added ThemeContext for state management",
            "filesCreated": ["src/contexts/ThemeContext.tsx"],
            "filesModified": ["src/App.tsx"],
            "timestamp": "2026-02-28T10:05:00Z",
        },
    ],
    "pendingSteps": ["Wire toggle to ThemeContext", "Write unit tests for toggle"],
    "currentStep": {
        "description": "Wire toggle to ThemeContext",
        "startedAt": "2026-02-28T10:10:00Z",
        "partialWork": "Added useTheme import, started onClick handler",
    },
    "decisions": [
        {
            "decision": "Use CSS custom properties for theming",
            "rationale": "Avoids runtime style calculation, better performance",
            "timestamp": "2026-02-28T10:02:00Z",
        }
    ],
    "blockers": [],
    "verification": {
        "contractRef": "US-003.verificationContract",
        "results": [{"activity": "lint", "status": "passed", "runAt": "2026-02-28T10:09:00Z"}],
    },
    "metadata": {
        "createdBy": "react-dev",
        "lastUpdatedAt": "2026-02-28T10:10:00Z",
        "reason": "periodic",
        "previousAgents": ["css-dev"],
    },
}

# What a parallel agent keeps in its own file.
AGENT_FILE: dict[str, Any] = {
    "agent_id": "Secondary-A",
    "agent_type": "secondary",
    "session_id": "b1946ac9",
    "feature": "feature_02_team_penalty",
    "stage": "S2.P2",
    "phase": "Specification",
    "last_checkpoint": "2026-01-15T14:30:00Z",
    "next_checkpoint_expected": "2026-01-15T14:45:00Z",
    "status": "IN_PROGRESS",
    "can_resume": False,
    "blockers": ["waiting for the schema"],
    "files_modified": ["feature_02/spec.md"],
    "recovery_instructions": "Go on with section 5.",
    "current_step": "Writing section 5",
    "completed_steps": ["guide read", "sections 1-4"],
    "next_steps": ["acceptance criteria"],
    "coordination_state": {"unread_messages": 0},
}


# --- what goes out ------------------------------------------------------------------------------


def test_a_blank_checkpoint_has_every_field_of_the_schema_and_no_addition() -> None:
    document = Checkpoint().to_dict()
    metadata = document.pop("metadata")
    assert uuid.UUID(metadata.pop("checkpoint_id")).version == 7
    assert datetime.fromisoformat(metadata.pop("timestamp")).utcoffset() == timedelta(0)
    assert metadata == {
        "task_id": "",
        "agent_id": "",
        "agent_type": "implementation",
        "iteration": 1,
    }
    assert document == {
        "version": "1.0",
        "execution_state": {
            "phase": "planning",
            "status": "in_progress",
            "completed_items": [],
            "pending_items": [],
            "blocked_items": [],
            "current_focus": "",
        },
        "context_summary": {
            "key_decisions": [],
            "assumptions": [],
            "constraints": [],
            "external_dependencies": [],
        },
        "metrics": {
            "tokens_consumed": 0,
            "tools_invoked": 0,
            "files_modified": [],
            "tests_status": {"passed": 0, "failed": 0, "skipped": 0, "coverage_percent": 0},
            "duration_seconds": 0,
            "error_count": 0,
        },
        "recovery": {
            "last_successful_state": "",
            "rollback_instructions": "",
            "continuation_prompt": "",
        },
        "compliance": {
            "event_log_ref": "",
            "hash": "",
            "signature": "",
            "retention_policy": "default",
        },
    }


def test_two_checkpoints_made_alike_have_ids_and_lists_of_their_own() -> None:
    one, other = Checkpoint(), Checkpoint()
    assert one.metadata.checkpoint_id != other.metadata.checkpoint_id
    one.execution_state.completed_items.append("a")
    one.metrics.files_modified.append("b")
    assert (other.execution_state.completed_items, other.metrics.files_modified) == ([], [])


ADDITIONS: dict[str, dict[str, Any]] = {
    "metadata": {
        "reason": "manual",
        "session_id": "s",
        "mission": "m",
        "feature": "f",
        "series": {"number": 2, "total": 3},
        "previous_agents": ["a"],
        "handoff_from": "b",
        "next_checkpoint_expected": "2026-01-01T00:15:00Z",
    },
    "execution_state": {
        "stage": "S2",
        "current_step": {"description": "d", "started_at": "2026-01-01T00:00:00Z"},
        "next_steps": ["n"],
        "error": "boom",
        "raw": {"phase": "p"},
    },
    "context_summary": {
        "findings": ["f", {"text": "t", "category": "c"}],
        "state": {"k": [1, 2.5, None]},
        "coordination_state": {"c": True},
        "chain_summary": ["one"],
    },
    "metrics": {"context_used_percent": 71.5, "cost_usd": 0.25},
    "recovery": {
        "resume_instructions": "r",
        "can_resume": True,
        "escalation": {"to": "t", "reason": "r", "decision_needed": "d"},
        "blocker_resolution": {"original_blocker": "o", "resolution": "r", "resolved_by": "b"},
    },
    "compliance": {"signed_by": {"name": "n", "meaning": "approved", "at": "2026-01-01T00:00:00Z"}},
    "verification": {"contract_ref": "c", "results": [{"activity": "a", "status": "failed"}]},
    "workspace": {
        "repository": "host/owner/name",
        "branch": "main",
        "head": "0" * 40,
        "dirty": True,
        "files": {"a.py": "f" * 64},
    },
}


def test_additions_are_written_when_set_and_come_back_as_they_were() -> None:
    document = {**SCHEMA_1_0}
    for section, values in ADDITIONS.items():
        document[section] = {**document.get(section, {}), **values}
    written = Checkpoint.from_dict(document).to_dict()
    for section, values in ADDITIONS.items():
        assert {name: written[section][name] for name in values} == values
    assert Checkpoint.from_dict(written).to_dict() == written


@pytest.mark.parametrize(
    ("section", "values"),
    [
        pytest.param(
            "metrics",
            {"context_used_percent": 0, "cost_usd": 0},
        ),
        ("recovery", {"can_resume": False}),
    ],
)
def test_an_addition_that_was_set_to_zero_or_false_is_still_set(
    section: str, values: dict[str, Any]
) -> None:
    written = Checkpoint.from_dict({section: values}).to_dict()
    assert {name: written[section].get(name) for name in values} == values


def with_unknowns(value: Any, path: str = "top") -> Any:
    """The same document with a field that nobody knows in each of its objects."""
    if isinstance(value, dict):
        inner = {key: with_unknowns(item, f"{path}.{key}") for key, item in value.items()}
        return {**inner, "x_unknown": {"at": path, "n": [1, None, {"deep": 1.5}]}}
    if isinstance(value, list):
        return [with_unknowns(item, f"{path}[{n}]") for n, item in enumerate(value)]
    return value


def unknowns(value: Any) -> list[str]:
    """Where the fields that `with_unknowns` added stand now."""
    if isinstance(value, list):
        return [place for item in value for place in unknowns(item)]
    if not isinstance(value, dict):
        return []
    own = [value["x_unknown"]["at"]] if "x_unknown" in value else []
    return own + [
        place for key, item in value.items() if key != "x_unknown" for place in unknowns(item)
    ]


def full_document() -> dict[str, Any]:
    document = json.loads(json.dumps(SCHEMA_1_0))
    for section in ADDITIONS:
        document[section] = {**document.get(section, {}), **ADDITIONS[section]}
    document["execution_state"]["completed_items"].append({"step": "s", "files_created": ["f"]})
    document["execution_state"]["blocked_items"].append({"description": "b", "impact": "i"})
    document["context_summary"]["key_decisions"].append({"decision": "d", "rationale": "r"})
    # These two map names to texts: anything in them is data, not an unknown field.
    raw, files = document["execution_state"].pop("raw"), document["workspace"].pop("files")
    document = dict(with_unknowns(document))
    document["execution_state"]["raw"], document["workspace"]["files"] = raw, files
    return document


def test_unknown_fields_are_kept_at_every_level() -> None:
    document = full_document()
    written = Checkpoint.from_dict(document).to_dict()
    assert sorted(unknowns(written)) == sorted(unknowns(document))
    assert len(unknowns(written)) >= 20
    assert Checkpoint.from_dict(written).to_dict() == written


def test_unknown_fields_survive_write_update_and_read(service: CheckpointService) -> None:
    document = full_document()
    saved = service.save(Checkpoint.from_dict(document))
    service.update_checkpoint(saved.metadata.checkpoint_id, {"metrics": {"tokens_consumed": 9}})
    read = service.get_checkpoint(saved.metadata.checkpoint_id)
    assert sorted(unknowns(read.to_dict())) == sorted(unknowns(document))
    assert read.verify_integrity()


# --- what comes in ------------------------------------------------------------------------------


def test_the_schemas_own_shape_is_read_field_by_field() -> None:
    checkpoint = Checkpoint.from_dict(SCHEMA_1_0)
    written = checkpoint.to_dict()
    for section, values in SCHEMA_1_0.items():
        if isinstance(values, dict):
            assert {name: written[section][name] for name in values} == values
    assert checkpoint.metadata.iteration == 4
    assert checkpoint.metrics.tests_status.coverage_percent == 87.5


def test_a_builders_checkpoint_is_read_into_the_schemas_sections() -> None:
    checkpoint = Checkpoint.from_dict(BUILDER_STATE)
    state, context = checkpoint.execution_state, checkpoint.context_summary
    assert (state.phase, state.raw) == ("implementing", {"phase": "implementation"})
    assert list(map(str, state.completed_items)) == [
        "Created DarkModeToggle component",
        "Added ThemeContext for state management",
    ]
    second = state.completed_items[1]
    assert isinstance(second, Step)
    assert second.files_created == ["src/contexts/ThemeContext.tsx"]
    assert second.files_modified == ["src/App.tsx"]
    assert state.pending_items == ["Wire toggle to ThemeContext", "Write unit tests for toggle"]
    assert state.current_step is not None
    assert state.current_step.partial_work == "Added useTheme import, started onClick handler"
    assert state.current_step.started_at == "2026-02-28T10:10:00Z"
    assert [str(decision) for decision in context.key_decisions] == [
        "Use CSS custom properties for theming "
        "(Avoids runtime style calculation, better performance)"
    ]
    assert checkpoint.metadata.agent_id == "react-dev"
    assert checkpoint.metadata.timestamp == "2026-02-28T10:10:00Z"
    assert checkpoint.metadata.reason == "periodic"
    assert checkpoint.metadata.previous_agents == ["css-dev"]
    assert checkpoint.verification is not None
    assert checkpoint.verification.contract_ref == "US-003.verificationContract"
    assert checkpoint.verification.results[0].run_at == "2026-02-28T10:09:00Z"
    assert set(checkpoint.named_files()) == {
        "src/components/DarkModeToggle.tsx",
        "src/contexts/ThemeContext.tsx",
        "src/App.tsx",
    }


def test_an_agents_own_file_is_read_into_the_schemas_sections() -> None:
    checkpoint = Checkpoint.from_dict(AGENT_FILE)
    metadata, state = checkpoint.metadata, checkpoint.execution_state
    assert (metadata.agent_id, metadata.agent_type) == ("Secondary-A", "secondary")
    assert (metadata.session_id, metadata.feature) == ("b1946ac9", "feature_02_team_penalty")
    assert metadata.timestamp == "2026-01-15T14:30:00Z"
    assert metadata.next_checkpoint_expected == "2026-01-15T14:45:00Z"
    assert (state.phase, state.status, state.stage) == ("planning", "in_progress", "S2.P2")
    assert state.raw == {"phase": "Specification", "status": "IN_PROGRESS"}
    assert state.blocked_items == ["waiting for the schema"]
    assert state.completed_items == ["guide read", "sections 1-4"]
    assert state.next_steps == ["acceptance criteria"]
    assert str(state.current_step) == "Writing section 5"
    assert checkpoint.recovery.can_resume is False
    assert checkpoint.recovery.resume_instructions == "Go on with section 5."
    assert checkpoint.metrics.files_modified == ["feature_02/spec.md"]
    assert checkpoint.context_summary.coordination_state == {"unread_messages": 0}


PHASES = {
    "implementation": "implementing",
    "verification": "testing",
    "documentation": "reviewing",
    "Planning": "planning",
    "TESTING": "testing",
    "hand-off": "handoff",
    "done": "complete",
}


@pytest.mark.parametrize(("text", "phase"), PHASES.items())
def test_other_tools_words_for_a_phase_are_understood_and_kept(text: str, phase: str) -> None:
    state = ExecutionState.from_dict({"phase": text})
    assert (state.phase, state.stage) == (phase, "")
    assert state.raw == {"phase": text}


@pytest.mark.parametrize("phase", list(ExecutionPhase))
def test_a_canonical_phase_is_taken_as_it_is(phase: str) -> None:
    assert ExecutionState.from_dict({"phase": phase}).to_dict()["phase"] == phase
    assert ExecutionState.from_dict({"phase": phase}).raw == {}


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("Specification - In Progress", "planning"),
        ("Phase 3: implementaton of the API", "implementing"),
        ("S2.P2 verifying / testing the importer", "testing"),
        ("Code Review", "reviewing"),
        ("Kaffeepause", "planning"),
    ],
)
def test_a_free_phase_is_the_nearest_one_with_its_text_in_stage(text: str, phase: str) -> None:
    state = ExecutionState.from_dict({"phase": text})
    assert (state.phase, state.stage, state.raw) == (phase, text, {"phase": text})


def test_a_stage_that_was_given_is_not_replaced_by_the_phases_text() -> None:
    state = ExecutionState.from_dict({"phase": "Research Phase - Starting", "stage": "S2.P1"})
    assert (state.phase, state.stage) == ("planning", "S2.P1")
    assert state.raw == {"phase": "Research Phase - Starting"}


STATUSES = {
    "IN_PROGRESS": "in_progress",
    "In Progress": "in_progress",
    "in-progress": "in_progress",
    " Waiting ": "waiting",
    "BLOCKED": "blocked",
    "COMPLETE": "complete",
    "Completed": "complete",
    "Escalated": "escalated",
    "error": "failed",
    "crashed": "failed",
}


@pytest.mark.parametrize(("text", "status"), STATUSES.items())
def test_other_tools_words_for_a_status_are_understood_and_kept(text: str, status: str) -> None:
    state = ExecutionState.from_dict({"status": text})
    assert (state.status, state.raw) == (status, {"status": text})


def test_a_status_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^status: Input should be 'in_progress', "):
        ExecutionState.from_dict({"status": "sideways"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("periodic", "periodic"),
        ("Context Limit", "context_limit"),
        ("context_threshold", "context_limit"),
        ("RATE_LIMIT", "rate_limit"),
        ("error", "failure"),
        ("handoff", "reassignment"),
        ("user", "manual"),
    ],
)
def test_other_words_for_a_reason_are_understood(text: str, reason: str) -> None:
    assert CheckpointMetadata.from_dict({"reason": text}).reason == reason


def test_an_agent_type_that_nobody_knows_is_accepted() -> None:
    assert CheckpointMetadata(agent_type="gardener").agent_type == "gardener"


CAMEL = [
    (CheckpointMetadata, "taskId", "task_id", "t"),
    (CheckpointMetadata, "agentId", "agent_id", "a"),
    (CheckpointMetadata, "createdBy", "agent_id", "a"),
    (CheckpointMetadata, "lastUpdatedAt", "timestamp", "2026-01-01T00:00:00Z"),
    (CheckpointMetadata, "sessionId", "session_id", "s"),
    (CheckpointMetadata, "previousAgents", "previous_agents", ["a"]),
    (ExecutionState, "completedSteps", "completed_items", ["a"]),
    (ExecutionState, "completedItems", "completed_items", ["a"]),
    (ExecutionState, "pendingSteps", "pending_items", ["a"]),
    (ExecutionState, "pendingItems", "pending_items", ["a"]),
    (ExecutionState, "blockedItems", "blocked_items", ["a"]),
    (ExecutionState, "blockers", "blocked_items", ["a"]),
    (ExecutionState, "currentFocus", "current_focus", "a"),
    (ExecutionState, "nextSteps", "next_steps", ["a"]),
    (ContextSummary, "keyDecisions", "key_decisions", ["a"]),
    (ContextSummary, "decisions", "key_decisions", ["a"]),
    (ContextSummary, "externalDependencies", "external_dependencies", ["a"]),
    (CheckpointMetrics, "tokensConsumed", "tokens_consumed", 5),
    (CheckpointMetrics, "filesModified", "files_modified", ["a"]),
    (RecoveryInfo, "lastSuccessfulState", "last_successful_state", "a"),
    (RecoveryInfo, "resumeInstructions", "resume_instructions", "a"),
    (RecoveryInfo, "canResume", "can_resume", False),
]


@pytest.mark.parametrize(
    ("kind", "given_name", "name", "value"),
    CAMEL,
    ids=[f"{row[0].__name__}-{row[1]}" for row in CAMEL],
)
def test_names_in_camel_case_are_read_and_written_canonically(
    kind: type[Part], given_name: str, name: str, value: Any
) -> None:
    written = kind.from_dict({given_name: value}).to_dict()
    assert written[name] == value
    assert given_name not in written


def test_sections_may_be_named_in_camel_case() -> None:
    checkpoint = Checkpoint.from_dict(
        {"executionState": {"phase": "testing"}, "contextSummary": {"assumptions": ["a"]}}
    )
    assert checkpoint.execution_state.phase == "testing"
    assert checkpoint.context_summary.assumptions == ["a"]


def test_texts_and_structured_items_may_stand_in_for_each_other() -> None:
    state = ExecutionState.from_dict(
        {
            "completed_items": ["plain", {"step": "structured", "files_modified": ["f"]}],
            "pending_items": [{"description": "from a tracker"}, "plain"],
            "blockers": ["plain", {"blocker": "structured", "impact": "all"}],
            "current_step": "plain",
        }
    )
    assert list(map(str, state.completed_items)) == ["plain", "structured"]
    assert list(map(str, state.pending_items)) == ["from a tracker", "plain"]
    assert list(map(str, state.blocked_items)) == ["plain", "structured (all)"]
    assert state.current_step is not None
    assert state.current_step.description == "plain"
    context = ContextSummary.from_dict(
        {
            "key_decisions": ["plain", {"decision": "d", "rationale": "why"}],
            "findings": {"security": "none", "speed": "slow"},
        }
    )
    assert list(map(str, context.key_decisions)) == ["plain", "d (why)"]
    assert list(map(str, context.findings)) == ["security: none", "speed: slow"]


def test_a_current_step_in_camel_case_may_be_a_text_too() -> None:
    state = ExecutionState.from_dict({"currentStep": "writing"})
    assert str(state.current_step) == "writing"


def test_findings_by_category_may_hold_several_each() -> None:
    context = ContextSummary.from_dict({"findings": {"security": ["one", "two"]}})
    assert list(map(str, context.findings)) == ["security: one", "security: two"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2 of 3", {"number": 2, "total": 3}),
        (" 2  of  3 (chain)", {"number": 2, "total": 3}),
        ("2", {"number": 2}),
        ({"number": 2, "total": 3}, {"number": 2, "total": 3}),
    ],
)
def test_a_place_in_a_series_may_be_written_in_words(value: Any, expected: dict[str, int]) -> None:
    for name in ("series", "checkpoint_number"):
        assert CheckpointMetadata.from_dict({name: value}).to_dict()["series"] == expected


@pytest.mark.parametrize("value", ["second", "0 of 3", "2 of 0", "", {"number": 0}, {"total": 3}])
def test_a_place_in_a_series_that_makes_no_sense_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^series"):
        CheckpointMetadata.from_dict({"series": value})


# --- times --------------------------------------------------------------------------------------


def test_a_time_without_a_zone_is_read_as_utc_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "syncd"):
        checkpoint = Checkpoint.from_dict({"metadata": {"timestamp": "2026-02-28T10:00:00"}})
    assert checkpoint.metadata.timestamp == "2026-02-28T10:00:00+00:00"
    assert [record.getMessage() for record in caplog.records] == [
        "the time 2026-02-28T10:00:00 has no zone: read as UTC"
    ]


def test_a_time_with_a_zone_stays_as_it_was_written(caplog: pytest.LogCaptureFixture) -> None:
    for text in ("2026-02-28T10:00:00Z", "2026-02-28T10:00:00.5+05:45"):
        assert CheckpointMetadata(timestamp=text).timestamp == text
    assert not caplog.records


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01T00:00:00Z", "", "10:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^metadata\.timestamp: .* not an ISO 8601 time$"):
        Checkpoint.from_dict({"metadata": {"timestamp": text}})


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "document"),
        ("text", "document"),
        ({"metadata": []}, "metadata"),
        ({"metadata": None}, "metadata"),
        ({"metadata": {"iteration": "many"}}, "metadata.iteration"),
        ({"metadata": {"iteration": -1}}, "metadata.iteration"),
        ({"metadata": {"task_id": 7}}, "metadata.task_id"),
        ({"metadata": {"checkpoint_id": "x" * 129}}, "metadata.checkpoint_id"),
        ({"metadata": {"reason": "boredom"}}, "metadata.reason"),
        ({"execution_state": {"phase": 3}}, "execution_state.phase"),
        ({"execution_state": {"completed_items": "a"}}, "execution_state.completed_items"),
        ({"execution_state": {"completed_items": [1]}}, "execution_state.completed_items.0"),
        ({"execution_state": {"pending_items": ["a", {}]}}, "execution_state.pending_items.1"),
        ({"context_summary": {"assumptions": {"a": 1}}}, "context_summary.assumptions"),
        ({"metrics": {"tokens_consumed": -1}}, "metrics.tokens_consumed"),
        ({"metrics": {"tokens_consumed": 1.5}}, "metrics.tokens_consumed"),
        ({"metrics": {"duration_seconds": float("nan")}}, "metrics.duration_seconds"),
        ({"metrics": {"cost_usd": float("inf")}}, "metrics.cost_usd"),
        (
            {"metrics": {"tests_status": {"coverage_percent": 100.5}}},
            "metrics.tests_status.coverage_percent",
        ),
        ({"verification": {"results": [{"activity": "a", "status": "x"}]}},
         "verification.results.0.status"),
        ({"phase": "testing", "execution_state": 5}, "execution_state"),
        ({"phase": "testing", "execution_state": "abc"}, "execution_state"),
        ({"execution_state": {"phase": "coding", "raw": None}}, "execution_state.raw"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_line_with_its_path(document: Any, path: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Checkpoint.from_dict(document)
    message = caught.value.message
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert caught.value.exit_code == 2


def test_a_refusal_names_no_internal_class() -> None:
    document = {
        "execution_state": {"completed_items": [5]},
        "context_summary": {"key_decisions": [{}]},
    }
    with pytest.raises(InvalidInputError) as caught:
        Checkpoint.from_dict(document)
    assert not re.search(r"\b(Step|Decision|Blocker)\b", caught.value.message)


def test_several_wrong_values_are_told_together() -> None:
    with pytest.raises(InvalidInputError) as caught:
        Checkpoint.from_dict({"metadata": {"iteration": "x"}, "metrics": {"error_count": -1}})
    assert "metadata.iteration: " in caught.value.message
    assert "; metrics.error_count: " in caught.value.message


def test_a_document_nested_beyond_reason_is_refused_in_our_words() -> None:
    deep: Any = {}
    for _ in range(400):
        deep = {"a": deep}
    with pytest.raises(InvalidInputError, match="nested deeper"):
        Checkpoint.from_dict({"x_deep": deep}).to_dict()


def test_json_that_is_not_valid_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidInputError, match="line 2, column 1"):
        Checkpoint.from_json('{"version": "1.0",\n}')
    with pytest.raises(InvalidInputError, match="stands twice"):
        Checkpoint.from_json('{"version": "1.0", "version": "1.0"}')


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        (Checkpoint(), "version", "2.0"),
        (Checkpoint(), "unknown", 1),
        (CheckpointMetadata(), "task_id", "t"),
        (ExecutionState(), "phase", "testing"),
        (ContextSummary(), "assumptions", ["a"]),
        (CheckpointMetrics(), "error_count", 1),
        (RecoveryInfo(), "continuation_prompt", "p"),
        (domain.ComplianceInfo(), "hash", "h"),
        (domain.TestStatus(), "passed", 1),
        (Workspace(), "branch", "b"),
    ],
    ids=lambda row: f"{type(row[0]).__name__}.{row[1]}",
)
def test_a_value_cannot_be_assigned_to(part: tuple[Part, str, Any]) -> None:
    model, name, value = part
    before = model.to_dict()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(model, name, value)
    assert model.to_dict() == before


def test_a_copy_is_changed_and_the_original_is_not() -> None:
    original = Checkpoint.from_dict({**SCHEMA_1_0, "x": 1})
    copy = original.amended(version="1.1")
    assert (original.version, copy.version) == ("1.0", "1.1")
    assert copy.to_dict() == {**original.to_dict(), "version": "1.1"}
    assert copy != original
    assert copy.amended(version="1.0") == original


def test_a_completed_item_leaves_pending_focus_and_current_step() -> None:
    state = ExecutionState.from_dict(
        {
            "completed_items": ["a"],
            "pending_items": ["b", "c"],
            "current_focus": "b",
            "current_step": "b",
        }
    )
    after = state.complete("b")
    assert after.completed_items == ["a", "b"]
    assert after.pending_items == ["c"]
    assert (after.current_focus, after.current_step) == ("", None)
    assert state.pending_items == ["b", "c"], "the original is a value"
    elsewhere = state.complete("c")
    assert (elsewhere.current_focus, str(elsewhere.current_step)) == ("b", "b")


def test_a_completed_step_keeps_its_files() -> None:
    state = ExecutionState.from_dict({"pending_items": ["b"]})
    step = Step(step="b", files_created=["f.py"])
    after = state.complete(step)
    assert (after.completed_items, after.pending_items) == ([step], [])
    assert Checkpoint(execution_state=after).named_files() == ["f.py"]


def test_every_named_file_is_told_once() -> None:
    checkpoint = Checkpoint.from_dict(
        {
            "metrics": {"files_modified": ["b", "a"]},
            "completedSteps": [{"step": "s", "filesCreated": ["a"], "filesModified": ["c"]}, "t"],
            "pendingSteps": [{"step": "u", "filesModified": ["c", "d"]}],
        }
    )
    assert checkpoint.named_files() == ["b", "a", "c", "d"]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STATES = st.builds(
    lambda done, pending, focus, phase: {
        "completed_items": done,
        "pending_items": pending,
        "current_focus": focus,
        "phase": phase,
    },
    st.lists(TEXT | st.builds(lambda text: {"step": text}, TEXT), max_size=4),
    st.lists(TEXT, max_size=4),
    TEXT,
    TEXT | st.sampled_from(sorted(PHASES)),
)


@given(STATES, st.dictionaries(TEXT, TEXT | st.floats(-1e9, 1e9) | st.none(), max_size=3))
def test_a_checkpoint_survives_every_conversion(state: Any, data: Any) -> None:
    once = Checkpoint.from_dict({"execution_state": state, "context_summary": {"state": data}})
    again = Checkpoint.from_json(once.to_json())
    assert again == once
    assert again.compute_hash() == once.compute_hash()
    assert Checkpoint.from_dict(once.to_dict()).to_dict() == once.to_dict()


# --- the hash -----------------------------------------------------------------------------------


def test_the_hash_is_that_of_the_canonical_document_without_proof_and_read_fields() -> None:
    document = Checkpoint.from_dict(SCHEMA_1_0).to_dict()
    del document["compliance"]["hash"], document["compliance"]["signature"]
    assert Checkpoint.from_dict(SCHEMA_1_0).compute_hash() == digest(canonical(document))


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "r"},
        {"verified": True},
        {"skipped": [{"checkpoint_id": "c"}]},
        {"compliance": {"hash": "h"}},
        {"compliance": {"signature": "s"}},
    ],
    ids=str,
)
def test_proof_and_read_fields_are_no_part_of_the_hash(change: dict[str, Any]) -> None:
    changed = {**SCHEMA_1_0, **change}
    if "compliance" in change:
        changed["compliance"] = {**SCHEMA_1_0["compliance"], **change["compliance"]}
    assert (
        Checkpoint.from_dict(changed).compute_hash()
        == Checkpoint.from_dict(SCHEMA_1_0).compute_hash()
    )
    assert Checkpoint.from_dict(changed) != Checkpoint.from_dict(SCHEMA_1_0)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a document that is not a container."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, item in enumerate(value) for leaf in leaves(item, (*path, key))]
    return [path]


NEW_VALUES: dict[str, Any] = {
    "phase": "testing",
    "status": "blocked",
    "reason": "failure",
    "timestamp": "2027-01-01T00:00:00Z",
    "started_at": "2027-01-01T00:00:00Z",
    "next_checkpoint_expected": "2027-01-01T00:00:00Z",
    "at": "2027-01-01T00:00:00Z",
    "coverage_percent": 12.5,
}


def test_every_other_value_is_part_of_the_hash() -> None:
    document = json.loads(json.dumps(SCHEMA_1_0))
    for section, values in ADDITIONS.items():
        document[section] = {**document.get(section, {}), **json.loads(json.dumps(values))}
    document["execution_state"]["status"] = "waiting"
    document["x_unknown"] = {"a": ["b"]}
    document = Checkpoint.from_dict(document).to_dict()
    before = Checkpoint.from_dict(document).compute_hash()
    paths = [
        p for p in leaves(document) if p[0] != "compliance" or p[1] not in ("hash", "signature")
    ]
    assert len(paths) > 60
    for path in paths:
        changed = json.loads(json.dumps(document))
        place: Any = changed
        for key in path[:-1]:
            place = place[key]
        old = place[path[-1]]
        if path[-1] == "status" and path[0] == "verification":
            place[path[-1]] = "skipped"
        elif path[-1] in NEW_VALUES:
            place[path[-1]] = NEW_VALUES[path[-1]]
        else:
            place[path[-1]] = (
                (not old)
                if isinstance(old, bool)
                else f"{old}!"
                if isinstance(old, str)
                else (old or 0) + 1
            )
        assert Checkpoint.from_dict(changed).compute_hash() != before, path


def test_integrity_needs_a_hash_and_the_right_one() -> None:
    checkpoint = Checkpoint.from_dict(SCHEMA_1_0)
    assert not checkpoint.verify_integrity(), "no hash is not a pass"

    def hashed(value: str) -> Checkpoint:
        return checkpoint.amended(compliance=checkpoint.compliance.amended(hash=value))

    assert hashed(checkpoint.compute_hash()).verify_integrity()
    assert not hashed("0" * 64).verify_integrity()
    assert not hashed(checkpoint.compute_hash()).amended(version="1.1").verify_integrity()


def test_a_linked_parent_does_not_change_the_hash() -> None:
    """A read shows the linked parent; what was recorded stays what was hashed."""
    recorded = Checkpoint.from_dict(SCHEMA_1_0)
    recovery = {**SCHEMA_1_0["recovery"], "last_successful_state": "linked-later"}
    shown = Checkpoint.from_dict({**SCHEMA_1_0, "recovery": recovery, "recorded_parent": ""})
    assert shown.compute_hash() == recorded.compute_hash()
    unexplained = Checkpoint.from_dict({**SCHEMA_1_0, "recovery": recovery})
    assert unexplained.compute_hash() != recorded.compute_hash()


# --- the published schema -----------------------------------------------------------------------


def published() -> Any:
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def validator() -> jsonschema.protocols.Validator:
    return jsonschema.Draft202012Validator(published())


def test_the_schema_file_is_that_of_the_models() -> None:
    """To publish a change: `python -m tests.test_checkpoint`."""
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def schema_text() -> str:
    return json.dumps(domain.json_schema(), indent=2, ensure_ascii=False) + "\n"


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(published())
    assert published()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_schemas_own_shape_fits_the_published_schema() -> None:
    validator().validate(SCHEMA_1_0)


@pytest.mark.parametrize(
    "document",
    [{}, SCHEMA_1_0, BUILDER_STATE, AGENT_FILE, full_document()],
    ids=["blank", "schema 1.0", "builder state", "agent file", "everything"],
)
def test_what_the_models_write_fits_the_published_schema(document: Any) -> None:
    validator().validate(Checkpoint.from_dict(document).to_dict())


def test_what_the_service_returns_fits_the_published_schema(service: CheckpointService) -> None:
    parent = service.create_checkpoint("t", "a")
    child = service.save(Checkpoint.from_dict({"task_id": "t", "agent_id": "a", **BUILDER_STATE}))
    service.link_checkpoints(parent.metadata.checkpoint_id, child.metadata.checkpoint_id)
    done = service.finalize_checkpoint(
        child.metadata.checkpoint_id, sign_as="Ada", meaning="reviewed"
    )
    for checkpoint in (parent, child, done, *service.get_checkpoint_history("t")):
        validator().validate(checkpoint.to_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"execution_state": {"phase": "implementation"}},
        {"execution_state": {"status": "IN_PROGRESS"}},
        {"execution_state": {"completed_items": [5]}},
        {"metadata": {"iteration": "1"}},
        {"metrics": {"tokens_consumed": -1}},
        {"metrics": {"tests_status": {"coverage_percent": 101}}},
        {"context_summary": {"key_decisions": [{"rationale": "only"}]}},
    ],
    ids=str,
)
def test_what_the_models_would_not_write_does_not_fit_the_published_schema(
    change: dict[str, Any],
) -> None:
    assert not validator().is_valid({**SCHEMA_1_0, **change})


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
