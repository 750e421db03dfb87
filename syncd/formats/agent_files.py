"""An agent's file and its copies: backed up before each change, checked after it, brought back when
it is damaged, and put aside when the agent is given up."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from syncd import clock
from syncd.checkpoint import Checkpoint
from syncd.errors import CheckpointCorruptionError, InvalidInputError
from syncd.formats import agent_json
from syncd.formats.files import alone_in, replace
from syncd.formats.reading import FormatError, Reading
from syncd.keychain import synced

KEPT = 10
_GOOD, _DAMAGED = ".json", ".damaged"
_NUMBERED = re.compile(r"_\d{3}$")


def update(path: Path, checkpoint: Checkpoint) -> None:
    """Write the agent's file anew; a missing one is made."""
    if path.exists() and not path.is_file():
        raise InvalidInputError(f"{path} is no file", "It is read back: name another place.")
    content = agent_json.write(checkpoint)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):
        if path.exists():
            _back_up(path)
        replace(path, content)
        _validate(path, checkpoint)


def restored(path: Path) -> Reading:
    """What the file says. A damaged one is replaced by its newest good backup; where there is none,
    or no file at all, the agent starts afresh. The notes say which it was."""
    if not path.exists():
        return _fresh(path, f"{path.name} is missing: the agent starts afresh")
    with alone_in(path.parent):
        try:
            return _reading(path)
        except FormatError as error:
            return _brought_back(path, error)


def archive(path: Path, kind: Literal["crashed", "aborted"]) -> Path:
    """Put the file aside under a name of its own, which is returned."""
    second = clock.wall_ms() // 1000
    while True:
        kept = path.with_name(f"{path.stem}_{kind}_{second}.json")
        try:
            os.link(path, kept)
            break
        except FileExistsError:
            second += 1
    path.unlink()
    synced(path.parent)
    return kept


def backups(path: Path, suffix: str = _GOOD) -> list[Path]:
    """Newest first. Another agent's name may begin like this one's."""
    name = re.compile(rf"{re.escape(path.stem)}_\d{{8}}_\d{{6}}(_\d{{3}})?{re.escape(suffix)}")
    folder = _folder(path)
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in found if name.fullmatch(p.name)), key=lambda p: p.stem, reverse=True)


def _folder(path: Path) -> Path:
    return path.parent / "backups"


def _back_up(path: Path) -> None:
    """A damaged file is kept too, apart: it must not push out the good ones."""
    _folder(path).mkdir(exist_ok=True)
    try:
        _reading(path)
        suffix = _GOOD
    except FormatError:
        suffix = _DAMAGED
    replace(_free_name(path, suffix), path.read_bytes())
    for old in backups(path, suffix)[KEPT:]:
        old.unlink()


def _free_name(path: Path, suffix: str) -> Path:
    """Several changes within a second are numbered, above those there are."""
    stamp = f"{path.stem}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    newest = next((kept.stem for kept in backups(path, suffix)), "")
    if newest < stamp:
        return _folder(path) / f"{stamp}{suffix}"
    base, _, number = newest.rpartition("_") if _NUMBERED.search(newest) else (newest, "", "0")
    return _folder(path) / f"{base}_{int(number) + 1:03d}{suffix}"


def _validate(path: Path, checkpoint: Checkpoint) -> None:
    try:
        if _reading(path).checkpoint.body() == checkpoint.body():
            return
        problem = "says something else than was written"
    except FormatError as error:
        found = _brought_back(path, error)
        problem = f"was damaged while it was written: {found.notes[-1]}"
    raise CheckpointCorruptionError(
        f"{path} {problem}", "See that the disk is sound and nobody else writes it; then repeat."
    )


def _brought_back(path: Path, error: FormatError) -> Reading:
    _back_up(path)
    for backup in backups(path):
        try:
            reading = _reading(backup)
        except FormatError:
            continue
        replace(path, backup.read_bytes())
        note = f"{error.message}; restored from backups/{backup.name}"
        return reading._replace(notes=(*reading.notes, note))
    return _fresh(path, f"{error.message}; there is no good backup: the agent starts afresh")


def _fresh(path: Path, note: str) -> Reading:
    return Reading(Checkpoint.from_dict({"agent_id": path.stem}), "", notes=(note,))


def _reading(path: Path) -> Reading:
    return agent_json.read(path.read_bytes(), str(path))
