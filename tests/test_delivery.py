"""Files are written whole or not at all, where a user wants them; all else is written through."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from machines import SYNCD

from syncd import CheckpointService, delivery
from syncd.bundle import verify_file
from syncd.errors import CheckpointExistsError, SyncdError, UsageError

WANTED = b"what was asked for\n"


def deliver(place: Path, *, force: bool = False) -> None:
    with delivery.delivered(place, force=force) as file:
        file.write(WANTED)


def deliver_half(place: Path) -> None:
    with delivery.delivered(place, force=True) as file:
        file.write(WANTED)
        raise ZeroDivisionError


class Reader:
    """Somebody at the other end of a FIFO."""

    def __init__(self, fifo: Path) -> None:
        self.got = b""
        self._thread = threading.Thread(target=self._read, args=(fifo,), daemon=True)
        self._thread.start()

    def _read(self, fifo: Path) -> None:
        self.got = fifo.read_bytes()

    def all(self) -> bytes:
        self._thread.join(30)
        return self.got


# --- files --------------------------------------------------------------------------------------


def test_a_file_appears_whole_for_its_owner_alone(tmp_path: Path) -> None:
    deliver(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == WANTED
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_what_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        deliver_half(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_stays_and_its_target_is_written_if_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    target, link = tmp_path / "away" / "target", tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(CheckpointExistsError):
        deliver(link)
    for before in (None, b"old"):
        if before:
            target.write_bytes(before)
        deliver(link, force=True)
        assert link.is_symlink()
        assert target.read_bytes() == WANTED


def test_a_directory_and_a_place_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        deliver(tmp_path, force=True)
    with pytest.raises(SyncdError, match="was not written: No such"):
        deliver(tmp_path / "nowhere" / "file")


# --- what is no file ----------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_through_and_stays(tmp_path: Path, force: bool, linked: bool) -> None:
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    reader = Reader(fifo)
    deliver(link if linked else fifo, force=force)
    assert reader.all() == WANTED
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert link.is_symlink()


def test_nothing_goes_through_a_pipe_before_all_is_well(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ZeroDivisionError):
        deliver_half(fifo)  # it would wait, as nobody reads there


def test_a_reader_that_leaves_a_pipe_is_an_error(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def leave() -> None:
        os.close(os.open(fifo, os.O_RDONLY))

    gone = threading.Thread(target=leave)
    gone.start()
    with pytest.raises(SyncdError, match="was not written"), delivery.delivered(fifo) as file:
        file.write(b"x" * 10_000_000)
    gone.join()


def test_another_users_pipe_is_not_fed_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    owner = fifo.stat().st_uid or 4711
    if not fifo.stat().st_uid:
        os.chown(fifo, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(CheckpointExistsError, match="another user's"):
        deliver(fifo)
    reader = Reader(fifo)
    deliver(fifo, force=True)
    assert reader.all() == WANTED


# --- what is open already -----------------------------------------------------------------------


def test_a_number_is_written_to_where_it_stands(tmp_path: Path) -> None:
    for name in ("/dev/fd/{}", "/proc/self/fd/{}"):
        with (tmp_path / "file").open("w+b") as file:
            file.write(b"before ")
            file.flush()
            deliver(Path(name.format(file.fileno())))
        assert (tmp_path / "file").read_bytes() == b"before " + WANTED


def exported(words: str, *, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        f"{SYNCD} audit export t {words}", shell=True, executable="/bin/bash", cwd=cwd,
        capture_output=True,
    )  # fmt: skip


@pytest.fixture
def task(service: CheckpointService) -> None:
    service.create_checkpoint("t", "ann")


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
@pytest.mark.parametrize("sink", ["> out", "| cat > out"])
def test_standard_output_has_the_file_and_nothing_else(
    tmp_path: Path, name: str, sink: str
) -> None:
    done = exported(f"--output {name} {sink}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert verify_file(tmp_path / "out").ok
    assert b"Sealed with the key" in done.stderr
    assert not (tmp_path / "-").exists()


@pytest.mark.usefixtures("task")
def test_standard_output_has_no_room_for_json_beside_the_file(tmp_path: Path) -> None:
    done = exported("--output - --json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""


@pytest.mark.usefixtures("task")
def test_a_process_of_the_shell_gets_the_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "done")
    ended = Reader(tmp_path / "done")
    done = exported("--output >(cat > out; echo > done)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ended.all()
    assert verify_file(tmp_path / "out").ok


@pytest.mark.usefixtures("task")
def test_the_null_device_stays_one(tmp_path: Path) -> None:
    """Through a link in a folder of its own: should it be replaced, the device is not."""
    (tmp_path / "null").symlink_to(os.devnull)
    done = exported("--output null", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "null").is_char_device()
