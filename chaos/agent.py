"""An agent that writes without end, and notes what it was told is written.

The note is one write to a file: whatever is done to the process afterwards, it stands.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from syncd import CheckpointService
from syncd.checkpoint import Checkpoint
from syncd.errors import (
    CheckpointNotFoundError,
    DiskRefusedError,
    FinalizedError,
    PurgedError,
    StaleBaseError,
)

TASKS, SHARED = 12, 40
# What it says where it is told that there is no room.
REFUSED = "refused"
# Bodies that make SQLite move its log now and then.
_SIZES = (0, 0, 0, 300, 3_000, 30_000)
_PAUSE_SECONDS = 0.08
# What may happen to any agent: another was faster, has closed it, retention has taken it, it has
# not arrived yet, or there is no room.
_USUAL = (StaleBaseError, FinalizedError, PurgedError, CheckpointNotFoundError, DiskRefusedError)


class Agent:
    def __init__(self, home: Path, name: str, notes: Path, dice: random.Random) -> None:
        self._home = home
        self._name = name
        self._dice = dice
        self._own: list[str] = []
        self._going = True
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self._going = False

    def work(self) -> None:
        service = CheckpointService(home=self._home)
        steps = (self._create, self._update, self._share, self._finalize)
        while self._going:
            step: Callable[[CheckpointService], Checkpoint]
            [step] = self._dice.choices(steps, weights=(60, 20, 10, 5))
            try:
                self.note(step(service))
            except _USUAL as error:
                if isinstance(error, DiskRefusedError):
                    print(REFUSED, flush=True)
                time.sleep(_PAUSE_SECONDS)
            time.sleep(self._dice.uniform(0, 2 * _PAUSE_SECONDS))
        service.close()

    def note(self, written: Checkpoint) -> None:
        os.write(self._notes, f"{written.revision} {written.compliance.hash}\n".encode())

    # --- what it writes -------------------------------------------------------------------------

    def _create(self, service: CheckpointService) -> Checkpoint:
        task = f"task {self._dice.randrange(TASKS)}"
        filler = "x" * self._dice.choice(_SIZES)
        made = self.create(service, task, {"state": {"x": filler}})
        self._own = [*self._own[-20:], made.metadata.checkpoint_id]
        return made

    def create(self, service: CheckpointService, task: str, said: dict[str, object]) -> Checkpoint:
        return service.create_checkpoint(task, self._name, context_summary=said)

    def _update(self, service: CheckpointService) -> Checkpoint:
        if not self._own:
            return self._create(service)
        return self._change(service, self._dice.choice(self._own))

    def _share(self, service: CheckpointService) -> Checkpoint:
        """One that every agent on every machine changes: what is written at once is a conflict."""
        return self._change(service, shared(self._dice.randrange(SHARED)))

    def _change(self, service: CheckpointService, checkpoint_id: str) -> Checkpoint:
        focus = f"{self._name} {self._dice.getrandbits(32):08x}"
        return service.update_checkpoint(
            checkpoint_id, {"execution_state": {"current_focus": focus}}
        )

    def _finalize(self, service: CheckpointService) -> Checkpoint:
        if not self._own:
            return self._create(service)
        return service.finalize_checkpoint(self._own.pop())


def shared(number: int) -> str:
    return f"shared-{number}"


def main(words: list[str]) -> None:
    home, name, notes, seed = words
    Agent(Path(home), name, Path(notes), random.Random(seed)).work()
