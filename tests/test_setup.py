"""`syncd setup`: what it installs, that it leaves all else alone, and that it can be undone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from counts import full
from daemons import until
from hypothesis import given, settings
from hypothesis import strategies as st

from syncd.cli import setup
from syncd.cli.app import syncd
from syncd.errors import SyncdError
from syncd.setup.hosts import HOSTS, Scope
from syncd.setup.jsonc import Document, strict
from syncd.setup.parts import Event, File, Hooks, Part, Server, StatusLine, TomlServer, Whole

ALL = tuple(HOSTS)
# Whatever Claude Code and Codex call, a shell must be able to.
SHELLS = [shell for shell in ("sh", "bash", "dash") if shutil.which(shell)]


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "user").mkdir()


@pytest.fixture
def user(tmp_path: Path) -> Path:
    return tmp_path / "user"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "shop"
    (folder / "src").mkdir(parents=True)
    (folder / ".git").mkdir()
    monkeypatch.chdir(folder / "src")
    return folder


def run(*words: str) -> Result:
    return CliRunner().invoke(syncd, ["setup", *words, "--json"])


def states(*words: str, code: int = 0) -> dict[str, str]:
    done = run(*words)
    assert done.exit_code == code, done.output
    document = json.loads(done.stdout)
    return {file["what"]: file["state"] for file in document["files"]}


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(folder)): (file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
        for file in folder.rglob("*")
        if file.is_file()
    }


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# --- what is installed ----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ALL)
@pytest.mark.parametrize("scope", ["--user", "--project"])
def test_it_is_installed_once_checked_and_removed_without_a_trace(
    host: str, scope: str, user: Path, shop: Path
) -> None:
    before = tree(user), tree(shop)
    assert set(states(host, scope, "--check", code=3).values()) == {"missing"}
    assert set(states(host, scope).values()) == {"installed"}
    installed = tree(user), tree(shop)
    assert (installed[0] == before[0]) == (scope == "--project")
    assert set(states(host, scope).values()) == {"unchanged"}
    assert (tree(user), tree(shop)) == installed
    assert set(states(host, scope, "--check").values()) == {"present"}
    assert set(states(host, scope, "--remove").values()) == {"removed"}
    assert (tree(user), tree(shop)) == before
    assert set(states(host, scope, "--remove").values()) == {"absent"}
    assert {path.name for path in user.iterdir()} <= {".config"}
    assert sorted(path.name for path in shop.iterdir()) == [".git", "src"]


@pytest.mark.parametrize("host", ALL)
def test_a_file_that_was_empty_is_empty_again(host: str, user: Path) -> None:
    states(host)
    files = [file for file in user.rglob("*") if file.suffix in (".json", ".toml", ".jsonc")]
    states(host, "--remove")
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    before = tree(user)
    states(host)
    assert tree(user) != before
    states(host, "--remove")
    assert tree(user) == before


def test_after_a_removal_nobody_is_told_to_trust_hooks(user: Path) -> None:
    program = CliRunner()
    assert "trust the hooks" in program.invoke(syncd, ["setup", "codex"]).stderr
    assert program.invoke(syncd, ["setup", "codex", "--remove"]).stderr == "Start Codex anew.\n"
    assert program.invoke(syncd, ["setup", "codex", "--remove"]).stderr == ""


@pytest.mark.parametrize("host", ALL)
def test_what_is_installed_twice_is_told(host: str, shop: Path) -> None:
    assert json.loads(run(host, "--project").stdout)["notices"] == []
    [notice] = json.loads(run(host).stdout)["notices"]
    assert "twice" in notice
    states(host, "--remove", "--project")
    assert json.loads(run(host).stdout)["notices"] == []


def test_a_project_that_is_no_repository_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [notice] = json.loads(run("opencode", "--project").stdout)["notices"]
    assert f"{tmp_path} is in no git repository" in notice
    assert json.loads(run("opencode", "--project", "--remove").stdout)["notices"] == []
    said = CliRunner().invoke(syncd, ["setup", "opencode", "--project"])
    assert "Warning:" in said.stderr
    assert "no git repository" in said.stderr


def test_every_host_is_offered() -> None:
    assert setup._HOSTS == ALL


def test_claude_code_gets_hooks_a_status_line_tools_and_a_skill(user: Path, home: Path) -> None:
    states("claude-code")
    settings = json.loads((user / ".claude" / "settings.json").read_text())
    assert {"SessionStart", "PreCompact", "Stop", "SessionEnd"} < settings["hooks"].keys()
    [group] = settings["hooks"]["PreToolUse"]
    assert group["matcher"] == "Bash"
    [hook] = group["hooks"]
    words = shlex.split(hook["command"])
    assert Path(words[0]).is_absolute()
    assert words[-4:] == ["--home", str(home), "hook", "claude-code"]
    assert settings["statusLine"]["command"] == hook["command"] + " --status-line"
    server = json.loads((user / ".claude.json").read_text())["mcpServers"]["syncd"]
    assert [server["command"], *server["args"]] == [*words[:-2], "mcp"]
    skill = (user / ".claude" / "skills" / "syncd" / "SKILL.md").read_text()
    assert skill.startswith("---\nname: syncd\ndescription: ")


def test_in_a_project_everybody_s_syncd_is_meant_and_nobody_s_status_line_replaced(
    shop: Path,
) -> None:
    states("claude-code", "--project")
    settings = json.loads((shop / ".claude" / "settings.json").read_text())
    assert "statusLine" not in settings
    assert str(Path(sys.executable).parent) not in json.dumps(settings)
    servers = json.loads((shop / ".mcp.json").read_text())["mcpServers"]
    assert servers == {"syncd": {"command": "syncd", "args": ["mcp"]}}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("there", ["", "exit 0", "exit 2"])
def test_a_project_s_hook_does_no_harm_on_any_machine(
    shell: str, there: str, tmp_path: Path
) -> None:
    """Without syncd nothing happens; with an older one, that knows no hooks, neither."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("cat", "sh"):
        (folder / tool).symlink_to(shutil.which(tool) or "")
    if there:
        write(folder / "syncd", f'#!/bin/sh\necho "$@"\ncat >&2\n{there}\n').chmod(0o755)
    command = Scope(tmp_path, ["syncd"]).hook("claude-code")
    with (tmp_path / "stderr").open("w+b") as stderr, subprocess.Popen(
        [shutil.which(shell) or shell, "-c", command], env={"PATH": str(folder)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"x" * 200_000)  # raises if nobody reads it
        process.stdin.close()
        assert process.stdout.read() == (b"hook claude-code\n" if there else b"")
        assert process.wait(10) == 0
        assert stderr.seek(0, os.SEEK_END) == (200_000 if there else 0)


def test_hosts_are_found_where_they_are_told_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "OPENCODE_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for host in ALL:
        states(host)
    assert {path.name for path in (tmp_path / "CLAUDE_CONFIG_DIR").iterdir()} == {
        ".claude.json", "settings.json", "skills"}  # fmt: skip
    assert tomllib.loads((tmp_path / "CODEX_HOME" / "config.toml").read_text())["mcp_servers"]
    assert (tmp_path / "OPENCODE_CONFIG_DIR" / "plugins" / "syncd.js").is_file()
    monkeypatch.delenv("OPENCODE_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    states("opencode")
    assert (tmp_path / "xdg" / "opencode" / "opencode.json").is_file()
    assert not list((tmp_path / "user").iterdir())


def test_an_own_status_line_is_wrapped_and_comes_back(user: Path) -> None:
    own = r"""printf '%s "quoted" $1' "it's" | tr a-z A-Z"""
    text = json.dumps({"statusLine": {"padding": 0, "command": own, "type": "command"}}, indent=4)
    text = text.replace("quoted", "\\u0071uoted")
    file = write(user / ".claude" / "settings.json", text)
    states("claude-code")
    line = json.loads(file.read_text())["statusLine"]
    words = shlex.split(line["command"])
    assert words[-3:] == ["--status-line", "--", own]
    assert (line["padding"], line["type"]) == (0, "command")
    assert set(states("claude-code").values()) == {"unchanged"}
    states("claude-code", "--remove")
    assert file.read_text() == text


def test_a_status_line_that_was_changed_since_is_the_user_s(user: Path) -> None:
    states("claude-code")
    file = user / ".claude" / "settings.json"
    document = json.loads(file.read_text())
    document["statusLine"]["command"] = "mine"
    file.write_text(json.dumps(document))
    assert states("claude-code", "--check", code=3)["status line"] == "missing"
    assert states("claude-code", "--remove")["status line"] == "absent"
    assert json.loads(file.read_text()) == {"statusLine": {"type": "command", "command": "mine"}}


def test_what_differs_is_told_and_mended(user: Path) -> None:
    states("claude-code")
    file = user / ".claude" / "settings.json"
    wanted = file.read_text()
    file.write_text(wanted.replace(shlex.quote(sys.executable), "/elsewhere/python"))
    assert file.read_text() != wanted
    found = states("claude-code", "--check", code=3)
    assert (found["hooks"], found["status line"]) == ("differs", "differs")
    assert states("claude-code")["hooks"] == "updated"
    assert json.loads(file.read_text()) == json.loads(wanted)
    states("claude-code", "--remove")
    assert not list(user.iterdir())


def test_a_skill_that_was_edited_is_its_editor_s(user: Path) -> None:
    states("codex")
    skill = user / ".codex" / "skills" / "syncd" / "SKILL.md"
    skill.write_text("Ours: " + skill.read_text())
    mine = skill.read_text()
    for words in ((), ("--check",), ("--remove",)):
        assert states("codex", *words)["skill"] == "edited"
        assert skill.read_text() == mine


def test_an_older_skill_is_replaced(user: Path) -> None:
    skill = user / ".codex" / "skills" / "syncd" / "SKILL.md"
    write(skill, Whole("as it was\n").text)
    assert states("codex")["skill"] == "updated"
    assert "as it was" not in skill.read_text()


# --- what cannot be changed -----------------------------------------------------------------------

BROKEN = {
    ".claude/settings.json": ('{\n  "model": "x",\n  oops\n}\n', "line 3"),
    ".claude.json": ("[]", "expected an object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_file_is_named_and_nothing_is_changed(name: str, user: Path) -> None:
    text, words = BROKEN[name]
    write(user / name, text)
    before = tree(user)
    for how in ((), ("--check",), ("--remove",)):
        done = run("claude-code", *how)
        assert isinstance(done.exception, SyncdError)
        assert done.exception.exit_code == 2
        assert str(user / name) in done.exception.message
        assert words in done.exception.message
        assert str(user / name) in done.exception.remedy
        assert tree(user) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"hooks": []}', "expected an object at hooks"),
        ('{"hooks": {"Stop": {}}}', "expected a list at hooks.Stop"),
        ('{\n"hooks": {},\n"hooks": {}}', "line 3"),
    ],
)
def test_settings_of_another_form_are_left_alone(text: str, words: str, user: Path) -> None:
    file = write(user / ".claude" / "settings.json", text)
    done = run("claude-code")
    assert isinstance(done.exception, SyncdError)
    assert words in done.exception.message
    assert file.read_text() == text
    assert not (user / ".claude.json").exists()


@pytest.mark.parametrize("text", ["a = \n", "[mcp_servers\n", "mcp_servers = 3\n", "x = '\xff'"])
def test_a_malformed_toml_file_is_named_and_nothing_is_changed(text: str, user: Path) -> None:
    file = user / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    before = tree(user)
    done = run("codex")
    assert isinstance(done.exception, SyncdError)
    assert f"{file}, line 1" in done.exception.message
    assert tree(user) == before


def test_options_that_exclude_each_other_are_refused() -> None:
    for words in (("--check", "--remove"), ("--user", "--project")):
        assert getattr(run("codex", *words).exception, "exit_code", 0) == 2


# --- files of others ------------------------------------------------------------------------------


def test_links_are_followed_and_modes_kept(user: Path, tmp_path: Path) -> None:
    real = write(tmp_path / "dotfiles" / "claude.json", '{"a": 1}\n')
    real.chmod(0o640)
    (user / ".claude").mkdir()
    (user / ".claude" / "settings.json").symlink_to(real)
    states("claude-code")
    assert (user / ".claude" / "settings.json").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert "hooks" in json.loads(real.read_text())
    states("claude-code", "--remove")
    assert real.read_text() == '{"a": 1}\n'
    assert not list(real.parent.glob(".*part"))


def test_comments_stay_where_they_are(shop: Path) -> None:
    text = """{
  // which model
  "model": "x", /* today */
  "mcp": {
    "other": {"type": "local", "command": ["x"]}, // theirs
  }, // the last
}
"""
    file = write(shop / "opencode.jsonc", text)
    states("opencode", "--project")
    changed = file.read_text()
    assert '["x"]}, // theirs\n' in changed
    assert changed.count("//") == 3
    assert json.loads(strict(changed))["mcp"]["syncd"]["command"] == ["syncd", "mcp"]
    assert not (shop / "opencode.json").exists()
    states("opencode", "--project", "--remove")
    assert file.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        'model = "x"',
        'model = "x"\n',
        'model = "x"\r\n[a] # mine\r\nb = 1\r\n',
        "[mcp_servers.other]\ncommand = 'x'\n\n\n",
        "# nothing\n",
        'mcp_servers = {other = {command = "x"}}\nmodel = 1\n',
    ],
)
def test_a_toml_file_is_as_it_was(text: str, user: Path) -> None:
    file = user / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_bytes(text.encode())
    states("codex")
    document = tomllib.loads(file.read_text())
    assert document["mcp_servers"]["syncd"]["args"][-1] == "mcp"
    assert set(states("codex").values()) == {"unchanged"}
    states("codex", "--remove")
    assert tomllib.loads(file.read_text()) == tomllib.loads(text)
    if "mcp_servers = {" not in text:
        assert file.read_bytes() == text.encode()


