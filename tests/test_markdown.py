"""Markdown checkpoints: what people and agents write is understood, and nothing of it is lost."""

from __future__ import annotations

import gc
import json
import random
import time
from contextlib import suppress
from typing import Any

import pytest
from arbitrary import FRAGMENTS, checkpoints, mangled, texts
from counts import full
from hypothesis import given, settings

from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats import markdown
from syncd.formats.reading import FormatError, Reading

MINIMAL = """# Agent Checkpoint: G2_RECON

**Mission:** Find every place that checks a limit
**Status:** Completed
**Timestamp:** 2026-01-16T16:12:45

---

## Findings

Found 2 places:
1. `app/limits.py:45` - the rule
2. `app/service.py:120` - a wrapper

---

## Next Steps

1. None - reported to COORD_ENGINE
"""

COMPLEX = """# Agent Checkpoint: SCHEDULER

**Mission:** Plan Block 10 with weekly limits
**Status:** In Progress
**Checkpoint:** 2 of 3
**Timestamp:** 2026-01-16T15:00:45+01:00
**Context Used:** 75%
**Previous:** AGENT_SCHEDULER_20260116_143022.md

## Chain Summary
- Checkpoint 1: limits set up
- Checkpoint 2 (this): solver has run
- Checkpoint 3: (expected) output

---

## Progress

### Completed
- [x] Load availability
- [x] Run the solver (15 solutions)

### In Progress
- [ ] Validate the best 3

### Remaining
- [ ] Choose one
- [ ] Write it to the database

---

## State

```json
{
  "block": 10,
  "range": {"start": "2026-03-02", "end": "2026-03-29"},
  "best": [7, 3, 0.87]
}
```

---

## Findings (if applicable)

### Coverage
- Clinic: 100 %
- Nights: 100 %

### Notes on speed
Slow at first,
then fast.

---

## Blockers (if any)

| Blocker | Impact | Resolution Path |
|---------|--------|-----------------|
| No access to `a\\|b` | Cannot write | Ask the owner |
| Test data is old | | |

---

## Next Steps

1. Run the validator on 7, 3
2. Compare

---

## Escalation (if needed)

**To:** COORDINATOR
**Reason:** Two rules contradict
**Decision Needed:** Which one holds

---

## Resume Instructions

To resume:
1. Load this file

```python
## not a heading
spawn(agent="SCHEDULER")
```

---

*Checkpoint written by SCHEDULER at 2026-01-16T15:00:45+01:00*
"""

TOP = "# Agent Checkpoint: A\n\n**Mission:** m\n**Timestamp:** 2026-01-16T15:00:45Z\n"


def read(text: str, source: str = "notes.md") -> Reading:
    return markdown.read(text.encode(), source)


def section(text: str) -> Checkpoint:
    return read(f"{TOP}\n{text}").checkpoint


def content(checkpoint: Checkpoint) -> dict[str, Any]:
    body = checkpoint.body()
    del body["compliance"]
    return body


def again(checkpoint: Checkpoint) -> Checkpoint:
    return read(markdown.write(checkpoint)).checkpoint


def shown_whole(checkpoint: Checkpoint) -> bool:
    """Whether it reads as it was written, and the record adds nothing but the id."""
    written = markdown.write(checkpoint)
    block = written.rpartition("\n```json syncd\n")[2].rpartition("\n```\n")[0]
    bare = {"metadata": {"checkpoint_id": checkpoint.metadata.checkpoint_id}}
    return json.loads(block) == bare and content(read(written).checkpoint) == content(checkpoint)


# --- what is there already ----------------------------------------------------------------------


def test_the_minimal_form_is_read() -> None:
    reading = read(MINIMAL)
    checkpoint = reading.checkpoint
    assert checkpoint.metadata.agent_id == "G2_RECON"
    assert checkpoint.metadata.task_id == ""
    assert checkpoint.metadata.timestamp == "2026-01-16T16:12:45+00:00"
    assert checkpoint.execution_state.status == "complete"
    assert checkpoint.execution_state.raw == {"status": "Completed"}
    assert checkpoint.execution_state.next_steps == ["None - reported to COORD_ENGINE"]
    assert checkpoint.context_summary.findings == [
        "Found 2 places:\n1. `app/limits.py:45` - the rule\n2. `app/service.py:120` - a wrapper"
    ]
    assert reading.owner == "find-every-place-that-checks-a-limit"
    assert reading.notes == ("the time 2026-01-16T16:12:45 has no zone: read as UTC",)


