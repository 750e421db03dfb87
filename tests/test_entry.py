from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from syncd import entry
from syncd.entry import HEADER_FIELDS, Entry, Version, header_bytes, heads, uuid7, winner

# --- ids ----------------------------------------------------------------------------------------


def test_an_id_is_a_uuid_of_version_7() -> None:
    for text in [uuid7() for _ in range(1_000)]:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122


def test_an_id_carries_the_milliseconds_of_its_making() -> None:
    before = time.time_ns() // 1_000_000
    milliseconds = uuid.UUID(uuid7()).int >> 80
    assert before <= milliseconds <= time.time_ns() // 1_000_000


def test_an_id_that_is_made_before_1970_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: -1)
    parsed = uuid.UUID(uuid7())
    assert (parsed.version, parsed.int >> 80) == (7, 0)


def test_ids_made_one_after_the_other_sort_in_that_order() -> None:
    made = []
    for _ in range(500):
        made.append(uuid7())
        time.sleep(0.000_01)
    assert made == sorted(made)


def test_ids_made_as_fast_as_can_be_differ() -> None:
    assert len({uuid7() for _ in range(10_000)}) == 10_000


def test_every_one_of_the_62_random_bits_varies() -> None:
    low = [uuid.UUID(uuid7()).int for _ in range(500)]
    varied = 0
    for value in low:
        varied |= value ^ low[0]
    assert varied & (2**62 - 1) == 2**62 - 1


