"""One run of an agent's command: fed, watched, and ended with all that it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

TAIL_BYTES = 64_000
_GRACE_SECONDS = 5.0
_TICK_SECONDS = 1.0
# What a command that has ended left in the pipe comes at once; what it left running may keep the
# pipe open for ever.
_REST_SECONDS = 0.2
_CHUNK = 65_536


class Ran(NamedTuple):
    """How it ended. A negative code is the signal that ended it."""

    exit_code: int
    seconds: float
    timed_out: bool
    tail: str


class Command(NamedTuple):
    """What is run, and what it is told."""

    words: Sequence[str]
    prompt: bytes
    environment: dict[str, str]
    folder: Path


def run(
    command: Command, seconds: float, show: Callable[[bytes], None], tick: Callable[[], None]
) -> Ran:
    """Run it to its end, or to the end of its time. `show` gets what it says as it says it, `tick`
    is called each second. Whatever interrupts this ends the command too."""
    began = time.monotonic()
    process = subprocess.Popen(
        command.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=command.environment, cwd=command.folder, start_new_session=True,
    )  # fmt: skip
    talk = _Talk(process, command.prompt, show)
    try:
        timed_out = not talk.until_it_ends(began + seconds, tick)
        if timed_out:
            end(process)
        talk.rest()
    except BaseException:
        end(process)
        raise
    finally:
        talk.close()
    return Ran(process.returncode, time.monotonic() - began, timed_out, talk.tail())


def end(process: subprocess.Popen[bytes]) -> None:
    """It and everything in its group: first asked, then made to."""
    _signal(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class _Talk:
    """Its input and its output, neither of which may hold up the other."""

    def __init__(
        self, process: subprocess.Popen[bytes], prompt: bytes, show: Callable[[bytes], None]
    ) -> None:
        assert process.stdin
        assert process.stdout
        self._process = process
        self._stdin: BinaryIO = process.stdin  # type: ignore[assignment]
        self._stdout: BinaryIO = process.stdout  # type: ignore[assignment]
        self._left = memoryview(prompt)
        self._show = show
        self._said = bytearray()
        self._selector = selectors.DefaultSelector()
        for stream in (self._stdin, self._stdout):
            os.set_blocking(stream.fileno(), False)
        self._selector.register(self._stdout, selectors.EVENT_READ)
        if prompt:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        else:
            self._stdin.close()

    def until_it_ends(self, deadline: float, tick: Callable[[], None]) -> bool:
        """False if its time is up."""
        next_tick = time.monotonic()
        while self._process.poll() is None:
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= next_tick:
                tick()
                next_tick = now + _TICK_SECONDS
            self._move(min(0.05, deadline - now))
        return True

    def rest(self) -> None:
        """What is still in the pipe."""
        until = time.monotonic() + _REST_SECONDS
        while self._selector.get_map() and time.monotonic() < until:
            if self._move(0.02):
                until = time.monotonic() + _REST_SECONDS

    def _move(self, seconds: float) -> bool:
        """Whether anything came or went."""
        if not self._selector.get_map():  # it has closed both, and goes on
            time.sleep(seconds)
            return False
        moved = False
        for key, _ in self._selector.select(seconds):
            moved = (self._feed() if key.fileobj is self._stdin else self._hear()) or moved
        return moved

    def _feed(self) -> bool:
        try:
            self._left = self._left[os.write(self._stdin.fileno(), self._left[:_CHUNK]) :]
        except (BrokenPipeError, OSError):  # it does not read what it is given
            self._left = memoryview(b"")
        if not self._left:
            self._selector.unregister(self._stdin)
            self._stdin.close()
        return True

    def _hear(self) -> bool:
        data = os.read(self._stdout.fileno(), _CHUNK)
        if not data:
            self._selector.unregister(self._stdout)
            return False
        self._show(data)
        self._said += data
        del self._said[:-TAIL_BYTES]
        return True

    def tail(self) -> str:
        return self._said.decode("utf-8", "replace")

    def close(self) -> None:
        self._selector.close()
        for stream in (self._stdin, self._stdout):
            with suppress(OSError):
                stream.close()
