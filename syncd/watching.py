"""Watching files: what agents write there becomes checkpoints, within a second of settling.

A file is read when it has been left alone for a moment, once for each content. One that cannot be
read may be half written: it is waited for, then reported, and never stops the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from syncd.errors import InvalidInputError, SyncdError
from syncd.formats import markdown
from syncd.formats.agent_files import FOLDER, HALF_WRITTEN_SECONDS, is_archive
from syncd.formats.reading import FormatError
from syncd.intake import FORMATS, Format, Intake, Tally, restored
from syncd.node import Node
from syncd.service import CheckpointService
from syncd.sources import Source, Sources, digest

_SETTLED_SECONDS = 0.15
_STEP_MS, _IDLE_MS = 50, 1_000
# What an agent's own file says of it, beside who it is.
_AGENT_WORDS = frozenset((
    "last_checkpoint", "next_checkpoint_expected", "phase", "status", "current_step",
    "completed_steps", "next_steps", "can_resume", "recovery_instructions", "coordination_state",
))  # fmt: skip
_SKIPPED = frozenset((".git", "node_modules", "backups", ".venv", "__pycache__"))


class Event(NamedTuple):
    """What became of a file: taken, unchanged, renamed, gone, restored from its backup, unreadable
    or passed over."""

    what: str
    path: str
    imported: int = 0
    line: int = 0
    message: str = ""


def format_of(path: Path, data: bytes = b"", *, known: bool = False) -> Format | None:
    """By its name, else by what it holds; None for what is no checkpoint. `known`: it held one
    before, or was named itself."""
    name = path.name
    if _SKIPPED.intersection(path.parts) or name.startswith("."):
        return None
    if markdown.is_name(name):
        return FORMATS["markdown"]
    if not name.endswith(".json") or name == "latest.json" or is_archive(name):
        return None
    if name == "builder-state.json":
        return FORMATS["builder-state"]
    if path.parent.name == FOLDER:
        return FORMATS["agent-json"]
    return _by_content(data, known)


def _by_content(data: bytes, known: bool) -> Format | None:
    try:
        document = orjson.loads(data)
    except ValueError:
        return FORMATS["agent-json"] if known else _by_what_is_left(data)
    keys = document.keys() if isinstance(document, dict) else ()
    if "agent_id" in keys and _AGENT_WORDS & set(keys):
        return FORMATS["agent-json"]
    return FORMATS["reference"] if {"metadata", "execution_state"} <= set(keys) else None


def _by_what_is_left(data: bytes) -> Format | None:
    """Of a file that is cut off: one name that other tools' files do not have will do."""
    if b'"last_checkpoint"' in data or b'"coordination_state"' in data:
        return FORMATS["agent-json"]
    return FORMATS["reference"] if b'"execution_state"' in data else None


