"""The domain: a checkpoint and its parts, schema 1.0 with what agents' own formats add to it.

Models are frozen values. Fields of schema 1.0 are always written, additions only when set, and
fields that nobody here knows are kept as they came. Names may come in camelCase, phases and
statuses in the words of other tools; what goes out is canonical.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from syncd.canonical import canonical, parse
from syncd.entry import uuid7
from syncd.items import (
    Blocker,
    BlockerResolution,
    CurrentStep,
    Decision,
    Escalation,
    Finding,
    Redaction,
    Series,
    Signer,
    Step,
    Verification,
    Workspace,
)
from syncd.part import (
    Amount,
    Count,
    Part,
    Percent,
    Texts,
    Timestamp,
    also,
    choice,
    either,
    extra,
    extra_dict,
    extra_list,
    optional,
    stored,
)
from syncd.vocabulary import (
    PHASE_ALIASES,
    REASON_ALIASES,
    STATUS_ALIASES,
    AgentType,
    CheckpointReason,
    CheckpointStatus,
    ExecutionPhase,
    known,
    nearest_phase,
    now,
)

Reason = Annotated[CheckpointReason, BeforeValidator(choice(CheckpointReason, REASON_ALIASES))]


def _findings(value: Any) -> Any:
    """Findings by category may come as a mapping, each with one text or several."""
    if not isinstance(value, Mapping):
        return value
    return [
        {"category": category, "text": text}
        for category, texts in value.items()
        for text in (texts if isinstance(texts, list) else [texts])
    ]


def _described(value: Any) -> Any:
    return {"description": value} if isinstance(value, str) else value


class CheckpointMetadata(Part):
    checkpoint_id: str = Field(default_factory=uuid7, max_length=128)
    task_id: str = ""
    agent_id: str = Field("", validation_alias=either("agent_id", "agentId", "createdBy"))
    agent_type: str = AgentType.IMPLEMENTATION.value
    iteration: Count = 1
    timestamp: Timestamp = Field(
        default_factory=now,
        validation_alias=either("timestamp", "lastUpdatedAt", "last_checkpoint"),
    )
    reason: Reason | None = extra(None)
    session_id: str = extra()
    mission: str = extra()
    feature: str = extra()
    series: Series | None = extra(None, "series", "checkpoint_number")
    previous_agents: Texts = extra_list()
    handoff_from: str = extra()
    next_checkpoint_expected: Timestamp | None = extra(None)


class ExecutionState(Part):
    phase: ExecutionPhase = stored(ExecutionPhase.PLANNING)
    status: CheckpointStatus = stored(CheckpointStatus.IN_PROGRESS)
    completed_items: list[str | Step] = Field(
        default_factory=list,
        validation_alias=either("completed_items", "completedSteps", "completed_steps"),
    )
    pending_items: list[str | Step] = Field(
        default_factory=list,
        validation_alias=either("pending_items", "pendingSteps", "pending_steps"),
    )
    blocked_items: list[str | Blocker] = also("blocked_items", "blockers")
    current_focus: str = ""
    stage: str = extra()
    current_step: Annotated[CurrentStep | None, BeforeValidator(_described)] = extra(None)
    next_steps: Texts = extra_list()
    error: str = extra()
    raw: dict[str, str] = extra_dict(description="values as they came, where they were translated")

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, data: Any) -> Any:
        """Other tools' words for phase and status; free text goes to `stage`."""
        if not isinstance(data, Mapping):
            return data
        phase, status, raw = data.get("phase"), data.get("status"), {}
        changes: dict[str, Any] = {}
        if isinstance(phase, str) and phase not in _PHASES:
            raw["phase"] = phase
            changes["phase"] = known(phase, ExecutionPhase, PHASE_ALIASES)
            if changes["phase"] is None:
                changes["phase"] = nearest_phase(phase)
                changes["stage"] = data.get("stage") or phase
        if isinstance(status, str) and status not in _STATUSES:
            raw["status"] = status
            changes["status"] = known(status, CheckpointStatus, STATUS_ALIASES) or status
        if not changes:
            return data
        if isinstance(known_raw := data.get("raw", {}), Mapping):
            changes["raw"] = {**known_raw, **raw}
        return {**data, **changes}

    def complete(self, item: str | Step) -> ExecutionState:
        """`item` done: out of pending, and no longer what is being worked on."""
        text = str(item)
        in_work = self.current_step is not None and str(self.current_step) == text
        return self.amended(
            completed_items=[*self.completed_items, item],
            pending_items=[p for p in self.pending_items if str(p) != text],
            current_focus="" if self.current_focus == text else self.current_focus,
            current_step=None if in_work else self.current_step,
        )


