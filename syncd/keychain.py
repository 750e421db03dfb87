"""The data keys of a home: one that seals bodies on this disk, those that an organization shares.

They lie in `keys/data.json`, each sealed by a master key. That one is in the system's keyring, in a
file of mode 0600 where there is no keyring, or follows from a passphrase and is kept nowhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd import clock, osring
from syncd.entry import uuid7
from syncd.errors import KeyMissingError
from syncd.sql import exclusive

AT_REST, END_TO_END = "at_rest", "end_to_end"
KEYRING, FILE, PASSPHRASE = "keyring", "file", "passphrase"
_VERSION = 1
_FIELDS = {"kept", "salt", "keys", "current"}
_BYTES, _NONCE = 32, 12
# scrypt with these takes some 50 ms and 32 MB: bearable once per command, not in billions.
_SCRYPT = {"n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": _BYTES}
_EXPORT = "syncd-key-1"


class DataKey(NamedTuple):
    """A key that bodies are sealed with. Its id follows from it, and tells nothing of it."""

    id: str
    use: str
    made_at: str
    secret: bytes

    @classmethod
    def of(cls, secret: bytes, use: str, made_at: str = "") -> DataKey:
        name = derived(secret, b"syncd key id 1")[:8].hex()
        return cls(name, use, made_at or clock.iso(clock.wall_ms()), secret)


def derived(secret: bytes, purpose: bytes) -> bytes:
    """A key is used for one purpose only."""
    return hmac.digest(secret, purpose, "sha256")


class Keychain:
    """Reads its file when a key is asked for; several processes may add keys."""

    def __init__(self, home: Path, passphrase: Callable[[bool], str]) -> None:
        """`passphrase` tells it, if there is one; with True it may ask somebody."""
        self._home = home
        self._file = home / "keys" / "data.json"
        self._passphrase = passphrase
        self._read: tuple[int, ...] = ()
        self._keys: dict[str, DataKey] = {}

    # --- reading ------------------------------------------------------------------------------

    def get(self, key_id: str) -> DataKey | None:
        """None if it is not here; raises if it is and cannot be opened."""
        if key_id not in self._keys and self._signature() != self._read:
            self.load()
        return self._keys.get(key_id)

    def current(self, use: str) -> DataKey:
        """The key that is used now; the first one is made when it is needed."""
        key_id = self.document()["current"].get(use)
        if key_id is None:
            with self._changing():
                key_id = self.document()["current"].get(use)
                if key_id is None:
                    return self._add(DataKey.of(os.urandom(_BYTES), use))
        key = self.get(key_id)
        if key is None:
            raise KeyMissingError(f"{self._file} names {key_id} as current, and does not have it")
        return key

    def check(self, sealed_here: Callable[[], bool]) -> None:
        """Raises if there were keys and their file is gone: new ones would be taken for them."""
        if not self._file.exists() and sealed_here():
            raise KeyMissingError(
                f"{self._file} is gone, and with it the keys of what is sealed here", _PUT_BACK
            )

    def look(self) -> None:
        """Raises if the keys cannot be opened with what lies in the home. Whether a passphrase or a
        keyring fits shows when it is used."""
        document = self.document()
        if document["keys"] and document["kept"] == FILE:
            self._master(document)

    def document(self) -> dict[str, Any]:
        """What is known without opening anything: ids, uses, where the master key is."""
        if not self._file.exists():
            return {"version": _VERSION, "kept": "", "salt": "", "keys": {}, "current": {}}
        try:
            found = orjson.loads(self._file.read_bytes())
            known = found["version"] == _VERSION and set(found) >= _FIELDS
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KeyMissingError(f"{self._file} cannot be read: {error}") from None
        if not known:
            raise KeyMissingError(f"{self._file} is of a kind that this syncd does not know")
        return dict(found)

    def load(self) -> None:
        """Raises if there are keys that cannot be opened."""
        signature, document = self._signature(), self.document()
        if document["keys"]:
            master = self._master(document)
            self._keys = {name: _unwrapped(master, name, kept, document["kept"])
                          for name, kept in document["keys"].items()}  # fmt: skip
        self._read = signature

    def _signature(self) -> tuple[int, ...]:
        try:
            found = self._file.stat()
        except OSError:
            return (0,)
        return found.st_ino, found.st_mtime_ns, found.st_size

    # --- changing -----------------------------------------------------------------------------

    def add(self, key: DataKey) -> None:
        """Have another key, and use it from now on."""
        with self._changing():
            self._add(key)

    def another(self, use: str) -> DataKey:
        """A new key, used from now on; the old ones stay, to read with."""
        with self._changing():
            return self._add(DataKey.of(os.urandom(_BYTES), use))

    def rewrap(self, kept: str = "", passphrase: str = "") -> str:
        """Seal the keys with a new master key, perhaps kept elsewhere; where that is."""
        with self._changing():
            before = self.document()
            keys = [self.get(name) for name in before["keys"]]
            kept = kept or before["kept"]
            if kept == PASSPHRASE and not passphrase:
                passphrase = self._passphrase(True)
            document = {**before, "kept": kept, "salt": os.urandom(16).hex()}
            # The next master key is kept before anything needs it, the old one until nothing does.
            master = self._new_master(document, passphrase)
            document["keys"] = {key.id: _wrapped(master, key) for key in keys if key}
            self._write(document)
            self._forget_master(before)
            return str(kept)

    def _changing(self) -> Any:
        return exclusive(self._home / "run" / "keys.lock")

    def _add(self, key: DataKey) -> DataKey:
        document = self.document()
        if not document["kept"]:
            document |= {"kept": self._place(), "salt": os.urandom(16).hex()}
            passphrase = self._passphrase(False)
            master = self._new_master(document, passphrase)
        else:
            master = self._master(document)
        document["keys"].setdefault(key.id, _wrapped(master, key))
        document["current"][key.use] = key.id
        self._write(document)
        self._keys[key.id] = key
        return key

    def _write(self, document: dict[str, Any]) -> None:
        draft = self._file.with_name(f"{self._file.name}.{uuid7()}.new")
        written(draft, orjson.dumps(document, option=orjson.OPT_INDENT_2))
        draft.replace(self._file)
        synced(self._file.parent)
        self._read = ()

    # --- the master key -----------------------------------------------------------------------

    def _place(self) -> str:
        """Where a first master key is kept."""
        if self._passphrase(False):
            return PASSPHRASE
        return KEYRING if osring.works() else FILE

    def _account(self, salt: str) -> str:
        return f"data keys of {self._home} {salt[:8]}"

    def _master_file(self, salt: str) -> Path:
        return self._home / "keys" / f"master-{salt[:8]}.key"

    def _new_master(self, document: dict[str, Any], passphrase: str) -> bytes:
        kept, salt = document["kept"], document["salt"]
        if kept == PASSPHRASE:
            return _from_passphrase(passphrase, salt)
        master = os.urandom(_BYTES)
        if kept == KEYRING:
            if not osring.took(self._account(salt), master.hex()):
                raise KeyMissingError("the system's keyring did not take the master key")
        else:
            written(self._master_file(salt), master.hex().encode())
        return master

    def _master(self, document: dict[str, Any]) -> bytes:
        kept, salt = document["kept"], document["salt"]
        if kept == PASSPHRASE:
            if not (passphrase := self._passphrase(True)):
                raise KeyMissingError(
                    "the data keys need their passphrase",
                    "Set SYNCD_KEYS_PASSPHRASE, or keys.passphrase_file to a file that has it.",
                )
            return _from_passphrase(passphrase, salt)
        if kept == KEYRING:
            text = osring.kept(self._account(salt))
        else:
            text = _content(self._master_file(salt))
        try:
            master = bytes.fromhex(text)
        except ValueError:
            master = b""
        if len(master) != _BYTES:
            raise KeyMissingError(
                f"the master key of the data keys is not in {self._told(document)}",
                "Unlock the keyring or restore the file, or import the keys again: "
                "`syncd keys import`.",
            )
        return master

    def _told(self, document: dict[str, Any]) -> str:
        if document["kept"] == KEYRING:
            return f"the system's keyring (service syncd, {self._account(document['salt'])})"
        return str(self._master_file(document["salt"]))

    def _forget_master(self, document: dict[str, Any]) -> None:
        if document["kept"] == KEYRING:
            osring.dropped(self._account(document["salt"]))
        elif document["kept"] == FILE:
            self._master_file(document["salt"]).unlink(missing_ok=True)


# --- carrying a key to another machine ----------------------------------------------------------


def exported(key: DataKey) -> str:
    """One line; whoever has it can read everything that is sealed with the key."""
    check = hashlib.sha256(key.secret).hexdigest()[:8]
    return f"{_EXPORT}:{key.id}:{key.secret.hex()}:{check}"


def imported(text: str) -> DataKey:
    word, _, rest = text.strip().partition(":")
    try:
        name, secret, check = rest.split(":")
        key = DataKey.of(bytes.fromhex(secret), END_TO_END)
    except ValueError:
        raise KeyMissingError(_NO_KEY, _AS_EXPORTED) from None
    whole = hashlib.sha256(key.secret).hexdigest()[:8] == check
    if word != _EXPORT or key.id != name or not whole or len(key.secret) != _BYTES:
        raise KeyMissingError(_NO_KEY, _AS_EXPORTED)
    return key


_PUT_BACK = (
    "Put it back from a copy of the home, or `syncd keys import` what another machine exported. If "
    "both are gone, `syncd keys encrypt` makes new keys, and what was sealed stays closed."
)
_NO_KEY = "this is no exported key, or not all of it"
_AS_EXPORTED = "Give the line that `syncd keys export` wrote, whole."


# --- sealing keys -------------------------------------------------------------------------------


def _wrapped(master: bytes, key: DataKey) -> dict[str, str]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(_NONCE)
    sealed = nonce + AESGCM(master).encrypt(nonce, key.secret, f"{key.id} {key.use}".encode())
    return {"use": key.use, "made_at": key.made_at, "sealed": sealed.hex()}


def _unwrapped(master: bytes, name: str, kept: dict[str, str], place: str) -> DataKey:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        sealed, use = bytes.fromhex(kept["sealed"]), kept["use"]
        secret = AESGCM(master).decrypt(sealed[:_NONCE], sealed[_NONCE:], f"{name} {use}".encode())
    except (InvalidTag, KeyError, TypeError, ValueError):
        if place == PASSPHRASE:
            raise KeyMissingError("this is not the passphrase of the data keys", _RIGHT) from None
        raise KeyMissingError(f"key {name} cannot be opened with the master key") from None
    return DataKey(name, use, kept["made_at"], secret)


_RIGHT = "Correct SYNCD_KEYS_PASSPHRASE or the file that keys.passphrase_file names."


# Asked for with each entry, as long as the passphrase is not the right one.
@lru_cache(maxsize=1)
def _from_passphrase(passphrase: str, salt: str) -> bytes:
    return hashlib.scrypt(passphrase.encode(), salt=bytes.fromhex(salt), **_SCRYPT)


def _content(file: Path) -> str:
    """Empty, if it cannot be read."""
    try:
        return file.read_text("ascii")
    except (OSError, ValueError):
        return ""


def written(path: Path, content: bytes) -> None:
    """On disk when this returns, for its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def synced(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
