"""A network of the run's own, where the system allows it: then its only device can go down, and
packets get lost without a word. Everything else is done by the machines' lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_OUTSIDE = "SYNCD_CHAOS_OUTSIDE"
_OURS = Path("/proc/self/ns/net")


def enter(arguments: Sequence[str]) -> None:
    """Go on in such a network; comes back where that cannot be, or once there."""
    if isolated():
        up(True)
        return
    if os.geteuid() != 0 or sys.platform != "linux":
        return
    within = ["unshare", "--net", "--"]
    tried = [*within, "ip", "link", "set", "lo", "up"]
    try:
        if subprocess.run(tried, capture_output=True).returncode != 0:
            return
    except OSError:
        return
    again = [*within, sys.executable, "-m", "chaos", *arguments]
    os.execvpe(again[0], again, {**os.environ, _OUTSIDE: str(_OURS.readlink())})


def isolated() -> bool:
    """Whether this is another network than the one that the run was started in."""
    outside = os.environ.get(_OUTSIDE, "")
    return bool(outside) and str(_OURS.readlink()) != outside


def up(yes: bool) -> None:
    if not isolated():
        raise AssertionError("this network is not the run's own")
    subprocess.run(["ip", "link", "set", "lo", "up" if yes else "down"], check=True)
