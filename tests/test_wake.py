"""What wakes the daemon: a real watch on a real directory, and two clocks."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from syncd import CheckpointService
from syncd.daemon.wake import Pulse, Watch

_COMMIT = """
import sys
from pathlib import Path
from syncd import CheckpointService
service = CheckpointService(home=Path(sys.argv[1]))
service.create_checkpoint("t", "a")
service.close()
"""


@pytest.fixture
def watch(home: Path, service: CheckpointService) -> Iterator[Watch]:
    """On a home that is in use: its write-ahead log is there."""
    service.create_checkpoint("t", "a")
    begun = Watch(home)
    assert begun.descriptor >= 0
    yield begun
    begun.close()
    assert begun.descriptor == -1


def heard(watch: Watch, seconds: float = 10.0) -> set[str]:
    """What the watch tells once it has anything to tell."""
    ready, _, _ = select.select([watch.descriptor], [], [], seconds)
    return watch.names() if ready else set()


def test_a_commit_of_another_process_is_seen(home: Path, watch: Watch) -> None:
    assert heard(watch, 0) == set()
    subprocess.run([sys.executable, "-c", _COMMIT, str(home)], check=True)
    assert "context.db-wal" in heard(watch)
    assert heard(watch, 0) == set()


def test_a_commit_of_this_process_is_seen(service: CheckpointService, watch: Watch) -> None:
    service.create_checkpoint("t", "a")
    assert "context.db-wal" in heard(watch)


def test_reading_wakes_nobody(home: Path, service: CheckpointService, watch: Watch) -> None:
    assert service.get_latest_checkpoint("t")
    assert (home / "context.db").read_bytes()
    assert heard(watch, 0) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not say what was touched")
def test_what_was_touched_is_told_by_its_name(home: Path, watch: Watch) -> None:
    (home / "config.toml").write_text("")
    assert heard(watch) == {"config.toml"}
    (home / "draft").write_text("[daemon]")
    assert heard(watch) == {"draft"}
    (home / "draft").replace(home / "config.toml")
    assert heard(watch) == {"config.toml"}
    (home / "log" / "daemon.log").write_text("not in the home itself")
    (home / "run" / "daemon.json").write_text("{}")
    assert heard(watch, 0) == set()


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not say what was touched")
def test_a_name_of_any_length_and_many_at_once_are_told(home: Path, watch: Watch) -> None:
    names = {"a", "b" * 15, "c" * 16, "d" * 17, "é" * 100, *(f"file {n}" for n in range(3_000))}
    for name in names:
        (home / name).touch()
    assert heard(watch) == names


def test_a_watch_on_nothing_has_no_descriptor(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "nothing")
    assert watch.descriptor == -1
    watch.close()


def test_a_watch_leaves_no_descriptor_open(home: Path, service: CheckpointService) -> None:
    service.create_checkpoint("t", "a")
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(5):
        Watch(home).close()
    assert len(list(Path("/dev/fd").iterdir())) == before


# --- two clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wall", "steady", "slept"),
    [
        (1.0, 1.0, False),
        (0.001, 0.001, False),
        (2.9, 2.9, False),  # a busy machine is not asleep
        (3.1, 3.1, True),  # stopped: both clocks went on
        (600.0, 600.0, True),
        (600.0, 1.0, True),  # suspended: only the clock on the wall did
        (3600.0, 0.5, True),  # set forward
        (-3600.0, 0.5, True),  # set back
        (-1.0, 1.0, False),  # set back by less than counts
        (2.9, 1.0, False),
    ],
)
def test_a_suspended_machine_and_a_clock_that_was_set_are_noticed(
    wall: float, steady: float, slept: bool
) -> None:
    before = Pulse(1_000_000.0, 50.0)
    now = Pulse(before.wall + wall, before.steady + steady)
    assert before.slept(now, expected=1.0) is slept
