"""What a user asks when something looks wrong: what happened to this, how much is there, is
this installation sound?"""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd import disk, sealing
from syncd.entry import CHECKPOINT, Entry
from syncd.errors import (
    CheckpointNotFoundError,
    KeyMissingError,
    ReplicaError,
    ReplicaUnreachableError,
    SyncdError,
)
from syncd.keychain import END_TO_END
from syncd.node import Node, lock_problem
from syncd.refusals import translated
from syncd.seal import fingerprint, flaw
from syncd.sql import SQLITE_VERSION, version_of
from syncd.store import VIEW_COLUMNS
from syncd.vault import NONE

_REVISION = VIEW_COLUMNS + Entry._fields.index("entry_id")
_NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs"}


# --- explain ----------------------------------------------------------------------------------


def explain(node: Node, prefix: str) -> dict[str, Any]:
    """The life of one checkpoint, or of the checkpoint that a revision belongs to."""
    try:
        current = node.store.row("checkpoint", (node.checkpoint_id(prefix),))
    except CheckpointNotFoundError:
        entry = _entry(node, prefix)
        current = node.store.row("checkpoint", (entry.entity_id,)) if entry else None
        if entry and current is None:
            return {
                "id": entry.entity_id,
                "entity": entry.entity,
                "versions": [_version(node, entry)],
            }
    if current is None:
        raise CheckpointNotFoundError(f"there is no checkpoint or revision {prefix!r}")
    lost = {c[6]: c for c in node.store.rows("conflicts_of", (current[0],))}
    versions = [
        {**version, "current": version["revision"] == current[_REVISION],
         "conflict": lost[version["revision"]][0] if version["revision"] in lost else None}
        for version in _lineage(node, current)
    ]  # fmt: skip
    links = node.store.rows("links_of", (current[0],))
    return {
        "id": current[0],
        "entity": "checkpoint",
        "task_id": current[1],
        "created_at": current[16],
        "final": bool(current[10]),
        "parent": current[9],
        "linked_parents": [parent for (parent,) in links],
        "versions": versions,
        "safe": _safety(node, versions),
    }


def _entry(node: Node, prefix: str) -> Entry | None:
    try:
        return node.store.entry(node.entry_id(prefix))
    except CheckpointNotFoundError:
        raise CheckpointNotFoundError(f"there is no checkpoint or revision {prefix!r}") from None


