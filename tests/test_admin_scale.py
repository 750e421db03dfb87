"""The admin queries over a long history: none reads what it need not, and none takes long."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from counts import full
from histories import generate
from postgres import Session
from replicas import Cloud, Person, cloud_on

from syncd.replica.queries import Asked, Queries
from syncd.sql import admin_queries

ENTRIES, TASKS = full((20_000, 100), (1_000_000, 2_000))
SECONDS = 1.0
# Each has a row per entry, or per task, or could have; the others have one per machine or person.
LARGE = {"log", "checkpoints", "conflicts", "costs", "tasks", "messages", "growth"}


class Long(NamedTuple):
    cloud: Cloud
    member: Person
    auditor: Person


@pytest.fixture(scope="module", params=["15", "18"])
def long(postgres: Session, request: pytest.FixtureRequest) -> Iterator[Long]:
    """One organization of many entries beside one of few."""
    with cloud_on(postgres.shared(request.param)) as cloud:
        organization = cloud.organization()
        generate(cloud, organization, ENTRIES, TASKS)
        generate(cloud, cloud.organization(), 2_000, 20)
        # As a running server does by itself.
        cloud.sql("VACUUM (ANALYZE)")
        member, auditor = (
            cloud.person(organization, kind=kind, greet=False) for kind in ("member", "auditor")
        )
        yield Long(cloud, member, auditor)


def question(name: str) -> Asked:
    """As a user would ask it: segments are those of one task."""
    return Asked(name, equal={"task_id": "task-7"} if name == "segments" else {})


def scans(plan: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """How each table is read."""
    if "Relation Name" in plan:
        yield plan["Node Type"], plan["Relation Name"]
    for part in plan.get("Plans", []):
        yield from scans(part)


@pytest.mark.parametrize("name", admin_queries())
def test_a_member_reads_large_tables_through_their_indexes(long: Long, name: str) -> None:
    condition = " WHERE task_id = 'task-7'" if name == "segments" else ""
    [[plans]] = long.member.plain.execute(
        f"EXPLAIN (FORMAT JSON) SELECT * FROM syncd.admin_{name}{condition}".encode()
    ).fetchall()
    read = list(scans(plans[0]["Plan"]))
    assert read
    assert [table for how, table in read if how == "Seq Scan" and table in LARGE] == []


@pytest.mark.parametrize("name", admin_queries())
def test_no_part_of_a_query_is_done_again_for_each_row(long: Long, name: str) -> None:
    """Whatever is asked for each row of another is found through an index, a few rows at a time:
    together, no more rows are looked at than a few for each that there is."""
    condition = " WHERE task_id = 'task-7'" if name == "segments" else ""
    lines = long.member.plain.execute(
        f"EXPLAIN (ANALYZE, TIMING off) SELECT * FROM syncd.admin_{name}{condition}".encode()
    ).fetchall()
    looked_at = sum(
        float(rows) * int(loops)
        for (line,) in lines
        for rows, loops in re.findall(r"actual rows=([\d.]+) loops=(\d+)", line)
    )
    assert looked_at < 12 * ENTRIES + 10_000


def test_every_query_answers_in_time(long: Long) -> None:
    """For each kind of login; the best of three, as other tests run beside this one."""
    logins = {"member": long.member.login.dsn, "auditor": long.auditor.login.dsn,
              "administrator": long.cloud.cluster.admin_dsn(long.cloud.database)}  # fmt: skip
    taken = {}
    for who, dsn in logins.items():
        replica = Queries(dsn)
        for name in admin_queries():
            times = []
            for _ in range(3):
                start = time.perf_counter()
                replica.ask(question(name))
                times.append(time.perf_counter() - start)
            taken[who, name] = min(times)
        replica.close()
    print({key: f"{seconds:.3f} s" for key, seconds in taken.items()})
    assert {key: seconds for key, seconds in taken.items() if seconds > SECONDS} == {}


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
