"""One machine's network: a way to the server that can be pulled out and plugged in again."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from syncd import cluster


class Cable:
    def __init__(self, target: int) -> None:
        self.port = cluster.free_port()
        self._target = target
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._ends: list[socket.socket] = []
        self.plug()

    def plug(self) -> None:
        listener = socket.create_server((cluster.HOST, self.port))
        with self._lock:
            self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def pull(self) -> None:
        """Connections break, new ones are refused."""
        with self._lock:
            listener, self._listener = self._listener, None
            ends, self._ends = self._ends, []
        for end in (*ends, *([listener] if listener else [])):
            _hang_up(end)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                self._connect(listener, near)

    def _connect(self, listener: socket.socket, near: socket.socket) -> None:
        try:
            far = socket.create_connection((cluster.HOST, self._target))
        except OSError:  # the server is down: the next one who calls may find it again
            _hang_up(near)
            return
        with self._lock:
            plugged = listener is self._listener
            if plugged:
                self._ends += [near, far]
        if not plugged:
            _hang_up(near)
            _hang_up(far)
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                self.deliver(data, other)
        _hang_up(one)
        _hang_up(other)

    def deliver(self, data: bytes, end: socket.socket) -> None:
        """At once; a worse line would take its time."""
        end.sendall(data)


def _hang_up(end: socket.socket) -> None:
    """Closing alone would not wake the thread that waits on it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
