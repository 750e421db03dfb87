"""The repository as it is now, beside what a checkpoint recorded of it. Asks git and the disk, and
judges nothing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from syncd import workspace
from syncd.resume.text import items, mapping

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# New files are looked at one by one for the content of a file that is gone.
_LOOKED_AT = 100


class Recorded(NamedTuple):
    """What a checkpoint says of the repository it was written in."""

    repository: str
    branch: str
    head: str
    dirty: bool
    files: dict[str, str]


class Other(NamedTuple):
    """A file that was named and not recorded: when it was last written, None if it is not there,
    and whether git knows that it is as the checkpoint saw it."""

    written_ns: int | None
    as_committed: bool = False


class Seen(NamedTuple):
    """`commits`: how many only HEAD has, how many only the recorded commit; None if that is not
    known here. `files`: the present digest of each recorded file, "" if it is gone. `others`: what
    was named but not recorded."""

    repository: str
    branch: str
    head: str
    changes: tuple[str, ...]
    commits: tuple[int, int] | None
    files: dict[str, str]
    renamed: dict[str, str]
    others: dict[str, Other]


def recorded(document: Mapping[str, Any]) -> Recorded | None:
    """The checkpoint's own words; it may come from anybody, so nothing is taken for granted."""
    found = document.get("workspace")
    if not isinstance(found, Mapping):
        return None
    files = found.get("files")
    named = files if isinstance(files, Mapping) else {}
    repository, branch, head = (_text(found.get(name)) for name in ("repository", "branch", "head"))
    return Recorded(
        repository, branch, head if _COMMIT.fullmatch(head) else "", found.get("dirty") is True,
        {path: digest for path, digest in named.items() if _DIGEST.fullmatch(_text(digest))},
    )  # fmt: skip


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def named_files(document: Mapping[str, Any]) -> list[str]:
    """Every file that the checkpoint speaks of, once each."""
    state = mapping(document.get("execution_state"))
    names = _names(mapping(document.get("metrics")).get("files_modified"))
    for step in (*items(state.get("completed_items")), *items(state.get("pending_items"))):
        names += files_of(step)
    return list(dict.fromkeys(names))


def files_of(step: Any) -> list[str]:
    found = mapping(step)
    return _names(found.get("files_created")) + _names(found.get("files_modified"))


def _names(value: Any) -> list[str]:
    return [name for name in items(value) if isinstance(name, str)]


def look(start: Path, then: Recorded, named: Iterable[str]) -> Seen | None:
    """None where there is no repository, or git does not answer."""
    found = workspace.find(start)
    now = workspace.status(found) if found else None
    if found is None or now is None:
        return None
    start, top = start.resolve(), found.resolve()
    there = _without_record(start, top, then, named)
    paths = {name: path or name for name, path in there.items()}
    tracked = _tracked(top, [*then.files, *paths.values()])
    files = {path: workspace.content(top, path) for path in then.files if path in tracked}
    gone = {path: then.files[path] for path, digest in files.items() if not digest}
    others = {name: there[name] for name, path in paths.items() if path in tracked}
    return Seen(
        workspace.repository(found), workspace.branch(found), now.head, tuple(now.changes),
        _commits(top, then.head, now.head), files, _renamed(top, then.head, gone, now.fresh),
        _others(top, others, _as_committed(top, then, [*filter(None, others.values())])),
    )  # fmt: skip


def unrecorded(start: Path, named: Iterable[str]) -> dict[str, Other]:
    """The named files that are there, of a checkpoint that recorded nothing of any, with or
    without a repository."""
    start = start.resolve()
    top = (workspace.find(start) or start).resolve()
    paths = {name: workspace.path_of(name, start, top) for name in named}
    tracked = _tracked(top, paths.values())
    return _others(top, {name: path for name, path in paths.items() if path in tracked}, set())


def _others(top: Path, paths: Mapping[str, str], same: Collection[str]) -> dict[str, Other]:
    return {
        name: Other(workspace.written_ns(top, path) if path else None, path in same)
        for name, path in paths.items()
    }


def _as_committed(top: Path, then: Recorded, paths: Sequence[str]) -> set[str]:
    """Those whose content is that of the recorded commit, where nothing else was in the working
    tree then. A fresh clone gives each file a new time."""
    asked = [path for path in paths if "\n" not in path]
    if not asked or not then.head or then.dirty:
        return set()
    committed = "\n".join(f"{then.head}:{path}" for path in asked)
    before = workspace.git(top, "cat-file", "--batch-check=%(objectname)", given=committed)
    now = workspace.git(top, "hash-object", "--stdin-paths", given="\n".join(asked))
    pairs = zip(asked, before.split("\n"), now.split("\n"), strict=False)
    return {path for path, old, new in pairs if old == new}


def _tracked(top: Path, paths: Iterable[str]) -> set[str]:
    """Those that may be source files of this repository."""
    found = [path for path in paths if _inside(path) and workspace.is_source(path)]
    return {*found} - workspace.ignored(top, found)


def _inside(path: str) -> bool:
    """Whether a path from the top stays below it."""
    return bool(path) and path[0] != "/" and ".." not in path.split("/") and "\0" not in path


def _commits(top: Path, then: str, now: str) -> tuple[int, int] | None:
    if then == now:
        return 0, 0
    if not then:
        return int(workspace.git(top, "rev-list", "--count", "HEAD") or 0), 0
    counted = workspace.git(top, "rev-list", "--left-right", "--count", f"{then}...HEAD").split()
    return (int(counted[1]), int(counted[0])) if len(counted) == 2 else None


def _renamed(top: Path, then: str, gone: Mapping[str, str], fresh: Sequence[str]) -> dict[str, str]:
    """What git calls a file now that is gone, else a new file of the same content."""
    if not gone:
        return {}
    contents = {workspace.content(top, path): path for path in fresh[:_LOOKED_AT]}
    found = {old: contents[digest] for old, digest in gone.items() if digest in contents}
    if then and len(found) < len(gone):
        asked = ("diff", "--name-status", "-z", "-M", "--diff-filter=R", then, "--")
        words = workspace.git(top, *asked).split("\0")
        renamed = zip(words[1::3], words[2::3], strict=False)
        found |= {old: new for old, new in renamed if old in gone}
    return found


def _without_record(start: Path, top: Path, then: Recorded, named: Iterable[str]) -> dict[str, str]:
    """Names without a record, and the path of the file that each means now, if there is one."""
    return {
        name: workspace.path_of(name, start, top)
        for name in named
        if not matching(name, then.files) and not _is_folder(top, name)
    }


def _is_folder(top: Path, name: str) -> bool:
    try:
        return (top / name).is_dir()
    except (OSError, ValueError):
        return False


def matching(name: str, files: Mapping[str, str]) -> str:
    """The recorded path that a name means: agents also write them from where they stand."""
    short = "/".join(part for part in name.split("/") if part not in ("", ".", ".."))
    if not short or short in files:
        return short
    found = [path for path in files if path.endswith(f"/{short}")]
    found = found or [path for path in files if short.endswith(f"/{path}")]
    return found[0] if len(found) == 1 else ""
