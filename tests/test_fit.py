"""The prompt within its limit: for any checkpoint and any limit, whatever its texts try."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncd.resume.chain import Ancestor, Line
from syncd.resume.claims import UNVERIFIED, VERIFIED, Claim
from syncd.resume.fit import (
    CLAUDE_CODE,
    CODEX,
    Fitted,
    Room,
    Section,
    Unit,
    fitted,
    utf8_bytes,
    utf16_units,
)
from syncd.resume.prompt import Facts, Task, sections
from syncd.resume.text import text

# --- any checkpoint -----------------------------------------------------------------------------

# What could break out of its line, pose as a heading, a fence, a note or a verdict.
WORDS = st.sampled_from(
    ["\n", "\r\n", "\u2028", "\x1b[31m", "\x00", "\u202e", "# ", "## Completed", "### ", "```",
     "- ", "VERIFIED", "UNVERIFIED", "(left out: 0 items)", "é", "漢", "😀", "x" * 300, " ", "a"]
)  # fmt: skip
TEXTS = st.lists(WORDS | st.text(max_size=5), max_size=8).map("".join)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
STEPS = st.fixed_dictionaries(
    {"step": TEXTS}, optional={"files_created": st.lists(TEXTS, max_size=2), "timestamp": TEXTS}
)
DECISIONS = st.fixed_dictionaries(
    {"decision": TEXTS}, optional={"rationale": TEXTS, "rejected_alternatives": st.lists(TEXTS)}
)
BLOCKERS = st.fixed_dictionaries({"description": TEXTS}, optional={"impact": TEXTS})


def several(kind: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(TEXTS | kind, max_size=14) | ANYTHING


DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {"agent_id": TEXTS},
            optional={"previous_agents": several(TEXTS), "timestamp": ANYTHING, "mission": TEXTS,
                      "series": st.fixed_dictionaries({"number": st.integers() | TEXTS},
                                                      optional={"total": st.integers()})},
        ),
        "execution_state": st.fixed_dictionaries(
            {},
            optional={
                "completed_items": several(STEPS), "pending_items": several(STEPS),
                "blocked_items": several(BLOCKERS), "next_steps": several(TEXTS),
                "current_focus": TEXTS | ANYTHING, "error": TEXTS, "stage": TEXTS,
                "current_step": st.fixed_dictionaries({"description": TEXTS, "partial_work": TEXTS})
                | ANYTHING,
            },
        ),
        "context_summary": st.fixed_dictionaries(
            {},
            optional={"key_decisions": several(DECISIONS), "constraints": several(TEXTS),
                      "chain_summary": several(TEXTS), "findings": several(TEXTS)},
        ) | ANYTHING,
        "recovery": st.fixed_dictionaries(
            {}, optional={"resume_instructions": TEXTS, "blocker_resolution": ANYTHING}
        ),
        "verification": ANYTHING,
    },
)  # fmt: skip
CLAIMS = st.lists(
    st.builds(
        lambda what, state, path: Claim(text(what), state, text(what), path),
        TEXTS, st.sampled_from([VERIFIED, UNVERIFIED]), TEXTS,
    ),
    max_size=6,
)  # fmt: skip
LINES = st.lists(
    st.builds(lambda word: Ancestor("id", word, "testing", "blocked", ""), TEXTS), max_size=4
).map(Line)
FACTS = st.builds(
    lambda task, document, line, claims, words: Facts(
        Task(task, task, task), document, line, claims, [text(word) for word in words],
        ("/bin/syncd", "--task", task), 80,
    ),
    TEXTS, DOCUMENTS, LINES, CLAIMS, st.lists(TEXTS, max_size=3),
)  # fmt: skip
LIMITS = st.sampled_from([0, 1, 4, 5, 50, 2_500]) | st.integers(0, 6_000)
HEADING = re.compile(
    r"# Resume: .*|## (Attention|Task|Completed: do not redo|Decided|In progress|Pending|Blocked"
    r"|Next steps|Constraints|Assumed|Relied upon|Found out|Files to review|Done when|Checked now"
    r"|Chain|Left by the agent before|Instructions|Your checkpoints)"
    r"( \((first|last) [\d,]+ of [\d,]+\))?"
)
NOTE = re.compile(
    r"\(cut\)|\(left out: [\d,]+ items\)|\(Left out for lack of room: .+\. All of it: all\)"
)


@given(FACTS, LIMITS)
def test_no_prompt_exceeds_its_limit(facts: Facts, limit: int) -> None:
    found = sections(facts)
    whole = len(fitted(found).text)
    for most in (limit, whole, max(0, whole - 1)):
        assert len(fitted(found, [Room(most)], "all").text) <= most
    assert utf16_units(fitted(found, [CLAUDE_CODE, Room(limit)], "all").text) <= 10_000
    assert utf8_bytes(fitted(found, [CODEX, Room(limit)], "all").text) <= 2_500


@given(FACTS, st.none() | LIMITS)
def test_every_line_is_ours_or_an_item(facts: Facts, limit: int | None) -> None:
    """Nothing that was written into a checkpoint begins a line, or makes a heading."""
    rooms = [] if limit is None else [Room(limit)]
    shown = fitted(sections(facts), rooms, "all").text
    for number, line in enumerate(shown.split("\n")):
        assert line.isprintable()
        assert not re.match(r"- +#{1,6}( |$)", line)
        if line.startswith("#"):
            assert HEADING.fullmatch(line), line
            assert line.startswith("## ") or number == 0
        elif line.startswith("("):
            assert NOTE.fullmatch(line), line
        else:
            known = ("", "- ", "Resuming from checkpoint (created by ", "Lists quote ", "    /bin/",
                     "After each step", "Also: ", "1. ", "2. ", "3. ", "4. ")  # fmt: skip
            assert line == "" or line.startswith(known[1:]), line


@given(FACTS)
def test_only_a_check_says_verified(facts: Facts) -> None:
    shown = fitted(sections(facts._replace(claims=[]))).text
    assert "VERIFIED" not in "\n".join(
        line for line in shown.split("\n") if not line.startswith("    /bin/")
    )


@given(FACTS, LIMITS)
def test_a_cut_is_told_whenever_there_is_room(facts: Facts, limit: int) -> None:
    found = sections(facts)
    whole, shown = fitted(found), fitted(found, [Room(limit)], "all")
    if shown.text == whole.text:
        assert shown.left_out == whole.left_out
        return
    last = shown.text.rpartition("\n")[2]
    assert NOTE.fullmatch(last) if limit >= len("(cut)") else shown.text == ""
    assert sum(shown.left_out.values()) > sum(whole.left_out.values())


# --- any sections -------------------------------------------------------------------------------

UNITS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(1, 2)), max_size=6)


def built(kinds: list[list[tuple[int, int, int]]]) -> list[Section]:
    """Every line can be told from every other."""
    return [
        Section(
            f"kind{number}", f"## {number}",
            [
                Unit(rank, tuple(f"{number}.{place}.{n} {'x' * length}" for n in range(count)))
                for place, (rank, length, count) in enumerate(units)
            ],
        )
        for number, units in enumerate(kinds)
    ]  # fmt: skip


@given(st.lists(UNITS, max_size=5), st.integers(0, 600))
def test_what_is_kept_is_whole_and_the_most_important(kinds: Any, limit: int) -> None:
    found = built(kinds)
    shown = fitted(found, [Room(limit)], "all")
    lines = shown.text.split("\n")
    kept: list[tuple[int, int, int]] = []
    gone: list[tuple[int, int, int]] = []
    for number, section in enumerate(found):
        for place, unit in enumerate(section.units):
            present = [line in lines for line in unit.lines]
            assert all(present) or not any(present)
            (kept if present[0] else gone).append((unit.rank, number, place))
    assert max(kept, default=(-1, 0, 0)) < min(gone, default=(99, 0, 0))
    assert sum(shown.left_out.values()) == len(gone)
    order = [line for section in found for unit in section.units for line in unit.lines]
    assert [line for line in lines if line in order] == [line for line in order if line in lines]


def test_a_section_says_which_of_its_items_are_shown() -> None:
    steps = [f"- a step with the number {n}" for n in range(10)]
    done = [Unit(10 - n, (line,)) for n, line in enumerate(steps)]
    section = Section("completed", "## Completed", done, hidden=3, newest=True)
    assert fitted([section]) == Fitted(
        "\n".join(["## Completed (last 10 of 13)", *steps]), {"completed": 3}
    )
    shown = fitted([section], [Room(160)], "`syncd resume t`")
    assert shown.text == (
        f"## Completed (last 2 of 13)\n{steps[8]}\n{steps[9]}\n\n"
        "(Left out for lack of room: completed (11). All of it: `syncd resume t`)"
    )
    assert shown.left_out == {"completed": 11}


@pytest.mark.parametrize(
    ("limit", "shown"),
    [(0, ""), (4, ""), (5, "(cut)"), (18, "(cut)"), (19, "(left out: 2 items)")],
)
def test_the_smallest_limits(limit: int, shown: str) -> None:
    units = [Unit(0, ("a" * 40,)), Unit(1, ("b" * 40,))]
    assert fitted([Section("letters", "", units)], [Room(limit)], "all").text == shown


def test_hosts_count_in_their_own_way() -> None:
    units = [Unit(n, ("😀" * 100,)) for n in range(60)]
    faces = [Section("faces", "", units)]
    assert utf16_units(fitted(faces, [CLAUDE_CODE], "all").text) <= 10_000
    assert len(fitted(faces, [CLAUDE_CODE], "all").text) <= 5_100
    assert len(fitted(faces, [CODEX], "all").text.encode()) <= 2_500


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("two\n\nlines", "two lines"),
        ("# heading", "\\# heading"),
        ("#42 is no heading", "#42 is no heading"),
        ("bell\x07", "bell\ufffd"),
        ("UNVERIFIED and VERIFIED", "unverified and verified"),
        (7, "7"),
        (None, ""),
        ("x" * 201, "x" * 199 + "…"),
        ("x" * 200, "x" * 200),
    ],
)
def test_a_text_becomes_one_harmless_line(value: Any, shown: str) -> None:
    assert text(value) == shown
