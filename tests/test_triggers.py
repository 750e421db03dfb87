"""When to hand over: each threshold below, at and above its value, and what each asks for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from syncd import HandoffProtocol, HandoffTrigger, config
from syncd.checkpoint import Checkpoint
from syncd.triggers import Action, Circumstances, action, advice

# --- the context ladder -------------------------------------------------------------------------

RUNGS = [(70, None, "handoff"), (75, "handoff", "checkpoint"), (80, "checkpoint", "insist"),
         (90, "insist", "stop")]  # fmt: skip


def level(percent: float | None, settings: Any = None) -> str | None:
    found = advice(percent, settings)
    return found.level if found else None


@pytest.mark.parametrize(("rung", "below", "above"), RUNGS)
def test_each_rung_must_be_exceeded(rung: int, below: str | None, above: str) -> None:
    assert level(math.nextafter(rung, 0)) == below
    assert level(rung) == below
    assert level(math.nextafter(rung, 100)) == above


def test_the_ends_of_the_ladder() -> None:
    assert (level(None), level(0), level(100)) == (None, None, "stop")


def test_advice_says_how_much_is_used_and_what_to_do() -> None:
    texts = [found.text for percent in (71, 76, 81, 91.5) if (found := advice(percent))]
    assert [text.partition(":")[0] for text in texts] == [
        "71 % of the context is used, more than 70 %",
        "76 % of the context is used, more than 75 %",
        "81 % of the context is used, more than 80 %",
        "91.5 % of the context is used, more than 90 %",
    ]
    for text, word in zip(texts, ("at the next", "checkpoint", "now", "stop"), strict=True):
        assert word in text.partition(":")[2]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("handoff.context_percent", "handoff"),
        ("handoff.checkpoint_percent", "checkpoint"),
        ("handoff.insist_percent", "insist"),
        ("handoff.stop_percent", "stop"),
    ],
)
def test_each_rung_is_a_setting(name: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{name} = 40.5\n")
    settings = config.load(file)
    assert level(40.5, settings) is None
    assert level(41, settings) == wanted


# --- thresholds that are set --------------------------------------------------------------------


def asked(protocol: type[HandoffProtocol], **values: Any) -> HandoffTrigger | None:
    usual: dict[str, Any] = {
        "context_utilization": 0.0, "consecutive_errors": 0, "token_budget_used": 0.0,
    }  # fmt: skip
    return protocol.should_handoff(**{**usual, **values})


@pytest.mark.parametrize(
    ("name", "value", "argument", "limit", "trigger"),
    [
        ("handoff.context_percent", 55.0, "context_utilization", 0.55, "context_threshold"),
        ("handoff.errors", 5, "consecutive_errors", 5, "error_threshold"),
        ("handoff.budget_percent", 90.0, "token_budget_used", 0.9, "token_budget"),
        ("handoff.timeout_minutes", 15.0, "elapsed_minutes", 15.0, "timeout"),
    ],
)
def test_each_trigger_has_a_setting(
    name: str, value: float, argument: str, limit: float, trigger: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f"{name} = {value}\n")
    protocol = HandoffProtocol.configured(config.load(file))
    less, more = (math.nextafter(limit, 0), math.nextafter(limit, 99))
    if isinstance(limit, int):
        less, more = limit - 1, limit + 1
    assert asked(protocol, **{argument: less}) is None
    assert asked(protocol, **{argument: limit}) is None
    assert asked(protocol, **{argument: more}) == trigger


@pytest.mark.parametrize(("minutes", "wanted"), [(59.9, None), (60, None), (60.1, "timeout")])
def test_time_must_exceed_an_hour(minutes: float, wanted: str | None) -> None:
    assert asked(HandoffProtocol, elapsed_minutes=minutes) == wanted


def test_time_is_asked_last() -> None:
    late = {"elapsed_minutes": 999.0}
    assert asked(HandoffProtocol, token_budget_used=0.9, **late) == HandoffTrigger.TOKEN_BUDGET
    assert asked(HandoffProtocol, **late) == HandoffTrigger.TIMEOUT


def test_settings_leave_the_class_attributes_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[handoff]\ncontext_percent = 1.0\nerrors = 1\nbudget_percent = 1.0\n")
    HandoffProtocol.configured(config.load(file))
    assert HandoffProtocol.CONTEXT_THRESHOLD == 0.70
    assert HandoffProtocol.ERROR_THRESHOLD == 3
    assert HandoffProtocol.TOKEN_BUDGET_THRESHOLD == 0.80


# --- actions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "agent"),
    [
        ("planning", "implementation"),
        ("implementing", "qa"),
        ("testing", "documentation"),
        ("reviewing", "orchestrator"),
        ("complete", ""),
    ],
)
def test_a_complete_phase_goes_to_the_agent_of_the_next(phase: str, agent: str) -> None:
    found = action(HandoffTrigger.PHASE_COMPLETE, Circumstances(phase=phase))
    assert found == Action(agent, 5, f"The phase {phase} is complete")
    for trigger in set(HandoffTrigger) - {HandoffTrigger.PHASE_COMPLETE}:
        assert action(trigger, Circumstances(phase=phase)).target_agent_type == ""


def test_an_explicit_request_is_for_at_once() -> None:
    priorities = {trigger: action(trigger, Circumstances()).priority for trigger in HandoffTrigger}
    assert priorities.pop(HandoffTrigger.EXPLICIT_REQUEST) == 10
    assert max(priorities.values()) < 10


@pytest.mark.parametrize(
    ("trigger", "values", "note"),
    [
        (
            HandoffTrigger.ERROR_THRESHOLD,
            {"consecutive_errors": 4},
            "4 errors in a row: try another way. The last one: no such table",
        ),
        (
            HandoffTrigger.TOKEN_BUDGET,
            {"token_budget_used": 0.85},
            "Budget warning: 85 % of the task's tokens are used",
        ),
        (
            HandoffTrigger.CONTEXT_THRESHOLD,
            {},
            "The context of the agent before was full (72.5 %)",
        ),
        (
            HandoffTrigger.TIMEOUT,
            {"elapsed_minutes": 61},
            "The agent before ran out of time (61 min); its last step may be half done",
        ),
    ],
)
def test_a_request_carries_the_reason_in_its_prompt(
    trigger: HandoffTrigger, values: dict[str, Any], note: str
) -> None:
    checkpoint = Checkpoint.from_dict(
        {
            "execution_state": {
                "phase": "testing",
                "error": "no such\ntable",
                "pending_items": ["x"],
            },
            "metrics": {"context_used_percent": 72.5, "error_count": 2},
        }
    )
    request = HandoffProtocol.request(trigger, checkpoint, **values)
    assert request.trigger == trigger
    assert request.checkpoint.execution_state == checkpoint.execution_state
    prompt = request.checkpoint.recovery.continuation_prompt
    assert prompt.startswith(HandoffProtocol.generate_continuation_prompt(checkpoint))
    assert prompt.endswith(f"### Why it was handed over\n- {note}")


def test_without_a_count_the_checkpoints_own_errors_are_told() -> None:
    checkpoint = Checkpoint.from_dict({"metrics": {"error_count": 7}})
    request = HandoffProtocol.request(HandoffTrigger.ERROR_THRESHOLD, checkpoint)
    assert "7 errors in a row" in request.checkpoint.recovery.continuation_prompt
