from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from syncd.entry import Entry
from syncd.errors import HomeError
from syncd.seal import (
    GENESIS,
    SigningKey,
    chain_value,
    digest,
    fingerprint,
    flaw,
    header_intact,
    signature_valid,
)


def sealed(**changes: Any) -> Entry:
    """An entry as the store would write it."""
    draft = Entry(
        seq=7,
        entry_id="entry-2",
        device_id="device-1",
        device_seq=2,
        entity="checkpoint",
        entity_id="checkpoint-1",
        op="update",
        bases='["entry-1"]',
        hlc=65_536_000,
        actor="agent-1",
        at="2026-03-01T10:00:00.000+00:00",
        key_id="",
        meta='{"task_id":"task-1"}',
        hash=digest(b'{"a":1}'),
        previous=chain_value(GENESIS, b"[]", digest(b"")),
        chain=b"",
        signature=None,
        effective_hlc=65_536_000,
        cloud_seq=None,
        batch=None,
        body=b'{"a":1}',
    )._replace(**changes)
    return draft._replace(chain=chain_value(draft.previous, draft.header(), draft.hash))


def changed(entry: Entry, field: str, value: Any) -> Entry:
    return entry._replace(**{field: value})


def test_an_entry_as_written_has_no_flaw() -> None:
    assert flaw(sealed()) is None


CHANGES: dict[str, Any] = {
    "entry_id": "entry-3",
    "device_id": "device-2",
    "device_seq": 3,
    "entity": "task",
    "entity_id": "checkpoint-2",
    "op": "finalize",
    "bases": "[]",
    "hlc": 65_536_001,
    "actor": "agent-2",
    "at": "2026-03-01T10:00:00.001+00:00",
    "key_id": "key-2",
    "meta": '{"task_id":"task-2"}',
    "hash": digest(b'{"a":2}'),
    "previous": GENESIS,
    "chain": bytes(32),
    "body": b'{"a":2}',
}
# Where an entry lies and who has it: given by each node, so no part of what is sealed. The
# signature is checked with a key, by `signature_valid`.
PLACE = {"seq", "effective_hlc", "cloud_seq", "batch", "signature", "refused", "purged"}


def test_every_field_is_sealed_or_known_to_be_the_nodes_own() -> None:
    assert CHANGES.keys() | PLACE == set(Entry._fields)
    assert not CHANGES.keys() & PLACE


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_one_field_is_found(field: str) -> None:
    assert flaw(changed(sealed(), field, CHANGES[field]))


def test_a_body_changed_together_with_its_hash_is_found() -> None:
    forged = sealed()._replace(body=CHANGES["body"], hash=CHANGES["hash"])
    assert flaw(forged) == "the header does not match its chain value"


