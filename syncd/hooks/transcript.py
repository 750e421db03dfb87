"""What a host's own transcript says of tokens, and of nothing else: its text is never kept. Pure,
but for `context`, which looks at the end of the file.

Claude Code repeats a message on several lines while it grows: each message counts once, with its
greatest numbers. What sub-agents used is in lines marked as such, or in files beside the
transcript. Codex writes running totals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

KINDS = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_input_tokens",
    "cache_write": "cache_creation_input_tokens",
}
_USUAL_WINDOW, _LARGE_WINDOW = 200_000, 1_000_000
_TAIL_BYTES = 256_000
_MOST_BYTES = 100_000_000
_MARKS = (b'"usage"', b'"token_count"', b'"compact_boundary"')


class Usage(NamedTuple):
    """Tokens by kind, what they cost if that is told, and how full the context is, in percent."""

    tokens: Mapping[str, int] = MappingProxyType({})
    cost: float | None = None
    context: float | None = None

    @property
    def total(self) -> int:
        return sum(self.tokens.values())


def usage(lines: Iterable[bytes]) -> Usage:
    counted: dict[str, dict[str, int]] = {}
    cost, running, context, window = 0.0, {}, None, 0
    for said in _read(lines):
        info = _mapping(_mapping(said.get("payload")).get("info"))
        if totals := _mapping(info.get("total_token_usage")):
            running = _codex(totals)
            last = _codex(_mapping(info.get("last_token_usage")))
            context, window = sum(last.values()), _number(info.get("model_context_window"))
            continue
        if said.get("subtype") == "compact_boundary":
            context = None  # what was full is empty; how much is left is told with the next message
        message = _mapping(said.get("message"))
        numbers = _claude(_mapping(message.get("usage")))
        if not any(numbers.values()):
            continue
        name = message.get("id")
        before = counted.setdefault(name if isinstance(name, str) else str(len(counted)), {})
        before.update({kind: max(n, before.get(kind, 0)) for kind, n in numbers.items()})
        cost += _amount(said.get("costUSD"))
        if said.get("isSidechain") is not True:
            context = sum(n for kind, n in numbers.items() if kind != "output")
    total = {kind: sum(n.get(kind, 0) for n in counted.values()) for kind in KINDS}
    tokens = {kind: n + running.get(kind, 0) for kind, n in total.items()}
    return Usage({k: n for k, n in tokens.items() if n}, cost or None, _percent(context, window))


def _percent(context: int | None, window: int) -> float | None:
    """Claude Code does not tell the size; more than the usual one holds must be the large one."""
    if not context:
        return None
    window = window or (_USUAL_WINDOW if context <= _USUAL_WINDOW else _LARGE_WINDOW)
    return round(min(100.0, 100 * context / window), 1)


def _read(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if any(mark in line for mark in _MARKS):
            try:
                said = json.loads(line)
            except (ValueError, RecursionError):
                continue  # the last line, while it is written
            if isinstance(said, dict):
                yield said


def _claude(numbers: Mapping[str, Any]) -> dict[str, int]:
    return {kind: _number(numbers.get(name)) for kind, name in KINDS.items()}


def _codex(numbers: Mapping[str, Any]) -> dict[str, int]:
    """Its input includes what came from the cache."""
    cached = _number(numbers.get("cached_input_tokens"))
    fresh = max(_number(numbers.get("input_tokens")) - cached, 0)
    output = _number(numbers.get("output_tokens"))
    return {"input": fresh, "cache_read": cached, "output": output}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> int:
    return value if type(value) is int and 0 < value < 10**12 else 0


def _amount(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value < 10**9 else 0.0


# --- the files ----------------------------------------------------------------------------------


def whole(transcript: str, others: Iterable[str] = ()) -> Usage:
    """Of a session, with its sub-agents. A message that stands in two files counts once; the main
    file comes last, as the context is its own."""
    if not transcript:
        return Usage()
    main = Path(transcript)
    beside = sorted((main.parent / main.stem / "subagents").glob("*.jsonl"))
    files = {file: None for file in [*beside, *map(Path, others)] if file != main}
    return usage(line for file in [*files, main] for line in _lines(file))


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _MOST_BYTES))
            yield from stream
    except OSError:
        return  # gone, or not ours to read


def context(transcript: str) -> float | None:
    """How full the context is, from the end of a transcript."""
    if not transcript:
        return None
    try:
        with Path(transcript).open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            return usage(stream.read(_TAIL_BYTES).splitlines()).context
    except OSError:
        return None
