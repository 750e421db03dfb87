"""What all formats have in common: what a file was found to say, and what is wrong with it."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError


class Reading(NamedTuple):
    """A checkpoint as a file has it. Its task may be left open: then `owner` is what it is about,
    as a slug. `place` tells several in one file apart; `previous` is the name of the file before
    it; `notes` are for the user, such as a time without a zone."""

    checkpoint: Checkpoint
    owner: str
    place: str = ""
    previous: str = ""
    notes: tuple[str, ...] = ()


class FormatError(InvalidInputError):
    """Where a file is not what it should be, and what was expected there."""

    code = "format"
    remedy = "Correct the file; nothing of it was taken in."

    def __init__(self, source: str, line: int, expected: str) -> None:
        super().__init__(f"{source}, line {line}: {expected}")
        self.source = source
        self.line = line
        self.expected = expected


def slug(text: str) -> str:
    """A task id made of a title: lower case, words joined by dashes."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")[:80].strip("-")
