"""Where a home can lie and what can be put into it: each refusal is clear and changes nothing."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from counts import full
from power_loss import Audit, apart, at_once, audit, strace_problem

from syncd import CheckpointService, SyncdError, node
from syncd.audit import verify


class Answer(NamedTuple):
    """What an attempt came to: a value, or an error with all that a user is told."""

    kind: str
    text: str
    remedy: str = ""
    exit_code: int = 0
    data_safe: bool = True


def answer(attempt: Callable[[], object]) -> Answer:
    try:
        return Answer("", str(attempt()))
    except SyncdError as error:
        told = (error.message, error.remedy, error.exit_code, error.data_safe)
        return Answer(type(error).__name__, *told)
    except (OSError, sqlite3.Error, ValueError, TypeError, ArithmeticError, AttributeError,
            RecursionError) as error:  # fmt: skip
        return Answer(f"a bare {type(error).__name__}", str(error))


def refused(given: Answer, kind: str, *words: str, exit_code: int = 1, safe: bool = True) -> bool:
    """Whether it is that refusal, says so, and says what to do."""
    assert given.kind == kind, given
    assert all(word in given.text for word in words), given
    assert given.remedy.endswith("."), given
    assert (given.exit_code, given.data_safe) == (exit_code, safe), given
    return True


def created(service: CheckpointService) -> str:
    return service.create_checkpoint("task", "agent").metadata.checkpoint_id


def newest(service: CheckpointService) -> str:
    latest = service.get_latest_checkpoint("task")
    return latest.metadata.checkpoint_id if latest else "nothing"


def use(home: Path) -> str:
    """What a command does: open, write, close."""
    service = CheckpointService(home=home)
    try:
        return created(service)
    finally:
        service.close()


def look(home: Path) -> str:
    service = CheckpointService(home=home)
    try:
        return newest(service)
    finally:
        service.close()


def answer_of(attempt: Callable[[Path], str], home: Path) -> Answer:
    return answer(lambda: attempt(home))


def content(folder: Path) -> dict[str, bytes | None]:
    """All that lies under a folder. Not for a home that is open: reading would drop its locks."""
    paths = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


# --- disks that are full or cannot be written -------------------------------------------------

MOUNTS = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")


@cache
def mount_problem() -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        trial = [*MOUNTS, "mount", "-t", "tmpfs", "none", folder]
        try:
            done = subprocess.run(trial, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


@pytest.fixture
def mounts() -> tuple[str, ...]:
    """A command under which file systems of our own can be mounted, and vanish with it."""
    if problem := mount_problem():
        pytest.skip(f"FULL AND READ-ONLY DISKS ARE NOT TESTED: {problem}")
    return MOUNTS


def mount(place: Path, *options: str) -> None:
    subprocess.run(["mount", *options, str(place)], check=True)


def leave_room(place: Path, room: int) -> Path:
    """Fill the disk but for so many bytes."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - room))
    return ballast


class Filled(NamedTuple):
    said: list[str]
    refusals: list[Answer]
    latest: str
    when_full: Audit
    afterwards: list[str]
    when_freed: Audit


def fill(place: Path) -> Filled:
    mount(place, "-t", "tmpfs", "-o", "size=3m", "none")
    home, ballast = place / "home", place / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    service = CheckpointService(home=home)

    def create() -> str:
        state = {"state": {"x": "x" * 20_000}}
        made = service.create_checkpoint("task", "agent", context_summary=state)
        return made.metadata.checkpoint_id

    said: list[str] = []
    while len(said) < 1_000 and not (refusal := answer(lambda: said.append(create()))).kind:
        pass
    refusals = [refusal, *(answer(create) for _ in range(3))]
    latest, when_full = newest(service), audit(home)
    ballast.unlink()
    afterwards = [create() for _ in range(3)]
    service.close()
    return Filled(said, refusals, latest, when_full, afterwards, audit(home))


