"""From files to checkpoints: each file once, however often it is looked at.

A checkpoint that a file holds has an id that follows from the file, so that the same file on
another machine, or looked at again, is the same checkpoint. What has changed in it since is a new
version; what was written at another time is a new checkpoint.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from syncd.checkpoint import Checkpoint
from syncd.errors import CheckpointNotFoundError, InvalidInputError, SyncdError
from syncd.fold import derived_id
from syncd.formats import agent_files, agent_json, builder_state, markdown, reference_store
from syncd.formats.reading import FormatError, Reading
from syncd.service import CheckpointService
from syncd.sources import Sources, digest

_AT_ONCE = 200
_SKIPPED = frozenset((".git", "node_modules", "backups"))
Progress = Callable[[str, int, int], None]


class Format(NamedTuple):
    """How the files of a format are told, and read. `called` says it to people; a name that
    `resembles` those, and does not match, is more likely a slip than another's."""

    name: str
    matches: Callable[[str], bool]
    read: Callable[[bytes, str], list[Reading]]
    called: str
    resembles: Callable[[str], bool] = lambda _: False
    several: bool = False  # whether a file may hold more than one checkpoint


def _one(read: Callable[[bytes, str], Reading]) -> Callable[[bytes, str], list[Reading]]:
    return lambda data, source: [read(data, source)]


