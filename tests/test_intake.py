"""Files of other tools become checkpoints, once each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from machines import Machine, Runner, runner

from syncd import CheckpointService
from syncd.errors import InvalidInputError
from syncd.formats import agent_json, markdown
from syncd.intake import FORMATS, Intake, Tally
from syncd.outlet import exported
from syncd.recovery import TAKEOVER, Wish, recover

__all__ = ["runner"]

MARKDOWN = """# Agent Checkpoint: SCHEDULER

**Mission:** Plan block 10
**Status:** In Progress
**Timestamp:** 2026-01-16T15:00:45
{more}
---

## Progress

### Completed
- [x] Load availability

### Remaining
- [ ] {left}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[CheckpointService]:
    with closing(CheckpointService(home=tmp_path / "home")) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def taken(service: CheckpointService, form: str, place: Path, task: str = "") -> Tally:
    return Intake(service, task).everything(FORMATS[form], place)


def page(place: Path, name: str, left: str = "Validate", more: str = "") -> Path:
    path = place / name
    path.write_text(MARKDOWN.format(left=left, more=more))
    return path


def agent_file(place: Path, agent: str = "Secondary-A", **changes: Any) -> Path:
    document = {
        "agent_id": agent, "agent_type": "secondary", "session_id": "s1", "feature": "penalty",
        "stage": "S2.P1", "phase": "Research", "last_checkpoint": "2026-01-15T14:30:00Z",
        "status": "IN_PROGRESS", "can_resume": True, "blockers": [], "files_modified": ["a.md"],
        "recovery_instructions": "Go on with part 2.", "current_step": "Reading",
        "completed_steps": ["Part 1"], "next_steps": ["Part 2"], **changes,
    }  # fmt: skip
    path = place / agent_json.file_name(agent)
    path.write_text(json.dumps(document))
    return path


# --- once each ------------------------------------------------------------------------------------


def test_a_file_is_taken_in_once(service: CheckpointService, place: Path) -> None:
    page(place, "AGENT_SCHEDULER_20260116_150045.md")
    assert taken(service, "markdown", place)[:2] == (1, 0)
    assert taken(service, "markdown", place)[:2] == (0, 1)
    [found] = service.get_checkpoint_history("plan-block-10")
    assert found.execution_state.completed_items == ["Load availability"]
    assert found.metadata.timestamp.startswith("2026-01-16T15:00:45"), "the original's time is kept"


def test_a_time_without_a_zone_is_noted(service: CheckpointService, place: Path) -> None:
    page(place, "AGENT_SCHEDULER_20260116_150045.md")
    [note] = taken(service, "markdown", place).notes
    assert "UTC" in note
    assert "AGENT_SCHEDULER_20260116_150045.md" in note


def test_a_changed_file_is_a_new_version_of_the_same_checkpoint(
    service: CheckpointService, place: Path
) -> None:
    page(place, "AGENT_SCHEDULER_20260116_150045.md")
    taken(service, "markdown", place)
    page(place, "AGENT_SCHEDULER_20260116_150045.md", left="Select")
    assert taken(service, "markdown", place)[:2] == (1, 0)
    [found] = service.get_checkpoint_history("plan-block-10")
    assert found.execution_state.pending_items == ["Select"]


def test_an_agents_file_at_another_time_is_a_new_checkpoint(
    service: CheckpointService, place: Path
) -> None:
    agent_file(place)
    taken(service, "agent-json", place)
    agent_file(place, last_checkpoint="2026-01-15T14:45:00Z", completed_steps=["Part 1", "Part 2"])
    assert taken(service, "agent-json", place)[:2] == (1, 0)
    newest, first = service.get_checkpoint_history("penalty")
    assert newest.recovery.last_successful_state == first.metadata.checkpoint_id
    assert newest.metadata.timestamp == "2026-01-15T14:45:00Z"


