"""What whoever resumes should know before anything else."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from syncd.messages import Message
from syncd.resume.claims import NEWER
from syncd.resume.gather import Found
from syncd.resume.text import counted, listed, mapping, text
from syncd.triggers import Advice, advice


class Inbox(NamedTuple):
    """What the agent that goes on was told and has not acknowledged, newest first."""

    agent: str
    unread: list[Message]
    subject: str


class Told(NamedTuple):
    lines: list[str]
    advice: Advice | None


def warnings(found: Found, settings: Mapping[str, Any], inbox: Inbox) -> Told:
    """The weightiest first. The advice is about the context of the agent before."""
    metrics = mapping(found.document.get("metrics"))
    used = metrics.get("context_used_percent")
    advised = advice(used, settings) if isinstance(used, int | float) else None
    return Told(
        [
            *_record(found),
            *_standing(found),
            *_unread(inbox),
            *_code(found),
            *_effort(found, settings, metrics),
            *_context(advised),
        ],
        advised,
    )


def _unread(inbox: Inbox) -> Iterator[str]:
    if inbox.unread:
        many = counted(len(inbox.unread), "unread message")
        about = f", the newest about “{text(inbox.subject, 80)}”" if inbox.subject else ""
        yield f"{many} for you{about}: `syncd inbox {text(shlex.quote(inbox.agent), 128)}`"


def _context(advised: Advice | None) -> Iterator[str]:
    """The advice itself was for the agent before, whose context it was."""
    if advised:
        yield (
            f"The agent before had used {advised.context_used_percent:g} % of its context, more "
            f"than {advised.threshold_percent:g} %: it may have known more than it wrote"
        )


def _record(found: Found) -> Iterator[str]:
    for gone in found.skipped:
        yield (
            f"{text(gone.checkpoint_id, 128)} was newer and cannot be used ({text(gone.problem)}): "
            "what it recorded is not in this prompt"
        )
    if mapping(found.document.get("recovery")).get("can_resume") is False:
        yield "The agent before said that the work cannot be resumed from here"
    if (heads := len(found.task["heads"])) > 1:
        yield (
            f"The work went on in {heads} places: `syncd task heads` lists them, this is the "
            "newest. Ask which one counts"
        )
    if found.conflicts:
        many = counted(len(found.conflicts), "open conflict")
        yield f"{many} about this task: `syncd conflicts list`"


def _standing(found: Found) -> Iterator[str]:
    status = found.task["status"]
    if status in ("blocked", "escalated"):
        yield f"The task is {status}: see what it waits for before you go on"
    elif status in ("complete", "failed"):
        yield f"The task is {status}: make sure that there is something left to do"
    if put_off := found.task.get("deferred"):
        until = text(put_off["until"], 80) or "somebody says so"
        why = f" ({text(put_off['reason'])})" if put_off["reason"] else ""
        due = "that time has come" if put_off["due"] else "ask before you go on"
        yield f"The task was deferred until {until}{why}: {due}"


def _code(found: Found) -> Iterator[str]:
    yield from _stale(found)
    open_ones = [claim.claim for claim in found.claims if not claim.holds]
    if open_ones:
        yield f"UNVERIFIED: {len(open_ones)} of {len(found.claims)} claims ({listed(open_ones)})"


def _stale(found: Found) -> Iterator[str]:
    newer = {claim.path for claim in found.claims if claim.reason == NEWER}
    if changed := [path for path in found.stale if path not in newer]:
        yield (
            f"STALE: {listed(changed, 5)} changed since the checkpoint. Read what changed "
            "before you rely on it"
        )
    if later := [path for path in found.stale if path in newer]:
        yield (
            f"STALE: {listed(later, 5)} newer than the checkpoint, which recorded no content to "
            "compare. Read what is there before you rely on it"
        )


def _effort(found: Found, settings: Mapping[str, Any], metrics: Mapping[str, Any]) -> Iterator[str]:
    spent = found.task["cost"]["budget_used"]
    if spent is not None and spent * 100 > settings["handoff.budget_percent"]:
        yield f"Budget warning: {spent * 100:.4g} % of {found.task['budget']:,} tokens are used"
    errors = metrics.get("error_count")
    if isinstance(errors, int) and errors > settings["handoff.errors"]:
        yield f"{errors:,} errors before this checkpoint: try another way"
