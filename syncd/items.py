"""The small structured things a checkpoint is made of. Each may also come as a plain text where
that says it all."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, model_validator

from syncd.part import Part, Texts, Timestamp, either, extra, extra_dict, extra_list
from syncd.vocabulary import now


class Step(Part):
    """A piece of work done, with the files it touched."""

    step: str = Field(validation_alias=either("step", "description", "item", "name"))
    files_created: Texts = extra_list()
    files_modified: Texts = extra_list()
    timestamp: Timestamp | None = extra(None)
    notes: str = extra()

    def __str__(self) -> str:
        return self.step


class CurrentStep(Part):
    description: str = Field(validation_alias=either("description", "step"))
    started_at: Timestamp | None = extra(None)
    partial_work: str = extra()

    def __str__(self) -> str:
        return self.description


class Decision(Part):
    decision: str
    rationale: str = extra()
    rejected_alternatives: Texts = extra_list()
    timestamp: Timestamp | None = extra(None)

    def __str__(self) -> str:
        return f"{self.decision} ({self.rationale})" if self.rationale else self.decision


class Blocker(Part):
    description: str = Field(validation_alias=either("description", "blocker", "item"))
    impact: str = extra()
    resolution_path: str = extra()
    resolution: str = extra()
    resolved_by: str = extra()

    def __str__(self) -> str:
        return f"{self.description} ({self.impact})" if self.impact else self.description


class Finding(Part):
    text: str
    category: str = extra()

    def __str__(self) -> str:
        return f"{self.category}: {self.text}" if self.category else self.text


class VerificationResult(Part):
    activity: str
    status: str = Field("pending", pattern="^(pending|passed|failed|skipped)$")
    run_at: Timestamp | None = extra(None)


class Verification(Part):
    contract_ref: str = extra()
    results: list[VerificationResult] = Field(default_factory=list)


class Escalation(Part):
    to: str = ""
    reason: str = ""
    decision_needed: str = ""


class BlockerResolution(Part):
    original_blocker: str = ""
    resolution: str = ""
    resolved_by: str = ""


class Series(Part):
    """Checkpoint N of M; also accepts the text `2 of 3`."""

    number: int = Field(ge=1)
    total: int | None = extra(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        match = re.fullmatch(r"\s*(\d+)(?:\s+of\s+(\d+))?.*", data)
        if not match:
            raise ValueError("expected `N of M`")
        return {"number": int(match[1]), "total": int(match[2]) if match[2] else None}


class Workspace(Part):
    """The repository when the checkpoint was written, so that a resume can compare."""

    repository: str = ""
    branch: str = ""
    head: str = ""
    dirty: bool = False
    files: dict[str, str] = extra_dict()


class Signer(Part):
    """Who signed, what it means, when (21 CFR Part 11)."""

    name: str
    meaning: str
    at: Timestamp = Field(default_factory=now)


class Redaction(Part):
    """Where a secret was taken out, and by which rule."""

    path: str
    rule: str