def test_the_complex_form_is_read() -> None:
    reading = read(COMPLEX)
    checkpoint = reading.checkpoint
    metadata, state = checkpoint.metadata, checkpoint.execution_state
    context, recovery = checkpoint.context_summary, checkpoint.recovery
    assert (metadata.agent_id, metadata.mission) == (
        "SCHEDULER",
        "Plan Block 10 with weekly limits",
    )
    assert metadata.series is not None
    assert metadata.series.to_dict() == {"number": 2, "total": 3}
    assert metadata.timestamp == "2026-01-16T15:00:45+01:00"
    assert checkpoint.metrics.context_used_percent == 75
    assert (state.status, state.raw) == ("in_progress", {"status": "In Progress"})
    assert state.completed_items == ["Load availability", "Run the solver (15 solutions)"]
    assert str(state.current_step) == "Validate the best 3"
    assert state.pending_items == ["Choose one", "Write it to the database"]
    assert state.next_steps == ["Run the validator on 7, 3", "Compare"]
    assert content(checkpoint)["execution_state"]["blocked_items"] == [
        {
            "description": "No access to `a|b`",
            "impact": "Cannot write",
            "resolution_path": "Ask the owner",
        },
        "Test data is old",
    ]
    assert context.state == {
        "block": 10,
        "range": {"start": "2026-03-02", "end": "2026-03-29"},
        "best": [7, 3, 0.87],
    }
    assert content(checkpoint)["context_summary"]["findings"] == [
        {"category": "Coverage", "text": "Clinic: 100 %"},
        {"category": "Coverage", "text": "Nights: 100 %"},
        {"category": "Notes on speed", "text": "Slow at first,\nthen fast."},
    ]
    assert context.chain_summary[1] == "Checkpoint 2 (this): solver has run"
    assert recovery.escalation is not None
    assert recovery.escalation.to_dict() == {
        "to": "COORDINATOR",
        "reason": "Two rules contradict",
        "decision_needed": "Which one holds",
    }
    assert recovery.resume_instructions == (
        "To resume:\n1. Load this file\n\n```python\n## not a heading\n"
        'spawn(agent="SCHEDULER")\n```'
    )
    assert reading.previous == "AGENT_SCHEDULER_20260116_143022.md"
    assert reading.notes == ()
    kept = {"previous": reading.previous}
    assert checkpoint.body()["markdown"] == kept, "everything else was understood"


@pytest.mark.parametrize("text", [MINIMAL, COMPLEX])
def test_what_was_read_is_written_in_the_same_form_and_reads_the_same(text: str) -> None:
    reading = read(text)
    written = markdown.write(reading.checkpoint, previous=reading.previous)
    once_more = read(written)
    assert content(once_more.checkpoint) == content(reading.checkpoint)
    assert (once_more.owner, once_more.previous) == (reading.owner, reading.previous)
    visible = [line for line in text.splitlines() if line and not line.startswith(("|--", "---"))]
    same = [line for line in visible if line in written.splitlines()]
    assert len(same) >= len(visible) - 7, "but for the time's zone and titles with (if any)"


@pytest.mark.parametrize("text", [MINIMAL, COMPLEX])
def test_line_ends_of_another_system_and_a_byte_order_mark_change_nothing(text: str) -> None:
    other = ("\ufeff" + text.replace("\n", "\r\n")).encode()
    one, two = content(read(text).checkpoint), content(markdown.read(other, "x").checkpoint)
    del one["metadata"]["checkpoint_id"], two["metadata"]["checkpoint_id"]
    assert one == two


# --- headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("In Progress", "in_progress"),
        ("Blocked", "blocked"),
        ("Completed", "complete"),
        ("Escalated", "escalated"),
        ("✅ Completed", "complete"),
        ("Blocked - no access", "blocked"),
        ("In Progress (80 %)", "in_progress"),
    ],
)
def test_a_status_is_understood_and_kept_as_it_was_put(text: str, status: str) -> None:
    checkpoint = section("").body()
    state = read(f"{TOP}**Status:** {text}\n").checkpoint.execution_state
    assert checkpoint["execution_state"]["status"] == "in_progress"
    assert (state.status, state.raw) == (status, {"status": text})


