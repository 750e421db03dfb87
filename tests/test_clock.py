from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from syncd import clock

COUNTER = 2**16
MS = st.integers(0, 2**47)
READINGS = st.integers(0, 2**62)


@given(READINGS, st.lists(MS, min_size=1, max_size=50))
def test_readings_strictly_increase_whatever_the_wall_clock_does(
    last: int, walls: list[int]
) -> None:
    for wall in walls:
        reading = clock.tick(last, wall)
        assert reading > last
        assert clock.milliseconds(reading) >= wall
        last = reading


@given(MS)
def test_a_clock_that_moved_on_gives_its_own_millisecond_and_a_fresh_counter(wall: int) -> None:
    earlier = clock.tick(0, wall)
    assert clock.tick(earlier, wall + 1) == (wall + 1) * COUNTER


def test_readings_within_one_millisecond_count_up() -> None:
    first = clock.tick(0, 1_000)
    second = clock.tick(first, 1_000)
    assert (first, second) == (1_000 * COUNTER, 1_000 * COUNTER + 1)


def test_a_clock_set_back_goes_on_from_the_last_reading() -> None:
    assert clock.tick(2_000 * COUNTER + 7, 1_000) == 2_000 * COUNTER + 8


def test_a_full_counter_borrows_the_next_millisecond() -> None:
    full = 1_000 * COUNTER + COUNTER - 1
    assert clock.tick(full, 1_000) == 1_001 * COUNTER
    assert clock.milliseconds(clock.tick(full, 1_000)) == 1_001


@given(READINGS, READINGS, MS)
def test_after_observing_another_device_the_next_reading_is_later_than_both(
    own: int, seen: int, wall: int
) -> None:
    met = clock.observe(own, seen)
    assert met in (own, seen)
    assert clock.tick(met, wall) > max(own, seen)


def test_a_clock_before_1970_is_taken_for_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: -86_400_000_000_001)
    assert clock.wall_ms() == 0
    assert clock.tick(7, clock.wall_ms()) == 8


# To the end of 2105; 2038 begins a stretch in which seconds times 1000 round badly.
@given(st.integers(0, 4_291_747_199_999))
@example(1_073_741_824_001)
@example(2_147_483_648_002)
def test_a_moment_and_its_reading_name_the_same_millisecond(ms: int) -> None:
    moment = datetime.fromisoformat(clock.iso(ms))
    reading = clock.reading_at(moment)
    assert clock.milliseconds(reading) == ms
    assert reading == ms * COUNTER, "the smallest reading of its millisecond"


def test_the_reading_of_a_moment_does_not_depend_on_its_zone() -> None:
    moment = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert clock.reading_at(elsewhere) == clock.reading_at(moment) == 1_774_744_200_000 * COUNTER


def test_a_time_is_written_in_utc_with_milliseconds() -> None:
    assert clock.iso(1_774_744_200_007) == "2026-03-29T00:30:00.007+00:00"
    assert clock.iso(0) == "1970-01-01T00:00:00.000+00:00"


def test_the_wall_clock_counts_milliseconds_since_1970() -> None:
    before = datetime.now(UTC).timestamp() * 1000
    assert before - 1 <= clock.wall_ms() <= datetime.now(UTC).timestamp() * 1000


@pytest.mark.parametrize("reading", [0, 1, COUNTER - 1, COUNTER, 5 * COUNTER + 3])
def test_the_counter_is_no_part_of_the_milliseconds(reading: int) -> None:
    assert clock.milliseconds(reading) == reading // COUNTER
