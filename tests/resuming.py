"""Resuming, for tests: checkpoints, repositories, and what was found of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from syncd import CheckpointService, workspace
from syncd.checkpoint import Checkpoint
from syncd.resume import Reader, Resumption, resumed

ELSEWHERE = Path("/")


def resume(service: CheckpointService, task: str = "t", start: Path = ELSEWHERE) -> Resumption:
    return resumed(service.node, task, Reader(start, ["/bin/syncd"]))


def saved(service: CheckpointService, task: str = "t", **document: Any) -> str:
    """A checkpoint of sections as they come; its id."""
    metadata = {"agent_id": "ann", **document.pop("metadata", {})}
    made = service.create_checkpoint(**{"task_id": task, **metadata, **document})
    return made.metadata.checkpoint_id


def part(prompt: str, heading: str) -> list[str]:
    """The lines under a heading."""
    body = prompt.partition(f"## {heading}\n")[2].partition("\n\n## ")[0]
    return [line for line in body.splitlines() if line]


def states(found: Resumption) -> dict[str, tuple[str, str]]:
    return {claim.claim: (claim.state, claim.reason) for claim in found.found.claims}


def git(folder: Path, *words: str) -> str:
    setup = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false",
             "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always")  # fmt: skip
    done = subprocess.run(
        ["git", *setup, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> str:
    """Names have a dot where Python has none."""
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "some work", "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


def captured(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    sections = {name: value for name, value in document.items() if name != "metadata"}
    found = workspace.capture(folder, Checkpoint.from_dict(sections).named_files())
    assert found
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    commit(folder, a_py="a\n", b_py="b\n")
    return folder
