"""The story itself: offline, back again, both at once, a lost machine. Whatever is said to happen
happens, and what is shown is what the commands printed."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple, Protocol

from syncd import running
from syncd.demo.stage import Done, Machine, Stage, watched
from syncd.errors import DemoError

TASK = "dark-mode"
# As much of an id as no other one shares: its first part is the time.
_SHORT = 13
_CREATE = ("checkpoint", "create", "--task", TASK)
Keep = Callable[[list[str]], list[str]]


class Step(NamedTuple):
    """One thing that happens. Without a machine, nobody types anything."""

    text: str
    machine: str = ""
    command: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    ms: float = 0.0


class Teller(Protocol):
    """Shows what happens, and gives people the time to read it."""

    def chapter(self, title: str) -> None: ...
    def step(self, step: Step) -> None: ...


class Story:
    def __init__(self, stage: Stage, teller: Teller) -> None:
        self._stage = stage
        self._teller = teller
        self._laptop: Machine
        self._desktop: Machine
        self._checkpoint = ""
        self.steps: list[Step] = []
        self.measured: dict[str, float] = {}

    def play(self) -> None:
        for chapter in (
            self.begin,
            self.offline,
            self.online,
            self.conflict,
            self.loss,
            self.proof,
        ):
            self._teller.chapter((chapter.__doc__ or "").strip())
            chapter()

    # --- chapters -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Two machines and a replica"""
        began = time.monotonic()
        self._tell("A PostgreSQL is started, and two machines of Ann's: a laptop and a desktop.")
        self._laptop, self._desktop = self._stage.build()
        for machine in (self._laptop, self._desktop):
            self._stage.start(machine)
        self.measured["set_up_s"] = round(time.monotonic() - began, 1)
        folder = self._stage.folder
        self._tell(f"All of it in {folder}. On both machines `syncd run` is running.")

    def offline(self) -> None:
        """On the train, without a network"""
        self._laptop.cable.pull()
        self._do("The laptop has no network. Its agent writes down what is done and decided.",
                 self._laptop, *_CREATE, "--agent", "ann", "--phase", "implementing",
                 "--completed", "toggle component", "--pending", "wire it up",
                 "--decision", "CSS custom properties: nothing to compute at run time")  # fmt: skip
        self._do("It is on disk: that took no network, and no daemon. Some more work:",
                 self._laptop, *_CREATE, "--agent", "ann", "--phase", "implementing",
                 "--completed", "wire it up", "--pending", "tests")  # fmt: skip
        self._stage.until(partial(_offline, self._laptop), "the laptop to notice")
        self._do("Is it safe to close the lid?", self._laptop, "status",
                 keep=_beginning("Not yet", "Daemon", "Replica", "To send"))  # fmt: skip

    def online(self) -> None:
        """The network is back"""
        with watched(self._desktop) as there, watched(self._laptop) as here:
            self._laptop.cable.plug()
            ms = self._stage.until(lambda: there() == here(), "the desktop")
        self.measured["reconnected_ms"] = round(ms)
        self._tell(f"The desktop has all of it {ms:,.0f} ms after the network came back. (Here the "
                   "laptop tries again within a second.)")  # fmt: skip
        self._do("The desktop's agent reads where to go on, verified:", self._desktop,
                 "checkpoint", "latest", TASK,
                 keep=_without("Task", "Time", "Parent", "Revision", "Hash"))  # fmt: skip
        words = (*_CREATE, "--agent", "bob", "--phase", "testing", "--completed", "tests",
                 "--pending", "contrast", "--pending", "review")  # fmt: skip
        done, ms = self._stage.carried(self._desktop, self._laptop, *words)
        self.measured["carried_ms"] = round(ms, 1)
        self._show("And goes on:", self._desktop, words, done)
        self._checkpoint = done.out.strip()[:_SHORT]
        self._tell(f"From its commit on the desktop to the laptop's database: {ms:,.0f} ms.")

    def conflict(self) -> None:
        """Both change the same checkpoint, and do not know of each other"""
        self._laptop.cable.pull()
        self._do(
            "The laptop is offline again, and settles what comes next.",
            self._laptop,
            "checkpoint",
            "update",
            self._checkpoint,
            "--focus",
            "contrast of the links",
        )
        self._do(
            "Meanwhile somebody at the desktop settles something else.",
            self._desktop,
            "checkpoint",
            "update",
            self._checkpoint,
            "--focus",
            "review by Carol",
        )
        self._laptop.cable.plug()
        for machine in (self._desktop, self._laptop):
            self._stage.until(partial(_knows_conflict, machine), "the conflict")
        conflict = _conflict(self._laptop)[:_SHORT]
        self._do("Together again: the later one counts, on both. The other one is kept, and shown.",
                 self._laptop, "conflicts", "show", conflict, keep=_focus)  # fmt: skip
        with watched(self._desktop) as there:
            before = there()
            self._do("Ann wants hers back. That is a write like any other:",
                     self._laptop, "conflicts", "restore", conflict)  # fmt: skip
            self._stage.until(lambda: there() > before, "the desktop")
        self._do("The desktop agrees:", self._desktop, "checkpoint", "show", self._checkpoint,
                 keep=_beginning("Focus"))  # fmt: skip

    def loss(self) -> None:
        """The laptop falls into the lake"""
        self._stage.kill(self._laptop)
        self._tell("Its daemon is killed, its home deleted: database, keys, backups, login.")
        self._do("At her other machine, Ann has it refused, and makes a login for a new one.",
                 self._desktop, "device", "revoke", "laptop")  # fmt: skip
        words = ("device", "add", "new laptop")
        done = self._stage.run(self._desktop, *words)
        dsn, *_ = done.out.split("\n")
        hidden = done._replace(out="postgresql://…") if done.code == 0 else done
        self._show("", self._desktop, words, hidden)
        self._laptop = self._laptop._replace(home=self._stage.folder / "new laptop")
        self._do("On the new laptop (the login is pasted):", self._laptop, "login", "-", stdin=dsn,
                 keep=_beginning("This machine"))  # fmt: skip
        done = self._do("", self._laptop, "sync")
        self.measured["restored_ms"] = round(done.ms)
        self._do("Everything is back:", self._laptop, "checkpoint", "history", TASK, keep=_columns)

    def proof(self) -> None:
        """Nothing was lost, and that can be proven"""
        self._do("Entry by entry against the replica, by their hashes:", self._laptop, "prove")
        self._do("", self._desktop, "prove")
        self._do("And every hash, link and signature by itself:", self._laptop, "audit", "verify")

    # --- what they are made of ----------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self._add(Step(text))

    def _do(
        self, text: str, machine: Machine, *words: str, stdin: str = "", keep: Keep = list
    ) -> Done:
        done = self._stage.run(machine, *words, stdin=stdin)
        self._show(text, machine, words, done, keep)
        return done

    def _show(
        self, text: str, machine: Machine, words: tuple[str, ...], done: Done, keep: Keep = list
    ) -> None:
        if done.code:
            said = " ".join(done.out.split())
            raise DemoError(f"`syncd {shlex.join(words)}` on the {machine.name} failed: {said}")
        lines = [line for line in done.out.splitlines() if line.strip()]
        self._add(Step(text, machine.name, words, tuple(keep(lines)), round(done.ms)))

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self._teller.step(step)


