"""What went wrong where nobody may be disturbed: a hook fails in silence, tells it here, and
`syncd status` reads it out.

A file of its own, and no database: that may be what failed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

_BYTES = 200_000
_SHOWN = 300
_DAY_MS = 24 * 60 * 60 * 1000


class Mishap(NamedTuple):
    at_ms: int
    where: str
    problem: str


def file_of(home: Path) -> Path:
    return home / "log" / "hooks.log"


def record(home: Path, mishap: Mishap) -> None:
    """One line; the file before it is kept once, so that both together stay small."""
    file = file_of(home)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > _BYTES:
        file.replace(file.with_name("hooks.log.1"))
    line = json.dumps(mishap._replace(problem=mishap.problem[:_SHOWN])._asdict())
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, f"{line}\n".encode())
    finally:
        os.close(opened)


def recent(home: Path, now_ms: int) -> list[Mishap]:
    """Those of the last day, the newest last."""
    try:
        lines = file_of(home).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = filter(None, map(_read, lines))
    return [mishap for mishap in found if now_ms - mishap.at_ms < _DAY_MS]


def _read(line: str) -> Mishap | None:
    try:
        said = json.loads(line)
        return Mishap(int(said["at_ms"]), str(said["where"]), str(said["problem"]))
    except (ValueError, KeyError, TypeError):
        return None  # cut off by a full disk


def notices(home: Path, now_ms: int) -> list[dict[str, str]]:
    """For `status`: how many, and the newest one."""
    found = recent(home, now_ms)
    if not found:
        return []
    last, many = found[-1], f"{len(found):,} hooks" if len(found) > 1 else "a hook"
    return [
        {"what": f"{many} failed in the last day; the last, {last.where}: {last.problem}",
         "remedy": f"The agent was not disturbed. All of them are in {file_of(home)}."}
    ]  # fmt: skip