FORK = """
import os
from syncd.entry import uuid7
uuid7()
child = os.fork()
os.write(1, uuid7().encode() + b"\\n")
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_child_makes_other_ids() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    own, other = done.stdout.split()
    assert own[20:] != other[20:]


# --- the header ---------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(
    '",[]\\ 1', max_size=4
)
NUMBER = st.integers(0, 2**63 - 1) | st.integers(0, 12)
HEADERS = st.tuples(*(NUMBER if name in ("device_seq", "hlc") else TEXT for name in HEADER_FIELDS))


@given(HEADERS, HEADERS)
def test_different_headers_give_different_bytes(one: tuple[object], other: tuple[object]) -> None:
    assert (header_bytes(one) == header_bytes(other)) == (one == other)


@given(HEADERS, st.data())
def test_moving_a_character_between_neighbours_changes_the_bytes(
    header: tuple[object, ...], data: st.DataObject
) -> None:
    """What plain concatenation would not notice."""
    texts = [str(field) for field in header]
    place = data.draw(st.sampled_from([i for i in range(11) if texts[i]] or [0]))
    moved = texts.copy()
    moved[place], moved[place + 1] = texts[place][:-1], texts[place][-1:] + texts[place + 1]
    assert (header_bytes(moved) == header_bytes(texts)) == (moved == texts)


def test_a_header_is_an_array_of_texts_in_the_order_of_the_format() -> None:
    values = {name: f"<{name}>" for name in Entry._fields}
    entry = Entry(**values)  # type: ignore[arg-type]
    assert orjson.loads(entry.header()) == [
        "<entry_id>", "<device_id>", "<device_seq>", "<entity>", "<entity_id>", "<op>",
        "<bases>", "<hlc>", "<actor>", "<at>", "<key_id>", "<meta>",
    ]  # fmt: skip
    assert Entry._fields[1:13] == HEADER_FIELDS


# --- heads and winner ---------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[Version]:
    """Versions of one entity by several devices, each based on what its device had seen.

    Devices write on top of any set of earlier versions, final ones included, which is what
    arrives after a time without a connection. Times tie often.
    """
    count = draw(st.integers(1, 12))
    versions: list[Version] = []
    for number in range(count):
        seen = draw(st.lists(st.sampled_from(versions), max_size=3, unique=True)) if number else []
        versions.append(
            Version(
                entry_id=f"e{draw(st.integers(0, 99)):02}-{number}",
                bases=tuple(version.entry_id for version in seen),
                final=draw(st.integers(0, 4)) == 0,
                effective_hlc=draw(st.integers(1, 4)),
                device_id=draw(st.sampled_from("ABC")),
                hash=draw(st.sampled_from("xyz")),
            )
        )
    return versions


def oracle_heads(versions: Sequence[Version]) -> set[str]:
    """By the definition, one version at a time, knowing nothing of the implementation."""
    result = set()
    for candidate in versions:
        replaced = False
        for other in versions:
            if candidate.entry_id in other.bases and not candidate.final:
                replaced = True
        if not replaced:
            result.add(candidate.entry_id)
    return result


def oracle_winner(versions: Sequence[Version]) -> str:
    """A tournament: final beats open, later beats earlier, then device, then id."""
    best = None
    for v in versions:
        if v.entry_id not in oracle_heads(versions):
            continue
        if best is None or _beats(v, best):
            best = v
    assert best is not None
    return best.entry_id


def _beats(one: Version, other: Version) -> bool:
    if one.final != other.final:
        return one.final
    if one.effective_hlc != other.effective_hlc:
        return one.effective_hlc > other.effective_hlc
    if one.device_id != other.device_id:
        return one.device_id > other.device_id
    return one.entry_id > other.entry_id


def ids(versions: Sequence[Version]) -> set[str]:
    return {version.entry_id for version in versions}


@given(histories())
def test_heads_and_winner_are_those_of_the_definition(history: list[Version]) -> None:
    assert ids(heads(history)) == oracle_heads(history)
    assert winner(heads(history)).entry_id == oracle_winner(history)


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(
    history: list[Version], chance: random.Random
) -> None:
    shuffled = chance.sample(history, len(history))
    assert ids(heads(shuffled)) == ids(heads(history))
    assert winner(heads(shuffled)) == winner(heads(history))
    assert winner(reversed(heads(history))) == winner(heads(history))


@given(histories())
def test_a_final_version_stays_a_head_whatever_comes_after_it(history: list[Version]) -> None:
    final = ids([version for version in history if version.final])
    assert final <= ids(heads(history))
    if final:
        assert winner(heads(history)).entry_id in final


@given(histories())
def test_once_final_the_winner_can_only_give_way_to_another_final_one(
    history: list[Version],
) -> None:
    for length in range(1, len(history)):
        before, after = winner(heads(history[:length])), winner(heads(history[: length + 1]))
        if before.final and after != before:
            assert after.final
            assert _beats(after, before)


@given(histories())
def test_every_version_that_is_no_head_is_the_base_of_another(history: list[Version]) -> None:
    named = {base for version in history for base in version.bases}
    assert ids(history) - ids(heads(history)) <= named
    assert heads(history), "there is always one"


def version(
    entry_id: str, *bases: str, final: bool = False, hlc: int = 1, device: str = "A"
) -> Version:
    return Version(entry_id, bases, final, hlc, device, "")


def test_concurrent_updates_leave_two_heads_and_the_later_one_wins() -> None:
    base, ours, theirs = (
        version("1"),
        version("2", "1", hlc=2),
        version("3", "1", hlc=3, device="B"),
    )
    assert heads([base, ours, theirs]) == [ours, theirs]
    assert winner([ours, theirs]) == theirs


def test_a_merge_closes_the_heads_that_it_names() -> None:
    base, ours, theirs = version("1"), version("2", "1"), version("3", "1", device="B")
    merge = version("4", "2", "3")
    assert heads([base, ours, theirs, merge]) == [merge]


def test_a_finalization_wins_over_a_later_concurrent_update() -> None:
    base, final = version("1"), version("2", "1", final=True, hlc=2)
    update = version("3", "1", hlc=9, device="B")
    assert winner(heads([base, final, update])) == final


def test_an_entry_based_on_a_final_one_does_not_replace_it() -> None:
    final, later = version("1", final=True), version("2", "1", hlc=9)
    assert heads([final, later]) == [final, later]
    assert winner(heads([final, later])) == final


def test_a_base_that_has_not_arrived_yet_changes_nothing() -> None:
    alone = version("2", "1")
    assert heads([alone]) == [alone]


def test_every_kind_of_entry_is_listed() -> None:
    """Each kind is a name of the module of its own, and so are few other words."""
    others = {entry.CREATE, entry.UPDATE, entry.FINALIZE, entry.ACKNOWLEDGE, entry.RELEASE}
    words = {value for name, value in vars(entry).items() if name.isupper() if type(value) is str}
    assert words - others == set(entry.KINDS)
