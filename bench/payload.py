"""The checkpoints that everybody stores: realistic content, cut to an exact size."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from syncd.checkpoint import (
    CheckpointMetrics,
    ContextSummary,
    ExecutionState,
    TestStatus,
)
from syncd.service import CheckpointService

TASK, AGENT = "pay-api", "agent-7"
_DONE_AT = "2025-03-04T10:15:00.000+00:00"
_WORK = (
    "Add the idempotency key to POST /payments",
    "Move the ledger migration behind the feature flag",
    "Cover the retry of a declined card with tests",
    "Replace the polling worker with LISTEN/NOTIFY",
    "Document the error codes of the refund endpoint",
)
_DECISIONS = (
    ("Keep amounts as integers of minor units", "floats lost a cent in the reconciliation test"),
    ("Lock the account row, not the table", "table locks queued every refund of a merchant"),
    ("Retry only idempotent calls", "the gateway charged twice when a timeout was retried"),
    ("Store the provider's answer verbatim", "disputes are settled on what was really said"),
)
_ALTERNATIVES = ("serializable isolation for every request", "a nightly job that repairs balances")
_SUBJECTS = ("refund", "ledger", "retry", "invoice", "webhook", "payout", "dispute", "fee")
_PADDING = "the sandbox of the card provider answers as production does; "


@dataclass(frozen=True)
class Payload:
    """The parts as a user has them at hand, and the record that syncd makes of them."""

    label: str
    state: ExecutionState
    context: ContextSummary
    metrics: CheckpointMetrics
    body: bytes = b""

    def document(self) -> dict[str, Any]:
        """What the others store: the same content, freshly parsed."""
        document: dict[str, Any] = orjson.loads(self.body)
        return document


def small() -> Payload:
    """1.5 KB: a note between two steps. Nearly all of it is what every checkpoint carries
    (ids, times, the generated prompt), so little room is left for content."""
    state = ExecutionState(
        phase="testing", completed_items=["Add refunds"], pending_items=["Test retries"]
    )
    context = ContextSummary.from_dict(
        {"key_decisions": [{"decision": "Use cents", "rationale": "floats lost one"}]}
    )
    return _fitted(Payload("1.5 KB", state, context, _metrics(["src/api.py"])), 1_536)


def large() -> Payload:
    """20 KB: a long task before a hand-off."""
    state = ExecutionState.from_dict(
        {
            "phase": "testing",
            "completed_items": [_step(number) for number in range(34)],
            "pending_items": [_title(number) for number in range(34, 54)],
            "current_focus": _title(34),
        }
    )
    context = ContextSummary.from_dict(
        {
            "key_decisions": [_decision(number) for number in range(12)],
            "constraints": ["No downtime during the migration", "Java 8 clients keep working"],
        }
    )
    metrics = _metrics([_file(number) for number in range(30)])
    return _fitted(Payload("20 KB", state, context, metrics), 20_480)


def varied(payload: Payload, number: int) -> Payload:
    """Of the same shape and about the same size, but with texts and numbers of its own: an index
    of equal contents would be small."""
    chosen = random.Random(number)
    title, (decision, reason) = chosen.choice(_WORK), chosen.choice(_DECISIONS)
    state = ExecutionState(
        phase=chosen.choice(("planning", "implementing", "testing", "reviewing")),
        completed_items=[f"Add {_words(chosen, 1)}"],
        pending_items=[f"Test {_words(chosen, 1)}"],
    )
    context = ContextSummary.from_dict(
        {
            "key_decisions": [{"decision": _words(chosen, 2), "rationale": _words(chosen, 3)}],
            "assumptions": [f"{title} ({number}): {decision}, as {reason}"[: _room(payload)]],
        }
    )
    metrics = CheckpointMetrics(
        tokens_consumed=chosen.randrange(200_000),
        tools_invoked=chosen.randrange(100),
        files_modified=[f"src/{_words(chosen, 1)}.py"],
        tests_status=TestStatus(
            passed=chosen.randrange(900), failed=chosen.randrange(9), skipped=chosen.randrange(9),
            coverage_percent=chosen.randrange(1_000) / 10,
        ),
        duration_seconds=chosen.randrange(1, 20_000) / 10,
    )  # fmt: skip
    return Payload(payload.label, state, context, metrics)


def _words(chosen: random.Random, count: int) -> str:
    return " ".join(chosen.choice(_SUBJECTS) + str(chosen.randrange(1_000)) for _ in range(count))


def _room(payload: Payload) -> int:
    return sum(map(len, payload.context.assumptions))


def create(
    service: CheckpointService, payload: Payload, task: str = TASK, agent: str = AGENT
) -> str:
    """The write that is measured; returns the new checkpoint's id."""
    checkpoint = service.create_checkpoint(
        task, agent, payload.state, payload.context, payload.metrics
    )
    return checkpoint.metadata.checkpoint_id


def _title(number: int) -> str:
    return f"{_WORK[number % len(_WORK)]} (PAY-{100 + number})"


def _step(number: int) -> dict[str, Any]:
    return {
        "step": _title(number),
        "files_created": [f"tests/payments/test_case_{number}.py"],
        "files_modified": [_file(number), "src/payments/ledger.py"],
        "timestamp": _DONE_AT,
        "notes": "All tests of the module pass; the slow query in the report is untouched.",
    }


def _decision(number: int) -> dict[str, Any]:
    decision, rationale = _DECISIONS[number % len(_DECISIONS)]
    rejected = list(_ALTERNATIVES)
    return {"decision": decision, "rationale": rationale, "rejected_alternatives": rejected}


def _file(number: int) -> str:
    return f"src/payments/handlers/handler_{number}.py"


def _metrics(files: list[str]) -> CheckpointMetrics:
    return CheckpointMetrics(
        tokens_consumed=48_210,
        tools_invoked=37,
        files_modified=files,
        tests_status=TestStatus(passed=212, failed=3, skipped=4, coverage_percent=81.5),
        duration_seconds=1284.7,
    )


def _fitted(payload: Payload, size: int) -> Payload:
    """Fill up to `size` bytes with an assumption, which stands once in the body: the prompt
    leaves it out. Content that is longer already stays as it is; the report gives its length."""
    draft = _recorded(_padded(payload, 1))
    room = size - len(draft.body)
    return _recorded(_padded(payload, 1 + room)) if room > 0 else _recorded(payload)


def _padded(payload: Payload, length: int) -> Payload:
    text = (_PADDING * (length // len(_PADDING) + 1))[:length]
    context = payload.context.amended(assumptions=[text])
    return Payload(payload.label, payload.state, context, payload.metrics)


def _recorded(payload: Payload) -> Payload:
    """The body as syncd writes it: as second of its task, so that it names a parent."""
    with tempfile.TemporaryDirectory() as folder:
        service = CheckpointService(home=Path(folder) / "home")
        try:
            create(service, payload)
            create(service, payload)
            record = service.node.store.latest(TASK)
        finally:
            service.close()
    if record is None:
        raise AssertionError("the checkpoint just written is not there")
    return Payload(
        payload.label, payload.state, payload.context, payload.metrics, record.entry.body
    )