def test_a_status_of_ours_is_written_in_the_usual_words_and_stays_canonical() -> None:
    for status, word in {"complete": "Completed", "in_progress": "In Progress"}.items():
        checkpoint = Checkpoint.from_dict({"execution_state": {"status": status}})
        assert f"\n**Status:** {word}\n" in markdown.write(checkpoint)
        assert again(checkpoint).execution_state.raw == {}


@pytest.mark.parametrize(
    ("header", "field", "value"),
    [
        ("**Checkpoint:** 2 of 3 (Final)", "metadata.series.note", "(Final)"),
        ("**Checkpoint:** 2/3", "metadata.series.total", 3),
        ("**Checkpoint:** 2", "metadata.series.number", 2),
        ("**Context Used:** ~71.5 %", "metrics.context_used_percent", 71.5),
        ("**Context used**: 0%", "metrics.context_used_percent", 0),
        ("- **Context Used:** 100%", "metrics.context_used_percent", 100),
        ("**Task:** shop@main", "metadata.task_id", "shop@main"),
        ("**Focus:** the form", "execution_state.current_focus", "the form"),
        ("**Stage:** S2", "execution_state.stage", "S2"),
        ("**Error:** boom", "execution_state.error", "boom"),
        ("**Phase:** testing", "execution_state.phase", "testing"),
    ],
)
def test_each_header_has_its_field(header: str, field: str, value: Any) -> None:
    found: Any = read(f"{TOP}{header}\n").checkpoint.body()
    for name in field.split("."):
        found = found[name]
    assert found == value


@pytest.mark.parametrize(
    "header",
    ["**Branch:** main", "**Checkpoint:** the last", "**Context Used:** much", "**Mission:** 2nd"],
)
def test_a_header_that_is_not_understood_is_kept_and_written_again(header: str) -> None:
    checkpoint = read(f"{TOP}{header}\n").checkpoint
    name, text = header.strip("*").split(":** ")
    assert checkpoint.body()["markdown"] == {"headers": [{"name": name, "text": text}]}
    assert header in markdown.write(checkpoint).splitlines()
    assert content(again(checkpoint)) == content(checkpoint)


def test_a_mission_over_several_lines_and_text_below_the_headers_are_kept() -> None:
    reading = read(TOP.replace("** m", "** one\ntwo") + "said\n\nby the way\n")
    assert reading.checkpoint.metadata.mission == "one\ntwo"
    assert reading.checkpoint.body()["markdown"] == {"preamble": "said\n\nby the way"}
    assert content(again(reading.checkpoint)) == content(reading.checkpoint)


@pytest.mark.parametrize(
    "text",
    ["AGENT_B_20260116_143022.md", "[the last](./AGENT_B_20260116_143022.md)",
     "`.claude/Scratchpad/AGENT_B_20260116_143022.md`"],
)  # fmt: skip
def test_the_file_before_is_named_without_its_path(text: str) -> None:
    assert read(f"{TOP}**Previous:** {text}\n").previous == "AGENT_B_20260116_143022.md"


@pytest.mark.parametrize("text", ["AGENT_B_20260116_143022.md", "[it](./x.md)", "none, the first"])
def test_what_a_page_says_of_the_one_before_is_kept_and_written_again(text: str) -> None:
    reading = read(f"{TOP}**Previous:** {text}\n")
    page = markdown.write(reading.checkpoint)
    assert f"**Previous:** {text}\n" in page
    assert content(read(page).checkpoint) == content(reading.checkpoint)
    other = markdown.write(reading.checkpoint, previous="AGENT_C_20260116_143022.md")
    assert "**Previous:** AGENT_C_20260116_143022.md\n" in other
    assert other.count("**Previous:**") == 1
    assert content(read(other).checkpoint) == content(reading.checkpoint)


# --- who and when -------------------------------------------------------------------------------

NAME = "AGENT_G2_RECON_20260116_161245.md"


def test_a_file_that_does_not_say_who_and_when_has_it_from_its_name() -> None:
    reading = read("# Agent Checkpoint:\n", f"some/where/{NAME}")
    assert reading.checkpoint.metadata.agent_id == "G2_RECON"
    assert reading.checkpoint.metadata.timestamp == "2026-01-16T16:12:45+00:00"
    assert reading.notes == ("the time 20260116_161245 is the file name's: read as UTC",)
    assert reading.owner == "g2-recon", "there is no mission"


