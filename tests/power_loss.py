"""Processes that die, and what they leave: start them, trace them, rebuild their disk, audit it.

Nothing here trusts syncd: the audit reads the database with SQLite alone, and the disk after a
power loss is rebuilt from the system calls of a real process.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
TESTS = Path(__file__).parent


# --- processes --------------------------------------------------------------------------------


def apart(function: Callable[..., T], *arguments: Any, under: Sequence[str] = (), **env: str) -> T:
    """What a function of a test module returns in an interpreter of its own.

    `under` is a command that starts it (strace, unshare), `env` what is added to its environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        task = (function.__module__, function.__name__, arguments, str(Path(folder, "outcome")))
        clean = {name: os.environ[name] for name in os.environ if not name.startswith("SYNCD_")}
        with subprocess.Popen(
            [*under, sys.executable, "-W", "error", "-c", "import power_loss; power_loss.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean, "PYTHONPATH": f"{TESTS}:{TESTS.parent}", **env},
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(pickle.dumps(task), timeout=120)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it forked goes with it
        if not (outcome := Path(folder, "outcome")).exists():
            raise AssertionError(f"died with {process.returncode}: {said.decode()[-4000:]}")
        succeeded, result = pickle.loads(outcome.read_bytes())
    if not succeeded:
        raise AssertionError(f"in the other process:\n{result}")
    returned: T = result
    return returned


def serve() -> None:
    """The other end of `apart`."""
    module, name, arguments, outcome = pickle.load(sys.stdin.buffer)
    _report(lambda: getattr(import_module(module), name)(*arguments), Path(outcome))


def at_once(
    count: int, work: Callable[[int], T], meanwhile: Callable[[], object] | None = None
) -> list[T]:
    """Fork `count` processes, release them at the same moment, collect what each returns.

    Only for processes without threads: call it inside `apart`.
    """
    closed, opened = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [Path(folder, str(number)) for number in range(count)]
        children = []
        for number, outcome in enumerate(outcomes):
            if child := os.fork():
                children.append(child)
                continue
            os.close(opened)
            os.read(closed, 1)  # returns when the parent has closed the other end
            _report(partial(work, number), outcome)
            os._exit(0)
        os.close(opened)
        if meanwhile:
            meanwhile()
        for child in children:
            os.waitpid(child, 0)
        os.close(closed)
        results = [pickle.loads(outcome.read_bytes()) for outcome in outcomes]
    failed = [result for succeeded, result in results if not succeeded]
    if failed:
        raise AssertionError(f"{len(failed)} of {count} processes failed; the first:\n{failed[0]}")
    return [result for _, result in results]


def _report(work: Callable[[], object], outcome: Path) -> None:
    try:
        report = (True, work())
    except Exception:  # noqa: BLE001 (told to the process that asked)
        report = (False, traceback.format_exc())
    outcome.write_bytes(pickle.dumps(report))


@cache
def strace_problem() -> str | None:
    """Why no process can be traced here, or None."""
    if not (strace := shutil.which("strace")):
        return "strace is not installed"
    trial = subprocess.run(
        [strace, "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False
    )
    return None if trial.returncode == 0 else f"strace may not trace: {trial.stderr.strip()}"


# --- the audit --------------------------------------------------------------------------------

_HEADER = (
    "entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at, key_id, meta"
)


class Audit(NamedTuple):
    """What a database holds, and everything that is wrong with it."""

    created: list[str]  # ids of checkpoints, in the order of the log
    revisions: list[str]
    metas: list[dict[str, Any]]
    problems: list[str]


def audit(home: Path) -> Audit:
    """Check every entry of a home's log against what DESIGN.md says, without syncd."""
    found = Audit([], [], [], [])
    with closing(sqlite3.connect(home / "context.db")) as connection:
        verdict = connection.execute("PRAGMA integrity_check").fetchall()
        if verdict != [("ok",)]:
            found.problems.append(f"integrity_check: {verdict[:3]}")
        last: dict[str, tuple[int, bytes]] = {}
        query = f"SELECT hash, previous, chain, body, {_HEADER} FROM log ORDER BY seq"
        for body_hash, previous, chain, body, *header in connection.execute(query):
            entry_id, device, number, entity, entity_id, op = header[:6]
            before, head = last.get(device, (0, bytes(32)))
            if number != before + 1:
                found.problems.append(f"{entry_id}: number {number} follows {before}")
            if previous != head or chain != _chained(head, header, body_hash):
                found.problems.append(f"{entry_id}: the chain breaks")
            if hashlib.sha256(body).hexdigest() != body_hash:
                found.problems.append(f"{entry_id}: the body is another")
            last[device] = (number, chain)
            found.revisions.append(entry_id)
            found.metas.append(json.loads(header[-1]))
            if (entity, op) == ("checkpoint", "create"):
                found.created.append(entity_id)
    if len(last) > 1:
        found.problems.append(f"{len(last)} devices wrote here")
    return found


def _chained(previous: bytes, header: Sequence[object], body_hash: str) -> bytes:
    texts = [str(field) for field in header]
    encoded = json.dumps(texts, ensure_ascii=False, separators=(",", ":")).encode()
    return hashlib.sha256(previous + encoded + body_hash.encode()).digest()


# --- the record of a process ------------------------------------------------------------------

_CALLS = (
    "openat,open,creat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,"
    "sync,syncfs,ftruncate,truncate,fallocate,unlink,unlinkat,rename,renameat,renameat2,link,"
    "linkat,mkdir,mkdirat,copy_file_range,sendfile"
)
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_DESCRIPTOR = re.compile(r"^(\d+)<((?:\\x[0-9a-f]{2})+)>(\(deleted\))?")


class Event(NamedTuple):
    """Something that happened to a file of the home, by its path from there."""

    kind: str
    path: str = ""
    data: bytes = b""
    offset: int = 0


def record(
    trace: Path, home: Path, function: Callable[..., object], *arguments: Any
) -> list[Event]:
    """Trace a function in its own process: all it does to the home and says on its output."""
    strace = ["strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "-o", str(trace)]
    apart(function, *arguments, under=[*strace, "-e", f"trace={_CALLS}"])
    with trace.open(encoding="ascii") as lines:
        return [event for line in lines for event in _events(line, home)]


def _events(line: str, home: Path) -> Iterator[Event]:
    call, _, rest = line.split(maxsplit=1)[1].partition("(")
    inside, _, result = rest.rpartition(") = ")
    if not result or result.startswith("-1"):
        return
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(inside)]
    if descriptor := _DESCRIPTOR.match(inside):
        number, name, deleted = descriptor.groups()
        path = _within(home, bytes.fromhex(name.replace("\\x", "")))
        if call == "write" and number == "1":
            yield Event("acknowledge", data=texts[0])
        elif path is not None and not deleted:
            yield _file_event(call, path, texts, inside.rpartition(", ")[2])
        return
    paths = [_within(home, text) for text in texts]
    if paths and paths[-1] is not None:
        yield from _name_events(call, [path or "" for path in paths], inside)


def _within(home: Path, name: bytes) -> str | None:
    """A path from the home; SQLite's shared memory is left out, for no power loss leaves it."""
    path = Path(os.fsdecode(name))
    if not path.is_relative_to(home) or path.name.endswith("-shm"):
        return None
    return path.relative_to(home).as_posix()


def _file_event(call: str, path: str, texts: list[bytes], last: str) -> Event:
    if call == "pwrite64":
        return Event("write", path, texts[0], int(last))
    if call == "write":
        return Event("append", path, texts[0])
    if call == "ftruncate":
        return Event("truncate", path, offset=int(last))
    if call in ("fsync", "fdatasync"):
        return Event("sync", path)
    raise AssertionError(f"the disk below does not know {call} on {path}")


def _name_events(call: str, paths: list[str], inside: str) -> Iterator[Event]:
    if call == "openat":
        if "O_CREAT" in inside:
            yield Event("create", paths[0])
        if "O_TRUNC" in inside:
            yield Event("truncate", paths[0])
    elif call in ("mkdir", "unlink"):
        yield Event(call, paths[0])
    elif call in ("link", "rename"):
        yield Event(call, paths[1], paths[0].encode())
    else:
        raise AssertionError(f"the disk below does not know {call} of {paths}")


# --- the disk after the power is gone ---------------------------------------------------------


class Luck(NamedTuple):
    """How much of what was never synced reached the disk: so many of `n` writes per block."""

    block: int
    reached: Callable[[int], int]


WHOLE = 1 << 40
NOTHING = Luck(WHOLE, lambda n: 0)
EVERYTHING = Luck(WHOLE, lambda n: n)


def chance(seed: int) -> Luck:
    """Sectors, pages or files, each as it was at some moment since its last sync."""
    dice = random.Random(seed)
    block = dice.choice((512, 4096, WHOLE))
    return Luck(block, lambda n: dice.choice((0, n, dice.randint(0, n))))


class File:
    """What is on the disk for certain, and the writes that may be. No data: cut to that size."""

    def __init__(self) -> None:
        self.safe = bytearray()
        self.loose: list[tuple[int, bytes | None]] = []
        self.size = 0

    def change(self, offset: int, data: bytes | None) -> None:
        self.loose.append((offset, data))
        self.size = offset if data is None else max(self.size, offset + len(data))

    def sync(self) -> None:
        self.safe, self.loose = self.after(EVERYTHING), []

    def after(self, luck: Luck) -> bytearray:
        content, reached = bytearray(self.safe), dict[int, int]()
        for number, (offset, data) in enumerate(self.loose):
            end = offset + len(data or b"")
            for block in range(offset // luck.block, max(end - 1, offset) // luck.block + 1):
                if block not in reached:
                    reached[block] = luck.reached(len(self.loose))
                if number >= reached[block]:
                    continue
                if data is None:
                    del content[offset:]
                    content.extend(bytes(offset - len(content)))
                else:
                    start, stop = max(offset, block * luck.block), (block + 1) * luck.block
                    piece = data[start - offset : stop - offset]
                    content.extend(bytes(max(0, start - len(content))))
                    content[start : start + len(piece)] = piece
        return content


class Folder:
    """A name that holds names."""


Change = tuple[str, File | Folder | None]  # a name, and what it stands for from now on


class Disk:
    """A home as its process sees it, and as a power loss may leave it."""

    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.safe: dict[str, File | Folder] = {}
        self.loose: dict[str, list[Sequence[Change]]] = {}  # per folder, in their order

    def happen(self, event: Event) -> None:
        path, other = event.path, event.data.decode("utf-8", "replace")
        match event.kind:
            case "create" if path not in self.names:
                self._rename((path, File()))
            case "mkdir":
                self._rename((path, Folder()))
            case "unlink":
                self._rename((path, None))
            case "link":
                self._rename((path, self.names[other]))
            case "rename":
                self._rename((path, self.names[other]), (other, None))
            case "write" | "append" | "truncate" | "sync":
                file = self.names.get(path)
                if isinstance(file, File):
                    _change(file, event)
                elif event.kind == "sync":
                    for changes in self.loose.pop(path, []):
                        _apply(self.safe, changes)

    def _rename(self, *changes: Change) -> None:
        _apply(self.names, changes)
        self.loose.setdefault(Path(changes[0][0]).parent.as_posix(), []).append(changes)

    def write(self, home: Path, luck: Luck) -> None:
        """Lay out what is there when the machine starts again."""
        names = dict(self.safe)
        for pending in self.loose.values():
            for changes in pending[: luck.reached(len(pending))]:
                _apply(names, changes)
        home.mkdir()
        for path in sorted(names):
            place, file = home / path, names[path]
            if isinstance(file, Folder) and place.parent.is_dir():
                place.mkdir()
            elif isinstance(file, File) and place.parent.is_dir():
                place.write_bytes(file.after(luck))


def _change(file: File, event: Event) -> None:
    match event.kind:
        case "write":
            file.change(event.offset, event.data)
        case "append":
            file.change(file.size, event.data)
        case "truncate":
            file.change(event.offset, None)
        case "sync":
            file.sync()


def _apply(names: dict[str, File | Folder], changes: Sequence[Change]) -> None:
    for path, file in changes:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file
