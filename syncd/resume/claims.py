"""What a checkpoint claims, and whether it holds here and now. Pure: what was seen comes in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from syncd.resume.chain import Cover, Line
from syncd.resume.look import Recorded, Seen
from syncd.resume.text import counted, items, listed, mapping, moment, text
from syncd.store import Skipped

VERIFIED, UNVERIFIED = "VERIFIED", "UNVERIFIED"


class Claim(NamedTuple):
    """`path` is set for a claim about a file."""

    claim: str
    state: str
    reason: str
    path: str = ""

    @property
    def holds(self) -> bool:
        return self.state == VERIFIED

    def document(self) -> dict[str, str]:
        return {"claim": self.claim, "state": self.state, "reason": self.reason}


def _claim(what: str, holds: bool, reason: str, path: str = "") -> Claim:
    return Claim(text(what), VERIFIED if holds else UNVERIFIED, text(reason, 300), path)


# --- the record ---------------------------------------------------------------------------------


def record_claims(
    line: Line, cover: Cover, own_device: str, skipped: Iterable[Skipped]
) -> Iterator[Claim]:
    """That the checkpoint is what was written. It was read, so its own hash and header match."""
    for gone in skipped:
        reason = f"passed over, and this is the nearest before it: {gone.problem}"
        yield _claim(f"checkpoint {gone.checkpoint_id}", False, reason)
    own = cover.device_id == own_device
    unsigned = "; not signed yet" if own and not cover.signed_entry else ""
    yield _claim("checkpoint", True, f"as written{unsigned}")
    if cover.signed_entry:
        yield _claim("signature", not cover.problem, cover.problem or "valid, of the known key")
    elif not own:
        yield _claim("signature", False, "another machine wrote it, and no signature covers it")
    yield _chain(line)


def _chain(line: Line) -> Claim:
    count = len(line.ancestors)
    if line.broken:
        return _claim("chain", False, f"broken after {counted(count, 'parent')}: {line.broken}")
    if not count:
        return _claim("chain", True, "the first of its task")
    which = "the nearest " if line.more else ""
    purged = f", {line.purged} of them purged" if line.purged else ""
    return _claim("chain", True, f"{which}{counted(count, 'parent')} intact{purged}")


def damaged_task(problem: str) -> Claim:
    return _claim("the task's description", False, problem)


# --- the code -----------------------------------------------------------------------------------

_NOT_HERE = "there is no git repository here to compare with"
_NO_RECORD = "its content was not recorded"
NEWER = "newer than the checkpoint"


def code_claims(
    then: Recorded | None, now: Seen | None, named: Iterable[str], newer: Collection[str] = ()
) -> Iterator[Claim]:
    """That the code is as the checkpoint saw it. Contents decide; without them, a later time is a
    hint."""
    if then is None:
        yield from (_file(name, False, NEWER if name in newer else _NO_RECORD) for name in named)
    elif now is None:
        yield _claim(_commit(then), False, _NOT_HERE)
        yield from (_file(path, False, _NOT_HERE) for path in then.files)
    elif _elsewhere(then, now):
        other = f"this is another repository, {now.repository}"
        yield _claim(_commit(then), False, other)
        yield from (_file(path, False, other) for path in then.files)
    else:
        yield _head(then, now)
        yield _tree(then, now)
        yield from _files(then, now, newer)


def _file(path: str, holds: bool, reason: str) -> Claim:
    return _claim(f"file {path}", holds, reason, path)


def _commit(then: Recorded) -> str:
    return f"HEAD {then.head[:12] or 'without a commit'}"


def _elsewhere(then: Recorded, now: Seen) -> bool:
    """A clone may have another name; it has the commit."""
    known = bool(then.head) and now.commits is not None
    return not known and then.repository != now.repository


def _head(then: Recorded, now: Seen) -> Claim:
    what = _commit(then)
    if then.branch != now.branch:
        same = ", at the same commit" if now.commits == (0, 0) else ""
        return _claim(what, False, f"on {now.branch} here, it was on {then.branch}{same}")
    if now.commits is None:
        return _claim(what, False, f"this commit is not here; HEAD is {now.head[:12]}")
    ahead, behind = now.commits
    if ahead and behind:
        gone = f"{counted(ahead, 'commit')} here, {counted(behind, 'commit')} there"
        return _claim(what, False, f"diverged: {gone} that the other has not")
    if ahead:
        return _claim(what, False, f"{counted(ahead, 'commit')} ahead of it here")
    if behind:
        return _claim(what, False, f"{counted(behind, 'commit')} behind it here")
    return _claim(what, True, f"the same here, on {now.branch}")


def _tree(then: Recorded, now: Seen) -> Claim:
    if not now.changes:
        lost = "it had changes that were not committed, and there are none here"
        return _claim("working tree", not then.dirty, lost if then.dirty else "clean, as it was")
    changed = f"{listed(now.changes)} changed and not committed"
    if then.dirty:
        return _claim("working tree", True, f"{changed}; it had such changes too")
    return _claim("working tree", False, f"{changed}; it was clean")


def _files(then: Recorded, now: Seen, newer: Collection[str]) -> Iterator[Claim]:
    for path, digest in now.files.items():
        if digest == then.files[path]:
            yield _file(path, True, "same content")
        elif digest:
            yield _file(path, False, "changed since")
        elif path in now.renamed:
            yield _file(path, False, f"renamed to {now.renamed[path]}")
        else:
            yield _file(path, False, "missing")
    for name, other in now.others.items():
        absent = "there was no such file when it was written, nor is there now"
        there = NEWER if name in newer else _NO_RECORD
        yield _file(name, False, absent if other.written_ns is None else there)


def stale_files(then: Recorded | None, now: Seen | None, newer: Iterable[str] = ()) -> list[str]:
    """Recorded files whose content is no longer what it was, and those without a record that are
    newer, where that can be told."""
    if then is None:
        return [*newer]
    if now is None or _elsewhere(then, now):
        return []
    changed = [path for path, digest in now.files.items() if digest != then.files[path]]
    return [*changed, *newer]


# --- tests --------------------------------------------------------------------------------------


def results_claims(
    document: Mapping[str, Any],
    then: Recorded | None,
    now: Seen | None,
    newer: Iterable[str] = (),
) -> Iterator[Claim]:
    """That results are about this code: they are not older than it."""
    changed = _changed(then, now, newer)
    status = mapping(mapping(document.get("metrics")).get("tests_status"))
    counts = [(status.get(name), name) for name in ("passed", "failed", "skipped")]
    if told := ", ".join(f"{count} {name}" for count, name in counts if count):
        yield _claim(f"tests: {told}", not changed, changed or _CURRENT)
    last = _last_change(document)
    for result in map(mapping, items(mapping(document.get("verification")).get("results"))):
        what = f"check: {text(result.get('activity'))} {text(result.get('status'))}"
        ran = moment(result.get("run_at"))
        early = "it ran before the last step was done" if ran and last and ran < last else ""
        yield _claim(what, not (early or changed), early or changed or _CURRENT)


_CURRENT = "the code is still what it was"


def _changed(then: Recorded | None, now: Seen | None, newer: Iterable[str]) -> str:
    """Why the code may not be what was tested."""
    if then is None:
        return "no state of the code was recorded with it"
    if now is None or _elsewhere(then, now):
        return "that code is not here to compare with"
    found = stale_files(then, now, newer)
    if now.commits != (0, 0):
        found.append("HEAD")
    if not _tree(then, now).holds:
        found.append("the working tree")
    return f"older than the code: {listed(found)} changed since" if found else ""


def _last_change(document: Mapping[str, Any]) -> datetime | None:
    """When the last step was done that touched files."""
    steps = map(mapping, items(mapping(document.get("execution_state")).get("completed_items")))
    times = [
        moment(step.get("timestamp"))
        for step in steps
        if step.get("files_created") or step.get("files_modified")
    ]
    return max((time for time in times if time), default=None)
