"""Pages that follow what happens: one thread watches the database for all windows that are open,
and says no more than that something has changed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing

from syncd.daemon.wake import changes
from syncd.errors import SyncdError
from syncd.node import Node

# So often a page is drawn anew at most, however fast agents write.
_PAUSE_SECONDS = 0.7
# So often a line is sent that says nothing, by which it shows that a window was closed.
_BREATH_SECONDS = 15.0


class Live:
    """Counts changes. Windows wait for the next number."""

    def __init__(self, opened: Callable[[], Node]) -> None:
        self._opened = opened
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self.number = 0

    def begin(self) -> None:
        """Called in the loop that serves the windows."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        self._ended = True
        self._ring()

    def tell(self) -> None:
        """From any thread: something is to be seen that was not before."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _watch(self) -> None:
        news = False
        while not self._ended:
            try:
                with closing(self._opened()) as node:
                    for _ in changes(node):
                        if self._ended:
                            return
                        if news:
                            self.tell()
                        news = True
                        time.sleep(_PAUSE_SECONDS)
            except SyncdError:  # the pages say what is wrong; it may pass
                time.sleep(_PAUSE_SECONDS)

    async def events(self) -> AsyncIterator[bytes]:
        """For one window, until it is closed."""
        yield b"retry: 2000\n\n"
        while not self._ended:
            seen, event = self.number, self._changed
            try:
                await asyncio.wait_for(event.wait(), _BREATH_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if self.number != seen and not self._ended:
                yield f"data: {self.number}\n\n".encode()
                await asyncio.sleep(_PAUSE_SECONDS)
