"""Hooks: what the hosts' events become, and that no host ever notices anything else. The events are
in tests/fixtures/hooks, in the form that each host documents."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import machines
import pytest
from counts import ENCRYPTION, full
from resuming import commit, git, part

from syncd import CheckpointService, mishaps, presence
from syncd.daemon import housekeeping
from syncd.hooks import commands, events, journal, main, statusline, transcript
from syncd.hooks.events import CLAUDE_CODE, CODEX, HOSTS, OPENCODE
from syncd.hooks.main import Call
from syncd.hooks.session import folded, unsaved
from syncd.node import Node
from syncd.resume.fit import utf8_bytes, utf16_units

FIXTURES = Path(__file__).parent / "fixtures" / "hooks"
SYNCD = str(Path(sys.executable).with_name("syncd"))
NAMES = [
    pytest.param(host, file, id=f"{host} {file.stem}")
    for host in HOSTS
    for file in sorted((FIXTURES / host).glob("*.json"))
    if file.stem != "status-line"
]
runner = machines.runner
team = machines.team
TASK = "project@main"


# --- helpers --------------------------------------------------------------------------------------


class Host:
    """A host at work in a repository: its events go to the hook, in this process."""

    def __init__(self, repo: Path, home: Path, session: str = "", name: str = CLAUDE_CODE) -> None:
        self.repo = repo
        self.home = home
        self.session = session
        self.name = name
        self.transcript = repo.parent / f"{session or 'session'}.jsonl"

    def filled(self, text: str) -> dict[str, Any]:
        agent = self.transcript.with_suffix("") / "subagents" / "agent-a1b2c3d.jsonl"
        for name, path in (
            ("{repo}", self.repo), ("{transcript}", self.transcript), ("{agent_transcript}", agent),
        ):  # fmt: skip
            text = text.replace(name, str(path))
        found: dict[str, Any] = json.loads(text)
        if self.session:
            found["session_id"] = self.session
        return found

    def fixture(self, name: str) -> dict[str, Any]:
        return self.filled((FIXTURES / self.name / f"{name}.json").read_text())

    def send(self, document: Any) -> str:
        """The words that the agent hears."""
        given = json.dumps(document).encode()
        answer = main.handled(Call(self.name, self.home), given) or {}
        specific = answer.get("hookSpecificOutput", answer)
        return str(specific.get("additionalContext") or specific.get("context") or "")

    def event(self, name: str, **changes: Any) -> str:
        return self.send({**self.fixture(name), **changes})

    def events(self, *names: str) -> None:
        for name in names:
            self.event(name)

    def used(self, tool: str, given: dict[str, Any], answer: Any = "") -> str:
        return self.event("PostToolUse", tool_name=tool, tool_input=given, tool_response=answer)

    @property
    def journal(self) -> journal.Journal:
        session = self.session or self.fixture("PostToolUse")["session_id"]
        return journal.Journal.of(self.home, self.name, session)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("src/billing", "tests/billing"):
        (folder / name).mkdir(parents=True)
    for name in ("refunds", "ledger", "api", "audit", "receipt", "mail"):
        (folder / "src" / "billing" / f"{name}.py").write_text(f"{name}\n")
    for name in ("refunds", "api", "rounding"):
        (folder / "tests" / "billing" / f"test_{name}.py").write_text(f"{name}\n")
    commit(folder)
    return folder


@pytest.fixture
def host(repo: Path, home: Path) -> Host:
    return Host(repo, home)


@pytest.fixture
def node(home: Path) -> Iterator[Node]:
    with closing(Node(home)) as opened:
        yield opened


def latest(home: Path, task: str = TASK) -> dict[str, Any]:
    with closing(CheckpointService(home=home)) as service:
        found = service.get_latest_checkpoint(task)
    assert found
    return found.body()


def count(home: Path, task: str = TASK) -> int:
    with closing(CheckpointService(home=home)) as service:
        return len(service.get_checkpoint_history(task, limit=1000))


def recorded_session(host: Host, every: Callable[[dict[str, Any]], object]) -> None:
    """The whole session of 200 tool calls."""
    copy_transcripts(host)
    lines = [json.loads(line) for line in (FIXTURES / "session.jsonl").read_text().splitlines()]
    for line in lines:
        every(host.filled(json.dumps(line["event"])))


def copy_transcripts(host: Host) -> None:
    beside = host.transcript.with_suffix("") / "subagents"
    beside.mkdir(parents=True, exist_ok=True)
    shutil.copy(FIXTURES / "transcript.jsonl", host.transcript)
    shutil.copy(FIXTURES / "agent-transcript.jsonl", beside / "agent-a1b2c3d.jsonl")


# --- a whole session ------------------------------------------------------------------------------


def test_the_resume_prompt_after_a_session_names_all_that_it_did(host: Host) -> None:
    heard: list[str] = []
    recorded_session(host, lambda document: heard.append(host.send(document)))
    assert mishaps.recent(host.home, int(time.time() * 1000)) == []

    prompt = host.event("SessionStart", session_id="another")
    head = git(host.repo, "rev-parse", "HEAD")
    assert "Add partial refunds to the billing module" in "".join(part(prompt, "Task"))
    assert "last request: Good. Now the API, then the tests for rounding" in prompt
    done = part(prompt, "Completed: do not redo")
    assert done == ["- Model partial refunds", "- Write each refund to the audit log",
                    "- Expose refunds in the API"]  # fmt: skip
    assert part(prompt, "In progress") == ["- Test rounding"]
    assert part(prompt, "Pending") == ["- Document the endpoint"]
    files = "\n".join(part(prompt, "Files to review"))
    assert "- src/billing/refunds.py VERIFIED" in files
    assert "tests/billing/test_rounding.py" in files
    assert str(host.repo) not in files
    checks = "\n".join(part(prompt, "Checked now"))
    assert f"HEAD {head[:12]} VERIFIED" in checks
    assert "tests: 224 passed, 2 skipped VERIFIED" in checks
    assert "check: pytest passed VERIFIED" in checks


def test_a_session_counts_each_message_once_and_its_sub_agents_too(host: Host) -> None:
    recorded_session(host, host.send)
    with closing(CheckpointService(home=host.home)) as service:
        written = [cp.body() for cp in service.get_checkpoint_history(TASK, limit=1000)]
    # A, S (in two files), B, C, D, and T of the sub-agent; E was still being written.
    a, s, b = 10 + 12000 + 250, 5 + 3000 + 400, 20 + 30000 + 12000 + 800
    c, d, t = 4 + 20000 + 110000 + 900, 6 + 24000 + 10000 + 500, 7 + 3000 + 600
    assert sum(cp["metrics"]["tokens_consumed"] for cp in written) == a + s + b + c + d + t
    assert sum(cp["metrics"]["tools_invoked"] for cp in written) == 200
    session = written[0]["context_summary"]["state"]["session"]
    assert session["tokens"]["output"] == 250 + 400 + 800 + 900 + 500 + 600
    assert session["subagents"] == 1
    assert {cp["metadata"]["session_id"] for cp in written} == {host.fixture("Stop")["session_id"]}


def test_a_session_leaves_nothing_behind_but_its_checkpoints(host: Host, node: Node) -> None:
    recorded_session(host, host.send)
    assert list(journal.folder_of(host.home).iterdir()) == []
    assert presence.own_signs(node) == []
    assert latest(host.home)["execution_state"]["status"] == "waiting"


def test_another_machine_goes_on_in_its_own_checkout(
    team: machines.Team, repo: Path, tmp_path: Path
) -> None:
    origin = tmp_path / "origin" / "project.git"
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(origin))
    git(repo, "remote", "add", "origin", str(origin))
    first, second = team.machine(), team.machine()
    there = tmp_path / "elsewhere" / "checkout"
    git(tmp_path, "clone", "-q", str(origin), str(there))

    here = Host(repo, first.home)
    copy_transcripts(here)
    for line in (FIXTURES / "session.jsonl").read_text().splitlines()[-40:]:
        event = here.filled(json.dumps(json.loads(line)["event"]))
        assert first.run("hook", CLAUDE_CODE, stdin=json.dumps(event)).code == 0
    first.sync()
    second.sync()
    start = Host(there, second.home, "on-the-other-machine").fixture("SessionStart")
    told = second.ok("hook", CLAUDE_CODE, stdin=json.dumps(start)).json()
    prompt = told["hookSpecificOutput"]["additionalContext"]
    assert "OFFER" not in prompt
    assert f"HEAD {git(there, 'rev-parse', 'HEAD')[:12]} VERIFIED" in prompt
    assert "tests/billing/test_rounding.py VERIFIED: same content" in prompt
    assert "tests: 224 passed, 2 skipped VERIFIED" in prompt


# --- each event -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "file"), NAMES)
def test_every_documented_event_is_taken_in(host: Host, name: str, file: Path) -> None:
    host.name = name
    document = host.filled(file.read_text())
    host.send(document)
    # As it is, with a field that nobody knows, and with each of its fields missing or wrong.
    host.send({**document, "added_next_year": {"deep": [1, None]}})
    for field in document:
        wrong: Any
        for wrong in (None, 7, [], {}, "\ud800", [{"text": 1}], True):
            host.send({**document, field: wrong})
        host.send({key: value for key, value in document.items() if key != field})
    assert mishaps.recent(host.home, int(time.time() * 1000)) == []


def test_an_event_that_nobody_knows_leaves_no_trace(host: Host) -> None:
    for name in ("Notification", "TeammateIdle", "", 7, None):
        assert host.event("SessionStart", hook_event_name=name) == ""
    assert not host.home.exists()


def test_a_checkpoint_is_written_once_for_what_is_the_same(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse")
    for name in ("PreCompact", "PreCompact", "SubagentStop", "PreCompact"):
        host.event(name)
    assert count(host.home) == 1
    assert latest(host.home)["metadata"]["reason"] == "context_limit"
    host.events("Stop", "Stop", "StopFailure")
    assert count(host.home) == 3
    assert latest(host.home)["metadata"]["reason"] == "rate_limit"


@pytest.mark.parametrize("name", ["PreCompact", "Stop", "SubagentStop", "SessionEnd", "PreToolUse"])
def test_each_of_these_events_writes_a_checkpoint(host: Host, name: str) -> None:
    host.events("UserPromptSubmit", "PostToolUse.TodoWrite", name)
    state = latest(host.home)["execution_state"]
    assert state["completed_items"] == ["Model partial refunds"]
    assert state["pending_items"] == ["Test rounding", "Document the endpoint"]
    assert state["current_focus"] == "Test rounding"


def test_a_harmless_command_is_not_recorded_before_it_runs(host: Host) -> None:
    host.event("PreToolUse", tool_input={"command": "git status && ls"})
    assert not host.home.exists()


def test_a_session_without_work_writes_nothing(host: Host) -> None:
    host.events("SessionStart", "Stop", "SessionEnd")
    assert count(host.home) == 0
    assert not host.journal.exists()


def test_what_an_agent_wrote_itself_stays(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse.TodoWrite", "Stop")
    with closing(CheckpointService(home=host.home)) as service:
        service.create_checkpoint(
            TASK, "ann", {"pending_items": ["Call the bank"], "completed_items": ["Asked legal"]},
            {"key_decisions": ["Refunds are final"]},
        )  # fmt: skip
    host.used("TodoWrite", {"todos": [{"content": "Ship it", "status": "pending"}]})
    host.event("Stop")
    found = latest(host.home)
    assert found["context_summary"]["key_decisions"] == ["Refunds are final"]
    assert found["execution_state"]["pending_items"] == ["Ship it", "Call the bank"]
    assert found["execution_state"]["completed_items"] == ["Asked legal", "Model partial refunds"]


@pytest.mark.parametrize("status", ["complete", "blocked", "escalated", "failed"])
def test_what_an_agent_says_of_its_task_is_not_taken_back(host: Host, status: str) -> None:
    copy_transcripts(host)
    host.events("UserPromptSubmit", "PostToolUse")
    time.sleep(0.002)
    with closing(CheckpointService(home=host.home)) as service:
        service.create_checkpoint(TASK, "ann", {"status": status, "phase": "reviewing"})
    host.event("Stop")
    found = latest(host.home)
    assert found["metadata"]["agent_id"] != "ann"
    assert found["metrics"]["tokens_consumed"] > 0
    assert found["execution_state"]["status"] == status
    assert found["execution_state"]["phase"] == "reviewing"
    host.events("UserPromptSubmit", "PostToolUse.Bash", "Stop")
    assert latest(host.home)["execution_state"]["status"] == "waiting", "it was asked to go on"


def test_work_that_was_handed_over_stays_so(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse")
    with closing(CheckpointService(home=host.home)) as service:
        service.create_checkpoint(TASK, "ann", {"phase": "handoff"})
    host.events("Stop", "SessionEnd")
    assert latest(host.home)["metadata"]["agent_id"] == "ann"


def test_the_request_that_counts_is_the_one_that_says_what_to_do(host: Host, repo: Path) -> None:
    host.events("UserPromptSubmit", "Stop")
    host.event("UserPromptSubmit", prompt="<task-notification>done</task-notification>")
    following = Host(repo, host.home, "following")
    following.event("UserPromptSubmit", prompt="go on")
    following.event("Stop")
    found = latest(host.home)
    assert found["metadata"]["mission"].startswith("Add partial refunds")
    assert found["recovery"]["resume_instructions"] == "The user's last request: go on"


def test_the_list_of_a_sub_agent_is_not_that_of_the_session(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse.TodoWrite")
    own = {"todos": [{"content": "Read ledger.py", "status": "pending"}]}
    host.event("PostToolUse", tool_name="TodoWrite", tool_input=own, agent_id="a1b2c3d")
    host.event("Stop")
    assert latest(host.home)["execution_state"]["current_focus"] == "Test rounding"


def test_a_new_list_takes_the_place_of_the_one_of_a_session_before(host: Host, repo: Path) -> None:
    host.events("UserPromptSubmit", "PostToolUse.TodoWrite", "SessionEnd")
    following = Host(repo, host.home, "following")
    following.events("UserPromptSubmit", "Stop")
    pending = ["Test rounding", "Document the endpoint"]
    assert latest(host.home)["execution_state"]["pending_items"] == pending
    following.used("TodoWrite", {"todos": [{"content": "Round to cents", "status": "pending"}]})
    following.event("Stop")
    found = latest(host.home)
    assert found["execution_state"]["pending_items"] == ["Round to cents"]
    assert found["metadata"]["iteration"] == 2
    assert found["metadata"]["previous_agents"] != []


def test_another_branch_is_another_task_and_keeps_the_request(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse", "Stop")
    git(host.repo, "checkout", "-q", "-b", "partial")
    host.used("Write", {"file_path": str(host.repo / "src" / "billing" / "api.py")})
    host.event("Stop")
    found = latest(host.home, "project@partial")
    assert found["metrics"]["files_modified"] == ["src/billing/api.py"]
    assert "partial refunds" in found["metadata"]["mission"]
    assert latest(host.home)["metrics"]["files_modified"] == ["src/billing/refunds.py"]


def test_what_was_recorded_of_a_file_stays_while_others_change(host: Host) -> None:
    """Else the next one is told that its content is not known."""
    for name in ("refunds.py", "api.py"):
        (host.repo / "src" / "billing" / name).write_text(f"# {name}\n")
    host.used("Write", {"file_path": str(host.repo / "src" / "billing" / "refunds.py")})
    host.event("Stop")
    before = latest(host.home)["workspace"]["files"]
    host.event("SessionEnd")
    another = Host(host.repo, host.home, "another")
    another.event("SessionStart")
    another.used("Write", {"file_path": str(host.repo / "src" / "billing" / "api.py")})
    another.event("Stop")
    found = latest(host.home)
    assert set(found["metrics"]["files_modified"]) == set(found["workspace"]["files"])
    assert before.items() <= found["workspace"]["files"].items()
    assert len(found["workspace"]["files"]) == 2


def test_where_more_files_were_touched_than_a_checkpoint_names_it_says_so(host: Host) -> None:
    names = [f"src/billing/file {number}.py" for number in range(201)]
    host.used("apply_patch", {"command": "\n".join(f"*** Add File: {name}" for name in names)})
    host.event("Stop")
    assert latest(host.home)["metrics"]["files_modified"] == names[1:]
    assert _says_more(host)
    another = Host(host.repo, host.home, "another")
    another.used("Write", {"file_path": names[7]})
    another.event("Stop")
    assert _says_more(host)
    git(host.repo, "commit", "--allow-empty", "-qm", "all of it")
    third = Host(host.repo, host.home, "third")
    third.used("Write", {"file_path": names[7]})
    third.event("Stop")
    assert latest(host.home)["metrics"]["files_modified"] == [names[7]]
    assert not _says_more(host)


def _says_more(host: Host) -> bool:
    return "More files were touched" in str(latest(host.home)["recovery"])


def test_files_outside_the_repository_and_generated_ones_are_not_recorded(
    host: Host, tmp_path: Path
) -> None:
    for name in (tmp_path / "secret.txt", "../up.txt", host.repo / "node_modules" / "x.js",
                 "src/billing/api.py"):  # fmt: skip
        host.used("Write", {"file_path": str(name)})
    host.event("Stop")
    assert latest(host.home)["metrics"]["files_modified"] == ["src/billing/api.py"]


def test_a_repository_can_be_left_alone(host: Host) -> None:
    (host.repo / ".syncd.toml").write_text("ignore = true\n")
    for file in sorted((FIXTURES / CLAUDE_CODE).glob("*.json")):
        assert host.send(host.filled(file.read_text())) == ""
    statusline.noted(host.home, CLAUDE_CODE, json.dumps(host.fixture("status-line")).encode())
    assert not host.home.exists()


def test_outside_of_a_repository_nothing_is_recorded_unless_a_task_is_named(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.repo = tmp_path / "plain"
    host.repo.mkdir()
    host.events("SessionStart", "UserPromptSubmit", "Stop")
    assert not host.home.exists()
    monkeypatch.setenv("SYNCD_TASK", "named")
    monkeypatch.setenv("SYNCD_AGENT", "qa-3")
    monkeypatch.setenv("SYNCD_ITERATION", "3")
    host.events("UserPromptSubmit", "Stop")
    found = latest(host.home, "named")
    assert found["metadata"]["agent_id"] == "qa-3"
    assert found["metadata"]["iteration"] == 3
    assert found["execution_state"]["status"] == "in_progress", "the loop goes on by itself"


def test_a_session_that_died_is_told_to_the_next_one(host: Host, repo: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse.TodoWrite", "PostToolUse")
    assert count(host.home) == 0
    prompt = Host(repo, host.home, "following").event("SessionStart")
    assert "Test rounding" in prompt
    assert "OFFER, not your task" in prompt, "it may live still"
    assert count(host.home) == 1
    Host(repo, host.home, "third").event("SessionStart")
    assert count(host.home) == 1


def test_journals_that_nobody_ends_go_after_a_week(host: Host, repo: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse")
    old = time.time() - journal.KEPT_SECONDS - 60
    os.utime(host.journal.file, (old, old))
    git(repo, "checkout", "-q", "-b", "other")
    Host(repo, host.home, "following").event("SessionStart")
    assert not host.journal.exists()
    assert latest(host.home)["metrics"]["files_modified"] == ["src/billing/refunds.py"]


def test_the_daemon_saves_what_a_session_left_that_died(host: Host, node: Node) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse.TodoWrite", "PostToolUse")
    assert housekeeping.sessions(node) == {}, "it may be at work"
    hour_ago = time.time() - 3_600
    os.utime(host.journal.file, (hour_ago, hour_ago))
    assert housekeeping.sessions(node) == {"checkpoints": 1}
    os.utime(host.journal.file, (hour_ago, hour_ago))
    assert housekeeping.sessions(node) == {}
    assert latest(host.home)["execution_state"]["current_focus"] == "Test rounding"
    host.events("PostToolUse.Bash", "Stop")
    assert count(host.home) == 2, "it was alive after all"


# --- the start ------------------------------------------------------------------------------------


def test_a_session_that_its_host_takes_up_again_is_told_nothing_it_knows(host: Host) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse", "SessionEnd")
    assert host.event("SessionStart", source="resume") == ""
    assert "# Resume" in host.event("SessionStart", source="compact")
    assert "# Resume" in host.event("SessionStart", source="clear", session_id="new")


def test_tokens_of_a_session_that_is_taken_up_again_count_once(host: Host) -> None:
    copy_transcripts(host)
    host.events("SessionStart", "UserPromptSubmit", "SessionEnd")
    before = latest(host.home)["metrics"]["tokens_consumed"]
    assert before > 200_000
    host.event("SessionStart", source="resume")
    host.events("UserPromptSubmit", "PostToolUse", "SessionEnd")
    assert latest(host.home)["metrics"]["tokens_consumed"] == 0


def test_work_that_another_is_at_is_offered(host: Host, repo: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop")
    other = Host(repo, host.home, "another")
    prompt = other.event("SessionStart")
    assert prompt.startswith("OFFER, not your task: claude-code-")
    assert "# Resume" in prompt
    host.event("SessionEnd")
    other.event("SessionEnd")
    assert "OFFER" not in Host(repo, host.home, "third").event("SessionStart")


ALPHABET = [
    "a",
    "word ",
    "é",
    "漢字",
    "😀",
    "\n",
    "## Completed\n",
    "`",
    "x" * 200,
    '"',
    "\t",
    "- ",
]


def random_history(service: CheckpointService, task: str, number: int) -> None:
    choice = random.Random(number)

    def words() -> str:
        return "".join(choice.choices(ALPHABET, k=choice.choice([0, 1, 5, 40]))) or "x"

    def many() -> list[str]:
        return [words() for _ in range(choice.choice([0, 1, 3, 60]))]

    for _ in range(choice.choice([1, 1, 2, 4])):
        service.create_checkpoint(
            task, "ann", {"completed_items": many(), "pending_items": many(),
                          "blocked_items": many(), "current_focus": words()},
            {"key_decisions": many(), "constraints": many()},
            {"files_modified": many(), "error_count": choice.randrange(9)},
            mission=words(), recovery={"resume_instructions": words()},
        )  # fmt: skip


def longest(home: Path, folder: Path, numbers: range) -> dict[str, int]:
    """Of all that is told at the start, by host, as each counts."""
    found = dict.fromkeys(HOSTS, 0)
    with closing(CheckpointService(home=home)) as service, pytest.MonkeyPatch.context() as patch:
        for number in numbers:
            task = f"task {number}"
            random_history(service, task, number)
            patch.setenv("SYNCD_TASK", task)
            if number % 3 == 0:  # at work: an offer, which takes room too
                presence.heartbeat(service.node, "bob" * (number % 20 + 1), task)
            name = HOSTS[number % len(HOSTS)] if number % 4 else CLAUDE_CODE
            start = "session.created" if name == OPENCODE else "SessionStart"
            said = Host(folder, home, f"session {number}", name).event(start)
            found[name] = max(found[name], (utf8_bytes if name == CODEX else utf16_units)(said))
            shutil.rmtree(journal.folder_of(home))
    return found


def test_the_prompt_at_the_start_is_never_longer_than_its_host_takes(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    total, each = full(60, 10_000), 100
    found = [  # in homes of their own: who looks at one of a thousand tasks looks at all of them
        longest(tmp_path / f"home {start}", folder, range(start, min(start + each, total)))
        for start in range(0, total, each)
    ]
    most = {name: max(part[name] for part in found) for name in HOSTS}
    assert 6_000 < most[CLAUDE_CODE] <= 10_000
    assert 2_000 < most[CODEX] <= 2_500
    assert 2_000 < most[OPENCODE] <= 10_000


# --- what an agent is told while it works ---------------------------------------------------------


def status_line(host: Host, percent: float | None, cost: float = 1.0) -> None:
    document = host.fixture("status-line")
    document["context_window"]["used_percentage"] = percent
    document["cost"]["total_cost_usd"] = cost
    if host.session:
        document["session_id"] = host.session
    statusline.noted(host.home, host.name, json.dumps(document).encode())


def test_each_rung_of_the_ladder_is_told_once(host: Host) -> None:
    host.events("SessionStart", "UserPromptSubmit")
    told = []
    for percent in (70, 71, 72, 76, 76, 81, 91, 95, 20, 71):
        status_line(host, percent)
        told.append(host.event("PostToolUse"))
    assert [bool(words) for words in told] == [
        False, True, False, True, False, True, True, False, False, True,
    ]  # fmt: skip
    assert "71 % of the context is used, more than 70 %" in told[1]
    assert "--reason context_limit" in told[1]
    assert f"--task {TASK}" in told[1]
    found = latest(host.home)
    assert found["metadata"]["reason"] == "context_limit", "the safety checkpoint"


def test_the_transcript_tells_how_full_the_context_is_where_the_status_line_does_not(
    host: Host,
) -> None:
    copy_transcripts(host)
    before_compaction = host.transcript.read_text().split('{"type": "system"')[0]
    host.transcript.write_text(before_compaction)
    host.event("UserPromptSubmit")
    assert latest_percent(host) == pytest.approx(65.0)
    copy_transcripts(host)
    assert latest_percent(host) == pytest.approx(17.0)
    shutil.copy(FIXTURES / "codex-transcript.jsonl", host.transcript)
    assert latest_percent(host) == pytest.approx(18.0)


def latest_percent(host: Host) -> float:
    host.events("PostToolUse", "Stop")
    return float(latest(host.home)["metrics"]["context_used_percent"])


def test_the_cost_is_the_status_lines_and_counts_once(host: Host) -> None:
    host.events("SessionStart", "UserPromptSubmit")
    for total, event in ((0.5, "PostToolUse"), (0.75, "PostToolUse.Bash")):
        status_line(host, 10, total)
        host.events(event, "Stop")
    with closing(CheckpointService(home=host.home)) as service:
        costs = [cp.metrics.cost_usd for cp in service.get_checkpoint_history(TASK)]
    assert costs == [0.25, 0.5]


def test_errors_in_a_row_are_told_once_and_recorded(host: Host) -> None:
    told = [host.event("PostToolUseFailure") for _ in range(5)]
    assert [bool(words) for words in told] == [False, False, False, True, False]
    assert "4 errors in a row: try another way" in told[3]
    host.event("Stop")
    found = latest(host.home)
    assert found["metrics"]["error_count"] == 5
    assert found["metadata"]["reason"] == "failure"
    host.events("PostToolUse", "Stop")
    assert latest(host.home)["metrics"]["error_count"] == 0


def test_an_interruption_by_the_user_is_no_error(host: Host) -> None:
    for _ in range(5):
        assert host.event("PostToolUseFailure", is_interrupt=True) == ""
    host.event("Stop")
    assert latest(host.home)["metrics"]["error_count"] == 0


def test_signs_of_life_are_few(host: Host, node: Node) -> None:
    host.event("SessionStart")
    [first] = presence.own_signs(node)
    for _ in range(5):
        host.event("PostToolUse")
    assert presence.own_signs(node) == [first]
    host.journal.mark(beat=0)
    time.sleep(0.002)
    node.store.change("put_sign", first._replace(seen_ms=first.seen_ms - 60_000))
    host.event("PostToolUse")
    assert presence.own_signs(node) != [first]


def test_a_long_turn_leaves_a_checkpoint_now_and_then(host: Host) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse")
    hour_ago = int(time.time() * 1000) - 3_600_000
    host.journal.mark(beat=hour_ago, began=hour_ago)
    host.event("PostToolUse.Bash")
    assert count(host.home) == 1


# --- other hosts ----------------------------------------------------------------------------------


def test_a_session_of_codex(host: Host) -> None:
    host.name = CODEX
    shutil.copy(FIXTURES / "codex-transcript.jsonl", host.transcript)
    host.events(
        "SessionStart", "UserPromptSubmit", "PostToolUse.update_plan", "PostToolUse.apply_patch",
        "PostToolUse", "PreCompact", "PostCompact", "Stop",
    )  # fmt: skip
    found = latest(host.home)
    assert found["metadata"]["mission"] == "Round refunds to the cent"
    assert found["execution_state"]["completed_items"] == ["Round half up"]
    assert found["metrics"]["files_modified"] == [
        "src/billing/refunds.py", "src/billing/rounding.py",
    ]  # fmt: skip
    assert found["metrics"]["tests_status"]["passed"] == 4
    with closing(CheckpointService(home=host.home)) as service:
        history = service.get_checkpoint_history(TASK)
    assert sum(cp.metrics.tokens_consumed for cp in history) == 61_200


def test_a_session_of_opencode(host: Host, repo: Path) -> None:
    host.name = OPENCODE
    host.events(
        "session.created", "chat.message", "todo.updated", "file.edited", "tool.execute.after.edit",
        "message.updated", "message.updated", "tool.execute.before", "tool.execute.after",
    )  # fmt: skip
    assert "Send a receipt" in host.event("experimental.session.compacting")
    host.event("session.idle")
    found = latest(host.home)
    assert found["metadata"]["mission"] == "Send a receipt for each refund"
    assert found["execution_state"]["completed_items"] == ["Write the template"]
    assert found["execution_state"]["pending_items"] == ["Send it"]
    assert found["metrics"]["files_modified"] == ["src/billing/receipt.py", "src/billing/mail.py"]
    assert found["metrics"]["tests_status"]["failed"] == 1
    with closing(CheckpointService(home=host.home)) as service:
        history = service.get_checkpoint_history(TASK)
    assert sum(cp.metrics.tokens_consumed for cp in history) == 6_050
    assert sum(cp.metrics.cost_usd or 0 for cp in history) == pytest.approx(0.021)
    host.event("session.deleted")
    assert list(journal.folder_of(host.home).iterdir()) == []


# --- pure parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output", "counts"),
    [
        ("pytest -q", "3 failed, 5 passed, 1 error in 2s", (5, 4, 0)),
        ("python3 -m pytest", "\x1b[32m\x1b[1m12 passed\x1b[0m, 1 xfailed in 1s", (12, 0, 1)),
        ("python -m unittest", "Ran 10 tests in 0.1s\n\nFAILED (failures=2, skipped=1)", (7, 2, 1)),
        ("cargo test", "test result: ok. 4 passed; 0 failed; 1 ignored\n"
                       "test result: FAILED. 2 passed; 1 failed; 0 ignored", (6, 1, 1)),
        ("go test ./... -v", "--- PASS: TestA (0.0s)\n--- FAIL: TestB\n--- SKIP: TestC", (1, 1, 1)),
        ("go test ./...", "ok  \tx/a\t0.1s\nFAIL\tx/b\t0.2s\nFAIL\n", (1, 1, 0)),
        ("npm test", "Test Suites: 1 failed, 2 passed, 3 total\nTests: 1 failed, 7 passed, 8 total"
                     "\nSnapshots: 0 total", (7, 1, 0)),
        ("npx mocha", "  5 passing (20ms)\n  2 failing\n", (5, 2, 0)),
        ("bundle exec rspec", "10 examples, 1 failure, 2 pending", (7, 1, 2)),
        ("./mvnw verify", "Tests run: 9, Failures: 1, Errors: 1, Skipped: 2", (5, 2, 2)),
        ("make check", "nothing of the kind", (None, None, None)),
    ],
)  # fmt: skip
def test_results_of_tests_are_read_as_their_runners_write_them(
    command: str, output: str, counts: tuple[int | None, ...]
) -> None:
    found = commands.results(command, output, failed=False)
    assert tuple(found.get(name) for name in ("passed", "failed", "skipped")) == counts
    assert found["status"] == ("failed" if counts[1] else "passed")


@pytest.mark.parametrize("command", ["cat pytest.log.txt2", "ls tests", "echo 5 passed", "vim x"])
def test_what_runs_no_tests_has_no_results(command: str) -> None:
    assert commands.results(command, "5 passed", failed=False) == {} or "pytest" in command


@pytest.mark.parametrize(
    "command",
    ["git commit -m x", "cd a && git -C b push", "sudo git reset --hard", "psql -c 'drop table x'",
     "npx prisma migrate deploy", "python manage.py migrate", "rails db:migrate", "sqlite3 a.db",
     "git stash", "FOO=1 git rebase main", "gh pr merge 7"],
)  # fmt: skip
def test_commands_that_cannot_be_undone_are_known(command: str) -> None:
    assert commands.risky(command)


@pytest.mark.parametrize(
    "command",
    ["git status", "git log --oneline", "git diff HEAD", "ls", "pytest", "legit push", ""],
)
def test_other_commands_are_not_in_the_way(command: str) -> None:
    assert not commands.risky(command)


def test_no_pattern_takes_long() -> None:
    for hostile in ("git " * 5_000, "make " * 5_000, "1 passed " * 5_000, "a" * 100_000):
        began = time.process_time()
        commands.risky(hostile)
        commands.results(f"pytest {hostile}", hostile, failed=False)
        commands.results(hostile, hostile, failed=False)
        assert time.process_time() - began < 2


def test_a_list_of_things_to_do_is_folded_from_words_about_its_items() -> None:
    lines: list[dict[str, Any]] = [
        {"todo": ["1", "One", "pending"]}, {"todo": ["2", "Two", "pending"]},
        {"todo": ["1", "", "completed"]}, {"todo": ["2", "Two, better", "in_progress"]},
        {"todo": ["3", "Three", "pending"]}, {"todo": ["3", "", "deleted"]},
    ]  # fmt: skip
    found = folded(lines)
    assert found.todos == [("One", "completed"), ("Two, better", "in_progress")]
    assert unsaved(lines)
    written = {"d": "written", "k": "", "digest": "", "tokens": 0, "cost": 0, "tools": 0, "t": 1}
    assert not unsaved([*lines, written, {"t": 2, "k": "x"}])


def test_texts_are_cut_whole_and_without_control_characters() -> None:
    assert events.text("a\x00b\x1b[31m", 100) == "a b [31m"
    assert events.text("x" * 50, 10) == "x" * 9 + "…"
    assert events.text("\ud800", 10) == "?"
    assert events.text(7, 10) == ""


def test_a_transcript_that_is_gone_or_is_nonsense_says_nothing(tmp_path: Path) -> None:
    assert transcript.whole(str(tmp_path / "none")).total == 0
    assert transcript.whole(str(tmp_path)).total == 0
    assert transcript.context("/") is None
    junk = tmp_path / "junk.jsonl"
    junk.write_bytes(
        b'\x00\xff\n{"usage"}\n["usage"]\n{"message":{"usage":7,"id":3}}\n'
        b'{"message":{"usage":{"input_tokens":-5,"output_tokens":true}}}\n'
    )
    assert transcript.whole(str(junk)).total == 0


# --- the journal ----------------------------------------------------------------------------------


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    found = journal.Journal(tmp_path / "a.jsonl")
    found.append({"t": 1})
    with found.file.open("ab") as file:
        file.write(b'\n{"t": 2, "ask": "cut o')
    found.append({"t": 3})
    assert found.lines() == [{"t": 1}, {"t": 3}]


def test_secrets_never_reach_the_journal_and_nobody_else_can_read_it(host: Host) -> None:
    secret = "ghp_" + "a1B2c3D4" * 5
    host.event("UserPromptSubmit", prompt=f"use {secret}")
    host.used("TodoWrite", {"todos": [{"content": f"rotate {secret}", "status": "pending"}]})
    host.event("PostToolUseFailure", error=f"denied for {secret}")
    host.event("PreToolUse", tool_input={"command": f"git push https://x:{secret}@host/r"})
    host.event("Stop")
    for file in host.home.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    assert "redacted" in latest(host.home)["metadata"]["mission"]


@pytest.mark.skipif(ENCRYPTION != "none", reason="sets its own")
def test_where_bodies_are_sealed_the_journal_is_too(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_ENCRYPTION", "at_rest")
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse", "PostToolUse.TodoWrite")
    content = host.journal.file.read_bytes()
    plain = b"".join(base64.b64decode(line) for line in content.split(b"\n") if line)
    for word in (b"refund", b"billing", b"rounding", b"ask", b"{"):
        assert word not in content
        assert word == b"{" or word == b"ask" or word not in plain
    host.event("Stop")
    assert latest(host.home)["execution_state"]["current_focus"] == "Test rounding"


# --- nothing disturbs the host --------------------------------------------------------------------


def ran(
    home: Path, given: bytes, *words: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [SYNCD, "hook", *(words or (CLAUDE_CODE,))], input=given, capture_output=True, timeout=30,
        env={**os.environ, "SYNCD_HOME": str(home), **environment}, cwd="/", check=False,
    )  # fmt: skip


MALFORMED = {
    "empty": b"", "spaces": b"  \n", "not JSON": b"{", "a number": b"7", "a text": b'"Stop"',
    "null": b"null", "a list": b"[1,2]", "binary": bytes(range(256)) * 20,
    "deep": b"[" * 100_000, "NaN": b'{"hook_event_name": NaN}', "half UTF-8": b'{"a":"\xc3"}',
    "BOM": b"\xef\xbb\xbf{}",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_event_is_nothing_to_the_host(
    runner: machines.Runner, home: Path, name: str
) -> None:
    environment = {**os.environ, "SYNCD_HOME": str(home)}
    for host in HOSTS:
        found = runner.run(("hook", host), environment, MALFORMED[name])
        assert (found.code, found.out, found.err) == (0, "", "")


def test_what_fails_is_in_the_log_and_in_the_status(
    runner: machines.Runner, host: Host, home: Path
) -> None:
    environment = {**os.environ, "SYNCD_HOME": str(home)}
    runner.run(("hook", CODEX), environment, b'{"type": "x", ')
    (home / "config.toml").write_text("nonsense = [")
    stop = json.dumps(host.fixture("Stop"))
    assert runner.run(("hook", CLAUDE_CODE), environment, stop).code == 0
    (home / "config.toml").unlink()
    found = mishaps.recent(home, int(time.time() * 1000))
    assert [mishap.where for mishap in found] == ["codex x", "claude-code Stop"]
    shown = runner.run(("status", "--json"), environment).json()
    [notice] = shown["notices"]
    assert "2 hooks failed in the last day; the last, claude-code Stop: " in notice["what"]
    assert str(home / "log" / "hooks.log") in notice["remedy"]
    assert "2 hooks failed" in runner.run(("status",), environment).out


def test_the_log_of_failures_stays_small(home: Path) -> None:
    for number in range(3_000):
        mishaps.record(home, mishaps.Mishap(number, "claude-code Stop", "x" * 1_000))
    sizes = [file.stat().st_size for file in (home / "log").iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 500_000


@pytest.mark.parametrize(
    "name", ["PostToolUse", "Stop", "SessionStart", "SessionEnd", "PreToolUse"]
)
@pytest.mark.parametrize("damage", ["locked", "corrupt", "read-only", "folder", "full", "vanished"])
def test_a_home_in_trouble_is_no_trouble_for_the_host(
    runner: machines.Runner, host: Host, home: Path, damage: str, name: str
) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse")
    document = host.fixture(name)
    host.journal.mark(beat=0)
    locked = None
    if damage == "locked":
        locked = sqlite3.connect(home / "context.db", isolation_level=None)
        locked.execute("BEGIN EXCLUSIVE")
    elif damage == "corrupt":
        for file in home.glob("context.db*"):
            file.write_bytes(b"no database" * 1_000)
    elif damage == "read-only":
        (home / "context.db").chmod(0o400)
        (home / "run" / "sessions").chmod(0o500)
    elif damage == "folder":
        shutil.rmtree(home / "run" / "sessions")
        (home / "run" / "sessions").write_text("a file")
    elif damage == "vanished":
        document |= {"cwd": "/nowhere/at/all", "transcript_path": "/nowhere/t.jsonl"}
    environment = {**os.environ, "SYNCD_HOME": str(home)}
    if damage == "full":
        found = _with_full_disk(home, document)
    else:
        began = time.monotonic()
        found = runner.run(("hook", CLAUDE_CODE), environment, json.dumps(document))
        assert time.monotonic() - began < 20
    (home / "run" / "sessions").chmod(0o700)
    assert found.code == 0
    assert found.out == "" or "additionalContext" in found.json()["hookSpecificOutput"]
    if locked:
        locked.close()
        host.event("Stop")
        assert "partial refunds" in latest(home)["metadata"]["mission"], "nothing is lost"


def _with_full_disk(home: Path, document: dict[str, Any]) -> machines.Result:
    """No file can grow: what the system says then is what it says of a full disk."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"sys.argv = ['syncd', 'hook', '{CLAUDE_CODE}']\n"
        "from syncd.cli import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(document), capture_output=True, text=True,
        env={**os.environ, "SYNCD_HOME": str(home)}, timeout=30, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return machines.Result(done.returncode, done.stdout, done.stderr)


