"""What a large backlog costs in memory: the command that a user gives, in a process of its own.

Run as a module, this is that process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from syncd.cli import main as syncd

_KB = 1_024


def measured(home: Path, dsn: str) -> float:
    """The most that was resident while everything was pushed, in MB."""
    environment = {**os.environ, "SYNCD_HOME": str(home), "SYNCD_CLOUD_DSN": dsn}
    done = subprocess.run(
        [sys.executable, "-m", __name__, "sync", "--push-only"], cwd=Path(__file__).parents[1],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"the push failed: {done.stderr.strip()}")
    return int(done.stdout.splitlines()[-1]) / 1e6


def peak() -> int:
    """Of this process, in bytes. On Linux the kernel's usual answer includes whoever forked it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * _KB for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    try:
        syncd()
    except SystemExit as ended:
        if ended.code:
            raise
    print(peak())


if __name__ == "__main__":
    main()
