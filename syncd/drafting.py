"""A new checkpoint from what an agent says: a document, single values by their path, and what the
checkpoint before said. Shared by the command line and the MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from syncd import workspace
from syncd.checkpoint import Checkpoint
from syncd.fallback import usable
from syncd.items import Workspace
from syncd.patch import patched
from syncd.service import CheckpointService
from syncd.store import Skipped

Values = Mapping[str, Any]
# Of a checkpoint's metadata, what is as true of the next one.
_CARRIED = ("agent_id", "agent_type", "iteration", "mission", "feature",
            "previous_agents")  # fmt: skip


class Before(NamedTuple):
    """The checkpoint that a new one will follow; `parent` only where it is not the task's newest,
    `skipped` what could not be used on the way to it."""

    checkpoint: Checkpoint | None
    parent: str | None
    skipped: list[Skipped]


def before(service: CheckpointService, task: str, parent: str | None = None) -> Before:
    """None for the first of a task. Past what cannot be used, as a resume or a recovery goes."""
    if parent:
        return Before(service.get_checkpoint(parent), parent, [])
    record, skipped, _ = usable(service.node.store, task)
    if record is None:
        return Before(service.get_latest_checkpoint(task), None, [])  # raises, if there is one
    found = service.get_checkpoint(record.row.id)
    return Before(found, record.row.id if skipped else None, skipped)


def created(document: Values, values: Values, task: str, agent: str) -> Checkpoint:
    """A first checkpoint; the values win over the document, and add to its lists."""
    base = Checkpoint.from_dict(document)
    body = base.body()
    if "checkpoint_id" not in base.metadata.model_fields_set:
        del body["metadata"]["checkpoint_id"]
    for path, value in values.items():
        _put(body, path, value)
    body["metadata"]["task_id"] = task or base.metadata.task_id
    body["metadata"]["agent_id"] = agent or base.metadata.agent_id
    return Checkpoint.from_dict(body)


def continued(last: Checkpoint, patch: Values, values: Values, task: str, agent: str) -> Checkpoint:
    """A new checkpoint that begins with what the last one says, changed as by an update."""
    body = last.body()
    metadata = {name: body["metadata"][name] for name in _CARRIED if name in body["metadata"]}
    metadata["task_id"] = task
    state = {**body["execution_state"], "status": "in_progress"}
    for name in ("error", "raw"):
        state.pop(name, None)
    if state["phase"] in ("handoff", "complete"):
        state["phase"] = "implementing"  # whoever goes on has taken over
    start = {"metadata": metadata, "execution_state": state,
             "context_summary": body["context_summary"]}  # fmt: skip
    document = changed(Checkpoint.from_dict(start), patch, values).body()
    del document["metadata"]["checkpoint_id"], document["metadata"]["timestamp"]
    writer = last.metadata.agent_id
    if agent and agent != writer:
        document["metadata"]["agent_id"] = agent
        earlier = document["metadata"].get("previous_agents", [])
        document["metadata"]["previous_agents"] = [*dict.fromkeys((*earlier, writer))]
    return Checkpoint.from_dict(document)


def changed(current: Checkpoint, patch: Values, values: Values) -> Checkpoint:
    """`current` with the changes: a merge patch, then the values."""
    document, used = patched(current, patch).body(), dict(values)
    done = used.pop("execution_state.completed_items", ())
    for path, value in used.items():
        _put(document, path, value)
    checkpoint = Checkpoint.from_dict(document)
    state = checkpoint.execution_state
    for item in done:
        state = state.complete(item)
    return checkpoint.amended(execution_state=state)


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        document = document[section]
    if isinstance(value, tuple):
        value = [*document.get(name, ()), *value]
    document[name] = value


def with_workspace(draft: Checkpoint, start: Path) -> Checkpoint:
    """With the repository as it is now, unless the draft says it itself."""
    if draft.workspace is not None:
        return draft
    found = captured(draft, start)
    return draft.amended(workspace=found) if found else draft


def captured(draft: Checkpoint, start: Path) -> Workspace | None:
    """The repository at `start`, with the files that a checkpoint names."""
    found = workspace.capture(start, draft.named_files())
    return Workspace.from_dict(found) if found else None