def test_an_event_larger_than_any_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_MOST_BYTES", 1_000)
    reader, writer = os.pipe()
    os.write(writer, b'{"hook_event_name": "Stop", "x": "' + b"a" * 2_000)
    os.close(writer)
    with open(reader) as stdin:  # noqa: PTH123 (a descriptor)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main.run(Call(CLAUDE_CODE, home)) == 0
    assert "more than 1,000 bytes" in mishaps.recent(home, int(time.time() * 1000))[0].problem


def test_a_host_that_never_ends_its_event_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_SECONDS", 1)
    reader, writer = os.pipe()
    with open(reader) as stdin:  # noqa: PTH123 (a descriptor)
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main.run(Call(CLAUDE_CODE, home)) == 0
    os.close(writer)
    assert "not done within 1 s" in mishaps.recent(home, int(time.time() * 1000))[0].problem


def test_a_host_that_has_gone_is_not_missed(host: Host, home: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse", "SessionEnd")
    start = json.dumps(host.fixture("SessionStart")).encode()
    child = subprocess.Popen(
        [SYNCD, "hook", CLAUDE_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "SYNCD_HOME": str(home)},
    )  # fmt: skip
    assert child.stdin
    assert child.stdout
    assert child.stderr
    child.stdout.close()
    child.stdin.write(start)
    child.stdin.close()
    assert child.wait(30) == 0
    assert child.stderr.read() == b""
    child.stderr.close()


@pytest.mark.skipif(ENCRYPTION != "none", reason="what is sealed needs more")
def test_a_hook_at_the_use_of_a_tool_loads_nothing_heavy(host: Host) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse")
    heavy = ("pydantic", "psycopg", "apscheduler", "sqlite_utils", "cryptography", "click", "rich")
    program = (
        f"import sys\nsys.argv = ['syncd', 'hook', '{CLAUDE_CODE}']\n"
        "from syncd.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n"
        f"    print([n for n in {(*heavy, 'sqlite3')!r} if n in sys.modules])"
    )
    for name in ("PostToolUse", "PostToolUse.TodoWrite", "PostToolUse.Bash", "UserPromptSubmit"):
        done = subprocess.run(
            [sys.executable, "-c", program], input=json.dumps(host.fixture(name)), text=True,
            capture_output=True, check=True,
            env={**os.environ, "SYNCD_HOME": str(host.home)},
        )  # fmt: skip
        assert done.stdout == "[]\n", name


def test_the_command_has_help_and_refuses_what_makes_no_sense(
    runner: machines.Runner, home: Path
) -> None:
    environment = {**os.environ, "SYNCD_HOME": str(home)}
    assert "never a transcript" in runner.run(("hook", "--help"), environment).out
    assert runner.run(("hook", "emacs"), environment).code == 2
    assert runner.run(("hook", CODEX, "--status-line"), environment).code == 2
    assert runner.run(("hook", CODEX, "ls"), environment).code == 2
    assert runner.run(("hook", CODEX, "--json"), environment, b"{}").code == 0


# --- many at once ---------------------------------------------------------------------------------


def test_fifty_hooks_at_once_while_the_log_is_written_lose_nothing(host: Host, home: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit")
    stop = threading.Event()

    def pulls() -> None:
        """As the daemon does: many rows in a transaction, then a pause."""
        with closing(sqlite3.connect(home / "context.db", isolation_level=None, timeout=30)) as db:
            while not stop.is_set():
                db.execute("BEGIN IMMEDIATE")
                time.sleep(0.05)
                db.execute("COMMIT")
                time.sleep(0.02)

    def one(number: int) -> subprocess.CompletedProcess[bytes]:
        document = host.fixture("PreCompact" if number % 10 == 9 else "PostToolUse")
        document["tool_input"] = {"file_path": str(host.repo / f"file{number}.py")}
        return ran(home, json.dumps(document).encode())

    syncing = threading.Thread(target=pulls)
    syncing.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            done = [*pool.map(one, range(50))]
    finally:
        stop.set()
        syncing.join()
    assert {(found.returncode, found.stderr) for found in done} == {(0, b"")}
    host.event("Stop")
    assert mishaps.recent(home, int(time.time() * 1000)) == []
    files = latest(home)["metrics"]["files_modified"]
    assert sorted(files) == sorted(f"file{n}.py" for n in range(50) if n % 10 != 9)


def test_hooks_that_stop_at_once_write_one_checkpoint(host: Host, home: Path) -> None:
    host.events("UserPromptSubmit", "PostToolUse")
    stop = json.dumps(host.fixture("Stop")).encode()
    with ThreadPoolExecutor(6) as pool:
        done = [*pool.map(lambda _: ran(home, stop), range(6))]
    assert {found.returncode for found in done} == {0}
    assert count(home) == 1


def test_while_one_makes_a_checkpoint_of_a_session_no_other_does(host: Host, home: Path) -> None:
    host.events("UserPromptSubmit", "PostToolUse")
    with host.journal.folding() as mine:
        assert mine
        host.event("PreCompact")
        assert count(home) == 0
    host.event("PreCompact")
    assert count(home) == 1


def test_of_what_is_left_to_do_it_says_how_much_is_left_out(host: Host) -> None:
    host.events("UserPromptSubmit", "PostToolUse.TodoWrite", "Stop")
    with closing(CheckpointService(home=host.home)) as service:
        many = [f"item {number}" for number in range(120)]
        service.create_checkpoint(TASK, "ann", {"pending_items": many})
    for item in ("Ship it", "Tell them"):
        host.used("TodoWrite", {"todos": [{"content": item, "status": "pending"}]})
        host.event("Stop")
        pending = latest(host.home)["execution_state"]["pending_items"]
        assert pending[0] == item
        assert pending[1:99] == many[:98]
        assert [words for words in pending if words.startswith("(more")] == pending[100:]
        assert len(pending) == 101


# --- the status line ------------------------------------------------------------------------------


def test_the_users_own_status_line_is_drawn_as_ever(host: Host, home: Path) -> None:
    host.events("SessionStart", "UserPromptSubmit", "PostToolUse")
    document = json.dumps({**host.fixture("status-line"), "long": "é" * 30_000}).encode()
    own = "cat; echo odd >&2; umask; exit 3"
    done = ran(home, document, CLAUDE_CODE, "--status-line", "--", own)
    umask = subprocess.run(["sh", "-c", "umask"], capture_output=True, check=True).stdout
    assert (done.returncode, done.stdout, done.stderr) == (3, document + umask, b"odd\n")
    assert host.journal.gauge()["context"] == 42
    assert host.journal.gauge()["cost"] == pytest.approx(1.2345)
    host.event("Stop")
    assert latest(home)["metrics"]["context_used_percent"] == 42


def test_the_users_own_status_line_may_be_several_words(host: Host, home: Path) -> None:
    document = json.dumps(host.fixture("status-line")).encode()
    for call in ([CLAUDE_CODE, "--status-line", "--"], ["--status-line", CLAUDE_CODE]):
        done = ran(home, document, *call, "echo", "a  b", "$HOME")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"a  b $HOME\n", b"")


def test_without_one_it_is_ours_and_nonsense_draws_a_line_too(host: Host, home: Path) -> None:
    document = json.dumps(host.fixture("status-line")).encode()
    done = ran(home, document, CLAUDE_CODE, "--status-line")
    assert done.stdout.decode() == "syncd · context 42 % · $1.23\n"
    assert not home.exists(), "what is not recorded needs no numbers"
    for given in (b"", b"7", b"{", b'{"context_window": 3, "cost": {"total_cost_usd": "x"}}'):
        done = ran(home, given, CLAUDE_CODE, "--status-line")
        assert (done.returncode, done.stdout) == (0, b"syncd\n")


def test_of_a_list_that_is_too_long_it_says_how_many_are_left_out() -> None:
    listed = [{"content": f"item {number}", "status": "pending"} for number in range(130)]
    found = events.todos(listed, "content")
    assert found[99] == ["item 99", "pending"]
    assert found[100:] == [["(30 more items, which are not recorded)", "pending"]]
