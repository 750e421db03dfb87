"""The command line: one thin function per verb, imported only when it is called."""

from __future__ import annotations

from syncd.cli.app import main

__all__ = ["main"]
