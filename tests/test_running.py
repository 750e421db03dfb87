"""Who runs the daemon of a home, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemons import until

from syncd import running
from syncd.errors import DaemonRunningError

# Holds the lock until it is told to end, and answers like a daemon if it is to.
_HOLDER = """
import os, signal, sys
from pathlib import Path
from syncd import running
home, answers = Path(sys.argv[1]), sys.argv[2] == "answers"
told = lambda: running.tell(home, {"pid": os.getpid(), "started_at": 1.5})
heeded = {signal.SIGUSR1, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
with running.hold(home) as lock:
    told()
    print("held", flush=True)
    while signal.sigwait(heeded) != signal.SIGTERM:
        if answers:
            told()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "run").mkdir(parents=True)
    return tmp_path / "home"


@contextmanager
def holder(home: Path, answers: str = "answers") -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", _HOLDER, str(home), answers]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_nobody_runs_a_home_that_was_never_run(home: Path, tmp_path: Path) -> None:
    assert running.pid(home) == 0
    assert running.pid(tmp_path / "nothing") == 0
    assert running.told(home) == {}


def test_the_process_that_holds_the_lock_is_named_as_long_as_it_lives(home: Path) -> None:
    with holder(home) as process:
        assert running.pid(home) == process.pid
        assert running.lock_path(home).read_text().strip() == str(process.pid)
        process.terminate()
        assert process.wait() == 0
        assert running.pid(home) == 0
    assert running.lock_path(home).read_text().strip() == "", "no number to send a signal to"


def test_a_killed_process_leaves_nothing_that_blocks_the_next(home: Path) -> None:
    with holder(home) as first:
        first.kill()
        first.wait()
        assert running.pid(home) == 0
        with holder(home) as second:
            assert running.pid(home) == second.pid


def test_a_second_is_refused_and_told_who_the_first_is(home: Path) -> None:
    with holder(home) as process:
        with pytest.raises(DaemonRunningError, match=f"process {process.pid}$") as told:
            running.hold(home).__enter__()
        assert told.value.exit_code == 7
        assert str(home) in told.value.message
        assert running.pid(home) == process.pid


def test_one_who_only_looks_keeps_nobody_from_starting(home: Path) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            running.pid(home)

    watchers = [threading.Thread(target=look) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in range(20):
            with running.hold(home) as lock:
                assert lock.intact()
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()


@pytest.mark.parametrize("content", [b"", b"no number", b"\xff\xfe", b"12 34", b"9" * 40])
def test_a_lock_file_with_anything_in_it_names_nobody_and_blocks_nobody(
    home: Path, content: bytes
) -> None:
    running.lock_path(home).write_bytes(content)
    assert running.pid(home) == 0
    with running.hold(home) as lock:
        assert running.lock_path(home).read_text().strip() == str(os.getpid())
        assert lock.intact()


def test_a_lock_that_was_deleted_or_replaced_is_not_intact(home: Path) -> None:
    path = running.lock_path(home)
    with running.hold(home) as lock:
        path.rename(path.with_suffix(".away"))
        assert not lock.intact()
        path.touch()
        assert not lock.intact()
        path.with_suffix(".away").replace(path)
        assert lock.intact()


# --- what it says of itself ---------------------------------------------------------------------


@pytest.mark.parametrize("content", [
    b"", b"{", b"[1]", b"null", b"\xff", b'{"pid": 1', b'{"pid": 1}',
    b'{"pid": "1", "started_at": 1}', b'{"pid": 1, "started_at": null}',
    b'{"pid": 1, "started_at": 1, "jobs": 3}', b'{"pid": 1, "started_at": 1, "cloud": []}',
    b'{"pid": 1, "started_at": 1, "cloud": {"state": null}}',
    b'{"pid": 1, "started_at": 1, "cloud": {"cloud_seq": "7"}}',
])  # fmt: skip
def test_words_that_make_no_sense_are_nothing(home: Path, content: bytes) -> None:
    running.tell(home, {"pid": 1, "started_at": 1.5})
    assert running.told(home) == {"pid": 1, "started_at": 1.5}
    (home / "run" / "daemon.json").write_bytes(content)
    assert running.told(home) == {}


def test_one_that_is_asked_answers_anew(home: Path) -> None:
    with holder(home) as process:
        assert running.told(home) == {"pid": process.pid, "started_at": 1.5}
        running.tell(home, {"pid": process.pid, "old": True})
        answer = running.ask(home, process.pid)
        assert answer == {"pid": process.pid, "started_at": 1.5, "answered": True}


@pytest.mark.parametrize("how", ["stopped", "busy", "gone"])
def test_one_that_does_not_answer_is_not_waited_for(home: Path, how: str) -> None:
    with holder(home, "answers" if how == "stopped" else "is busy") as process:
        if how == "stopped":
            os.kill(process.pid, signal.SIGSTOP)
        if how == "gone":
            process.kill()
            process.wait()
        began = time.monotonic()
        answer = running.ask(home, process.pid)
        assert time.monotonic() - began < 0.5
        assert answer == {"pid": process.pid, "started_at": 1.5}
        if how == "stopped":
            assert running.pid(home) == process.pid
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: running.ask(home, process.pid).get("answered"))


def test_two_threads_that_tell_at_once_do_not_get_in_each_others_way(home: Path) -> None:
    failed: list[OSError] = []

    def tell(name: str) -> None:
        for number in range(300):
            try:
                running.tell(home, {"by": name, "number": number})
            except OSError as error:
                failed.append(error)

    threads = [threading.Thread(target=tell, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert running.told(home).get("number", 0) >= 0
    assert failed == []
    assert [file.name for file in (home / "run").iterdir()] == ["daemon.json"]
