"""This machine's login to the replica: where it is kept, and how it is put together again.

The DSN goes to config.toml without its password; the password goes to the system's keyring where
there is one, else to a file that only the user can read.
"""

from __future__ import annotations

from pathlib import Path

from syncd import config, osring
from syncd.config import Settings
from syncd.errors import ConfigError, UnconfiguredError
from syncd.seal import publish_once


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
            if osring.took(_account(home, bare), password)
            else _file_took(home, password)
        )
    config.put(home / "config.toml", "cloud.dsn", bare)
    return place


def forget(home: Path) -> None:
    """Remove the login from this home."""
    if kept := _kept(home):
        osring.dropped(_account(home, kept))
    _file(home).unlink(missing_ok=True)
    config.put(home / "config.toml", "cloud.dsn", None)


def _kept(home: Path) -> str:
    """The DSN of `login`, whatever the environment says."""
    table = config.document(home / "config.toml").get("cloud", {})
    return str(table.get("dsn", ""))


def _password(home: Path, bare: str) -> str:
    """What was kept for this login, never for another one that the environment names."""
    file = _file(home)
    if file.exists() and bare == _kept(home):
        try:
            return file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return osring.kept(_account(home, bare))


def _file(home: Path) -> Path:
    return home / "keys" / "cloud.password"


def _file_took(home: Path, password: str) -> str:
    file = _file(home)
    publish_once(file, password.encode())
    return str(file)


def _account(home: Path, bare: str) -> str:
    """Two homes may have the same login, and each forgets its own."""
    return f"{bare} in {home}"
