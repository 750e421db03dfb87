"""What must hold, and whether it did: that no entry was missed, and how fast it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.verdict import Verdict
from scale.settings import MAIN

PUSH_P99_MS = 1_000.0
PER_SECOND = 5_000.0
GROWTH_TIMES = 1.2


def verdicts(parts: Mapping[str, dict[str, Any]]) -> list[Verdict]:
    """`parts` are documents, by the name of the part."""
    return [*missed(parts), *figures(parts)]


def failed(held: Sequence[Verdict]) -> bool:
    return any(verdict.word == "FAIL" for verdict in held)


def missed(parts: Mapping[str, dict[str, Any]]) -> list[Verdict]:
    found = []
    for name in ("fleet", "crowd"):
        if part := parts.get(name):
            who = f"{part['devices']:,} devices, {part['organizations']} organizations"
            found.append(Verdict(f"{who}: entries missed", 0, part["check"]["missed"], ""))
    return found


def figures(parts: Mapping[str, dict[str, Any]]) -> list[Verdict]:
    found = []
    if part := parts.get("fleet"):
        main = next(phase for phase in part["phases"] if phase["name"] == MAIN)
        found += [
            Verdict("entries a second in total, sustained", PER_SECOND, main["per_s"], "/s",
                    at_least=True),
            Verdict("push p99 at that rate", PUSH_P99_MS, main["push"]["p99_ms"], "ms"),
        ]  # fmt: skip
    if part := parts.get("device"):
        few, many = part["sizes"][0], part["sizes"][-1]
        found += [Verdict(f"{name} p50 with {many:,} entries to {few:,}", GROWTH_TIMES, times, "x")
                  for name, times in part["growth"].items()]  # fmt: skip
    return found
