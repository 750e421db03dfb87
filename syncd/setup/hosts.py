"""The hosts: where each keeps its settings, and what it gets."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from syncd.setup.parts import NAME, Event, Hooks, Part, Server, StatusLine, TomlServer, Whole

# Codex passes no variables on but those that are named.
_VARIABLES = ["SYNCD_HOME", "SYNCD_TASK", "SYNCD_AGENT", "SYNCD_AGENT_TYPE", "SYNCD_SESSION",
              "SYNCD_ITERATION"]  # fmt: skip
_BOTH = (
    Event("SessionStart", 10),
    Event("UserPromptSubmit", 10),
    Event("PreToolUse", 10, "Bash"),
    Event("PostToolUse", 10, "*"),
)
_CLAUDE_CODE = (
    *_BOTH,
    Event("PostToolUseFailure", 10, "*"),
    Event("PreCompact", 10),
    Event("Stop", 10),
    Event("SubagentStop", 10),
    Event("SessionEnd", 10),
)
_CODEX = (
    *_BOTH,
    Event("PreCompact", 10),
    Event("PostCompact", 10),
    Event("Stop", 10),
    Event("SessionEnd", 3),  # more is refused with a warning, at every start
)


class Piece(NamedTuple):
    """A file, what of it is ours, and what that is called."""

    path: Path
    what: str
    part: Part


class Scope(NamedTuple):
    """Whose settings: those of a project, at its top, or the user's own (None). `program` is how
    syncd is called: in a project, as everybody can call it."""

    project: Path | None
    program: Sequence[str]

    @property
    def call(self) -> str:
        return shlex.join(self.program)

    def hook(self, host: str) -> str:
        """As a line for a shell. In a project it does nothing, and says nothing, where there is no
        syncd; the host's input is read all the same, or it would complain."""
        if self.project is None:
            return f"{self.call} hook {host}"
        return (
            f"if command -v {NAME} >/dev/null 2>&1; then {NAME} hook {host} || :; "
            "else cat >/dev/null; fi"
        )


def claude_code(scope: Scope) -> list[Piece]:
    told = os.environ.get("CLAUDE_CONFIG_DIR", "")
    own = Path(told).expanduser() if told else Path.home() / ".claude"
    folder = scope.project / ".claude" if scope.project else own
    beside = own if told else Path.home()
    servers = scope.project / ".mcp.json" if scope.project else beside / ".claude.json"
    settings = folder / "settings.json"
    pieces = [
        Piece(settings, "hooks", Hooks(scope.hook("claude-code"), _CLAUDE_CODE, "claude-code"))
    ]
    if scope.project is None:  # in a project it would take the place of everybody's own
        line = StatusLine(f"{scope.hook('claude-code')} --status-line")
        pieces.append(Piece(settings, "status line", line))
    return [
        *pieces,
        Piece(servers, "tools", Server("mcpServers", _server(scope))),
        Piece(folder / "skills" / NAME / "SKILL.md", "skill", Whole(_shipped("skill.md"))),
    ]


def codex(scope: Scope) -> list[Piece]:
    own = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex").expanduser()
    folder = scope.project / ".codex" if scope.project else own
    skills = scope.project / ".agents" / "skills" if scope.project else own / "skills"
    entry = {**_server(scope), "env_vars": _VARIABLES}
    return [
        Piece(folder / "hooks.json", "hooks", Hooks(scope.hook("codex"), _CODEX, "codex")),
        Piece(folder / "config.toml", "tools", TomlServer(entry)),
        Piece(skills / NAME / "SKILL.md", "skill", Whole(_shipped("skill.md"))),
    ]


def opencode(scope: Scope) -> list[Piece]:
    told = os.environ.get("OPENCODE_CONFIG_DIR", "")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    own = Path(told).expanduser() if told else config / "opencode"
    folder = scope.project / ".opencode" if scope.project else own
    entry = {"type": "local", "command": [*scope.program, "mcp"], "enabled": True}
    program = f"const PROGRAM = {json.dumps(list(scope.program))}"
    plugin = _shipped("opencode.js").replace("const PROGRAM = []", program)
    mark = "// installed by `syncd setup`: {}"
    return [
        Piece(folder / "plugins" / f"{NAME}.js", "plugin", Whole(plugin, mark)),
        Piece(_opencode_file(scope.project or own), "tools", Server("mcp", entry)),
        Piece(folder / "skills" / NAME / "SKILL.md", "skill", Whole(_shipped("skill.md"))),
    ]


def _opencode_file(folder: Path) -> Path:
    """The one that is there; it may have comments, and then another name."""
    names = (folder / name for name in ("opencode.json", "opencode.jsonc"))
    return next((file for file in names if file.exists()), folder / "opencode.json")


def _server(scope: Scope) -> dict[str, object]:
    command, *words = scope.program
    return {"command": command, "args": [*words, "mcp"]}


def _shipped(name: str) -> str:
    return (files("syncd.setup") / name).read_text(encoding="utf-8")


HOSTS: Mapping[str, Callable[[Scope], list[Piece]]] = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
}