def _offline(machine: Machine) -> bool:
    return bool(running.told(machine.home).get("cloud", {}).get("state") == "offline")


def _conflict(machine: Machine) -> str:
    """The open conflict that it knows of."""
    database = f"{(machine.home / 'context.db').as_uri()}?mode=ro"
    with closing(sqlite3.connect(database, uri=True)) as opened:
        row = opened.execute("SELECT id FROM conflicts WHERE state = 'open'").fetchone()
    return str(row[0]) if row else ""


def _knows_conflict(machine: Machine) -> bool:
    return _conflict(machine) != ""


# --- what of the output is shown --------------------------------------------------------------


def _beginning(*words: str) -> Keep:
    return lambda lines: [line for line in lines if line.startswith(words)]


def _without(*words: str) -> Keep:
    return lambda lines: [line for line in lines if not line.startswith(words)]


def _focus(lines: list[str]) -> list[str]:
    """What both began from, what is current, what lost."""
    first = next((n for n, line in enumerate(lines) if "current_focus" in line), 0)
    return lines[first : first + 4]


def _columns(lines: list[str]) -> list[str]:
    """A table without its ids and times."""
    begin, end = lines[0].find("AGENT"), lines[0].find("TIME")
    return [line[begin:end].rstrip() for line in lines]


def document(story: Story, seconds: float) -> dict[str, Any]:
    """What was played and measured, once everything is removed again."""
    steps = [
        {**step._asdict(), "command": shlex.join(("syncd", *step.command)) if step.command else ""}
        for step in story.steps
    ]
    return {"ok": True, "seconds": round(seconds, 1), "measured": story.measured, "steps": steps,
            "removed": True}  # fmt: skip
