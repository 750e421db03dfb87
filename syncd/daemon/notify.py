"""What systemd wants to hear from a service: ready, alive, what it is doing."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_PATIENCE_SECONDS = 1.0


class Notifier:
    """Silent where nobody listens."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""

    @property
    def watchdog_seconds(self) -> float:
        """How often to say that we are alive: three times as often as is asked for."""
        with suppress(ValueError):
            owner = int(os.environ.get("WATCHDOG_PID", os.getpid()))
            if owner == os.getpid():
                return int(os.environ.get("WATCHDOG_USEC", "0")) / 3_000_000
        return 0.0

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        text = " ".join(text.split())
        if text != self._status and self._send(f"STATUS={text}"):
            self._status = text

    def _send(self, line: str) -> bool:
        """Whether it was sent: a manager that does not listen any more must neither end the service
        nor hold it up."""
        if not self._address:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(_PATIENCE_SECONDS)  # else it waits for room among what nobody reads
            out.sendto(line.encode(), self._address)
            return True
        return False
