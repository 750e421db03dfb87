"""The git repository around a directory: which task it stands for, and its present state."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from syncd.errors import ConfigError

_REMOTE = re.compile(r'\[remote "origin"\][^\[]*?^\s*url\s*=\s*(\S+)', re.M | re.S)
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


def _named_task(top: Path) -> str:
    """The task that the repository's own .syncd.toml names, if it does."""
    file = top / ".syncd.toml"
    if not file.is_file():
        return ""
    import tomllib

    try:
        task = tomllib.loads(file.read_text(encoding="utf-8")).get("task", "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}", f"Correct {file}.") from None
    if not isinstance(task, str):
        raise ConfigError(f"{file}: task must be a text, not {task!r}", f"Correct {file}.")
    return task


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


def capture(start: Path, named_files: Iterable[str]) -> dict[str, Any] | None:
    """Repository, branch, HEAD, whether it is dirty, and the content of the files named."""
    top = find(start)
    if top is None:
        return None
    status = _git(top, "status", "--porcelain", "--untracked-files=normal")
    return {
        "repository": repository(top),
        "branch": branch(top),
        "head": _git(top, "rev-parse", "--verify", "--quiet", "HEAD"),
        "dirty": bool(status),
        "files": hashes(start, top, named_files),
    }


def hashes(start: Path, top: Path, named_files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each named source file inside the repository, by its path from the top."""
    found = {}
    for name in named_files:
        path = _source_file(name, start, top)
        if path is not None:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(top.resolve()).as_posix()] = digest
    return found


def _source_file(name: str, start: Path, top: Path) -> Path | None:
    """The file that a name means. Agents also write sentences here: those name no file."""
    for folder in (start, top):
        try:
            path = (folder / name).resolve()
            inside = path.is_file() and path.is_relative_to(top.resolve())
        except (OSError, ValueError):
            return None
        if inside and not _GENERATED.intersection(path.relative_to(top.resolve()).parts):
            return path
    return None


def _git(top: Path, *arguments: str) -> str:
    """What git says; nothing where there is no git or it refuses the directory."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(top), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            # A hook of git's own runs with variables that point to another repository.
            env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