def test_a_page_names_the_one_before_it(service: CheckpointService, place: Path) -> None:
    """Whatever came between the two."""
    names = [f"AGENT_SCHEDULER_20260116_15{minute}00.md" for minute in ("01", "02", "03")]
    for name, more in zip(names, ("", "", f"**Previous:** {names[0]}\n"), strict=True):
        page(place, name, more=more)
        text = (place / name).read_text().replace("15:00:45", f"15:{name[-7:-5]}:00")
        (place / name).write_text(text)
    taken(service, "markdown", place)
    third, second, first = service.get_checkpoint_history("plan-block-10")
    assert third.recovery.last_successful_state == first.metadata.checkpoint_id
    assert second.recovery.last_successful_state == first.metadata.checkpoint_id


def test_one_page_is_written_with_the_name_of_the_one_before_it(
    service: CheckpointService, place: Path, tmp_path: Path
) -> None:
    for minute in ("01", "02"):
        service.create_checkpoint("t", "ann", timestamp=f"2026-01-16T15:{minute}:00+00:00")
    [path] = exported(service, "markdown", place, "t")
    assert "**Previous:** AGENT_ANN_20260116_150100.md\n" in path.read_text()
    assert taken(service, "markdown", place)[:2] == (0, 1)
    first, second = exported(service, "markdown", tmp_path / "all", "t", whole=True)
    assert f"**Previous:** {first.name}\n" in second.read_text()
    assert "**Previous:**" not in first.read_text()


def test_a_page_keeps_the_name_of_the_one_before_it_though_that_is_not_here(
    service: CheckpointService, place: Path, tmp_path: Path
) -> None:
    name = "AGENT_SCHEDULER_20260116_143022.md"
    page(place, "AGENT_SCHEDULER_20260116_150045.md", more=f"**Previous:** {name}\n")
    taken(service, "markdown", place)
    [path] = exported(service, "markdown", tmp_path / "out", "plan-block-10")
    assert f"**Previous:** {name}\n" in path.read_text()
    assert taken(service, "markdown", path.parent)[:2] == (0, 1)


def test_the_same_file_on_two_machines_is_one_checkpoint(
    service: CheckpointService, place: Path, tmp_path: Path
) -> None:
    page(place, "AGENT_SCHEDULER_20260116_150045.md")
    taken(service, "markdown", place)
    with closing(CheckpointService(home=tmp_path / "other")) as other:
        taken(other, "markdown", place)
        [there] = other.get_checkpoint_history("plan-block-10")
    [here] = service.get_checkpoint_history("plan-block-10")
    assert here.metadata.checkpoint_id == there.metadata.checkpoint_id


def test_the_task_is_the_files_own_else_the_users_else_what_it_is_about(
    service: CheckpointService, place: Path
) -> None:
    page(place, "AGENT_SCHEDULER_20260116_150045.md")
    taken(service, "markdown", place, task="named")
    assert len(service.get_checkpoint_history("named")) == 1


def test_a_file_that_does_not_say_when_is_taken_in_once_too(
    service: CheckpointService, place: Path
) -> None:
    path = agent_file(place)
    document = json.loads(path.read_text())
    del document["last_checkpoint"]
    path.write_text(json.dumps(document))
    assert taken(service, "agent-json", place)[:2] == (1, 0)
    assert taken(service, "agent-json", place)[:2] == (0, 1)
    path.write_text(json.dumps({**document, "current_step": "Writing"}))
    assert taken(service, "agent-json", place)[:2] == (1, 0)
    assert len(service.get_checkpoint_history("penalty")) == 1


# --- what does not fit ----------------------------------------------------------------------------


def test_one_bad_file_does_not_keep_the_others_out(service: CheckpointService, place: Path) -> None:
    agent_file(place, "Good-One")
    (place / "bad.json").write_text('{\n"agent_id": \n')
    tally = taken(service, "agent-json", place)
    assert tally.imported == 1
    [failure] = tally.failed
    assert failure.path.endswith("bad.json")
    assert failure.line > 0


def cut_off(path: Path) -> str:
    """A file that is damaged, and not being written."""
    path.write_text(left := path.read_text()[:60])
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return left