_PHASES = frozenset(map(str, ExecutionPhase))
_STATUSES = frozenset(map(str, CheckpointStatus))


class ContextSummary(Part):
    key_decisions: list[str | Decision] = Field(
        default_factory=list,
        validation_alias=either("key_decisions", "keyDecisions", "decisions"),
    )
    assumptions: Texts = Field(default_factory=list)
    constraints: Texts = Field(default_factory=list)
    external_dependencies: Texts = Field(default_factory=list)
    findings: Annotated[list[str | Finding], BeforeValidator(_findings)] = extra_list()
    state: dict[str, Any] = extra_dict()
    coordination_state: dict[str, Any] = extra_dict()
    chain_summary: Texts = extra_list()


class TestStatus(Part):
    __test__ = False  # the name makes pytest collect it otherwise

    passed: Count = 0
    failed: Count = 0
    skipped: Count = 0
    coverage_percent: Percent = 0


class CheckpointMetrics(Part):
    tokens_consumed: Count = 0
    tools_invoked: Count = 0
    files_modified: Texts = Field(default_factory=list)
    tests_status: TestStatus = TestStatus()
    duration_seconds: Amount = 0
    error_count: Count = 0
    context_used_percent: Percent | None = optional()
    cost_usd: Amount | None = optional()


class RecoveryInfo(Part):
    last_successful_state: str = ""
    rollback_instructions: str = ""
    continuation_prompt: str = ""
    resume_instructions: str = extra("", "resume_instructions", "recovery_instructions")
    can_resume: bool | None = optional()
    escalation: Escalation | None = extra(None)
    blocker_resolution: BlockerResolution | None = extra(None)


class ComplianceInfo(Part):
    event_log_ref: str = ""
    hash: str = ""
    signature: str = ""
    retention_policy: str = "default"
    signed_by: Signer | None = extra(None)
    redactions: list[Redaction] = extra_list()


# Where the fields of flat documents (builder-state and per-agent files) belong.
_FLAT = {
    **dict.fromkeys(("task_id", "taskId", "agent_id", "agentId", "agent_type", "agentType",
                     "session_id", "sessionId", "feature", "iteration", "timestamp", "mission",
                     "last_checkpoint", "next_checkpoint_expected", "reason"), "metadata"),
    **dict.fromkeys(("phase", "status", "stage", "completedSteps", "completed_steps",
                     "completed_items", "pendingSteps", "pending_items", "blockers",
                     "blocked_items", "currentStep", "current_step", "current_focus",
                     "next_steps", "error"), "execution_state"),
    **dict.fromkeys(("decisions", "key_decisions", "findings", "coordination_state"),
                    "context_summary"),
    **dict.fromkeys(("files_modified", "tokens_consumed"), "metrics"),
    **dict.fromkeys(("recovery_instructions", "can_resume"), "recovery"),
}  # fmt: skip


_CAMEL = {name: to_camel(name) for name in set(_FLAT.values())}


