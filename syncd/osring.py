"""The system's keyring, where there is one that protects what it keeps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

_SERVICE = "syncd"


def _keyring() -> KeyringBackend | None:
    """A keyring that protects what it keeps, or one that the user has named himself."""
    import keyring

    backend = keyring.get_keyring()
    named = "PYTHON_KEYRING_BACKEND" in os.environ
    return backend if named or backend.priority >= 1 else None


def works() -> bool:
    """Whether it keeps what it is given."""
    done = took("test", "test")
    dropped("test")
    return done


def took(account: str, password: str) -> bool:
    from keyring.errors import KeyringError

    backend = _keyring()
    if backend is None:
        return False
    try:
        backend.set_password(_SERVICE, account, password)
        return backend.get_password(_SERVICE, account) == password
    except (KeyringError, OSError, RuntimeError):
        return False


def kept(account: str) -> str:
    from keyring.errors import KeyringError

    backend = _keyring()
    try:
        return (backend.get_password(_SERVICE, account) or "") if backend else ""
    except (KeyringError, OSError, RuntimeError):
        return ""


def dropped(account: str) -> None:
    from keyring.errors import KeyringError

    backend = _keyring()
    try:
        if backend is not None:
            backend.delete_password(_SERVICE, account)
    except (KeyringError, OSError, RuntimeError):
        return
