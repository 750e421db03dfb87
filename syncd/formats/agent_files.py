"""An agent's file and its copies: backed up before each change, checked after it, brought back when
it is damaged, and put aside when the agent is given up."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from syncd import clock
from syncd.checkpoint import Checkpoint
from syncd.errors import CheckpointCorruptionError, InvalidInputError
from syncd.formats import agent_json
from syncd.formats.files import alone_in, exchange, replace
from syncd.formats.reading import FormatError
from syncd.keychain import synced

FOLDER, BACKUPS = "agent_checkpoints", "backups"
KEPT = 10
# A file that was changed within this time may be half written.
HALF_WRITTEN_SECONDS = 2.0
Kind = Literal["crashed", "aborted"]
_ARCHIVE = re.compile(r".+_(crashed|aborted)_\d+\.json")
_GOOD, _DAMAGED = ".json", ".damaged"
_NUMBERED = re.compile(r"_\d{3}$")


def update(path: Path, checkpoint: Checkpoint, as_of: str = "") -> None:
    """Write the agent's file anew; a missing one is made. `as_of` is as for agent_json.write."""
    if path.exists() and not path.is_file():
        raise InvalidInputError(f"{path} is no file", "It is read back: name another place.")
    content = agent_json.write(checkpoint, as_of)
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(path.parent):
        if path.exists():
            _back_up(path)
        replace(path, content)
        _validate(path, checkpoint)


class Restored(NamedTuple):
    """What a file holds now; `note` says what it was replaced by, unless its writer was faster."""

    data: bytes
    note: str = ""


def restored(
    path: Path, error: FormatError, content: Callable[[Path], bytes] = Path.read_bytes
) -> Restored:
    """Replace a damaged file by its newest good backup and keep what was damaged. Raises `error`,
    with what there is to do, where there is none, or where the file is whole and wrong: then
    somebody meant it. `content` reads a file, and may refuse to."""
    try:
        if _is_whole(content(path)):
            raise error
        if backups(path):
            _let_settle(path)
        with alone_in(path.parent):
            data = content(path)
            return Restored(data) if _is_whole(data) else _brought_back(path, data, error, content)
    except OSError as refused:
        raise _adding(error, f"its backup cannot be put in its place: {refused.strerror}") from None


def archive(path: Path, kind: Kind) -> Path:
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


def is_archive(name: str) -> bool:
    return bool(_ARCHIVE.fullmatch(name))


def backups(path: Path, suffix: str = _GOOD) -> list[Path]:
    """Newest first. Another agent's name may begin like this one's."""
    name = re.compile(rf"{re.escape(path.stem)}_\d{{8}}_\d{{6}}(_\d{{3}})?{re.escape(suffix)}")
    folder = _folder(path)
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in found if name.fullmatch(p.name)), key=lambda p: p.stem, reverse=True)


def _folder(path: Path) -> Path:
    return path.parent / BACKUPS


def _back_up(path: Path) -> None:
    """A damaged file is kept too, apart: it must not push out the good ones."""
    data = path.read_bytes()
    _keep(path, data, _GOOD if _is_good(path, data) else _DAMAGED)


def _keep(path: Path, data: bytes, suffix: str) -> Path:
    _folder(path).mkdir(exist_ok=True)
    kept = _free_name(path, suffix)
    replace(kept, data)
    for old in backups(path, suffix)[KEPT:]:
        old.unlink()
    return kept


def _free_name(path: Path, suffix: str) -> Path:
    """Several changes within a second are numbered, above those there are."""
    stamp = f"{path.stem}_{datetime.now(UTC):%Y%m%d_%H%M%S}"
    newest = next((kept.stem for kept in backups(path, suffix)), "")
    if newest < stamp:
        return _folder(path) / f"{stamp}{suffix}"
    base, _, number = newest.rpartition("_") if _NUMBERED.search(newest) else (newest, "", "0")
    return _folder(path) / f"{base}_{int(number) + 1:03d}{suffix}"


def _validate(path: Path, checkpoint: Checkpoint) -> None:
    data = path.read_bytes()
    try:
        if agent_json.read(data, str(path)).checkpoint.body() == checkpoint.body():
            return
        problem = "says something else than was written"
    except FormatError as error:
        problem = f"was damaged while it was written: {_outcome(path, data, error)}"
    raise CheckpointCorruptionError(
        f"{path} {problem}", "See that the disk is sound and nobody else writes it; then repeat."
    )


def _outcome(path: Path, data: bytes, error: FormatError) -> str:
    try:
        return _brought_back(path, data, error, Path.read_bytes).note
    except FormatError as still:
        return still.expected


def _brought_back(
    path: Path, damaged: bytes, error: FormatError, content: Callable[[Path], bytes]
) -> Restored:
    for backup in backups(path):
        try:
            data = content(backup)
        except (InvalidInputError, OSError):
            continue
        if _is_good(backup, data):
            kept = _keep(path, damaged, _DAMAGED)
            if not exchange(path, damaged, data):
                raise _adding(error, "it is being written: look again")
            names = f"restored from backups/{backup.name}, and kept as backups/{kept.name}"
            return Restored(data, f"line {error.line}: {error.expected}; {names}")
    raise _adding(
        error, "there is no good backup of it: correct it, or let its agent write it anew"
    )


def _adding(error: FormatError, words: str) -> FormatError:
    return FormatError(error.source, error.line, f"{error.expected}; {words}")


def _is_whole(data: bytes) -> bool:
    """Whether it is a JSON object, whatever that says."""
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _is_good(path: Path, data: bytes) -> bool:
    try:
        agent_json.read(data, str(path))
    except FormatError:
        return False
    return True


def _let_settle(path: Path) -> None:
    age = time.time() - path.stat().st_mtime
    if 0 <= age < HALF_WRITTEN_SECONDS:
        time.sleep(HALF_WRITTEN_SECONDS - age)
