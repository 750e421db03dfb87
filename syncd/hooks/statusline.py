"""The status line of Claude Code: the one place where it tells how full its context is, and what
the session has cost. The numbers are noted, and the line that the user had is drawn as ever."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# As much as a pipe takes without anybody reading.
_PIPE_BYTES = 16_000


def noted(home: Path, host: str, given: bytes) -> None:
    from syncd import workspace
    from syncd.hooks.events import mapping, path, text
    from syncd.hooks.journal import Journal

    said = mapping(json.loads(given)) if given.strip() else {}
    session = text(said.get("session_id"), 200)
    folder = path(mapping(said.get("workspace")).get("current_dir") or said.get("cwd"))
    if not session or not folder or not Path(folder).is_dir() or workspace.left_alone(Path(folder)):
        return
    journal = Journal.of(home, host, session)
    if journal.exists():  # what is not recorded needs no numbers
        journal.set_gauge({"t": int(time.time() * 1000), **numbers(said)})


def numbers(said: Mapping[str, Any]) -> dict[str, float]:
    from syncd.hooks.events import mapping

    window, cost = mapping(said.get("context_window")), mapping(said.get("cost"))
    told: dict[str, Any] = {
        "context": window.get("used_percentage"),
        "cost": cost.get("total_cost_usd"),
    }
    numbered = {name: value for name, value in told.items() if type(value) in (int, float)}
    return {name: float(value) for name, value in numbered.items() if 0 <= value < 1_000_000}


def shown(given: bytes, original: str | None) -> int:
    """The user's own line, by the user's own program, which takes the place of this one; else a
    line of ours."""
    if original is None:
        sys.stdout.write(f"{_line(given)}\n")
        return 0
    os.dup2(_readable(given), 0)
    return os.execvp("sh", ["sh", "-c", original])  # noqa: S606 (the shell is the user's wish)


def _readable(given: bytes) -> int:
    if len(given) <= _PIPE_BYTES:
        reader, writer = os.pipe()
        os.write(writer, given)
        os.close(writer)
        return reader
    import tempfile

    file = tempfile.TemporaryFile()  # noqa: SIM115 (it is the next program's)
    file.write(given)
    file.seek(0)
    return os.dup(file.fileno())


def _line(given: bytes) -> str:
    try:
        said = json.loads(given)
    except ValueError:
        return "syncd"
    if not isinstance(said, dict):
        return "syncd"
    found = numbers(said)
    words = ["syncd"]
    if "context" in found:
        words.append(f"context {found['context']:.0f} %")
    if "cost" in found:
        words.append(f"${found['cost']:.2f}")
    return " · ".join(words)
