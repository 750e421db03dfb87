"""LangGraph's checkpoints in the log: replicated, chained, verified, sealed like everything else.

    graph = builder.compile(checkpointer=SyncdSaver())

State is stored as the serializer gives it: to take anything out, as is done with the texts of a
checkpoint, would change the program. Whoever must not have secrets on disk turns encryption on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

try:
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
except ImportError as error:
    raise ImportError(
        "SyncdSaver needs LangGraph, which is not installed: in the checkout of syncd, "
        "pip install -e '.[langgraph]'"
    ) from error

from syncd.errors import InvalidInputError
from syncd.graphs import LARGE, At, Graphs, State, Value
from syncd.node import Node

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import DeltaChannelHistory
    from langgraph.checkpoint.serde.base import SerializerProtocol

# So many are read at a time for whoever awaits the next one.
_AHEAD = 20
KEEP_LATEST, DELETE = "keep_latest", "delete"


class SyncdSaver(BaseCheckpointSaver[str]):
    """A checkpointer on one home; without arguments, on the user's own. Safe to share between
    threads, event loops and processes."""

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        node: Node | None = None,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self.node = node or Node(Path(home) if home else None)
        self._graphs = Graphs(self.node)

    def close(self) -> None:
        self.node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get_next_version(self, current: str | int | None, channel: None) -> str:  # noqa: ARG002
        """Versions that two machines make at the same time differ."""
        number = current if isinstance(current, int) else int((current or "0").split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 (no secret)

    # --- writing ----------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 (what is large is told by its content)
    ) -> RunnableConfig:
        """Store a state. It is on disk when this returns."""
        at, parent = _at(config, checkpoint["id"]), get_checkpoint_id(config) or ""
        known = get_checkpoint_metadata(config, metadata)
        rest, channels = self._parted(checkpoint)
        values = {"checkpoint": rest, "metadata": self.serde.dumps_typed(known)}
        run = str(known.get("run_id") or "")
        self._graphs.put(at, str(parent), values, channels, run=run, step=known.get("step"))
        return _config(at)

    def _parted(self, checkpoint: Checkpoint) -> tuple[Value, dict[str, Value]]:
        """A state without its large values, and those."""
        whole = self.serde.dumps_typed(checkpoint)
        if len(whole[1]) <= LARGE:
            return whole, {}
        given = checkpoint["channel_values"]
        dumped = {name: self.serde.dumps_typed(value) for name, value in given.items()}
        large = {name: value for name, value in dumped.items() if len(value[1]) > LARGE}
        if not large:
            return whole, {}
        left = {name: value for name, value in given.items() if name not in large}
        return self.serde.dumps_typed({**checkpoint, "channel_values": left}), large

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a step wrote. Done again, it changes nothing, but that errors, interrupts and
        answers to them take the place of what was there."""
        said = [
            (WRITES_IDX_MAP.get(channel, index), channel, self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]
        replace = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        at = _at(config, str(get_checkpoint_id(config)))
        self._graphs.write(at, task_id, task_path, said, replace=replace)

    # --- reading ----------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A state, verified: of the id that is named, else the last one of its thread. Raises
        `syncd.errors.GraphDamagedError` if it is not what was put."""
        checkpoint_id = get_checkpoint_id(config)
        at = _at(config, str(checkpoint_id or ""))
        found = (
            self._graphs.state(at)
            if checkpoint_id
            else self._graphs.newest(at.thread, at.namespace)
        )
        return self._tuple(found) if found else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """States, the last one first; each is verified when its turn comes."""
        most = None if limit is None else max(limit, 0)
        return islice(self._listed(config, filter or {}, before), most)

    def _listed(
        self,
        config: RunnableConfig | None,
        wanted: Mapping[str, Any],
        before: RunnableConfig | None,
    ) -> Iterator[CheckpointTuple]:
        for state in self._states(config, before):
            metadata = self._loaded(state, "metadata")
            if all(metadata.get(name) == value for name, value in wanted.items()):
                yield self._tuple(state, metadata)

    def _states(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> Iterator[State]:
        end = str(get_checkpoint_id(before) or "") if before else ""
        if config is None:
            yield from self._graphs.states(None, None, At("", "", end) if end else None)
            return
        at, wanted = _at(config, end), get_checkpoint_id(config)
        namespace = config["configurable"].get("checkpoint_ns")
        for state in self._graphs.states(at.thread, namespace, at if end else None):
            if not wanted or state.at.id == wanted:
                yield state

    def _tuple(self, state: State, metadata: CheckpointMetadata | None = None) -> CheckpointTuple:
        checkpoint: Checkpoint = self._loaded(state, "checkpoint")
        for name, stored in state.content.get("channels", {}).items():
            value = self.serde.loads_typed(self._graphs.value(state, stored))
            checkpoint["channel_values"][name] = value
        parent = state.meta["parent"]
        return CheckpointTuple(
            _config(state.at),
            checkpoint,
            metadata or self._loaded(state, "metadata"),
            _config(state.at._replace(id=parent)) if parent else None,
            [
                (write.task_id, write.channel, self.serde.loads_typed(write.value))
                for write in self._graphs.writes(state)
            ],
        )

    def _loaded(self, state: State, part: str) -> Any:
        return self.serde.loads_typed(self._graphs.value(state, state.content[part]))

    # --- deleting and copying -----------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Hide all of a thread, on every machine. The entries stay in the log."""
        self._graphs.delete_thread(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide what some runs have put, and what was written beside it."""
        self._graphs.delete(self._graphs.of_runs([str(run) for run in run_ids]))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """All states of a thread, with what was written beside them, as another thread."""
        self._graphs.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        """Hide all states of some threads, or all but the last one of each namespace. Those that
        the last one is worked out from, where channels keep differences, stay too."""
        if strategy not in (KEEP_LATEST, DELETE):
            raise InvalidInputError(f"strategy {strategy!r} is neither {KEEP_LATEST} nor {DELETE}")
        for thread in map(str, thread_ids):
            if strategy == DELETE:
                self._graphs.delete_thread(thread)
            else:
                self._prune(thread)

    def _prune(self, thread: str) -> None:
        with self.node.store.transaction():
            states = [*self._graphs.states(thread, None)]
            newest = {state.at.namespace: state for state in reversed(states)}
            kept = {at for state in newest.values() for at in self._needed(state)}
            self._graphs.delete((state.at, state.name) for state in states if state.at not in kept)

    def _needed(self, state: State) -> Iterator[At]:
        """A state, and those before it back to one that has all its channels' values. Metadata
        names the channels of which a state has only the differences to the one before."""
        found: State | None = state
        missing = set(self._loaded(state, "metadata").get("counters_since_delta_snapshot") or ())
        while found:
            yield found.at
            given = self._loaded(found, "checkpoint")["channel_values"]
            missing -= {*given, *found.content.get("channels", {})}
            before = found.at._replace(id=found.meta["parent"])
            found = self._graphs.state(before) if missing and before.id else None

    # --- for those who await ------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 (LangGraph's name)
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while some := await asyncio.to_thread(lambda: [*islice(found, _AHEAD)]):
            for each in some:
                yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = KEEP_LATEST) -> None:
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        history = self.get_delta_channel_history
        return await asyncio.to_thread(history, config=config, channels=channels)


def _at(config: RunnableConfig, checkpoint_id: str) -> At:
    given = config["configurable"]
    return At(str(given["thread_id"]), given.get("checkpoint_ns") or "", checkpoint_id)


def _config(at: At) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": at.thread, "checkpoint_ns": at.namespace, "checkpoint_id": at.id,
        }
    }  # fmt: skip
