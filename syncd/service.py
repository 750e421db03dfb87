"""The library's face: write, change, read and verify checkpoints.

Synchronous, safe to share between threads and processes. Each write is on disk when its method
returns; each read is verified, or raises.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from syncd import clock, presence, redaction
from syncd.canonical import MAX_DEPTH, canonical
from syncd.checkpoint import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointMetrics,
    ContextSummary,
    ExecutionState,
    RecoveryInfo,
    assembled,
)
from syncd.discretion import redacted
from syncd.entry import CHECKPOINT, CREATE, FINALIZE, LINK, UPDATE, Draft, uuid7
from syncd.errors import CheckpointNotFoundError, InvalidInputError
from syncd.handoff import HandoffProtocol
from syncd.items import Signer, Verification, Workspace
from syncd.leases import FOREVER
from syncd.node import Node, user
from syncd.part import Part
from syncd.patch import merged, patched, plain
from syncd.seal import SigningKey
from syncd.store import Record, Skipped, shown_hash
from syncd.vocabulary import AgentType, CheckpointReason, checked_count, checked_id, zoned
from syncd.writer import Place

log = logging.getLogger("syncd")
_IMMUTABLE = ("checkpoint_id", "task_id")


class CheckpointService:
    """Checkpoints of one home; without arguments, of the user's own."""

    def __init__(
        self,
        storage_path: Path | str | None = None,
        use_fdb: bool = False,
        *,
        home: Path | str | None = None,
        node: Node | None = None,
    ) -> None:
        place = home or storage_path
        self.node = node or Node(Path(place) if place else None)
        self._store = self.node.store
        self._limit: int = self.node.settings["limits.body_bytes"]
        self._rendered: int = self.node.settings["limits.rendered_bytes"]
        self._redactor = redaction.of(self.node.settings)
        if use_fdb:
            log.warning("there is no FoundationDB here: checkpoints go to %s", self.node.home)

    @property
    def storage_path(self) -> Path:
        """Where the checkpoints are, under the name that the reference implementation uses."""
        return self.node.home

    @property
    def use_fdb(self) -> bool:
        return False

    def close(self) -> None:
        self.node.close()

    # --- writing ----------------------------------------------------------------------------

    def create_checkpoint(
        self,
        task_id: str,
        agent_id: str,
        execution_state: ExecutionState | Mapping[str, Any] | None = None,
        context_summary: ContextSummary | Mapping[str, Any] | None = None,
        metrics: CheckpointMetrics | Mapping[str, Any] | None = None,
        agent_type: str = AgentType.IMPLEMENTATION.value,
        iteration: int = 1,
        *,
        state: ExecutionState | Mapping[str, Any] | None = None,
        recovery: RecoveryInfo | Mapping[str, Any] | None = None,
        verification: Verification | Mapping[str, Any] | None = None,
        workspace: Workspace | Mapping[str, Any] | None = None,
        parent: str | None = None,
        **metadata: Any,
    ) -> Checkpoint:
        """Write a new checkpoint; further keywords go to its metadata."""
        state = execution_state or state or ExecutionState()
        parts: dict[str, Part] = {
            "metadata": CheckpointMetadata.from_dict(
                {
                    "task_id": task_id,
                    "agent_id": agent_id,
                    "agent_type": agent_type,
                    "iteration": iteration,
                    **metadata,
                }
            ),
            "execution_state": _part(ExecutionState, state),
        }
        for kind, name, part in (
            (ContextSummary, "context_summary", context_summary),
            (CheckpointMetrics, "metrics", metrics),
            (RecoveryInfo, "recovery", recovery),
            (Verification, "verification", verification),
            (Workspace, "workspace", workspace),
        ):
            if part is not None:
                parts[name] = _part(kind, part)
        return self.save(assembled(**parts), parent=parent)

    def save(self, checkpoint: Checkpoint, parent: str | None = None) -> Checkpoint:
        """Write a checkpoint built elsewhere. Its parent is the task's newest, unless named."""
        checked_id("task id", checkpoint.metadata.task_id)
        checked_id("agent id", checkpoint.metadata.agent_id)
        checked_id("checkpoint id", checkpoint.metadata.checkpoint_id)
        with self._store.transaction():
            if parent and not self._store.row("checkpoint", (parent,)):
                raise CheckpointNotFoundError(f"the parent {parent!r} does not exist")
            return self._write(checkpoint, parent, CREATE)

    def update_checkpoint(
        self, checkpoint_id: str, changes: Mapping[str, Any], base: str | None = None
    ) -> Checkpoint:
        """Write a new version. `changes` is a JSON merge patch; `base` guards against a race."""
        if not isinstance(changes, Mapping):
            raise InvalidInputError(f"changes are a document, not {type(changes).__name__}")
        with self._store.transaction():
            current = self._opened(self._store.changeable(checkpoint_id, base))
            try:
                changed = patched(current, plain(changes))
            except RecursionError:
                raise InvalidInputError(f"nested deeper than {MAX_DEPTH} levels") from None
            return self._replace(current, changed)

    def revise(self, current: Checkpoint, changed: Checkpoint) -> Checkpoint:
        """Write `changed` as the next version of `current`, if that is still the newest."""
        with self._store.transaction():
            self._store.changeable(current.metadata.checkpoint_id, current.revision)
            return self._replace(current, changed)

    def _replace(self, current: Checkpoint, changed: Checkpoint) -> Checkpoint:
        for name in _IMMUTABLE:
            if getattr(current.metadata, name) != getattr(changed.metadata, name):
                raise InvalidInputError(f"metadata.{name} of a checkpoint cannot change")
        checked_id("agent id", changed.metadata.agent_id)
        self._check_parent(current, changed)
        changed = _remember_agent(current, changed)
        generate = HandoffProtocol.generate_continuation_prompt
        if changed.recovery.continuation_prompt == generate(current):
            changed = changed.amended(recovery=changed.recovery.amended(continuation_prompt=""))
        return _linked(current, self._write(changed, None, UPDATE, base=current.revision))

    def _check_parent(self, current: Checkpoint, changed: Checkpoint) -> None:
        parent = changed.recovery.last_successful_state
        if parent == current.body()["recovery"]["last_successful_state"]:
            return
        if parent:
            self._store.refuse_circle(parent, changed.metadata.checkpoint_id)
        if parent and not self._store.row("checkpoint", (parent,)):
            raise CheckpointNotFoundError(f"the parent {parent!r} does not exist")

    def finalize_checkpoint(
        self,
        checkpoint_id: str,
        status: str = "complete",
        *,
        sign_as: str | None = None,
        meaning: str | None = None,
        base: str | None = None,
    ) -> Checkpoint:
        """Close a checkpoint for good and sign the log up to it."""
        if bool(sign_as) != bool(meaning):
            raise InvalidInputError("a signature needs both: who signs, and what it means")
        signer = Signer(name=sign_as, meaning=meaning) if sign_as and meaning else None
        with self._store.transaction():
            current = self._opened(self._store.changeable(checkpoint_id, base))
            body = merged(current.body(), {"execution_state": {"status": status}})
            final = Checkpoint.from_dict(body)
            if signer:
                final = final.amended(compliance=final.compliance.amended(signed_by=signer))
            written = self._write(final, None, FINALIZE, current.revision, self.node.key)
            return _linked(current, written)

    def link_checkpoints(self, parent_id: str, child_id: str, task_id: str | None = None) -> None:
        """Name another parent for a checkpoint; the checkpoint itself stays as it is."""
        with self._store.transaction():
            parent, child = self._store.checkpoint(parent_id), self._store.checkpoint(child_id)
            self._store.refuse_circle(parent_id, child_id)
            if task_id and child.row.task_id != task_id:
                raise CheckpointNotFoundError(f"task {task_id!r} has no checkpoint {child_id!r}")
            link = {"parent": parent.row.id, "child": child.row.id}
            entity_id, body = f"{parent_id}:{child_id}", canonical(link)
            meta = {"task_id": child.row.task_id, **link}
            draft = Draft(uuid7(), LINK, entity_id, CREATE, user(), meta, body)
            self._store.append(draft, self._store.place(child.row.task_id))

    def heartbeat(
        self, agent_id: str, task_id: str = "", *, ended: bool = False, **said: str
    ) -> None:
        """Say that an agent is alive (agent_type, session, started_by), or has ended in order."""
        if ended:
            presence.ended(self.node, agent_id, task_id)
        else:
            presence.heartbeat(self.node, agent_id, task_id, **said)

    def _write(
        self,
        checkpoint: Checkpoint,
        parent: str | None,
        op: str,
        base: str = "",
        key: SigningKey | None = None,
    ) -> Checkpoint:
        """Complete, seal and append one version; runs inside the caller's transaction."""
        checkpoint = _blocked_by_failure(checkpoint)
        metadata = checkpoint.metadata
        # An id made here serves the entry too; one given from outside may exist on other devices.
        generated = op == CREATE and "checkpoint_id" not in metadata.model_fields_set
        entry_id = metadata.checkpoint_id if generated else uuid7()
        spot = self._store.place(metadata.task_id, metadata.agent_id)
        parent = parent or checkpoint.recovery.last_successful_state
        if op == CREATE:
            parent = parent or self._usual_parent(metadata, spot)
        place = f"syncd:log/{spot.device_id}/{entry_id}"
        checkpoint, body = self._composed(checkpoint, parent, place)
        draft = Draft(
            entry_id,
            CHECKPOINT,
            metadata.checkpoint_id,
            op,
            metadata.agent_id,
            checkpoint.meta(),
            self._fitting(body),
            (base,) if base else (),
        )
        entry = self._store.append(draft, spot, key)
        signature = entry.signature.hex() if entry.signature else ""
        proof = {"hash": shown_hash(entry), "signature": signature}
        return checkpoint.amended(
            compliance=checkpoint.compliance.amended(**proof), revision=entry_id, verified=True
        )

    def _usual_parent(self, metadata: CheckpointMetadata, spot: Place) -> str:
        """The task's current checkpoint; for one who has lost the task, the newest of his own, so
        that nothing of his gets between what the new holder writes."""
        if not spot.fenced:
            return spot.current_id or ""
        log.warning(
            "task %s is now another's: what %s writes is kept as a branch (`syncd task heads`)",
            metadata.task_id,
            metadata.agent_id,
        )
        own = self._store.row("newest_of_agent", (metadata.task_id, metadata.agent_id))
        return str(own[0]) if own else ""

    def _composed(
        self, checkpoint: Checkpoint, parent: str, place: str
    ) -> tuple[Checkpoint, bytes]:
        """The version as it is stored: with parent, place and prompt, and without secrets."""
        checkpoint, document = redacted(
            checkpoint.amended(
                recovery=checkpoint.recovery.amended(last_successful_state=parent),
                compliance=checkpoint.compliance.amended(event_log_ref=place),
                recorded_parent=None,
            ),
            self._redactor,
        )
        if not checkpoint.recovery.continuation_prompt:
            prompt = self._prompt(checkpoint)
            recovery = checkpoint.recovery.amended(continuation_prompt=prompt)
            checkpoint = checkpoint.amended(recovery=recovery)
            document["recovery"]["continuation_prompt"] = prompt
        return checkpoint, canonical(document)

    def _fitting(self, body: bytes) -> bytes:
        if len(body) > self._limit:
            raise InvalidInputError(
                f"the checkpoint has {len(body):,} bytes; {self._limit:,} are allowed",
                "Keep large data in files and name them, or raise limits.body_bytes.",
            )
        return body

    def _prompt(self, checkpoint: Checkpoint) -> str:
        prompt = HandoffProtocol.generate_continuation_prompt(checkpoint)
        size = len(prompt.encode(errors="replace"))
        if size > self._rendered:
            log.warning(
                "the checkpoint renders to a prompt of %d bytes; they work best below %d",
                size,
                self._rendered,
            )
        return prompt

    # --- verified reads ---------------------------------------------------------------------

    def get_checkpoint(
        self, task_id: str | None = None, checkpoint_id: str | None = None
    ) -> Checkpoint:
        """By id alone, or by task and id."""
        if checkpoint_id is None:
            task_id, checkpoint_id = None, task_id
        record = self._store.checkpoint(checkpoint_id or "")
        if task_id is not None and record.row.task_id != task_id:
            raise CheckpointNotFoundError(f"task {task_id!r} has no checkpoint {checkpoint_id!r}")
        return self._opened(record)

    def get_latest_checkpoint(
        self, task_id: str, *, skipped: list[Skipped] | None = None
    ) -> Checkpoint | None:
        """The newest of a task. With a list for `skipped`, damage is passed over along the
        parents and told in that list; without one it raises."""
        if skipped is None:
            record = self._store.latest(task_id)
        else:
            record = self._store.intact_from(self._store.current_id(task_id), skipped)
        return self._opened(record) if record else None

    def get_checkpoint_history(
        self, task_id: str, limit: int = 10, *, skipped: list[Skipped] | None = None
    ) -> list[Checkpoint]:
        """Newest first."""
        most = min(checked_count("limit", limit), FOREVER)
        return self._all(self._store.select("history", (task_id, most), skipped))

    def get_checkpoints_by_agent(
        self,
        agent_id: str,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        *,
        skipped: list[Skipped] | None = None,
    ) -> list[Checkpoint]:
        """Newest first; `since` is included, `until` is not."""
        parameters = (agent_id, *time_range(since, until), -1)
        return self._all(self._store.select("by_agent", parameters, skipped))

    def _all(self, records: Sequence[Record]) -> list[Checkpoint]:
        return [self._opened(record) for record in records]

    def _opened(self, record: Record) -> Checkpoint:
        return Checkpoint.from_dict(record.document())


