"""A task's entries from the log into one file, with what connects them to signatures.

Of other tasks, as little as can be. An entry of this device needs no link: its key is here, and
signs the entry itself. Another device's needs those after it up to the next that it has signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from syncd import clock
from syncd.bundle.check import lines_of, verify
from syncd.bundle.form import (
    ENTRY,
    LINK,
    PURGED_BY,
    Device,
    Manifest,
    Tip,
    entry_bytes,
    line_of,
    manifest_bytes,
    seal_bytes,
    to_be_sealed,
)
from syncd.delivery import delivered
from syncd.entry import Entry
from syncd.errors import (
    CheckpointCorruptionError,
    KeyMissingError,
    TaskNotFoundError,
)
from syncd.purges import recalled
from syncd.seal import MISTYPED, SigningKey, fingerprint, flaw, header_intact
from syncd.store import Store

_PAGE = 2_000


class Exported(NamedTuple):
    """What was written; `signer` is the fingerprint that a reader should get by another way."""

    path: Path
    bytes: int
    sha256: str
    signer: str
    entries: int
    links: int
    purged: int
    manifest: Manifest


class Spot(NamedTuple):
    """Where an entry stands, as the query `places_after` gives it."""

    seq: int
    entry_id: str
    device_id: str
    device_seq: int
    signed: int
    of_task: int


class Plan:
    """Which entries are needed, by device; met in the order of the log."""

    def __init__(self, own: set[str]) -> None:
        self._own = own
        self.spots: dict[str, list[Spot]] = {}
        self.tips: dict[str, Spot] = {}
        # Entries of other tasks after one that its device has not signed yet.
        self._waiting: dict[str, list[Spot]] = {}

    def meet(self, spot: Spot) -> None:
        device = spot.device_id
        own = device in self._own
        if own or spot.signed:
            self.tips[device] = spot
        if spot.of_task:
            between = self._waiting.pop(device, [])
            self.spots.setdefault(device, []).extend((*between, spot))
            if not own and not spot.signed:
                self._waiting[device] = []
        elif device in self._waiting:
            self._waiting[device].append(spot)
            if spot.signed:
                self.spots[device] += self._waiting.pop(device)

    def uncovered(self) -> list[Spot]:
        """For each device whose last entries here it has not signed, the last one of the task."""
        return [self.spots[device_id][-1] for device_id in self._waiting]

    def to_sign(self, device_id: str) -> set[int]:
        """Entries of this device that no later one in the file is chained to."""
        if device_id not in self._own:
            return set()
        spots = self.spots.get(device_id, [])
        numbers = {spot.device_seq for spot in spots}
        return {s.seq for s in spots if not s.signed and s.device_seq + 1 not in numbers}


def export(
    store: Store, key: SigningKey, task_id: str, output: Path, *, force: bool = False
) -> Exported:
    """Write a task's evidence; the file appears complete and checked, or not at all."""
    with delivered(output, force=force) as file:
        with store.snapshot():
            sha256 = _Export(store, key, task_id).write(file)
        return _examined(file, output, fingerprint(key.public()), sha256)


def _examined(file: IO[bytes], output: Path, signer: str, sha256: str) -> Exported:
    """What is handed out has been read back and checked as its reader will check it."""
    size = file.tell()
    file.seek(0)
    verdict = verify(lines_of(file), [signer])
    if verdict.problems or verdict.manifest is None:
        entry_id, device_id, problem = verdict.problems[0]
        raise _damaged(problem, entry_id, device_id)
    links = sum(device.links for device in verdict.devices)
    counts = (verdict.entries, links, verdict.purged)
    return Exported(output, size, sha256, signer, *counts, verdict.manifest)


def _damaged(problem: str, entry_id: str, device_id: str) -> CheckpointCorruptionError:
    subject = f"entry {entry_id}" if entry_id else f"device {device_id}"
    return CheckpointCorruptionError(
        f"{subject}: {problem}; no file was written",
        "`syncd audit verify` names every damaged entry. If a purge is missing here, `syncd sync` "
        "first.",
        entry_id=entry_id,
        problem=problem,
    )


def _unsigned(spot: Spot) -> KeyMissingError:
    """As another device's entry it would not have been taken in: the key was this home's."""
    return KeyMissingError(
        f"entry {spot.entry_id} was not signed before the key of its device "
        f"({spot.device_id}) was lost; no file was written",
        "`syncd sync` brings it under a key that is here. Without a replica there is no proof of "
        "who wrote it.",
    )


