"""The run as a picture: p50 filled, p99 hollow, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.ticker import LogLocator, NullFormatter

from bench import lines
from bench.figures import Figures
from bench.results import Local
from bench.stores import Others

_COLOURS = {"raw": "#7f7f7f", "syncd": "#1f6fb4", "LangGraph": "#d9822b"}
_OTHER = "#4b9b5f"


def draw(results: Local, path: Path) -> None:
    _drawn(_panels(results), path)


def draw_others(found: Others, path: Path) -> None:
    _drawn([(f"writes, {found.label}", found.writes), ("reads", found.reads)], path)


def _drawn(panels: Sequence[tuple[str, Mapping[str, Figures]]], path: Path) -> None:
    columns = 2
    rows = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(rows, columns, figsize=(14, 3.3 * rows), squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (title, found) in zip(grid.flat, panels, strict=False):
        _panel(axes, title, found)
    figure.suptitle("WAL, synchronous = FULL; filled: p50, hollow: p99")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _panels(results: Local) -> Sequence[tuple[str, Mapping[str, Figures]]]:
    panels: list[tuple[str, Mapping[str, Figures]]] = []
    for comparison in results.comparisons:
        for title, wanted in (("writes", True), ("reads", False)):
            found = {
                name: figures
                for name, figures in comparison.lines.items()
                if (name in lines.WRITES) is wanted
            }
            panels.append((f"{title}, {comparison.label}", found))
    panels.append(("growth", _growth(results)))
    if results.start_up.lines:
        panels.append(("start-up", results.start_up.lines))
    return panels


def _growth(results: Local) -> dict[str, Figures]:
    sizes = [f"{fill.entries:,}" for fill in results.growth.fills]
    return {
        f"{name}, {size}": figures
        for name, pair in results.growth.lines.items()
        for size, figures in zip(sizes, pair, strict=True)
    }


def _panel(axes: Any, title: str, found: Mapping[str, Figures]) -> None:
    names = list(found)[::-1]
    for height, name in enumerate(names):
        p50, p99 = found[name].p50, found[name].p99
        colour = _COLOURS.get(name.split()[0], _OTHER)
        axes.plot((p50, p99), (height, height), color=colour, linewidth=1)
        axes.plot(p50, height, "o", color=colour)
        axes.plot(p99, height, "o", color=colour, markerfacecolor="white")
        axes.annotate(f"{p50:.3f}", (p50, height), (0, 6), textcoords="offset points",
                      ha="center", fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.3)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("ms", fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.grid(axis="x", which="both", alpha=0.25)