def _lineage(node: Node, current: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    """All versions, those that lost included, newest first."""
    row = current[VIEW_COLUMNS : VIEW_COLUMNS + len(Entry._fields)]
    entries = {row[1]: node.store.read(row)} if row[0] is not None else {}
    for version in node.store.rows("versions_of", (current[0], CHECKPOINT)):
        if (found := node.store.entry(version[1])) is not None:
            entries[found.entry_id] = found
    for entry in sorted(entries.values(), key=lambda e: (e.effective_hlc, e.seq), reverse=True):
        yield _version(node, entry)


def _version(node: Node, entry: Entry) -> dict[str, Any]:
    return {
        "revision": entry.entry_id,
        "op": entry.op,
        "at": entry.at,
        "actor": entry.actor,
        "device_id": entry.device_id,
        "device_seq": entry.device_seq,
        "cursor": entry.seq,
        "bases": orjson.loads(entry.bases),
        "hash": entry.hash,
        "chain": entry.chain.hex(),
        "signed": entry.signature is not None,
        "bytes": len(entry.body),
        "problem": _problem(entry),
        "purged": node.store.purge_of(entry),
        "cloud_seq": entry.cloud_seq,
        "verdict": _verdict(entry),
    }


def _problem(entry: Entry) -> str | None:
    if entry.refused is not None and entry.body == b"":
        return "only its header is here: the replica refused it"
    return flaw(entry)


def _verdict(entry: Entry) -> str:
    """What the replica has said about it."""
    if entry.refused is not None:
        return f"refused: {entry.refused}"
    if entry.cloud_seq is None:
        return "queued"
    return "accepted" if entry.effective_hlc == entry.hlc else "capped"


def _safety(node: Node, versions: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether each version is intact here, and where else it is."""
    local = all(version["problem"] is None for version in versions)
    if not node.settings["cloud.dsn"]:
        return {"local": local, "cloud": "unconfigured"}
    waiting = [v for v in versions if v["verdict"] == "queued"]
    refused = [v for v in versions if v["verdict"].startswith("refused")]
    sound = [v for v in versions if v not in refused]
    state = "refused" if refused else "queued" if waiting else "acknowledged"
    since = min(v["at"] for v in waiting or versions)
    attempts = [
        dict(zip(("at", "pushed", "pulled", "error"), row, strict=True))
        for row in node.store.rows("attempts_since", (since,))
    ]
    return {
        "local": local,
        "cloud": state,
        "attempts": len(attempts),
        "last_attempt": attempts[0] if attempts else None,
        "devices": _holders(node, [v["cloud_seq"] for v in sound if v["cloud_seq"]]),
    }


def _holders(node: Node, numbers: list[int]) -> list[dict[str, Any]] | None:
    """Which devices have pulled all of it; None if the replica cannot be asked now."""
    if not numbers:
        return []
    replica = node.replica()
    try:
        rows = replica.pullers(max(numbers))
    except ReplicaError:
        return None
    finally:
        replica.close()
    return [{"device_id": device, "machine": name, "pulled": has} for device, name, has in rows]


# --- stats ------------------------------------------------------------------------------------


def stats(node: Node) -> dict[str, Any]:
    entries, cursor, checkpoints, tasks, problems = node.store.row("counts") or (0, 0, 0, 0, 0)
    conflicts, quarantined = node.store.row("counts_open") or (0, 0)
    sizes = node.store.rows("task_sizes", (10,))
    return {
        "device_id": node.store.device_id,
        "home": str(node.home),
        "cursor": cursor or 0,
        "entries": entries,
        "checkpoints": checkpoints,
        "tasks": tasks,
        "problems": problems,
        "conflicts": conflicts,
        "quarantined": quarantined,
        "bytes": {
            "database": _size(node.database),
            "wal": _size(node.database.with_name("context.db-wal")),
            "backups": sum(_size(path) for path in (node.home / "backups").glob("*")),
            "free": disk.free(node.home),
        },
        "largest_tasks": [
            {"id": task, "checkpoints": count, "tokens": tokens} for task, count, tokens in sizes
        ],
    }


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


# --- doctor -----------------------------------------------------------------------------------


class Check(NamedTuple):
    """`state` is ok, attention or failed."""

    name: str
    state: str
    detail: str
    remedy: str = ""


def doctor(node: Node) -> list[Check]:
    """Every check, each by itself: one that fails must not hide the others."""
    return list(_told_once(_guarded(name, check, node) for name, check in _CHECKS.items()))


def _told_once(checks: Iterator[Check]) -> Iterator[Check]:
    """What is wrong with the settings, say, stops several."""
    told = set()
    for check in checks:
        again = check.remedy and (check.detail, check.remedy) in told
        told.add((check.detail, check.remedy))
        yield check._replace(remedy="As above.") if again else check


def _guarded(name: str, check: Callable[[Node], Check], node: Node) -> Check:
    try:
        return check(node)._replace(name=name)
    except SyncdError as error:
        return Check(name, "failed", error.message, error.remedy)
    except sqlite3.Error as error:
        told = translated(error)
        return Check(name, "failed", told.message, told.remedy)
    except OSError as error:
        return Check(name, "failed", str(error), "Set that right, then run `syncd doctor` again.")


def _home(node: Node) -> Check:
    home = node.store.path.parent  # the first use makes it
    loose = [
        path
        for path in (home, *home.iterdir(), *(home / "keys").iterdir())
        if stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if loose:
        return Check(
            "", "attention", f"others may read {loose[0]}", f"chmod -R go-rwx '{node.home}'"
        )
    return Check("", "ok", f"{node.home}, yours alone")


def _file_system(node: Node) -> Check:
    if problem := lock_problem(node.home / "run"):
        return Check("", "failed", f"no locks: {problem}", "Set SYNCD_HOME to a local disk.")
    kind = _file_system_of(node.home)
    if kind in _NETWORK_FILE_SYSTEMS:
        return Check(
            "",
            "attention",
            f"{kind} is a network file system, where SQLite's locks are not reliable",
            "Set SYNCD_HOME to a local disk.",
        )
    return Check("", "ok", f"{kind or 'local'}, locks work")


def _file_system_of(path: Path) -> str:
    """The type of the mount that `path` lies on; empty where the system does not tell."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return ""
    best = ("", "")
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.encode().decode("unicode_escape")
        if path.resolve().is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _disk(node: Node) -> Check:
    if problem := disk.problem(node):
        return Check("", "attention", problem, "Make room; writes fail when the disk is full.")
    return Check("", "ok", f"{disk.free(node.home) // 1_000_000:,} MB free")


def _settings(node: Node) -> Check:
    changed = [v.setting.name for v in node.settings.explained() if v.source != "default"]
    return Check("", "ok", f"{', '.join(changed)} set" if changed else "all at their defaults")


def _database(node: Node) -> Check:
    connection = node.store.connection
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if mode != "wal" or found != "ok":
        told = f"{' '.join(found.split())}, journal {mode}"
        return Check("", "failed", told, "See `syncd backup list`.")
    version = version_of(connection)
    return Check("", "ok", f"schema {version} of {SQLITE_VERSION}, SQLite {sqlite3.sqlite_version}")


def _key(node: Node) -> Check:
    path = node.home / "keys" / "signing.pem"
    if not path.exists() and not _size(node.database):  # begun, and never made
        return Check("", "ok", "none yet: the first use makes it")
    if not path.exists():
        return Check("", "failed", f"{path} is missing", "Restore it from your own backup.")
    return Check("", "ok", f"fingerprint {fingerprint(node.key.public())[:16]}…")


def _encryption(node: Node) -> Check:
    try:
        found = sealing.shown(node)
        if found["encryption"] != NONE or any(key["bodies"] for key in found["keys"]):
            node.vault.try_keys()
    except KeyMissingError as error:
        return Check("", "attention", error.message, error.remedy)
    if found["missing"]:
        return Check(
            "",
            "attention",
            f"entries are sealed with key {found['missing'][0]}, which is not here",
            "`syncd keys export` on a machine that has it, `syncd keys import` here.",
        )
    if found["encryption"] != NONE and found["plain"]:
        return Check("", "attention", f"{found['plain']} bodies are not sealed",
                     "`syncd keys encrypt`")  # fmt: skip
    before = found["plain_at_replica"] + found["plain_to_send"]
    if found["encryption"] == END_TO_END and before:
        told = f"{END_TO_END}; for the replica {before:,} older bodies are plain"
        return Check("", "ok", told)
    return Check("", "ok", found["encryption"])


def _record(node: Node) -> Check:
    """A clean audit clears what reads have met; so this looks at what is known, not at all."""
    problems = node.store.rows("problems")
    if problems:
        return Check(
            "",
            "attention",
            f"{len(problems)} damaged, first: entry {problems[0][0]} ({problems[0][1]})",
            "`syncd audit verify` checks everything and names each.",
        )
    return Check("", "ok", "no damage met so far")


def _views(node: Node) -> Check:
    """Only whether there is a row for each checkpoint, and it points to an entry of its own; `audit
    verify` compares them all."""
    (strays,) = node.store.row("stray_rows") or (0,)
    if strays:
        told = "1 row differs" if strays == 1 else f"{strays} rows differ"
        return Check("", "attention", f"{told} from the log", "`syncd audit verify`")
    return Check("", "ok", "lead to their entries")


def _replica(node: Node) -> Check:
    """Unreachable is no fault of this installation: offline is normal."""
    if not node.settings["cloud.dsn"]:
        return Check("", "ok", "none: this home is local only")
    replica = node.replica()
    try:
        member = replica.membership
    except ReplicaUnreachableError as error:
        return Check("", "ok", f"configured; it does not answer now ({error.message})")
    finally:
        replica.close()
    return Check("", "ok", f"{member.machine} of {member.member}, in {member.organization}")


def _waiting(node: Node) -> Check:
    conflicts, quarantined = node.store.row("counts_open") or (0, 0)
    if quarantined:
        waiting = "1 entry" if quarantined == 1 else f"{quarantined} entries"
        return Check("", "attention", waiting, "See `syncd quarantine list`.")
    return Check("", "ok", f"empty; open conflicts: {conflicts}")


def _python(_: Node) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("", "ok", f"Python {version}, pid {os.getpid()}, {sys.executable}")


_CHECKS: dict[str, Callable[[Node], Check]] = {
    "home": _home,
    "file system": _file_system,
    "disk": _disk,
    "settings": _settings,
    "database": _database,
    "views": _views,
    "record": _record,
    "signing key": _key,
    "encryption": _encryption,
    "replica": _replica,
    "quarantine": _waiting,
    "python": _python,
}