def test_a_damaged_file_is_replaced_by_its_good_backup_which_is_taken_in(
    service: CheckpointService, place: Path
) -> None:
    path = agent_file(place)
    (place / "backups").mkdir()
    backup = place / "backups" / "secondary_a_20260115_143000.json"
    backup.write_bytes(path.read_bytes())
    left = cut_off(path)
    done = taken(service, "agent-json", place)
    assert (done[:2], done.failed) == ((1, 0), ())
    [note] = done.notes
    assert note.startswith(f"{path}: line 1: expected JSON")
    assert f"restored from backups/{backup.name}" in note
    assert path.read_bytes() == backup.read_bytes()
    [kept] = (place / "backups").glob("*.damaged")
    assert kept.read_text() == left
    [found] = service.get_checkpoint_history("penalty")
    assert found.execution_state.completed_items == ["Part 1"]
    assert taken(service, "agent-json", place)[:2] == (0, 1)


def test_a_backup_does_not_undo_what_is_known(service: CheckpointService, place: Path) -> None:
    made = service.create_checkpoint("t", "ann", {"pending_items": ["x"]})
    exported(service, "agent-json", place, "t")
    changes = {"execution_state": {"completed_items": ["x"]}}
    service.update_checkpoint(made.metadata.checkpoint_id, changes)
    [path] = exported(service, "agent-json", place, "t")
    cut_off(path)
    assert taken(service, "agent-json", place)[:2] == (0, 1)
    [found] = service.get_checkpoint_history("t")
    assert found.execution_state.completed_items == ["x"]


def test_a_damaged_file_without_a_good_backup_stays_and_what_to_do_is_told(
    service: CheckpointService, place: Path, tmp_path: Path
) -> None:
    path, elsewhere = agent_file(place), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secondary_a_20260115_143000.json").write_bytes(path.read_bytes())
    (place / "backups").symlink_to(elsewhere)
    left = cut_off(path)
    [failure] = taken(service, "agent-json", place).failed
    assert failure.message.endswith("correct it, or let its agent write it anew")
    assert path.read_text() == left
    assert len(list(elsewhere.iterdir())) == 1


@pytest.mark.parametrize(("way", "kind"), [("--takeover", "crashed"), ("--restart", "aborted")])
def test_the_file_of_an_agent_that_is_given_up_is_put_aside(
    runner: Runner, home: Path, place: Path, way: str, kind: str
) -> None:
    machine = Machine(runner, home)
    mine, others = agent_file(place), agent_file(place, "Secondary-B", feature="other")
    machine.ok("import", "agent-json", str(place))
    text = mine.read_text()
    done = machine.json("recover", "penalty", way, "--agent", "Secondary-A2", "--force")
    [name] = done["put_aside"]
    assert re.fullmatch(rf"secondary_a_{kind}_\d{{10}}\.json", Path(name).name)
    assert Path(name).read_text() == text
    assert sorted(place.iterdir()) == sorted([Path(name), others])
    counts = machine.json("import", "agent-json", str(place))
    assert (counts["imported"], counts["unchanged"]) == (0, 1)


@pytest.mark.parametrize("why", ["changed", "resumed", "another task"])
def test_a_file_that_is_still_somebodys_is_not_put_aside(
    runner: Runner, home: Path, place: Path, why: str
) -> None:
    machine, path = Machine(runner, home), agent_file(place)
    machine.ok("import", "agent-json", str(place), "--task", "t")
    if why == "changed":
        agent_file(place, last_checkpoint="2026-01-15T14:45:00Z")
    if why == "another task":
        machine.ok("checkpoint", "create", "--task", "u", "--agent", "Secondary-A")
    words = ["u" if why == "another task" else "t", "--force"]
    words += [] if why == "resumed" else ["--takeover", "--agent", "bob"]
    assert machine.json("recover", *words)["put_aside"] == []
    assert path.exists()


def test_a_file_that_cannot_be_put_aside_does_not_stop_a_recovery(
    service: CheckpointService, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = agent_file(place)
    taken(service, "agent-json", place)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refused)
    wish = Wish("penalty", TAKEOVER, "bob", force=True, start=place)
    done = recover(service.node, wish)
    assert done.outcome == "resumed"
    assert done.aside.problems == (f"{path} could not be renamed: Permission denied",)
    assert path.exists()