def _part(kind: type[Part], value: Part | Mapping[str, Any]) -> Part:
    return value if isinstance(value, kind) else kind.from_dict(cast(Mapping[str, Any], value))


def time_range(since: datetime | str | None, until: datetime | str | None) -> tuple[int, int]:
    """A range of clock readings from two moments, either of which may be open."""
    return (
        min(clock.reading_at(_moment(since)), FOREVER) if since else 0,
        min(clock.reading_at(_moment(until)), FOREVER) if until else FOREVER,
    )


def _moment(value: datetime | str) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(zoned(value))
        except ValueError as error:
            raise InvalidInputError(str(error)) from None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _blocked_by_failure(checkpoint: Checkpoint) -> Checkpoint:
    """What made a task fail stands among its blockers."""
    state = checkpoint.execution_state
    failed = state.error and checkpoint.metadata.reason == CheckpointReason.FAILURE
    if not failed or state.error in map(str, state.blocked_items):
        return checkpoint
    blocked = state.amended(blocked_items=[*state.blocked_items, state.error])
    return checkpoint.amended(execution_state=blocked)


def _linked(current: Checkpoint, written: Checkpoint) -> Checkpoint:
    """A new version shows the linked parent, as a read of it will."""
    if current.recorded_parent is None:
        return written
    recorded = written.recovery.last_successful_state
    shown = written.recovery.amended(last_successful_state=current.recovery.last_successful_state)
    return written.amended(recovery=shown, recorded_parent=recorded)


def _remember_agent(current: Checkpoint, changed: Checkpoint) -> Checkpoint:
    """An agent that hands its checkpoint to another stays named in it."""
    before = current.metadata.agent_id
    if before == changed.metadata.agent_id or before in changed.metadata.previous_agents:
        return changed
    agents = [*changed.metadata.previous_agents, before]
    return changed.amended(metadata=changed.metadata.amended(previous_agents=agents))
