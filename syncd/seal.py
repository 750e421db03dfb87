"""Hash, chain and signature of an entry, and the device's signing key.

`chain` covers the whole past of a device, so one signature over it covers that past too.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from syncd.entry import Entry, uuid7
from syncd.errors import HomeError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

GENESIS = bytes(32)
# What a body begins with that is sealed, and its key is not here; and one that was, and its key is,
# but it is not what was sealed. No plain body begins like that.
SEALED, DAMAGED = b"\x01", b"\x00"
MISTYPED = "a column has another type than what was written"
# A signature made for one purpose must never be valid for another.
_CHAIN_DOMAIN = b"syncd chain 1\0"
_KEY_DOMAIN = b"syncd key 1\0"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def chain_value(previous: bytes, header: bytes, body_hash: str) -> bytes:
    return hashlib.sha256(previous + header + body_hash.encode()).digest()


def flaw(entry: Entry) -> str | None:
    """What is wrong with an entry taken by itself, or None."""
    if not well_typed(entry):
        return MISTYPED
    if entry.purged is not None:  # an audit looks for the entry that accounts for it
        if entry.body:
            return "a body stands where one was purged"
    elif _altered(entry):
        return "the body does not match its hash"
    if not header_intact(entry):
        return "the header does not match its chain value"
    return None


def well_typed(entry: Entry) -> bool:
    """SQLite keeps whatever it is given: a damaged column may hold anything."""
    return (
        all(type(value) is str for value in (*entry[1:3], *entry[4:8], *entry[9:14]))
        and all(type(value) is int for value in (entry.device_seq, entry.hlc, entry.effective_hlc))
        and all(type(value) is bytes for value in (entry.previous, entry.chain, entry.body))
        and (entry.signature is None or type(entry.signature) is bytes)
    )


def _altered(entry: Entry) -> bool:
    """Of a body that is sealed nothing can be said without its key; whoever opened one that has a
    key has compared it with its hash."""
    if entry.body.startswith(SEALED):
        return False
    if entry.key_id:
        return not entry.body or entry.body.startswith(DAMAGED)
    return digest(entry.body) != entry.hash


def header_intact(entry: Entry) -> bool:
    """Holds for a damaged body too: its parent can then still be trusted."""
    if not isinstance(entry.previous, bytes) or not isinstance(entry.hash, str):
        return False  # a damaged column may hold anything
    return chain_value(entry.previous, entry.header(), entry.hash) == entry.chain


class SigningKey:
    """The device's Ed25519 key: always a file of mode 0600, so that no prompt blocks a hook."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def at(cls, path: Path) -> SigningKey:
        """Load the key, making it first if there is none; safe when several processes start."""
        if not path.exists():
            publish_once(path, cls.new().pem())
        return cls.load(path)

    @classmethod
    def new(cls) -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        try:
            key = serialization.load_pem_private_key(path.read_bytes(), None)
        except (OSError, ValueError) as error:
            raise HomeError(
                f"the signing key {path} cannot be read: {error}",
                "Restore it from your own backup; without it nothing can be signed.",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise HomeError(f"{path} is not an Ed25519 key")
        return cls(key)

    def sign(self, chain: bytes) -> bytes:
        return self._key.sign(_CHAIN_DOMAIN + chain)

    def endorse(self, succession: bytes) -> bytes:
        """Vouch for the key that takes this one's place."""
        return self._key.sign(_KEY_DOMAIN + succession)

    def pem(self) -> bytes:
        from cryptography.hazmat.primitives import serialization

        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()


def signature_valid(public: bytes, chain: bytes, signature: bytes) -> bool:
    return _valid(public, _CHAIN_DOMAIN, chain, signature)


def endorsement_valid(public: bytes, succession: bytes, endorsement: bytes) -> bool:
    return _valid(public, _KEY_DOMAIN, succession, endorsement)


def _valid(public: bytes, domain: bytes, message: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, domain + message)
    except (InvalidSignature, ValueError, TypeError):  # a damaged column may hold anything
        return False
    return True


def fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


def publish_once(path: Path, content: bytes) -> None:
    """Make `path` appear complete or not at all, and let the first of several makers win.

    No file that may be a database is ever opened here: closing it would drop SQLite's locks.
    """
    draft = path.with_name(f"{path.name}.{uuid7()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
