"""One machine's way to the server, that can be cut, slow, or silent for a while."""

from __future__ import annotations

import socket
import threading
import time

from syncd.demo.cable import Cable

_PIECE_BYTES = 600


class Line(Cable):
    def __init__(self, target: int) -> None:
        self._pause = 0.0
        self._audible = threading.Event()
        self._audible.set()
        super().__init__(target)

    def slow(self, pause: float) -> None:
        """From now on each small piece takes so many seconds."""
        self._pause = pause

    def silence(self) -> None:
        """Nothing arrives, and nobody is told: as if the packets got lost."""
        self._audible.clear()

    def mend(self) -> None:
        self._pause = 0.0
        self._audible.set()

    def deliver(self, data: bytes, end: socket.socket) -> None:
        rest = memoryview(data)
        while rest:
            self._audible.wait()
            size = _PIECE_BYTES if self._pause else len(rest)
            end.sendall(rest[:size])
            rest = rest[size:]
            time.sleep(self._pause)