def test_a_file_with_no_time_at_all_says_so() -> None:
    reading = read("# Agent Checkpoint: A\n", "AGENT_A_20261399_161245.md")
    assert reading.notes == ("no time is stated: read as written now",)


def test_the_footer_states_the_time_where_no_header_does() -> None:
    footer = "*Checkpoint written by A at 2026-01-16T15:00:45Z*"
    reading = read(f"# Agent Checkpoint: A\n\n{footer}\n", NAME)
    assert reading.checkpoint.metadata.timestamp == "2026-01-16T15:00:45Z"
    assert "markdown" not in reading.checkpoint.body()


def test_a_footer_that_says_something_else_is_kept() -> None:
    footer = "*Checkpoint written by somebody else at noon*"
    checkpoint = section(f"## Next Steps\n1. a\n\n{footer}\n")
    assert checkpoint.execution_state.next_steps == ["a"]
    assert checkpoint.body()["markdown"] == {"footer": footer}
    assert content(again(checkpoint)) == content(checkpoint)


@pytest.mark.parametrize(
    ("agent", "timestamp", "name"),
    [
        ("G2_RECON", "2026-01-16T16:12:45Z", NAME),
        ("Compliance Auditor", "2026-01-16T23:30:00-02:00",
         "AGENT_COMPLIANCE_AUDITOR_20260117_013000.md"),
        ("../é漢", "0001-01-01T00:00:00+14:00", "AGENT_E_00010101_000000.md"),
        ("", "9999-12-31T23:59:59.9-14:00", "AGENT_UNNAMED_99991231_235959.md"),
    ],
)  # fmt: skip
def test_the_name_of_a_file_is_the_agent_and_the_time_in_utc(
    agent: str, timestamp: str, name: str
) -> None:
    metadata = {"agent_id": agent, "timestamp": timestamp}
    assert markdown.file_name(Checkpoint.from_dict({"metadata": metadata})) == name
    assert markdown.is_name(name)


@pytest.mark.parametrize(
    "name", ["AGENT_a_20260116_161245.md", "AGENT__20260116_161245.md", "AGENT_A_20260116.md",
             "notes.md", "AGENT_A_20260116_161245.md~", ".AGENT_A_20260116_161245.md", ""],
)  # fmt: skip
def test_other_names_are_none(name: str) -> None:
    assert not markdown.is_name(name)


# --- sections -----------------------------------------------------------------------------------


def test_a_box_counts_more_than_the_title_above_it() -> None:
    state = section(
        "## Progress\n### Completed\n- [x] a\n- b\n- [ ] c\n### In Progress\n- [X] d\n- [ ] e\n"
        "### Remaining\n- [x] f\n- [ ] g\n"
    ).execution_state
    assert state.completed_items == ["a", "b", "d", "f"]
    assert str(state.current_step) == "e"
    assert state.pending_items == ["c", "g"]


def test_boxes_without_titles_are_done_or_not() -> None:
    state = section("## Progress\n- [x] a\n- [ ] b\n").execution_state
    assert (state.completed_items, state.pending_items) == (["a"], ["b"])


def test_of_several_things_in_progress_one_is_the_current_step_and_none_is_lost() -> None:
    checkpoint = section("## Progress\n### In Progress\n- [ ] a\n- [ ] b\n### Remaining\n- [ ] c\n")
    state = content(checkpoint)["execution_state"]
    assert state["current_step"] == {"description": "a"}
    assert state["pending_items"] == [{"step": "b", "in_progress": True}, "c"]
    assert content(again(checkpoint)) == content(checkpoint)


def test_what_is_indented_below_an_item_belongs_to_it() -> None:
    state = section(
        "## Next Steps\n1. a\n   - b\n\n     c\n2. d\ngoes on\n\n"
        "A paragraph\n```\nx\n\ny\n```\n* e\n"
    ).execution_state
    assert state.next_steps == ["a\n- b\n\n  c", "d\ngoes on", "A paragraph\n```\nx\n\ny\n```", "e"]


@pytest.mark.parametrize("word", ["None", "- none.", "1. N/A", "(none)", "-", "---", ""])
def test_a_list_that_says_that_it_is_empty_is_empty(word: str) -> None:
    for title in ("Next Steps", "Blockers", "Findings", "Decisions", "Progress\n### Remaining"):
        state = section(f"## {title}\n\n{word}\n")
        assert content(state)["execution_state"] == content(section(""))["execution_state"]
        assert content(state)["context_summary"] == content(section(""))["context_summary"]