def test_a_full_disk_refuses_new_checkpoints_keeps_the_others_and_heals_with_space(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    filled = apart(fill, tmp_path, under=mounts)
    assert len(filled.said) > 10
    assert all(refused(r, "DiskFullError", "full", "nothing was written") for r in filled.refusals)
    assert filled.latest == filled.said[-1]
    assert filled.when_full.problems == []
    assert filled.when_full.created == filled.said
    assert filled.when_freed.problems == []
    assert filled.when_freed.created == filled.said + filled.afterwards


def small_disks(place: Path, rooms: list[int]) -> list[tuple[int, Answer, Answer]]:
    """On disks with so much room: reading a home that is there, and making one."""
    outcomes = []
    for room in rooms:
        mount(place, "-t", "tmpfs", "-o", "size=4m", "none")
        use(place / "known")
        ballast = leave_room(place, room)
        outcomes.append((room, answer_of(look, place / "known"), answer_of(use, place / "new")))
        ballast.unlink()
        for home in (place / "new", place / "known"):
            use(home)
            assert audit(home).problems == []
        subprocess.run(["umount", str(place)], check=True)
    return outcomes


def test_a_disk_that_fills_up_at_any_point_of_first_use_is_called_full(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    rooms = [*range(0, 900_000, full(32_768, 8192))]
    outcomes = apart(small_disks, tmp_path, rooms, under=mounts)
    assert {first.kind for _, _, first in outcomes} == {"", "DiskFullError"}, outcomes


def test_a_disk_too_full_to_open_a_home_is_called_full(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    outcomes = apart(small_disks, tmp_path, [0, 8192, 16_384, 65_536], under=mounts)
    assert {read.kind for _, read, _ in outcomes} == {"", "DiskFullError"}, outcomes


def disks_without_inodes(place: Path, counts: list[int]) -> list[tuple[int, Answer]]:
    outcomes = []
    for count in counts:
        mount(place, "-t", "tmpfs", "-o", f"size=4m,nr_inodes={count}", "none")
        first = answer_of(use, place / "home")
        mount(place, "-o", "remount,nr_inodes=100")
        use(place / "home")
        assert audit(place / "home").problems == []
        outcomes.append((count, first))
        subprocess.run(["umount", str(place)], check=True)
    return outcomes


def test_a_disk_without_room_for_another_file_is_refused_and_heals(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    outcomes = apart(disks_without_inodes, tmp_path, [*range(2, 18)], under=mounts)
    assert {first.kind for _, first in outcomes} <= {"", "DiskFullError", "HomeError"}, outcomes
    assert outcomes[0][1].kind
    assert not outcomes[-1][1].kind


class ReadOnly(NamedTuple):
    made: str
    read: Answer
    write: Answer
    audit: Answer


def audited(home: Path) -> str:
    with closing(node.Node(home)) as opened:
        return str(verify(opened.store, opened.key.public()).problems)


def read_only_homes(place: Path) -> dict[str, ReadOnly]:
    """One closed in order, one whose writer was killed, one that is not there yet."""
    writable, frozen = place / "writable", place / "frozen"
    writable.mkdir()
    frozen.mkdir()
    made = {"closed": use(writable / "closed"), "not there": "nothing"}
    # A forked process ends without closing anything.
    made["killed"] = at_once(1, lambda n: created(CheckpointService(home=writable / "killed")))[0]
    mount(frozen, "--bind", str(writable))
    mount(frozen, "-o", "remount,bind,ro")
    return {
        name: ReadOnly(made[name], *(answer_of(do, frozen / name) for do in (look, use, audited)))
        for name in made
    }


def test_a_home_that_cannot_be_written_can_be_read_and_says_why_it_takes_nothing(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    homes = apart(read_only_homes, tmp_path, under=mounts)
    assert homes["killed"].read == Answer("", homes["killed"].made)
    assert refused(homes["killed"].write, "ReadOnlyError", "read-only")
    assert refused(homes["not there"].write, "ReadOnlyError", "read-only", "not there")


def test_a_home_closed_in_order_and_then_made_read_only_is_called_read_only(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    home = apart(read_only_homes, tmp_path, under=mounts)["closed"]
    assert home.read == Answer("", home.made) or "read-only" in home.read.text.lower(), home.read
    assert home.write.kind in {"ReadOnlyError", "HomeError"}
    assert "read-only" in home.write.text.lower(), home.write
    assert home.audit == Answer("", "[]")


def view_of_a_home_in_use(place: Path) -> tuple[str, str]:
    """What a writer wrote last, and what a reader on a read-only mount sees then."""
    writable, frozen = place / "writable", place / "frozen"
    frozen.mkdir(parents=True)
    use(writable)
    mount(frozen, "--bind", str(writable))
    mount(frozen, "-o", "remount,bind,ro")
    reader = CheckpointService(home=frozen)
    newest(reader)
    last = [apart(use, writable) for _ in range(3)][-1]
    seen = newest(reader)
    reader.close()
    return last, seen


def test_a_reader_on_a_read_only_mount_sees_what_others_write(
    tmp_path: Path, mounts: tuple[str, ...]
) -> None:
    last, seen = apart(view_of_a_home_in_use, tmp_path, under=mounts)
    assert seen == last


# --- disks that fail --------------------------------------------------------------------------


@pytest.fixture
def failing() -> Callable[..., list[str]]:
    """A command under which chosen system calls on chosen files fail."""
    if problem := strace_problem():
        pytest.skip(f"FAILING SYSTEM CALLS ARE NOT TESTED: {problem}")

    def command(call: str, fault: str, *paths: Path) -> list[str]:
        only = [option for path in paths for option in ("-P", str(path))]
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:{fault}"]
        return ["strace", "-f", "-qq", "-o", "/dev/null", *only, *inject]

    return command


def create_until_refused(home: Path) -> tuple[list[str], Answer]:
    said: list[str] = []
    service = CheckpointService(home=home)
    for _ in range(5):
        if (given := answer(lambda: said.append(created(service)))).kind:
            break
    service.close()
    return said, given


@pytest.mark.parametrize(
    ("call", "kind"), [("fdatasync", "StoreError"), ("pwrite64", "DiskRefusedError")]
)
def test_a_disk_that_fails_amid_a_write_gives_an_error_and_no_acknowledgement(
    home: Path, failing: Callable[..., list[str]], call: str, kind: str
) -> None:
    before = use(home)
    # Later than the first calls, which belong to the head of SQLite's log.
    under = failing(call, "error=EIO:when=12" if call == "pwrite64" else "error=EIO:when=3",
                    home / "context.db-wal")  # fmt: skip
    said, given = apart(create_until_refused, home, under=under)
    assert refused(given, kind, "disk")
    assert said
    assert len(said) < 5
    after = use(home)
    found = audit(home)
    assert found.problems == []
    assert [before, *said, after] == [i for i in found.created if i in {before, *said, after}]
    assert len(found.created) <= len(said) + 3


# --- locks ------------------------------------------------------------------------------------


def test_a_new_home_on_a_disk_without_locks_is_refused(
    home: Path, failing: Callable[..., list[str]]
) -> None:
    for call in ("flock", "fcntl"):
        under = failing(call, "error=ENOLCK", home / "run" / "lock-test")
        given = apart(answer_of, use, home, under=under)
        assert refused(given, "HomeError", "file system without locks", str(home))
        assert not (home / "context.db").exists()
    use(home)


@pytest.mark.parametrize("file", ["context.db", "context.db-shm"])
def test_a_home_moved_to_a_disk_without_locks_is_refused(
    home: Path, failing: Callable[..., list[str]], file: str
) -> None:
    use(home)
    before = content(home)
    under = failing("fcntl", "error=ENOLCK", home / file)
    given = apart(answer_of, use, home, under=under, SYNCD_STORE_BUSY_SECONDS="0.3")
    assert content(home) | before == content(home)
    assert given.kind in {"HomeError", "StoreError", "StoreBusyError"}
    assert "lock" in given.text, given


@contextmanager
def locked(database: Path, *statements: str) -> Iterator[None]:
    """Another process holds the database until the block ends."""
    program = (
        "import sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for statement in sys.argv[2:]: connection.execute(statement)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(database), *statements]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


def test_a_database_that_another_program_holds_is_busy_for_writers_not_for_readers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_STORE_BUSY_SECONDS", "0.3")
    service = CheckpointService(home=home)
    before = created(service)
    with locked(home / "context.db", "BEGIN IMMEDIATE"):
        begun = time.monotonic()
        given = answer(lambda: created(service))
        assert 0.2 < time.monotonic() - begun < 5
        assert refused(given, "StoreBusyError", "locked by another program")
        assert newest(service) == before
    after = created(service)
    service.close()
    assert audit(home).created == [before, after]


def test_a_database_that_is_held_while_its_home_is_made_is_busy_in_time(home: Path) -> None:
    home.mkdir()
    with locked(home / "context.db", "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
        in_time = ("timeout", "--signal=KILL", "20")
        given = apart(answer_of, use, home, under=in_time, SYNCD_STORE_BUSY_SECONDS="0.3")
    assert refused(given, "StoreBusyError", "locked by another program")
    use(home)
    assert audit(home).problems == []


# --- homes that are not ours, not a home, not a database --------------------------------------


def test_a_home_of_another_user_is_refused_by_its_uid(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("A HOME OF ANOTHER USER IS NOT TESTED: only root can give one away")
    use(home)
    os.chown(home, 12345, -1)
    before = content(home)
    for attempt in (use, look):
        given = answer_of(attempt, home)
        assert refused(given, "HomeError", "another user", "uid 12345", str(home))
    assert content(home) == before


@pytest.mark.parametrize("below", ["", "below"])
def test_a_home_that_is_a_file_is_refused(home: Path, below: str) -> None:
    home.write_text("not a home")
    given = answer_of(use, home / below)
    assert refused(given, "HomeError", str(home / below), "directory")
    assert home.read_text() == "not a home"


def test_a_home_whose_database_is_a_folder_is_refused(home: Path) -> None:
    (home / "context.db").mkdir(parents=True)
    given = answer_of(use, home)
    assert refused(given, "HomeError", str(home / "context.db"), "directory")


def test_a_link_that_leads_nowhere_is_refused(home: Path, tmp_path: Path) -> None:
    home.symlink_to(tmp_path / "away" / "home")
    assert refused(answer_of(use, home), "HomeError", str(home))
    assert not (tmp_path / "away").exists()


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(home: Path) -> None:
    use(home)
    with closing(sqlite3.connect(home / "context.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = content(home)
    for attempt in (use, look):
        given = answer_of(attempt, home)
        assert refused(given, "NewerDatabaseError", "99")
        assert "Upgrade" in given.remedy
    assert content(home) | before == content(home)  # SQLite's empty log may stand beside it


GARBAGE = {
    "text": b"this is no database\n" * 500,
    "a few bytes": b"hello",
    "noise": random.Random(1).randbytes(20_000),
    "zeros": bytes(8192),
    "noise behind a header": b"SQLite format 3\0" + random.Random(2).randbytes(20_000),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_database_of_garbage_is_called_damaged_and_kept(home: Path, name: str) -> None:
    home.mkdir()
    (home / "context.db").write_bytes(GARBAGE[name])
    for attempt in (use, look, use):
        given = answer_of(attempt, home)
        assert refused(given, "DatabaseCorruptError", "damaged", exit_code=5, safe=False)
        assert "backup restore" in given.remedy
        assert content(home)["context.db"] == GARBAGE[name]


def test_half_a_database_is_called_damaged_and_kept(home: Path) -> None:
    service = CheckpointService(home=home)
    for _ in range(50):
        created(service)
    service.close()
    half = (home / "context.db").read_bytes()[:-40_960]
    (home / "context.db").write_bytes(half)
    given = answer_of(use, home)
    assert refused(given, "DatabaseCorruptError", "damaged", exit_code=5, safe=False)
    assert (home / "context.db").read_bytes() == half


# --- places and permissions -------------------------------------------------------------------

PLACES = (
    "with spaces", "ünïcödé ✓ 😀", "?mode=ro", "a#b", "50%", "%41%00", "a&b=c;d", "'\"`$(x)\\",
    "file:x", "~", "line\nbreak", os.fsdecode(b"\xff\xfe not UTF-8"),
)  # fmt: skip


@pytest.mark.parametrize("name", PLACES, ids=ascii)
def test_a_home_may_have_any_name(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    first = use(home)
    assert look(home) == first
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208 (names, not paths)
    assert (home / "keys" / "signing.pem").is_file()
    assert audit(home).created == [first]


def modes_under_an_open_umask(home: Path) -> dict[str, str]:
    os.umask(0)
    service = CheckpointService(home=home)
    service.finalize_checkpoint(created(service))
    created(service)
    paths = [home, *home.rglob("*")]
    return {str(path.relative_to(home)): stat.filemode(path.stat().st_mode) for path in paths}


@pytest.mark.parametrize(
    ("beside", "mode"),
    [("config.toml", 0o700), ("setup.json", 0o700), ("notes.txt", 0o755), ("logbook", 0o755)],
)
def test_a_folder_that_serves_something_else_too_stays_as_open_as_it_was(
    home: Path, beside: str, mode: int
) -> None:
    home.mkdir()
    home.chmod(0o755)
    (home / beside).touch()
    with closing(CheckpointService(home=home)) as service:
        service.create_checkpoint("t", "a")
    assert stat.S_IMODE(home.stat().st_mode) == mode
    for path in (home / "context.db", home / "keys", home / "log", home / "run"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_home_is_private_whatever_the_umask(home: Path) -> None:
    modes = apart(modes_under_an_open_umask, home)
    private = {"context.db", "context.db-wal", "context.db-shm", "keys/signing.pem", "keys", "."}
    assert private <= modes.keys()
    assert set(modes.values()) == {"drwx------", "-rw-------"}, modes


# --- documents that cannot be kept ------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"a": document}
    return document


UNFIT: Mapping[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "NaN in a list": [0, {"a": math.nan}],
    "half a surrogate pair": "\ud83d",
    "half a surrogate pair as a key": {"\udc00": 1},
    "2^53 + 1": 2**53 + 1,
    "-2^53 - 1": -(2**53) - 1,
    "2^64 + 1": 2**64 + 1,
    "300 levels": nested(300),
    "a number as a key": {1: "one"},
    "nothing as a key": {None: 1},
    "a pair as a key": {(1, 2): 3},
    "bytes": b"bytes",
    "a set": {1},
    "an object": object(),
    "more than is allowed": "x" * 1_000_001,
}
WAYS: Mapping[str, Callable[[CheckpointService, str, Any], object]] = {
    "in a summary": lambda s, i, value: s.create_checkpoint("t", "a", context_summary={"x": value}),
    "in a state": lambda s, i, value: s.create_checkpoint("t", "a", {"x": value}),
    "in metadata": lambda s, i, value: s.create_checkpoint("t", "a", x=value),
    "in an update": lambda s, i, value: s.update_checkpoint(i, {"context_summary": {"x": value}}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UNFIT)
def test_what_json_cannot_hold_exactly_is_refused(
    home: Path, service: CheckpointService, name: str, way: str
) -> None:
    checkpoint_id = created(service)
    given = answer(lambda: WAYS[way](service, checkpoint_id, UNFIT[name]))
    assert refused(given, "InvalidInputError", exit_code=2)
    assert "nothing was written" in given.remedy or "limits.body_bytes" in given.remedy
    assert audit(home).created == [checkpoint_id]
    assert len(audit(home).revisions) == 1
    created(service)


NUMBERS: Mapping[str, Mapping[str, Any]] = {
    "tokens": {"metrics": {"tokens_consumed": 2**53 + 1}},
    "more tokens": {"metrics": {"tokens_consumed": 2**70}},
    "duration": {"metrics": {"duration_seconds": math.inf}},
    "cost": {"metrics": {"cost_usd": math.nan}},
    "iteration": {"iteration": 2**53 + 1},
    "more iterations": {"iteration": 2**70},
    "more than SQLite can count": {"iteration": 2**63},
    "series": {"series": {"number": 2**70 + 1}},
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_known_fields_are_refused_where_json_cannot_hold_them(
    home: Path, service: CheckpointService, name: str
) -> None:
    given = answer(lambda: service.create_checkpoint("task", "agent", **NUMBERS[name]))
    assert refused(given, "InvalidInputError", exit_code=2)
    assert audit(home).revisions == []


@pytest.mark.parametrize("changes", ["text", 5, ["a"], None, [("metadata", {})]], ids=repr)
def test_changes_that_are_no_document_are_refused(
    home: Path, service: CheckpointService, changes: Any
) -> None:
    checkpoint_id = created(service)
    given = answer(lambda: service.update_checkpoint(checkpoint_id, changes))
    assert refused(given, "InvalidInputError", exit_code=2)
    assert audit(home).revisions == [checkpoint_id]


def endless_documents(home: Path) -> list[Answer]:
    document: dict[str, Any] = {}
    document["itself"] = document
    service = CheckpointService(home=home)
    checkpoint_id = created(service)
    answers = [answer(partial(way, service, checkpoint_id, document)) for way in WAYS.values()]
    service.close()
    return answers


def test_a_document_that_contains_itself_is_refused(home: Path) -> None:
    in_time = ("timeout", "--signal=KILL", "20")
    for given in apart(endless_documents, home, under=in_time):
        assert refused(given, "InvalidInputError", exit_code=2)
    assert len(audit(home).revisions) == 1


def test_what_json_can_hold_comes_back_as_it_was(service: CheckpointService) -> None:
    """The control of the test above: its ways do lead into the database."""
    value = {"n": [2**53 - 1, -(2**53) + 1, 0.1, 1e300, 5e-324, True, None], "t": "a\0b😀\u2028"}
    checkpoint_id = created(service)
    for way in WAYS.values():
        way(service, checkpoint_id, value)
    assert newest(service) == checkpoint_id
    kept = service.get_checkpoint(checkpoint_id).to_dict()["context_summary"]["x"]
    assert kept == value
    documents = [found.to_dict() for found in service.get_checkpoint_history("t")]
    sections = ("metadata", "execution_state", "context_summary")
    assert [d[s]["x"] for d, s in zip(documents, sections, strict=True)] == [value] * 3


def test_a_body_may_be_as_large_as_the_setting_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_LIMITS_BODY_BYTES", "5000")
    service = CheckpointService(home=home)
    given = answer(lambda: service.create_checkpoint("t", "a", {"x": "x" * 5000}))
    assert refused(given, "InvalidInputError", "5,000 are allowed", exit_code=2)
    service.create_checkpoint("t", "a", {"x": "x" * 2000})
    service.close()
    assert len(audit(home).created) == 1


# --- names ------------------------------------------------------------------------------------

UNFIT_IDS = {
    "NUL": "a\0b",
    "a line break": "a\nb",
    "a carriage return": "a\rb",
    "an escape": "\x1b[31m",
    "a line separator": "a\u2028b",
    "10,000 characters": "x" * 10_000,
    "nothing": "",
    "only spaces": "   ",
    "half a surrogate pair": "a\ud83d",
}
FIT_IDS = (
    "../x", "../../../../etc/passwd", "/tmp/absolute", "~/x", "CON", "a/b\\c", ".", "..", "%2e%2e",
    "😀👩‍👩‍👧", "'", '"', "'; DROP TABLE log; --", '" OR 1=1 --', "%", "_", "*", "?", "{}", "%s",
    "$(touch x)", "`touch x`", " leading", "trailing ", "e\u0301", "\u00e9", "\u202ertl", "x" * 512,
)  # fmt: skip


@pytest.mark.parametrize("name", UNFIT_IDS)
def test_an_id_that_is_not_one_line_of_text_is_refused(
    home: Path, service: CheckpointService, name: str
) -> None:
    unfit, before = UNFIT_IDS[name], created(service)
    create = service.create_checkpoint
    for attempt in (
        lambda: create(unfit, "agent"),
        lambda: create("task", unfit),
        lambda: create("task", "agent", checkpoint_id=unfit),
        lambda: service.update_checkpoint(before, {"metadata": {"agent_id": unfit}}),
    ):
        assert refused(answer(attempt), "InvalidInputError", exit_code=2)
    assert audit(home).revisions == [before]


@pytest.mark.parametrize("name", UNFIT_IDS)
def test_asking_for_an_id_that_cannot_be_finds_nothing(
    service: CheckpointService, name: str
) -> None:
    unfit, known = UNFIT_IDS[name], created(service)
    assert answer(lambda: service.get_latest_checkpoint(unfit)).kind in {"", "InvalidInputError"}
    assert answer(lambda: service.get_checkpoint_history(unfit)).kind in {"", "InvalidInputError"}
    assert answer(lambda: service.get_checkpoints_by_agent(unfit)).kind in {"", "InvalidInputError"}
    for attempt in (
        lambda: service.get_checkpoint(unfit),
        lambda: service.update_checkpoint(unfit, {}),
        lambda: service.finalize_checkpoint(unfit),
        lambda: service.link_checkpoints(unfit, known),
    ):
        assert answer(attempt).kind in {"CheckpointNotFoundError", "InvalidInputError"}


def test_any_line_of_text_is_an_id_kept_verbatim_and_never_a_path(
    tmp_path: Path, home: Path, service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    before = set(tmp_path.rglob("*"))
    for name in FIT_IDS:
        made = service.create_checkpoint(name, name, checkpoint_id=name[:128])
        assert made.metadata.task_id == made.metadata.agent_id == name
    for name in FIT_IDS:
        latest = service.get_latest_checkpoint(name)
        assert latest is not None
        assert latest.metadata.checkpoint_id == name[:128]
        assert latest.metadata.task_id == latest.metadata.agent_id == name
        assert [c.metadata.task_id for c in service.get_checkpoint_history(name)] == [name]
        assert [c.metadata.task_id for c in service.get_checkpoints_by_agent(name)] == [name]
    service.finalize_checkpoint(FIT_IDS[0])
    assert audit(home).problems == []
    assert audit(home).created == [name[:128] for name in FIT_IDS]
    assert set(tmp_path.rglob("*")) - before <= {home / "context.db-wal"}


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59Z", "9999-12-31", "2262-04-12T00:00:00Z"])
def test_a_far_future_is_an_end_of_a_range_like_any_other(
    service: CheckpointService, until: str
) -> None:
    checkpoint_id = created(service)
    found = service.get_checkpoints_by_agent("agent", until=until)
    assert [c.metadata.checkpoint_id for c in found] == [checkpoint_id]
    assert service.get_checkpoints_by_agent("agent", since=until) == []


def test_a_home_is_elsewhere_on_another_machine_and_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, none = tmp_path / "machine-id", tmp_path / "none"
    machine.write_text("c0ffee\n")
    monkeypatch.setattr(node, "_MACHINE_IDS", (none, machine))
    here = node.whereabouts(tmp_path)
    assert node.whereabouts(tmp_path) == here
    (tmp_path / "copy").mkdir()
    assert node.whereabouts(tmp_path / "copy") != here
    machine.write_text("c0ffed\n")
    assert node.whereabouts(tmp_path) != here
    assert "c0ffee" not in here