class Watcher:
    """Keeps an eye on some files and directories for one home."""

    def __init__(self, node: Node, roots: Sequence[Path], task: str = "") -> None:
        self._intake = Intake(CheckpointService(node=node), task)
        self._sources = Sources(node.store)
        self._task = task
        self._roots = [root.absolute() for root in roots]
        self._waiting: dict[Path, float] = {}
        self._since: dict[Path, float] = {}

    # --- all the time -------------------------------------------------------------------------

    def run(
        self, stop: threading.Event, tell: Callable[[Event], None],
        moved: Callable[[], bool] = bool,
    ) -> None:  # fmt: skip
        """What is there now, then what changes, until `stop` is set or the ground has moved."""
        from watchfiles import watch

        changes = watch(
            *self._roots, watch_filter=None, step=_STEP_MS, debounce=_STEP_MS, stop_event=stop,
            rust_timeout=_IDLE_MS, yield_on_timeout=True,
        )  # fmt: skip
        self.note(path for root in self._roots for path in _below(root))
        self._note_lost()
        for event in self.due(settled=True):
            tell(event)
        for changed in changes:
            if moved():
                return
            self.note(path for _, name in changed for path in _touched(Path(name)))
            while self._waiting and not stop.is_set():
                for event in self.due():
                    tell(event)
                time.sleep(_STEP_MS / 1_000)
                if self._only_unreadable():
                    break

    def _only_unreadable(self) -> bool:
        """Those wait for a change, or for their time; others must not wait for them."""
        return all(path in self._since for path in self._waiting)

    def note(self, paths: Iterable[Path]) -> None:
        """Files that something has happened to."""
        now = time.monotonic()
        for path in paths:
            self._waiting[path] = now

    def _note_lost(self) -> None:
        """What was taken in once and has gone since nobody looked."""
        for root in self._roots:
            known = (Path(source.path) for source in self._sources.below(root))
            self.note(path for path in known if not path.exists())

    # --- a file at a time ---------------------------------------------------------------------

    def due(self, *, settled: bool = False) -> Iterator[Event]:
        """Take in what has been left alone for a moment. Those that are gone come last: they may
        turn out to have been renamed."""
        now = time.monotonic()
        ready = [p for p, at in self._waiting.items() if settled or now - at >= _SETTLED_SECONDS]
        for path in sorted(ready, key=lambda path: (not path.exists(), str(path))):
            if event := self._looked_at(path):
                yield event

    def _looked_at(self, path: Path) -> Event | None:
        try:
            event = self._taken(path)
        except InvalidInputError as error:
            return self._unreadable(path, error)
        except SyncdError as error:
            self._settle(path)
            return Event("unreadable", str(path), message=error.message)
        self._settle(path)
        return event

    def _settle(self, path: Path) -> None:
        self._waiting.pop(path, None)
        self._since.pop(path, None)

    def _taken(self, path: Path) -> Event | None:
        known = self._sources.of(path)
        if not path.is_file():
            return self._gone(known)
        data = self._intake.place(self._root(path)).content(path)
        form = self._form(path, data, known)
        if form is None:
            return _overlooked(path)
        holding = digest(data, self._task)
        if known and known.digest == holding:
            return None
        if known is None and (before := self._sources.renamed(holding)):
            self._sources.read(path, holding, before.origin)
            self._sources.forget(before.path)
            return Event("renamed", str(path))
        done = self._intake.one(form, path, data, known.origin if known else path.name)
        self._sources.read(path, holding)
        return _told(path, done)

    def _form(self, path: Path, data: bytes, known: Source | None) -> Format | None:
        return format_of(path, data, known=known is not None or path in self._roots)

    def _root(self, path: Path) -> Path:
        """The place that was named, in which the file lies."""
        within = [root for root in self._roots if path.is_relative_to(root)]
        return within[0] if within else path.parent

    def _gone(self, known: Source | None) -> Event | None:
        if known is None:
            return None
        self._sources.forget(known.path)
        return Event("gone", known.path)

    def _unreadable(self, path: Path, error: InvalidInputError) -> Event | None:
        """Restored, or reported, once it has stayed so for a while: it may be in the middle of
        being written."""
        began = self._since.setdefault(path, time.monotonic())
        if time.monotonic() - max(began, self._waiting.get(path, began)) < HALF_WRITTEN_SECONDS:
            return None
        self._settle(path)
        found: SyncdError = error
        if isinstance(error, FormatError):
            try:
                return self._restored(path, error)
            except SyncdError as still:
                found = still
        line = found.line if isinstance(found, FormatError) else 0
        message = found.expected if isinstance(found, FormatError) else found.message
        self._sources.unreadable(path, line, message)
        return Event("unreadable", str(path), line=line, message=message)

    def _restored(self, path: Path, error: FormatError) -> Event:
        """What its newest good backup says, which now stands in the place of what was damaged;
        raises what is wrong where there is none."""
        known, place = self._sources.of(path), self._intake.place(self._root(path))
        form = self._form(path, place.content(path), known)
        if form is None:
            raise error
        data, note = restored(form, path, error, place)
        name = known.origin if known else path.name
        done = self._intake.one(form, path, data, name, old=bool(note))
        self._sources.read(path, digest(data, self._task))
        return (
            Event("restored", str(path), done.imported, message=note) if note else _told(path, done)
        )


def _touched(path: Path) -> Iterable[Path]:
    """A new folder with all that came into it before it was watched itself."""
    return _below(path) if path.is_dir() else (path,)


def _below(root: Path) -> Iterator[Path]:
    import os

    if root.is_file():
        yield root
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _SKIPPED]
        yield from (Path(folder, name) for name in names)


def _overlooked(path: Path) -> Event | None:
    """A page whose name is more likely a slip than another's."""
    page = FORMATS["markdown"]
    if _SKIPPED.intersection(path.parts) or not page.resembles(path.name):
        return None
    return Event("passed over", str(path), message=f"the name is not {page.called}")


def _told(path: Path, done: Tally) -> Event:
    what = "taken" if done.imported else "unchanged"
    return Event(what, str(path), done.imported, message="; ".join(done.notes))
