from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncd import (
    Checkpoint,
    CheckpointCorruptionError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointService,
    ContextSummary,
    ExecutionState,
    FinalizedError,
    InvalidInputError,
    StaleBaseError,
)
from syncd.checkpoint import CheckpointMetrics
from syncd.items import Step
from syncd.node import Node
from syncd.patch import merged
from syncd.seal import signature_valid
from syncd.store import Skipped, Store


def ident(checkpoint: Checkpoint) -> str:
    return checkpoint.metadata.checkpoint_id


def ids(checkpoints: list[Checkpoint]) -> list[str]:
    return [ident(checkpoint) for checkpoint in checkpoints]


def parent_of(checkpoint: Checkpoint) -> str:
    return checkpoint.recovery.last_successful_state


# --- create -------------------------------------------------------------------------------------


def test_a_new_checkpoint_reads_back_equal_and_verified(service: CheckpointService) -> None:
    written = service.create_checkpoint(
        task_id="payments",
        agent_id="agent-1",
        execution_state=ExecutionState(phase="implementing", completed_items=["schema"]),
        context_summary=ContextSummary(key_decisions=["cents"]),
        metrics=CheckpointMetrics(tokens_consumed=7),
        agent_type="gardener",
        iteration=3,
        session_id="s-1",
        x_unknown={"kept": True},
    )
    read = service.get_checkpoint(ident(written))
    assert read == written
    assert read.to_dict() == written.to_dict()
    assert (read.verified, read.revision) == (True, written.revision)
    assert read.verify_integrity()
    assert read.metadata.agent_type == "gardener"
    assert read.metadata.to_dict()["x_unknown"] == {"kept": True}
    assert read.recovery.continuation_prompt.startswith("## Continuing earlier work")
    assert read.revision in read.compliance.event_log_ref


def test_what_was_written_is_there_for_another_process(service: CheckpointService) -> None:
    written = service.create_checkpoint("t", "a")
    other = CheckpointService(home=service.node.home)
    assert other.get_checkpoint(ident(written)) == written
    other.close()


def test_parts_may_be_documents_and_state_is_another_name(service: CheckpointService) -> None:
    written = service.create_checkpoint(
        "t",
        "a",
        state={"phase": "verification", "completedSteps": ["x"]},
        context_summary={"decisions": ["d"]},
        metrics={"tokensConsumed": 5},
        recovery={"rollback_instructions": "git revert"},
        verification={"contractRef": "c"},
        workspace={"branch": "main"},
    )
    assert written.execution_state.phase == "testing"
    assert written.context_summary.key_decisions == ["d"]
    assert written.metrics.tokens_consumed == 5
    assert written.recovery.rollback_instructions == "git revert"
    assert service.get_checkpoint(ident(written)) == written


