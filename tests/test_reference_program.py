"""A program written for the reference implementation, run with nothing changed but its import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REFERENCE = "scripts.core.ralph_wiggum"

PROGRAM = """
import json
import sys
from datetime import datetime
from enum import Enum
from pathlib import Path

from scripts.core.ralph_wiggum import (
    AgentType,
    Checkpoint,
    CheckpointCorruptionError,
    CheckpointError,
    CheckpointMetadata,
    CheckpointMetrics,
    CheckpointNotFoundError,
    CheckpointService,
    ComplianceInfo,
    ContextSummary,
    ExecutionPhase,
    ExecutionState,
    HandoffError,
    HandoffProtocol,
    HandoffRequest,
    HandoffTrigger,
    RecoveryInfo,
    TestStatus,
)

# Errors: one root, three kinds.
assert issubclass(CheckpointError, Exception)
for kind in (CheckpointNotFoundError, CheckpointCorruptionError, HandoffError):
    assert issubclass(kind, CheckpointError)
    try:
        raise kind("told")
    except CheckpointError as error:
        assert str(error) == "told"

# Enumerations, by value.
assert [phase.value for phase in ExecutionPhase] == [
    "planning", "implementing", "testing", "reviewing", "handoff", "complete"]
assert {trigger.value for trigger in HandoffTrigger} == {
    "context_threshold", "phase_complete", "error_threshold", "explicit_request",
    "token_budget", "timeout"}
assert {kind.value for kind in AgentType} == {
    "architecture", "implementation", "qa", "documentation", "orchestrator"}
assert ExecutionPhase("testing") is ExecutionPhase.TESTING
assert isinstance(ExecutionPhase.TESTING, Enum)

# Parts: defaults, construction by keyword, attributes, conversions.
metadata = CheckpointMetadata(task_id="task-1", agent_id="agent-1")
assert metadata.agent_type == AgentType.IMPLEMENTATION.value
assert metadata.iteration == 1
assert len(metadata.checkpoint_id) == 36
assert datetime.fromisoformat(metadata.timestamp).tzinfo is not None
assert CheckpointMetadata.from_dict(metadata.to_dict()) == metadata

state = ExecutionState(
    phase=ExecutionPhase.IMPLEMENTING.value,
    completed_items=["parser", "lexer"],
    pending_items=["printer"],
    blocked_items=["release: no key"],
    current_focus="printer",
)
assert ExecutionState().phase == ExecutionPhase.PLANNING.value
assert state.completed_items == ["parser", "lexer"]
assert ExecutionState.from_dict(state.to_dict()) == state
assert ExecutionState(phase=ExecutionPhase.TESTING).phase == "testing"

context = ContextSummary(
    key_decisions=["recursive descent"],
    assumptions=["one file"],
    constraints=["no dependencies"],
    external_dependencies=["none"],
)
assert ContextSummary.from_dict(context.to_dict()) == context

tests = TestStatus(passed=10, failed=1, skipped=2, coverage_percent=91.5)
assert tests.to_dict() == {"passed": 10, "failed": 1, "skipped": 2, "coverage_percent": 91.5}
metrics = CheckpointMetrics(
    tokens_consumed=5000,
    tools_invoked=20,
    files_modified=["a.py", "b.py"],
    tests_status=tests,
    duration_seconds=12.5,
    error_count=1,
)
assert metrics.to_dict()["tests_status"]["passed"] == 10
assert CheckpointMetrics.from_dict(metrics.to_dict()).tests_status.failed == 1
assert CheckpointMetrics().tests_status.coverage_percent == 0.0

recovery = RecoveryInfo(
    last_successful_state="", rollback_instructions="git stash", continuation_prompt="go on")
assert RecoveryInfo.from_dict(recovery.to_dict()) == recovery
compliance = ComplianceInfo(event_log_ref="ref", retention_policy="7y")
assert ComplianceInfo.from_dict(compliance.to_dict()) == compliance
assert ComplianceInfo().retention_policy == "default"

# A checkpoint by itself.
alone = Checkpoint(
    version="1.0",
    metadata=metadata,
    execution_state=state,
    context_summary=context,
    metrics=metrics,
    recovery=recovery,
    compliance=compliance,
)
assert list(alone.to_dict()) == [
    "version", "metadata", "execution_state", "context_summary", "metrics", "recovery",
    "compliance"]
assert Checkpoint.from_dict(alone.to_dict()) == alone
assert json.loads(alone.to_json()) == alone.to_dict()
again = Checkpoint.from_json(alone.to_json())
assert again.execution_state.completed_items == ["parser", "lexer"]
assert again.compute_hash() == alone.compute_hash()
assert len(alone.compute_hash()) == 64
assert alone.compute_hash() != Checkpoint(metadata=metadata).compute_hash()
hashed = Checkpoint.from_dict(
    {**alone.to_dict(), "compliance": {"hash": Checkpoint.from_dict(
        {**alone.to_dict(), "compliance": {}}).compute_hash()}})
assert hashed.verify_integrity()
forged = hashed.to_dict()
forged["execution_state"]["completed_items"] = ["everything"]
assert not Checkpoint.from_dict(forged).verify_integrity()
assert Checkpoint.from_dict({}).version == "1.0"

# The service.
storage = Path(sys.argv[1])
service = CheckpointService(storage_path=storage, use_fdb=False)
assert storage.is_dir()
assert service.get_latest_checkpoint("task-1") is None
assert service.get_checkpoint_history("task-1") == []

