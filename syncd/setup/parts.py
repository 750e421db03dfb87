"""What a host can be given, each in a file of its own kind: pure changes from text to text."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tomlkit
from tomlkit.exceptions import TOMLKitError

from syncd.errors import InvalidInputError
from syncd.formats.jsontext import Path
from syncd.formats.reading import FormatError
from syncd.setup.jsonc import Document, Memory

NAME = "syncd"


class File(NamedTuple):
    """A file as it is, or is to be; None: there is none."""

    text: str | None
    memory: Memory


class Part(Protocol):
    """Something in a file that is ours. `put` on what is complete, and `take` where there is
    nothing of ours, change nothing."""

    def put(self, file: File, name: str) -> File: ...

    def take(self, file: File, name: str) -> File: ...


# --- JSON -----------------------------------------------------------------------------------------


class Event(NamedTuple):
    """When a hook is called: for which tools (all, if none is named), and for how long at most."""

    name: str
    seconds: int
    matcher: str = ""


class Hooks(NamedTuple):
    """The hooks of Claude Code and Codex, which have the same form."""

    command: str
    events: Sequence[Event]
    host: str

    def put(self, file: File, name: str) -> File:
        document = Document(file.text, name, file.memory)
        if sorted(_found(document, self.host)) == sorted(self._wanted()):
            return file
        self._take(document)
        for event in self.events:
            document.add(("hooks", event.name, 0), self._group(event))
        return File(document.text, document.memory)

    def take(self, file: File, name: str) -> File:
        if not _has_text(file):
            return file
        document = Document(file.text, name, file.memory)
        self._take(document)
        return _left(file, document)

    def _take(self, document: Document) -> None:
        while path := next(_places(document, self.host), None):
            document.remove(path)

    def _group(self, event: Event) -> dict[str, Any]:
        matcher = {"matcher": event.matcher} if event.matcher else {}
        return {**matcher, "hooks": [_hook(self.command, event.seconds)]}

    def _wanted(self) -> Iterator[str]:
        for event in self.events:
            yield _told(event.name, event.matcher, _hook(self.command, event.seconds))


def _hook(command: str, seconds: int) -> dict[str, Any]:
    return {"type": "command", "command": command, "timeout": seconds}


def _told(event: str, matcher: Any, hook: Any) -> str:
    return json.dumps([event, matcher, hook], sort_keys=True)


def _found(document: Document, host: str) -> Iterator[str]:
    for path in _places(document, host):
        matcher = document.get((*path[:3], "matcher")) or ""
        group = path if len(path) > 3 else (*path, "hooks", 0)
        yield _told(str(path[1]), matcher, document.get(group))


def _places(document: Document, host: str) -> Iterator[Path]:
    """Where our hooks stand: the whole group, or in a group with others the hook alone."""
    events = document.get(("hooks",))
    for event, groups in events.items() if isinstance(events, dict) else ():
        for number, group in enumerate(groups if isinstance(groups, list) else ()):
            hooks = group.get("hooks") if isinstance(group, dict) else None
            own = [n for n, hook in enumerate(hooks or ()) if _is_ours(hook, host)]
            if own and isinstance(hooks, list):
                path = ("hooks", event, number)
                yield path if len(own) == len(hooks) else (*path, "hooks", own[0])


def _is_ours(hook: Any, host: str) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and calls_hook(command, host)


def calls_hook(command: str, host: str) -> bool:
    return bool(re.search(rf"\bsyncd\b.*\bhook {re.escape(host)}\b", command))


class Server(NamedTuple):
    """The entry for `syncd mcp` among a host's MCP servers."""

    holder: str
    entry: Mapping[str, Any]

    def put(self, file: File, name: str) -> File:
        document = Document(file.text, name, file.memory)
        path = (self.holder, NAME)
        present = document.get(path)
        if isinstance(present, dict) and self.entry.items() <= present.items():
            return file
        document.remove(path)
        document.add(path, dict(self.entry))
        return File(document.text, document.memory)

    def take(self, file: File, name: str) -> File:
        if not _has_text(file):
            return file
        document = Document(file.text, name, file.memory)
        document.remove((self.holder, NAME))
        return _left(file, document)


_LINE: Path = ("statusLine",)
_COMMAND: Path = ("statusLine", "command")
_KEPT = "statusLine.command"


class StatusLine(NamedTuple):
    """Claude Code tells its status line how full the context is. One that is there already goes on
    working: ours calls it, with the same input, and shows what it says."""

    command: str

    def put(self, file: File, name: str) -> File:
        document = Document(file.text, name, file.memory)
        line = document.get(_LINE)
        if line is None:
            document.add(_LINE, {"type": "command", "command": self.command})
            return File(document.text, document.memory)
        words = line.get("command") if isinstance(line, dict) else None
        if not isinstance(words, str) or line.get("type", "command") != "command":
            return file  # of a kind that is not known here
        original = _original(words)
        wanted = self.command if original is None else self._around(original)
        if words == wanted:
            return file
        if not _bridges(words):
            document.memory[_KEPT] = document.literal(_COMMAND)
        document.replace(_COMMAND, json.dumps(wanted))
        return File(document.text, document.memory)

    def _around(self, original: str) -> str:
        return f"{self.command} -- {shlex.quote(original)}"

    def take(self, file: File, name: str) -> File:
        if not _has_text(file):
            return file
        document = Document(file.text, name, file.memory)
        words = document.get(_COMMAND)
        if not isinstance(words, str) or not _bridges(words):
            return file
        original, kept = _original(words), document.memory.pop(_KEPT, "")
        if original is None:
            document.remove(_LINE)
        else:
            same = bool(kept) and json.loads(kept) == original
            document.replace(_COMMAND, kept if same else json.dumps(original, ensure_ascii=False))
        return _left(file, document)


