"""Is the code what the checkpoint saw? Real repositories, and what happens to them."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from counts import full
from resuming import captured, commit, git, part, repository, resume, saved, states
from test_cli import ok

from syncd import CheckpointService
from syncd.vocabulary import now

__all__ = ["repository"]


def worked(service: CheckpointService, folder: Path, **more: Any) -> str:
    """A checkpoint about a.py and b.py, as `checkpoint create` writes it there."""
    metrics = {"files_modified": ["a.py", "b.py"], **more.pop("metrics", {})}
    document = {"metrics": metrics, **more}
    return saved(service, **document, workspace=captured(folder, document))


def claimed(service: CheckpointService, folder: Path) -> dict[str, str]:
    """What does not hold, and why."""
    found = states(resume(service, start=folder))
    return {what: reason for what, (state, reason) in found.items() if state == "UNVERIFIED"}


def test_an_unchanged_repository_holds(service: CheckpointService, repository: Path) -> None:
    worked(service, repository)
    found = resume(service, start=repository)
    assert not found.unverified
    head = git(repository, "rev-parse", "HEAD")[:12]
    assert part(found.prompt, "Files to review") == [
        "- a.py VERIFIED: same content", "- b.py VERIFIED: same content",
    ]  # fmt: skip
    assert f"- HEAD {head} VERIFIED: the same here, on main" in found.prompt
    assert "- working tree VERIFIED: clean, as it was" in found.prompt


def test_a_deeper_folder_is_the_same_repository(
    service: CheckpointService, repository: Path
) -> None:
    worked(service, repository)
    (repository / "deep").mkdir()
    assert claimed(service, repository / "deep") == {}


@pytest.mark.parametrize("ahead", [1, 2])
def test_commits_since_are_counted(
    service: CheckpointService, repository: Path, ahead: int
) -> None:
    head = git(repository, "rev-parse", "HEAD")[:12]
    worked(service, repository)
    for number in range(ahead):
        commit(repository, c_py=str(number))
    count = "1 commit" if ahead == 1 else "2 commits"
    assert claimed(service, repository) == {f"HEAD {head}": f"{count} ahead of it here"}


def test_commits_that_are_gone_are_counted(service: CheckpointService, repository: Path) -> None:
    commit(repository, c_py="c")
    worked(service, repository)
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    assert [*claimed(service, repository).values()] == ["1 commit behind it here"]


def test_a_history_that_went_another_way_is_told(
    service: CheckpointService, repository: Path
) -> None:
    commit(repository, c_py="c")
    worked(service, repository)
    git(repository, "reset", "-q", "--hard", "HEAD~1")
    commit(repository, d_py="d")
    commit(repository, e_py="e")
    assert [*claimed(service, repository).values()] == [
        "diverged: 2 commits here, 1 commit there that the other has not"
    ]


def test_another_branch_is_told(service: CheckpointService, repository: Path) -> None:
    worked(service, repository)
    git(repository, "switch", "-qc", "feature")
    assert [*claimed(service, repository).values()] == [
        "on feature here, it was on main, at the same commit"
    ]
    commit(repository, c_py="c")
    assert [*claimed(service, repository).values()] == ["on feature here, it was on main"]


def test_elsewhere_nothing_of_the_code_holds(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    worked(service, repository)
    none = "there is no git repository here to compare with"
    assert set(claimed(service, tmp_path).values()) == {none}
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    commit(other, a_py="a\n", b_py="b\n", c_py="c\n")
    assert set(claimed(service, other).values()) == {"this is another repository, other"}
    assert resume(service, start=other).document()["stale_files"] == []


def test_without_git_nothing_of_the_code_holds(
    service: CheckpointService, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked(service, repository)
    monkeypatch.setenv("PATH", "/nothing")
    assert len(claimed(service, repository)) == 3


def test_a_commit_that_is_not_here_is_told_and_contents_still_count(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", str(repository), "clone")
    head = commit(repository, c_py="c")
    worked(service, repository)
    (tmp_path / "clone" / "b.py").write_text("changed")
    git(tmp_path / "clone", "commit", "-qam", "other work")
    found = claimed(service, tmp_path / "clone")
    assert found.pop(f"HEAD {head[:12]}").startswith("this commit is not here; HEAD is ")
    assert found == {"file b.py": "changed since"}


def test_a_clone_by_another_name_is_the_same_repository(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    worked(service, repository)
    git(tmp_path, "clone", "-q", str(repository), "another-name")
    git(tmp_path / "another-name", "remote", "remove", "origin")
    assert claimed(service, tmp_path / "another-name") == {}


def test_a_repository_without_a_commit(service: CheckpointService, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    git(fresh, "init", "-q")
    for name in ("a.py", "b.py"):
        (fresh / name).write_text(name)
    worked(service, fresh)
    assert claimed(service, fresh) == {}
    commit(fresh)
    assert claimed(service, fresh) == {
        "HEAD without a commit": "1 commit ahead of it here",
        "working tree": "it had changes that were not committed, and there are none here",
    }


def test_changes_that_are_not_committed_are_compared(
    service: CheckpointService, repository: Path
) -> None:
    worked(service, repository)
    (repository / "c.py").write_text("new")
    assert claimed(service, repository) == {
        "working tree": "c.py changed and not committed; it was clean"
    }
    worked(service, repository)
    assert claimed(service, repository) == {}
    (repository / "c.py").unlink()
    assert claimed(service, repository) == {
        "working tree": "it had changes that were not committed, and there are none here"
    }


# --- files --------------------------------------------------------------------------------------


def test_a_changed_a_missing_and_a_renamed_file_are_told(
    service: CheckpointService, repository: Path
) -> None:
    commit(repository, c_py="c\n" * 20, d_py="d\n")
    files = ["a.py", "b.py", "c.py", "d.py"]
    worked(service, repository, metrics={"files_modified": files})
    (repository / "a.py").write_text("other")
    (repository / "b.py").unlink()
    git(repository, "mv", "c.py", "moved.py")
    (repository / "moved.py").write_text("c\n" * 20 + "more\n")
    (repository / "d.py").rename(repository / "by hand.py")
    found = claimed(service, repository)
    del found["working tree"]
    assert found == {
        "file a.py": "changed since",
        "file b.py": "missing",
        "file c.py": "renamed to moved.py",
        "file d.py": "renamed to by hand.py",
    }
    shown = resume(service, start=repository)
    assert shown.document()["stale_files"] == files
    assert "- STALE: a.py, b.py, c.py, d.py changed since the checkpoint." in shown.prompt
    assert part(shown.prompt, "Files to review")[0] == "- a.py UNVERIFIED: changed since"


def test_a_rename_that_is_committed_is_told(service: CheckpointService, repository: Path) -> None:
    worked(service, repository)
    (repository / "sub").mkdir()
    git(repository, "mv", "a.py", "sub/a.py")
    commit(repository)
    assert claimed(service, repository)["file a.py"] == "renamed to sub/a.py"


def test_a_step_is_marked_by_its_files(service: CheckpointService, repository: Path) -> None:
    steps = [
        {"step": "first", "files_created": ["a.py"]},
        {"step": "second", "files_modified": ["b.py", "./a.py"]},
        {"step": "third", "files_modified": ["dist/out.js"]},
        "fourth",
    ]
    worked(service, repository, execution_state={"completed_items": steps})
    shown = part(resume(service, start=repository).prompt, "Completed: do not redo")
    assert shown == [
        "- first [VERIFIED: 1 file]", "- second [VERIFIED: 2 files]", "- third", "- fourth",
    ]  # fmt: skip
    (repository / "b.py").write_text("other")
    shown = part(resume(service, start=repository).prompt, "Completed: do not redo")
    assert shown[:2] == ["- first [VERIFIED: 1 file]", "- second [UNVERIFIED: b.py changed since]"]


def test_a_file_that_was_never_there_is_told(service: CheckpointService, repository: Path) -> None:
    """What an agent claims to have written, and has not."""
    worked(service, repository, metrics={"files_modified": ["a.py", "ghost.py", "later.py"]})
    (repository / ".git" / "info" / "exclude").write_text("nothing\n")
    absent = "there was no such file when it was written, nor is there now"
    found = claimed(service, repository)
    assert found == {"file ghost.py": absent, "file later.py": absent}
    (repository / "later.py").write_text("x")
    assert claimed(service, repository)["file later.py"] == "newer than the checkpoint"


def test_only_source_files_are_tracked(service: CheckpointService, repository: Path) -> None:
    commit(repository, _gitignore="*.log\nsecret/\n")
    names = ["a.py", "out.log", "secret/key", "node_modules/x/y.js", "dist/app.js", "src", "../x"]
    for name in names[1:5]:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x")
    (repository / "src").mkdir()
    worked(service, repository, metrics={"files_modified": names})
    recorded = service.get_latest_checkpoint("t")
    assert recorded
    assert recorded.workspace
    assert [*recorded.workspace.files] == ["a.py"]
    for name in names[1:5]:
        (repository / name).write_text("y")
    assert claimed(service, repository) == {}


def test_what_another_program_recorded_of_generated_files_is_left_out(
    service: CheckpointService, repository: Path
) -> None:
    commit(repository, _gitignore="*.log\n")
    here = captured(repository, {})
    files = {"node_modules/x.js": "0" * 64, "out.log": "0" * 64, "../../etc/passwd": "0" * 64}
    saved(service, workspace={**here, "files": files})
    assert claimed(service, repository) == {}


def test_a_recorded_commit_is_never_an_option_of_git(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    """It may come from anybody's machine."""
    here = captured(repository, {})
    files = {"gone.py": "0" * 64}
    saved(service, workspace={**here, "head": f"--output={tmp_path}/written", "files": files})
    assert claimed(service, repository)["file gone.py"] == "missing"
    assert not [*tmp_path.glob("written*")]


