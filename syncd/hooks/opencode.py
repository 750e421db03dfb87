"""The events of OpenCode, as its plugin passes them on: those of its `event` hook with their
`properties`, and the named hooks with `input` and `output`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncd.hooks.events import (
    AFTER,
    ASKED,
    BEFORE,
    COMPACT,
    END,
    ERROR,
    FILES,
    REQUEST,
    START,
    STOP,
    Event,
    mapping,
    patched,
    path,
    risk,
    tested,
    text,
    todos,
)

_KINDS = {
    "session.created": START, "session.idle": STOP, "session.compacted": COMPACT,
    "session.error": STOP, "session.deleted": END, "todo.updated": AFTER, "file.edited": AFTER,
    "message.updated": AFTER, "chat.message": ASKED, "tool.execute.before": BEFORE,
    "tool.execute.after": AFTER, "experimental.session.compacting": COMPACT,
}  # fmt: skip
_EDITS = ("edit", "write", "multiedit", "patch", "apply_patch")


def read(document: Mapping[str, Any]) -> Event | None:
    name = text(document.get("type"), 80)
    properties, given = mapping(document.get("properties")), mapping(document.get("input"))
    answer, info = mapping(document.get("output")), mapping(properties.get("info"))
    session = text(
        properties.get("sessionID")
        or given.get("sessionID")
        or info.get("sessionID")
        or (info.get("id") if name.startswith("session.") else None)
        or document.get("session"),
        200,
    )
    if name not in _KINDS or not session or (name == "session.created" and info.get("parentID")):
        return None
    said = _said(name, properties, given, answer)
    source = "compact" if name == "experimental.session.compacting" else "startup"
    return Event(
        name, _KINDS[name], session, path(document.get("directory")), "", source,
        {key: value for key, value in said.items() if value},
    )  # fmt: skip


def _said(
    name: str, properties: Mapping[str, Any], given: Mapping[str, Any], answer: Mapping[str, Any]
) -> dict[str, Any]:
    if name == "chat.message":
        return {"ask": _words(answer.get("parts"))}
    if name == "todo.updated":
        return {"todos": todos(properties.get("todos"), "content")}
    if name == "file.edited":
        return {"files": [path(properties.get("file"))]}
    if name == "message.updated":
        return {"spent": _spent(mapping(properties.get("info")))}
    if name == "tool.execute.before":
        return {"risk": risk(mapping(answer.get("args")))}
    if name == "tool.execute.after":
        return _used(given, answer)
    if name == "session.error":
        problem = mapping(properties.get("error"))
        said = mapping(problem.get("data")).get("message") or problem.get("name")
        return {"error": text(said, ERROR) or "the session failed"}
    return {}


def _words(parts: Any) -> str:
    """What the user wrote, without what was added to it."""
    found = [mapping(part) for part in parts] if isinstance(parts, list) else []
    lines = [p.get("text") for p in found if p.get("type") == "text" and not p.get("synthetic")]
    return text("\n".join(line for line in lines if isinstance(line, str)), REQUEST)


def _used(given: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    tool, args = text(given.get("tool"), 80), mapping(given.get("args"))
    known = mapping(answer.get("metadata"))
    code = known.get("exit")
    failed = tool == "bash" and isinstance(code, int) and code != 0
    said: dict[str, Any] = {"tool": tool, "tests": tested(args, answer, failed=failed)}
    if failed:
        said["error"] = f"exit code {code}: {text(args.get('command'), 200)}"
    elif tool in _EDITS:
        named = patched(args.get("patchText") or args.get("patch"))
        said["files"] = list(filter(None, [path(args.get("filePath")), *named]))[: FILES + 1]
    return said


def _spent(info: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens and cost of one message, which may be told more than once."""
    tokens, cost = mapping(info.get("tokens")), info.get("cost")
    cache = mapping(tokens.get("cache"))
    counts = {
        "input": tokens.get("input"), "output": tokens.get("output"),
        "cache_read": cache.get("read"), "cache_write": cache.get("write"),
        "reasoning": tokens.get("reasoning"),
    }  # fmt: skip
    found: dict[str, Any] = {name: n for name, n in counts.items() if isinstance(n, int) and n > 0}
    if isinstance(cost, int | float) and cost > 0:
        found["cost"] = cost
    return {"id": text(info.get("id"), 200), **found} if found else {}
