"""Acknowledged means on disk: through kill -9 at any moment, and through the loss of power."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from counts import full
from power_loss import (
    EVERYTHING,
    NOTHING,
    Disk,
    Event,
    apart,
    audit,
    chance,
    record,
    strace_problem,
)

from syncd import CheckpointService, SyncdError
from syncd.errors import DiskRefusedError
from syncd.seal import signature_valid

WAL = "context.db-wal"


def acknowledge(revision: str, output: int = 1) -> None:
    os.write(output, f"{revision}\n".encode())


# --- kill -9 ----------------------------------------------------------------------------------


def write_until_killed(home: Path, output: int, dice: random.Random) -> None:
    """Create, change and finalize, with bodies large enough for SQLite to move its log often."""
    service = CheckpointService(home=home)
    while True:
        filler = "x" * dice.choice((0, 3_000, 60_000))
        made = service.create_checkpoint("task", "agent", context_summary={"state": {"x": filler}})
        acknowledge(made.revision, output)
        if dice.random() < 0.3:
            change = {"execution_state": {"current_focus": "changed"}}
            changed = service.update_checkpoint(made.metadata.checkpoint_id, change)
            acknowledge(changed.revision, output)
        if dice.random() < 0.1:
            final = service.finalize_checkpoint(made.metadata.checkpoint_id)
            acknowledge(final.revision, output)


def write_after_the_word(home: Path, output: int, dice: random.Random) -> None:
    """What must not be: the acknowledgement goes out before the checkpoint is on disk."""
    service = CheckpointService(home=home)
    for number in range(1_000_000):
        acknowledge(f"{os.getpid()}-{number}", output)
        service.create_checkpoint("task", "agent", checkpoint_id=f"{os.getpid()}-{number}")


def killed(homes: list[Path], patience: float, early: bool = False) -> list[list[str]]:
    """In each home a writer, killed within so many seconds; what each had acknowledged by then."""
    work = write_after_the_word if early else write_until_killed
    can_write_at_once(homes[0].with_name("rehearsal"))  # imports everything, once for all
    acknowledged = []
    for number, home in enumerate(homes):
        dice = random.Random(number)
        answers, output = os.pipe()
        if not (writer := os.fork()):
            os.close(answers)
            try:
                work(home, output, dice)
            finally:
                os._exit(1)
        os.close(output)
        time.sleep(dice.uniform(0, patience))
        os.kill(writer, signal.SIGKILL)
        _, status = os.waitpid(writer, 0)
        assert os.WIFSIGNALED(status), "the writer failed before it was killed"
        with open(answers) as lines:  # noqa: PTH123 (a descriptor)
            acknowledged.append(lines.read().split())
    return acknowledged


def can_write_at_once(home: Path) -> str:
    service = CheckpointService(home=home)
    made = service.create_checkpoint("task", "another process")
    service.close()
    return made.revision


def test_everything_acknowledged_survives_kill_9(home: Path) -> None:
    first = apart(can_write_at_once, home)  # to make a home takes longer than most of them live
    acknowledged = apart(killed, [home] * full(60, 1_000), 0.06)
    said = [revision for revisions in acknowledged for revision in revisions]
    assert len(said) > len(acknowledged) // 2, (
        "hardly anything was written: this run proves nothing"
    )
    said += [first, apart(can_write_at_once, home)]
    found = audit(home)
    assert found.problems == []
    assert set(said) <= set(found.revisions)
    assert len(found.revisions) <= len(said) + len(acknowledged)  # at most one unsaid each


def test_a_kill_during_first_use_leaves_a_home_that_the_next_start_completes(
    tmp_path: Path,
) -> None:
    homes = [tmp_path / f"home {number}" for number in range(full(30, 1_000))]
    for home, said in zip(homes, apart(killed, homes, 0.03), strict=True):
        service = CheckpointService(home=home)
        made = service.create_checkpoint("task", "agent")
        final = service.finalize_checkpoint(made.metadata.checkpoint_id)
        service.close()
        found = audit(home)
        assert found.problems == []
        assert {*said, made.revision, final.revision} <= set(found.revisions)
        assert signature_fits(home, final.revision)


def test_a_word_given_too_early_would_be_noticed(home: Path) -> None:
    """The control of the two tests above: they do see what was promised and is not there."""
    said: list[str] = []
    for delay in (0.06, 0.3, 1.0):  # a busy machine may not even have begun by then
        said += [i for ids in apart(killed, [home] * 20, delay, True) for i in ids]
        if set(said) - set(audit(home).created):
            return
    raise AssertionError(f"none of {len(said)} was missed")


# --- loss of power ----------------------------------------------------------------------------


class Story(NamedTuple):
    """A process's life in system calls; `home` is where it took place."""

    home: Path
    events: list[Event]

    def words(self) -> list[int]:
        """The moments just after an acknowledgement."""
        return [n + 1 for n, event in enumerate(self.events) if event.kind == "acknowledge"]

    def said(self, moment: int) -> list[str]:
        return [self.events[n - 1].data.decode().strip() for n in self.words() if n <= moment]

    def moments(self, count: int) -> list[int]:
        return random.Random(count).sample(range(len(self.events)), count)


def write_on_record(home: Path, synchronous: str, count: int) -> None:
    """First use, enough data for SQLite to move its log, a second start, a signature."""
    for part in range(2):
        service = CheckpointService(home=home)
        if synchronous:
            service.node.store.connection.execute(f"PRAGMA synchronous = {synchronous}")
        for number in range(count):
            filler = "x" * (800_000 if number % 4 == 0 else 10)
            state = {"state": {"x": filler}}
            made = service.create_checkpoint("task", f"agent {part}", context_summary=state)
            acknowledge(made.revision)
        acknowledge(service.finalize_checkpoint(made.metadata.checkpoint_id).revision)
        service.close()


