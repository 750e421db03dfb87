"""Defects to plant, each of which a run must find: `python -m chaos --plant NAME`.

One cannot be found this way. Without fsync a killed process loses nothing, as the system still has
what was written; only the loss of power shows it: `tests/test_durability.py` does that.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

PAUSE_SECONDS = 0.05


def plant(name: str) -> None:
    """Into this process, if that is where the defect belongs."""
    PLANTS.get(name, _nothing)()


def _nothing() -> None:
    """The program as it is, or a defect of the server."""


def word_first() -> None:
    """An agent is told that something is written before it is."""
    from chaos.agent import Agent
    from syncd import CheckpointService
    from syncd.checkpoint import Checkpoint
    from syncd.entry import uuid7

    def create(
        self: Agent, service: CheckpointService, task: str, said: dict[str, object]
    ) -> Checkpoint:
        name = uuid7()
        os.write(self._notes, f"{name} -\n".encode())
        time.sleep(PAUSE_SECONDS)
        return service.create_checkpoint(task, self._name, checkpoint_id=name,
                                         context_summary=said)  # fmt: skip

    Agent.create = create  # type: ignore[method-assign]


def torn_pull() -> None:
    """The cursor moves in one transaction, what it stands for comes in another."""
    from syncd import arrival, sync
    from syncd.exchange import Exchange

    whole = arrival.apply

    def apply(exchange: Exchange, page: Sequence[Any], keys: dict[str, bytes]) -> int:
        with exchange.store.transaction():
            for batch, cloud_seq in {e.row.batch: e.row.cloud_seq for e in page}.items():
                exchange.run("add_batch", cloud_seq, batch)
        time.sleep(4 * PAUSE_SECONDS)
        return whole(exchange, page, keys)

    # It would see the cursor before the numbers that it is about to take in.
    arrival._note_holes = lambda *_: None
    sync.apply = apply  # type: ignore[attr-defined]


def gives_up() -> None:
    """A daemon that has once failed to reach the replica does not try again."""
    from syncd.daemon.exchanger import Exchanger

    whole = Exchanger._attempt

    def attempt(self: Exchanger, wanted: set[str]) -> None:
        if not self.cloud.last_error:
            whole(self, wanted)

    Exchanger._attempt = attempt  # type: ignore[method-assign]


def stray() -> None:
    """A daemon leaves a process behind, whichever way it ends."""
    import subprocess

    if "run" in sys.argv:
        waits = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(waits, start_new_session=True)


PLANTS: dict[str, Callable[[], None]] = {
    "word-first": word_first,
    "torn-pull": torn_pull,
    "gives-up": gives_up,
    "stray": stray,
    "sequence-cursor": _nothing,
}

# --- at the server --------------------------------------------------------------------------------

_LOCKING = re.compile(
    r"SELECT o\.cloud_seq, o\.body_limit INTO STRICT last_seq, body_max.*?FOR UPDATE;", re.S
)
_COUNTING = re.compile(r"UPDATE syncd\.organizations o SET cloud_seq = last_seq", re.S)
# Numbers that follow each other within a batch, as an identity column gives them: taken before the
# commit, and in no order with it.
_TAKING = f"""
  SELECT o.body_limit INTO STRICT body_max FROM syncd.organizations o
  WHERE o.organization_id = organization;
  PERFORM pg_advisory_lock(1);
  last_seq := (SELECT max(nextval('syncd.numbers')) FROM generate_series(1, size)) - size;
  PERFORM pg_advisory_unlock(1);
  PERFORM pg_sleep(random() * {4 * PAUSE_SECONDS});
"""


def planted_at_server(name: str, sql: Callable[[str], list[tuple[Any, ...]]]) -> None:
    """The replica's own function, with its numbers from a sequence."""
    if name != "sequence-cursor":
        return
    [(definition,)] = sql(
        "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = 'push'"
        " AND pronamespace = 'syncd'::regnamespace"
    )
    changed, locks = _LOCKING.subn(_TAKING, definition)
    changed, counts = _COUNTING.subn(
        "UPDATE syncd.organizations o SET cloud_seq = greatest(o.cloud_seq, last_seq)", changed
    )
    if (locks, counts) != (1, 1):
        raise AssertionError("the replica's push has changed: plant this defect anew")
    sql("CREATE SEQUENCE syncd.numbers; GRANT USAGE ON syncd.numbers TO syncd_owner")
    sql(changed)


if __name__ == "__main__":
    from syncd.cli.app import main

    plant(sys.argv[1])
    sys.argv = ["syncd", *sys.argv[2:]]
    main()