@pytest.mark.parametrize("digest", ["", "0" * 63, "missing"])
def test_what_is_no_digest_proves_nothing(
    service: CheckpointService, repository: Path, digest: str
) -> None:
    here = captured(repository, {})
    metrics = {"files_modified": ["ghost.py"]}
    saved(service, metrics=metrics, workspace={**here, "files": {"ghost.py": digest}})
    assert [*claimed(service, repository)] == ["file ghost.py"]


def test_without_a_record_a_named_file_cannot_be_checked(service: CheckpointService) -> None:
    saved(service, metrics={"files_modified": ["a.py"]})
    assert states(resume(service))["file a.py"] == ("UNVERIFIED", "its content was not recorded")


# --- files whose content was not recorded -------------------------------------------------------

NEWER = "newer than the checkpoint"
BUILDER = {
    "activePrd": {
        "id": "prd-dark-mode",
        "checkpoint": {
            "phase": "implementation",
            "completedSteps": [
                {"step": "theme", "filesCreated": ["src/theme.ts"], "filesModified": ["app.ts"],
                 "timestamp": "2026-02-28T10:05:00Z"},
            ],
            "metadata": {"createdBy": "react-dev", "lastUpdatedAt": "2026-02-28T10:10:00Z"},
        },
    }
}  # fmt: skip


