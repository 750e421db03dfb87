"""Arbitrary checkpoints: every field, with texts that some file format could misread. And files
that something happened to."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from syncd.checkpoint import Checkpoint
from syncd.vocabulary import CheckpointReason, CheckpointStatus, ExecutionPhase

FRAGMENTS = (
    "\n", "\r\n", "\r", "\t", " ", "\n\n", "\x00", "\x85", "\u2028", "\ufeff", "\xa0", "\\",
    "#", "# Agent Checkpoint: B", "## ", "## Progress", "### Completed", "### ", "#### x", "##",
    "---", "***", ":---:", "===", "```", "```json", "```json syncd", "~~~", "`", "    ", "> ",
    "- ", "* ", "- [x] ", "[ ] ", "[x]", "1. ", "10) ", "|", "\\|", "| a | b |", '"', "\\n", "{}",
    '{"a": 1}', "- details: {}", '- details: {"step": "x"}', "details:", "None", "n/a", "(none)",
    "**To:** x", "**Status:** Blocked", "**", "*Checkpoint written by A at B*", "## Record",
    "2 of 3", "In Progress", "75%", "a", "word", "two words", "é", "e\u0301", "漢字", "😀",
    "\u202e", "<b>", "&amp;",
)  # fmt: skip

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(FRAGMENTS),
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.sampled_from(FRAGMENTS).map(lambda text: text * 300),
)
_numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | _numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
# Names that no field has, nor any other name that a field is read under.
_unknown_names = texts.map(lambda text: f"x {text}")
times = st.sampled_from(
    ("2026-01-16T15:00:45Z", "2026-01-16T15:00:45.25+05:45", "2026-01-16\n15:00+00:00",
     "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "20260116T150045-0100")
)  # fmt: skip
counts = st.integers(0, 2**53 - 1)
amounts = st.floats(0, 1e300)
percents = st.floats(0, 100) | st.integers(0, 100)
text_lists = st.lists(texts, max_size=3)


def part(required: dict[str, Any] | None = None, **fields: Any) -> st.SearchStrategy[Any]:
    """An object with some of the fields, and now and then one that nobody knows."""
    known = st.fixed_dictionaries(required or {}, optional=fields)
    unknown = st.dictionaries(_unknown_names, values, max_size=1)
    return st.builds(lambda more, own: {**more, **own}, unknown, known)


def items(key: str, **fields: Any) -> st.SearchStrategy[Any]:
    return st.lists(texts | part({key: texts}, **fields), max_size=4)


steps = items(
    "step", files_created=text_lists, files_modified=text_lists, timestamp=times, notes=texts
)


def pairs(name: str) -> st.SearchStrategy[Any]:
    return values | st.lists(st.fixed_dictionaries({name: texts, "text": texts}), max_size=2)


documents = part(
    metadata=part(
        {"timestamp": times},
        task_id=texts,
        agent_id=texts,
        agent_type=texts,
        iteration=counts,
        reason=st.sampled_from(list(map(str, CheckpointReason))),
        session_id=texts,
        mission=texts,
        feature=texts,
        series=part({"number": st.integers(1, 99)}, total=st.integers(1, 99), note=texts | values),
        previous_agents=text_lists,
        handoff_from=texts,
        next_checkpoint_expected=times,
    ),
    execution_state=part(
        phase=st.sampled_from(list(map(str, ExecutionPhase))) | texts,
        status=st.sampled_from([*map(str, CheckpointStatus), "In Progress", "Completed", "done"]),
        completed_items=steps,
        pending_items=steps,
        blocked_items=items(
            "description", impact=texts, resolution_path=texts, resolution=texts, resolved_by=texts
        ),
        current_focus=texts,
        stage=texts,
        current_step=part({"description": texts}, started_at=times, partial_work=texts),
        next_steps=text_lists,
        error=texts,
        raw=st.dictionaries(st.sampled_from(["status", "phase"]) | texts, texts, max_size=2),
    ),
    context_summary=part(
        key_decisions=items(
            "decision", rationale=texts, rejected_alternatives=text_lists, timestamp=times
        ),
        assumptions=text_lists,
        constraints=text_lists,
        external_dependencies=text_lists,
        findings=items("text", category=texts),
        state=st.dictionaries(texts, values, max_size=3),
        coordination_state=st.dictionaries(texts, values, max_size=2),
        chain_summary=text_lists,
    ),
    metrics=part(
        tokens_consumed=counts,
        tools_invoked=counts,
        files_modified=text_lists,
        tests_status=part(passed=counts, failed=counts, skipped=counts, coverage_percent=percents),
        duration_seconds=amounts,
        error_count=counts,
        context_used_percent=percents,
        cost_usd=amounts,
    ),
    recovery=part(
        last_successful_state=texts,
        rollback_instructions=texts,
        continuation_prompt=texts,
        resume_instructions=texts,
        can_resume=st.booleans(),
        escalation=part(to=texts, reason=texts, decision_needed=texts),
        blocker_resolution=part(original_blocker=texts, resolution=texts, resolved_by=texts),
    ),
    compliance=part(event_log_ref=texts, retention_policy=texts),
    verification=part(contract_ref=texts),
    markdown=values | part(headers=pairs("name"), sections=pairs("title"), preamble=texts),
)
checkpoints = documents.map(Checkpoint.from_dict)


def mangled(chance: random.Random, samples: list[bytes]) -> bytes:
    """A file with pieces taken out, put in, doubled and overwritten."""
    data = bytearray(chance.choice(samples))
    for _ in range(chance.randint(1, 8)):
        start = chance.randint(0, len(data))
        end = min(len(data), start + chance.choice((0, 1, 5, 80)))
        piece = bytes(data[end : end + 40])
        made = (chance.choice(FRAGMENTS).encode(), chance.randbytes(3), b"", b"\n", piece * 2)
        data[start:end] = chance.choice(made)
    return bytes(data)
