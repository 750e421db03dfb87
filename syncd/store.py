"""The local database: what is written to it, and verified reads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd import clock
from syncd.entry import CHECKPOINT, FINALIZE, Entry
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointNotFoundError,
    DiskRefusedError,
    ErasedError,
    FinalizedError,
    InvalidInputError,
    KeyMissingError,
    PurgedError,
    ReadOnlyError,
    StaleBaseError,
    StoreBusyError,
    ViewDamagedError,
)
from syncd.leases import FOREVER
from syncd.purges import Erased, erased, recalled
from syncd.seal import SEALED, digest, flaw, header_intact
from syncd.vault import Vault
from syncd.views import CheckpointRow, checkpoint_columns
from syncd.writer import Writer

VIEW_COLUMNS = len(CheckpointRow._fields)
_ENTRY_END = VIEW_COLUMNS + len(Entry._fields)
_PAGE = 500
# So many parents are followed to see whether a new link closes a circle.
_LINE = 100_000


class Record(NamedTuple):
    """A checkpoint as read: verified, its body still bytes. `purge` tells why there is none."""

    row: CheckpointRow
    entry: Entry
    linked_parent: str = ""
    purge: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The body as a document, with its proof and what the reader should know."""
        document = opened(self.entry) if self.purge is None else self._remains()
        signature = self.entry.signature
        document["compliance"]["hash"] = shown_hash(self.entry)
        document["compliance"]["signature"] = signature.hex() if signature else ""
        if self.linked_parent:
            document["recorded_parent"] = document["recovery"]["last_successful_state"]
            document["recovery"]["last_successful_state"] = self.linked_parent
        document["revision"] = self.entry.entry_id
        document["verified"] = self.purge is None
        return document

    def _remains(self) -> dict[str, Any]:
        """What the header tells of a checkpoint whose body was purged."""
        row = self.row
        return {
            "version": "1.0",
            "metadata": {
                "checkpoint_id": row.id, "task_id": row.task_id, "agent_id": row.agent_id,
                "agent_type": row.agent_type, "iteration": row.iteration,
                "timestamp": row.created_at,
            },
            "execution_state": {"phase": row.phase, "status": row.status, "completed_items": [],
                                "pending_items": []},
            "metrics": {"tokens_consumed": row.tokens},
            "recovery": {"last_successful_state": row.parent_id},
            "compliance": {},
            "purged": self.purge,
        }  # fmt: skip


class Skipped(NamedTuple):
    """A damaged checkpoint that a read passed over because the caller asked it to."""

    checkpoint_id: str
    entry_id: str
    problem: str


class Sealed(NamedTuple):
    """A checkpoint that a read left out, as the caller asked, because its key is not here."""

    checkpoint_id: str
    problem: str
    remedy: str


