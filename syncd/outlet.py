"""From checkpoints to files, in the formats that other tools read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from syncd.checkpoint import Checkpoint
from syncd.entry import CREATE
from syncd.errors import CheckpointNotFoundError, InvalidInputError, SyncdError, UsageError
from syncd.formats import agent_files, agent_json, builder_state, markdown, reference_store
from syncd.formats.files import refuse_outside, replace
from syncd.formats.reading import FormatError
from syncd.formats.times import is_after
from syncd.service import CheckpointService
from syncd.sources import Source, Sources, digest
from syncd.store import Store
from syncd.vocabulary import MAX_ID

_ALL = 1_000_000
_NAME_FOLDER = "Name a directory; the files in it get their names from the checkpoints."


def exported(
    service: CheckpointService, form: str, place: Path, task: str, *, whole: bool = False,
    within: str = "",
) -> list[Path]:  # fmt: skip
    """Write a task's newest checkpoint, or all of them; the files that were written. `within` says
    where in a builder-state file."""
    found = service.get_checkpoint_history(task, _ALL if whole or form == "reference" else 1)
    if not found:
        raise CheckpointNotFoundError(f"task {task!r} has no checkpoint to export")
    oldest_first = found[::-1]
    if form == "builder-state":
        at = changed_at(service.node.store, found[0])
        return [_into_builder_state(place, within or "activePrd", found[0], at)]
    _make_folder(form, place)
    writers: dict[str, Callable[[CheckpointService, Path, list[Checkpoint]], list[Path]]] = {
        "markdown": _markdown,
        "agent-json": _agent_json,
        "reference": _reference,
    }
    return writers[form](service, place, oldest_first)


def changed_at(store: Store, checkpoint: Checkpoint) -> str:
    """When it was changed last; nothing if it is as it was made, by its own time."""
    entry = store.entry(checkpoint.revision)
    if entry is None or entry.op == CREATE or is_after(checkpoint.metadata.timestamp, entry.at):
        return ""
    return entry.at


def _make_folder(form: str, place: Path) -> None:
    """A place that is called like a file was meant as one."""
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is a file: {form} is written into a directory", _NAME_FOLDER)
    if not place.exists() and place.suffix.lower() in (".md", ".json"):
        raise UsageError(
            f"{place} is called like a file: {form} is written into a directory", _NAME_FOLDER
        )
    place.mkdir(parents=True, exist_ok=True)


def _markdown(service: CheckpointService, place: Path, found: list[Checkpoint]) -> list[Path]:
    written: dict[str, Path] = {}
    for checkpoint in found:
        path = _page(place, checkpoint)
        refuse_outside(place, path)
        previous = _previous(service, place, checkpoint, written)
        replace(path, markdown.write(checkpoint, previous=previous).encode())
        written[checkpoint.metadata.checkpoint_id] = path
    return list(written.values())


def _previous(
    service: CheckpointService, place: Path, checkpoint: Checkpoint, written: Mapping[str, Path]
) -> str:
    """The name of its parent's page; nothing where there is none, or the page that the checkpoint
    was read from knows better than the parent's time."""
    parent_id = checkpoint.recovery.last_successful_state
    if parent_id in written or not parent_id:
        return written[parent_id].name if parent_id else ""
    try:
        parent = service.get_checkpoint(parent_id)
    except SyncdError:
        return ""
    if (path := _page(place, parent)).exists():
        return path.name
    return "" if markdown.said_before(checkpoint) else markdown.file_name(parent)


def _page(place: Path, checkpoint: Checkpoint) -> Path:
    """The file of a checkpoint. Names tell seconds apart: one that came in the same second as
    another is called by the next that is free."""
    moment = datetime.fromisoformat(checkpoint.metadata.timestamp)
    while True:
        metadata = checkpoint.metadata.amended(timestamp=moment.isoformat())
        path = place / markdown.file_name(checkpoint.amended(metadata=metadata))
        if not path.exists() or _holds(path, checkpoint):
            return path
        moment += timedelta(seconds=1)