def _bridges(command: str) -> bool:
    return calls_hook(command, "claude-code") and " --status-line" in command


def _original(command: str) -> str | None:
    """The user's own command, which is all of it if ours is not around it; None: there is none."""
    if not _bridges(command):
        return command
    before, dashes, _ = command.partition(" --status-line -- ")
    return shlex.split(command[len(before) + len(dashes) :])[-1] if dashes else None


def _has_text(file: File) -> bool:
    return bool(file.text and file.text.strip())


def _left(file: File, document: Document) -> File:
    if document.text == file.text:
        return file
    text = document.remains()
    return File(text, document.memory)


# --- TOML -----------------------------------------------------------------------------------------


class TomlServer(NamedTuple):
    """The same entry in Codex's config.toml, as a table at its end."""

    entry: Mapping[str, Any]

    def put(self, file: File, name: str) -> File:
        text, memory = file.text or "", dict(file.memory)
        present = _servers(text, name).get(NAME)
        if present is not None:
            return File(self._corrected(text, present), memory)
        if not text.strip():
            memory.setdefault("file", "absent" if file.text is None else text)
            return File(self._block("\n") + "\n", memory)
        newline = "\r\n" if "\r\n" in text else "\n"
        block = self._block(newline)
        ends = text.endswith("\n")
        # With or without a line break at its end, as it was.
        new = f"{text}{newline}{block}{newline}" if ends else f"{text}{newline * 2}{block}"
        try:
            tomlkit.parse(new)
        except TOMLKitError:  # the servers stand in a form that no table can be added to
            new = self._corrected(text, None)
        return File(new, memory)

    def _corrected(self, text: str, present: Any) -> str:
        if isinstance(present, dict) and self.entry.items() <= present.items():
            return text
        document = tomlkit.parse(text)
        servers: Any = document["mcp_servers"]
        if not isinstance(present, dict):
            servers[NAME] = {}
        for key, value in self.entry.items():
            servers[NAME][key] = value
        return tomlkit.dumps(document)

    def _block(self, newline: str) -> str:
        lines = [f"[mcp_servers.{NAME}]"]
        lines += [f"{key} = {tomlkit.item(value).as_string()}" for key, value in self.entry.items()]
        return newline.join(lines)

    def take(self, file: File, name: str) -> File:
        text = file.text
        present = _servers(text, name).get(NAME) if text else None
        if text is None or present is None:
            return file
        memory = dict(file.memory)
        left = self._cut(text) if present == dict(self.entry) else _without(text)
        if left.strip():
            return File(left, memory)
        before = memory.pop("file", left if file.memory else "absent")
        return File(None if before == "absent" else before, memory)

    def _cut(self, text: str) -> str:
        for newline in ("\r\n", "\n"):
            block = self._block(newline)
            if (at := text.find(block)) < 0:
                continue
            before, after = text[:at], text[at + len(block) :]
            if after.startswith(newline):
                return before.removesuffix(newline) + after.removeprefix(newline)
            if not after:
                return before.removesuffix(newline).removesuffix(newline)
        return _without(text)


def _without(text: str) -> str:
    """The text without our table, whatever somebody has made of it."""
    document = tomlkit.parse(text)
    servers: Any = document["mcp_servers"]
    del servers[NAME]
    if not servers:
        del document["mcp_servers"]
    return tomlkit.dumps(document)


def _servers(text: str, name: str) -> dict[str, Any]:
    try:
        found = tomlkit.parse(text).unwrap().get("mcp_servers", {})
    except TOMLKitError as error:
        raise _fault(name, getattr(error, "line", 1), f"expected TOML: {error}") from None
    if not isinstance(found, dict):
        raise _fault(name, 1, "expected a table at mcp_servers")
    return found


def _fault(name: str, line: int, expected: str) -> FormatError:
    fault = FormatError(name, line, expected)
    fault.remedy = f"Correct {name}, then run the command again; nothing was changed."
    return fault


# --- whole files ----------------------------------------------------------------------------------


class Whole(NamedTuple):
    """A file that is ours altogether, marked with a digest of itself: one that was edited since is
    its editor's, and stays."""

    content: str
    mark: str = "<!-- installed by `syncd setup`: {} -->"

    @property
    def text(self) -> str:
        return f"{self.content}{self.mark.format(_digest(self.content))}\n"

    def put(self, file: File, name: str) -> File:
        if file.text is None or self._untouched(file.text):
            return File(self.text, file.memory)
        raise EditedError(name)

    def take(self, file: File, name: str) -> File:
        if file.text is None or self._untouched(file.text):
            return File(None, file.memory)
        raise EditedError(name)

    def _untouched(self, text: str) -> bool:
        content, _, last = text.removesuffix("\n").rpartition("\n")
        return last == self.mark.format(_digest(f"{content}\n"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class EditedError(InvalidInputError):
    """Somebody has made it his own."""

    code = "edited"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was not written by syncd, or was edited since", f"Move {name} away first."
        )
