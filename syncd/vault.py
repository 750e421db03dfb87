"""Bodies sealed: `at_rest` for this home alone, `end_to_end` for all who have the shared key.

A sealed body begins with a byte that no plain one begins with. Sealing is the last step before the
database and opening the first one after it: in between, a body is plain wherever its key is here.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from syncd.entry import Entry
from syncd.errors import KeyMissingError
from syncd.keychain import AT_REST, END_TO_END, DataKey, Keychain, derived
from syncd.seal import DAMAGED, SEALED, digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONE = "none"
_ID, _NONCE = 8, 12
_START = len(SEALED) + _ID + _NONCE


class Vault:
    """What a store seals and opens bodies with."""

    def __init__(
        self,
        keychain: Keychain | None = None,
        mode: str = NONE,
        sealed_here: Callable[[], bool] = bool,
    ) -> None:
        """`sealed_here` tells whether this home has sealed anything yet; `locked`, later, why keys
        that are here cannot be used."""
        self.mode = mode
        self._keychain = keychain
        self._sealed_here = sealed_here
        self._ciphers: dict[str, _Cipher] = {}
        self._current: dict[str, _Cipher] = {}
        self.locked: KeyMissingError | None = None

    # --- sealing ------------------------------------------------------------------------------

    def sealed(self, entry_id: str, body: bytes) -> tuple[str, str, bytes]:
        """For a new entry: the id of its key, its hash, and its body as it is stored.

        A plain hash of a small body could be guessed: where others must not read, it is keyed.
        """
        if self.mode == NONE:
            return "", digest(body), body
        if self.mode == AT_REST:
            return "", digest(body), self.kept(entry_id, "", body)
        cipher = self._in_use(END_TO_END)
        return cipher.key.id, cipher.hash(body), cipher.sealed(entry_id, body)

    def address(self, content: bytes, key_id: str | None = None) -> str:
        """A name that follows from the content; keyed like a hash, by the key in use or another."""
        if key_id is None:
            key_id = self._in_use(END_TO_END).key.id if self.mode == END_TO_END else ""
        cipher = self._cipher(key_id) if key_id else None
        return cipher.hash(content) if cipher else digest(content)

    def kept(self, entry_id: str, key_id: str, body: bytes) -> bytes:
        """A body as this home stores it: never plain, if it seals anything."""
        if self.mode == NONE or key_id or not body or body.startswith(SEALED):
            return body
        return self._in_use(AT_REST).sealed(entry_id, body)

    def _in_use(self, use: str) -> _Cipher:
        if use not in self._current:
            if self._keychain is None:
                raise KeyMissingError("there are no keys here to seal with")
            self._keychain.check(self._sealed_here)
            key = self._keychain.current(use)
            self._current[use] = self._ciphers[key.id] = _Cipher(key)
        return self._current[use]

    def forget(self) -> None:
        """Look again which keys there are."""
        self._current.clear()
        self._ciphers.clear()
        self.locked = None

    # --- opening ------------------------------------------------------------------------------

    def opened(self, entry: Entry) -> Entry:
        """With its body plain. One whose key is not here stays sealed."""
        body = entry.body
        if type(body) is not bytes or not (entry.key_id or body.startswith(SEALED)):
            return entry
        return entry._replace(body=self.plain(entry.entry_id, entry.key_id, entry.hash, body))

    def plain(self, entry_id: str, key_id: str, body_hash: str, body: bytes) -> bytes:
        """A body as it was before it was sealed; sealed still, if its key is not here; and marked
        as damaged, if it is not what was sealed."""
        if not body:
            return body
        if not body.startswith(SEALED):
            return DAMAGED + body if key_id else body
        named = _key_of(body)
        if key_id and named != key_id:
            return DAMAGED + body
        cipher = self._cipher(named)
        if cipher is None:
            if not key_id and not self.locked:
                self._look_for_the_file()
            return body
        plain = cipher.opened(entry_id, body)
        if plain is None or (key_id and cipher.hash(plain) != body_hash):
            return DAMAGED + body
        return plain

    def broken(self, entry: Entry) -> bool:
        """Whether a body is not what was sealed, as far as can be told here."""
        opened = self.opened(entry).body
        return not entry.purged and (not opened or opened.startswith(DAMAGED))

    def to_send(self, entry: Entry) -> Entry:
        """As the replica gets it: sealed by the organization's key, or plain."""
        if entry.key_id or type(entry.body) is not bytes or not entry.body.startswith(SEALED):
            return entry
        return self.readable(self.opened(entry))

    def is_plain(self, entry: Entry) -> bool:
        return not (type(entry.body) is bytes and entry.body.startswith(SEALED))

    def readable(self, entry: Entry) -> Entry:
        """The entry, if its body is not sealed."""
        if not self.is_plain(entry):
            raise self.missing(entry)
        return entry

    def missing(self, entry: Entry) -> KeyMissingError:
        """Why an entry's body cannot be read here."""
        what = f"{entry.entity} {entry.entity_id} is sealed with key {_key_of(entry.body)}"
        if self.locked is not None:
            return KeyMissingError(f"{what}: {self.locked.message}", self.locked.remedy)
        return KeyMissingError(f"{what}, which is not here")

    def barrier(self) -> KeyMissingError | None:
        """Why nothing that is sealed here can be opened, as far as nobody need be asked."""
        if self.mode == NONE or self._keychain is None:
            return None
        try:
            self._keychain.check(self._sealed_here)
            self._keychain.look()
        except KeyMissingError as error:
            return error
        return None

    def try_keys(self) -> None:
        """Raises if what is sealed here cannot be opened; the passphrase may be asked for."""
        if self._keychain is not None:
            self._keychain.check(self._sealed_here)
            self._keychain.load()

    def has(self, key_id: str) -> bool:
        return self._cipher(key_id) is not None

    def _look_for_the_file(self) -> None:
        """What was sealed here may be readable again, once the file of keys is back."""
        if self._keychain is not None:
            try:
                self._keychain.check(lambda: True)
            except KeyMissingError as error:
                self.locked = error

    def _cipher(self, key_id: str) -> _Cipher | None:
        if key_id not in self._ciphers and self._keychain is not None:
            try:
                key = self._keychain.get(key_id)
            except KeyMissingError as error:
                self.locked = error
                return None
            self.locked = None
            if key is None:
                return None
            self._ciphers[key_id] = _Cipher(key)
        return self._ciphers.get(key_id)


def _key_of(body: bytes) -> str:
    return body[len(SEALED) : len(SEALED) + _ID].hex()


class _Cipher:
    """One data key at work."""

    def __init__(self, key: DataKey) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.key = key
        self._aead: AESGCM = AESGCM(derived(key.secret, b"syncd seal 1"))
        self._hash_key = derived(key.secret, b"syncd hash 1")
        self._head = SEALED + bytes.fromhex(key.id)

    def hash(self, body: bytes) -> str:
        return hmac.digest(self._hash_key, body, "sha256").hex()

    def sealed(self, entry_id: str, body: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        # Bound to its entry: it cannot be put in the place of another.
        return self._head + nonce + self._aead.encrypt(nonce, body, entry_id.encode())

    def opened(self, entry_id: str, body: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        nonce = body[_START - _NONCE : _START]
        try:
            return self._aead.decrypt(nonce, body[_START:], _text(entry_id))
        except (InvalidTag, ValueError):
            return None


def _text(value: Any) -> bytes:
    return str(value).encode(errors="replace")
