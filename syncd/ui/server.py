"""The server: loopback only, until Ctrl-C."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from syncd.errors import SyncdError
from syncd.node import Node
from syncd.ui.app import application
from syncd.ui.desk import Desk
from syncd.ui.gate import ENTRANCE, Secrets

HOST = "127.0.0.1"
_GRACE_SECONDS = 1


class Server(uvicorn.Server):
    """Ends at a signal, without raising it again: Ctrl-C is how it is meant to end."""

    desk: Desk

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.should_exit = True
        self.desk.live.end()


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Site:
    """A place to listen at, and the link to it."""

    def __init__(self, node: Node, port: int = 0) -> None:
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self._keys = Secrets(self.port)
        self._node = node
        self.link = f"http://{HOST}:{self.port}{ENTRANCE}?token={self._keys.token}"

    def serve(self) -> None:
        """Until a signal comes."""
        _log_to(self._node.home / "log" / "crash.log")
        desk = Desk(self._node)
        config = uvicorn.Config(
            application(desk, self._keys), log_config=None, log_level="critical", access_log=False,
            server_header=False, timeout_graceful_shutdown=_GRACE_SECONDS, ws="none",
        )  # fmt: skip
        server = Server(config)
        server.desk = desk
        with self._socket:
            server.run(sockets=[self._socket])


def _listening(port: int) -> socket.socket:
    # The protocol is named: only then asyncio sends each answer at once (TCP_NODELAY).
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
    except OSError as error:
        opened.close()
        raise SyncdError(
            f"port {port} of this machine cannot be used: {error.strerror}",
            "Leave out --port: then a free one is taken.",
        ) from None
    opened.listen(128)
    return opened


def _log_to(file: Path) -> None:
    """What goes wrong inside goes to the home's own file."""
    for name in ("syncd.ui", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [logging.FileHandler(file, encoding="utf-8", delay=True)]
        logger.propagate = False
