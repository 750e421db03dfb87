"""Whom the embedded PostgreSQL runs as: us, or a system user of its own, as it refuses root."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
from pathlib import Path

from syncd.errors import EmbeddedError

_SYSTEM_USER = "syncd-postgres"
# What programs that change accounts lock; only root opens it.
_ACCOUNTS_LOCK = Path("/etc/.pwd.lock")


def is_root() -> bool:
    return os.geteuid() == 0


def server_user() -> pwd.struct_passwd | None:
    """None: us."""
    if not is_root():
        return None
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        return _added_user()


def _added_user() -> pwd.struct_passwd:
    problem = _add_user()
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        raise EmbeddedError(
            f"PostgreSQL refuses to run as root, and no user could be made for it: {problem}",
            f"Run the command as an ordinary user, or create the system user {_SYSTEM_USER}.",
        ) from None


def _add_user() -> str:
    """What useradd says, if anything. It looks for the name before it waits for its lock: of two
    at once both add it, and the second takes away the number that the first has given."""
    words = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
    try:
        with open(_ACCOUNTS_LOCK, "a", opener=_private) as alone:
            # Another kind of lock than that of useradd, which else would wait for us.
            fcntl.flock(alone, fcntl.LOCK_EX)
            added = subprocess.run(
                ["useradd", *words, _SYSTEM_USER], capture_output=True, text=True, check=False
            )
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return added.stderr.strip()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
