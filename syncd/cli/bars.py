"""Bars on a terminal: for what takes a while, and to compare figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from syncd.cli.verb import App

Report = Callable[[str, int, int], None]
_BAR, _EIGHTHS = 16, " ▏▎▍▌▋▊▉"


def bar(value: float, most: float, width: int = _BAR) -> str:
    """So long as its share of the greatest value, to an eighth of a character."""
    eighths = round(max(value, 0) / most * width * 8) if most > 0 else 0
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


@contextmanager
def bars(app: App, names: Mapping[str, str]) -> Iterator[Report | None]:
    """One for each kind of work, called so; none where nobody would see it."""
    if app.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    begun = dict[str, Any]()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:

        def report(what: str, done: int, whole: int) -> None:
            if what not in begun and whole > done:
                begun[what] = shown.add_task(names[what], total=whole)
            if what in begun:
                shown.update(begun[what], completed=done, total=whole)

        yield report
