"""The command line: one thin function per verb, imported only when it is called."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = (
    '{"error": {"code": "interrupted", "message": "interrupted",'
    ' "remedy": "Run it again.", "data_safe": true}}\n'
)


def main() -> None:
    """Ctrl-C while modules are still imported is no reason for a traceback either."""
    try:
        _main()
    except KeyboardInterrupt:
        sys.stderr.write(_INTERRUPTED if "--json" in sys.argv else "Interrupted.\n")
        sys.stderr.flush()
        os._exit(130)


def _main() -> None:
    """A host's hook runs at every use of a tool: it goes straight there, without click."""
    _open_all()
    if "hook" in sys.argv[1:4]:
        from syncd.hooks.main import called, run

        if call := called(sys.argv[1:]):
            sys.exit(run(call))
    from syncd.cli.app import main as click_main

    click_main()


def _open_all() -> None:
    """What was closed leads nowhere: else a file of ours would get its number, and what a child
    process prints."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if number else "r", encoding="utf-8")  # noqa: SIM115, PTH123
            os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)


__all__ = ["main"]