class _Export:
    """One task of a store on its way into a file, all read at one moment."""

    def __init__(self, store: Store, key: SigningKey, task_id: str) -> None:
        self._store = store
        self._key = key
        self._task_id = task_id

    def write(self, file: IO[bytes]) -> str:
        """The digest of the whole file."""
        if self._store.row("task", (self._task_id,)) is None:
            raise TaskNotFoundError(f"there is no task {self._task_id!r}")
        content = hashlib.sha256()
        for line in self._lines():
            file.write(line)
            content.update(line)
        signature = self._key.sign(to_be_sealed(content.digest()))
        seal = seal_bytes(content.digest(), signature)
        file.write(seal)
        content.update(seal)
        return content.hexdigest()

    def _lines(self) -> Iterator[bytes]:
        plan = Plan({row[0] for row in self._store.rows("signing_ids")})
        for spot in self._spots():
            plan.meet(spot)
        for spot in plan.uncovered():
            raise _unsigned(spot)
        manifest = self._manifest(plan)
        yield manifest_bytes(manifest)
        missing: set[str] = set()
        for device in manifest.devices:
            to_sign = plan.to_sign(device.device_id)
            for spot in plan.spots.get(device.device_id, []):
                entry = self._entry(spot)
                signature = self._key.sign(entry.chain) if spot.seq in to_sign else entry.signature
                kind = ENTRY if spot.of_task else LINK
                yield entry_bytes(line_of(entry, kind, signature))
                if kind == ENTRY and entry.purged is not None:
                    missing.add(entry.purged)
        listed = {entry_id for device in manifest.devices for entry_id in device.entries}
        yield from self._purges(missing - listed)

    def _spots(self) -> Iterator[Spot]:
        after = 0
        while page := self._store.rows("places_after", (self._task_id, after, _PAGE)):
            for spot in map(Spot._make, page):
                if spot.of_task and not (type(spot.entry_id) is type(spot.device_id) is str):
                    raise _damaged(MISTYPED, str(spot.entry_id), str(spot.device_id))
                yield spot
            after = page[-1][0]

    def _entry(self, spot: Spot) -> Entry:
        """One entry, intact as far as it is written out, its body plain."""
        row = self._store.row("entry_at", (spot.seq,))
        entry = self._store.read(row or ())
        content = spot.of_task and not (entry.refused is not None and entry.body == b"")
        if problem := _header_flaw(entry) or (flaw(entry) if content else None):
            raise _damaged(problem, entry.entry_id, entry.device_id)
        return self._store.vault.readable(entry) if content else entry

    def _purges(self, names: set[str]) -> list[bytes]:
        """Those that are no part of this log: it was restored from a backup older than they are."""
        lines = []
        for name in sorted(names):
            row = self._store.row("purge_evidence", (name,))
            with suppress(KeyError, TypeError, ValueError):  # what cannot be read proves nothing
                purge = recalled(row[0] if row else "")
                lines.append(entry_bytes(line_of(purge, PURGED_BY, purge.signature)))
        return lines

    # --- the first line -----------------------------------------------------------------------

    def _manifest(self, plan: Plan) -> Manifest:
        exporter = self._store.device_id
        keys = dict(self._store.rows("device_keys"))
        devices = [
            self._device(device_id, keys.get(device_id), plan)
            for device_id in sorted({exporter, *plan.spots})
        ]
        at = clock.iso(clock.wall_ms())
        return Manifest(self._task_id, at, exporter, self._replica(), devices)

    def _device(self, device_id: str, key: bytes | None, plan: Plan) -> Device:
        if not isinstance(key, bytes):
            raise _damaged("its key is not known here", "", device_id)
        spots = plan.spots.get(device_id, [])
        ids = [spot.entry_id for spot in spots if spot.of_task]
        return Device(device_id, key, ids, len(spots) - len(ids), self._tip(plan, device_id))

    def _tip(self, plan: Plan, device_id: str) -> Tip | None:
        if device_id not in plan.tips:
            return None
        entry = self._entry(plan.tips[device_id]._replace(of_task=0))
        return Tip(entry.device_seq, entry.chain, entry.signature or self._key.sign(entry.chain))

    def _replica(self) -> dict[str, Any] | None:
        """How far the replica is known here, if there is one."""
        state = dict(self._store.rows("whole_state"))
        if not state.get("organization"):
            return None
        cursor, attempt = self._store.row("cursor"), self._store.row("last_success")
        return {
            "organization": state["organization"],
            "cloud_seq": int(state.get("cloud_seq") or 0),
            "pulled": cursor[0] if cursor else 0,
            "acknowledged": orjson.loads(state.get("acknowledged") or "[0]")[0],
            "as_of": attempt[0] if attempt else "",
        }


def _header_flaw(entry: Entry) -> str | None:
    if not header_intact(entry):
        return "the header does not match its chain value"
    if entry.signature is None or (
        isinstance(entry.signature, bytes) and len(entry.signature) == 64
    ):
        return None
    return "its signature is not valid"
