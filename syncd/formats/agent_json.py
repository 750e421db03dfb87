"""Per-agent JSON files, `agent_checkpoints/{agent}.json`: one flat object that its agent rewrites
every quarter of an hour."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta
from typing import Any

from syncd.canonical import canonical
from syncd.checkpoint import Checkpoint
from syncd.formats.jsontext import Source
from syncd.formats.keeping import (
    KEY,
    RESERVED,
    Layout,
    ahead,
    beyond,
    dated,
    extras,
    rejoined,
    texts,
)
from syncd.formats.reading import Reading, slug
from syncd.formats.times import assumed_utc, is_after
from syncd.vocabulary import CheckpointStatus as Status

EXPECTED_AFTER = timedelta(minutes=15)
# The format has four words. What else there is means that somebody has to step in.
_WRITTEN = {
    Status.IN_PROGRESS.value: "IN_PROGRESS",
    Status.WAITING.value: "WAITING",
    Status.BLOCKED.value: "BLOCKED",
    Status.COMPLETE.value: "COMPLETE",
    Status.ESCALATED.value: "BLOCKED",
    Status.FAILED.value: "BLOCKED",
}
_READ = {"IN_PROGRESS": "in_progress", "WAITING": "waiting", "BLOCKED": "blocked",
         "COMPLETE": "complete"}  # fmt: skip
_TIMES = ("last_checkpoint", "next_checkpoint_expected", "timestamp")
_WITH_TIMES = ("completed_steps",)


def file_name(agent_id: str) -> str:
    """`Secondary-A` has `secondary_a.json`, `Agent-Primary` has `primary.json`."""
    words = slug(agent_id).replace("-", "_")
    digest = hashlib.sha256(agent_id.encode(errors="replace")).hexdigest()
    return f"{words.removeprefix('agent_') or words or digest[:12]}.json"


def read(data: bytes, source: str) -> Reading:
    file = Source(data, source)
    document = file.document
    if not isinstance(document, dict) or not isinstance(document.get("agent_id"), str):
        raise file.fault(("agent_id",), "expected an object with an agent_id, a text")
    seen, notes = _seen(document)
    checkpoint = rejoined(file, (), seen, document.get(KEY), _LAYOUT)
    return Reading(checkpoint, slug(_feature_of(seen)), notes=tuple(notes))


def write(checkpoint: Checkpoint, as_of: str = "") -> bytes:
    """`as_of` is when the checkpoint was changed last, if that was later than it was made."""
    document = _shown(checkpoint, as_of)
    seen, _ = _seen(document)
    document[KEY] = beyond(checkpoint, Checkpoint.from_dict(seen)) | dated(as_of)
    canonical(document)  # refuses what JSON cannot hold
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _seen(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The visible fields in the words of the model, and what was assumed or left out."""
    notes = [f"{name} is syncd's own word and was left out"
             for name in document if name in RESERVED - {KEY}]  # fmt: skip
    seen = {
        name: value
        for name, value in document.items()
        if name not in RESERVED and not (value is None and name in _OWN)
    }
    if "last_checkpoint" not in seen:
        notes.append("last_checkpoint is missing: the time of reading was taken")
    if seen.get("current_step") == "":
        del seen["current_step"]
    if isinstance(status := seen.get("status"), str):
        seen["status"] = _READ.get(status, status)
    return assumed_utc(seen, _TIMES, _WITH_TIMES, notes), notes


def _feature_of(seen: dict[str, Any]) -> str:
    feature = seen.get("feature", "")
    return feature if isinstance(feature, str) else ""


def _shown(checkpoint: Checkpoint, as_of: str) -> dict[str, Any]:
    """The format's own fields, in the order in which its users know them."""
    metadata, state = checkpoint.metadata, checkpoint.execution_state
    recovery, context = checkpoint.recovery, checkpoint.context_summary
    return {
        "agent_id": metadata.agent_id,
        "agent_type": metadata.agent_type,
        "session_id": metadata.session_id,
        "feature": metadata.feature or metadata.mission or metadata.task_id,
        "stage": state.stage,
        "phase": state.raw.get("phase", state.phase),
        "last_checkpoint": as_of or metadata.timestamp,
        "next_checkpoint_expected": _expected(checkpoint, as_of),
        "status": _WRITTEN[state.status],
        "can_resume": state.status != Status.COMPLETE
        if recovery.can_resume is None
        else recovery.can_resume,
        "blockers": texts(state.blocked_items),
        "files_modified": checkpoint.named_files(),
        "recovery_instructions": recovery.resume_instructions or recovery.continuation_prompt,
        "current_step": str(state.current_step or state.current_focus),
        "completed_steps": texts(state.completed_items),
        "next_steps": ahead(state.next_steps, state.pending_items),
        "coordination_state": context.coordination_state,
        **extras(checkpoint),
    }


def _expected(checkpoint: Checkpoint, as_of: str) -> str:
    """As was said, unless the checkpoint was changed after that time."""
    said = checkpoint.metadata.next_checkpoint_expected
    if said and not (as_of and is_after(as_of, said)):
        return said
    return expected_after(as_of or checkpoint.metadata.timestamp)


def expected_after(timestamp: str) -> str:
    """When the next sign of life is due, in the form in which the last one was given."""
    try:
        due = (datetime.fromisoformat(timestamp) + EXPECTED_AFTER).isoformat()
    except OverflowError:
        return timestamp
    return due.removesuffix("+00:00") + "Z" if timestamp.endswith("Z") else due


_STATE, _META, _RECOVERY = "execution_state", "metadata", "recovery"
_LAYOUT = Layout(
    shown=lambda checkpoint, as_of: _seen(_shown(checkpoint, as_of))[0],
    behind={
        ("agent_id",): [(_META, "agent_id")],
        ("agent_type",): [(_META, "agent_type")],
        ("session_id",): [(_META, "session_id")],
        # Another feature is another task, and its checkpoint another one.
        ("feature",): [(_META, "feature"), (_META, "mission"), (_META, "task_id"),
                       (_META, "checkpoint_id"), (_RECOVERY, "last_successful_state")],
        ("stage",): [(_STATE, "stage")],
        ("phase",): [(_STATE, "phase"), (_STATE, "raw", "phase")],
        ("last_checkpoint",): [(_META, "timestamp")],
        ("next_checkpoint_expected",): [(_META, "next_checkpoint_expected")],
        ("status",): [(_STATE, "status"), (_STATE, "raw", "status")],
        ("can_resume",): [(_RECOVERY, "can_resume")],
        ("files_modified",): [("metrics", "files_modified")],
        ("recovery_instructions",): [(_RECOVERY, "resume_instructions"),
                                     (_RECOVERY, "continuation_prompt")],
        ("current_step",): [(_STATE, "current_step"), (_STATE, "current_focus")],
        ("coordination_state",): [("context_summary", "coordination_state")],
    },
    items={
        "blockers": (_STATE, "blocked_items"),
        "completed_steps": (_STATE, "completed_items"),
        "next_steps": (_STATE, "next_steps"),
    },
    beside={"next_steps": (_STATE, "pending_items")},
)  # fmt: skip
_OWN = frozenset((*(path[0] for path in _LAYOUT.behind), *_LAYOUT.items))
