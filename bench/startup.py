"""What a command costs before it does anything: whole processes, timed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from bench.measure import Operation, interleaved, repeated
from bench.payload import TASK, Payload, create
from syncd.service import CheckpointService

BASELINE = 'python -c "import click, sqlite3"'
LATEST_COMMAND = "syncd checkpoint latest"
CREATE_COMMAND = "syncd checkpoint create"
STATUS_COMMAND = "syncd status"


class StartUp(NamedTuple):
    """Figures of whole processes, or why there are none."""

    lines: dict[str, Figures]
    skipped: str = ""


def measured(folder: Path, payload: Payload, runs: int) -> StartUp:
    home = folder / "start-up"
    with closing(CheckpointService(home=home)) as service:
        create(service, payload)
    commands, environment = _commands(), _environment(home, folder / "bytecode")
    for command in commands.values():
        if problem := _problem(command, environment):
            return StartUp({}, problem)
    operations = [
        Operation(name, repeated(command), lambda argv: _run(argv, environment))
        for name, command in commands.items()
    ]
    return StartUp(interleaved(operations, runs, size=1))


def _commands() -> dict[str, list[str]]:
    """The installed script beside this interpreter, so that both start the same Python."""
    script = str(Path(sys.executable).with_name("syncd"))
    content = ["--completed", "Add refunds", "--pending", "Test retries"]
    return {
        BASELINE: [sys.executable, "-c", "import click, sqlite3"],
        LATEST_COMMAND: [script, "checkpoint", "latest", TASK],
        STATUS_COMMAND: [script, "status"],
        CREATE_COMMAND: [
            *(script, "checkpoint", "create", "--task", "start-up", "--agent", "bench"),
            *content,
        ],
    }


def _environment(home: Path, bytecode: Path) -> dict[str, str]:
    """As for an installed package: every module compiled before (by the trial runs), in a folder
    of its own. Where an environment forbids that, a checkout would compile itself at each start
    and the baseline's libraries would not."""
    environment = {**os.environ, "SYNCD_HOME": str(home), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def _problem(command: list[str], environment: Mapping[str, str]) -> str:
    """A command that fails is fast, and must not count."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    return f"{' '.join(command[:3])} exits with {done.returncode}: {last}"


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
