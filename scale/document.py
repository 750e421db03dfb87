"""What a part has measured, as JSON: the page and the pictures are made of that alone."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Figures
from scale.fleet import Fleeting, Phased
from scale.histories import Histories
from scale.replicas import Replicas
from scale.server import TUNED


def headed(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "cpu": _cpu(), "platform": platform.platform(),
                    "memory_gb": round(_memory() / 1e9, 1), "python": platform.python_version()},
        **found,
    }  # fmt: skip


def of_fleet(found: Fleeting) -> dict[str, Any]:
    fleet = found.fleet
    return headed({
        "postgresql": found.postgres, "settings": TUNED, "devices": fleet.devices,
        "organizations": fleet.organizations, "batch": fleet.batch, "pullers": fleet.pullers,
        "pause_s": fleet.pause, "connect_s": round(found.connect_seconds, 2),
        "phases": [_phase(phased, fleet.period(phased.phase)) for phased in found.phases],
        "check": {**found.check._asdict(), "missed": found.check.missed},
        "bootstrap": {"entries": found.bootstrap.entries,
                      "seconds": round(found.bootstrap.seconds, 2)},
    })  # fmt: skip


def _phase(found: Phased, period: float) -> dict[str, Any]:
    load = found.load
    return {
        "name": found.phase.name, "offered_per_s": found.phase.rate,
        "connections": found.phase.connections, "at_once": found.phase.spread == 0,
        "period_s": round(period, 2), "seconds": round(found.seconds, 2),
        "entries": found.entries, "per_s": round(found.per_second),
        "push": _figures(found.push), "service": _figures(found.service),
        "propagation": _figures(found.propagation),
        "cores": {name: round(value, 3) for name, value in load.cores.items()},
        "waits": load.waits, "backend_mb": round(load.backend_mb, 1),
        "load_average": [round(value, 2) for value in load.load_average],
    }  # fmt: skip


def of_histories(found: Histories) -> dict[str, Any]:
    return headed({
        "sizes": found.sizes, "lines": _lines(found.lines), "control": _figures(found.control),
        "growth": {name: round(found.worst(name), 3) for name in ("create", "latest", "status")},
        "load_average": [round(value, 2) for value in found.load_average],
    })  # fmt: skip


def of_replicas(found: Replicas) -> dict[str, Any]:
    return headed({
        "postgresql": found.postgres, "settings": TUNED, "sizes": found.sizes,
        "lines": _lines(found.lines),
        "bytes_per_entry": round(found.fills[found.sizes[-1]].bytes / found.sizes[-1]),
        "fill_s": {str(size): round(fill.seconds) for size, fill in found.fills.items()},
        "growth": {line: round(found.growth(line), 3) for line in found.lines},
        "load_average": [round(value, 2) for value in found.load_average],
    })  # fmt: skip


def _lines(lines: dict[str, dict[int, Figures]]) -> dict[str, dict[str, Any]]:
    return {line: {str(size): _figures(figures) for size, figures in by_size.items()}
            for line, by_size in lines.items()}  # fmt: skip


def _figures(figures: Figures) -> dict[str, Any]:
    return {"samples": figures.samples, "p50_ms": round(figures.p50, 4),
            "p99_ms": round(figures.p99, 4)}  # fmt: skip


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
