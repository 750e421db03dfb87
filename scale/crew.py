"""Processes that do what they are asked, all at the same time: Python's threads share a core."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

# What was opened before the fork (sockets, locks) must not be in two processes.
_PROCESSES = multiprocessing.get_context("spawn")


class Hand:
    """One process with one object in it, whose methods are called from here."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._line, theirs = _PROCESSES.Pipe()
        self.process = _PROCESSES.Process(target=_obey, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> None:
        self._line.send((method, arguments))

    def answer(self) -> Any:
        done, found = self._line.recv()
        if not done:
            raise AssertionError(f"a process of the fleet failed: {found}")
        return found

    def close(self) -> None:
        self._line.close()
        self.process.join(10)
        if self.process.is_alive():
            self.process.terminate()


def _obey(line: Connection, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Until whoever asks is gone."""
    made = make(*arguments)
    while True:
        try:
            method, values = line.recv()
        except EOFError:
            return
        try:
            line.send((True, getattr(made, method)(*values)))
        except Exception:  # noqa: BLE001 (told to whoever asked)
            line.send((False, traceback.format_exc()))


def all_do(hands: Sequence[Hand], method: str, *arguments: Any) -> list[Any]:
    """At the same time; their answers in order."""
    for hand in hands:
        hand.ask(method, *arguments)
    return [hand.answer() for hand in hands]


@contextmanager
def crew(makers: Sequence[tuple[Callable[..., Any], Sequence[Any]]]) -> Iterator[list[Hand]]:
    hands = [Hand(make, *arguments) for make, arguments in makers]
    try:
        yield hands
    finally:
        for hand in hands:
            hand.close()