first = service.create_checkpoint(
    task_id="task-1",
    agent_id="agent-1",
    execution_state=state,
    context_summary=context,
    metrics=metrics,
    agent_type=AgentType.ARCHITECTURE.value,
    iteration=1,
)
assert first.metadata.task_id == "task-1"
assert first.metadata.agent_type == "architecture"
assert first.execution_state.pending_items == ["printer"]
assert first.compliance.hash == first.compute_hash()
assert first.compliance.event_log_ref
assert "parser" in first.recovery.continuation_prompt
assert first.verify_integrity()

second = service.create_checkpoint("task-1", "agent-2", ExecutionState(phase="testing"),
                                   iteration=2)
assert second.metadata.agent_type == "implementation"
second_id = second.metadata.checkpoint_id

loaded = service.get_checkpoint("task-1", second_id)
assert loaded.metadata.checkpoint_id == second_id
assert loaded.to_dict()["execution_state"]["phase"] == ExecutionPhase.TESTING.value
assert service.get_checkpoint(task_id="task-1", checkpoint_id=second_id) == loaded
for task_id, checkpoint_id in (("task-1", "missing"), ("task-2", second_id)):
    try:
        service.get_checkpoint(task_id, checkpoint_id)
    except CheckpointNotFoundError:
        pass
    else:
        raise AssertionError("found what is not there")

latest = service.get_latest_checkpoint("task-1")
assert latest is not None and latest.metadata.checkpoint_id == second_id
for iteration in range(3, 15):
    service.create_checkpoint("task-1", "agent-2", ExecutionState(), iteration=iteration)
history = service.get_checkpoint_history("task-1")
assert [checkpoint.metadata.iteration for checkpoint in history] == list(range(14, 4, -1))
assert len(service.get_checkpoint_history("task-1", limit=3)) == 3
assert all(checkpoint.verify_integrity() for checkpoint in history)

newest_id = history[0].metadata.checkpoint_id
assert service.link_checkpoints(
    parent_id=first.metadata.checkpoint_id, child_id=newest_id, task_id="task-1") is None
linked = service.get_checkpoint("task-1", newest_id)
assert linked.recovery.last_successful_state == first.metadata.checkpoint_id
assert linked.verify_integrity()
service.link_checkpoints(second_id, newest_id, "task-1")

# Hand-off.
assert HandoffProtocol.CONTEXT_THRESHOLD == 0.70
assert HandoffProtocol.ERROR_THRESHOLD == 3
assert HandoffProtocol.TOKEN_BUDGET_THRESHOLD == 0.80
assert HandoffProtocol.should_handoff(0.5, 0, 0.5) is None
for arguments, trigger in (
    ({"context_utilization": 0.75}, HandoffTrigger.CONTEXT_THRESHOLD),
    ({"consecutive_errors": 4}, HandoffTrigger.ERROR_THRESHOLD),
    ({"token_budget_used": 0.85}, HandoffTrigger.TOKEN_BUDGET),
    ({"phase_complete": True, "consecutive_errors": 9}, HandoffTrigger.PHASE_COMPLETE),
    ({"explicit_request": True, "phase_complete": True}, HandoffTrigger.EXPLICIT_REQUEST),
):
    base = {"context_utilization": 0.1, "consecutive_errors": 0, "token_budget_used": 0.1}
    assert HandoffProtocol().should_handoff(**{**base, **arguments}) is trigger

prompt = HandoffProtocol.generate_continuation_prompt(first)
positions = [prompt.index(text) for text in (
    "task-1", "parser", "- printer", "release: no key", "recursive descent", "no dependencies")]
assert positions == sorted(positions)

request = HandoffRequest(
    trigger=HandoffTrigger.TOKEN_BUDGET.value,
    checkpoint=first,
    target_agent_type=AgentType.QA.value,
    priority=8,
)
assert request.to_dict() == {
    "trigger": "token_budget",
    "checkpoint": first.to_dict(),
    "target_agent_type": "qa",
    "priority": 8,
}
assert HandoffRequest().trigger == HandoffTrigger.CONTEXT_THRESHOLD.value
assert (HandoffRequest().target_agent_type, HandoffRequest().priority) == ("", 5)
print("the program ran to its end")
"""


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_program_for_the_reference_implementation_runs_unchanged(tmp_path: Path) -> None:
    assert PROGRAM.count(REFERENCE) == 1
    done = run(PROGRAM.replace(REFERENCE, "syncd"), tmp_path / "storage")
    assert (done.stdout, done.stderr) == ("the program ran to its end\n", "")


def test_the_reference_names_are_all_there_is_to_import() -> None:
    """`from syncd import *` gives each of them, and nothing that is not public."""
    listed = PROGRAM.split("import (")[1].split(")")[0].replace("\n", "").replace(" ", "")
    names = [name for name in listed.split(",") if name]
    assert len(names) == 18
    check = (
        "from syncd import *\nimport sys\nmissing = set(sys.argv[1:]) - set(dir())\nprint(missing)"
    )
    assert run(check, *names).stdout == "set()\n"


def test_the_services_own_attributes_can_be_read(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from syncd import CheckpointService
service = CheckpointService(storage_path=Path(sys.argv[1]))
assert service.storage_path == Path(sys.argv[1])
assert service.use_fdb is False
"""
    done = run(program, tmp_path / "storage")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("asked", [True, False])
def test_asking_for_foundationdb_falls_back_with_a_word(tmp_path: Path, asked: bool) -> None:
    program = """
import logging, sys
logging.basicConfig()
from syncd import CheckpointService, ExecutionState
service = CheckpointService(sys.argv[1], sys.argv[2] == "True")
service.create_checkpoint("t", "a", ExecutionState())
"""
    done = run(program, tmp_path / "storage", str(asked))
    assert done.returncode == 0
    assert ("FoundationDB" in done.stderr) == asked