def test_nothing_outside_the_directory_is_read(
    service: CheckpointService, place: Path, tmp_path: Path
) -> None:
    secret = agent_file(tmp_path, "Secret")
    (place / "link.json").symlink_to(secret)
    tally = taken(service, "agent-json", place)
    assert tally.imported == 0
    assert "leads out of" in tally.failed[0].message


def test_a_huge_file_is_refused_unread(service: CheckpointService, place: Path) -> None:
    with (place / "huge.json").open("wb") as file:
        file.truncate(100_000_000)
    assert "more than" in taken(service, "agent-json", place).failed[0].message


def test_a_file_that_may_not_be_read_is_named(service: CheckpointService, place: Path) -> None:
    (place / "folder.json").mkdir()
    agent_file(place)
    assert taken(service, "agent-json", place).imported == 1


# --- and back -------------------------------------------------------------------------------------


LINKS = [
    ("agent-json", "ann.json"), ("agent-json", "backups"), ("reference", "t"),
    ("reference", "t/latest.json"), ("markdown", "AGENT_ANN_20260116_150100.md"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "name"), LINKS)
def test_an_export_does_not_follow_a_link_out_of_its_directory(
    service: CheckpointService, place: Path, tmp_path: Path, form: str, name: str
) -> None:
    service.create_checkpoint("t", "ann", timestamp="2026-01-16T15:01:00+00:00")
    target, link = tmp_path / "target", place / name
    link.parent.mkdir(exist_ok=True)
    if name in ("t", "backups"):
        target.mkdir()
        link.symlink_to(target)
    else:
        link.symlink_to(target)
        if form != "markdown":  # one that leads nowhere yet would be made
            target.write_text("{}")
    with pytest.raises(InvalidInputError, match="leads out of") as caught:
        exported(service, form, place, "t")
    assert "Remove the link" in caught.value.remedy
    assert not target.is_file() or target.read_text() == "{}"
    assert not target.is_dir() or not list(target.iterdir())
    assert [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()] == []


def test_an_export_follows_a_link_that_stays_and_refuses_a_circle(
    service: CheckpointService, place: Path
) -> None:
    service.create_checkpoint("t", "ann")
    (place / "ann.json").symlink_to("real.json")
    exported(service, "agent-json", place, "t")
    assert (place / "ann.json").is_symlink()
    assert "ann" in (place / "real.json").read_text()
    (place / "real.json").unlink()
    (place / "real.json").symlink_to("ann.json")
    with pytest.raises(InvalidInputError, match="leads out of"):
        exported(service, "agent-json", place, "t")


@pytest.mark.parametrize("form", ["markdown", "agent-json", "reference"])
def test_what_was_exported_is_not_read_back(
    service: CheckpointService, place: Path, form: str
) -> None:
    for number in range(3):
        service.create_checkpoint("t", "ann", {"completed_items": [f"step {number}"]})
    written = exported(service, form, place, "t", whole=True)
    assert written
    entries = service.node.store.row("newest")
    assert taken(service, form, place)[:3] == (0, len(written), ())
    assert service.node.store.row("newest") == entries


@pytest.mark.parametrize("form", ["agent-json", "builder-state"])
def test_what_was_changed_is_exported_with_that_time_and_not_read_back(
    service: CheckpointService, place: Path, form: str
) -> None:
    made = service.create_checkpoint(
        "t", "ann", {"pending_items": ["x"]}, timestamp="2026-01-15T14:30:00+00:00"
    )
    changes = {"execution_state": {"completed_items": ["x"], "pending_items": []}}
    changed = service.update_checkpoint(made.metadata.checkpoint_id, changes)
    entry = service.node.store.entry(changed.revision)
    assert entry
    there = place / "builder-state.json" if form == "builder-state" else place
    (place / "builder-state.json").write_text('{"activePrd": {"id": "t"}}')
    [path] = exported(service, form, there, "t")
    text = path.read_text()
    field = "lastUpdatedAt" if form == "builder-state" else "last_checkpoint"
    assert f'"{field}": "{entry.at}"' in text
    assert taken(service, form, path)[:2] == (0, 1)
    later = text.replace(f'"{field}": "{entry.at}"', f'"{field}": "2036-01-15T14:30:00+00:00"')
    path.write_text(later)
    assert taken(service, form, path)[:2] == (1, 0)
    assert len(service.get_checkpoint_history("t")) == 2


