"""The benchmark's arithmetic, and a run of it that is small but complete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import lines
from bench.disk import CALM_IN_A_ROW, wait_until_calm
from bench.figures import Figures, compared, percentile, ratio, summary
from bench.growth import LINES, Fill, Growth
from bench.measure import Operation, interleaved, repeated, turn
from bench.results import Comparison, Results
from bench.settings import Settings
from bench.startup import StartUp
from bench.verdict import verdicts

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([3, 1, 2], 50, 2),
        ([4, 3, 2, 1], 50, 2),
        (range(1, 101), 99, 99),
        (range(1, 101), 100, 100),
        (range(1, 1001), 99, 990),
        ([1, 1, 1, 1000], 99, 1000),
    ],
)
def test_a_percentile_is_the_value_of_nearest_rank(
    values: list[int], percent: float, expected: int
) -> None:
    assert percentile(list(values), percent) == expected


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101)])
def test_a_percentile_that_has_no_meaning_is_refused(values: list[int], percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def test_a_summary_is_in_milliseconds() -> None:
    assert summary([2_000_000, 1_000_000, 3_000_000]) == Figures(3, 1.0, 2.0, 3.0)


def test_a_ratio_is_value_to_reference() -> None:
    assert ratio(3.0, 2.0) == 1.5
    with pytest.raises(ValueError, match="above zero"):
        ratio(1.0, 0.0)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.001, "as fast as"),
        (1.25, "25 % SLOWER than"),
        (0.75, "25 % faster than"),
        (3.0, "SLOWER, 3.0 times the time of"),
    ],
)
def test_a_ratio_in_words_says_who_is_slower(times: float, words: str) -> None:
    assert compared(times) == words


def test_everybody_begins_a_round_equally_often() -> None:
    operations = [Operation(name, repeated(None), id) for name in "abc"]
    firsts = [turn(operations, number)[0].name for number in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]


def test_every_operation_is_timed_as_often_as_asked() -> None:
    operations = [Operation(name, repeated(None), id) for name in "ab"]
    found = interleaved(operations, samples=25)
    assert {name: figures.samples for name, figures in found.items()} == {"a": 30, "b": 30}


QUIET, BUSY = Figures(100, 0.13, 0.15, 0.4), Figures(100, 0.2, 4.0, 8.0)


def test_one_quiet_moment_of_a_busy_machine_is_not_rest() -> None:
    probes = iter([BUSY, QUIET, BUSY, *[QUIET] * CALM_IN_A_ROW, BUSY])
    wait_until_calm(lambda: next(probes), 60, pause=lambda _: None)
    assert list(probes) == [BUSY]


def test_patience_with_a_busy_machine_ends() -> None:
    assert wait_until_calm(lambda: BUSY, 60, pause=lambda _: None) == 60


def results(raw: Figures, control: Figures) -> Results:
    """A run in which create takes half a millisecond more than a raw commit, and put 0.05."""
    extra = {lines.RAW_WRITE: 0.0, lines.PUT: 0.05, lines.CREATE: 0.5}
    found = {name: raw._replace(p50=raw.p50 + extra.get(name, 0.1)) for name in lines.REFERENCES}
    pair = (control, control)
    grown = Growth((Fill(1, 1.0, 1), Fill(2, 1.0, 1)), dict.fromkeys(LINES, pair), control)
    settings = Settings(1, 2, 0, 0.0, quick=True)
    small = Comparison("1.5 KB", 1536, found)
    return Results(settings, [small], grown, StartUp({}, "not here"), {})


def words(found: Results) -> dict[str, str]:
    return {verdict.claim: verdict.word for verdict in verdicts(found)}


def test_a_slow_create_fails_on_a_quiet_machine() -> None:
    found = words(results(QUIET, QUIET))
    assert found["create p50 at 1.5 KB to LangGraph put"] == "FAIL"
    assert found["create p50 with 2 entries to 1"] == "PASS"


def test_a_busy_machine_does_not_turn_a_slow_create_into_a_pass() -> None:
    busy = results(BUSY, QUIET)
    assert busy.comparisons[0].to_langgraph(lines.CREATE) < 1.2
    assert words(busy)["create p50 at 1.5 KB to LangGraph put"] == "NOT MEASURED"


def test_growth_beside_busy_programs_is_not_judged() -> None:
    found = words(results(QUIET, BUSY))
    assert found["create p50 with 2 entries to 1"] == "NOT MEASURED"
    assert found["create p50 at 1.5 KB to LangGraph put"] == "FAIL"


def test_a_quick_run_leaves_its_results_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip(
        "langgraph.checkpoint.sqlite", reason="needs the extra: pip install .[bench]"
    )
    pytest.importorskip("matplotlib", reason="needs the extra: pip install .[bench]")
    command = [sys.executable, "-m", "bench", "--quick", "--samples", "10", "--entries", "1500"]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["bench.json", "bench.png"]
    document = json.loads((out / "bench.json").read_text())
    small = document["comparisons"][0]
    assert small["body_bytes"] == pytest.approx(1536, rel=0.1)
    create = small["operations"]["syncd create"]
    assert create["p50_ms"] <= create["p99_ms"]
    assert {verdict["verdict"] for verdict in document["must_hold"]} <= {
        "PASS",
        "FAIL",
        "NOT MEASURED",
    }
    assert "Must hold" in done.stdout
