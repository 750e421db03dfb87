from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from syncd import workspace
from syncd.errors import ConfigError
from syncd.seal import digest


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Tester", "-c", "user.email=t@example.org")
    safe = ("-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *identity, *safe, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def repository(folder: Path, remote: str | None = None) -> Path:
    """A real one, with a commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "a.py").write_text("print(1)\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    if remote:
        git(folder, "remote", "add", "origin", remote)
    return folder


REMOTES = [
    "https://example.org/owner/name.git",
    "https://example.org/owner/name",
    "https://example.org/owner/name/",
    "https://example.org/owner/name.git/",
    "http://example.org:8080/owner/name.git",
    "https://user@example.org/owner/name.git",
    "https://user:secret-token@example.org/owner/name.git",
    "https://user:p@ss:w0rd@example.org/owner/name.git",
    "ssh://git@example.org/owner/name.git",
    "ssh://git@example.org:2222/owner/name.git",
    "git@example.org:owner/name.git",
    "git@example.org:owner/name",
    "example.org:owner/name.git",
    "git://example.org/owner/name.git",
    pytest.param(
        "git+ssh://git@example.org/owner/name.git",
    ),
]


@pytest.mark.parametrize("remote", REMOTES)
def test_clones_over_any_protocol_stand_for_the_same_task(tmp_path: Path, remote: str) -> None:
    top = repository(tmp_path / "any-name", remote)
    assert workspace.task_of(top) == "example.org/owner/name@main"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            "git@example.org:123/name.git",
            "https://example.org/123/name.git",
        ),
        pytest.param(
            "git@example.org:owner/@scope.git",
            "https://example.org/owner/@scope.git",
        ),
        ("git@example.org:group/sub/name.git", "https://u:p@example.org/group/sub/name"),
        pytest.param(
            "git@Example.org:owner/name.git",
            "https://example.org/owner/name.git",
        ),
    ],
    ids=["numeric owner", "at sign in the name", "subgroups", "host in capitals"],
)
def test_unusual_names_are_the_same_over_any_protocol(tmp_path: Path, one: str, other: str) -> None:
    tasks = [
        workspace.task_of(repository(tmp_path / str(number), remote))
        for number, remote in enumerate((one, other))
    ]
    assert tasks[0] == tasks[1]
    assert str(tasks[0]).count("/") >= 2


def test_different_repositories_and_branches_are_different_tasks(tmp_path: Path) -> None:
    one = repository(tmp_path / "one", "git@example.org:owner/one.git")
    two = repository(tmp_path / "two", "git@example.org:owner/two.git")
    assert workspace.task_of(one) != workspace.task_of(two)
    git(one, "switch", "--quiet", "-c", "feature/login")
    assert workspace.task_of(one) == "example.org/owner/one@feature/login"


def test_other_remotes_do_not_count(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    git(top, "remote", "add", "upstream", "https://example.org/upstream/name.git")
    git(top, "remote", "add", "origin", "https://example.org/owner/name.git")
    git(top, "remote", "add", "zzz", "https://example.org/zzz/name.git")
    git(top, "remote", "set-url", "--push", "origin", "https://push.example.org/elsewhere")
    assert workspace.task_of(top) == "example.org/owner/name@main"


def test_a_real_clone_has_the_task_of_its_origin(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    for name in ("one", "two"):
        git(tmp_path, "clone", "--quiet", str(origin), name)
    assert workspace.task_of(tmp_path / "one") == workspace.task_of(tmp_path / "two")


def test_every_directory_of_a_repository_stands_for_its_task(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    deep = top / "src" / "deep"
    deep.mkdir(parents=True)
    assert workspace.find(deep) == top
    assert workspace.task_of(deep) == workspace.task_of(top)


def test_a_relative_directory_finds_the_repository_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    (top / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(top / "src")
    assert workspace.task_of(Path("deep")) == "example.org/owner/name@main"


def test_a_worktree_shares_the_repository_and_has_its_own_branch(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    git(top, "worktree", "add", "--quiet", "-b", "side", str(tmp_path / "elsewhere"))
    assert workspace.task_of(tmp_path / "elsewhere") == "example.org/owner/name@side"
    assert workspace.task_of(top) == "example.org/owner/name@main"


def test_a_submodule_is_a_repository_of_its_own(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner")
    outer = repository(tmp_path / "outer", "https://example.org/owner/outer.git")
    allowed = ("-c", "protocol.file.allow=always")
    git(outer, *allowed, "submodule", "--quiet", "add", str(inner), "lib")
    git(outer / "lib", "remote", "set-url", "origin", "https://example.org/owner/inner.git")
    assert workspace.task_of(outer / "lib") == "example.org/owner/inner@main"


def test_a_detached_head_is_named_by_its_commit(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    head = git(top, "rev-parse", "HEAD")
    git(top, "checkout", "--quiet", "--detach")
    assert workspace.task_of(top) == f"example.org/owner/name@{head[:12]}"


def test_without_a_remote_the_directory_names_the_task(tmp_path: Path) -> None:
    assert workspace.task_of(repository(tmp_path / "my-tool")) == "my-tool@main"


def test_a_repository_without_a_commit_has_a_task_and_no_head(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "fresh")
    assert workspace.task_of(tmp_path / "fresh") == "fresh@main"
    captured = workspace.capture(tmp_path / "fresh", [])
    assert captured is not None
    assert (captured["head"], captured["dirty"]) == ("", False)


def test_outside_a_repository_there_is_no_task_and_nothing_to_capture(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    assert workspace.find(tmp_path) is None
    assert workspace.task_of(tmp_path) is None
    assert workspace.capture(tmp_path, ["a.py"]) is None


# --- the repository's own word --------------------------------------------------------------------


def test_the_repository_may_name_its_task_itself(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    (top / ".syncd.toml").write_text('task = "payments"\n')
    (top / "src").mkdir()
    assert workspace.task_of(top / "src") == "payments"
    (top / ".syncd.toml").write_text("ignore = false\n")
    assert workspace.task_of(top) == "example.org/owner/name@main"


@pytest.mark.parametrize("text", ["task = 5\n", "task = \n", "[task]\nname = 'x'\n"])
def test_a_flawed_word_of_the_repository_is_refused_by_its_file(tmp_path: Path, text: str) -> None:
    top = repository(tmp_path / "top")
    (top / ".syncd.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"\.syncd\.toml: "):
        workspace.task_of(top)


# --- its state ------------------------------------------------------------------------------------


def test_a_capture_tells_repository_branch_head_and_files(tmp_path: Path) -> None:
    top = repository(tmp_path / "top", "https://user:secret@example.org/owner/name.git")
    captured = workspace.capture(top, ["a.py"])
    assert captured == {
        "repository": "example.org/owner/name",
        "branch": "main",
        "head": git(top, "rev-parse", "HEAD"),
        "dirty": False,
        "files": {"a.py": digest(b"print(1)\n")},
    }


@pytest.mark.parametrize("change", ["edit", "new file", "staged", "removed"])
def test_a_change_that_is_not_committed_is_told(tmp_path: Path, change: str) -> None:
    top = repository(tmp_path / "top")
    if change == "new file":
        (top / "b.py").write_text("")
    elif change == "removed":
        (top / "a.py").unlink()
    else:
        (top / "a.py").write_text("print(2)\n")
    if change == "staged":
        git(top, "add", "a.py")
    captured = workspace.capture(top, [])
    assert captured is not None
    assert captured["dirty"] is True


def test_git_says_which_files_changed_and_which_are_new(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (top / "? old.py").write_text("print(2)\n" * 9)
    git(top, "add", ".")
    git(top, "commit", "--quiet", "-m", "second")
    git(top, "mv", "? old.py", "new name.py")
    (top / "a.py").write_text("changed")
    (top / "häß\n.py").write_text("fresh")
    (top / "node_modules").mkdir()
    (top / "node_modules" / "x.js").write_text("")
    found = workspace.status(top)
    assert found
    assert found.head == git(top, "rev-parse", "HEAD")
    assert sorted(found.changes) == ["a.py", "häß\n.py", "new name.py"]
    assert found.fresh == ["häß\n.py"]


def test_ignored_files_are_left_out_unless_they_are_committed(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (top / ".gitignore").write_text("*.gen\n")
    for name in ("x.gen", "kept.gen"):
        (top / name).write_text("x")
    git(top, "add", "--force", "kept.gen")
    assert list(files(top, "x.gen", "kept.gen", "a.py")) == ["kept.gen", "a.py"]


def test_an_ignored_file_is_no_change(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (top / ".gitignore").write_text("*.log\n")
    git(top, "add", ".gitignore")
    git(top, "commit", "--quiet", "-m", "ignore")
    (top / "x.log").write_text("noise")
    captured = workspace.capture(top, [])
    assert captured is not None
    assert captured["dirty"] is False


def test_a_capture_writes_nothing_into_the_repository(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    os.utime(top / "a.py", (1, 1))  # what would make git refresh its index
    before = (top / ".git" / "index").read_bytes()
    workspace.capture(top, ["a.py"])
    assert (top / ".git" / "index").read_bytes() == before


def files(start: Path, *names: str) -> dict[str, str]:
    captured = workspace.capture(start, names)
    assert captured is not None
    found: dict[str, str] = captured["files"]
    return found


def test_files_are_named_from_the_top_wherever_the_agent_stands(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (top / "src").mkdir()
    (top / "src" / "b.py").write_text("b")
    expected = {"src/b.py": digest(b"b")}
    assert files(top, "src/b.py") == expected
    assert files(top / "src", "b.py") == expected
    assert files(top / "src", "src/b.py") == expected
    assert files(top / "src", "../src/./b.py") == expected
    assert files(top, str(top / "src" / "b.py")) == expected


def test_generated_files_are_left_out(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    names = [
        "node_modules/x/index.js", "dist/app.js", "build/lib.o", "pkg/__pycache__/a.pyc",
        ".venv/lib/a.py", "target/debug/a", ".git/config",
    ]  # fmt: skip
    for name in names:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        if name != ".git/config":
            (top / name).write_text("x")
    (top / "builder.py").write_text("x")
    assert list(files(top, *names, "builder.py")) == ["builder.py"]


def test_files_outside_or_missing_are_left_out(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (tmp_path / "secret").write_text("x")
    (top / "link").symlink_to(tmp_path / "secret")
    (top / "folder").mkdir()
    named = ["../secret", str(tmp_path / "secret"), "link", "folder", "missing.py", "", "a.py"]
    assert list(files(top, *named)) == ["a.py"]


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "zero byte"])
def test_what_cannot_be_a_files_name_is_left_out(tmp_path: Path, name: str) -> None:
    """Agents write sentences where files are asked for."""
    assert list(files(repository(tmp_path / "top"), name, "a.py")) == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (top / "b.py").write_text("x")
    (top / "b.py").chmod(0)
    assert list(files(top, "b.py", "a.py")) == ["a.py"]


def test_a_repository_reached_through_a_link_names_its_files_alike(tmp_path: Path) -> None:
    top = repository(tmp_path / "top")
    (tmp_path / "short").symlink_to(top)
    assert files(tmp_path / "short", "a.py") == files(top, "a.py")


def test_git_variables_of_another_repository_do_not_mislead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a git hook, GIT_DIR names the repository that runs the hook."""
    here, there = repository(tmp_path / "here"), repository(tmp_path / "there")
    (here / "a.py").write_text("changed")
    git(here, "commit", "--quiet", "-am", "second")
    head = git(here, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(there / ".git"))
    captured = workspace.capture(here, [])
    assert captured is not None
    assert (captured["head"], captured["dirty"]) == (head, False)


def test_without_git_the_rest_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = repository(tmp_path / "top", "https://example.org/owner/name.git")
    monkeypatch.setenv("PATH", str(tmp_path))
    captured = workspace.capture(top, ["a.py"])
    assert captured is not None
    assert captured["repository"] == "example.org/owner/name"
    assert captured["branch"] == "main"
    assert captured["head"] == ""
    assert list(captured["files"]) == ["a.py"]