@pytest.mark.parametrize("form", ["markdown", "agent-json", "reference"])
def test_a_whole_task_moves_to_another_home_by_files(
    service: CheckpointService, place: Path, tmp_path: Path, form: str
) -> None:
    made = service.create_checkpoint(
        "t", "ann", {"completed_items": ["a"], "pending_items": ["b"], "phase": "testing"},
        {"key_decisions": ["c"]}, {"tokens_consumed": 7},
    )  # fmt: skip
    exported(service, form, place, "t")
    with closing(CheckpointService(home=tmp_path / "other")) as other:
        assert taken(other, form, place).imported == 1
        [found] = other.get_checkpoint_history("t")
    assert found.metadata == made.metadata
    assert found.execution_state == made.execution_state
    assert found.context_summary == made.context_summary
    assert found.metrics == made.metrics


def test_two_agents_do_not_share_a_file(service: CheckpointService, place: Path) -> None:
    for agent in ("Agent-Primary", "Primary"):
        service.create_checkpoint("t", agent)
    with pytest.raises(InvalidInputError, match="the same file"):
        exported(service, "agent-json", place, "t", whole=True)
    assert list(place.iterdir()) == []


def test_an_agents_file_is_not_replaced_by_that_of_another(
    service: CheckpointService, place: Path
) -> None:
    service.create_checkpoint("t", "a b")
    service.create_checkpoint("u", "a_b")
    [file] = exported(service, "agent-json", place, "t")
    before = file.read_bytes()
    with pytest.raises(InvalidInputError, match="the file of a b"):
        exported(service, "agent-json", place, "u")
    assert file.read_bytes() == before
    assert exported(service, "agent-json", place, "t") == [file]


def test_an_id_that_cannot_be_a_name_leaves_nothing_behind(
    service: CheckpointService, place: Path
) -> None:
    service.create_checkpoint("t", "ann")
    service.create_checkpoint("t", "ann", checkpoint_id="../../etc")
    with pytest.raises(InvalidInputError, match="name of a file"):
        exported(service, "reference", place, "t", whole=True)
    assert list(place.iterdir()) == []


def test_a_queued_task_is_named_by_its_id_or_its_number(
    service: CheckpointService, place: Path
) -> None:
    file = place / "builder-state.json"
    service.create_checkpoint("t", "ann")
    for name, number in (("a1", 0), ("0", 0), ("1", 1), ("7", 2), ("2", 2)):
        file.write_text('{"adhocQueue": [{"id": "a1"}, {"title": "no id"}, {"id": 7}]}')
        exported(service, "builder-state", file, "t", within=f"adhocQueue[{name}]")
        queue = json.loads(file.read_text())["adhocQueue"]
        assert [place for place, item in enumerate(queue) if "checkpoint" in item] == [number]
    with pytest.raises(InvalidInputError, match=r"no place adhocQueue\[3\]"):
        exported(service, "builder-state", file, "t", within="adhocQueue[3]")


def test_a_builder_state_file_gets_the_checkpoint_and_keeps_all_else(
    service: CheckpointService, place: Path
) -> None:
    file = place / "builder-state.json"
    file.write_text('{\n\t"sessionId": "x",\n\t"activePrd": {"id": "prd-dark"},\n\t"z": 1\n}')
    service.create_checkpoint("t", "ann", {"completed_items": ["toggle"]})
    exported(service, "builder-state", file, "t")
    text = file.read_text()
    assert text.startswith('{\n\t"sessionId": "x"')
    assert text.endswith('\n\t"z": 1\n}')
    assert json.loads(text)["activePrd"]["checkpoint"]["completedSteps"][0]["step"] == "toggle"
    assert taken(service, "builder-state", file)[:2] == (0, 1)


