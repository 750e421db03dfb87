"""The states of a graph's threads as entries of the log: a thread is a task.

What a state is made of is not looked into: values come and go as bytes of some type. Each state has
a name, `THREAD/NAMESPACE/ID`, and the last one of a thread is the one with the greatest. The index
by name that the log has already finds them: there is no view to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import unquote

import orjson

from syncd import redaction
from syncd.blobs import Blobs
from syncd.entry import CREATE, GRAPH, GRAPH_DELETE, GRAPH_WRITE, Draft, Entry, uuid7
from syncd.errors import GraphDamagedError, InvalidInputError
from syncd.node import Node, user
from syncd.seal import flaw
from syncd.vocabulary import checked_id

# A value is what the program's serializer made of it: a type, and bytes.
Value = tuple[str, bytes]

# Values that are longer are stored by themselves, once, however many states have them.
LARGE = 16_384
# Names go into the replica's indexes.
_LONGEST_NAME = 2_000
_PAGE = 100
_REMEMBERED = 1_000
# The largest step that every reader of JSON takes for the same number.
_EXACT = 2**53
# Each byte as the character of its number: any reader of JSON takes it, and most of it is text.
_BYTES = "latin-1"
_QUOTED = str.maketrans({"%": "%25", "/": "%2F", "~": "%7E"})


class At(NamedTuple):
    """Where a state stands."""

    thread: str
    namespace: str
    id: str

    @property
    def prefix(self) -> str:
        return _prefix(self.thread, self.namespace)

    @property
    def name(self) -> str:
        return self.prefix + quoted(self.id)


class State(NamedTuple):
    """A state as it was put; what is large is still to be fetched."""

    at: At
    name: str
    meta: dict[str, Any]
    content: dict[str, Any]
    entry_id: str
    written: bool


class Write(NamedTuple):
    """What one step wrote to a channel, beside a state."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    value: Value