@pytest.mark.parametrize("field", ["body", "previous", "chain"])
def test_one_flipped_bit_anywhere_is_found(field: str) -> None:
    entry = sealed()
    value: bytes = getattr(entry, field)
    for place in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[place // 8] ^= 1 << place % 8
        assert flaw(changed(entry, field, bytes(flipped))), f"bit {place}"


@pytest.mark.parametrize("field", ["body", "previous", "chain"])
def test_bytes_that_became_a_text_are_a_flaw(field: str) -> None:
    """What `UPDATE log SET body = '{}'` leaves behind in SQLite."""
    assert flaw(changed(sealed(), field, "{}"))


def test_a_damaged_body_leaves_the_header_trustworthy() -> None:
    damaged = sealed()._replace(body=b"{}")
    assert flaw(damaged) == "the body does not match its hash"
    assert header_intact(damaged)
    assert not header_intact(damaged._replace(meta="{}"))


def test_the_chain_depends_on_everything_before() -> None:
    one = chain_value(GENESIS, b"[1]", digest(b"a"))
    other = chain_value(GENESIS, b"[1]", digest(b"b"))
    assert chain_value(one, b"[2]", digest(b"c")) != chain_value(other, b"[2]", digest(b"c"))


def test_hash_and_chain_are_sha_256_of_exactly_these_bytes() -> None:
    assert digest(b"abc").startswith("ba7816bf8f01cfea414140de5dae2223b00361a3")
    assert len(digest(b"")) == 64
    expected = digest(bytes(32) + b'["h"]' + digest(b"abc").encode())
    assert chain_value(bytes(32), b'["h"]', digest(b"abc")).hex() == expected


# --- signatures ---------------------------------------------------------------------------------


def test_a_signature_is_valid_for_its_key_and_chain_only(tmp_path: Path) -> None:
    key, other = SigningKey.at(tmp_path / "a.pem"), SigningKey.at(tmp_path / "b.pem")
    chain = sealed().chain
    signature = key.sign(chain)
    assert signature_valid(key.public(), chain, signature)
    assert not signature_valid(other.public(), chain, signature)
    assert not signature_valid(key.public(), sealed(actor="agent-2").chain, signature)
    assert not signature_valid(key.public(), chain, other.sign(chain))


@pytest.mark.parametrize("prefix", [b"", b"syncd chain 2\0", b"syncd backup 1\0", b"syncd chain 1"])
def test_a_signature_made_in_another_domain_is_refused(prefix: bytes) -> None:
    private, chain = Ed25519PrivateKey.generate(), sealed().chain
    public = private.public_key().public_bytes_raw()
    assert signature_valid(public, chain, SigningKey(private).sign(chain))
    assert not signature_valid(public, chain, private.sign(prefix + chain))


@pytest.mark.parametrize("signature", [b"", b"x", bytes(64), bytes(65)])
def test_a_malformed_signature_is_invalid_not_an_error(tmp_path: Path, signature: bytes) -> None:
    key = SigningKey.at(tmp_path / "key.pem")
    assert not signature_valid(key.public(), sealed().chain, signature)
    assert not signature_valid(b"short", sealed().chain, key.sign(sealed().chain))


def test_a_fingerprint_is_the_hash_of_the_public_key(tmp_path: Path) -> None:
    key = SigningKey.at(tmp_path / "key.pem")
    assert fingerprint(key.public()) == digest(key.public())


# --- the key file -------------------------------------------------------------------------------


def test_the_key_is_made_once_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    first = SigningKey.at(path).public()
    content = path.read_bytes()
    assert SigningKey.at(path).public() == first
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path], "no draft is left behind"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_key_file_is_for_its_owner_only_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        SigningKey.at(tmp_path / "signing.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "signing.pem").stat().st_mode) == 0o600


RACER = """
import sys, time
from pathlib import Path
from syncd.seal import SigningKey
import cryptography.hazmat.primitives.asymmetric.ed25519
path, start = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not start.exists():
    pass
print(SigningKey.at(path).public().hex(), flush=True)
"""


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    keys, start = tmp_path / "keys", tmp_path / "go"
    keys.mkdir()
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, keys / "signing.pem", start],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    start.touch()
    seen = {racer.communicate(timeout=30)[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * len(racers)
    assert seen == {SigningKey.at(keys / "signing.pem").public().hex()}
    assert list(keys.iterdir()) == [keys / "signing.pem"]


def test_threads_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    def race(path: Path, gate: threading.Barrier) -> bytes:
        gate.wait()
        return SigningKey.at(path).public()

    for attempt in range(30):
        path, gate = tmp_path / f"{attempt}.pem", threading.Barrier(4)
        with ThreadPoolExecutor(4) as pool:
            seen = {done.result() for done in [pool.submit(race, path, gate) for _ in range(4)]}
        assert seen == {SigningKey.at(path).public()}


def pem(key: object) -> bytes:
    return key.private_bytes(  # type: ignore[attr-defined, no-any-return]
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"not a key", pem(generate_private_key(SECP256R1()))],
    ids=["empty", "text", "another-kind-of-key"],
)
def test_a_key_file_that_is_no_ed25519_key_is_told_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "signing.pem"
    path.write_bytes(content)
    with pytest.raises(HomeError, match=r"signing\.pem"):
        SigningKey.at(path)
    assert path.read_bytes() == content
