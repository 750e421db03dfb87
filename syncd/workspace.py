"""The git repository around a directory: which task it stands for, and its present state."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from syncd.errors import ConfigError

_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)', re.M | re.S)
OWN_FILE = ".syncd.toml"
# Only source is tracked: what tools generate or install says nothing about the work.
_GENERATED = {".git", "node_modules", "__pycache__", ".venv", "venv", "dist", "build", "target"}


def find(start: Path) -> Path | None:
    """The top of the repository that `start` lies in."""
    start = start.absolute()
    for folder in (start, *start.parents):
        if (folder / ".git").exists():
            return folder
    return None


def task_of(start: Path) -> str | None:
    """The task of a repository and branch, the same on every machine that has a clone."""
    top = find(start)
    if top is None:
        return None
    return _named_task(top) or f"{repository(top)}@{branch(top)}"


def left_alone(start: Path) -> bool:
    """Whether the repository, or the directory, says `ignore = true` in its .syncd.toml."""
    top = find(start) or start.absolute()
    ignored = _own_settings(top).get("ignore", False)
    if not isinstance(ignored, bool):
        raise ConfigError(
            f"{top / OWN_FILE}: ignore must be true or false, not {ignored!r}",
            f"Correct {top / OWN_FILE}.",
        )
    return ignored


def _named_task(top: Path) -> str:
    """The task that the repository's own .syncd.toml names, if it does."""
    task = _own_settings(top).get("task", "")
    if not isinstance(task, str):
        file = top / OWN_FILE
        raise ConfigError(f"{file}: task must be a text, not {task!r}", f"Correct {file}.")
    return task


def _own_settings(top: Path) -> dict[str, Any]:
    file = top / OWN_FILE
    if not file.is_file():
        return {}
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}", f"Correct {file}.") from None


def repository(top: Path) -> str:
    """`host/owner/name` of its origin, without credentials; else the directory's name."""
    config = _git_dir(top, common=True) / "config"
    match = _REMOTE.search(config.read_text(errors="replace")) if config.is_file() else None
    if not match:
        return top.name
    url = match[1].removesuffix("/").removesuffix(".git")
    if "://" in url:
        host, _, path = url.partition("://")[2].partition("/")
        host = re.sub(r":\d+$", "", host.rpartition("@")[2])
    else:
        # The short form of ssh, `user@host:path`; what has no colon is a path on this machine.
        host, colon, path = url.partition(":")
        if not colon:
            return Path(url).name or top.name
        host = host.rpartition("@")[2]
    return f"{host.lower()}/{path.strip('/')}"


def branch(top: Path) -> str:
    head = _git_dir(top) / "HEAD"
    text = head.read_text(errors="replace").strip() if head.is_file() else ""
    return text.removeprefix("ref: refs/heads/") if text.startswith("ref:") else text[:12]


def _git_dir(top: Path, *, common: bool = False) -> Path:
    """A worktree's .git is a file that names the real directory."""
    git = top / ".git"
    if git.is_file():
        git = top / git.read_text(errors="replace").strip().removeprefix("gitdir: ")
        pointer = git / "commondir"
        if common and pointer.is_file():
            git = git / pointer.read_text().strip()
    return git


class Status(NamedTuple):
    """What git says of a working tree: the commit (none in a new repository), the source files
    with changes that are not committed, and the new ones among them."""

    head: str
    changes: list[str]
    fresh: list[str]


def status(top: Path) -> Status | None:
    """None where git does not answer."""
    said = git(top, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal")
    if not said:
        return None
    found = Status("", [], [])
    lines = iter(said.split("\0"))
    for line in lines:
        kind, _, rest = line.partition(" ")
        if line.startswith("# branch.oid "):
            commit = line.split()[2]
            found = found._replace(head="" if commit == "(initial)" else commit)
        elif kind in _BEFORE_PATH:
            path = rest.split(" ", _BEFORE_PATH[kind])[-1]
            if kind == "2":
                next(lines, None)  # the name that it had
            if is_source(path):
                found.changes.append(path)
                if kind == "?" and not path.endswith("/"):
                    found.fresh.append(path)
    return found


# The kinds of lines that name a path, and how many words stand between the two.
_BEFORE_PATH = {"1": 7, "2": 8, "u": 9, "?": 0}


def capture(start: Path, named_files: Iterable[str]) -> dict[str, Any] | None:
    """Repository, branch, HEAD, whether it is dirty, and the content of the files named."""
    top = find(start)
    if top is None:
        return None
    now = status(top) or Status("", [], [])
    return {
        "repository": repository(top),
        "branch": branch(top),
        "head": now.head,
        "dirty": bool(now.changes),
        "files": hashes(start, top, named_files),
    }


def hashes(start: Path, top: Path, named_files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each named source file inside the repository, by its path from the top."""
    top = top.resolve()
    paths = (path_of(name, start, top) for name in named_files)
    found = [path for path in dict.fromkeys(paths) if path and is_source(path)]
    left_out = ignored(top, found)
    contents = {path: content(top, path) for path in found if path not in left_out}
    return {path: digest for path, digest in contents.items() if digest}


def path_of(name: str, start: Path, top: Path) -> str:
    """The path, from the top (with no link in it), of the file that a name means. Agents also
    write sentences here: those name no file."""
    for folder in dict.fromkeys((start, top)):
        try:
            path = (folder / name).resolve()
            if path.is_relative_to(top) and path.is_file():
                return path.relative_to(top).as_posix()
        except (OSError, ValueError):
            return ""
    return ""


def is_source(path: str) -> bool:
    return not _GENERATED.intersection(PurePosixPath(path).parts)


def ignored(top: Path, paths: Sequence[str]) -> set[str]:
    """Those that the repository's own rules leave out."""
    if not paths:
        return set()
    names = "\0".join(paths)
    return set(git(top, "check-ignore", "-z", "--stdin", given=names).split("\0"))


def content(top: Path, path: str) -> str:
    """The digest of a file at a path from the top (with no link in it); nothing if it is not
    there, or elsewhere."""
    try:
        file = (top / path).resolve()
        if not file.is_relative_to(top) or not file.is_file():
            return ""
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


def written_ns(top: Path, path: str) -> int | None:
    """When a file was last written, in nanoseconds since 1970; None if it is not there."""
    try:
        return (top / path).stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def git(top: Path, *arguments: str, given: str = "") -> str:
    """What git says; nothing where there is no git or it refuses the directory."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(top), *arguments],
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a file's name may be any bytes
            timeout=10,
            check=False,
            # A hook of git's own runs with variables that point to another repository.
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