def lifted(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """A flat document sorted into the sections of schema 1.0; what stands in one already wins."""
    flat = _FLAT.keys() & data.keys()
    if not flat:
        return data
    document = {key: value for key, value in data.items() if key not in flat}
    for key in data:
        if key in flat:
            name = _FLAT[key]
            section = document.pop(_CAMEL[name], None) or document.get(name) or {}
            if isinstance(section, Mapping):  # else it is for the validation to refuse
                document[name] = {key: data[key], **section}
    return document


# Not part of the record: what a command adds for its reader, and what is computed over the rest.
READ_FIELDS = ("revision", "verified", "recorded_parent", "skipped", "advice")
PROOF_FIELDS = ("hash", "signature")


class Checkpoint(Part):
    version: str = "1.0"
    metadata: CheckpointMetadata = Field(default_factory=CheckpointMetadata)
    execution_state: ExecutionState = Field(default_factory=ExecutionState)
    context_summary: ContextSummary = Field(default_factory=ContextSummary)
    metrics: CheckpointMetrics = Field(default_factory=CheckpointMetrics)
    recovery: RecoveryInfo = Field(default_factory=RecoveryInfo)
    compliance: ComplianceInfo = Field(default_factory=ComplianceInfo)
    verification: Verification | None = extra(None)
    workspace: Workspace | None = extra(None)
    revision: str = extra("", description="the entry that is current (added on reading)")
    verified: bool = extra(False, description="hash and chain were checked (added on reading)")
    recorded_parent: str | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="last_successful_state as recorded, where a later link replaced it on reading",
    )

    skipped: list[dict[str, str]] = extra_list()

    @classmethod
    def named(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        return super().named(lifted(data))

    @model_validator(mode="before")
    @classmethod
    def _lift(cls, data: Any) -> Any:
        return lifted(data) if isinstance(data, Mapping) else data

    def body(self) -> dict[str, Any]:
        """What is stored, hashed and signed: everything but the proof and the reader's notes."""
        document = self.dumped()
        for name in READ_FIELDS:
            document.pop(name, None)
        for name in PROOF_FIELDS:
            document["compliance"].pop(name, None)
        if self.recorded_parent is not None:
            document["recovery"]["last_successful_state"] = self.recorded_parent
        return document

    def renewed(self) -> Checkpoint:
        """The same state as a new checkpoint, which has cost nothing yet."""
        content = self.body()
        for name in ("checkpoint_id", "timestamp"):
            content["metadata"].pop(name, None)
        content["metrics"]["tokens_consumed"] = 0
        content["recovery"].pop("last_successful_state", None)
        del content["compliance"]
        return Checkpoint.from_dict(content)

    def compute_hash(self) -> str:
        return hashlib.sha256(canonical(self.body())).hexdigest()

    def verify_integrity(self) -> bool:
        """False without a hash too: unverified is not verified."""
        return bool(self.compliance.hash) and self.compute_hash() == self.compliance.hash

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, json_str: str) -> Checkpoint:
        return cls.from_dict(parse(json_str))

    def named_files(self) -> list[str]:
        """Every file that the checkpoint speaks of, once each."""
        names = list(self.metrics.files_modified)
        for item in (*self.execution_state.completed_items, *self.execution_state.pending_items):
            if isinstance(item, Step):
                names += [*item.files_created, *item.files_modified]
        return list(dict.fromkeys(names))

    def meta(self) -> dict[str, Any]:
        """The small part that stays clear even when bodies are encrypted."""
        metadata, state = self.metadata, self.execution_state
        return {
            "task_id": metadata.task_id,
            "agent": metadata.agent_id,
            "agent_type": metadata.agent_type,
            "iteration": metadata.iteration,
            "phase": state.phase,
            "status": state.status,
            "reason": metadata.reason or "",
            "tokens": self.metrics.tokens_consumed,
            "parent": self.recovery.last_successful_state,
        }


_BLANK = Checkpoint()


def assembled(**parts: Part) -> Checkpoint:
    """A checkpoint from parts that are validated already; those left out are fresh defaults."""
    if "context_summary" not in parts:
        parts["context_summary"] = ContextSummary()
    if "metrics" not in parts:
        parts["metrics"] = CheckpointMetrics()
    return _BLANK.amended(**parts)


def json_schema() -> dict[str, Any]:
    """The published JSON Schema, for users of other languages."""
    schema = Checkpoint.model_json_schema(mode="serialization")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:syncd:checkpoint:1.0",
        **schema,
        "title": "syncd checkpoint",
    }
