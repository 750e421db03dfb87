"""What a command costs before it does anything: whole processes, timed from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench import hooks
from bench.figures import Figures
from bench.measure import Operation, installed, interleaved, repeated
from bench.payload import TASK, Payload, create
from bench.resume import repository
from syncd.service import CheckpointService

BASELINE = 'python -c "import click, sqlite3"'
LATEST_COMMAND = "syncd checkpoint latest"
CREATE_COMMAND = "syncd checkpoint create"
STATUS_COMMAND = "syncd status"
HOOK_COMMAND = "syncd hook claude-code"


class StartUp(NamedTuple):
    """Figures of whole processes, or why there are none."""

    lines: dict[str, Figures]
    skipped: str = ""


def measured(folder: Path, payload: Payload, runs: int) -> StartUp:
    home = folder / "start-up"
    with closing(CheckpointService(home=home)) as service:
        create(service, payload)
    commands, environment = _commands(), installed(home, folder / "bytecode")
    given = dict.fromkeys(commands, b"")
    given[HOOK_COMMAND] = _tool_use(folder / "hooked-start")
    for name, command in commands.items():
        if problem := _problem(command, environment, given[name]):
            return StartUp({}, problem)
    operations = [
        Operation(
            name, repeated((command, given[name])), lambda call: _run(call[0], call[1], environment)
        )
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
        HOOK_COMMAND: [script, "hook", "claude-code"],
        CREATE_COMMAND: [
            *(script, "checkpoint", "create", "--task", "start-up", "--agent", "bench"),
            *content,
        ],
    }


def _tool_use(project: Path) -> bytes:
    """The event that comes most often, in a repository."""
    place = {"cwd": str(repository(project))}
    return json.dumps({**hooks.TOOL_USE, **place}).encode()


def _problem(command: list[str], environment: Mapping[str, str], given: bytes) -> str:
    """A command that fails is fast, and must not count."""
    try:
        done = subprocess.run(
            command, env=environment, input=given, capture_output=True, check=False
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode == 0:
        return ""
    last = (done.stderr.decode().strip() or "no message").splitlines()[-1]
    return f"{' '.join(command[:3])} exits with {done.returncode}: {last}"


def _run(command: list[str], given: bytes, environment: Mapping[str, str]) -> None:
    subprocess.run(
        command,
        env=environment,
        input=given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
