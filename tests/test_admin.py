"""What administrators ask: the figures of known histories, and who may see them.

The histories are made by real devices through real exchanges; what the queries say is compared with
what the devices themselves say.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from devices import Device, Team, cloud, crew
from machines import Machine, runner
from machines import Team as Machines
from machines import team as machines
from postgres import Cluster
from psycopg import errors
from replicas import Cloud

from syncd import clock, conflicts, fold, offering, offers, retention, tasks
from syncd.errors import CheckpointNotFoundError, ReplicaError, UsageError
from syncd.offering import Wish
from syncd.offers import Taker
from syncd.replica import Seen
from syncd.replica.administration import Administration
from syncd.replica.queries import Asked, Queries
from syncd.sql import admin_queries, postgres_steps
from syncd.version import __version__
from syncd.vocabulary import CheckpointStatus, ExecutionPhase, HandoffTrigger

__all__ = ["cloud", "crew", "machines", "runner"]
MINUTE_MS = 60_000
Row = dict[str, Any]


def asked(dsn: str, name: str, **which: Any) -> list[Row]:
    with closing(Queries(dsn)) as replica:
        found = replica.ask(Asked(name, **which))
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def of(crew: Team, name: str, **which: Any) -> list[Row]:
    """As a device of the organization sees it."""
    return asked(crew.devices[0].dsn, name, **which)


def wrote(device: Device, task: str, agent: str = "ann", **changes: Any) -> str:
    tokens, seconds = changes.pop("tokens", 0), changes.pop("seconds", 0)
    made = device.service.create_checkpoint(
        task_id=task, agent_id=agent, agent_type=changes.pop("agent_type", "implementation"),
        metrics={"tokens_consumed": tokens, "duration_seconds": seconds},
        execution_state={"phase": "implementing", **changes},
    )  # fmt: skip
    return str(made.metadata.checkpoint_id)


# --- cost ---------------------------------------------------------------------------------------


def total(crew: Team) -> list[tuple[Any, ...]]:
    """What the sums say, and what the checkpoints add up to."""
    kept = crew.sql("""
      SELECT task_id, agent_id, agent_type, day::text, checkpoints, tokens,
        round(seconds::numeric, 3)
      FROM syncd.costs WHERE checkpoints <> 0 AND organization_id = %s ORDER BY 1, 2, 3, 4
    """)
    counted = crew.sql("""
      SELECT task_id, agent_id, agent_type, syncd.day_of(hlc)::text, count(*), sum(tokens),
        round(coalesce(sum(syncd.seconds(checkpoint_data)), 0)::numeric, 3)
      FROM syncd.checkpoints WHERE organization_id = %s GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    """)
    assert kept == counted
    return kept


@pytest.fixture
def worked(crew: Team) -> tuple[Device, Device]:
    """Two machines, two tasks, three agents."""
    one, two = crew.device(), crew.device()
    wrote(one, "alpha", tokens=100, seconds=1.5)
    wrote(one, "alpha", "bob", tokens=30, seconds=60, agent_type="testing")
    wrote(one, "alpha", tokens=7)
    wrote(two, "beta", "cleo", tokens=1_000, seconds=3_600)
    crew.settle()
    return one, two


def test_costs_are_what_the_devices_say(crew: Team, worked: tuple[Device, Device]) -> None:
    total(crew)
    for task in ("alpha", "beta"):
        local = tasks.show(worked[1].node, task)["cost"]
        [row] = of(crew, "cost", by="task_id", equal={"task_id": task})
        assert (row["tokens"], row["checkpoints"]) == (local["tokens"], local["checkpoints"])
        agents = of(crew, "cost", by="agent_id", equal={"task_id": task})
        assert {r["agent_id"]: r["tokens"] for r in agents} == {
            a["agent_id"]: a["tokens"] for a in local["agents"]
        }
    assert [(r["agent_type"], r["tokens"]) for r in of(crew, "cost", by="agent_type")] == [
        ("implementation", 1_107), ("testing", 30),
    ]  # fmt: skip
    [day] = of(crew, "cost", by="day")
    assert (day["tokens"], day["checkpoints"], day["seconds"]) == (1_137, 4, 3_661.5)


def test_segments_are_those_of_the_device(crew: Team, worked: tuple[Device, Device]) -> None:
    local = tasks.segments(worked[0].node, "alpha")
    found = of(crew, "segments", equal={"task_id": "alpha"})
    assert (
        [(r["agent_id"], r["checkpoints"], r["tokens"]) for r in found]
        == [(s["agent_id"], s["checkpoints"], s["tokens"]) for s in local]
        == [("ann", 1, 100), ("bob", 1, 30), ("ann", 1, 7)]
    )
    assert [r["segment"] for r in found] == [1, 2, 3]


def test_costs_follow_every_change(crew: Team) -> None:
    """Versions that lose and win, restored ones, finalized ones, another parent."""
    one, two = crew.device(), crew.device()
    first = wrote(one, "alpha", tokens=5, seconds=2)
    crew.settle()
    one.service.update_checkpoint(first, {"metrics": {"tokens_consumed": 50}})
    two.service.update_checkpoint(first, {"metrics": {"tokens_consumed": 70}})
    wrote(two, "alpha", "bob", tokens=3)
    crew.settle()
    assert total(crew)[0][5] in (50, 70)
    for conflict in one.rows("SELECT id FROM conflicts WHERE state = 'open' AND kind = 'version'"):
        conflicts.restore(one.node, conflict[0])
    crew.settle()
    total(crew)
    one.service.finalize_checkpoint(first, status="complete")
    crew.settle()
    assert [row[:3] for row in total(crew)] == [
        ("alpha", "ann", "implementation"), ("alpha", "bob", "implementation"),
    ]  # fmt: skip
    [found] = of(crew, "cost", by="task_id")
    assert found["tokens"] == tasks.show(one.node, "alpha")["cost"]["tokens"]


def test_a_purge_takes_the_content_and_leaves_the_cost(crew: Team) -> None:
    device = crew.device()
    kept = wrote(device, "alpha", tokens=5, seconds=9)
    retention.erase(device.node, kept)
    wrote(device, "alpha", tokens=1)
    crew.settle()
    retention.erase(device.node, wrote_before(crew, device))
    crew.settle()
    [row] = of(crew, "cost", by="task_id")
    assert (row["tokens"], row["seconds"], row["checkpoints"]) == (26, 30, 3)
    assert of(crew, "days")[0]["purged_bytes"] > 0


def wrote_before(crew: Team, device: Device) -> str:
    made = wrote(device, "alpha", tokens=20, seconds=30)
    crew.settle()
    return made


@pytest.mark.parametrize("said", ['"soon"', "1e400", "-5", "null", "{}", "[1]", "true"])
def test_no_duration_that_somebody_claims_stops_the_exchange(cloud: Cloud, said: str) -> None:
    person = cloud.person()
    body = f'{{"metrics":{{"duration_seconds":{said}}}}}'.encode()
    entry = person.writer.create("alpha", body, tokens=2**63 - 1)
    more = person.writer.create("alpha", body, tokens=2**63 - 1, hlc=-(2**62))
    assert [v.verdict for v in person.push(entry, more)] == ["accepted"] * 2
    found = asked(person.login.dsn, "cost", by="task_id")
    assert found[0]["tokens"] >= 2**62
    for name in admin_queries():
        asked(person.login.dsn, name)


def test_names_too_long_for_an_index_are_no_reason_to_refuse(cloud: Cloud) -> None:
    person = cloud.person()
    names = {"agent": "a" * 2_000, "agent_type": "b" * 5_000}
    entry = person.writer.create("t" * 2_000, **names)
    assert person.push(entry)[0].verdict == "accepted"
    [row] = asked(person.login.dsn, "cost")
    assert (len(row["task_id"]), len(row["agent_id"]), len(row["agent_type"])) == (2000, 2000, 5000)


# --- fleet --------------------------------------------------------------------------------------


def test_the_fleet_tells_how_each_machine_is_doing(crew: Team) -> None:
    ahead, quiet = crew.device(skew_ms=90_000), crew.device()
    for device in (ahead, quiet):
        device.sync()
    for _ in range(3):
        wrote(ahead, "alpha")
    ahead.sync()
    wrote(quiet, "beta")
    quiet.sync(push=False, pull=False)
    found = {row["device_id"].hex: row for row in of(crew, "fleet")}
    one, two = (found[device.node.store.device_id.replace("-", "")] for device in (ahead, quiet))
    assert (one["version"], one["behind"], one["pending"]) == (__version__, 0, 0)
    assert (two["behind"], two["pending"], two["state"]) == (3, 1, "sending")
    assert (one["state"], one["entries"], one["member"]) == ("current", 3, "member")
    assert abs(two["skew_ms"]) < 5_000
    quiet.sync()
    found = {row["device_id"].hex: row for row in of(crew, "fleet")}
    one, two = (found[device.node.store.device_id.replace("-", "")] for device in (ahead, quiet))
    assert (one["behind"], one["state"]) == (1, "behind")
    assert (two["behind"], two["state"]) == (0, "current")


def test_a_device_is_not_behind_its_own_entries(crew: Team) -> None:
    device = crew.device()
    device.sync()
    for _ in range(3):
        wrote(device, "alpha")
        device.sync(pull=False)
    [found] = of(crew, "fleet")
    assert (found["behind"], found["state"]) == (0, "current")


def test_a_task_without_checkpoints_has_cost_nothing(crew: Team) -> None:
    device = crew.device()
    tasks.add(device.node, "planned", title="Planned")
    device.sync()
    [found] = of(crew, "tasks")
    assert (found["task_id"], found["tokens"], found["last_at"]) == ("planned", 0, None)


def test_the_fleet_tells_how_far_a_clock_is_off(
    crew: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, wall = crew.device(), clock.wall_ms
    monkeypatch.setattr("syncd.clock.wall_ms", lambda: wall() - 3_600_000)
    device.sync()
    [row] = of(crew, "fleet")
    assert -3_605_000 < row["skew_ms"] < -3_595_000


def test_revoked_and_unused_machines_are_in_the_fleet(crew: Team) -> None:
    crew.device().sync()
    admin = crew.cloud.admin
    admin.add_machine(crew.organization_id, "member", "in its box")
    lost = crew.device()
    lost.sync()
    [role] = [m.login for m in admin.machines(crew.organization_id) if m.name == "machine 1 1"]
    admin.revoke_machine(crew.organization_id, role, "left on a train")
    found = {row["machine"]: row for row in of(crew, "fleet")}
    assert found["in its box"]["state"] == "unused"
    assert found["machine 1 1"]["state"] == "revoked"
    assert found["machine 1 1"]["revoked_because"] == "left on a train"
    assert found["first"]["revoked_at"] is None


# --- tasks --------------------------------------------------------------------------------------


def test_tasks_tell_their_state_their_head_and_why_they_wait(crew: Team) -> None:
    device = crew.device()
    going = wrote(device, "going", tokens=4)
    wrote(
        device, "stuck", status="blocked", blocked_items=["no licence", {"description": "no key"}]
    )
    wrote(device, "broken", status="failed", error="it exploded")
    wrote(device, "asked")
    tasks.escalate(device.node, "asked", "Eve", "who pays?", "pay or not")
    wrote(device, "settled", status="blocked", blocked_items=["x"])
    tasks.resolve(device.node, "settled", "do it")
    crew.settle()
    found = {row["task_id"]: row for row in of(crew, "tasks")}
    assert (found["going"]["head"], found["going"]["tokens"]) == (going, 4)
    assert {name: (row["state"], row["waits_for"]) for name, row in found.items()} == {
        "going": ("in_progress", ""),
        "stuck": ("blocked", "no licence; no key"),
        "broken": ("failed", "it exploded"),
        "asked": ("escalated", "who pays?"),
        "settled": ("in_progress", ""),
    }
    for name, row in found.items():
        assert row["state"] == tasks.show(device.node, name)["status"]
        assert row["head"] == device.node.store.current_id(name)


def forked(crew: Team) -> tuple[Device, Device]:
    """Two machines that went on from the same checkpoint."""
    one, two = crew.device(), crew.device()
    wrote(one, "alpha")
    crew.settle()
    for device in (one, two):
        wrote(device, "alpha", "bob")
    crew.settle()
    return one, two


def test_forks_and_conflicts_are_counted_until_decided(crew: Team) -> None:
    one, two = forked(crew)
    first = wrote(one, "beta")
    crew.settle()
    for device in (one, two):
        device.service.update_checkpoint(first, {"execution_state": {"current_focus": device.dsn}})
    crew.settle()
    found = {row["task_id"]: (row["forks"], row["conflicts"]) for row in of(crew, "tasks")}
    assert found == {"alpha": (1, 0), "beta": (0, 1)}
    listed = of(crew, "conflicts", equal={"state": "open"})
    assert {(r["task_id"], r["kind"], str(r["conflict_id"])) for r in listed} == {
        (task, kind, conflict)
        for task, (kind, conflict) in zip(
            ("alpha", "beta"), sorted(one.rows("SELECT kind, id FROM conflicts")), strict=True
        )
    }
    assert {r["loser_machine"] for r in listed} | {r["winner_machine"] for r in listed} == {
        row["machine"] for row in of(crew, "fleet")
    }
    for row in listed:
        conflicts.dismiss(one.node, str(row["conflict_id"]))
    crew.settle()
    assert of(crew, "conflicts", equal={"state": "open"}) == []
    assert {(r["forks"], r["conflicts"]) for r in of(crew, "tasks")} == {(0, 0)}


# --- agents and hand-offs -----------------------------------------------------------------------


def test_silence_counts_from_when_the_server_heard(cloud: Cloud) -> None:
    person = cloud.person()
    ages = {"fresh": 5, "nearly": 29, "late": 31, "gone": 61, "long gone": 600}
    device = person.writer.device_id
    person.replica.presence(
        device, [Seen(device, name, "t", "", "", age * MINUTE_MS) for name, age in ages.items()]
    )
    found = asked(person.login.dsn, "stale")
    assert [(r["agent_id"], r["state"], r["silent_minutes"]) for r in found] == [
        ("long gone", "stale", 600), ("gone", "stale", 61), ("late", "warning", 31),
    ]  # fmt: skip
    assert {(r["machine"], r["member"]) for r in found} == {("laptop", person.name)}


def test_handoffs_stand_as_the_devices_see_them(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    made = {}
    for task in ("open", "taken", "done", "twice"):
        wrote(one, task)
        made[task] = offering.request(one.service, task, Wish())[0].id
    again = offering.request(one.service, "twice", Wish(priority=9))[0].id
    crew.settle()
    for task in ("taken", "done"):
        offers.accept(two.node, made[task], Taker("bob"), 0)
    offers.acknowledge(two.node, made["done"], "bob")
    crew.settle()
    local = {offer.id: offer for offer in offers.everything(one.node)}
    found = {row["handoff_id"]: row for row in of(crew, "handoffs")}
    assert found.keys() == local.keys()
    for key, row in found.items():
        document = local[key].document()
        names = ("task_id", "state", "trigger", "priority", "checkpoint_id", "holder", "fence",
                 "from_agent")  # fmt: skip
        assert {name: row[name] for name in names} == {name: document[name] for name in names}
        assert row["waited_seconds"] >= 0
    states = {task: found[key]["state"] for task, key in made.items()}
    assert states == {
        "open": "open", "taken": "accepted", "done": "acknowledged", "twice": "superseded",
    }  # fmt: skip
    assert found[again]["state"] == "open"


# --- audit and growth ---------------------------------------------------------------------------


def test_the_audit_sees_what_is_missing_from_a_chain(crew: Team) -> None:
    one, two = crew.device(), crew.device()
    for device in (one, two):
        for _ in range(3):
            wrote(device, "alpha")
        device.sync()
    found = {str(r["device_id"]): r for r in of(crew, "audit")}
    assert {(r["state"], r["entries"], r["held"], r["unsigned"]) for r in found.values()} == {
        ("whole", 3, 3, 0)
    }
    assert found[one.node.store.device_id]["chain"] == one.exchange.head().chain.hex()
    hers = two.node.store.device_id
    crew.cloud.sql("DELETE FROM syncd.log WHERE device_id = %s AND device_seq = 2", hers)
    states = {str(r["device_id"]): (r["state"], r["held"]) for r in of(crew, "audit")}
    assert states == {one.node.store.device_id: ("whole", 3), hers: ("incomplete", 2)}
    crew.cloud.sql(
        "UPDATE syncd.log SET chain = sha256('forged') WHERE device_id = %s AND device_seq = 3",
        one.node.store.device_id,
    )
    assert {r["state"] for r in of(crew, "audit")} == {"incomplete"}


def test_growth_counts_what_the_tables_have(crew: Team, worked: tuple[Device, Device]) -> None:
    found = {row["relation"]: row for row in of(crew, "growth")}
    for name, row in found.items():
        [(rows,)] = crew.sql(f"SELECT count(*) FROM syncd.{name} WHERE organization_id = %s")
        assert row["rows"] == rows
        assert row["rows_in_30_days"] == pytest.approx(31 * rows, abs=1)
        assert row["bytes_in_365_days"] > row["bytes"] > 0
    assert found.keys() >= {"log", "checkpoints", "tasks"}
    [day] = of(crew, "days")
    assert day["entries"] == found["log"]["rows"]
    [(bodies,)] = crew.sql(
        "SELECT sum(octet_length(body)) FROM syncd.log WHERE organization_id = %s"
    )
    assert bodies < day["bytes"] < bodies + 2_000 * day["entries"]


def test_what_is_sent_twice_counts_once(cloud: Cloud) -> None:
    person = cloud.person()
    entries = [person.writer.create(tokens=5) for _ in range(4)]
    for some in (entries[:2], entries[:2], entries):
        person.push(*some)
    [day] = asked(person.login.dsn, "days")
    [row] = asked(person.login.dsn, "cost", by="task_id")
    assert (day["entries"], row["checkpoints"], row["tokens"]) == (4, 4, 20)


# --- who may see what ---------------------------------------------------------------------------


@pytest.fixture
def busy(crew: Team) -> Team:
    """An organization about which every query has something to say."""
    one, _ = forked(crew)
    offering.request(one.service, "alpha", Wish())
    crew.settle()
    device = one.node.store.device_id
    one.replica.presence(device, [Seen(device, "ann", "alpha", "", "", 45 * MINUTE_MS)])
    return crew


@pytest.mark.parametrize("kind", ["member", "lead", "auditor"])
def test_each_kind_of_member_sees_its_organization_and_no_other(busy: Team, kind: str) -> None:
    cloud = busy.cloud
    insider = cloud.person(busy.organization_id, kind=kind, greet=False)
    outsider = cloud.person(cloud.organization(), kind=kind, greet=False)
    for name in admin_queries():
        seen = asked(insider.login.dsn, name)
        assert {str(row["organization_id"]) for row in seen} == {busy.organization_id}, name
        others = {str(row["organization_id"]) for row in asked(outsider.login.dsn, name)}
        assert others <= {outsider.organization_id}, name
        with pytest.raises(CheckpointNotFoundError, match="no organization"):
            asked(outsider.login.dsn, name, organization=busy.organization_id)


def test_an_administrator_who_is_no_superuser_sees_all_and_may_ask_for_one(busy: Team) -> None:
    cloud = busy.cloud
    other = cloud.person(cloud.organization())
    other.push(other.writer.create("elsewhere"))
    dsn = cloud.cluster.admin_dsn(cloud.database)
    with closing(psycopg.connect(dsn)) as connection:
        me = "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = session_user"
        assert connection.execute(me).fetchall() == [(False,)]
    both = {busy.organization_id, other.organization_id}
    assert both <= {str(row["organization_id"]) for row in asked(dsn, "tasks")}
    for name in admin_queries():
        rows = asked(dsn, name, organization=busy.organization_id)
        assert {str(row["organization_id"]) for row in rows} == {busy.organization_id}, name


WRITES = (
    "INSERT INTO syncd.{} DEFAULT VALUES",
    "UPDATE syncd.{} SET organization = 'x'",
    "DELETE FROM syncd.{}",
    "CREATE OR REPLACE VIEW syncd.{} AS SELECT 1",
    "DROP VIEW syncd.{}",
)


@pytest.mark.parametrize("kind", ["auditor", "lead"])
def test_nobody_writes_through_a_query(busy: Team, kind: str) -> None:
    person = busy.cloud.person(busy.organization_id, kind=kind, greet=False)
    for name in admin_queries():
        for statement in WRITES:
            with pytest.raises((errors.InsufficientPrivilege, errors.ObjectNotInPrerequisiteState,
                                errors.FeatureNotSupported)):  # fmt: skip
                person.plain.execute(statement.format(f"admin_{name}").encode())


# --- asking -------------------------------------------------------------------------------------


def test_filters_narrow_down_and_an_asterisk_stands_for_anything(crew: Team) -> None:
    device = crew.device()
    for task in ("web-one", "web-two", "100%_sure", "other"):
        wrote(device, task)
    crew.settle()

    def names(value: str) -> set[str]:
        return {row["task_id"] for row in of(crew, "tasks", equal={"task_id": value})}

    assert names("web-one") == {"web-one"}
    assert names("web-*") == {"web-one", "web-two"}
    assert names("*%_*") == {"100%_sure"}
    assert names("web") == set()
    assert names("'; DROP TABLE syncd.log; --") == set()


def test_a_word_that_never_stands_in_a_column_is_refused_and_the_others_are_named(
    crew: Team,
) -> None:
    crew.device()
    for query in admin_queries().values():
        assert set(query.words) <= set(query.filters), query.name
        for column in {"state", "kind", "phase", "trigger", "relation"} & set(query.filters):
            with pytest.raises(
                UsageError, match=f"'bogus' is no {column} of {query.name}"
            ) as raised:
                of(crew, query.name, equal={column: "bogus"})
            assert all(word in raised.value.remedy for word in query.words[column])
            assert of(crew, query.name, equal={column: "bogus*"}) == []
            for word in query.words[column]:
                of(crew, query.name, equal={column: word})
    assert raised.value.exit_code == 2


def test_the_words_of_a_column_are_those_that_can_stand_there() -> None:
    known = {query.name: query.words for query in admin_queries().values()}
    assert set(known["tasks"]["state"]) == set(CheckpointStatus)
    assert set(known["tasks"]["phase"]) == set(ExecutionPhase)
    assert set(known["handoffs"]["trigger"]) == set(HandoffTrigger)
    decided = {fold.OPEN, fold.IDENTICAL, fold.MERGED, fold.PURGED}
    said = {conflicts.RESTORED, conflicts.DISMISSED, conflicts.CHOSEN_AGAINST}
    assert set(known["conflicts"]["state"]) == decided | said
    for name, column in (("fleet", "state"), ("stale", "state"), ("audit", "state"),
                         ("handoffs", "state"), ("growth", "relation")):  # fmt: skip
        written = set(re.findall(r"(?:THEN|ELSE|SELECT x.organization_id,) '([a-z ]+)'",
                                 admin_queries()[name].statement))  # fmt: skip
        assert set(known[name][column]) == written, name


def test_nonsense_is_refused_in_words(crew: Team) -> None:
    crew.device().sync()
    with pytest.raises(UsageError, match="no column 'colour'"):
        of(crew, "tasks", equal={"colour": "red"})
    with pytest.raises(UsageError, match="no such value"):
        of(crew, "fleet", equal={"device_id": "red"})
    with pytest.raises(CheckpointNotFoundError, match="no admin query 'x; y'"):
        of(crew, "x; y")


def test_a_query_is_one_block_of_sql(
    crew: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its description is the view's comment and the command's help."""
    from syncd import sql

    crew.device().sync()
    text = (sql.shipped("schema") / "admin.sql").read_text()
    (tmp_path / "admin.sql").write_text(
        f"{text}\n-- heads --\n-- Nobody's idea of a query.\n-- shown: organization, n\n"
        "-- filters: n\n-- order: -n\nSELECT organization_id, name AS organization, 7 AS n\n"
        "FROM syncd.organizations\n"
    )
    monkeypatch.setattr(sql, "shipped", lambda _: tmp_path)
    sql.admin_queries.cache_clear()
    try:
        with psycopg.connect(crew.cloud.cluster.admin_dsn(crew.cloud.database)) as connection:
            connection.execute(sql.admin_views())
        assert [row["n"] for row in of(crew, "heads", equal={"n": "7"})] == [7]
        from syncd.cli.admin_queries import command

        made = command(sql.admin_queries()["heads"])
        assert made.help == "Nobody's idea of a query."
        assert "--n" in {name for option in made.params for name in option.opts}
    finally:
        monkeypatch.undo()
        sql.admin_queries.cache_clear()