def _holds(path: Path, checkpoint: Checkpoint) -> bool:
    if not path.is_file():
        return False
    try:
        found = markdown.read(path.read_bytes(), str(path)).checkpoint.metadata
    except FormatError:
        return False
    return found.checkpoint_id == checkpoint.metadata.checkpoint_id


def _agent_json(service: CheckpointService, place: Path, found: list[Checkpoint]) -> list[Path]:
    """A file for each agent has its newest one."""
    newest = {checkpoint.metadata.agent_id: checkpoint for checkpoint in found}
    written = []
    names = {agent: agent_json.file_name(agent) for agent in newest}
    if len(set(names.values())) < len(names):
        raise InvalidInputError(
            f"some of the agents {', '.join(names)} would have the same file",
            "Rename one, or export another format.",
        )
    for agent, name in names.items():
        if (owner := _owner(place / name)) not in ("", agent):
            raise InvalidInputError(
                f"{place / name} is the file of {owner}, and {agent}'s would have the same name",
                "Name another directory, or export another format.",
            )
    refuse_outside(place, place / agent_files.BACKUPS, *(place / name for name in names.values()))
    for agent, checkpoint in newest.items():
        agent_files.update(
            place / names[agent], checkpoint, changed_at(service.node.store, checkpoint)
        )
        written.append(place / names[agent])
    return written


def _owner(path: Path) -> str:
    """Whose file it is, if that can be read."""
    try:
        return agent_json.read(path.read_bytes(), str(path)).checkpoint.metadata.agent_id
    except (OSError, FormatError):
        return ""


def _reference(_: CheckpointService, place: Path, found: list[Checkpoint]) -> list[Path]:
    folder = place / _folder(found[0].metadata.task_id)
    # All names first: one that cannot be is no reason to leave half of them behind.
    written = [folder / f"{_folder(each.metadata.checkpoint_id)}.json" for each in found]
    refuse_outside(place, folder, folder / "latest.json", *written)
    folder.mkdir(exist_ok=True)
    for path, checkpoint in zip(written, found, strict=True):
        replace(path, reference_store.write(checkpoint))
    replace(folder / "latest.json", reference_store.latest(found[-1]))
    return written


def _folder(name: str) -> str:
    """An id as the name of a file; one that would lead elsewhere is refused."""
    if "/" in name or name in ("", ".", "..") or len(name.encode()) > min(MAX_ID, 240):
        raise InvalidInputError(f"{name!r} cannot be the name of a file", "Export another format.")
    return name


def _into_builder_state(path: Path, place: str, newest: Checkpoint, as_of: str) -> Path:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", "Name an existing builder-state.json.")
    builder_state.update(path, place, lambda _: newest, as_of)
    return path


# --- the files of those who were given up ---------------------------------------------------------


class Aside(NamedTuple):
    """Files under their new names, and what kept others from getting one."""

    files: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def put_aside(store: Store, task: str, agent: str, *, crashed: bool) -> Aside:
    """Rename an agent's files that were taken in for a task, so that whoever goes on does not
    write over them. One that has changed since is still at work and stays."""
    sources = Sources(store)
    files, problems = [], []
    kind: agent_files.Kind = "crashed" if crashed else "aborted"
    for source in sources.below(Path("/")):
        path = Path(source.path)
        try:
            if _is_of(source, path, task, agent):
                files.append(str(agent_files.archive(path, kind)))
                sources.forget(source.path)
        except OSError as error:
            problems.append(f"{path} could not be renamed: {error.strerror}")
    return Aside(tuple(files), tuple(problems))


def _is_of(source: Source, path: Path, task: str, agent: str) -> bool:
    usual = path.name == agent_json.file_name(agent) or path.parent.name == agent_files.FOLDER
    if not usual or path.suffix != ".json" or path.is_symlink() or not path.is_file():
        return False
    data = path.read_bytes()
    told = source.digest == digest(data, task)  # the task was named when it was read
    if not told and source.digest != digest(data, ""):
        return False
    try:
        reading = agent_json.read(data, str(path))
    except FormatError:
        return False
    metadata = reading.checkpoint.metadata
    owner = metadata.task_id or (task if told else reading.owner)
    return (metadata.agent_id, owner) == (agent, task)
