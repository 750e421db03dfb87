"""Is my work safe? What is known without asking anybody, quickly: the database, the daemon's own
words, and what the last exchange left behind.

Light: it stands at the prompt of people who look often, so nothing here loads PostgreSQL's driver
or a key.
"""

from __future__ import annotations

import time
from pathlib import Path
from shlex import quote
from typing import Any

import orjson

from syncd import agents, disk, liveness, loss, mishaps, purges, running, tally, verdict
from syncd.errors import SyncdError
from syncd.node import Node
from syncd.verdict import Need

# Entries that wait are counted one by one up to so many.
_MANY = 2_000


def status(node: Node) -> dict[str, Any]:
    """CONTRACT: the document of `syncd status --json`."""
    try:
        return _status(node)
    except SyncdError as error:
        return _unusable(node, Need(error.message, error.remedy))
    except (TypeError, ValueError):  # a damaged column may hold anything
        damaged = "the database holds something that syncd has not written"
        return _unusable(node, Need(damaged, "`syncd audit verify` names it."))


def _unusable(node: Node, need: Need) -> dict[str, Any]:
    """The same fields, with nothing in those that cannot be known."""
    return {
        "verdict": verdict.FAILED,
        "answer": verdict.UNUSABLE._asdict(),
        "safe_to_close": False,
        "device_id": None,
        "home": str(node.home),
        "daemon": _daemon(node, running.pid(node.home), {}),
        "cloud": {"state": "offline", "as_of": None, "circuit": "closed", "last_error": "",
                  "remedy": "", "needs_person": False, "next_attempt_s": 0.0,
                  "clock_skew_ms": None},
        "local": dict.fromkeys(("cursor", "tasks", "checkpoints", "db_bytes", "problems")),
        "push": dict.fromkeys(("cursor", "pending", "refused", "last_at", "reads_only")),
        "pull": dict.fromkeys(("cursor", "last_at", "behind")),
        "conflicts": {"open": None},
        "quarantined": None,
        "begun_anew": None,
        "newest_copy": None,
        "keys_closed": None,
        "encryption": None,
        "keys_missing": [],
        "erased_and_back": [],
        "agents": dict.fromkeys(("active", "warning", "stale")),
        "notices": mishaps.notices(node.home, int(time.time() * 1000)),
        "disk": {"free_bytes": None, "problem": ""},
        "jobs": [],
        "attention": [need._asdict()],
    }  # fmt: skip


def _status(node: Node) -> dict[str, Any]:
    pid = running.pid(node.home)
    said = running.ask(node.home, pid) if pid else {}
    tally.keep(node)
    with node.store.snapshot():
        return _document(node, pid, said)


def _document(node: Node, pid: int, said: dict[str, Any]) -> dict[str, Any]:
    store = node.store
    state = dict(store.rows("states"))
    found = tally.read(node)
    local, push, pull = _local(node, found), _push(node, state), _pull(node, state, said)
    conflicts, quarantined = store.row("counts_open") or (0, 0)
    begun_anew = state.get(loss.BEGUN_ANEW) or None
    document: dict[str, Any] = {
        "device_id": state.get("device_id", ""),
        "home": str(node.home),
        "daemon": _daemon(node, pid, said),
        "cloud": _cloud(node, state, said if pid else {}),
        "local": local,
        "push": push,
        "pull": pull,
        "conflicts": {"open": conflicts},
        "quarantined": quarantined,
        "begun_anew": begun_anew,
        "newest_copy": _newest_copy(node, begun_anew) if begun_anew else None,
        "keys_closed": _keys_closed(node),
        "encryption": node.vault.mode,
        "keys_missing": orjson.loads(state.get("keys_missing") or "[]"),
        "erased_and_back": purges.survivors(store.rows),
        "agents": agents.counts(found.agents),
        "notices": [*liveness.notices(node, found.agents, found.lost), *_unreadable(node, pid),
                    *_unwatched(node), *mishaps.notices(node.home, int(time.time() * 1000))],
        "disk": {"free_bytes": disk.free(node.home),
                 "problem": disk.problem(node)},
        "jobs": said.get("jobs", []),
    }  # fmt: skip
    return verdict.judged(document)


def _keys_closed(node: Node) -> dict[str, str] | None:
    closed = node.vault.barrier()
    return Need(closed.message, closed.remedy)._asdict() if closed else None


def _newest_copy(node: Node, since: str) -> str | None:
    """The last backup from before the database was gone."""
    from syncd import backup

    copies = (
        copy.name
        for copy in backup.available(node.home / "backups")
        if copy.intact and copy.created_at <= since
    )
    return next(copies, None)


# --- the parts --------------------------------------------------------------------------------


def _unreadable(node: Node, pid: int) -> list[dict[str, str]]:
    """Files that were watched and could not be read, if they are still there."""
    found = node.store.rows("source_problems")
    return [
        {"what": f"{path}{f', line {line}' if line else ''} could not be read: {problem}",
         "remedy": _read_again(node, pid, path)}
        for path, line, problem, _ in found if _is_there(path)
    ]  # fmt: skip


def _unwatched(node: Node) -> list[dict[str, str]]:
    return [
        {"what": f"{path}, which watch.paths names, is not there",
         "remedy": "Correct watch.paths, unless an agent is to make it: it is watched then."}
        for path in node.settings["watch.paths"] if not _is_there(str(Path(path).expanduser()))
    ]  # fmt: skip


