"""The circuit breaker: every step of a table, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncd.breaker import CLOSED, HALF_OPEN, OPEN, Breaker

CAP = 60.0


@pytest.mark.parametrize(
    ("before", "now", "after", "blocks"),
    [
        (Breaker(), 0.0, CLOSED, False),
        (Breaker(), 1e9, CLOSED, False),
        (Breaker(OPEN, 1, 10.0), 0.0, OPEN, True),
        (Breaker(OPEN, 1, 10.0), 9.999, OPEN, True),
        (Breaker(OPEN, 1, 10.0), 10.0, HALF_OPEN, False),
        (Breaker(OPEN, 1, 10.0), 1e9, HALF_OPEN, False),
        (Breaker(HALF_OPEN, 1, 10.0), 0.0, HALF_OPEN, False),
    ],
)
def test_what_is_open_lets_one_attempt_through_once_its_time_has_come(
    before: Breaker, now: float, after: str, blocks: bool
) -> None:
    asked = before.asked(now)
    assert (asked.state, asked.blocks) == (after, blocks)
    assert (asked.failures, asked.retry_at) == (before.failures, before.retry_at)


@pytest.mark.parametrize(
    ("failures", "chance", "waits"),
    [
        (0, 1.0, 1.0), (1, 1.0, 2.0), (2, 1.0, 4.0), (5, 1.0, 32.0), (6, 1.0, CAP), (7, 1.0, CAP),
        (10_000, 1.0, CAP), (0, 0.0, 0.0), (3, 0.0, 0.0), (0, 0.5, 0.5), (3, 0.5, 4.0),
        (10_000, 0.5, CAP / 2),
    ],
)  # fmt: skip
def test_each_failure_doubles_the_longest_pause_up_to_the_cap(
    failures: int, chance: float, waits: float
) -> None:
    for state in (CLOSED, HALF_OPEN, OPEN):
        failed = Breaker(state, failures, 7.0).failed(100.0, chance, CAP)
        assert failed == Breaker(OPEN, failures + 1, 100.0 + waits)


def test_the_attempt_of_one_that_is_half_open_decides() -> None:
    half = Breaker().failed(0.0, 1.0, CAP).asked(1.0)
    assert half == Breaker(HALF_OPEN, 1, 1.0)
    again = half.failed(1.0, 1.0, CAP)
    assert again == Breaker(OPEN, 2, 3.0)
    assert Breaker().failed(9.0, 1.0, CAP).retry_at == 10.0  # what succeeds begins anew


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Breaker(), Breaker()),
        (Breaker(OPEN, 4, 1e9), Breaker(HALF_OPEN, 4, 1e9)),
        (Breaker(HALF_OPEN, 4, 5.0), Breaker(HALF_OPEN, 4, 5.0)),
    ],
)
def test_one_that_is_hurried_tries_at_once_and_forgets_no_failure(
    before: Breaker, after: Breaker
) -> None:
    assert before.hurried() == after
    assert not after.blocks


@given(
    failures=st.integers(0, 10**6),
    chance=st.floats(0, 1),
    cap=st.floats(0.001, 1e6),
    now=st.floats(0, 1e6),
)
def test_no_pause_is_longer_than_the_cap_or_ends_before_it_began(
    failures: int, chance: float, cap: float, now: float
) -> None:
    failed = Breaker(OPEN, failures, 0.0).failed(now, chance, cap)
    assert failed.blocks
    assert now <= failed.retry_at <= now + cap


@given(steps=st.lists(st.sampled_from(["fail", "ask", "hurry", "wait"]), max_size=60))
def test_whatever_happens_an_attempt_is_never_more_than_the_cap_away(steps: list[str]) -> None:
    breaker, now = Breaker(), 0.0
    for step in steps:
        if step == "fail":
            breaker = breaker.failed(now, 1.0, CAP)
        elif step == "ask":
            breaker = breaker.asked(now)
        elif step == "hurry":
            breaker = breaker.hurried()
        else:
            now += 7.0
        assert not breaker.asked(now + CAP).blocks
