"""Install, check and remove: every file is read and understood before the first one is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from syncd.errors import InvalidInputError
from syncd.formats import files
from syncd.formats.reading import FormatError
from syncd.keychain import synced
from syncd.setup.hosts import Piece
from syncd.setup.jsonc import Memory
from syncd.setup.parts import EditedError, File, Part

INSTALLED, UPDATED, UNCHANGED = "installed", "updated", "unchanged"
PRESENT, MISSING, DIFFERS = "present", "missing", "differs"
REMOVED, ABSENT, EDITED = "removed", "absent", "edited"
_BOM = b"\xef\xbb\xbf"
_FOLDER_MODE = 0o755
# Folders that hosts make for what is installed here; empty, they are of no use to anybody.
_FOLDERS = {"syncd", "skills", "plugins", ".claude", ".codex", ".agents", ".opencode", "opencode"}


class Result(NamedTuple):
    path: Path
    what: str
    state: str


Change = Callable[[Part, File, str], File]


def _put(part: Part, file: File, name: str) -> File:
    return part.put(file, name)


def _take(part: Part, file: File, name: str) -> File:
    return part.take(file, name)


def install(home: Path, pieces: Sequence[Piece]) -> list[Result]:
    return _changed(home, pieces, _put, (INSTALLED, UPDATED, UNCHANGED))


def remove(home: Path, pieces: Sequence[Piece]) -> list[Result]:
    return _changed(home, pieces, _take, (ABSENT, REMOVED, ABSENT))


def check(home: Path, pieces: Sequence[Piece]) -> list[Result]:
    known = _Known(home)
    return [_judged(piece, known, _put, (MISSING, DIFFERS, PRESENT)) for piece in pieces]


def _changed(
    home: Path, pieces: Sequence[Piece], change: Change, words: tuple[str, str, str]
) -> list[Result]:
    known = _Known(home)
    results = [_judged(piece, known, change, words) for piece in pieces]
    todo = [piece for piece, result in zip(pieces, results, strict=True)
            if result.state not in (EDITED, words[2])]  # fmt: skip
    for path in dict.fromkeys(piece.path for piece in todo):
        _write(path, [piece.part for piece in todo if piece.path == path], change, known)
    return results


def _judged(piece: Piece, known: _Known, change: Change, words: tuple[str, str, str]) -> Result:
    """What a change does to a file, in a word: it was not there, was otherwise, or stays."""
    file, name = known.file(piece.path), str(piece.path)
    try:
        before = piece.part.take(file, name)
        after = change(piece.part, file, name)
    except EditedError:
        return Result(piece.path, piece.what, EDITED)
    fresh, other, same = words
    if after.text == file.text:
        return Result(piece.path, piece.what, same)
    return Result(piece.path, piece.what, fresh if before.text == file.text else other)


class _Known:
    """What files were like before, as far as their text alone cannot tell it later."""

    def __init__(self, home: Path) -> None:
        self._file = home / "setup.json"
        self._all: dict[str, Memory] = {}
        # Without it, or with a damaged one, all that is lost is the form of what was empty before.
        with suppress(FileNotFoundError, ValueError):
            self._all = json.loads(self._file.read_text(encoding="utf-8"))

    def file(self, path: Path) -> File:
        return File(_text(path), dict(self._all.get(str(path.resolve()), {})))

    def keep(self, path: Path, memory: Memory) -> None:
        before = json.dumps(self._all)
        self._all.pop(str(path.resolve()), None)
        if memory:
            self._all[str(path.resolve())] = memory
        if json.dumps(self._all) == before:
            return
        if not self._all:
            self._file.unlink(missing_ok=True)
            return
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.replace(self._file, json.dumps(self._all, indent=1).encode() + b"\n")
        self._file.chmod(0o600)


def _text(path: Path) -> str | None:
    try:
        data = path.read_bytes()
        return data.removeprefix(_BOM).decode("utf-8")
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise InvalidInputError(f"{path} is a directory", f"Move {path} away first.") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        fault = FormatError(str(path), line, "expected UTF-8")
        fault.remedy = f"Correct {path}, then run the command again; nothing was changed."
        raise fault from None


def _write(path: Path, parts: Sequence[Part], change: Change, known: _Known) -> None:
    file = known.file(path)
    after = _through(parts, change, file, str(path))
    ours = any(part.take(file, str(path)).text != file.text for part in parts)
    if change is _put and not ours:  # what an earlier time has left in memory says nothing of this
        file = file._replace(memory={})
        after = _through(parts, change, file, str(path))
    if after.text is None:
        _unlink(path)
        known.keep(path, {})
        return
    if change is _put:
        known.keep(path, after.memory)  # first: it is what undoes the rest
    _make_folder(path.parent)
    files.changed(path, lambda data: _encoded(data, parts, change, file, str(path)))
    if change is _take:
        known.keep(path, {})


def _through(parts: Sequence[Part], change: Change, file: File, name: str) -> File:
    for part in parts:
        file = change(part, file, name)
    return file


def _encoded(data: bytes, parts: Sequence[Part], change: Change, file: File, name: str) -> bytes:
    """From what the file holds at the moment at which it is replaced."""
    bom = _BOM if data.startswith(_BOM) else b""
    text = data.removeprefix(_BOM).decode("utf-8") if data or file.text is not None else None
    return bom + (_through(parts, change, File(text, file.memory), name).text or "").encode()


def _unlink(path: Path) -> None:
    real = path.resolve()
    real.unlink(missing_ok=True)
    synced(real.parent)
    folder = real.parent
    while folder.name in _FOLDERS:
        try:
            folder.rmdir()
        except OSError:  # something else is in it
            return
        folder = folder.parent


def _make_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        one.chmod(_FOLDER_MODE)