def test_an_item_whose_text_is_none_is_one() -> None:
    checkpoint = Checkpoint.from_dict({"execution_state": {"completed_items": ["None"]}})
    assert again(checkpoint).execution_state.completed_items == ["None"]


def test_a_table_may_have_other_columns_and_blockers_may_be_a_list() -> None:
    checkpoint = section(
        "## Blockers\n| Blocker | Severity | Resolved by |\n|:--|---|--:|\n| a | high | Ann |\n"
        "| None | | |\n| b | | | surplus |\n\n- c\n"
    )
    assert content(checkpoint)["execution_state"]["blocked_items"] == [
        {"description": "a", "Severity": "high", "resolved_by": "Ann"},
        {"description": "b", "resolved_by": "| surplus"},
        "c",
    ]
    assert content(again(checkpoint)) == content(checkpoint)


def test_a_table_without_titles_has_the_usual_columns() -> None:
    checkpoint = section("## Blockers\n| a | b | c |\n|\n| - | - |\n")
    assert content(checkpoint)["execution_state"]["blocked_items"] == [
        {"description": "a", "impact": "b", "resolution_path": "c"},
        {"description": "-", "impact": "-"},
    ]


def test_a_blocker_that_looks_like_the_line_below_the_titles_is_one() -> None:
    blocker = {"description": "--", "impact": ":--", "resolution_path": ":--:"}
    checkpoint = Checkpoint.from_dict({"execution_state": {"blocked_items": ["a", blocker]}})
    assert shown_whole(checkpoint)


@pytest.mark.parametrize(
    "text",
    [
        "## Notes\n\nfree *text*\n\n### with more\n- a",
        "## Progress\n\n### Skipped\n- [ ] a",
        "## Progress\n\nHalf way through.",
        "## State\n\nSee the database.",
        "## Escalation\n\nNot yet.",
        "## Record\n\nof the meeting",
        "## Notes\n\n```sh\n## a comment\n\nls\n```",
    ],
)
def test_a_section_that_is_not_understood_is_kept_and_written_again(text: str) -> None:
    checkpoint = section(f"{text}\n\n---\n\n## Next Steps\n1. a\n")
    title, _, body = text.removeprefix("## ").partition("\n\n")
    assert checkpoint.body()["markdown"] == {"sections": [{"title": title, "text": body}]}
    assert checkpoint.execution_state.next_steps == ["a"]
    written = markdown.write(checkpoint)
    assert f"\n{text}\n" in written
    assert content(read(written).checkpoint) == content(checkpoint)


def test_the_second_of_what_there_is_only_one_of_is_kept() -> None:
    checkpoint = section(
        '## State\n```json\n{"a": 1}\n```\nbeside\n## State\n```json\n{"b": 2}\n```\n'
        "## Resume Instructions\none\n## Resume Instructions\ntwo\n## Escalation\n**To:** x\n"
        "**To:** y\n"
    )
    assert checkpoint.context_summary.state == {"a": 1}
    assert checkpoint.recovery.resume_instructions == "one"
    assert checkpoint.recovery.escalation is None
    kept = [item["text"] for item in checkpoint.body()["markdown"]["sections"]]
    assert kept == ["beside", '```json\n{"b": 2}\n```', "two", "**To:** x\n**To:** y"]
    assert content(again(checkpoint)) == content(checkpoint)


def test_quotes_that_somebody_typed_remain() -> None:
    texts = ['"Hello"', '"a" and "b"', '"', '""a""', '"a \\\\ b"']
    lines = "\n".join(f"- {text}" for text in texts)
    assert section(f"## Next Steps\n{lines}\n").execution_state.next_steps == texts


def test_a_code_block_without_an_end_is_told() -> None:
    reading = read(f"{TOP}\n## Notes\n```\n## Next Steps\n1. a\n")
    assert reading.notes == ("the code block that begins in line 7 has no end",)
    assert content(again(reading.checkpoint)) == content(reading.checkpoint)


# --- what is written ----------------------------------------------------------------------------


def test_a_person_reads_texts_as_they_are() -> None:
    steps = ["plain", "with `code` | bars, *stars* and “quotes”", "# 1", "two\nlines\n\n- and more"]
    checkpoint = Checkpoint.from_dict({"execution_state": {"completed_items": steps}})
    lines = markdown.write(checkpoint).split("### Completed\n")[1].split("\n\n---")[0]
    assert lines == (
        "- [x] plain\n- [x] with `code` | bars, *stars* and “quotes”\n- [x] # 1\n"
        "- [x] two\n  lines\n\n  - and more"
    )