def test_the_parent_is_the_tasks_newest_unless_named(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    elsewhere = service.create_checkpoint("other", "a")
    second = service.create_checkpoint("t", "b")
    third = service.create_checkpoint("t", "a", parent=ident(first))
    assert [parent_of(c) for c in (first, elsewhere, second, third)] == [
        "", "", ident(first), ident(first),
    ]  # fmt: skip
    assert parent_of(service.get_checkpoint(ident(third))) == ident(first)


def test_the_parent_may_stand_in_the_recovery_section(service: CheckpointService) -> None:
    first, _second = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    third = service.create_checkpoint("t", "a", recovery={"last_successful_state": ident(first)})
    assert parent_of(third) == ident(first)


def test_an_unknown_parent_is_refused_and_nothing_is_written(service: CheckpointService) -> None:
    with pytest.raises(CheckpointNotFoundError, match="'nowhere'"):
        service.create_checkpoint("t", "a", parent="nowhere")
    assert service.get_latest_checkpoint("t") is None
    assert service.node.store.rows("task_ids") == []


def test_an_id_in_use_is_refused_and_the_first_stays(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a", checkpoint_id="mine")
    with pytest.raises(CheckpointExistsError):
        service.create_checkpoint("t", "b", checkpoint_id="mine")
    assert service.get_checkpoint_history("t") == [first]


@pytest.mark.parametrize("text", ["", "  ", "a\nb", "a\0b", "x" * 513, "a\u2028b"])
def test_an_id_that_is_no_single_line_is_refused(service: CheckpointService, text: str) -> None:
    for names in ((text, "agent"), ("task", text)):
        with pytest.raises(InvalidInputError, match=r"^the (task|agent) id "):
            service.create_checkpoint(*names)
    assert service.node.store.rows("task_ids") == []


@pytest.mark.parametrize("text", ["../../etc/passwd", "'; DROP TABLE log; --", "é \U0001f600", "%"])
def test_any_text_on_one_line_is_an_id(service: CheckpointService, text: str) -> None:
    written = service.create_checkpoint(text, text, checkpoint_id=text)
    assert service.get_latest_checkpoint(text) == written
    assert service.get_checkpoints_by_agent(text) == [written]
    assert service.get_checkpoint(text, text) == written


def test_a_checkpoint_beyond_the_size_limit_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_LIMITS_BODY_BYTES", "2000")
    service = CheckpointService(home=home)
    service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError, match=r"[0-9],[0-9]{3} bytes; 2,000 are allowed"):
        service.create_checkpoint("t", "a", {"current_focus": "x" * 2_000})
    assert len(service.get_checkpoint_history("t")) == 1
    service.close()


def test_a_checkpoint_that_renders_long_is_written_with_a_warning(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "syncd"):
        service.create_checkpoint("t", "a", {"pending_items": ["x" * 199] * 10})
        service.create_checkpoint("t", "a", {"pending_items": ["short"]})
    (record,) = caplog.records
    assert "bytes; they work best below 2048" in record.getMessage()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", 2**53 + 1, {1: 2}])
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(
    service: CheckpointService, value: Any
) -> None:
    with pytest.raises(InvalidInputError):
        service.create_checkpoint("t", "a", context_summary={"state": {"x": value}})
    assert service.get_latest_checkpoint("t") is None


@pytest.mark.parametrize(
    "value",
    [
        1e300, 1e22, 1e-300, 0.1, 2.0**53 - 1,
        1e16, 1e17, -(2.0**53), 1.5e18,
    ],
)  # fmt: skip
def test_a_number_of_any_size_can_be_written_read_verified_and_updated(
    service: CheckpointService, value: float
) -> None:
    written = service.create_checkpoint("t", "a", context_summary={"state": {"x": value}})
    read = service.get_checkpoint(ident(written))
    assert read.context_summary.state == {"x": value}
    assert read.verify_integrity()
    service.update_checkpoint(ident(written), {"metrics": {"error_count": 1}})
    final = service.finalize_checkpoint(ident(written))
    assert final.context_summary.state == {"x": value}


def test_the_reason_failure_puts_the_error_among_the_blockers(service: CheckpointService) -> None:
    failed = service.create_checkpoint(
        "t", "a", {"error": "tests crash", "blocked_items": ["no token"]}, reason="failure"
    )
    assert failed.execution_state.blocked_items == ["no token", "tests crash"]
    assert "- tests crash" in failed.recovery.continuation_prompt
    assert service.get_checkpoint(ident(failed)) == failed
    again = service.update_checkpoint(ident(failed), {"metrics": {"error_count": 2}})
    assert again.execution_state.blocked_items == ["no token", "tests crash"], "once"
    for reason in ("periodic", None):
        fine = service.create_checkpoint("t", "a", {"error": "seen"}, reason=reason)
        assert fine.execution_state.blocked_items == []


# --- update -------------------------------------------------------------------------------------


def test_an_update_changes_what_it_names_and_keeps_the_rest(service: CheckpointService) -> None:
    first = service.create_checkpoint(
        "t", "a", {"completed_items": ["x"], "pending_items": ["y"], "current_focus": "y"}
    )
    second = service.update_checkpoint(
        ident(first), {"execution_state": {"completed_items": ["x", "y"]}}
    )
    state = second.execution_state
    assert (state.completed_items, state.pending_items) == (["x", "y"], ["y"])
    assert second.revision != first.revision
    assert service.get_checkpoint(ident(first)) == second
    assert second.verify_integrity()
    assert len(service.get_checkpoint_history("t")) == 1


def test_null_removes_and_objects_merge(service: CheckpointService) -> None:
    first = service.create_checkpoint(
        "t",
        "a",
        {"current_focus": "y", "stage": "S2"},
        context_summary={"state": {"keep": 1, "drop": 2, "deep": {"a": 1}}},
        x_extra="e",
    )
    second = service.update_checkpoint(
        ident(first),
        {
            "execution_state": {"current_focus": None, "stage": None},
            "context_summary": {"state": {"drop": None, "deep": {"b": [1, None]}}},
            "metadata": {"x_extra": None},
        },
    )
    assert second.execution_state.current_focus == ""
    assert "stage" not in second.to_dict()["execution_state"]
    assert second.context_summary.state == {"keep": 1, "deep": {"a": 1, "b": [1, None]}}
    assert "x_extra" not in second.to_dict()["metadata"]


def test_a_model_in_a_change_replaces_only_what_was_set(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a", {"completed_items": ["x"], "current_focus": "f"})
    step = Step(step="y", files_created=["y.py"])
    second = service.update_checkpoint(
        ident(first), {"execution_state": ExecutionState(phase="testing", pending_items=[step])}
    )
    state = second.execution_state
    assert (state.phase, state.completed_items, state.current_focus) == ("testing", ["x"], "f")
    assert state.pending_items == [step]


@pytest.mark.parametrize(
    "change",
    [
        {"execution_state": {"pendingSteps": ["new"]}},
        {"executionState": {"pending_items": ["new"]}},
        {"pendingSteps": ["new"]},
        {"pending_items": ["new"]},
    ],
    ids=str,
)
def test_a_change_in_other_tools_words_is_not_ignored(
    service: CheckpointService, change: dict[str, Any]
) -> None:
    first = service.create_checkpoint("t", "a", {"pending_items": ["old"]})
    second = service.update_checkpoint(ident(first), change)
    assert second.execution_state.pending_items == ["new"]


def test_a_later_phase_in_canonical_words_forgets_the_earlier_foreign_one(
    service: CheckpointService,
) -> None:
    first = service.create_checkpoint("t", "a", {"phase": "Phase 2: coding"})
    assert first.execution_state.raw == {"phase": "Phase 2: coding"}
    second = service.update_checkpoint(ident(first), {"execution_state": {"phase": "reviewing"}})
    assert second.execution_state.phase == "reviewing"
    assert second.execution_state.raw == {}


def test_a_change_on_a_stale_base_is_refused(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    change = {"metrics": {"error_count": 1}}
    second = service.update_checkpoint(ident(first), change, base=first.revision)
    with pytest.raises(StaleBaseError, match=first.revision) as caught:
        service.update_checkpoint(
            ident(first), {"metrics": {"error_count": 2}}, base=first.revision
        )
    assert caught.value.exit_code == 7
    with pytest.raises(StaleBaseError):
        service.finalize_checkpoint(ident(first), base=first.revision)
    with pytest.raises(StaleBaseError):
        service.revise(first, first.amended(version="1.0"))
    assert service.get_checkpoint(ident(first)) == second


def test_of_racing_updates_on_one_base_exactly_one_wins(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    gate = threading.Barrier(4)

    def race(number: int) -> int | None:
        own = CheckpointService(home=service.node.home)
        gate.wait()
        try:
            own.update_checkpoint(
                ident(first), {"metrics": {"error_count": number}}, base=first.revision
            )
        except StaleBaseError:
            return None
        finally:
            own.close()
        return number

    with ThreadPoolExecutor(4) as pool:
        won = [number for number in pool.map(race, range(1, 5)) if number is not None]
    assert len(won) == 1
    assert service.get_checkpoint(ident(first)).metrics.error_count == won[0]


@pytest.mark.parametrize("name", ["checkpoint_id", "task_id"])
def test_the_ids_of_a_checkpoint_never_change(service: CheckpointService, name: str) -> None:
    first = service.create_checkpoint("t", "a")
    for value in ("other", None):
        with pytest.raises(InvalidInputError, match=rf"metadata\.{name} of a checkpoint cannot"):
            service.update_checkpoint(ident(first), {"metadata": {name: value}})
    assert service.get_checkpoint_history("t") == [first]


def test_a_change_of_agent_is_remembered_in_order(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "ann")
    for agent in ("bob", "cid", "bob", "ann"):
        service.update_checkpoint(ident(first), {"metadata": {"agent_id": agent}})
    read = service.get_checkpoint(ident(first))
    assert (read.metadata.agent_id, read.metadata.previous_agents) == ("ann", ["ann", "bob", "cid"])


def test_an_update_by_the_same_agent_adds_no_previous_one(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "ann")
    second = service.update_checkpoint(ident(first), {"metrics": {"error_count": 1}})
    assert second.metadata.previous_agents == []


def test_the_generated_prompt_follows_an_update_and_a_written_one_stays(
    service: CheckpointService,
) -> None:
    generated = service.create_checkpoint("t", "a", {"pending_items": ["x"]})
    change = {"execution_state": {"pending_items": ["y"]}}
    assert "- y" in service.update_checkpoint(ident(generated), change).recovery.continuation_prompt
    written = service.create_checkpoint("t", "a", recovery={"continuation_prompt": "Mine."})
    updated = service.update_checkpoint(ident(written), change)
    assert updated.recovery.continuation_prompt == "Mine."


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": {"tokens_consumed": "many"}},
        {"execution_state": {"status": "sideways"}},
        {"execution_state": True},
        {"execution_state": [{}]},
        {"execution_state": "text"},
        {"metadata": 5},
        {"recovery": True},
    ],
    ids=str,
)
def test_a_change_that_is_not_valid_writes_nothing(
    service: CheckpointService, change: dict[str, Any]
) -> None:
    first = service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError):
        service.update_checkpoint(ident(first), change)
    assert service.get_checkpoint(ident(first)) == first


@pytest.mark.parametrize("parent", ["nowhere", "mine"])
def test_an_update_to_an_unknown_parent_or_itself_is_refused(
    service: CheckpointService, parent: str
) -> None:
    first = service.create_checkpoint("t", "a", checkpoint_id="mine")
    change = {"recovery": {"last_successful_state": parent}}
    with pytest.raises((CheckpointNotFoundError, InvalidInputError), match=r"parent"):
        service.update_checkpoint("mine", change)
    assert service.get_checkpoint("mine") == first


def test_what_does_not_exist_cannot_be_changed(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    calls: list[Callable[[], object]] = [
        lambda: service.update_checkpoint("nowhere", {}),
        lambda: service.finalize_checkpoint("nowhere"),
        lambda: service.link_checkpoints("nowhere", ident(first)),
        lambda: service.link_checkpoints(ident(first), "nowhere"),
        lambda: service.get_checkpoint("nowhere"),
    ]
    for call in calls:
        with pytest.raises(CheckpointNotFoundError, match="'nowhere'") as caught:
            call()
        assert caught.value.exit_code == 4


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=1), inner),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_merge_patch_is_that_of_rfc_7396(document: Any, patch: Any) -> None:
    assert merged(document, patch) == rfc_7396(document, patch)


