"""Is a bundle intact, and whose is it? Line by line, from the file alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from syncd.bundle.form import (
    ENTRY,
    LINK,
    PURGED_BY,
    SEAL,
    Device,
    Line,
    MalformedError,
    Manifest,
    line_in,
    manifest_in,
    opened,
    seal_in,
    to_be_sealed,
)
from syncd.entry import CHECKPOINT, FINALIZE, PURGE, header_bytes
from syncd.errors import UsageError
from syncd.projection import Problem
from syncd.seal import GENESIS, chain_value, digest, fingerprint, signature_valid

ESTABLISHED, UNKNOWN = "established", "unknown"
# How the key of a device is known: given by whoever checks, or by the word of the exporter, whose
# own key was given.
GIVEN, VOUCHED = "given", "vouched"
_LONGEST_LINE = 256_000_000
_NAMED_PROBLEMS = 1_000
_FEWEST_DIGITS, _ALL_DIGITS = 32, 64


class Finalized(NamedTuple):
    """A checkpoint that was closed; by whom in person and what it means, if that was said."""

    entry_id: str
    device_id: str
    checkpoint_id: str
    actor: str
    name: str
    meaning: str
    at: str


class Signer(NamedTuple):
    """A device in the file, and how its key is known."""

    device_id: str
    fingerprint: str
    entries: int
    links: int
    key: str


class Verdict(NamedTuple):
    """What was found in a file. Of `sealed` bodies only their owner can say whether they fit their
    hashes."""

    manifest: Manifest | None
    signer: str
    entries: int
    signatures: int
    purged: int
    sealed: int
    devices: list[Signer]
    finalized: list[Finalized]
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        return not self.problems


def trusted(text: str) -> str:
    """A fingerprint as a person gives it: all of it, or at least its first half."""
    plain = "".join(text.replace(":", "").split()).lower()
    if _FEWEST_DIGITS <= len(plain) <= _ALL_DIGITS and not plain.strip("0123456789abcdef"):
        return plain
    raise UsageError(
        f"{text!r} is not a fingerprint",
        f"It has {_ALL_DIGITS} hexadecimal digits; give at least the first {_FEWEST_DIGITS}.",
    )


def verify_file(path: Path, keys: Sequence[str] = ()) -> Verdict:
    """Check a file against the fingerprints of the keys that are trusted, if there are any."""
    with path.open("rb") as file:
        return verify(lines_of(file), keys)


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.readline(_LONGEST_LINE), b"")


def verify(lines: Iterable[bytes], keys: Sequence[str] = ()) -> Verdict:
    check = _Check(keys)
    for number, raw in enumerate(lines, start=1):
        try:
            check.take(raw)
        except MalformedError as error:
            check.found("", "", f"line {number}: {error}")
        # After a line without an end there is only the rest of it.
        if check.manifest is None or check.full or not raw.endswith(b"\n"):
            break
    return check.finished()


class _Chain:
    """Where the lines of one device stand."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.end = (0, GENESIS)
        self.unsigned: list[str] = []
        self.task_seq = self.entries = self.links = 0


