"""The figures as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from scale.settings import FAST, MAIN, SLOW


def growth(document: dict[str, Any], title: str, path: Path) -> None:
    """What each operation costs, by the number of entries."""
    figure, axes = pyplot.subplots(figsize=(9, 5))
    sizes = document["sizes"]
    for line, by_size in document["lines"].items():
        axes.plot(sizes, [by_size[str(size)]["p50_ms"] for size in sizes], "o-", label=line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("entries")
    axes.set_ylabel("p50, ms")
    axes.set_title(title)
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def fleet(document: dict[str, Any], path: Path) -> None:
    """Push and propagation by what was offered."""
    figure, axes = pyplot.subplots(figsize=(9, 4.5))
    phases = sorted((phase for phase in document["phases"] if phase["name"] in (SLOW, MAIN, FAST)),
                    key=lambda phase: phase["offered_per_s"])  # fmt: skip
    offered = [phase["offered_per_s"] for phase in phases]
    for what, colour in (("push", "#1f6fb4"), ("propagation", "#d9822b")):
        for percentile, style in (("p50_ms", "o-"), ("p99_ms", "o--")):
            values = [phase[what][percentile] for phase in phases]
            axes.plot(offered, values, style, color=colour, label=f"{what}, {percentile[:3]}")
    axes.axhline(1000, color="#999999", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("entries offered a second")
    axes.set_ylabel("ms")
    axes.set_title(f"{document['devices']:,} devices of {document['organizations']} organizations")
    axes.grid(which="both", alpha=0.25)
    axes.legend(fontsize=8)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