def test_details_stand_below_their_item_and_move_with_it() -> None:
    steps = [{"step": "a", "files_created": ["x.py"]}, "b", {"step": "c"}]
    checkpoint = Checkpoint.from_dict({"execution_state": {"completed_items": steps}})
    written = markdown.write(checkpoint)
    first, second = '- [x] a\n  - details: {"files_created": ["x.py"]}\n', "- [x] b\n"
    assert first + second in written
    moved = read(written.replace(first + second, second + first.replace("a\n", "A\n"))).checkpoint
    assert content(moved)["execution_state"]["completed_items"] == [
        "b",
        {"step": "A", "files_created": ["x.py"]},
        {"step": "c"},
    ]


def test_an_edit_of_the_page_wins_over_the_record() -> None:
    document = {
        "metadata": {"mission": "old", "agent_type": "qa", "series": {"number": 1, "total": 2}},
        "execution_state": {"completed_items": ["a", "b"], "status": "blocked", "error": "boom"},
        "recovery": {"escalation": {"to": "Ann", "x": 1}},
    }
    checkpoint = Checkpoint.from_dict(document)
    written = markdown.write(checkpoint)
    for old, new in {
        "** old": "** new",
        "- [x] a\n": "",
        "** Blocked": "** Completed",
        "1 of 2": "2 of 2",
        "**To:** Ann": "**To:** Bob",
        "**Error:** boom\n": "",
    }.items():
        assert old in written
        written = written.replace(old, new)
    edited = read(written).checkpoint.body()
    assert edited["metadata"]["mission"] == "new"
    assert edited["metadata"]["agent_type"] == "qa"
    assert edited["metadata"]["checkpoint_id"] == checkpoint.metadata.checkpoint_id
    assert edited["metadata"]["series"] == {"number": 2, "total": 2}
    assert edited["execution_state"]["completed_items"] == ["b"]
    assert edited["execution_state"]["status"] == "complete"
    assert "error" not in edited["execution_state"]
    assert edited["recovery"]["escalation"]["to"] == "Bob"
    assert edited["recovery"]["escalation"]["x"] == 1


def test_the_record_repeats_nothing_that_the_page_says() -> None:
    written = markdown.write(read(COMPLEX).checkpoint)
    record = written.partition("## Record")[2]
    for text in ("Plan Block", "Load availability", "Clinic", "COORDINATOR", "2026-03-02", "Ask"):
        assert written.count(text) == 1
        assert text not in record


def test_what_cannot_be_stored_is_not_written() -> None:
    for value in ("\ud800", float("nan"), 2**53 + 1):
        checkpoint = Checkpoint().amended(
            context_summary=Checkpoint().context_summary.amended(state={"a": value})
        )
        with pytest.raises(InvalidInputError):
            markdown.write(checkpoint)


AWKWARD = (
    *FRAGMENTS, "a\n- details: {}", 'a\n- details: {"step": "b"}', "```\nopen", "a\n~~~~\n## b",
    "```\n## a\n```", "a\n\n---", "---\na", "a\n## b", "a\n### b", "#### a\nb", "  a", "a ",
    "a \nb", "\na", "a\n", "--", ":-:", "---:", "a\\", "a\\|", '"a"', '"\\n"', '"a\n"', "- a\n- b",
    "1. a\nb", "| --- | --- | --- |", "*Checkpoint written by A at B*\n", "x" * 100_000,
    "é\u2028漢\x85😀\x1c",
)  # fmt: skip


@pytest.mark.parametrize("text", AWKWARD, ids=[repr(text)[:30] for text in AWKWARD])
def test_a_text_that_could_be_misread_is_safe_in_every_place(text: str) -> None:
    blocker = {"description": text, "impact": text, "resolution_path": text}
    checkpoint = Checkpoint.from_dict(
        {
            "metadata": {"agent_id": text, "mission": text, "task_id": text},
            "execution_state": {
                "completed_items": [text, {"step": text}, {"step": text, "notes": text}],
                "current_step": {"description": text},
                "pending_items": [text],
                "blocked_items": [blocker, text, {"description": text}, blocker | {text: text}],
                "next_steps": [text] * 11,
                "current_focus": text,
            },
            "context_summary": {
                "findings": [text, {"text": text, "category": text}, {"text": text}, text],
                "key_decisions": [text, {"decision": text, "rationale": text}],
                "state": {text: [text]},
            },
            "recovery": {"resume_instructions": text, "escalation": {"to": text, "reason": text}},
        }
    )
    assert shown_whole(checkpoint)


