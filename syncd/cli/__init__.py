"""The command line: one thin function per verb, imported only when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """A host's hook runs at every use of a tool: it goes straight there, without click."""
    if "hook" in sys.argv[1:4]:
        from syncd.hooks.main import called, run

        if call := called(sys.argv[1:]):
            sys.exit(run(call))
    from syncd.cli.app import main as click_main

    click_main()


__all__ = ["main"]