def rfc_7396(target: Any, patch: Any) -> Any:
    """The RFC's own pseudocode."""
    if isinstance(patch, dict):
        if not isinstance(target, dict):
            target = {}
        target = dict(target)
        for name, value in patch.items():
            if value is None:
                if name in target:
                    del target[name]
            else:
                target[name] = rfc_7396(target.get(name), value)
        return target
    return patch


# --- finalize -----------------------------------------------------------------------------------


def test_a_finalized_checkpoint_takes_no_further_change(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    final = service.finalize_checkpoint(ident(first), status="failed")
    assert final.execution_state.status == "failed"
    calls: list[Callable[[], object]] = [
        lambda: service.update_checkpoint(ident(first), {"metrics": {"error_count": 1}}),
        lambda: service.finalize_checkpoint(ident(first)),
        lambda: service.revise(final, final),
    ]
    for call in calls:
        with pytest.raises(FinalizedError, match=r"is finalized \(failed\)"):
            call()
    assert service.get_checkpoint(ident(first)) == final


def test_finalizing_signs_the_log_up_to_it(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    assert first.compliance.signature == ""
    final = service.finalize_checkpoint(ident(first))
    entry = service.node.store.entry(final.revision)
    assert entry is not None
    keys = dict(service.node.store.rows("device_keys"))
    signature = bytes.fromhex(final.compliance.signature)
    assert signature_valid(keys[entry.device_id], entry.chain, signature)
    assert not signature_valid(keys[entry.device_id], entry.previous, signature)
    assert service.get_checkpoint(ident(first)).compliance.signature == signature.hex()
    assert final.verify_integrity()


def test_a_signature_may_say_who_signs_and_what_it_means(service: CheckpointService) -> None:
    first = service.create_checkpoint("t", "a")
    service.finalize_checkpoint(ident(first), sign_as="Ada", meaning="reviewed")
    signer = service.get_checkpoint(ident(first)).compliance.signed_by
    assert signer is not None
    assert (signer.name, signer.meaning) == ("Ada", "reviewed")
    assert datetime.fromisoformat(signer.at).tzinfo is not None


@pytest.mark.parametrize("half", [{"sign_as": "Ada"}, {"meaning": "reviewed"}], ids=str)
def test_half_a_signature_is_refused(service: CheckpointService, half: dict[str, str]) -> None:
    first = service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError, match="needs both"):
        service.finalize_checkpoint(ident(first), **half)
    assert service.get_checkpoint(ident(first)) == first


def test_finalizing_understands_other_words_and_refuses_nonsense(
    service: CheckpointService,
) -> None:
    first = service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError, match=r"^execution_state\.status: "):
        service.finalize_checkpoint(ident(first), status="sideways")
    assert (
        service.finalize_checkpoint(ident(first), "Completed").execution_state.status == "complete"
    )