@settings(max_examples=full(60, 10_000))
@given(checkpoints)
def test_any_checkpoint_reads_as_it_was_written(checkpoint: Checkpoint) -> None:
    assert content(again(checkpoint)) == content(checkpoint)


@given(texts)
def test_any_file_before_is_named_as_it_was_written(name: str) -> None:
    reading = read(markdown.write(Checkpoint(), previous=name))
    assert reading.previous == name or "AGENT_" in name


# --- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "the title"),
        ("\n\n## Notes\n", 3, "the title"),
        ("# Agent Checkpoint Protocol\n", 1, "the title"),
        (f"{TOP}**Status:** Sideways\n", 5, "a status: In Progress, Waiting, Blocked"),
        (TOP.replace("2026-01", "yesterday"), 4, "ISO 8601"),
        (f"{TOP}**Checkpoint:** 0 of 3\n", 5, "greater than or equal to 1"),
        (f"{TOP}**Context Used:** 101%\n", 5, "less than or equal to 100"),
        (f'{TOP}## State\n\n```json\n{{\n  "a": 1,\n}}\n```\n', 10, "expected JSON; not valid"),
        (f"{TOP}## State\n```json\n[1]\n```\n", 7, "a JSON object"),
        (f'{TOP}## State\n```json\n{{"a": 1, "a": 2}}\n```\n', 7, "stands twice"),
        (f'{TOP}## State\n```json\n{{"a": NaN}}\n```\n', 7, "NaN"),
        (f"{TOP}## Record\n\n```json syncd\n{{\n```\n", 8, "expected JSON"),
        (f'{TOP}## Record\n```json syncd\n{{"metrics": 1}}\n```\n', 5, "metrics"),
        (f'{TOP}## Progress\n### Completed\n- a\n  - details: {{"notes": 1}}\n', 6, "completed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, expected: str) -> None:
    with pytest.raises(FormatError, match=expected) as caught:
        read(text, "here.md")
    assert (caught.value.source, caught.value.line) == ("here.md", line)


def test_bytes_that_are_no_text_are_said_with_their_line() -> None:
    with pytest.raises(FormatError, match="line 4: expected UTF-8"):
        markdown.read(TOP.encode().replace(b"45Z", b"\xff"), "here.md")


def test_whatever_the_bytes_a_file_is_read_and_read_back_or_refused() -> None:
    chance = random.Random(7)
    written = markdown.write(read(COMPLEX).checkpoint)
    samples = [text.encode() for text in (MINIMAL, COMPLEX, written)]
    refused, count = 0, full(1_500, 50_000)
    for number in range(count):
        try:
            checkpoint = markdown.read(mangled(chance, samples), NAME).checkpoint
        except FormatError:
            refused += 1
            continue
        if number % 10 == 0:
            assert content(again(checkpoint)) == content(checkpoint)
    assert 0.1 < refused / count < 0.9


@pytest.mark.proof
@pytest.mark.parametrize(
    "text",
    ["- [x] a\n", "### x\n", "## x\n", "**a:** b\n", "b\n", "|a", "\\|", "|---|\n", '"', '\\"',
     "```\n", "`", " ", "\n", "**", "*Checkpoint written by ", " at ", '{"a":', "AGENT_", "!", "9"],
)  # fmt: skip
def test_a_large_file_takes_no_longer_than_its_size_explains(text: str) -> None:
    """Ten times the size is given thirty times the time; what is quadratic takes a hundred."""
    for place in ("**Status:** ", "## Progress\n### Completed\n", "## Blockers\n|", "## State\n"):
        small, large = (
            _seconds(f"{TOP}{place}{text * (n // len(text))}") for n in (20_000, 200_000)
        )
        assert large < 30 * small + 0.5


def _seconds(text: str) -> float:
    """Without that of a look for garbage, which comes by chance."""
    gc.disable()
    began = time.process_time()
    with suppress(FormatError):
        read(text)
    taken = time.process_time() - began
    gc.enable()
    return taken
