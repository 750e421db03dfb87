"""What a session has done so far: the fold of its journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from syncd.hooks.events import FILES

_REQUESTS = 20
_WORDS = 4
# What stands in every line, and says nothing of the work.
_FRAME = {"t", "k", "head", "source", "baseline"}
DONE, DOING, DROPPED = ("completed", "done"), ("in_progress",), ("cancelled", "deleted")


class Written(NamedTuple):
    """The last checkpoint that was made of the session: what it said, and the totals in it."""

    task: str
    digest: str
    tokens: int
    cost: float
    tools: int
    at_ms: int


NEVER = Written("", "", 0, 0.0, 0, 0)


class Session(NamedTuple):
    """`files`, `tests` and errors are those since the session came to its present task; requests
    and the list of things to do go with it from branch to branch. `todos`: text and status."""

    head: Mapping[str, Any]
    task: str
    requests: list[str]
    asked_ms: int
    todos: list[tuple[str, str]]
    files: list[str]
    tests: Mapping[str, Any]
    tools: int
    subagents: int
    errors: int
    last_error: str
    refused: str
    spent: Mapping[str, int]
    cost: float
    baseline: int
    transcripts: list[str]
    began_ms: int
    ended_ms: int
    written: Written

    @property
    def empty(self) -> bool:
        """Nothing was asked, and nothing done."""
        return not (self.requests or self.todos or self.files or self.tools)

    @property
    def mission(self) -> str:
        """The first request that says what to do; `go on` does not."""
        return next((words for words in self.requests if len(words.split()) >= _WORDS), "")

    def with_status(self, *statuses: str) -> list[str]:
        return [item for item, status in self.todos if status in statuses]

    @property
    def open_todos(self) -> list[str]:
        return [item for item, status in self.todos if status not in (*DONE, *DROPPED)]


def folded(lines: Sequence[Mapping[str, Any]], task: str = "") -> Session:
    """Up to now. `task`: the one that the session is at now, if that is known."""
    task = task or _last(lines, "k", "")
    since = lines[_arrival(lines, task) :]
    own = [line for line in lines if line.get("d") != "written"]
    spent, cost = _spent(lines)
    times = [line["t"] for line in lines if isinstance(line.get("t"), int)]
    return Session(
        head=_last(lines, "head", {}),
        task=task,
        requests=_unique(_texts(own, "ask"))[-_REQUESTS:],
        asked_ms=max((line["t"] for line in own if line.get("ask") and line.get("t")), default=0),
        todos=_todos(own),
        files=_unique(name for line in since for name in _list(line.get("files")))[-FILES - 1 :],
        tests=_tests(since),
        tools=sum(1 for line in lines if line.get("tool")),
        subagents=sum(1 for line in lines if line.get("subagent")),
        errors=_in_a_row(since),
        last_error=_last(since, "error", ""),
        refused=_refused(own),
        spent=spent,
        cost=cost,
        baseline=next((line["baseline"] for line in lines if line.get("baseline")), 0),
        transcripts=_unique(_texts(lines, "transcript")),
        began_ms=min(times, default=0),
        ended_ms=max(times, default=0),
        written=_written(lines),
    )


def unsaved(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something was said that is in no checkpoint."""
    last = max((n for n, line in enumerate(lines) if line.get("d") == "written"), default=-1)
    return any(line.keys() - _FRAME for line in lines[last + 1 :])


def _arrival(lines: Sequence[Mapping[str, Any]], task: str) -> int:
    """Behind the last checkpoint that was written for another task."""
    places = [
        place + 1
        for place, line in enumerate(lines)
        if line.get("d") == "written" and line.get("k") != task
    ]
    return max(places, default=0)


def _last(lines: Iterable[Mapping[str, Any]], name: str, otherwise: Any) -> Any:
    found = otherwise
    for line in lines:
        if value := line.get(name):
            found = value
    return found


def _texts(lines: Iterable[Mapping[str, Any]], name: str) -> list[str]:
    return [line[name] for line in lines if isinstance(line.get(name), str) and line[name]]


def _list(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _unique(texts: Iterable[str]) -> list[str]:
    """Each once, where it was said last."""
    return list(reversed(dict.fromkeys(reversed([*texts]))))


def _todos(lines: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """A list replaces the one before, but what it had completed stays so; single items are known
    by their number."""
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        if listed := line.get("todos"):
            done = {name: item for name, item in found.items() if item[1] in DONE}
            found = {**done, **{words: (words, status) for words, status in listed}}
        if isinstance(item := line.get("todo"), list):
            number, words, status = item
            before = found.get(f"#{number}", ("", "pending"))
            found[f"#{number}"] = (words or before[0], status or before[1])
    return [item for item in found.values() if item[0] and item[1] not in DROPPED]


def _tests(lines: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = {}
    for line in lines:
        if isinstance(tests := line.get("tests"), dict):
            found = {**tests, "at_ms": line.get("t", 0)}
    return found


def _in_a_row(lines: Iterable[Mapping[str, Any]]) -> int:
    """Errors since a tool last did what it should."""
    count = 0
    for line in lines:
        if line.get("error"):
            count += 1
        elif line.get("tool") or line.get("ask"):
            count = 0
    return count


def _refused(lines: Iterable[Mapping[str, Any]]) -> str:
    """Why the host's model did not go on, if that was the last thing to happen."""
    found = ""
    for line in lines:
        if line.get("refused"):
            found = str(line["refused"])
        elif line.get("ask") or line.get("tool"):
            found = ""
    return found


def _spent(lines: Iterable[Mapping[str, Any]]) -> tuple[dict[str, int], float]:
    """Where the host tells tokens message by message; of each message the last word counts."""
    messages = {said["id"]: said for line in lines if (said := line.get("spent"))}
    total: dict[str, int] = {}
    for said in messages.values():
        for kind, number in said.items():
            if kind not in ("id", "cost"):
                total[kind] = total.get(kind, 0) + number
    return total, sum(said.get("cost", 0.0) for said in messages.values())


def _written(lines: Iterable[Mapping[str, Any]]) -> Written:
    found = NEVER
    for line in lines:
        if line.get("d") == "written":
            found = Written(
                line["k"], line["digest"], line["tokens"], line["cost"], line["tools"], line["t"]
            )
    return found