# --- links --------------------------------------------------------------------------------------


def test_a_link_shows_as_the_parent_and_the_checkpoint_stays_what_it_was(
    service: CheckpointService,
) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    three = service.create_checkpoint("t", "a")
    service.link_checkpoints(ident(one), ident(three))
    read = service.get_checkpoint(ident(three))
    assert parent_of(read) == ident(one)
    assert read.recorded_parent == ident(two)
    assert read.revision == three.revision
    assert read.compliance.hash == three.compliance.hash
    assert read.verify_integrity()
    assert service.get_latest_checkpoint("t") == read
    assert service.get_checkpoint_history("t")[0] == read
    assert Checkpoint.from_json(read.to_json()).verify_integrity()


def test_links_from_two_parents_stand_beside_each_other_in_either_order(
    service: CheckpointService,
) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    kept = []
    for order in ((one, two), (two, one)):
        child = service.create_checkpoint("t", "a")
        for parent in order:
            service.link_checkpoints(ident(parent), ident(child))
        kept.append({row[0] for row in service.node.store.rows("links_of", (ident(child),))})
        assert parent_of(service.get_checkpoint(ident(child))) == ident(order[-1]), "the newest"
    assert kept == [{ident(one), ident(two)}] * 2


def test_a_link_set_again_is_the_newest(service: CheckpointService) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    child = service.create_checkpoint("t", "a")
    for parent in (one, two, one):
        service.link_checkpoints(ident(parent), ident(child))
    assert parent_of(service.get_checkpoint(ident(child))) == ident(one)