def test_what_is_unchanged_is_counted_by_checkpoint_too(
    service: CheckpointService, place: Path
) -> None:
    file = place / "builder-state.json"
    told = {"phase": "verification", "metadata": {"createdBy": "ann"}}
    queue = [{"id": f"fix-{number}", "checkpoint": told} for number in range(2)]
    file.write_text(json.dumps({"sessionId": "x", "adhocQueue": queue}))
    assert taken(service, "builder-state", file)[:2] == (2, 0)
    assert taken(service, "builder-state", file)[:2] == (0, 2)


# --- the commands ---------------------------------------------------------------------------------


def test_import_and_export_by_command(runner: Runner, home: Path, place: Path) -> None:
    machine = Machine(runner, home)
    agent_file(place)
    (place / "bad.json").write_text("{")
    result = machine.run("import", "agent-json", str(place), "--json")
    assert result.code == 1
    assert result.json()["imported"] == 1
    assert result.json()["failed"][0]["line"] == 1
    told = machine.run("import", "agent-json", str(place))
    assert "Failed: " in told.err
    assert "Took in 0 checkpoints; 1 unchanged, 1 failed." in told.out
    written = machine.json("export", "markdown", str(place / "out"), "--task", "penalty")
    [path] = written["exported"]
    assert markdown.is_name(os.path.basename(path))  # noqa: PTH119


def test_a_page_of_another_name_is_passed_over_and_named(
    runner: Runner, home: Path, place: Path
) -> None:
    machine = Machine(runner, home)
    for name in ("AGENT_x.md", "AGENT_FOO.md", "README.md"):
        page(place, name)
    told = machine.ok("import", "markdown", str(place))
    assert "Took in 0 checkpoints; 0 unchanged, 0 failed." in told.out
    for name in ("AGENT_x.md", "AGENT_FOO.md"):
        words = "Passed over, as the name is not AGENT_NAME_YYYYMMDD_HHMMSS.md, NAME in capitals: "
        assert f"{words}{place / name}" in told.err
    assert "README.md" not in told.err
    named = machine.json("import", "markdown", str(place))["passed_over"]
    assert named == [str(place / "AGENT_FOO.md"), str(place / "AGENT_x.md")]
    page(place, "AGENT_FOO_20260116_150045.md")
    assert "nothing was found" not in machine.ok("import", "markdown", str(place)).err


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_that_holds_nothing_of_the_format_is_told(
    runner: Runner, home: Path, place: Path, form: str
) -> None:
    (place / "notes.txt").write_text("x")
    told = Machine(runner, home).ok("import", form, str(place))
    assert f"nothing was found below {place}: {form} files are called " in told.err


@pytest.mark.parametrize("form", ["markdown", "agent-json", "reference"])
def test_an_export_into_a_file_is_refused_and_makes_nothing(
    runner: Runner, home: Path, place: Path, form: str
) -> None:
    machine = Machine(runner, home)
    machine.create("t")
    (place / "afile").write_text("mine")
    for name in ("afile", "new/x.md", "new/x.json"):
        error = machine.fails(2, "export", form, str(place / name), "--task", "t")
        assert "is written into a directory" in error["message"]
    assert [path.name for path in place.iterdir()] == ["afile"]


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_to_nowhere_is_refused(
    runner: Runner, home: Path, place: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    machine = Machine(runner, home)
    machine.create("t")
    monkeypatch.chdir(place)
    error = machine.fails(2, "export", form, "", "--task", "t")
    assert "the path is empty" in error["message"]
    assert not list(place.iterdir())


def test_bad_words_get_a_remedy(runner: Runner, home: Path, place: Path) -> None:
    machine = Machine(runner, home)
    assert machine.fails(2, "import", "yaml", str(place))["remedy"]
    assert machine.fails(2, "import", "markdown", str(place / "nowhere"))["remedy"]
    assert machine.fails(4, "export", "markdown", str(place), "--task", "none")["remedy"]
    machine.create("t")
    assert machine.fails(2, "export", "builder-state", str(place / "no.json"), "--task", "t")
