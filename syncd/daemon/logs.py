"""What the daemon says as it works: lines for people on a terminal, JSON in a file.

No secret gets in: passwords are known when a connection is made, and anything that looks like a
password in a DSN is struck out besides.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from syncd import clock

_FILE_BYTES, _FILES = 2_000_000, 5
_DSN_PASSWORD = re.compile(
    r"(://[^:/@\s]*:)[^@\s]+(@)|(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.I
)
_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_logger = logging.getLogger("syncd.daemon")
_secrets: set[str] = set()


def keep_secret(value: str) -> None:
    """Never write this, whatever message it comes in."""
    if value:
        _secrets.add(value)


def clean(text: str) -> str:
    for secret in _secrets:
        text = text.replace(secret, "***")
    return _DSN_PASSWORD.sub(r"\1\3***\2", text)


def say(level: int, event: str, **fields: Any) -> None:
    _logger.log(level, event, extra={"fields": fields})


def info(event: str, **fields: Any) -> None:
    say(logging.INFO, event, **fields)


def warning(event: str, **fields: Any) -> None:
    say(logging.WARNING, event, **fields)


def debug(event: str, **fields: Any) -> None:
    say(logging.DEBUG, event, **fields)


def file_of(home: Path) -> Path:
    return home / "log" / "daemon.log"


def begin(home: Path, *, verbose: bool, stderr: bool, colours: bool = False) -> None:
    """From now on: the file, and stderr if somebody may be reading there."""
    file = _File(
        file_of(home), maxBytes=_FILE_BYTES, backupCount=_FILES - 1, encoding="utf-8", delay=True
    )
    file.setFormatter(_Json())
    handlers: list[logging.Handler] = [file]
    if stderr:
        shown = logging.StreamHandler(sys.stderr)
        shown.setFormatter(_Text(colours=colours))
        handlers.append(shown)
    _logger.handlers = handlers
    _logger.propagate = False
    _logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    # A disk that cannot take a line is no reason to write of that at length elsewhere.
    logging.raiseExceptions = False
    # A job that is due while it still runs is no news; what fails in one is caught and told by us.
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)


def line(record: logging.LogRecord) -> dict[str, Any]:
    at = clock.iso(int(record.created * 1000))
    fields: dict[str, Any] = getattr(record, "fields", {})
    said = {"event": record.getMessage(), **fields}
    told = {n: v if isinstance(v, int | float | None) else clean(str(v)) for n, v in said.items()}
    return {"at": at, "level": record.levelname.lower(), **told}


class _File(RotatingFileHandler):
    """Goes on in a new file if somebody has removed the one it had, or its directory."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream and not Path(self.baseFilename).exists():
            self.stream.close()
            self.stream = None
        if self.stream is None:
            with suppress(OSError):  # a full disk: as with any other line
                Path(self.baseFilename).parent.mkdir(mode=0o700, exist_ok=True)
        super().emit(record)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(line(record), ensure_ascii=False, default=str)


class _Text(logging.Formatter):
    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        shown = as_text(line(record))
        colour = _COLOURS.get(record.levelname) if self._colours else None
        return f"{colour}{shown}\033[0m" if colour else shown


def as_text(said: dict[str, Any]) -> str:
    """One line of the log for people."""
    rest = {n: v for n, v in said.items() if n not in ("at", "level", "event")}
    fields = "".join(f"  {name}={value}" for name, value in rest.items())
    return f"{said.get('at', '')[11:23]} {said.get('level', ''):<7} {said.get('event', '')}{fields}"