def test_a_finalized_checkpoint_can_be_linked_and_keeps_its_signature(
    service: CheckpointService,
) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("u", "a")
    final = service.finalize_checkpoint(ident(two))
    service.link_checkpoints(ident(one), ident(two))
    read = service.get_checkpoint(ident(two))
    assert parent_of(read) == ident(one)
    assert read.compliance == final.compliance
    assert read.verify_integrity()


def test_an_update_keeps_the_link_and_returns_what_a_read_would(
    service: CheckpointService,
) -> None:
    one, _two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    three = service.create_checkpoint("t", "a")
    service.link_checkpoints(ident(one), ident(three))
    updated = service.update_checkpoint(ident(three), {"metrics": {"error_count": 1}})
    read = service.get_checkpoint(ident(three))
    assert parent_of(read) == ident(one)
    assert read.verify_integrity()
    assert updated == read


def test_a_link_to_itself_or_in_a_foreign_task_is_refused(service: CheckpointService) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError, match="its own parent"):
        service.link_checkpoints(ident(one), ident(one))
    with pytest.raises(CheckpointNotFoundError, match="'u'"):
        service.link_checkpoints(ident(one), ident(two), "u")
    service.link_checkpoints(ident(one), ident(two), "t")


def test_a_link_that_closes_a_circle_is_refused(service: CheckpointService) -> None:
    one, two, three = (ident(service.create_checkpoint("t", "a")) for _ in range(3))
    apart, other = (ident(service.create_checkpoint("u", "a", parent=one)) for _ in range(2))
    service.link_checkpoints(three, apart)
    for parent, child in ((two, one), (three, one), (apart, two), (apart, one)):
        with pytest.raises(InvalidInputError, match=f"{child} comes before {parent} already"):
            service.link_checkpoints(parent, child)
        changes = {"recovery": {"last_successful_state": parent}}
        with pytest.raises(InvalidInputError, match="comes before"):
            service.update_checkpoint(child, changes)
    assert service.node.store.rows("links_of", (one,)) == []
    service.link_checkpoints(other, three)
    service.link_checkpoints(one, two)


def test_parents_in_a_circle_that_two_machines_made_are_followed_once(
    service: CheckpointService,
) -> None:
    one, two = (ident(service.create_checkpoint("t", "a")) for _ in range(2))
    concurrently = "INSERT INTO links VALUES (?, ?, 1 << 62, '', 0)"
    service.node.store.connection.execute(concurrently, (one, two))
    three = ident(service.create_checkpoint("u", "a"))
    service.link_checkpoints(two, three)


# --- reading ------------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_id_or_by_task_and_id(service: CheckpointService) -> None:
    written = service.create_checkpoint("t", "a")
    assert service.get_checkpoint(ident(written)) == written
    assert service.get_checkpoint("t", ident(written)) == written
    assert service.get_checkpoint(task_id="t", checkpoint_id=ident(written)) == written
    assert service.get_checkpoint(checkpoint_id=ident(written)) == written
    with pytest.raises(CheckpointNotFoundError, match="'u'"):
        service.get_checkpoint("u", ident(written))
    with pytest.raises(CheckpointNotFoundError):
        service.get_checkpoint()


