"""Who holds a task follows from the claims alone, in whatever order they came to be known."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncd.entry import CREATE, LEASE, RELEASE
from syncd.fold import VersionRow
from syncd.leases import FOREVER, Fence, Worker, fences, standing

ANN, BOB, CAT = ("ann", "here"), ("bob", "there"), ("cat", "elsewhere")


def row(
    entry_id: str, meta: dict[str, Any], device: str, fence: int, hlc: int, op: str = CREATE,
    bases: tuple[str, ...] = (),
) -> VersionRow:  # fmt: skip
    base_text = orjson.dumps(bases).decode()
    return VersionRow(hlc, entry_id, device, LEASE, "task", op, base_text, f"at {hlc}", "", "hash",
                      hlc, fence, 0, 0, meta)  # fmt: skip


def claim(
    holder: Worker, giver: Worker = ANN, *, fence: int = 0, hlc: int = 100, subject: str = "h"
) -> VersionRow:
    meta = {"subject": subject, "holder": holder[0], "giver": giver[0], "giver_device": giver[1]}
    return row(f"claim of {holder[0]} at {hlc}", meta, holder[1], fence, hlc)


def release(of: VersionRow, hlc: int) -> VersionRow:
    return row(f"release of {of.entry_id}", of.meta, of.device_id, 0, hlc, RELEASE, (of.entry_id,))


def holders(*rows: VersionRow) -> list[str]:
    return [found.holder[0] for found in standing(rows)]


# --- who holds it ---------------------------------------------------------------------------------


def test_of_two_claims_to_the_same_the_lower_number_at_the_replica_holds() -> None:
    early_by_the_clock = claim(BOB, fence=8, hlc=100)
    assert holders(early_by_the_clock, claim(CAT, fence=7, hlc=200)) == ["cat"]


def test_what_the_replica_has_comes_before_what_it_does_not_have() -> None:
    assert holders(claim(BOB, hlc=100), claim(CAT, fence=9, hlc=200)) == ["cat"]


def test_without_the_replicas_word_the_earlier_one_holds_provisionally() -> None:
    [held] = standing([claim(BOB, hlc=101), claim(CAT, hlc=100)])
    assert held.holder == CAT
    assert held.fence == 0


def test_claims_to_different_things_follow_each_other() -> None:
    later = claim(CAT, BOB, fence=9, hlc=50, subject="another")
    assert holders(later, claim(BOB, fence=7)) == ["bob", "cat"]


def test_a_claim_that_was_released_does_not_count() -> None:
    first = claim(BOB, fence=7)
    assert holders(first, release(first, 150), claim(CAT, fence=8)) == ["cat"]
    assert holders(first, release(first, 150)) == []


@given(st.data())
def test_the_order_of_arrival_does_not_matter(data: st.DataObject) -> None:
    workers = st.sampled_from([ANN, BOB, CAT])
    made = [
        claim(data.draw(workers), data.draw(workers), fence=data.draw(st.integers(0, 4)),
              hlc=number, subject=data.draw(st.sampled_from("ab")))
        for number in range(1, data.draw(st.integers(1, 5)))
    ]  # fmt: skip
    made += [release(found, 50 + n) for n, found in enumerate(made) if data.draw(st.booleans())]
    shuffled = data.draw(st.permutations(made))
    assert standing(made) == standing(shuffled)
    assert sorted(fences(made)) == sorted(fences(shuffled))


# --- who no longer does ---------------------------------------------------------------------------


def test_whoever_gave_it_away_is_fenced_off_from_the_moment_it_was_taken() -> None:
    assert fences([claim(BOB, ANN, fence=1, hlc=100)]) == [Fence(ANN, 100, FOREVER)]


def test_whoever_takes_it_back_may_go_on() -> None:
    there = claim(BOB, ANN, fence=1, hlc=100)
    back = claim(ANN, BOB, fence=2, hlc=200, subject="back")
    assert sorted(fences([there, back])) == [Fence(ANN, 100, 200), Fence(BOB, 200, FOREVER)]


def test_who_held_it_before_is_fenced_off_whoever_is_named_as_the_giver() -> None:
    first = claim(BOB, ANN, fence=1, hlc=100)
    takeover = claim(CAT, ANN, fence=2, hlc=200, subject="checkpoint")
    assert sorted(fences([first, takeover])) == [Fence(ANN, 100, FOREVER), Fence(BOB, 200, FOREVER)]


def test_an_agent_that_hands_over_to_itself_is_not_fenced_off() -> None:
    assert fences([claim(ANN, ANN, fence=1)]) == []


def test_the_same_name_on_another_device_is_another_worker() -> None:
    here, there = ("claude", "laptop"), ("claude", "desktop")
    assert fences([claim(there, here, fence=1, hlc=100)]) == [Fence(here, 100, FOREVER)]


def test_a_provisional_holder_that_turns_out_second_is_fenced_off_from_its_claim_on() -> None:
    lost = claim(BOB, fence=9, hlc=100)
    assert Fence(BOB, 100, FOREVER) in fences([lost, claim(CAT, fence=8, hlc=300)])


def test_one_that_knows_and_let_go_is_not() -> None:
    lost = claim(BOB, fence=9, hlc=100)
    found = fences([lost, release(lost, 110), claim(CAT, fence=8, hlc=90)])
    assert found == [Fence(ANN, 90, FOREVER)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_three_in_a_row_leave_only_the_last(order: tuple[int, ...]) -> None:
    made = [
        claim(BOB, ANN, fence=1, hlc=100, subject="a"),
        claim(CAT, BOB, fence=2, hlc=200, subject="b"),
        claim(ANN, CAT, fence=3, hlc=300, subject="c"),
    ]
    found = {fence.worker: fence for fence in fences([made[number] for number in order])}
    assert found[ANN] == Fence(ANN, 100, 300)
    assert {w for w, fence in found.items() if fence.until == FOREVER} == {BOB, CAT}
