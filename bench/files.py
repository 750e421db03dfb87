"""Files of other tools: how long it takes to take many in, and to change one in place."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import Figures, summary
from bench.payload import AGENT, Payload
from syncd.formats import builder_state
from syncd.intake import FORMATS, Intake
from syncd.service import CheckpointService

UPDATE_LINE = "update of a builder-state file"
_AT_ONCE = 200


class Files(NamedTuple):
    """Seconds for as many files, bare and as an import, and again with nothing new; what an update
    in place takes."""

    files: int
    bare: float
    imported: float
    again: float
    update: Figures


def measured(folder: Path, payload: Payload, count: int, samples: int) -> Files:
    place = folder / "agent_checkpoints"
    place.mkdir(parents=True)
    for number in range(count):
        (place / f"agent_{number}.json").write_text(json.dumps(_document(number), indent=2))
    with closing(CheckpointService(home=folder / "home")) as service:
        bare = _seconds(lambda: _bare(place, folder / "bare.db"))
        imported, again = (_seconds(lambda: _taken(service, place)) for _ in range(2))
        update = _updates(folder / "builder-state.json", service, payload, samples)
    return Files(count, bare, imported, again, update)


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _document(number: int) -> dict[str, Any]:
    minute, second = divmod(number, 60)
    hour, minute = divmod(minute, 60)
    return {
        "agent_id": f"Secondary-{number % 50}", "agent_type": "secondary",
        "session_id": f"s{number}", "feature": f"feature {number % 20}", "stage": "S2.P1",
        "phase": "Research", "last_checkpoint": f"2026-01-15T{hour:02}:{minute:02}:{second:02}Z",
        "status": "IN_PROGRESS", "can_resume": True, "blockers": [],
        "files_modified": ["spec.md", "checklist.md", "src/handler.py"],
        "recovery_instructions": "Go on with the second part of the requirements.",
        "current_step": "Reading the guide",
        "completed_steps": [f"Part {part} was written and checked" for part in range(6)],
        "next_steps": ["Write part 7", "Ask for a review"],
    }  # fmt: skip


def _bare(place: Path, database: Path) -> None:
    """Read, parse, write to a table; as durable, as many to a commit."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT, body TEXT)")
        paths = sorted(place.iterdir())
        for start in range(0, len(paths), _AT_ONCE):
            connection.execute("BEGIN IMMEDIATE")
            for path in paths[start : start + _AT_ONCE]:
                text = json.dumps(json.loads(path.read_bytes()))
                connection.execute(
                    "INSERT INTO files (name, body) VALUES (?, ?)", (path.name, text)
                )
            connection.execute("COMMIT")


def _taken(service: CheckpointService, place: Path) -> None:
    if Intake(service).everything(FORMATS["agent-json"], place).failed:
        raise AssertionError("every file is as it should be")


def _updates(path: Path, service: CheckpointService, payload: Payload, samples: int) -> Figures:
    path.write_text(json.dumps({"activePrd": {"id": "prd", "currentStory": "US-1"}}, indent=2))
    made = service.create_checkpoint("t", AGENT, payload.state, payload.context, payload.metrics)
    timings = []
    for number in range(samples):
        state = made.execution_state.amended(current_focus=f"step {number}")
        changed = made.amended(execution_state=state)
        began = time.perf_counter_ns()
        builder_state.update(path, "activePrd", lambda _, new=changed: new)  # type: ignore[misc]
        timings.append(time.perf_counter_ns() - began)
    return summary(timings)