def test_with_a_clock_before_1970_checkpoints_are_written_in_order(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = service.create_checkpoint("t", "a")
    monkeypatch.setattr("time.time_ns", lambda: -1)
    monkeypatch.setattr("time.time", lambda: -1e-9)
    written = [before, *(service.create_checkpoint("t", "a") for _ in range(2))]
    assert ids(service.get_checkpoint_history("t")) == ids(written)[::-1]
    assert written[-1].metadata.timestamp.startswith("1970-01-01")


def test_an_unknown_task_has_no_latest_and_no_history(service: CheckpointService) -> None:
    assert service.get_latest_checkpoint("t") is None
    assert service.get_latest_checkpoint("t", skipped=[]) is None
    assert service.get_checkpoint_history("t") == []
    assert service.get_checkpoints_by_agent("a") == []


def test_history_is_newest_first_and_ten_unless_asked(service: CheckpointService) -> None:
    written = ids([service.create_checkpoint("t", "a") for _ in range(12)])
    service.create_checkpoint("u", "a")
    newest_first = written[::-1]
    assert ids(service.get_checkpoint_history("t")) == newest_first[:10]
    assert ids(service.get_checkpoint_history("t", limit=3)) == newest_first[:3]
    assert ids(service.get_checkpoint_history("t", 100)) == newest_first
    assert service.get_checkpoint_history("t", limit=0) == []
    assert ids(service.get_checkpoint_history("t", limit=10**30)) == newest_first


@pytest.mark.parametrize("limit", [None, -1, 2.5, "3", True])
def test_a_limit_that_is_no_number_of_checkpoints_is_refused(
    service: CheckpointService, limit: Any
) -> None:
    service.create_checkpoint("t", "a")
    with pytest.raises(InvalidInputError, match="limit is") as refused:
        service.get_checkpoint_history("t", limit=limit)
    assert "limit=10" in refused.value.remedy


def test_an_update_does_not_move_a_checkpoint_in_its_history(service: CheckpointService) -> None:
    one, two = service.create_checkpoint("t", "a"), service.create_checkpoint("t", "a")
    service.update_checkpoint(ident(one), {"metrics": {"error_count": 1}})
    assert ids(service.get_checkpoint_history("t")) == [ident(two), ident(one)]
    latest = service.get_latest_checkpoint("t")
    assert latest is not None
    assert ident(latest) == ident(two)


class Hands:
    """A clock that is set by hand."""

    ms = 1_772_359_200_000  # 2026-03-01T10:00:00Z

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def timed(home: Path) -> Iterator[tuple[CheckpointService, Hands]]:
    node, hands = Node(home), Hands()
    node.store.close()
    node.store = Store(node.database, now_ms=hands)
    yield CheckpointService(node=node), hands
    node.close()


def test_a_time_range_includes_its_start_and_not_its_end(
    timed: tuple[CheckpointService, Hands],
) -> None:
    service, hands = timed
    written = []
    for _ in range(3):
        written.append(ident(service.create_checkpoint("t", "a")))
        hands.ms += 1
    service.create_checkpoint("t", "b")
    moments = [f"2026-03-01T10:00:00.{n:03}+00:00" for n in range(4)]

    def found(since: Any, until: Any) -> list[str]:
        return ids(service.get_checkpoints_by_agent("a", since, until))

    assert found(None, None) == written[::-1]
    assert found(moments[1], None) == [written[2], written[1]]
    assert found(None, moments[2]) == [written[1], written[0]]
    assert found(moments[1], moments[2]) == [written[1]]
    assert found(moments[1], moments[1]) == []
    parsed = [datetime.fromisoformat(moment) for moment in moments]
    assert found(parsed[1], parsed[2]) == [written[1]]
    assert found("2026-03-01T15:45:00.001+05:45", moments[2]) == [written[1]]
    with pytest.raises(InvalidInputError, match="ISO 8601"):
        found("yesterday", None)


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own zone is not UTC."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_elsewhere")
def test_a_moment_without_a_zone_is_utc(timed: tuple[CheckpointService, Hands]) -> None:
    service, _hands = timed
    written = service.create_checkpoint("t", "a")
    naive = datetime(2026, 3, 1, 10, 0, 0)
    for moment in (naive, naive.replace(tzinfo=UTC), "2026-03-01T10:00:00"):
        assert service.get_checkpoints_by_agent("a", since=moment) == [written]
        assert service.get_checkpoints_by_agent("a", until=moment) == []


def test_a_clock_set_back_changes_neither_order_nor_parents(
    timed: tuple[CheckpointService, Hands],
) -> None:
    service, hands = timed
    written = []
    for step in (0, -60_000, -1, 0, 5):
        hands.ms += step
        written.append(service.create_checkpoint("t", "a"))
    assert ids(service.get_checkpoint_history("t")) == ids(written)[::-1]
    assert [parent_of(c) for c in written] == ["", *ids(written)[:-1]]


def test_by_agent_finds_an_agents_checkpoints_in_all_tasks(service: CheckpointService) -> None:
    one = service.create_checkpoint("t", "a")
    two = service.create_checkpoint("u", "a")
    service.create_checkpoint("t", "b")
    assert ids(service.get_checkpoints_by_agent("a")) == [ident(two), ident(one)]


def test_a_checkpoint_handed_over_belongs_to_its_present_agent(service: CheckpointService) -> None:
    one = service.create_checkpoint("t", "ann")
    service.update_checkpoint(ident(one), {"metadata": {"agent_id": "bob"}})
    assert ids(service.get_checkpoints_by_agent("bob")) == [ident(one)]
    assert service.get_checkpoints_by_agent("ann") == []


# --- damage -------------------------------------------------------------------------------------


def tamper(service: CheckpointService, statement: str, *parameters: Any) -> None:
    """As someone with any SQLite tool would."""
    connection = sqlite3.connect(service.node.database)
    changed = connection.execute(statement, parameters).rowcount
    connection.commit()
    connection.close()
    assert changed == 1