def told(folder: Path, synchronous: str, count: int = 40) -> Story:
    if problem := strace_problem():
        pytest.skip(f"LOSS OF POWER IS NOT TESTED: {problem}")
    home = folder / "home"
    home.mkdir()
    events = record(folder / "trace", home, write_on_record, home, synchronous, count)
    return Story(home, events)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return told(tmp_path_factory.mktemp("full"), "")


def unsynced(story: Story) -> list[str]:
    """What was acknowledged before its place in SQLite's log was synced."""
    written, broken = False, []
    for event in story.events:
        if event.path == WAL:
            written = event.kind != "sync"
        elif event.kind == "acknowledge" and written:
            broken.append(event.data.decode())
    return broken


def test_each_acknowledgement_follows_a_sync_of_all_that_was_written(story: Story) -> None:
    said = story.said(len(story.events))
    assert len(said) == 82
    assert sum(event == Event("sync", WAL) for event in story.events) >= len(said)
    assert unsynced(story) == []


def test_the_recorded_story_is_the_one_that_took_place(story: Story, tmp_path: Path) -> None:
    """With all writes applied, the rebuilt disk equals the real one, byte for byte."""
    disk = Disk()
    for event in story.events:
        disk.happen(event)
    disk.write(tmp_path / "rebuilt", EVERYTHING)
    files = [path for path in story.home.rglob("*") if path.is_file()]
    assert {"context.db", "signing.pem"} <= {path.name for path in files}
    for path in files:
        rebuilt = tmp_path / "rebuilt" / path.relative_to(story.home)
        assert rebuilt.read_bytes() == path.read_bytes(), path


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder for disks that need not last: a thousand of them are started."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else tmp_path) as path:
        yield Path(path)


def crashes(
    story: Story, moments: set[int], variants: int, folder: Path
) -> Iterator[tuple[str, Path, list[str]]]:
    """Cut the power at those moments: when and how, what is left, what was acknowledged."""
    disk, done = Disk(), 0
    for moment in sorted(moments):
        for event in story.events[done:moment]:
            disk.happen(event)
        done = moment
        chances = [chance(moment * variants + number) for number in range(variants)]
        for number, luck in enumerate([NOTHING, EVERYTHING, *chances]):
            disk.write(folder / "left", luck)
            yield f"at event {moment}, variant {number}", folder / "left", story.said(moment)
            shutil.rmtree(folder / "left")


def damage(home: Path, said: list[str]) -> list[str]:
    """Start as any command would, by nobody's hand; what is missing or wrong afterwards."""
    try:
        service = CheckpointService(home=home)
        made = service.create_checkpoint("task", "after the crash")
        latest = service.get_latest_checkpoint("task")
        service.close()
        found = audit(home)
    except (SyncdError, sqlite3.Error) as error:
        return [f"{type(error).__name__}: {error}"]
    problems = [f"{revision} is lost" for revision in {*said} - {*found.revisions}]
    if latest is None or latest.revision != made.revision:
        problems.append("what was written after the crash is not the newest")
    return problems + found.problems


def signature_fits(home: Path, revision: str) -> bool:
    with closing(sqlite3.connect(home / "context.db")) as connection:
        key, chain, signature = connection.execute(
            "SELECT d.public_key, l.chain, l.signature FROM log l JOIN devices d USING (device_id)"
            " WHERE l.entry_id = ?",
            (revision,),
        ).fetchone()
    return signature_valid(key, chain, signature)


def test_everything_acknowledged_survives_the_loss_of_power(story: Story, memory: Path) -> None:
    words = story.words()
    moved = [e for e in story.events[words[0] : words[40]] if e.path == "context.db"]
    assert moved, "SQLite never moved its log while writing: this run proves little"
    count, variants = full((8, 1), (1_000, 8))
    moments = {*words[:: full(3, 1)], *story.moments(count)}
    found = {}
    for when, home, said in crashes(story, moments, variants, memory):
        if problems := damage(home, said):
            found[when] = problems
    assert found == {}


def test_the_key_that_the_database_has_pinned_survives_the_loss_of_power(
    story: Story, memory: Path
) -> None:
    foreign = []
    for when, home, _ in crashes(story, {*story.moments(full(8, 1_000))}, 1, memory):
        service = CheckpointService(home=home)
        made = service.create_checkpoint("task", "after the crash")
        final = service.finalize_checkpoint(made.metadata.checkpoint_id)
        service.close()
        if not signature_fits(home, final.revision):
            foreign.append(when)
    assert foreign == []


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_less_than_full_synchrony_would_be_noticed(
    tmp_path: Path, memory: Path, synchronous: str
) -> None:
    """The control of the tests above: with fewer syncs they report what a crash takes."""
    story = told(tmp_path, synchronous, count=3)
    assert unsynced(story)
    left = crashes(story, {*story.words()}, 0, memory)
    found = [problem for _, home, said in left for problem in damage(home, said)]
    assert any("is lost" in problem for problem in found)


def test_a_limit_on_the_size_of_files_says_what_is_wrong_and_loses_nothing(tmp_path: Path) -> None:
    """As a quota does: of these, SQLite says no more than that something went wrong."""
    with closing(CheckpointService(home=tmp_path / "home")) as service:
        service.create_checkpoint("t", "ann")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            with pytest.raises(DiskRefusedError, match="a quota or a limit"):
                service.create_checkpoint("t", "ann", context_summary={"state": {"x": "x" * 9_000}})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        made = service.create_checkpoint("t", "ann")
        assert service.get_latest_checkpoint("t") == made
        assert len(service.get_checkpoint_history("t")) == 2