def _is_there(path: str) -> bool:
    """What may not be looked at counts as there."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _read_again(node: Node, pid: int, path: str) -> str:
    """Who watches it can be known of the daemon alone."""
    roots = [Path(root).expanduser().absolute() for root in node.settings["watch.paths"]]
    if pid and any(Path(path).is_relative_to(root) for root in roots):
        return "Correct the file; it is read again when it changes."
    return f"Correct the file, then `syncd watch {quote(path)}`, unless a watch of it runs."


def _daemon(node: Node, pid: int, said: dict[str, Any]) -> dict[str, Any]:
    started = float(said.get("started_at", 0)) if said.get("pid") == pid else 0.0
    return {
        "running": bool(pid),
        "pid": pid or None,
        "uptime_s": round(time.time() - started, 1) if pid and started else None,
        "answers": bool(said.get("answered")),
        "log": str(node.home / "log" / "daemon.log"),
    }


def _cloud(node: Node, state: dict[str, str], said: dict[str, Any]) -> dict[str, Any]:
    """The daemon's word if it has one, else what the last attempt said."""
    last = node.store.row("last_attempt")
    at, error = last or ("", "")
    told = said.get("cloud", {})
    known = "offline" if error or not at else "online"
    heard = bool(told) and told.get("state") != "unconfigured" and not _overtaken(told, at, error)
    configured = bool(node.settings["cloud.dsn"])
    remedy = state.get("remedy", "") if configured else ""
    return {
        "state": "unconfigured" if not configured else told["state"] if heard else known,
        "as_of": (told.get("as_of", "") if heard else "") or at or None,
        "circuit": told.get("circuit", "closed"),
        "last_error": told["last_error"] if heard else error if configured else "",
        "remedy": told.get("remedy", "") if heard else remedy,
        "needs_person": bool(told.get("needs_person") if heard else remedy),
        "next_attempt_s": said.get("next_attempt_s", 0.0),
        "clock_skew_ms": int(state.get("skew_ms") or 0),
    }


def _overtaken(told: dict[str, Any], at: str, error: str) -> bool:
    """Whether a command has reached the replica since the daemon could not."""
    failed_at = told["as_of"] if told.get("state") == "offline" else ""
    return bool(failed_at) and at > failed_at and not error


def _local(node: Node, found: tally.Tally) -> dict[str, Any]:
    cursor, problems = node.store.row("cursor_here") or (0, 0)
    wal = node.database.with_name("context.db-wal")
    size = node.database.stat().st_size + (wal.stat().st_size if wal.exists() else 0)
    return {"cursor": cursor, "tasks": found.tasks, "checkpoints": found.checkpoints,
            "db_bytes": size, "problems": problems}  # fmt: skip


def _push(node: Node, state: dict[str, str]) -> dict[str, Any]:
    sent_to = int(state.get("push_seq") or 0)
    own, former = state.get("device_id", ""), _former_ids(node, state)
    wanted = orjson.dumps([own, *former]).decode()
    pending = _pending(node, state, sent_to, wanted, several=bool(former))
    # What the replica lacks it lacks, whoever's login it was that sent it.
    written = orjson.dumps([own, *former, *_left_ids(state)]).decode()
    (refused,) = node.store.row("refused_count", (written,)) or (0,)
    (at,) = node.store.row("last_pushed") or ("",)
    return {"cursor": sent_to, "pending": pending, "refused": refused, "last_at": at or None,
            "reads_only": bool(state.get("reads_only"))}  # fmt: skip


def _pending(
    node: Node, state: dict[str, str], sent_to: int, devices: str, *, several: bool
) -> int:
    """Mostly nothing waits but what came after the entry that was acknowledged last. Else they are
    counted one by one, for as long as that takes no time: of more, it may be too little."""
    own = state.get("device_id", "")
    last = node.store.row("numbered_at", (sent_to,)) or (own, 0)
    if last == (own, _acknowledged(state)) and not several:
        return _backlog(node, state)
    (pending,) = node.store.row("pending_at_most", (sent_to, devices, _MANY)) or (0,)
    return int(pending if pending < _MANY else max(pending, _backlog(node, state)))


def _backlog(node: Node, state: dict[str, str]) -> int:
    """What was written here since the entry that the replica acknowledged last."""
    return max(0, node.store.own_head()[0] - _acknowledged(state))


def _acknowledged(state: dict[str, str]) -> int:
    return int(orjson.loads(state.get("acknowledged") or "[0]")[0])


def _former_ids(node: Node, state: dict[str, str]) -> list[str]:
    """Other ids that this device has had under its login."""
    not_these = {state.get("device_id", ""), *_left_ids(state)}
    return [row[0] for row in node.store.rows("own_ids") if row[0] not in not_these]


def _left_ids(state: dict[str, str]) -> list[str]:
    """Those that belong to a login which this home no longer has."""
    found: list[str] = orjson.loads(state.get("left") or "[]")
    return found


def _pull(node: Node, state: dict[str, str], said: dict[str, Any]) -> dict[str, Any]:
    row = node.store.row("cursor")
    cursor = row[0] if row else 0
    (at,) = node.store.row("last_pulled") or ("",)
    known = max(int(state.get("cloud_seq") or 0), said.get("cloud", {}).get("cloud_seq", 0))
    behind = max(0, known - cursor)
    return {"cursor": cursor, "last_at": at or None, "behind": behind}