DAMAGE = {
    "body": "UPDATE log SET body = CAST(replace(CAST(body AS TEXT), 'planning', 'complete')"
    " AS BLOB) WHERE entity_id = ?",
    "body as text": "UPDATE log SET body = '{}' WHERE entity_id = ?",
    "body cut": "UPDATE log SET body = substr(body, 1, 20) WHERE entity_id = ?",
    "body and hash": "UPDATE log SET body = x'7b7d', hash = "
    "'44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a' WHERE entity_id = ?",
    "hash": "UPDATE log SET hash = upper(hash) WHERE entity_id = ?",
    "actor": "UPDATE log SET actor = 'mallory' WHERE entity_id = ?",
    "time": "UPDATE log SET at = '2020-01-01T00:00:00.000+00:00' WHERE entity_id = ?",
    "meta": "UPDATE log SET meta = replace(meta, 'planning', 'complete') WHERE entity_id = ?",
    "meta that is no JSON": "UPDATE log SET meta = 'x' WHERE entity_id = ?",
    "operation": "UPDATE log SET op = 'finalize' WHERE entity_id = ?",
    "device": "UPDATE log SET device_seq = device_seq + 1 WHERE entity_id = ?",
    "chain": "UPDATE log SET chain = zeroblob(32) WHERE entity_id = ?",
    "previous": "UPDATE log SET previous = zeroblob(32) WHERE entity_id = ?",
    "previous as text": "UPDATE log SET previous = 'x' WHERE entity_id = ?",
    "entry removed": "DELETE FROM log WHERE entity_id = ?",
    "view status": "UPDATE checkpoints SET status = 'complete' WHERE id = ?",
    "view phase": "UPDATE checkpoints SET phase = 'complete' WHERE id = ?",
    "view tokens": "UPDATE checkpoints SET tokens = 9 WHERE id = ?",
    "view final": "UPDATE checkpoints SET final = 1 WHERE id = ?",
    "view parent": "UPDATE checkpoints SET parent_id = '' WHERE id = ?",
    "view entry": "UPDATE checkpoints SET seq = seq - 1 WHERE id = ?",
}

Call = Callable[[CheckpointService, str], object]
READS: dict[str, Call] = {
    "get": lambda service, damaged: service.get_checkpoint(damaged),
    "latest": lambda service, damaged: service.get_latest_checkpoint("t"),
    "history": lambda service, damaged: service.get_checkpoint_history("t"),
    "by agent": lambda service, damaged: service.get_checkpoints_by_agent("a"),
}
WRITES: dict[str, Call] = {
    "update": lambda service, damaged: service.update_checkpoint(damaged, {}),
    "finalize": lambda service, damaged: service.finalize_checkpoint(damaged),
    "link": lambda service, damaged: service.link_checkpoints("first", damaged),
}


@pytest.fixture
def trio(service: CheckpointService) -> list[Checkpoint]:
    """Three checkpoints of one task and agent; the last is the one to be damaged."""
    return [service.create_checkpoint("t", "a", checkpoint_id=i) for i in ("first", "2", "last")]


def problems(service: CheckpointService) -> list[tuple[str, str]]:
    """What is recorded, which is then forgotten."""
    found = [(entry_id, problem) for entry_id, problem, _at in service.node.store.rows("problems")]
    service.node.store.record_problems([], anew=True)
    return found


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_raised_by_every_read_and_recorded(
    service: CheckpointService, trio: list[Checkpoint], damage: str
) -> None:
    tamper(service, DAMAGE[damage], "last")
    for name, read in READS.items():
        with pytest.raises(CheckpointCorruptionError, match="checkpoint last, entry ") as caught:
            read(service, "last")
        error = caught.value
        # The log is what counts: a damaged view is mended from it.
        assert (error.exit_code, error.data_safe) == (5, damage.startswith("view"))
        assert problems(service) == [(error.entry_id, error.problem)], name


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_cannot_be_changed(
    service: CheckpointService, trio: list[Checkpoint], damage: str
) -> None:
    tamper(service, DAMAGE[damage], "last")
    before = service.node.store.row("counts")
    for write in WRITES.values():
        with pytest.raises(CheckpointCorruptionError, match="checkpoint last, entry "):
            write(service, "last")
    after = service.node.store.row("counts")
    assert before is not None
    assert after is not None
    assert after[:4] == before[:4], "nothing was written"


@pytest.mark.parametrize("write", WRITES)
def test_damage_met_while_writing_is_recorded_too(
    service: CheckpointService, trio: list[Checkpoint], write: str
) -> None:
    tamper(service, DAMAGE["body"], "last")
    with pytest.raises(CheckpointCorruptionError) as caught:
        WRITES[write](service, "last")
    assert problems(service) == [(caught.value.entry_id, caught.value.problem)]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_passed_over_only_when_asked_and_then_told(
    service: CheckpointService, trio: list[Checkpoint], damage: str
) -> None:
    tamper(service, DAMAGE[damage], ident(trio[2]))
    intact = trio[1::-1]
    calls: list[Callable[[list[Skipped]], list[Checkpoint]]] = [
        lambda skipped: service.get_checkpoint_history("t", skipped=skipped),
        lambda skipped: service.get_checkpoints_by_agent("a", skipped=skipped),
    ]
    for call in calls:
        skipped: list[Skipped] = []
        assert call(skipped) == intact
        ((checkpoint_id, entry_id, problem),) = skipped
        assert checkpoint_id == ident(trio[2])
        assert problems(service) == [(entry_id, problem)]


