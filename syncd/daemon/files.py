"""The daemon's eye on files that agents write checkpoints into."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from syncd.daemon import logs
from syncd.errors import SyncdError
from syncd.node import Node

_AGAIN_SECONDS = 5.0
_WARNINGS = ("restored", "unreadable", "passed over")


class Files(threading.Thread):
    """One thread and one connection of its own, so that a large file holds up nobody."""

    def __init__(self, home: Path, paths: Sequence[str]) -> None:
        super().__init__(name="files", daemon=True)
        self.paths = tuple(paths)
        self._home = home
        self._roots = [Path(path).expanduser() for path in paths]
        self._stop_asked = threading.Event()

    def stop(self) -> None:
        self._stop_asked.set()

    def run(self) -> None:
        """What is not there yet is looked for again; one failure must not end the watch."""
        while not self._stop_asked.is_set():
            try:
                self._watch()
            except SyncdError as error:
                logs.warning("files are not watched", why=error.message)
            except Exception as error:  # noqa: BLE001 (a fault of ours must not end the watch)
                logs.warning("files are not watched", why=repr(error))
            self._stop_asked.wait(_AGAIN_SECONDS)

    def _watch(self) -> None:
        """Until it is stopped, the database was replaced, or a place came or went."""
        from syncd.watching import Event, Watcher

        def tell(event: Event) -> None:
            say = logs.warning if event.what in _WARNINGS else logs.info
            said = {name: value for name, value in event._asdict().items() if value}
            say(f"file {said.pop('what')}", **said)

        there = [root for root in self._roots if root.exists()]
        for missing in set(self._roots) - set(there):
            logs.debug("nothing to watch", path=str(missing))
        if not there:
            return
        with closing(Node(self._home)) as node:

            def moved() -> bool:
                return node.replaced() or there != [root for root in self._roots if root.exists()]

            Watcher(node, there).run(self._stop_asked, tell, moved)