class Store(Writer):
    """One device's log and its views."""

    columns = CheckpointRow._fields + Entry._fields

    def __init__(self, path: Path, *, vault: Vault | None = None, **options: Any) -> None:
        super().__init__(path, vault=vault, **options)
        self._met: list[tuple[str, str]] = []

    def _rolled_back(self) -> None:
        met, self._met = self._met, []
        if met:
            self.record_problems(met)

    def changeable(self, checkpoint_id: str, base: str | None = None) -> Record:
        """The current version, if it may be changed on top of `base`."""
        record = self.checkpoint(checkpoint_id)
        row = record.row
        if row.final:
            raise FinalizedError(f"checkpoint {row.id} is finalized ({row.status})")
        self.refuse_erased(row.id)
        revision = record.entry.entry_id
        if base is not None and base != revision:
            raise StaleBaseError(
                f"checkpoint {row.id} is at revision {revision}, the change is based on {base}"
            )
        return record

    def refuse_erased(self, checkpoint_id: str) -> None:
        """Raise if somebody has asked to erase a checkpoint: a new version of it would stay."""
        if found := erased(self.rows, checkpoint_id):
            last = found[-1]
            raise ErasedError(
                f"checkpoint {checkpoint_id} was erased on {last.at} by {last.actor}, which takes "
                "effect on each machine as it learns of it",
                f"{ErasedError.remedy} If content of it is still here after a sync, "
                f"`syncd erase {checkpoint_id}` again takes it away.",
            )

    def refuse_circle(self, parent_id: str, child_id: str) -> None:
        """Raise if a checkpoint would come before itself with this parent."""
        if parent_id == child_id:
            raise InvalidInputError("a checkpoint cannot be its own parent")
        if self.row("stands_before", (parent_id, child_id, _LINE)):
            raise InvalidInputError(
                f"checkpoint {child_id} comes before {parent_id} already, so it cannot follow it",
                "Name the earlier one as the parent: `syncd checkpoint history` shows the order.",
            )

    def erasure_waiting(self, record: Record) -> Erased | None:
        """Who has asked to erase what was read, as long as that has not taken effect."""
        found = erased(self.rows, record.row.id) if record.purge is None else []
        return next((v for v in found if v.entry_id == record.entry.entry_id), None)

    def missing_keys(self, met: Iterable[str] = (), without: Iterable[str] = ()) -> list[str]:
        """The keys that entries here are sealed with and that have not been brought here. Called
        inside a transaction to add some, or to take some out."""
        row = self.row("state", ("keys_missing",))
        known: list[str] = orjson.loads(row[0]) if row else []
        now = sorted({*known, *met} - set(without))
        if now != known:
            self.change("put_state", ("keys_missing", orjson.dumps(now).decode()))
        return now

    def record_problems(self, found: Iterable[tuple[str, str]], *, anew: bool = False) -> None:
        """Keep what was found (entry, problem); `anew` when everything was looked at.

        A disk that cannot take it must not hide the finding itself.
        """
        try:
            with self.transaction():
                if anew:
                    self._connection.execute(self.sql["clear_problems"])
                found_at = clock.iso(self.now_ms())
                for entry_id, problem in found:
                    values = (entry_id, problem, found_at)
                    self._connection.execute(self.sql["add_problem"], values)
        except (ReadOnlyError, DiskRefusedError, StoreBusyError):
            return

    def search(
        self,
        text: str,
        limit: int,
        skipped: list[Skipped] | None,
        sealed: list[Sealed] | None = None,
    ) -> list[Record]:
        """Checkpoints whose text contains `text`, newest first, read a page at a time."""
        needle = orjson.dumps(text).decode()[1:-1].casefold()
        found: list[Record] = []
        before = FOREVER
        while page := self.rows("page_before", (before, _PAGE)):
            for row in page:
                if self._may_contain(self.read(row[VIEW_COLUMNS:_ENTRY_END]), needle):
                    found += self._checked([row], skipped, sealed)
                    if len(found) == limit:
                        return found
            before = page[-1][VIEW_COLUMNS]
        return found

    def _may_contain(self, entry: Entry, needle: str) -> bool:
        """A checkpoint that cannot be read must not seem to lack what is searched."""
        if not self.vault.is_plain(entry) or type(entry.body) is not bytes:
            return True
        return needle in entry.body.decode("utf-8", "replace").casefold()

    # --- verified reads ---------------------------------------------------------------------

    def read(self, row: tuple[Any, ...]) -> Entry:
        """A row of the log, its body opened if its key is here."""
        return self.vault.opened(Entry(*row))

    def current_id(self, task_id: str) -> str:
        row = self.row("current_id", (task_id,))
        return row[0] if row else ""

    def checkpoint(self, checkpoint_id: str) -> Record:
        row = self.row("checkpoint", (checkpoint_id,))
        if row is None:
            raise CheckpointNotFoundError(f"there is no checkpoint {checkpoint_id!r}")
        return self.verified(row)

    def latest(self, task_id: str) -> Record | None:
        row = self.row("latest", (task_id,))
        return self.verified(row) if row else None

    def select(
        self,
        query: str,
        parameters: Iterable[Any],
        skipped: list[Skipped] | None = None,
        sealed: list[Sealed] | None = None,
    ) -> list[Record]:
        """Verified checkpoints; damage raises, and so does a key that is not here, unless the
        caller collects what is skipped, and what is left out."""
        return self._checked(self.rows(query, parameters), skipped, sealed)

    def _checked(
        self,
        rows: Iterable[tuple[Any, ...]],
        skipped: list[Skipped] | None,
        sealed: list[Sealed] | None,
    ) -> list[Record]:
        records = []
        for row in rows:
            try:
                records.append(self._examined(row))
            except CheckpointCorruptionError as error:
                if skipped is None:
                    raise
                skipped.append(Skipped(row[0], error.entry_id, error.problem))
            except KeyMissingError as error:
                if sealed is None:
                    raise
                sealed.append(Sealed(row[0], error.message, error.remedy))
        return records

    def intact_from(self, record_id: str, skipped: list[Skipped]) -> Record | None:
        """The checkpoint, or the nearest intact one along its parents."""
        seen: set[str] = set()
        while record_id and record_id not in seen:
            seen.add(record_id)
            row = self.row("checkpoint", (record_id,))
            if row is None:
                skipped.append(Skipped(record_id, "", "the checkpoint is missing"))
                return None
            try:
                return self.verified(row)
            except (CheckpointCorruptionError, PurgedError) as error:
                skipped.append(Skipped(record_id, error.entry_id, error.problem))
                record_id = self._parent_of_damaged(row)
        return None

    def _parent_of_damaged(self, row: tuple[Any, ...]) -> str:
        """A parent linked later, else the one in the header, which outlives a damaged body.

        A damaged header is not to be trusted: the view's word is taken, within the task.
        """
        view, entry = CheckpointRow(*row[:VIEW_COLUMNS]), Entry(*row[VIEW_COLUMNS:_ENTRY_END])
        if linked := row[_ENTRY_END]:
            return str(linked)
        if entry.seq is not None and header_intact(entry):
            return str(orjson.loads(entry.meta).get("parent", ""))
        parent = self.row("checkpoint", (view.parent_id,))
        return view.parent_id if parent and parent[1] == view.task_id else ""

    def verified(self, row: tuple[Any, ...]) -> Record:
        """Check a joined row: body against hash, header against chain, view against both."""
        record = self._examined(row)
        if record.purge is not None:
            raise _gone(f"checkpoint {record.row.id}", record.entry, record.purge)
        return record

    def _examined(self, row: tuple[Any, ...]) -> Record:
        """The same, where what is left of a purged one will do."""
        view = CheckpointRow(*row[:VIEW_COLUMNS])
        entry = self.read(row[VIEW_COLUMNS:_ENTRY_END])
        subject, entry_id = f"checkpoint {view.id}", str(entry.entry_id or f"seq {view.seq}")
        if problem := "its entry is missing from the log" if entry.seq is None else flaw(entry):
            raise self.damaged(subject, entry_id, problem)
        if problem := self._view_flaw(view, entry):
            raise self.damaged(subject, entry_id, problem, ViewDamagedError)
        return Record(view, self.vault.readable(entry), row[_ENTRY_END] or "", self.purge_of(entry))

    def _view_flaw(self, view: CheckpointRow, entry: Entry) -> str | None:
        if entry.entity != CHECKPOINT:
            return "the view row points to an entry of another kind"
        meta = orjson.loads(entry.meta)
        task = meta["task_id"] if view.task_id == meta["task_id"] else self._first_task(view)
        expected = (
            entry.entity_id, task, *checkpoint_columns(meta), entry.op == FINALIZE, entry.seq,
        )  # fmt: skip
        if view[:12] != expected:
            return "the view row does not match its entry"
        return None

    def _first_task(self, view: CheckpointRow) -> str | None:
        """Its first version names the task: two machines may have used one id for different ones,
        and the version that counts may be the other's."""
        row = self.row("entry_at", (view.first_seq,))
        first = Entry(*row) if row else None
        return orjson.loads(first.meta)["task_id"] if first and header_intact(first) else None

    def damaged(
        self,
        subject: str,
        entry_id: str,
        problem: str,
        kind: type[CheckpointCorruptionError] = CheckpointCorruptionError,
    ) -> CheckpointCorruptionError:
        """The error for damage met while reading, after recording it.

        Inside a transaction the record waits: the error is about to roll everything back.
        """
        if self._depth:
            self._met.append((entry_id, problem))
        else:
            self.record_problems([(entry_id, problem)])
        return kind(f"{subject}, entry {entry_id}: {problem}", entry_id=entry_id, problem=problem)

    def version(self, entry_id: str) -> Entry:
        """One entry, verified by itself: an older version of a checkpoint, say."""
        entry = self.entry(entry_id)
        if entry is None:
            raise CheckpointNotFoundError(f"there is no revision {entry_id!r}")
        if problem := flaw(entry):
            raise self.damaged(f"{entry.entity} {entry.entity_id}", entry_id, problem)
        if (purge := self.purge_of(entry)) is not None:
            raise _gone(f"revision {entry_id} of {entry.entity} {entry.entity_id}", entry, purge)
        return self.vault.readable(entry)

    def purge_of(self, entry: Entry) -> dict[str, Any] | None:
        """When, why and by which entry a body was purged; None if it was not."""
        if entry.purged is None:
            return None
        purge = self.entry(entry.purged) or self._evidence(entry.purged)
        if purge is None:
            return {"by": entry.purged, "at": "", "kind": "", "actor": "", "reason": ""}
        known = purge.body and not purge.body.startswith(SEALED)
        body = orjson.loads(purge.body) if known else {}
        return {"by": purge.entry_id, "at": purge.at, "kind": orjson.loads(purge.meta)["kind"],
                "actor": purge.actor, "reason": body.get("reason", "")}  # fmt: skip

    def _evidence(self, purge_id: str) -> Entry | None:
        row = self.row("purge_evidence", (purge_id,))
        return self.vault.opened(recalled(row[0])) if row else None

    def entry(self, entry_id: str) -> Entry | None:
        row = self.row("entry", (entry_id,))
        return self.read(row) if row else None

    def find(self, query: str, prefix: str) -> list[str]:
        """Up to three full ids that begin with `prefix`."""
        return [row[0] for row in self.rows(query, (prefix, prefix + "\U0010ffff"))]


def shown_hash(entry: Entry) -> str:
    """What a reader can recompute from the document; the log of an entry that others must not read
    has a keyed one."""
    return digest(entry.body) if entry.key_id else entry.hash


def opened(entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(entry.body)
    return document


def _gone(subject: str, entry: Entry, purge: dict[str, Any]) -> PurgedError:
    what = {"erase": "erased", "retention": "purged as its retention says"}
    problem = f"its body was {what.get(purge['kind'], 'purged')}"
    if purge["at"]:
        problem += f" on {purge['at']} by {purge['actor']}"
    if purge["reason"]:
        problem += f" ({purge['reason']})"
    problem += f", entry {purge['by']}"
    return PurgedError(f"{subject}: {problem}", entry_id=entry.entry_id, problem=problem)