# --- versions -----------------------------------------------------------------------------------


@pytest.fixture
def older(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """A replica of the release before."""
    name = cluster.create_database()
    with monkeypatch.context() as patched:
        patched.setattr("syncd.replica.administration.postgres_steps", lambda: postgres_steps()[:2])
        patched.setattr("syncd.replica.administration.admin_views", lambda: b"SELECT 1")
        with closing(Administration(cluster.admin_dsn(name))) as admin:
            assert len(admin.migrate()) == 2
    with closing(Cloud(cluster, name)) as opened:
        yield opened
    cluster.drop_database(name)


def test_a_device_works_with_the_replica_of_the_release_before_and_through_its_upgrade(
    older: Cloud,
) -> None:
    from devices import team

    with team(older) as crew:
        one, two = crew.device(), crew.device()
        wrote(one, "alpha", tokens=5, seconds=3)
        wrote(one, "stuck", status="blocked")
        tasks.escalate(one.node, "stuck", "Eve", "who pays?", "pay or not")
        crew.settle()
        with pytest.raises(ReplicaError, match="does not have the query 'fleet' yet") as caught:
            of(crew, "fleet")
        assert "syncd cloud migrate" in caught.value.remedy
        before = crew.sql("SELECT count(*) FROM syncd.log WHERE organization_id = %s")
        assert older.admin.migrate() == [path.stem for path in postgres_steps()[2:]]
        assert total(crew)[0][4:] == (1, 5, 3)
        assert {r["task_id"]: r["waits_for"] for r in of(crew, "tasks")}["stuck"] == "who pays?"
        assert of(crew, "days")[0]["entries"] == before[0][0]
        wrote(two, "alpha", tokens=6)
        crew.settle()
        assert total(crew)[0][4:6] == (2, 11)
        assert {row["skew_ms"] is None for row in of(crew, "fleet")} == {False}


def test_a_device_of_the_release_before_works_with_this_replica(cloud: Cloud) -> None:
    """It reports what it did then."""
    person = cloud.person()
    person.replica.rows("report", person.organization_id, person.writer.device_id, 0, 3)
    [row] = asked(person.login.dsn, "fleet")
    assert (row["pending"], row["skew_ms"]) == (3, None)


# --- the commands -------------------------------------------------------------------------------


@pytest.fixture
def lead(machines: Machines) -> Machine:
    """With some work behind it, and no administrator's login."""
    login = ""
    with machines.administration() as admin:
        login = admin.add_member(machines.organization_id, "lea", "lead", "desk").dsn
    found = machines.machine(login)
    found.ok("checkpoint", "create", "--task", "alpha", "--agent", "ann", "--tokens", "700",
             "--duration", "4000")  # fmt: skip
    found.ok("checkpoint", "create", "--task", "beta", "--agent", "bob", "--tokens", "70")
    found.sync()
    return found


def test_a_lead_asks_with_the_login_of_the_machine(lead: Machine) -> None:
    for name in admin_queries():
        assert isinstance(lead.json("admin", name), list)
    [mine] = lead.json("admin", "fleet", "--machine", "desk")
    assert (mine["member"], mine["version"], mine["state"]) == ("lea", __version__, "current")
    rows = lead.json("admin", "cost")
    assert [(r["task_id"], r["tokens"]) for r in rows] == [("alpha", 700), ("beta", 70)]
    assert lead.json("admin", "cost", "--by", "agent", "--task", "beta")[0]["agent_id"] == "bob"
    assert lead.json("admin", "cost", "--by", "segment", "--task", "beta")[0]["segment"] == 1
    assert lead.json("admin", "cost", "--since", "2200-01-01T00:00Z") == []


def test_the_same_as_csv_and_as_text(lead: Machine) -> None:
    text = lead.ok("admin", "cost", "--csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["task_id"], row["tokens"]) for row in rows] == [("alpha", "700"), ("beta", "70")]
    shown = lead.ok("admin", "cost").out.splitlines()
    assert re.split(r"  +", shown[0])[:3] == ["TASK", "TOKENS", "TIME"]
    assert re.split(r"  +", shown[1])[:3] == ["alpha", "700", "1 h 06 min"]
    assert lead.ok("admin", "cost", "--limit", "1").err.startswith("There are more rows")
    assert lead.ok("admin", "stale").out == "Nothing found.\n"


def test_an_administrator_asks_for_one_organization(machines: Machines, lead: Machine) -> None:
    administrator = machines.administrator()
    org = machines.organization
    assert len(administrator.json("admin", "tasks", "--org", org)) == 2
    names = [row["name"] for row in administrator.json("admin", "query")]
    assert names == sorted(admin_queries())
    found = administrator.json("admin", "query", "tasks", "--where", "task_id=beta", "--org", org)
    assert [row["head"] for row in found] == [
        lead.json("checkpoint", "latest", "beta")["metadata"]["checkpoint_id"]
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ("cost", "--by", "segment")),
        (2, ("cost", "--by", "colour")),
        (2, ("tasks", "--since", "yesterday-ish")),
        (2, ("fleet", "--device", "nonsense")),
        (2, ("query", "tasks", "--where", "state")),
        (2, ("fleet", "--csv", "--json")),
        (4, ("query", "nonsense")),
        (4, ("fleet", "--org", "somebody else's")),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    lead: Machine, code: int, words: tuple[str, ...]
) -> None:
    lead.fails(code, "admin", *words)


def test_without_a_replica_there_is_nobody_to_ask(machines: Machines) -> None:
    assert machines.blank("nobody").fails(1, "admin", "fleet")["remedy"]