def test_what_the_user_adds_to_our_table_stays_until_it_is_removed(user: Path) -> None:
    states("codex")
    file = user / ".codex" / "config.toml"
    file.write_text(file.read_text() + 'enabled = false\n\n[mine]\na = "b" # c\n')
    assert states("codex")["tools"] == "unchanged"
    states("codex", "--remove")
    assert tomllib.loads(file.read_text()) == {"mine": {"a": "b"}}
    assert "# c" in file.read_text()


# --- any settings at all --------------------------------------------------------------------------

HOOKS = Hooks(
    "/bin/syncd hook claude-code", [Event("Stop", 1), Event("Pre", 2, "Bash")], "claude-code"
)
PARTS: tuple[Part, ...] = (
    HOOKS,
    StatusLine("/bin/syncd hook claude-code --status-line"),
    Server("mcpServers", {"command": "/bin/syncd", "args": ["mcp"]}),
)
words = st.text('ab "\\/{}[],:*\u00e9\n\U0001f600', max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
theirs = st.builds(
    lambda command, extra: {"hooks": [{"type": "command", "command": command}], **extra},
    words, st.dictionaries(st.sampled_from(["matcher", "note"]), words),
)  # fmt: skip
some_settings = st.fixed_dictionaries(
    {},
    optional={
        "model": values,
        "hooks": st.dictionaries(
            st.sampled_from(["Stop", "Pre", "Other"]), st.lists(theirs, max_size=2), max_size=3
        ),
        "statusLine": st.builds(lambda c: {"type": "command", "command": c}, words),
        "mcpServers": st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2),
        "é": values,
    },
)
JUNK = ("", " ", "\n", "/* c, } */", '// ] "\n', "\t", "\r\n")


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A document as somebody may have written it: any indentation, with comments between."""
    document = draw(some_settings)
    order = draw(st.permutations(list(document)))
    unit = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")]))
    text = json.dumps(
        {name: document[name] for name in order}, indent=unit, separators=separators,
        ensure_ascii=draw(st.booleans()),
    )  # fmt: skip
    if draw(st.booleans()):
        text = _commented(draw, text)
    if draw(st.booleans()):
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\n", " "])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))


def _commented(draw: st.DrawFn, text: str) -> str:
    """With comments, space and trailing commas wherever a structure allows them."""
    parts, inside, escaped = [], False, False
    for at, character in enumerate(text):
        opened = inside
        if inside:
            inside, escaped = character != '"' or escaped, character == "\\" and not escaped
        elif character == '"':
            inside = True
        if not opened and character in "}]" and text[at - 1 : at].strip(" \n\t[{,:"):
            parts.append(draw(st.sampled_from(["", "", ","])))
        if not opened and character in "{}[],":
            junk = draw(st.sampled_from(JUNK))
            parts.append(junk + character if character in "}]" else character + junk)
        else:
            parts.append(character)
    return "".join(parts)


def put(text: str | None, memory: dict[str, str]) -> File:
    file = File(text, memory)
    for part in PARTS:
        file = part.put(file, "f")
    return file


def take(file: File) -> File:
    for part in PARTS:
        file = part.take(file, "f")
    return file


@given(texts())
@settings(max_examples=full(150, 5_000))
def test_whatever_the_settings_are_they_come_back_to_the_byte(text: str) -> None:
    before = json.loads(strict(text))
    installed = put(text, {})
    assert installed.text is not None
    after = json.loads(strict(installed.text))
    assert after["mcpServers"]["syncd"]["command"] == "/bin/syncd"
    for event in ("Stop", "Pre"):
        *others, ours = after["hooks"][event]
        assert others == before.get("hooks", {}).get(event, [])
        assert ours["hooks"][0]["command"] == "/bin/syncd hook claude-code"
    assert put(installed.text, installed.memory) == installed
    assert take(installed).text == text


@given(texts(), st.data())
@settings(max_examples=full(100, 3_000))
def test_what_others_edit_meanwhile_stays(text: str, data: st.DataObject) -> None:
    installed = put(text, {})
    edited = Document(installed.text, "f")
    path = data.draw(st.sampled_from([
        ("new",), ("hooks", "Stop", 0), ("hooks", "Other", 0), ("hooks", "Fresh", 0),
        ("mcpServers", "z"),
    ]))  # fmt: skip
    value = data.draw(theirs if path[0] == "hooks" else values)
    edited.add(path, value)
    for memory in (installed.memory, {}):
        left = take(File(edited.text, memory)).text
        assert left is not None
        found = json.loads(strict(left))
        assert "syncd hook" not in left
        assert "syncd" not in found.get("mcpServers", {})
        wanted = json.loads(strict(text))
        assert {name: found[name] for name in ("model", "é") if name in found} == {
            name: wanted[name] for name in ("model", "é") if name in wanted}  # fmt: skip
        for event in ("Stop", "Pre", "Other", "Fresh"):
            own = [value] if path[:2] == ("hooks", event) else []
            assert found.get("hooks", {}).get(event, []) == [
                *wanted.get("hooks", {}).get(event, []), *own]  # fmt: skip
        assert found.get("statusLine") == wanted.get("statusLine")
    if path == ("new",):
        assert found["new"] == value


@given(st.lists(st.sampled_from(["a = 1", "# c", "", "[t]", 'b = "x"', "[[l]]"]), max_size=6),
       st.sampled_from(["\n", "\r\n"]), st.booleans())  # fmt: skip
def test_whatever_the_toml_is_it_comes_back_to_the_byte(
    lines: list[str], newline: str, ends: bool
) -> None:
    text = newline.join(lines) + newline * ends
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    part = TomlServer({"command": "/bin/syncd", "args": ["mcp"]})
    installed = part.put(File(text, {}), "f")
    found = tomllib.loads(installed.text or "")
    assert found.pop("mcp_servers") == {"syncd": {"command": "/bin/syncd", "args": ["mcp"]}}
    assert found == before
    assert part.put(installed, "f") == installed
    assert part.take(installed, "f").text == text


# --- OpenCode's plugin ----------------------------------------------------------------------------

_HOST = """
import { pathToFileURL } from "node:url"
const { SyncdPlugin } = await import(pathToFileURL(process.argv[2]))
const hooks = await SyncdPlugin({ directory: "/work" })
const said = { system: [], context: [] }
const event = (type, properties) => hooks.event({ event: { type, properties } })
await event("session.created", { info: { id: "s1" } })
await event("session.created", { info: { id: "child", parentID: "s1" } })
await hooks["experimental.chat.system.transform"]({ sessionID: "s1" }, said)
await hooks["experimental.chat.system.transform"]({ sessionID: "child" }, said)
await hooks["chat.message"]({ sessionID: "s1" }, { parts: [{ type: "text", text: "hello" }] })
const info = { role: "assistant", sessionID: "s1" }
await event("message.updated", { info: { ...info, time: {} } })
await event("message.updated", { info: { ...info, time: { completed: 1 } } })
await event("message.part.updated", {})
await event("file.edited", { file: "a.py" })
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "s1" }, { args: { command: "ls" } })
await hooks["tool.execute.before"]({ tool: "read", sessionID: "s1" }, { args: {} })
await hooks["tool.execute.after"]({ tool: "bash", sessionID: "s1" }, { output: "x".repeat(50000) })
await hooks["experimental.session.compacting"]({ sessionID: "s1" }, said)
await hooks["experimental.session.compacting"]({}, undefined)
await hooks.event({})
console.log(JSON.stringify(said))
"""
_SYNCD = """#!{python}
import json, os, sys, time
message = json.load(sys.stdin)
answers = message["type"] in ("session.created", "experimental.session.compacting")
if not answers:
    time.sleep(0.3)  # nobody waits for it, and the host may have ended by then
