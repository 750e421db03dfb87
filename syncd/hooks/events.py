"""What a host says at an event, in one form for all of them. Pure.

Hosts change: what is unknown is passed over, and nothing is taken for what it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

CLAUDE_CODE, CODEX, OPENCODE = HOSTS = ("claude-code", "codex", "opencode")

# What an event is for us.
START, ASKED, BEFORE, AFTER, FAILED, COMPACT, STOP, END = (
    "start", "asked", "before", "after", "failed", "compact", "stop", "end",
)  # fmt: skip
SUBAGENT = "subagent"
_KINDS = {
    "SessionStart": START, "UserPromptSubmit": ASKED, "PreToolUse": BEFORE, "PostToolUse": AFTER,
    "PostToolUseFailure": FAILED, "PreCompact": COMPACT, "Stop": STOP, "StopFailure": STOP,
    "SubagentStop": SUBAGENT, "SessionEnd": END,
}  # fmt: skip

REQUEST, ITEM, ERROR, COMMAND = 2_000, 300, 500, 200
_TODOS = 100
# So many files a checkpoint names. One more is known of, so that it can tell that there were more.
FILES = 200
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.M)


class Event(NamedTuple):
    """`name` is the host's own word, `said` what goes to the journal."""

    name: str
    kind: str
    session: str
    folder: str
    transcript: str = ""
    source: str = ""
    said: Mapping[str, Any] = {}


def read(host: str, document: Any) -> Event | None:
    """None for an event that says nothing to us."""
    if not isinstance(document, Mapping):
        return None
    if host == OPENCODE:
        from syncd.hooks import opencode

        return opencode.read(document)
    name = text(document.get("hook_event_name"), 80)
    kind, session = _KINDS.get(name, ""), text(document.get("session_id"), 200)
    if not kind or not session:
        return None
    return Event(
        name, kind, session, path(document.get("cwd")), path(document.get("transcript_path")),
        text(document.get("source"), 80), {k: v for k, v in _said(kind, document).items() if v},
    )  # fmt: skip


def _said(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
    if kind == ASKED:
        return {"ask": asked(document.get("prompt"))}
    if kind == BEFORE:
        return {"risk": risk(mapping(document.get("tool_input")))}
    if kind in (AFTER, FAILED):
        return used(document, failed=kind == FAILED)
    if kind == SUBAGENT:
        return {"transcript": path(document.get("agent_transcript_path")), "subagent": True}
    if document.get("hook_event_name") == "StopFailure":
        return {"refused": text(document.get("error"), 80)}
    return {}


def asked(prompt: Any) -> str:
    """What a person wrote: hosts also say by this way that something in the background is done."""
    words = text(prompt, REQUEST)
    return "" if words.startswith("<task-notification") else words


def risk(given: Mapping[str, Any]) -> str:
    """The command that is about to run, if the work should be written down before it."""
    if not isinstance(command := given.get("command"), str):
        return ""
    from syncd.hooks.commands import risky

    return text(command, COMMAND) if risky(command) else ""


# --- the use of a tool --------------------------------------------------------------------------


def used(document: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    tool, given = text(document.get("tool_name"), 80), mapping(document.get("tool_input"))
    answer = document.get("tool_response")
    said: dict[str, Any] = {
        "tool": tool,
        "agent": text(document.get("agent_id"), 80),
        "tests": tested(given, document.get("error") or answer, failed=failed),
    }
    if failed:
        if document.get("is_interrupt") is not True:  # the user's own doing
            said["error"] = text(document.get("error"), ERROR) or f"{tool} failed"
        return said
    # A sub-agent has a list of its own, which is not that of the session.
    listed = {} if said["agent"] else _todos(tool, given, answer)
    return {**said, "files": [*_files(tool, given)][: FILES + 1], **listed}


def tested(given: Mapping[str, Any], answer: Any, *, failed: bool) -> dict[str, Any]:
    """What a test run says. The patterns for that are only worth loading for a command."""
    if not isinstance(command := given.get("command"), str):
        return {}
    from syncd.hooks.commands import results

    return results(command, output(answer), failed=failed)


def _files(tool: str, given: Mapping[str, Any]) -> Iterator[str]:
    if tool == "apply_patch":
        yield from patched(given.get("command") or given.get("patch") or given.get("input"))
    elif tool in ("Edit", "MultiEdit", "Write", "NotebookEdit"):
        name = path(given.get("file_path") or given.get("notebook_path"))
        if name:
            yield name


def patched(patch: Any) -> list[str]:
    """The files that a patch names."""
    return [path(name) for name in _PATCHED.findall(patch if isinstance(patch, str) else "")]


def _todos(tool: str, given: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """A list that replaces the one before, or a word about one of its items."""
    if tool == "TodoWrite":
        return {"todos": todos(given.get("todos"), "content")}
    if tool == "update_plan":
        return {"todos": todos(given.get("plan"), "step")}
    if tool == "TaskCreate":
        made = mapping(mapping(answer).get("task"))
        number = text(made.get("id"), 80)
        subject = text(given.get("subject") or made.get("subject"), ITEM)
        return {"todo": [number, subject, "pending"]} if number and subject else {}
    if tool == "TaskUpdate":
        number = text(given.get("taskId"), 80)
        words = [text(given.get("subject"), ITEM), text(given.get("status"), 80)]
        return {"todo": [number, *words]} if number and any(words) else {}
    return {}


def todos(listed: Any, name: str) -> list[list[str]]:
    """Text and status of each item; of a list that is too long, how many are left out."""
    found = (mapping(item) for item in listed) if isinstance(listed, list) else ()
    pairs = [[text(item.get(name), ITEM), text(item.get("status"), 80)] for item in found]
    kept = [pair for pair in pairs if pair[0]]
    if (more := len(kept) - _TODOS) > 0:
        return [*kept[:_TODOS], [f"({more} more items, which are not recorded)", "pending"]]
    return kept


def output(answer: Any) -> str:
    """The words of a tool's answer, whatever form it has."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Mapping):
        names = ("stdout", "stderr", "output", "content", "text", "error")
        return "\n".join(filter(None, (output(answer.get(name)) for name in names)))
    if isinstance(answer, list):
        return "\n".join(filter(None, map(output, answer[:100])))
    return ""


# --- values -------------------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def text(value: Any, limit: int) -> str:
    """On disk and in a prompt as it is: no control character, no half of a character."""
    if not isinstance(value, str):
        return ""
    whole = value[: 2 * limit].encode("utf-8", "replace").decode("utf-8")
    clean = _CONTROL.sub(" ", whole).strip()
    return clean if len(clean) <= limit else clean[: limit - 1].rstrip() + "…"


def path(value: Any) -> str:
    """A path as the system takes it: not cut, and without what no path can have."""
    return value if isinstance(value, str) and "\0" not in value and _encodes(value) else ""


def _encodes(value: str) -> bool:
    try:
        return len(value.encode()) <= 4_096
    except UnicodeEncodeError:
        return False