def _is_json(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _is_page(name: str) -> bool:
    return name.upper().startswith("AGENT_") and name.upper().endswith(".MD")


FORMATS = {
    form.name: form
    for form in (
        Format("markdown", markdown.is_name, _one(markdown.read),
               "AGENT_NAME_YYYYMMDD_HHMMSS.md, NAME in capitals", _is_page),
        Format("agent-json", lambda n: _is_json(n) and not agent_files.is_archive(n),
               _one(agent_json.read), "NAME.json"),
        Format("builder-state", lambda name: name == "builder-state.json", builder_state.read,
               "builder-state.json", several=True),
        Format("reference", lambda n: _is_json(n) and n != "latest.json",
               _one(reference_store.read), "TASK/ID.json"),
    )
}  # fmt: skip


def _silent(_what: str, _done: int, _all: int) -> None:
    """For those who do not watch."""


class Failure(NamedTuple):
    path: str
    line: int
    message: str


class Tally(NamedTuple):
    """CONTRACT: what an import did; files were passed over because of their names."""

    imported: int = 0
    unchanged: int = 0
    failed: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        return not (self.imported or self.unchanged or self.failed)

    def plus(self, other: Tally) -> Tally:
        return Tally(
            self.imported + other.imported,
            self.unchanged + other.unchanged,
            (*self.failed, *other.failed),
            (*self.notes, *other.notes),
            (*self.passed_over, *other.passed_over),
        )

    def document(self) -> dict[str, Any]:
        return {
            "imported": self.imported,
            "unchanged": self.unchanged,
            "failed": [failure._asdict() for failure in self.failed],
            "notes": list(self.notes),
            "passed_over": list(self.passed_over),
        }


# --- which files ----------------------------------------------------------------------------------


class Sorted(NamedTuple):
    """The files below a directory: those of a format, and those that are called almost so."""

    matching: list[Path]
    resembling: list[Path]


def files(form: Format, place: Path) -> Sorted:
    """The file itself, or those below a directory; nothing that lies outside it."""
    if not place.is_dir():
        if not place.exists():
            raise CheckpointNotFoundError(f"there is no file {place}", "Name one that exists.")
        return Sorted([place], [])
    found = Sorted([], [])
    for path in _below(place):
        if form.matches(path.name):
            found.matching.append(path)
        elif form.resembles(path.name):
            found.resembling.append(path)
    return found


def _below(place: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(place):
        below[:] = sorted(name for name in below if name not in _SKIPPED)
        yield from (Path(folder, name) for name in sorted(names))


class Place:
    """The directory that was named: nothing outside it is read. Directories below it are looked at
    once, as thousands of files may lie in one; so a place is made anew for each look around."""

    def __init__(self, root: Path, limit: int) -> None:
        self._root = root.resolve()
        self._limit = limit
        self._within: dict[Path, bool] = {}

    def content(self, file: Path) -> bytes:
        """What a file holds; refused if a link leads elsewhere, or if it is far larger than any
        checkpoint."""
        if not self._holds(file):
            raise InvalidInputError(
                f"{file} leads out of {self._root}", "Name the place where it really lies."
            )
        try:
            with file.open("rb") as stream:
                data = stream.read(self._limit + 1)
        except OSError as error:
            raise InvalidInputError(f"{file}: {error.strerror}", "Check its permissions.") from None
        if len(data) > self._limit:
            raise InvalidInputError(f"{file} has more than {self._limit:,} bytes", "Leave it out.")
        return data

    def _holds(self, file: Path) -> bool:
        if file.is_symlink():
            return file.resolve().is_relative_to(self._root)
        folder = file.parent
        if folder not in self._within:
            self._within[folder] = folder.resolve().is_relative_to(self._root)
        return self._within[folder]


class _File(NamedTuple):
    """`restored` says what a damaged file was replaced by."""

    path: Path
    digest: str
    readings: list[Reading]
    restored: str = ""

    @property
    def written_at(self) -> str:
        times = [reading.checkpoint.metadata.timestamp for reading in self.readings]
        return min(times, default="")


# --- taking in ------------------------------------------------------------------------------------


class Intake:
    """Takes files in for one home; `task` is for those that name none."""

    def __init__(self, service: CheckpointService, task: str = "") -> None:
        self._service = service
        self._store = service.node.store
        self._task = task
        self._sources = Sources(self._store)
        self._limit = 8 * int(service.node.settings["limits.body_bytes"])

    def everything(self, form: Format, place: Path, progress: Progress | None = None) -> Tally:
        """All files of a format, oldest checkpoint first, many to a commit."""
        report = progress or _silent
        there = files(form, place)
        found, tally = self._read(form, there.matching, self.place(place), report)
        tally = tally.plus(Tally(passed_over=tuple(map(str, there.resembling))))
        found.sort(key=lambda file: file.written_at)
        for start in range(0, len(found), _AT_ONCE):
            with self._store.transaction():
                for file in found[start : start + _AT_ONCE]:
                    tally = tally.plus(self._whole(file))
            report("import", min(start + _AT_ONCE, len(found)), len(found))
        return tally

    def _read(
        self, form: Format, paths: Sequence[Path], place: Place, report: Progress
    ) -> tuple[list[_File], Tally]:
        """Those that hold something new, and what became of the others."""
        found: list[_File] = []
        failed: list[Failure] = []
        unchanged = 0
        for number, path in enumerate(paths, start=1):
            try:
                file = self._looked_at(form, path, place)
                if isinstance(file, _File):
                    found.append(file)
                else:
                    unchanged += file
            except InvalidInputError as error:
                failed.append(_failure(path, error))
            if number % _AT_ONCE == 0:
                report("read", number, len(paths))
        return found, Tally(unchanged=unchanged, failed=tuple(failed))

    def _looked_at(self, form: Format, path: Path, place: Place) -> _File | int:
        """What it says; if that is known, how many checkpoints it holds."""
        data = place.content(path)
        holding, known = digest(data, self._task), self._sources.of(path.absolute())
        if known and known.digest == holding:
            return len(form.read(data, str(path))) if form.several else 1
        try:
            return _File(path, holding, form.read(data, str(path)))
        except FormatError as error:
            found = restored(form, path, error, place)
        readings = form.read(found.data, str(path))
        return _File(path, digest(found.data, self._task), readings, found.note)

    def _whole(self, file: _File) -> Tally:
        """All that one file holds; what is wrong with it must not keep the others out."""
        tally = Tally(notes=(f"{file.path}: {file.restored}",) if file.restored else ())
        try:
            for reading in file.readings:
                tally = tally.plus(self._take(file.path, reading, old=bool(file.restored)))
        except (InvalidInputError, CheckpointNotFoundError) as error:
            return tally.plus(Tally(failed=(_failure(file.path, error),)))
        self._sources.read(file.path.absolute(), file.digest)
        return tally

    def place(self, path: Path) -> Place:
        return Place(path if path.is_dir() else path.parent, self._limit)

    def one(self, form: Format, path: Path, data: bytes, name: str, *, old: bool = False) -> Tally:
        """A single file that was read, and was called so when it was met first; raises what is
        wrong with it. `old`: it is as it was once."""
        readings = form.read(data, str(path))
        tally = Tally()
        with self._store.transaction():
            for reading in readings:
                tally = tally.plus(self._take(path.with_name(name), reading, old=old))
        return tally

    def _take(self, path: Path, reading: Reading, *, old: bool) -> Tally:
        """A checkpoint that is here already is not put back to what an old file says of it."""
        checkpoint = self._addressed(path, reading)
        notes = tuple(f"{path}: {note}" for note in reading.notes)
        known = self._store.row("checkpoint", (checkpoint.metadata.checkpoint_id,))
        if known is None:
            self._service.save(checkpoint, parent=self._parent(reading, checkpoint))
            return Tally(imported=1, notes=notes)
        if old:
            return Tally(unchanged=1)
        before = self._service.get_checkpoint(checkpoint.metadata.checkpoint_id)
        if not _dated(reading):  # else each look at it would be another time
            metadata = checkpoint.metadata.amended(timestamp=before.metadata.timestamp)
            checkpoint = checkpoint.amended(metadata=metadata)
        if _said(before) == _said(checkpoint):
            return Tally(unchanged=1)
        self._service.revise(before, _on_top_of(before, checkpoint))
        return Tally(imported=1, notes=notes)

    def _addressed(self, path: Path, reading: Reading) -> Checkpoint:
        """With its task and an id that follows from where it stands."""
        checkpoint, metadata = reading.checkpoint, reading.checkpoint.metadata
        task = metadata.task_id or self._task or reading.owner
        if not task:
            raise FormatError(str(path), 1, "it names no task: add --task NAME")
        named = metadata.task_id != "" and "checkpoint_id" in metadata.model_fields_set
        if not named or not self._is_same_moment(checkpoint):
            name = file_id(task, path.name, reading)
            metadata = metadata.amended(checkpoint_id=name)
        return checkpoint.amended(metadata=_set(metadata, task))

    def _is_same_moment(self, checkpoint: Checkpoint) -> bool:
        """An agent that goes on with a file of ours leaves the id in it and changes the time."""
        row = self._store.row("checkpoint", (checkpoint.metadata.checkpoint_id,))
        if row is None:
            return True
        known = self._service.get_checkpoint(checkpoint.metadata.checkpoint_id)
        return known.metadata.timestamp == checkpoint.metadata.timestamp

    def _parent(self, reading: Reading, checkpoint: Checkpoint) -> str | None:
        """The checkpoint of the file that it names as the one before it, if that is here."""
        if not reading.previous:
            return None
        name = file_id(checkpoint.metadata.task_id, Path(reading.previous).name, reading)
        return name if self._store.row("checkpoint", (name,)) else None


def restored(form: Format, path: Path, error: FormatError, place: Place) -> agent_files.Restored:
    """The good backup that a damaged file was replaced by; raises `error` where there is none."""
    if form.name != "agent-json":
        raise error
    return agent_files.restored(path, error, place.content)


def _dated(reading: Reading) -> bool:
    """Whether the file says when it was written."""
    return "timestamp" in reading.checkpoint.metadata.model_fields_set


def file_id(task: str, name: str, reading: Reading) -> str:
    """The same wherever the file lies: by its name if each checkpoint has a file of its own, else
    by the moment that it was written."""
    metadata = reading.checkpoint.metadata
    if markdown.is_name(name):
        return derived_id(f"syncd file {task}\n{name}")
    moment = metadata.timestamp if _dated(reading) else name
    who = f"{metadata.agent_id}\n{metadata.session_id}\n{reading.place}"
    return derived_id(f"syncd file {task}\n{who}\n{moment}")


def _set(metadata: Any, task: str) -> Any:
    """As given from outside: the id may be in use elsewhere."""
    return type(metadata).from_dict({**metadata.to_dict(), "task_id": task})


def _said(checkpoint: Checkpoint) -> bytes:
    """What a checkpoint says, without what the store adds."""
    from syncd.canonical import canonical

    body = checkpoint.body()
    for name in ("compliance", "workspace"):
        body.pop(name, None)
    for name in ("continuation_prompt", "last_successful_state"):
        body["recovery"].pop(name, None)
    return hashlib.sha256(canonical(body)).digest()


def _on_top_of(before: Checkpoint, changed: Checkpoint) -> Checkpoint:
    parent = before.body()["recovery"]["last_successful_state"]
    recovery = changed.recovery.amended(last_successful_state=parent)
    return changed.amended(recovery=recovery, revision=before.revision)


def _failure(path: Path, error: SyncdError) -> Failure:
    line = error.line if isinstance(error, FormatError) else 0
    message = error.expected if isinstance(error, FormatError) else error.message
    return Failure(str(path), line, message)
