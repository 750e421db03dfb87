"""What reaches standard output and error, and what happens if those take nothing."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

from syncd.errors import SyncdError

_held: list[list[str]] = []  # at most one: what waits


class UnprintedError(SyncdError):
    """All went well but the last step: whoever asked does not know it."""

    code = "unprinted"
    remedy = (
        "What the command writes is written: do not run it again for that, `syncd audit list` "
        "shows it. What it reads can be sent elsewhere."
    )


def show(text: str, *, nl: bool = True) -> None:
    """The answer, to standard output."""
    try:
        click.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        to_nowhere(sys.stdout)
        raise UnprintedError(
            f"what was asked for is done, but its answer could not be printed: {error.strerror}"
        ) from None
    release()


def colour() -> bool | None:
    """As click takes it: not where the user wants none, else on a terminal. no-color.org"""
    return False if os.environ.get("NO_COLOR") or _is_dumb() else None


def _is_dumb() -> bool:
    return os.environ.get("TERM") == "dumb"


def moves(stream: TextIO) -> bool:
    """Whether it is a terminal on which lines can be drawn over others."""
    return stream.isatty() and not _is_dumb()


def over(text: str, *, err: bool = False) -> None:
    """Text among codes that move the cursor: no colours, so NO_COLOR leaves them."""
    stream = sys.stderr if err else sys.stdout
    click.echo(text, err=err, nl=False, color=moves(stream))


def painted(text: str) -> str:
    return click.unstyle(text) if colour() is False else text


def hold() -> None:
    """From now on, what is said waits for the answer: an error has it in its object."""
    _held.append([])


def held() -> list[str]:
    """What waits, which nobody else says then; nothing waits from now on."""
    return _held.pop() if _held else []


def release() -> None:
    """Say what waits, and all else at once."""
    for text in held():
        say(text)


def say(text: str) -> None:
    """To standard error. That it takes nothing is no reason to stop, nor to end otherwise."""
    if _held:
        _held[-1].append(text)
        return
    try:
        click.echo(text, err=True, color=colour())
    except OSError:
        to_nowhere(sys.stderr)


def to_nowhere(stream: TextIO) -> None:
    """Python must not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
