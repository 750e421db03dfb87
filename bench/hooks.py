"""What hooks cost: a session of 200 tool calls replayed with a process for each event, as its host
does it; and who waits, when fifty come at once while the home fetches from its replica.

Run as a module, this is one of the fifty: started before, so that what is timed is the hook and not
fifty starts of Python on a few cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import installed
from bench.resume import repository
from syncd.hooks.events import CLAUDE_CODE
from syncd.hooks.main import Call, handled

SESSION = Path(__file__).parents[1] / "tests" / "fixtures" / "hooks" / "session.jsonl"
AT_ONCE, SESSIONS = 50, 10
_PAUSE_SECONDS = 0.05
TOOL_USE = {
    "session_id": "bench", "hook_event_name": "PostToolUse", "tool_name": "Edit",
    "tool_input": {"file_path": "src/handler_0.py", "old_string": "a", "new_string": "b"},
    "tool_response": {"filePath": "src/handler_0.py", "originalFile": "# a\n" * 500},
}  # fmt: skip


# --- a session ------------------------------------------------------------------------------------


class Replayed(NamedTuple):
    """Seconds that the hooks took, and that the session took when it was recorded."""

    events: int
    tool_calls: int
    hooks: float
    session: float


def replayed(folder: Path, most: int | None = None) -> Replayed:
    project = repository(folder / "hooked")
    lines = [json.loads(line) for line in SESSION.read_text(encoding="utf-8").splitlines()][:most]
    command = [str(Path(sys.executable).with_name("syncd")), "hook", CLAUDE_CODE]
    environment = installed(folder / "hooks", folder / "bytecode")
    given = [_filled(line["event"], project, folder) for line in lines]
    began = time.perf_counter()
    for event in given:
        subprocess.run(command, input=event, env=environment, capture_output=True, check=True)
    spent = time.perf_counter() - began
    log = folder / "hooks" / "log" / "hooks.log"
    if log.exists():
        raise AssertionError(f"a hook failed: {log.read_text(encoding='utf-8')}")
    calls = sum(line["event"]["hook_event_name"].startswith("PostToolUse") for line in lines)
    first, last = (datetime.fromisoformat(line["at"]) for line in (lines[0], lines[-1]))
    return Replayed(len(lines), calls, spent, (last - first).total_seconds())


def _filled(event: Mapping[str, Any], project: Path, folder: Path) -> bytes:
    text = json.dumps(event).replace("{repo}", str(project))
    for name in ("{transcript}", "{agent_transcript}"):
        text = text.replace(name, str(folder / "transcript.jsonl"))
    return text.encode()


# --- fifty at once --------------------------------------------------------------------------------


class AtOnce(NamedTuple):
    """The longest of all hooks in milliseconds, and how often all of them came at once."""

    calm: float
    calm_rounds: int
    pulling: float
    pulling_rounds: int


def at_once(folder: Path, home: Path, pull: Callable[[], object], calm_rounds: int = 3) -> AtOnce:
    project = repository(folder / "fifty")
    with _started(home, project) as all_at_once:
        calm = [all_at_once() for _ in range(calm_rounds)]
        pulling = threading.Thread(target=pull)
        pulling.start()
        busy = []
        while pulling.is_alive():
            busy.append(all_at_once())
            time.sleep(_PAUSE_SECONDS)
        pulling.join()
    return AtOnce(max(calm), len(calm), max(busy, default=0.0), len(busy))


@contextmanager
def _started(home: Path, project: Path) -> Iterator[Callable[[], float]]:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", __name__, str(home), str(project)]
    started = [
        subprocess.Popen([*command, f"session {number % SESSIONS}"], cwd=root, text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for number in range(AT_ONCE)
    ]  # fmt: skip

    def said(process: subprocess.Popen[str]) -> str:
        return process.stdout.readline() if process.stdout else ""

    def go(process: subprocess.Popen[str]) -> None:
        if process.stdin:
            process.stdin.write("go\n")
            process.stdin.flush()

    def all_at_once() -> float:
        for process in started:
            go(process)
        return max(float(said(process)) for process in started) * 1_000

    try:
        if any(said(process) != "ready\n" for process in started):
            raise AssertionError("a hook did not begin")
        yield all_at_once
    finally:
        for process in started:
            process.kill()
            process.communicate()


def main(home: Path, project: Path, session: str) -> None:
    event = json.dumps({**TOOL_USE, "session_id": session, "cwd": str(project)}).encode()
    call = Call(CLAUDE_CODE, home)
    handled(call, event)
    print("ready", flush=True)
    for _ in sys.stdin:
        _forget_sign(home)
        began = time.monotonic()
        handled(call, event)
        print(time.monotonic() - began, flush=True)


def _forget_sign(home: Path) -> None:
    """So that a sign of life is due: the one thing for which such a hook needs the database."""
    for marks in (home / "run" / "sessions").glob("*.marks"):
        marks.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
