"""The chain of checkpoints in a few lines: how the work came to where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from syncd.resume.chain import TOLD, Ancestor, Line
from syncd.resume.text import items, mapping, text

_SHOWN = 120


def told(document: Mapping[str, Any], line: Line) -> Iterator[str]:
    """The agent's own summary if it wrote one, else what the nearest parents did last."""
    summary = items(mapping(document.get("context_summary")).get("chain_summary"))
    if summary:
        yield from (text(said) for said in summary)
        return
    series = mapping(mapping(document.get("metadata")).get("series"))
    number, total = _number(series, line), series.get("total")
    if not line.ancestors and not isinstance(total, int):
        return
    for back in range(min(len(line.ancestors), TOLD), 0, -1):
        yield f"Checkpoint {number - back:,}: {_did(line.ancestors[back - 1])}"
    yield f"Checkpoint {number:,} (this): {_last(document) or 'nothing completed yet'}"
    if isinstance(total, int) and total > number:
        yield f"Up to checkpoint {total:,}: expected"


def _number(series: Mapping[str, Any], line: Line) -> int:
    number = series.get("number")
    return number if isinstance(number, int) else len(line.ancestors) + 1


def _did(ancestor: Ancestor) -> str:
    """Of one whose body is gone, or sealed with a key that is not here, the header has to do."""
    done = _last(orjson.loads(ancestor.body)) if ancestor.body else ""
    who = f"{text(ancestor.agent, 80)}, {ancestor.phase}"
    return f"{who}: {done}" if done else f"{who}, {ancestor.status}"


def _last(document: Any) -> str:
    """What was completed last."""
    done = items(mapping(mapping(document).get("execution_state")).get("completed_items"))
    if not done:
        return ""
    found = mapping(done[-1])
    return text(found.get("step") or found if found else done[-1], _SHOWN)
