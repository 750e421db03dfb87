"""The admin queries over a long history: none reads what it need not, and none takes long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest
from counts import full
from histories import crowd, generate
from postgres import Session
from replicas import Cloud, Person, cloud_on

from syncd.replica.queries import Asked, Queries
from syncd.sql import admin_queries

ENTRIES, TASKS = full((20_000, 100), (1_000_000, 2_000))
SECONDS = 1.0
# What is not larger may as well be read as a whole.
PAGES = 100


class Long(NamedTuple):
    cloud: Cloud
    member: Person
    auditor: Person


@pytest.fixture(scope="module", params=["15", "18"])
def long(postgres: Session, request: pytest.FixtureRequest) -> Iterator[Long]:
    """One organization of many entries beside many of few."""
    with cloud_on(postgres.shared(request.param)) as cloud:
        organization = cloud.organization()
        generate(cloud, organization, ENTRIES, TASKS)
        crowd(cloud, 200)
        # As a running server does by itself.
        cloud.sql("VACUUM (ANALYZE)")
        member, auditor = (
            cloud.person(organization, kind=kind, greet=False) for kind in ("member", "auditor")
        )
        yield Long(cloud, member, auditor)


# As a user would ask: segments are those of one task.
ONE_TASK = {"segments": {"task_id": "task-7"}}


def asked(name: str) -> str:
    conditions = [f"{column} = '{value}'" for column, value in ONE_TASK.get(name, {}).items()]
    return f"SELECT * FROM syncd.admin_{name} WHERE {' AND '.join(conditions) or 'true'}"


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """How each table is read."""
    if "Relation Name" in plan:
        yield plan["Node Type"], plan["Relation Name"]
    for part in plan.get("Plans", []):
        yield from scans(part)


@pytest.mark.parametrize("name", admin_queries())
def test_a_member_reads_large_tables_through_their_indexes(long: Long, name: str) -> None:
    [[plans]] = long.member.plain.execute(
        f"EXPLAIN (FORMAT JSON) {asked(name)}".encode()
    ).fetchall()
    read = list(scans(plans[0]["Plan"]))
    assert read
    assert {table for how, table in read if how == "Seq Scan"} & _large(long.cloud) == set()


def _large(cloud: Cloud) -> set[str]:
    found = cloud.sql(
        "SELECT relname FROM pg_class WHERE relnamespace = 'syncd'::regnamespace AND relkind = 'r' "
        "AND relpages > %s",
        PAGES,
    )
    return {row[0] for row in found}


@pytest.mark.parametrize("name", admin_queries())
def test_no_part_of_a_query_is_done_again_for_each_row(long: Long, name: str) -> None:
    """What is looked up for each row is found through an index: together no more is read than a
    few rows for each entry that there is, whatever the planner thinks of the figures."""
    for reader in (long.member.plain, long.cloud.admin.connection):
        [[plans]] = reader.execute(
            f"EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {asked(name)}".encode()
        ).fetchall()
        assert sum(looked_at(plans[0]["Plan"])) < 10 * ENTRIES + 50_000


def looked_at(plan: dict[str, Any]) -> Iterator[float]:
    """How many rows each part has read, those that it left out included."""
    removed = sum(plan.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Join Filter"))
    yield (plan["Actual Rows"] + removed) * plan["Actual Loops"]
    for part in plan.get("Plans", []):
        yield from looked_at(part)


@pytest.mark.skipif(ENTRIES < 1_000_000, reason="says something for a long history only")
def test_every_query_answers_in_time(long: Long, capsys: pytest.CaptureFixture[str]) -> None:
    """For each kind of login; the best of five, as other tests run beside this one."""
    logins = {"member": long.member.login.dsn, "auditor": long.auditor.login.dsn,
              "administrator": long.cloud.cluster.admin_dsn(long.cloud.database)}  # fmt: skip
    taken = {
        (who, name): min(seconds(dsn, name) for _ in range(5))
        for who, dsn in logins.items()
        for name in admin_queries()
    }
    with capsys.disabled():
        print(f"\n{ENTRIES:,} entries:", {k: f"{v:.3f} s" for k, v in taken.items()})
    assert {key: found for key, found in taken.items() if found > SECONDS} == {}


def seconds(dsn: str, name: str) -> float:
    with closing(Queries(dsn)) as replica:
        start = time.perf_counter()
        replica.ask(Asked(name, equal=ONE_TASK.get(name, {}), limit=200))
        return time.perf_counter() - start


def test_the_figures_are_those_of_the_tables(long: Long) -> None:
    with psycopg.connect(long.member.login.dsn) as connection:
        [costs] = connection.execute("SELECT sum(tokens), sum(checkpoints) FROM syncd.admin_cost")
        [tasks] = connection.execute("SELECT count(*), sum(forks) FROM syncd.admin_tasks")
        [days] = connection.execute("SELECT sum(entries) FROM syncd.admin_days")
        audit = connection.execute("SELECT DISTINCT state FROM syncd.admin_audit").fetchall()
        counted = connection.execute("""
          SELECT (SELECT sum(tokens) FROM syncd.checkpoints),
            (SELECT count(*) FROM syncd.checkpoints),
            (SELECT count(*) FROM syncd.conflicts WHERE kind = 'fork' AND state = 'open'),
            (SELECT count(*) FROM syncd.log)
        """).fetchone()
    assert counted == (costs[0], costs[1], tasks[1], days[0])
    assert tasks[0] == TASKS
    assert audit == [("whole",)]
