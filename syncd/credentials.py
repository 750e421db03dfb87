"""This machine's login to the replica: where it is kept, and how it is put together again.

The DSN goes to config.toml without its password; the password goes to the system's keyring where
there is one, else to a file that only the user can read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from syncd.config import Settings
from syncd.errors import ConfigError, UnconfiguredError
from syncd.seal import publish_once

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend
    from tomlkit import TOMLDocument

_SERVICE = "syncd"


def dsn(home: Path, settings: Settings) -> str:
    """The DSN to connect with, password included unless libpq finds one itself."""
    from syncd.replica.link import with_password, without_password

    bare = settings["cloud.dsn"]
    if not bare:
        raise UnconfiguredError("no replica is configured: this home is local only")
    if without_password(bare)[1]:
        return str(bare)
    return with_password(bare, _password(home, bare))


def keep(home: Path, given: str) -> str:
    """Make a DSN this home's login; where its password is kept."""
    from syncd.replica.link import without_password

    bare, password = without_password(given)
    forget(home)
    place = ""
    if password:
        place = (
            "the keyring"
            if _keyring_took(_account(home, bare), password)
            else _file_took(home, password)
        )
    _set_dsn(home / "config.toml", bare)
    return place


def forget(home: Path) -> None:
    """Remove the login from this home."""
    if kept := _kept(home):
        _keyring_dropped(_account(home, kept))
    _file(home).unlink(missing_ok=True)
    _set_dsn(home / "config.toml", "")


def _kept(home: Path) -> str:
    """The DSN of `login`, whatever the environment says."""
    table = _document(home / "config.toml").get("cloud", {})
    return str(table.get("dsn", ""))


def _document(file: Path) -> TOMLDocument:
    import tomlkit

    return tomlkit.parse(file.read_text(encoding="utf-8") if file.exists() else "")


def _password(home: Path, bare: str) -> str:
    """What was kept for this login, never for another one that the environment names."""
    file = _file(home)
    if file.exists() and bare == _kept(home):
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return _keyring_password(_account(home, bare))


def _file(home: Path) -> Path:
    return home / "keys" / "cloud.password"


def _file_took(home: Path, password: str) -> str:
    file = _file(home)
    publish_once(file, password.encode())
    return str(file)


def _set_dsn(file: Path, bare: str) -> None:
    """Change one setting and leave the user's file as it is otherwise."""
    import tomlkit

    if not bare and not file.exists():
        return
    document = _document(file)
    table = document.setdefault("cloud", tomlkit.table())
    if bare:
        table["dsn"] = bare
    else:
        table.pop("dsn", None)
        if not table:
            document.pop("cloud")
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    draft.write_text(tomlkit.dumps(document), encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(file)


# --- the system's keyring -----------------------------------------------------------------------


def _account(home: Path, bare: str) -> str:
    """Two homes may have the same login, and each forgets its own."""
    return f"{bare} in {home}"


def _keyring() -> KeyringBackend | None:
    """A keyring that protects what it keeps, or one that the user has named himself."""
    import keyring

    backend = keyring.get_keyring()
    named = "PYTHON_KEYRING_BACKEND" in os.environ
    return backend if named or backend.priority >= 1 else None


def _keyring_took(account: str, password: str) -> bool:
    from keyring.errors import KeyringError

    backend = _keyring()
    if backend is None:
        return False
    try:
        backend.set_password(_SERVICE, account, password)
        return backend.get_password(_SERVICE, account) == password
    except (KeyringError, OSError, RuntimeError):
        return False


def _keyring_password(account: str) -> str:
    from keyring.errors import KeyringError

    backend = _keyring()
    try:
        return (backend.get_password(_SERVICE, account) or "") if backend else ""
    except (KeyringError, OSError, RuntimeError):
        return ""


def _keyring_dropped(account: str) -> None:
    from keyring.errors import KeyringError

    backend = _keyring()
    try:
        if backend is not None:
            backend.delete_password(_SERVICE, account)
    except (KeyringError, OSError, RuntimeError):
        return