class _Check:
    """Goes along the lines of a file."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.manifest: Manifest | None = None
        self._keys = keys
        self._digest = hashlib.sha256()
        self._seal: tuple[bytes, bytes] | None = None
        self._chains: dict[str, _Chain] = {}
        self._order: dict[str, int] = {}
        self._met: set[str] = set()
        self._next = 0
        self._named: dict[str, set[str]] = {}
        self._gone: list[tuple[Line, str]] = []
        self._signatures = self._sealed = 0
        self._finalized: list[Finalized] = []
        self._problems: list[Problem] = []

    @property
    def full(self) -> bool:
        return len(self._problems) >= _NAMED_PROBLEMS

    def found(self, entry_id: str, device_id: str, problem: str) -> None:
        self._problems.append(Problem(entry_id, device_id, problem))

    def take(self, raw: bytes) -> None:
        kind, content = opened(raw)
        if self._seal is not None:
            raise MalformedError("it stands after the end of the bundle")
        if kind == SEAL:
            self._seal = seal_in(content)
            return
        self._digest.update(raw)
        if self.manifest is None:
            self._begin(manifest_in(kind, content))
        elif kind in (ENTRY, LINK, PURGED_BY):
            self._meet(line_in(kind, content))
        else:
            raise MalformedError(f"a bundle has no line of kind {kind!r} here")

    def _begin(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._chains = {device.device_id: _Chain(device) for device in manifest.devices}
        ids = (entry_id for device in manifest.devices for entry_id in device.entries)
        self._order = {entry_id: place for place, entry_id in enumerate(ids)}

    # --- one line -----------------------------------------------------------------------------

    def _meet(self, line: Line) -> None:
        for problem in self._flaws(line):
            self.found(line.entry_id, line.device_id, problem)

    def _flaws(self, line: Line) -> Iterator[str]:
        if chain_value(line.previous, header_bytes(line.header), line.hash) != line.chain:
            yield "the header does not match its chain value"
        yield from self._meta_flaws(line)
        chain = self._chains.get(line.device_id)
        if line.kind == PURGED_BY:
            yield from _stray_flaws(line, chain)
            return
        if chain is None:
            yield "its device is not among those listed"
            return
        yield from self._place_flaws(line, chain)
        yield from self._signature_flaws(line, chain)
        if line.kind == LINK:
            chain.links += 1
            return
        chain.entries += 1
        yield from self._order_flaws(line)
        yield from self._body_flaws(line)

    def _meta_flaws(self, line: Line) -> Iterator[str]:
        """Whether the header says that it belongs here, and as which of the task."""
        meta = _loaded(line.meta)
        ours = self.manifest is not None and meta.get("task_id") == self.manifest.task_id
        if line.kind == LINK:
            if ours:
                yield "it is an entry of the task, and stands here as one of another"
            return
        if not ours:
            yield "it is not an entry of the task"
        if line.entity == PURGE and isinstance(meta.get("entries"), list):
            names = {name for name in meta["entries"] if isinstance(name, str)}
            self._named.setdefault(line.entry_id, set()).update(names)
        chain = self._chains.get(line.device_id)
        if line.kind == ENTRY and chain is not None:
            number, expected = meta.get("task_seq"), chain.task_seq + 1
            if type(number) is not int or number != expected:
                yield f"task_seq {number} stands where {expected} belongs: entries are missing"
            chain.task_seq = number if type(number) is int else expected

    def _place_flaws(self, line: Line, chain: _Chain) -> Iterator[str]:
        """Only after a signature may numbers of the device be left out."""
        number, before = chain.end
        if line.device_seq <= number:
            yield f"number {line.device_seq} of its device stands after number {number}"
        elif line.device_seq > number + 1:
            self._uncovered(chain)
        elif line.previous != before:
            yield "it does not continue the chain of the entry before it"
        chain.end = (line.device_seq, line.chain)

    def _uncovered(self, chain: _Chain) -> None:
        for entry_id in chain.unsigned:
            self.found(entry_id, chain.device.device_id, "no signature of its device covers it")
        chain.unsigned = []

    def _signature_flaws(self, line: Line, chain: _Chain) -> Iterator[str]:
        chain.unsigned.append(line.entry_id)
        if line.signature is None:
            if line.op == FINALIZE:
                yield "the signature of a finalized checkpoint is missing"
        elif not signature_valid(chain.device.public_key, line.chain, line.signature):
            yield "its signature is not valid for the key of its device"
        else:
            self._signatures += 1
            chain.unsigned = []

    def _order_flaws(self, line: Line) -> Iterator[str]:
        """Against the list: what it skips is missing, unless it comes later and out of order."""
        place = self._order.get(line.entry_id)
        if place is None:
            yield "it is not among those that were exported"
            return
        if line.entry_id in self._met:
            yield "it stands here a second time"
        elif place < self._next:
            yield "it stands out of order"
        self._met.add(line.entry_id)
        self._next = max(self._next, place + 1)

    def _body_flaws(self, line: Line) -> Iterator[str]:
        if line.body is None:
            if line.purged is not None and line.entity == CHECKPOINT:
                self._gone.append((line, line.purged))
            elif line.refused is None:
                yield "its body is missing"
            return
        if line.purged is not None:
            yield "a body stands where one was purged"
        if line.key_id:
            self._sealed += 1
        elif digest(line.body) != line.hash:
            yield "the body does not match its hash"
        if line.op == FINALIZE:
            self._finalized.append(_closed(line, line.body))

    # --- the end ------------------------------------------------------------------------------

    def finished(self) -> Verdict:
        if self.manifest is None:
            if not self._problems:
                self.found("", "", "the file is empty")
        elif not self.full:
            self._finish(self.manifest)
        exporter = self._chains.get(self.manifest.exported_by) if self.manifest else None
        established = exporter is not None and self._given(exporter.device)
        signers = [self._signer(chain, established) for chain in self._chains.values()]
        signer = ESTABLISHED if established and not self._problems else UNKNOWN
        return Verdict(
            self.manifest, signer, len(self._met), self._signatures, len(self._gone), self._sealed,
            signers, self._finalized, self._problems,
        )  # fmt: skip

    def _finish(self, manifest: Manifest) -> None:
        for chain in self._chains.values():
            self._end(chain)
        for line, purge_id in self._gone:
            if line.entry_id not in self._named.get(purge_id, ()):
                gone = "its body is gone, and no purge in the file names it"
                self.found(line.entry_id, line.device_id, gone)
        exporter = self._chains[manifest.exported_by].device
        for problem in self._seal_flaws(exporter):
            self.found("", exporter.device_id, problem)

    def _end(self, chain: _Chain) -> None:
        device = chain.device
        self._uncovered(chain)
        for entry_id in device.entries:
            if entry_id not in self._met:
                self.found(entry_id, device.device_id, "it was exported, and is missing")
        if chain.links != device.links:
            told = f"{chain.links} links are here, {device.links} were exported"
            self.found("", device.device_id, told)
        if problem := _tip_flaw(chain):
            self.found("", device.device_id, problem)

    def _seal_flaws(self, exporter: Device) -> Iterator[str]:
        if self._seal is None:
            yield "the end of the bundle is missing"
            return
        told, signature = self._seal
        if told != self._digest.digest():
            yield "the file is not the one that was sealed: something in it was changed"
        if not signature_valid(exporter.public_key, to_be_sealed(told), signature):
            yield "the seal is not valid for the key of the device that exported"
        if self._keys and not self._given(exporter):
            name = fingerprint(exporter.public_key)
            yield f"it is sealed with the key {name}, which is none of those given"

    def _given(self, device: Device) -> bool:
        """Whether whoever checks the file knows the key of a device."""
        return any(fingerprint(device.public_key).startswith(key) for key in self._keys)

    def _signer(self, chain: _Chain, established: bool) -> Signer:
        device = chain.device
        key = GIVEN if self._given(device) else VOUCHED if established else UNKNOWN
        name = fingerprint(device.public_key)
        return Signer(device.device_id, name, chain.entries, chain.links, key)


def _stray_flaws(line: Line, chain: _Chain | None) -> Iterator[str]:
    """Of a purge that is not in the exporter's log, with its own device's signature or without."""
    key = chain.device.public_key if chain else None
    if key and line.signature and not signature_valid(key, line.chain, line.signature):
        yield "its signature is not valid for the key of its device"


def _tip_flaw(chain: _Chain) -> str | None:
    """The tip is where the whole chain of the device stood, which goes on after the task's last."""
    tip, (number, end) = chain.device.tip, chain.end
    if tip is None:
        return "its tip is missing" if number else None
    if not signature_valid(chain.device.public_key, tip.chain, tip.signature):
        return "the signature of its tip is not valid"
    if tip.device_seq < number or (tip.device_seq == number and tip.chain != end):
        return "its tip does not agree with its entries"
    return None


def _closed(line: Line, body: bytes) -> Finalized:
    compliance = _loaded(body).get("compliance")
    said = compliance.get("signed_by") if isinstance(compliance, dict) else None
    words = said if isinstance(said, dict) else {}
    name, meaning, at = (str(words.get(field) or "") for field in ("name", "meaning", "at"))
    header = line.header
    return Finalized(header[0], header[1], header[4], header[8], name, meaning, at or header[9])


def _loaded(text: str | bytes) -> dict[str, Any]:
    """A document, or an empty one if it is none."""
    try:
        document = orjson.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
