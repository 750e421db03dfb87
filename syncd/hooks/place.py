"""Where an event happens: the repository and its task, and who is at work there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from syncd import workspace
from syncd.hooks.events import Event
from syncd.hooks.journal import Journal, Seal


class Place(NamedTuple):
    """`folder` is None where it is gone; `task` is empty where there is none."""

    home: Path
    host: str
    event: Event
    folder: Path | None
    top: Path | None
    task: str
    journal: Journal

    @property
    def agent(self) -> str:
        """One name for each session, so that two of them side by side are told apart."""
        return os.environ.get("SYNCD_AGENT") or f"{self.host}-{self.journal.file.stem[:8]}"

    @property
    def agent_type(self) -> str:
        return os.environ.get("SYNCD_AGENT_TYPE") or "implementation"

    def head(self) -> dict[str, Any]:
        """What the journal begins with: whose it is, for whoever folds it later."""
        return {
            "host": self.host, "session": self.event.session, "agent": self.agent,
            "type": self.agent_type, "folder": str(self.folder or ""),
            "transcript": self.event.transcript,
        }  # fmt: skip


def of(home: Path, host: str, event: Event, seal: Seal | None = None) -> Place | None:
    """None where the user wants to be left alone."""
    folder = Path(event.folder) if event.folder else Path.cwd()
    there = folder.is_dir()
    if there and workspace.left_alone(folder):
        return None
    top = workspace.find(folder) if there else None
    task = os.environ.get("SYNCD_TASK") or (workspace.task_of(folder) if there else "") or ""
    journal = Journal.of(home, host, event.session, seal)
    return Place(home, host, event, folder if there else None, top, task, journal)


def inside(place: Place, names: list[str]) -> list[str]:
    """Paths from the top of the repository; what lies outside of it, or is generated, is nobody
    else's business."""
    folder = place.top or place.folder
    if folder is None:
        return []
    found = (_from_top(folder, place.folder or folder, name) for name in names)
    return [path for path in found if path and workspace.is_source(path)]


def _from_top(top: Path, folder: Path, name: str) -> str:
    """A link on the way, as of /tmp on a Mac, must not make it another place."""
    named = folder / name
    for file, base in ((named, top), (named.resolve(), top.resolve())):
        path = Path(os.path.normpath(file))
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return ""
