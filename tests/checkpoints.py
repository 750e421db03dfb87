"""Arbitrary checkpoints, for what has to bring every one of them through a file."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from syncd.checkpoint import Checkpoint

# What JSON, Markdown and line ends make trouble with.
AWKWARD = st.sampled_from(
    ["", " ", '"', "\\", "\\u00e9", "a\r\nb", "\r", "\u2028", "\x00", "é", "日本語", "😀",
     "</script>", "```json\n{}\n```", "| a | b |", "null", "{}", "x" * 5000, "phase", "syncd",
     "planning"]
)  # fmt: skip
TEXT = st.text(max_size=12) | AWKWARD
TIMES = st.sampled_from(
    ["2026-01-15T14:30:00Z", "2026-02-28T10:00:00.123456+05:30", "9999-12-31T23:59:59Z",
     "0001-01-01T00:00:00+00:00"]
)  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
UNKNOWN = st.sampled_from(["owner", "notes_of_mine", "x", "Ünknown", "", "syncd", "deadLine"])
TEXTS = st.lists(TEXT, max_size=3)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, and some that nobody knows."""
    known = st.fixed_dictionaries({}, optional=fields)
    return st.builds(
        lambda own, more: more | own, known, st.dictionaries(UNKNOWN, VALUES, max_size=1)
    )


STEPS = st.builds(
    lambda step, more: more | {"step": step},
    TEXT,
    some(files_created=TEXTS, files_modified=TEXTS, timestamp=TIMES, notes=TEXT),
)
DECISIONS = st.builds(
    lambda decision, more: more | {"decision": decision},
    TEXT,
    some(rationale=TEXT, rejected_alternatives=TEXTS, timestamp=TIMES),
)
BLOCKERS = st.builds(
    lambda text, more: more | {"description": text},
    TEXT,
    some(impact=TEXT, resolution_path=TEXT, resolution=TEXT, resolved_by=TEXT),
)
RESULTS = st.builds(
    lambda activity, more: more | {"activity": activity},
    TEXT,
    some(status=st.sampled_from(["pending", "passed", "failed", "skipped"]), run_at=TIMES),
)
CURRENT = st.builds(
    lambda text, more: more | {"description": text}, TEXT, some(started_at=TIMES, partial_work=TEXT)
)
PHASES = st.sampled_from(
    ["planning", "implementing", "testing", "reviewing", "handoff", "complete", "implementation",
     "Specification - In Progress", "Wiring it up"]
)  # fmt: skip
STATUSES = st.sampled_from(
    ["in_progress", "waiting", "blocked", "escalated", "complete", "failed", "IN_PROGRESS", "done"]
)
DOCUMENTS = some(
    metadata=some(
        task_id=TEXT, agent_id=TEXT, agent_type=TEXT, iteration=st.integers(0, 9), timestamp=TIMES,
        reason=st.sampled_from(["periodic", "failure", "rate_limit"]), session_id=TEXT,
        mission=TEXT, feature=TEXT, previous_agents=TEXTS, handoff_from=TEXT,
        next_checkpoint_expected=TIMES, series=st.just({"number": 2, "total": 3}),
    ),
    execution_state=some(
        phase=PHASES, status=STATUSES, completed_items=st.lists(TEXT | STEPS, max_size=12),
        pending_items=st.lists(TEXT | STEPS, max_size=3), current_focus=TEXT, stage=TEXT,
        blocked_items=st.lists(TEXT | BLOCKERS, max_size=3), current_step=CURRENT, error=TEXT,
        next_steps=TEXTS, raw=st.dictionaries(st.sampled_from(["phase", "status"]), TEXT),
    ),
    context_summary=some(
        key_decisions=st.lists(TEXT | DECISIONS, max_size=3), assumptions=TEXTS, constraints=TEXTS,
        external_dependencies=TEXTS, state=st.dictionaries(TEXT, VALUES, max_size=3),
        coordination_state=st.dictionaries(TEXT, VALUES, max_size=3),
    ),
    metrics=some(tokens_consumed=st.integers(0, 9), files_modified=TEXTS,
                 duration_seconds=st.floats(0, 1e6), context_used_percent=st.floats(0, 100)),
    recovery=some(last_successful_state=TEXT, rollback_instructions=TEXT, continuation_prompt=TEXT,
                  resume_instructions=TEXT, can_resume=st.booleans()),
    compliance=some(event_log_ref=TEXT, retention_policy=TEXT),
    verification=some(contract_ref=TEXT, results=st.lists(RESULTS, max_size=3)),
    workspace=some(branch=TEXT, head=TEXT, dirty=st.booleans()),
)  # fmt: skip
CHECKPOINTS = DOCUMENTS.map(Checkpoint.from_dict)
