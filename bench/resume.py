"""How long a fresh agent waits for its prompt: a long chain, in a repository, all of it checked."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.figures import Figures
from bench.measure import Operation, interleaved, repeated
from bench.payload import AGENT, TASK, Payload
from syncd import workspace
from syncd.resume import Reader, resumed
from syncd.service import CheckpointService

CHAIN = 200
_FILES = [f"src/handler_{number}.py" for number in range(10)]
LINE = f"resume, chain of {CHAIN}"


def measured(folder: Path, payload: Payload, samples: int) -> Figures:
    project = repository(folder / "project")
    with closing(CheckpointService(home=folder / "resume")) as service:
        _filled(service, payload, project)
        reader = Reader(project, ["syncd"])
        operation = Operation(LINE, repeated(TASK), lambda task: _resume(service, task, reader))
        return interleaved([operation], samples)[LINE]


def _resume(service: CheckpointService, task: str, reader: Reader) -> None:
    """One that found the code unchanged, or it would have had less to do."""
    if resumed(service.node, task, reader).unverified:
        raise AssertionError("nothing has changed here")


def _filled(service: CheckpointService, payload: Payload, project: Path) -> None:
    """Only the newest is compared with the code; the others must name it and be intact."""
    metrics = payload.metrics.amended(files_modified=_FILES)
    captured = workspace.capture(project, _FILES)
    with service.node.store.transaction():
        for number in range(CHAIN):
            here: dict[str, Any] = {"workspace": captured} if number == CHAIN - 1 else {}
            service.create_checkpoint(TASK, AGENT, payload.state, payload.context, metrics, **here)


def repository(project: Path) -> Path:
    for name in _FILES:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"# {name}\n" * 200)
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.org")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "all")):
        subprocess.run(["git", *words], cwd=project, env=environment, check=True)
    return project
