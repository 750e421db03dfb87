"""A word to whoever sits at this machine, on the desktop where there is one. It may be missed, so
`syncd status` says the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

_SECONDS = 5.0
_SESSION = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")
_SCRIPT = (
    "on run argv",
    "display notification (item 2 of argv) with title (item 1 of argv)",
    "end run",
)


def command(title: str, text: str, environment: Mapping[str, str]) -> list[str]:
    """What shows a notification here; empty where nothing can."""
    title, text = _line(title), _line(text)
    if sys.platform == "darwin":
        lines = [word for line in _SCRIPT for word in ("-e", line)]
        return ["osascript", *lines, title, text]
    there = shutil.which("notify-send", path=environment.get("PATH"))
    if there and any(environment.get(name) for name in _SESSION):
        return [there, "--app-name=syncd", "--", title, text]
    return []


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def notify(title: str, text: str) -> None:
    """Without fail, and without waiting for long."""
    words = command(title, text, os.environ)
    nothing = subprocess.DEVNULL
    if words:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_SECONDS, check=False
            )