@pytest.mark.parametrize("damage", ["body", "body as text", "body cut", "view status", "hash"])
def test_the_newest_intact_one_is_found_along_the_parents(
    service: CheckpointService, trio: list[Checkpoint], damage: str
) -> None:
    for checkpoint in trio[1:]:
        tamper(service, DAMAGE[damage], ident(checkpoint))
    skipped: list[Skipped] = []
    assert service.get_latest_checkpoint("t", skipped=skipped) == trio[0]
    assert [entry.checkpoint_id for entry in skipped] == [ident(trio[2]), ident(trio[1])]


def test_the_fallback_follows_the_parents_not_the_clock(service: CheckpointService) -> None:
    good = service.create_checkpoint("t", "a")
    service.create_checkpoint("t", "a")  # a branch that was given up
    newest = service.create_checkpoint("t", "a", parent=ident(good))
    tamper(service, DAMAGE["body"], ident(newest))
    assert service.get_latest_checkpoint("t", skipped=[]) == good


def test_the_fallback_follows_a_parent_that_was_linked_later(service: CheckpointService) -> None:
    good, _other, newest = (service.create_checkpoint("t", "a") for _ in range(3))
    service.link_checkpoints(ident(good), ident(newest))
    tamper(service, "UPDATE log SET body = x'7b7d' WHERE entry_id = ?", newest.revision)
    assert service.get_latest_checkpoint("t", skipped=[]) == good


def test_when_nothing_is_intact_nothing_is_returned_and_all_is_told(
    service: CheckpointService, trio: list[Checkpoint]
) -> None:
    for checkpoint in trio:
        tamper(service, DAMAGE["body"], ident(checkpoint))
    skipped: list[Skipped] = []
    assert service.get_latest_checkpoint("t", skipped=skipped) is None
    assert [entry.checkpoint_id for entry in skipped] == ids(trio)[::-1]


def test_a_loop_of_parents_ends(service: CheckpointService, trio: list[Checkpoint]) -> None:
    for checkpoint in trio:
        tamper(service, DAMAGE["body"], ident(checkpoint))
    swap = 'UPDATE log SET meta = replace(meta, \'"parent":""\', ?) WHERE entity_id = ?'
    tamper(service, swap, f'"parent":"{ident(trio[2])}"', ident(trio[0]))
    skipped: list[Skipped] = []
    assert service.get_latest_checkpoint("t", skipped=skipped) is None
    assert len(skipped) == 3


def test_a_forged_parent_does_not_lead_into_another_task(service: CheckpointService) -> None:
    foreign = service.create_checkpoint("u", "a")
    victim = service.create_checkpoint("t", "a")
    forge = 'UPDATE log SET meta = replace(meta, \'"parent":""\', ?) WHERE entity_id = ?'
    tamper(service, forge, f'"parent":"{ident(foreign)}"', ident(victim))
    assert service.get_latest_checkpoint("t", skipped=[]) is None


def test_damage_to_one_checkpoint_leaves_the_others_readable(
    service: CheckpointService, trio: list[Checkpoint]
) -> None:
    tamper(service, DAMAGE["body"], ident(trio[0]))
    assert service.get_latest_checkpoint("t") == trio[2]
    assert service.get_checkpoint(ident(trio[1])) == trio[1]
    assert service.get_checkpoint_history("t", limit=2) == [trio[2], trio[1]]
    child = service.create_checkpoint("t", "a")
    assert parent_of(child) == ident(trio[2])


SEALED = (
    "entry_id", "device_id", "device_seq", "entity", "entity_id", "op", "bases", "hlc", "actor",
    "at", "key_id", "meta", "hash", "previous", "chain", "body",
)  # fmt: skip


def test_a_flipped_bit_in_any_column_never_reaches_a_reader(
    service: CheckpointService, trio: list[Checkpoint]
) -> None:
    """Every byte of every sealed column of one entry, one after the other."""
    target, columns = trio[1], ", ".join(SEALED)
    connection = sqlite3.connect(service.node.database, isolation_level=None)
    (seq, *values) = connection.execute(
        f"SELECT seq, {columns} FROM log WHERE entity_id = ?", (ident(target),)
    ).fetchone()
    checked = 0
    for column, value in zip(SEALED, values, strict=True):
        for changed in _flipped(value):
            connection.execute(f"UPDATE log SET {column} = ? WHERE seq = ?", (changed, seq))
            with pytest.raises(CheckpointCorruptionError):
                service.get_checkpoint(ident(target))
            checked += 1
        connection.execute(f"UPDATE log SET {column} = ? WHERE seq = ?", (value, seq))
    connection.close()
    assert checked > 300
    assert service.get_checkpoint(ident(target)) == target


def _flipped(value: Any) -> Iterator[Any]:
    if isinstance(value, int):
        yield from (value + 1, value - 1, -value, 0)
    elif isinstance(value, str):
        yield value + "x"
        for place in range(0, len(value), 3):
            yield value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
    else:
        for place in range(0, len(value), 7):
            yield value[:place] + bytes([value[place] ^ 0x20]) + value[place + 1 :]
        yield value[:-1]
        yield b""
