"""The words are true: every command is named, every example runs, every setting is listed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from postgres import Session
from resuming import commit, git

from syncd import CheckpointService, ExecutionState, tasks
from syncd.cli.app import command_paths
from syncd.config import SETTINGS, Setting

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOG = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", command_paths())
def test_the_readme_names_every_command(path: str) -> None:
    assert re.search(rf"^\| `{path}[ `]", README, re.M)


def test_the_readme_names_no_command_that_does_not_exist() -> None:
    named = {" ".join(match.split()) for match in re.findall(r"^\| `(syncd [a-z ]+)", README, re.M)}
    assert named == set(command_paths())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_readme_lists_every_setting(setting: Setting) -> None:
    row = f"| `{setting.name}` | `{setting.variable}` | {setting.default} | {setting.help} |"
    assert row in README


def test_the_five_minutes_work_as_written(tmp_path: Path) -> None:
    section = README.split("## Five minutes")[1].split("### From Python")[0]
    script = "set -euo pipefail\n" + "\n".join(re.findall(r"```sh\n(.*?)```", section, re.S))
    assert script.count("syncd ") > 8
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Intact" in done.stdout


def test_the_loop_over_a_real_command_works_as_written(tmp_path: Path) -> None:
    section = README.split("To see it without an AI")[1].split("## ")[0]
    (script,) = re.findall(r"```sh\n(.*?)```", section, re.S)
    (shown,) = re.findall(r"```text\n(.*?)```", section, re.S)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PATH": path}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert _timeless(shown) in _timeless(done.stdout)
    assert (tmp_path / "book.txt").read_text().split("\n")[2] == "chapter 3"
    assert "implementation-3" in done.stdout


def _timeless(text: str) -> str:
    return re.sub(r"[\d.]+ s\.", "… s.", text)


@pytest.mark.parametrize("before", [pytest.param("nothing", marks=pytest.mark.proof), "cloud try"])
def test_two_machines_are_connected_as_written(
    before: str, postgres: Session, tmp_path: Path
) -> None:
    """Whether `make run` came first or not. Pasting the DSN is what a script does with a pipe."""
    section = README.split("## Connect two machines")[1].split("**A managed PostgreSQL.**")[0]
    script = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.S))
    script = re.sub(r"^syncd (admin member|device) add .*$", r"DSN=$(\g<0>\n)", script, flags=re.M)
    script = re.sub(r"syncd login .*$", "syncd login - <<< \"${DSN%%$'\\n'*}\"", script, flags=re.M)
    for name in ("laptop", "desktop"):
        script = script.replace(f"/tmp/{name}", str(tmp_path / name))
    begin = "set -euo pipefail\n" + ("syncd cloud try\n" if before == "cloud try" else "")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folder = postgres.place(f"readme {before}".replace(" ", "-"))
    done = subprocess.run(
        ["bash", "-c", begin + script], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PATH": path, "SYNCD_CLOUD_FOLDER": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Sent 1 entry" in done.stdout
    assert "received 1 entry" in done.stdout
    assert "both sides have the same 1 entry" in done.stdout


def test_the_resume_prompt_is_as_shown(tmp_path: Path) -> None:
    """But for ids, times, and where the program lies."""
    (block,) = re.findall(r"```text\n(\$ syncd checkpoint create --agent.*?)```", README, re.S)
    steps = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.M)
    shop = tmp_path / "shop"
    (shop / "src").mkdir(parents=True)
    for name in ("toggle.ts", "theme.css"):
        (shop / "src" / name).write_text(name)
    git(shop, "init", "-q")
    commit(shop)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    del environment["SYNCD_HOME"]
    for command, shown in steps:
        done = subprocess.run(
            ["bash", "-c", command], cwd=shop, env=environment, capture_output=True, text=True
        )
        assert _plain(done.stdout) == _plain(shown), command
    assert len(steps) == 3


def _plain(text: str) -> str:
    """Without what differs from one run to the next."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "TIME", text)
    text = re.sub(r"HEAD [0-9a-f]{12}", "HEAD", text)
    return re.sub(r"/\S+/bin/syncd", "SYNCD", text)


def test_the_python_examples_work_as_written() -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.S)
    shown = ""
    for example in examples:
        done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown += done.stdout
    assert "toggle" in shown
    with closing(CheckpointService()) as opened:
        assert tasks.show(opened.node, "sums")["states"]["count"] == 3


def test_the_verifier_in_the_docs_accepts_an_intact_log_and_refuses_a_changed_one(
    service: CheckpointService,
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", LOG, re.S)
    for number in range(3):
        service.create_checkpoint("t\u00e4sk 😀", "a", ExecutionState(pending_items=[str(number)]))
    service.close()

    def check() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script], cwd=service.node.home, capture_output=True, text=True
        )

    assert check().stdout.startswith("intact"), check().stderr
    import sqlite3

    with sqlite3.connect(service.node.database) as connection:
        connection.execute("UPDATE log SET actor = 'mallory' WHERE seq = 2")
    connection.close()
    assert check().returncode != 0


def test_links_in_the_documents_lead_somewhere() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), (document.name, target)