def dated(file: Path, moment: str, later_ms: int = 0) -> None:
    """As if it had been written then."""
    past = datetime.fromisoformat(moment) - datetime.fromtimestamp(0, UTC)
    written = past // timedelta(microseconds=1) * 1_000 + later_ms * 1_000_000
    os.utime(file, ns=(written, written))


def stale(service: CheckpointService, folder: Path) -> list[str]:
    """Those named as stale; the claims say the same."""
    found = resume(service, start=folder)
    newer = [claim.path for claim in found.found.claims if claim.reason == NEWER]
    assert newer == found.found.stale
    return newer


@pytest.fixture(params=["in a repository", "without one"])
def imported(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A builder's project with its checkpoint of 10:10, read in long after that."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("src/theme.ts", "app.ts"):
        (folder / name).write_text("x")
        dated(folder / name, "2026-02-28T09:00:00Z")
    if request.param == "in a repository":
        git(folder, "init", "-q")
        commit(folder)
    (folder / "builder-state.json").write_text(json.dumps(BUILDER))
    ok("import", "builder-state", "builder-state.json", cwd=folder)
    return folder


def test_a_file_newer_than_an_imported_checkpoint_is_told(imported: Path) -> None:
    before = ok("--json", "resume", "prd-dark-mode", cwd=imported)
    assert before.json()["stale_files"] == []
    assert "STALE" not in before.json()["prompt"]
    assert "stale" not in before.err
    dated(imported / "app.ts", "2026-02-28T10:30:00Z")
    found = ok("--json", "resume", "prd-dark-mode", cwd=imported)
    document = found.json()
    assert document["stale_files"] == ["app.ts"]
    assert {"claim": "file app.ts", "state": "UNVERIFIED", "reason": NEWER} in document["claims"]
    told = part(document["prompt"], "Attention")
    assert told[0].startswith("- STALE: app.ts newer than the checkpoint, which recorded no ")
    assert "- app.ts UNVERIFIED: newer than the checkpoint" in document["prompt"]
    assert "- theme [UNVERIFIED: " in document["prompt"]
    assert "the checkpoint may be stale, these changed since: app.ts" in found.err


def test_a_time_in_whole_seconds_covers_its_second(imported: Path) -> None:
    for later_ms, told in ((0, []), (999, []), (1_000, ["app.ts"])):
        dated(imported / "app.ts", "2026-02-28T10:10:00Z", later_ms)
        found = ok("--json", "resume", "prd-dark-mode", cwd=imported).json()
        assert found["stale_files"] == told


def test_what_was_written_just_before_the_checkpoint_is_not_newer(
    service: CheckpointService, tmp_path: Path
) -> None:
    names = [f"{number}.py" for number in range(50)]
    for name in names:
        (tmp_path / name).write_text("x")
    saved(service, metrics={"files_modified": names})
    assert stale(service, tmp_path) == []
    made = service.get_latest_checkpoint("t")
    assert made
    dated(tmp_path / "7.py", made.metadata.timestamp)
    assert stale(service, tmp_path) == []
    dated(tmp_path / "7.py", made.metadata.timestamp, later_ms=1)
    assert stale(service, tmp_path) == ["7.py"]


def test_an_update_covers_what_changed_before_it(
    service: CheckpointService, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("x")
    made = saved(service, metrics={"files_modified": ["a.py"]})
    (tmp_path / "a.py").write_text("y")
    dated(tmp_path / "a.py", now(), later_ms=1)
    assert stale(service, tmp_path) == ["a.py"]
    time.sleep(0.01)
    service.update_checkpoint(made, {"metrics": {"error_count": 1}})
    assert stale(service, tmp_path) == []


def test_to_finalize_covers_nothing(service: CheckpointService, tmp_path: Path) -> None:
    """It says nothing new of the work, and records no content either."""
    (tmp_path / "a.py").write_text("x")
    made = saved(service, metrics={"files_modified": ["a.py"]})
    dated(tmp_path / "a.py", now(), later_ms=1)
    time.sleep(0.01)
    service.finalize_checkpoint(made)
    assert stale(service, tmp_path) == ["a.py"]


def test_a_version_that_was_read_in_is_as_old_as_it_says(
    service: CheckpointService, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text("x")
    made = saved(service, metrics={"files_modified": ["a.py"]})
    time.sleep(0.01)
    written = now()
    dated(tmp_path / "a.py", written, later_ms=1)
    time.sleep(0.01)
    service.update_checkpoint(made, {"metadata": {"timestamp": written}})
    assert stale(service, tmp_path) == ["a.py"]


def test_a_time_to_come_is_not_taken_at_its_word(
    service: CheckpointService, tmp_path: Path
) -> None:
    """A file without a zone may name an hour that has not yet come."""
    (tmp_path / "a.py").write_text("x")
    saved(service, metadata={"timestamp": "2999-01-01T00:00:00Z"},
          metrics={"files_modified": ["a.py"]})  # fmt: skip
    assert stale(service, tmp_path) == []
    dated(tmp_path / "a.py", now(), later_ms=60_000)
    assert stale(service, tmp_path) == ["a.py"]


def test_the_content_decides_where_it_was_recorded(
    service: CheckpointService, repository: Path
) -> None:
    document: dict[str, Any] = {"metrics": {"files_modified": ["a.py", "later.py"]}}
    saved(service, **document, workspace=captured(repository, document))
    (repository / "later.py").write_text("x")
    for name in ("a.py", "later.py"):
        dated(repository / name, "2999-01-01T00:00:00Z")
    assert stale(service, repository) == ["later.py"]


def test_a_fresh_clone_of_the_recorded_commit_raises_no_alarm(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    """All its files are new; git knows that they are the same."""
    here = {**captured(repository, {}), "files": {}}
    saved(service, metrics={"files_modified": ["a.py", "b.py"]}, workspace=here)
    git(tmp_path, "clone", "-q", str(repository), "clone")
    clone = tmp_path / "clone"
    for name in ("a.py", "b.py"):
        dated(clone / name, "2999-01-01T00:00:00Z")
    assert stale(service, clone) == []
    (clone / "b.py").write_text("other")
    dated(clone / "b.py", "2999-01-01T00:00:00Z")
    assert stale(service, clone) == ["b.py"]
    git(clone, "commit", "-qam", "other work")
    assert stale(service, clone) == ["b.py"]


def test_a_commit_does_not_speak_for_what_was_not_committed(
    service: CheckpointService, repository: Path
) -> None:
    (repository / "a.py").write_text("uncommitted")
    here = {**captured(repository, {}), "files": {}}
    assert here["dirty"]
    saved(service, metrics={"files_modified": ["a.py"]}, workspace=here)
    git(repository, "checkout", "-q", "a.py")
    dated(repository / "a.py", "2999-01-01T00:00:00Z")
    assert stale(service, repository) == ["a.py"]


def test_without_a_recorded_commit_the_time_is_all_there_is(
    service: CheckpointService, repository: Path
) -> None:
    saved(service, metrics={"files_modified": ["a.py", "b.py", "gone.py"]})
    dated(repository / "a.py", "2999-01-01T00:00:00Z")
    assert stale(service, repository) == ["a.py"]
    assert claimed(service, repository)["file gone.py"] == "its content was not recorded"


def test_only_source_files_can_be_newer(service: CheckpointService, repository: Path) -> None:
    commit(repository, _gitignore="*.log\n")
    names = ["a.py", "out.log", "node_modules/x.js", "dist/app.js", "../beside.py"]
    saved(service, metrics={"files_modified": names})
    for name in names:
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text("x")
        dated(repository / name, "2999-01-01T00:00:00Z")
    assert stale(service, repository) == ["a.py"]
    shutil.rmtree(repository / ".git")
    assert stale(service, repository) == ["a.py", "out.log"]


def test_results_are_older_than_a_file_that_is_newer(
    service: CheckpointService, repository: Path
) -> None:
    document: dict[str, Any] = {"metrics": {"files_modified": ["dist.py"], **PASSED}}
    saved(service, **document, workspace=captured(repository, document))
    (repository / "dist.py").write_text("x")
    dated(repository / "dist.py", "2999-01-01T00:00:00Z")
    assert claimed(service, repository)["tests: 12 passed, 1 failed"] == (
        "older than the code: dist.py, the working tree changed since"
    )


# --- tests --------------------------------------------------------------------------------------

PASSED = {"tests_status": {"passed": 12, "failed": 1}}
CHECK = {"activity": "e2e", "status": "passed", "run_at": "2026-01-01T10:00:00Z"}


def test_results_hold_while_the_code_is_the_same(
    service: CheckpointService, repository: Path
) -> None:
    worked(service, repository, metrics=PASSED, verification={"results": [CHECK]})
    same = ("VERIFIED", "the code is still what it was")
    found = states(resume(service, start=repository))
    assert found["tests: 12 passed, 1 failed"] == found["check: e2e passed"] == same
    git(repository, "switch", "-qc", "elsewhere")
    assert "tests: 12 passed, 1 failed" not in claimed(service, repository), "the same commit"
    (repository / "a.py").write_text("other")
    older = "older than the code: a.py, the working tree changed since"
    found_now = claimed(service, repository)
    assert found_now["tests: 12 passed, 1 failed"] == found_now["check: e2e passed"] == older


def test_a_result_from_before_the_last_step_is_older_than_the_code(
    service: CheckpointService, repository: Path
) -> None:
    steps = [
        {"step": "code", "files_modified": ["a.py"], "timestamp": "2026-01-01T10:00:01Z"},
        {"step": "talk", "timestamp": "2026-01-01T11:00:00Z"},
    ]
    results = [CHECK, {**CHECK, "activity": "unit", "run_at": "2026-01-01T10:00:01Z"}]
    worked(
        service, repository, execution_state={"completed_items": steps},
        verification={"results": results},
    )  # fmt: skip
    assert claimed(service, repository) == {
        "check: e2e passed": "it ran before the last step was done"
    }


def test_results_without_their_code_do_not_hold(
    service: CheckpointService, repository: Path, tmp_path: Path
) -> None:
    worked(service, repository, metrics=PASSED)
    reason = "that code is not here to compare with"
    assert claimed(service, tmp_path)["tests: 12 passed, 1 failed"] == reason
    saved(service, "bare", metrics=PASSED)
    assert states(resume(service, "bare"))["tests: 12 passed, 1 failed"] == (
        "UNVERIFIED", "no state of the code was recorded with it",
    )  # fmt: skip


# --- any workspace --------------------------------------------------------------------------------

FOLDERS = ("", "src/", "src/deep er/", "tests/", "häß/")
IGNORED = ("build/out.o", "node_modules/lib/x.js", "notes.log")


class World:
    """A repository that is changed at random, and what it holds, kept beside it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.top = folder / "work"
        self.now: dict[str, str] = {}
        self.top.mkdir()
        git(self.top, "init", "-q")
        self.put(".gitignore", "*.log\n")
        self.files = [f"{self.random.choice(FOLDERS)}f{n}.py" for n in range(8)]
        self.rewrite([*self.files, *IGNORED])
        commit(self.top)
        git(self.top, "branch", "other")
        self.other = dict(self.now)
        if self.random.random() < 0.5:
            self.rewrite(self.some())
            commit(self.top)
        self.named = self.random.sample(self.files, self.random.randint(1, 6))
        self.then = dict(self.now)

    def put(self, name: str, content: str) -> None:
        (self.top / name).parent.mkdir(parents=True, exist_ok=True)
        (self.top / name).write_text(content)
        self.now[name] = content

    def rewrite(self, names: list[str]) -> None:
        for name in names:
            lines = self.random.randint(1, 30)
            self.put(name, "".join(f"{self.random.random()}\n" for _ in range(lines)))

    def some(self) -> list[str]:
        return self.random.sample(self.files, self.random.randint(1, 4))

    def maybe_commit(self) -> None:
        if self.random.random() < 0.5:
            commit(self.top)

    def stale(self) -> set[str]:
        return {name for name in self.named if self.now.get(name) != self.then[name]}

    # --- what happens -----------------------------------------------------------------------------

    def edit(self) -> None:
        self.rewrite(self.some())
        self.maybe_commit()

    def touch(self) -> None:
        for name in (*self.files, *IGNORED):
            os.utime(self.top / name, (2**31, 2**31) if self.random.random() < 0.5 else (1, 1))

    def checkout(self) -> None:
        git(self.top, "checkout", "-q", "other")
        main, self.now = self.now, self.other
        self.edit()
        commit(self.top)
        if self.random.random() < 0.3:
            git(self.top, "checkout", "-q", "main")
            self.now = main

    def rename(self) -> None:
        for number, name in enumerate(self.some()):
            new = f"new name {number}.py"
            if self.random.random() < 0.5:
                git(self.top, "mv", name, new)
            else:
                (self.top / name).rename(self.top / new)
            self.now[new] = self.now.pop(name)
        self.maybe_commit()

    def delete(self) -> None:
        for name in self.some():
            (self.top / name).unlink()
            del self.now[name]
        self.maybe_commit()

    def clone(self) -> None:
        git(self.top.parent, "clone", "-q", str(self.top), "a clone")
        self.top = self.top.parent / "a clone"

    def copy(self) -> None:
        shutil.copytree(self.top, self.top.parent / "a copy", symlinks=True)
        self.top = self.top.parent / "a copy"

    def undo(self) -> None:
        """Changed, and changed back."""
        for name in self.some():
            before = self.now[name]
            self.rewrite([name])
            commit(self.top)
            self.put(name, before)
            self.maybe_commit()

    def build(self) -> None:
        self.rewrite([*IGNORED])


ACTIONS = ("edit", "touch", "checkout", "rename", "delete", "clone", "copy", "undo", "build")


@pytest.mark.parametrize("seed", range(full(10, 200)))
def test_a_stale_checkpoint_is_told_exactly(
    service: CheckpointService, tmp_path: Path, seed: int
) -> None:
    world = World(tmp_path, seed)
    metrics = {"files_modified": [*world.named, *IGNORED]}
    saved(service, metrics=metrics, workspace=captured(world.top, {"metrics": metrics}))
    action = ACTIONS[seed % len(ACTIONS)]
    getattr(world, action)()
    found = resume(service, start=world.top)
    assert {*found.found.stale} == world.stale(), action
    claims = {claim.path: claim for claim in found.found.claims if claim.path}
    assert {path for path, claim in claims.items() if not claim.holds} == world.stale()
    assert {*claims} == {*world.named}, "nothing else is tracked"
    if action in ("touch", "clone", "copy", "build"):
        assert found.unverified == [], "no false alarm"