with open({log!r}, "a") as log:
    os.write(log.fileno(), (json.dumps(message) + "\\n").encode())
if answers:
    print(json.dumps({{"context": "go on with " + message["type"]}}))
"""


def _plugin(folder: Path, program: list[str]) -> Path:
    [piece, *_] = HOSTS["opencode"](Scope(folder, program))
    assert isinstance(piece.part, Whole)
    return write(folder / "syncd.mjs", piece.part.text)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_plugin_tells_syncd_and_the_model(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fake = write(tmp_path / "syncd", _SYNCD.format(python=sys.executable, log=str(log)))
    fake.chmod(0o755)
    said = _hosted(tmp_path, _plugin(tmp_path, [str(fake)]))
    assert said["system"] == ["go on with session.created"]
    assert said["context"] == ["go on with experimental.session.compacting"]
    until(lambda: log.read_text().count("\n") >= 8)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(message["type"] for message in told) == sorted([
        "session.created", "chat.message", "message.updated", "file.edited",
        "tool.execute.before", "tool.execute.after", "experimental.session.compacting",
        "experimental.session.compacting",
    ])  # fmt: skip
    assert {message["directory"] for message in told} == {"/work"}
    by_type = {message["type"]: message for message in told}
    assert by_type["file.edited"]["session"] == "s1"
    assert len(by_type["tool.execute.after"]["output"]["output"]) == 20_000


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_plugin_is_silent_where_there_is_no_syncd(tmp_path: Path) -> None:
    assert _hosted(tmp_path, _plugin(tmp_path, ["no-such-syncd"])) == {"system": [], "context": []}


def _hosted(folder: Path, plugin: Path) -> Any:
    host = write(folder / "host.mjs", _HOST)
    done = subprocess.run(
        ["node", host, plugin], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)