class Graphs:
    """The threads of one home."""

    def __init__(self, node: Node) -> None:
        self._store = node.store
        self._actor = user()
        self._blobs = Blobs(node, self._actor)
        self._redactor = redaction.of(node.settings)
        # In JSON, a byte takes six at worst.
        self._room = self._blobs.piece // 8
        self._large = min(LARGE, self._room)
        # The entry that was written here last, its number in its thread, and that.
        self._tail: tuple[Entry, int, str] | None = None
        # By thread and namespace, the last state that was put here and is named by its id alone.
        self._last: dict[str, str] = {}

    # --- writing ----------------------------------------------------------------------------

    def put(
        self,
        at: At,
        parent: str,
        values: Mapping[str, Value],
        channels: Mapping[str, Value],
        *,
        run: str = "",
        step: object = None,
    ) -> None:
        """Store a state: what it consists of, and those of its channels that are large."""
        prefix, plain = self._checked(at, parent, run)
        meta: dict[str, Any] = {"task_id": at.thread, "parent": parent, "run": run}
        if type(step) is int and abs(step) < _EXACT:
            meta["step"] = step
        name = self._name(at, parent, prefix, plain)
        if channels or max(len(content) for _, content in values.values()) > self._room:
            with self._store.transaction():
                content = {each: self._kept(at, v, self._room) for each, v in values.items()}
                if channels:
                    kept = {each: self._kept(at, v, self._large) for each, v in channels.items()}
                    content["channels"] = kept
                self._append(GRAPH, name, meta, content)
        else:
            self._append(GRAPH, name, meta, {n: _in_place(v) for n, v in values.items()})
        if name == plain:
            self._remember(prefix, at.id)

    def _checked(self, at: At, parent: str, run: str) -> tuple[str, str]:
        """The first part of a state's name, and all of it. Names stay readable whatever is sealed:
        they must fit, and hold no secret."""
        prefix = at.prefix
        if prefix not in self._last:
            checked_id("thread id", at.thread)
            self._redactor.refuse("thread_id", at.thread)
            if at.namespace:
                checked_id("namespace", at.namespace, _LONGEST_NAME)
                self._redactor.refuse("checkpoint_ns", at.namespace)
        checked_id("checkpoint id", at.id)
        for kind, text in (("parent", parent), ("run id", run)):
            if text:
                checked_id(kind, text)
        name = prefix + quoted(at.id)
        if len(name.encode()) > _LONGEST_NAME:
            raise InvalidInputError(
                f"thread, namespace and checkpoint id have more than {_LONGEST_NAME:,} bytes"
            )
        return prefix, name

    def _name(self, at: At, parent: str, prefix: str, plain: str) -> str:
        """What follows another state comes after it, even if the clock of this machine, which ids
        are made from, is behind that of the machine before."""
        if not parent or (parent < at.id and self._last.get(prefix) == parent):
            return plain
        before = self._named(at._replace(id=parent)) or prefix + quoted(parent)
        steps = before[len(prefix) :].split("~")
        names = (prefix + "~".join((*steps[:n], plain[len(prefix) :])) for n in range(len(steps)))
        return next((name for name in names if name > before), f"{before}~{plain[len(prefix) :]}")

    def _remember(self, prefix: str, checkpoint_id: str) -> None:
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[prefix] = checkpoint_id

    def write(
        self,
        at: At,
        task_id: str,
        task_path: str,
        writes: Sequence[tuple[int, str, Value]],
        *,
        replace: bool,
    ) -> None:
        """Store what a step wrote beside a state. What it wrote before under the same index stays,
        or is replaced."""
        self._checked(at, "", "")
        said = {"task": task_id, "path": task_path, "replace": replace}
        meta = {"task_id": at.thread}
        if writes and sum(len(value[1]) + len(name) for _, name, value in writes) <= self._large:
            some = [(index, channel, _in_place(value)) for index, channel, value in writes]
            self._append(GRAPH_WRITE, at.name, meta, {**said, "writes": some})
            return
        with self._store.transaction():
            for batch in self._batches(at, writes):
                self._append(GRAPH_WRITE, at.name, meta, {**said, "writes": batch})

    def _batches(
        self, at: At, writes: Iterable[tuple[int, str, Value]]
    ) -> Iterator[list[tuple[int, str, Any]]]:
        """So many at a time as fit into an entry."""
        batch: list[tuple[int, str, Any]] = []
        room = self._room
        for index, channel, value in writes:
            room -= min(len(value[1]), self._large) + len(channel)
            if batch and room < 0:
                yield batch
                batch, room = [], self._room
            batch.append((index, channel, self._kept(at, value, self._large)))
        if batch:
            yield batch

    def _kept(self, at: At, value: Value, limit: int) -> Any:
        """A value as an entry has it: in place, or where it is found."""
        kind, content = value
        if len(content) <= limit:
            return _in_place(value)
        return {"type": kind, **self._blobs.keep(at.thread, f"{quoted(at.thread)}/", content)}

    def _append(self, entity: str, name: str, meta: dict[str, Any], content: Any) -> None:
        body = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        draft = Draft(uuid7(), entity, name, CREATE, self._actor, meta, body)
        self._tail = self._after_tail(draft) or self._at_end(draft)

    def _after_tail(self, draft: Draft) -> tuple[Entry, int, str] | None:
        """The short way: nobody has written since this thread's last entry was."""
        tail = self._tail
        if tail is None or tail[2] != draft.meta["task_id"]:
            return None
        last, number, thread = tail
        entry = self._store.append_after(last, draft, number + 1)
        return (entry, number + 1, thread) if entry else None

    def _at_end(self, draft: Draft) -> tuple[Entry, int, str]:
        thread = draft.meta["task_id"]
        with self._store.transaction():
            place = self._store.graph_place(thread)
            return self._store.append(draft, place), place.task_seq + 1, thread

    # --- verified reads ---------------------------------------------------------------------

    def newest(self, thread: str, namespace: str) -> State | None:
        prefix = At(thread, namespace, "").prefix
        return self._state(thread, prefix, f"{prefix[:-1]}0")

    def state(self, at: At) -> State | None:
        if found := self._state(at.thread, at.name, at.name):
            return found
        name = self._named(at)
        return self._state(at.thread, name, name) if name and name != at.name else None

    def _state(self, thread: str, first: str, last: str) -> State | None:
        """The last one of those with such names."""
        row = self._store.row("graph_newest", (first, last, quoted(thread)))
        if row is None:
            return None
        entry = self._verified(row[:-1])
        name = entry.entity_id
        written = bool(row[-1]) or "~" in name
        return State(
            at_of(name), name, orjson.loads(entry.meta), _document(entry), entry.entry_id, written
        )

    def _named(self, at: At) -> str:
        prefix = at.prefix
        values = (at.name, prefix, f"{prefix[:-1]}0", f"~{quoted(at.id)}")
        row = self._store.row("graph_named", values)
        return row[0] if row else ""

    def states(
        self, thread: str | None, namespace: str | None, before: At | None = None
    ) -> Iterator[State]:
        """Those of a thread, or of all, the last one first; with `before`, those before it."""
        for name in self._names(thread, namespace, before):
            if found := self._state(at_of(name).thread, name, name):
                yield found

    def _names(self, thread: str | None, namespace: str | None, before: At | None) -> Iterable[str]:
        end = (self._named(before) or before.name)[len(before.prefix) :] if before else ""
        if thread is not None and namespace is not None:
            prefix = At(thread, namespace, "").prefix
            return self._pages(prefix, prefix + end if end else f"{prefix[:-1]}0")
        low = f"{quoted(thread)}/" if thread is not None else ""
        high = f"{low[:-1]}0" if low else "\U0010ffff"
        found = [(name.split("/")[2], name) for name in self._pages(low, high)]
        return [name for key, name in sorted(found, reverse=True) if not end or key < end]

    def _pages(self, low: str, high: str) -> Iterator[str]:
        while page := self._store.rows("graph_keys", (low, high, _PAGE)):
            yield from (name for (name,) in page)
            high = page[-1][0]

    def value(self, state: State, stored: Any) -> Value:
        """A value of a state as it was given."""
        return self._value(state.at.thread, state.name, state.entry_id, stored)

    def _value(self, thread: str, name: str, entry_id: str, stored: Any) -> Value:
        try:
            if isinstance(stored, list):
                kind, text = stored
                return kind, text.encode(_BYTES)
            return stored["type"], self._blobs.read(f"{quoted(thread)}/", stored)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._store.damaged(
                f"state {name}", entry_id, "it has another form", GraphDamagedError
            ) from None

    def writes(self, state: State) -> list[Write]:
        """What steps wrote beside a state, in the order in which it takes effect."""
        if not state.written:
            return []
        at = state.at
        found: dict[tuple[str, int], Write] = {}
        rows = self._store.rows("graph_writes", (at.name, quoted(at.thread)))
        entries = [self._verified(row) for row in rows]
        for entry in sorted(entries, key=lambda e: (e.effective_hlc, e.entry_id)):
            said = _document(entry)
            for index, channel, stored in said["writes"]:
                place = said["task"], index
                if said["replace"] or place not in found:
                    value = self._value(at.thread, at.name, entry.entry_id, stored)
                    found[place] = Write(said["task"], said["path"], index, channel, value)
        return sorted(found.values(), key=lambda w: (w.task_path, w.task_id, w.idx))

    def _verified(self, row: tuple[Any, ...]) -> Entry:
        entry = self._store.read(row)
        if problem := flaw(entry):
            subject = f"{entry.entity} {entry.entity_id}"
            raise self._store.damaged(subject, entry.entry_id, problem, GraphDamagedError)
        return self._store.vault.readable(entry)

    # --- deleting and copying -----------------------------------------------------------------

    def delete_thread(self, thread: str) -> None:
        """Nothing of it that was written until now is shown from now on."""
        low = f"{quoted(thread)}/"
        with self._store.transaction():
            for query in ("graph_keys", "graph_written"):
                if self._store.rows(query, (low, f"{low[:-1]}0", 1)):
                    self._delete(thread, quoted(thread))
                    return

    def delete(self, states: Iterable[tuple[At, str]]) -> None:
        """The same for single states, and what was written beside each."""
        with self._store.transaction():
            for at, name in states:
                for each in {name, at.name}:
                    self._delete(at.thread, each)

    def _delete(self, thread: str, name: str) -> None:
        self._append(GRAPH_DELETE, name, {"task_id": thread}, {"deleted": name})

    def of_runs(self, runs: Sequence[str]) -> list[tuple[At, str]]:
        rows = self._store.rows("graph_runs", (orjson.dumps(list(runs)).decode(),))
        return [(at_of(name), name) for (name,) in rows]

    def copy(self, source: str, target: str) -> None:
        """All of a thread that is shown, as another one; all or nothing."""
        with self._store.transaction():
            for state in reversed(list(self.states(source, None))):
                self._copy(state, state.at._replace(thread=target))

    def _copy(self, state: State, at: At) -> None:
        content = dict(state.content)
        channels = {n: self.value(state, v) for n, v in content.pop("channels", {}).items()}
        values = {name: self.value(state, stored) for name, stored in content.items()}
        run, step = state.meta["run"], state.meta.get("step")
        self.put(at, state.meta["parent"], values, channels, run=run, step=step)
        written = sorted(self.writes(state), key=lambda w: (w.task_id, w.task_path))
        for (task_id, path), group in groupby(written, key=lambda w: (w.task_id, w.task_path)):
            some = [(write.idx, write.channel, write.value) for write in group]
            self.write(at, task_id, path, some, replace=False)


def at_of(name: str) -> At:
    """Where the state of some name stands."""
    thread, namespace, key = name.split("/")
    if "~" in key:
        key = key[key.rindex("~") + 1 :]
    if "%" in name:
        return At(unquote(thread), unquote(namespace), unquote(key))
    return At(thread, namespace, key)


def _in_place(value: Value) -> tuple[str, str]:
    return value[0], value[1].decode(_BYTES)


def quoted(text: str) -> str:
    """A part of a name."""
    return text.translate(_QUOTED)


@lru_cache(_REMEMBERED)
def _prefix(thread: str, namespace: str) -> str:
    return f"{quoted(thread)}/{quoted(namespace)}/"


def _document(entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(entry.body)
    return document
