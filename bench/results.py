"""Everything that one run found, and the same for machines."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.daemon import Daemons
from bench.disk import BUSY_TIMES
from bench.figures import Figures, ratio
from bench.files import Files
from bench.growth import Growth
from bench.hooks import Replayed
from bench.lines import RAW_WRITE, REFERENCES
from bench.settings import Settings
from bench.startup import BASELINE, StartUp
from bench.stores import Others
from bench.sync import Sync
from bench.transfer import REFERENCES as REFERENCES_OF_SYNC

LIBRARIES = (
    "syncd",
    "click",
    "dbos",
    "langchain-core",
    "langgraph-checkpoint",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "openai-agents",
    "orjson",
    "psycopg",
    "pydantic",
    "sqlite-sync-core",
)


@dataclass(frozen=True)
class Comparison:
    """All operations on one payload."""

    label: str
    body_bytes: int
    lines: dict[str, Figures]

    def to_raw(self, name: str) -> float:
        return ratio(self.lines[name].p50, self.lines[REFERENCES[name][0]].p50)

    def to_langgraph(self, name: str) -> float:
        return ratio(self.lines[name].p50, self.lines[REFERENCES[name][1]].p50)


@dataclass(frozen=True)
class Local:
    """What was measured without a server."""

    comparisons: list[Comparison]
    growth: Growth
    start_up: StartUp
    resume: Figures
    loop_ms: float
    files: Files
    hooks: Replayed

    def quiet_ms(self) -> float:
        """A raw commit that nobody disturbed: the fastest twentieth, wherever in the run it was.
        Unlike any median, other programs cannot raise it."""
        raw = [comparison.lines[RAW_WRITE].p5 for comparison in self.comparisons]
        return min(*raw, self.growth.control.p5)

    def disturbed(self, raw: Figures) -> bool:
        """Most of the raw commits taken beside a line waited for something else than the disk."""
        return raw.p50 > self.quiet_ms() * BUSY_TIMES

    def as_document(self) -> dict[str, Any]:
        return {
            "quiet_raw_commit_ms": round(self.quiet_ms(), 5),
            "comparisons": [_comparison(comparison) for comparison in self.comparisons],
            "growth": _growth(self.growth),
            "start_up": _start_up(self.start_up),
            "resume": _milliseconds(self.resume),
            "loop_ms": round(self.loop_ms, 3),
            "files": {
                **{
                    name: round(value, 4)
                    for name, value in self.files._asdict().items()
                    if isinstance(value, float | int)
                },
                "update": _milliseconds(self.files.update),
            },
            "hooks": {name: round(value, 3) for name, value in self.hooks._asdict().items()},
        }


@dataclass(frozen=True)
class Results:
    """Of the parts that were run."""

    settings: Settings
    local: Local | None
    sync: Sync | None
    daemons: Daemons | None
    others: Others | None = None
    machine: dict[str, Any] = field(default_factory=lambda: machine())

    def as_document(self) -> dict[str, Any]:
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self.machine,
            "settings": asdict(self.settings),
            **(self.local.as_document() if self.local else {}),
            **({"sync": _sync(self.sync)} if self.sync else {}),
            **({"daemon": _daemons(self.daemons)} if self.daemons else {}),
            **({"others": _others(self.others)} if self.others else {}),
        }


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpu_count": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def _cpu() -> str:
    """Linux alone knows the model by a file; elsewhere the platform's word has to do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _milliseconds(figures: Figures) -> dict[str, Any]:
    return {
        "samples": figures.samples,
        "p5_ms": round(figures.p5, 5),
        "p50_ms": round(figures.p50, 5),
        "p99_ms": round(figures.p99, 5),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "payload": comparison.label,
        "body_bytes": comparison.body_bytes,
        "operations": {
            name: {
                **_milliseconds(figures),
                "p50_to_raw": round(comparison.to_raw(name), 4),
                "p50_to_langgraph": round(comparison.to_langgraph(name), 4),
            }
            for name, figures in comparison.lines.items()
        },
    }


def _growth(growth: Growth) -> dict[str, Any]:
    ratios = growth.ratios()
    return {
        "homes": [
            {"entries": fill.entries, "fill_seconds": round(fill.seconds, 1), "bytes": fill.bytes}
            for fill in growth.fills
        ],
        "control_raw_commit": _milliseconds(growth.control),
        "operations": {
            name: {
                "short": _milliseconds(short),
                "long": _milliseconds(long),
                "p50_ratio": round(ratios[name], 4),
            }
            for name, (short, long) in growth.lines.items()
        },
    }


def _start_up(start_up: StartUp) -> dict[str, Any]:
    if start_up.skipped:
        return {"skipped": start_up.skipped}
    baseline = start_up.lines[BASELINE].p50
    return {
        name: {**_milliseconds(figures), "p50_to_baseline": round(figures.p50 / baseline, 4)}
        for name, figures in start_up.lines.items()
    }


def _sync(sync: Sync) -> dict[str, Any]:
    found = sync.transfer
    return {
        "postgresql": sync.postgres,
        "lines": {
            line: {
                "seconds": [round(each, 3) for each in found.seconds[line]],
                "per_second": round(found.per_second(line)),
                "speed_to": reference,
                "speed": round(found.speed(line), 4),
            }
            for line, reference in REFERENCES_OF_SYNC.items()
        },
        "bootstrap_seconds": round(sync.bootstrap, 3),
        "round_trip": _milliseconds(sync.round_trip),
        "waits_ms": sync.waits._asdict(),
        "memory_mb": round(sync.memory, 1),
        "hooks_at_once_ms": sync.hooks._asdict(),
    }


def _daemons(found: Daemons) -> dict[str, Any]:
    return {
        "propagation": _milliseconds(found.propagation),
        "handoffs": {
            name: _milliseconds(figures) for name, figures in found.handoffs._asdict().items()
        },
        "idle": found.idle._asdict(),
        "writes": {name: _milliseconds(figures) for name, figures in found.writes.items()},
        "pushes_beside_connected_devices": [round(speed, 3) for speed in found.connected],
    }


def _others(found: Others) -> dict[str, Any]:
    return {
        "payload": found.label,
        "writes": {name: _milliseconds(figures) for name, figures in found.writes.items()},
        "reads": {name: _milliseconds(figures) for name, figures in found.reads.items()},
    }
