"""What the pages work with: one home, opened once for them, and what is worked out beside them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

from syncd import audit, clock, tasks, threads
from syncd.errors import SyncdError
from syncd.node import Node
from syncd.service import CheckpointService
from syncd.status import status
from syncd.store import Store
from syncd.ui.fleet import Fleet, asked
from syncd.ui.kept import Found, Kept
from syncd.ui.live import Live

# The daemon and the disk change without a trace in the database.
_STATUS_SECONDS = 5.0
_FLEET_SECONDS = 15.0
Days = dict[str, tuple[int, int]]
T = TypeVar("T")


class Sums(NamedTuple):
    """Checkpoints and tokens by day, for each task and for each agent; of the threads of graphs,
    how many states each has, and when the last one was put."""

    tasks: dict[str, Days]
    agents: dict[str, Days]
    threads: dict[str, tuple[int, str]]


class Check(NamedTuple):
    """The last complete audit that was asked for here."""

    running: bool = False
    at: str = ""
    entries: int = 0
    signed: int = 0
    problems: int = 0
    failed: str = ""


class Desk:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.service = CheckpointService(node=node)
        self.live = Live(self._another)
        self._status: Kept[dict[str, Any]] = Kept(
            lambda: self._beside(status), self.live.tell, _STATUS_SECONDS
        )
        self._sums: Kept[Sums] = Kept(lambda: self._beside(_added_up), self.live.tell)
        self._fleet: Kept[Fleet] = Kept(lambda: asked(node), self.live.tell, _FLEET_SECONDS)
        self._renewing = threading.Lock()
        self._titles: dict[str, tuple[str, str]] = {}
        self._checking = threading.Lock()
        self.check = Check()

    def _another(self) -> Node:
        node = Node(self.node.home)
        node.ask_passphrase = self.node.ask_passphrase
        return node

    def _beside(self, work: Callable[[Node], T]) -> T:
        """With a connection of its own: a long read keeps nobody waiting."""
        with closing(self._another()) as node:
            return work(node)

    def renew(self) -> None:
        """Somebody may have put another database in its place, from a backup."""
        with self._renewing:
            if self.node.replaced():
                self.node.close()
                self.service = CheckpointService(node=self.node)

    @property
    def store(self) -> Store:
        return self.node.store

    def status(self) -> Found[dict[str, Any]]:
        """Asked anew after every change, whether others or the pages have made it."""
        store = self.store
        return self._status.get((store.row("data_version"), store.connection.total_changes))

    def sums(self) -> Found[Sums]:
        return self._sums.get(self.store.row("newest"))

    def fleet(self) -> Found[Fleet]:
        return self._fleet.get(None)

    def title(self, task_id: str, revision: str) -> str:
        """What a task is called; nothing if nobody said so, or it cannot be read."""
        known = self._titles.get(task_id)
        if known is None or known[0] != revision:
            known = self._titles[task_id] = (revision, self._read_title(task_id, revision))
        return known[1]

    def _read_title(self, task_id: str, revision: str) -> str:
        if not revision:
            return ""
        try:
            return str(tasks.described(self.node, task_id).get("title", ""))
        except SyncdError:
            return ""

    # --- the audit ------------------------------------------------------------------------------

    def verify(self) -> None:
        """Look at everything, beside the pages; once at a time."""
        if not self._checking.acquire(blocking=False):
            return
        self.check = self.check._replace(running=True)
        threading.Thread(target=self._verified, daemon=True).start()

    def _verified(self) -> None:
        node = self._another()
        try:
            found = audit.verify(node.store, node.key.public())
            if found.closed:
                raise found.closed.why
            at = clock.iso(clock.wall_ms())
            self.check = Check(False, at, found.entries, found.signed, len(found.problems))
        except SyncdError as error:
            self.check = Check(failed=error.message)
        finally:
            node.close()
            self._checking.release()
            self.live.tell()


def _added_up(node: Node) -> Sums:
    rows = node.store.rows
    by_task, by_agent = _by_day(rows("cost_by_task")), _by_day(rows("cost_by_agent"))
    return Sums(by_task, by_agent, threads.counted_all(node))


def _by_day(rows: list[tuple[Any, ...]]) -> dict[str, Days]:
    found: dict[str, Days] = defaultdict(dict)
    for name, day, number, tokens in rows:
        found[str(name)][str(day)] = (int(number), int(tokens or 0))
    return dict(found)
