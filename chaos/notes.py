"""What agents and commands were told is written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Told(NamedTuple):
    """The revision and the hash of each entry, `-` where the hash was not told; and the lines that
    cannot be read."""

    entries: dict[str, str]
    problems: list[str]


def read_notes(folder: Path) -> Told:
    told = Told({}, [])
    for file in sorted(folder.iterdir()):
        # What follows the last end of a line was torn by the death of its writer.
        *lines, _torn = file.read_text(errors="replace").split("\n")
        for line in lines:
            _take(told, file.name, line)
    return told


def _take(told: Told, name: str, line: str) -> None:
    try:
        revision, digest = line.split()
    except ValueError:
        told.problems.append(f"{name}: {line[:200]!r}")
    else:
        told.entries[revision] = digest
