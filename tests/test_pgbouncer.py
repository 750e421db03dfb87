"""Through the real PgBouncer in transaction mode: consecutive statements of one machine meet
different connections to the server, and those of two machines share them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from machines import SYNCD, Machine, Team, runner, team
from postgres import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chaos.pooler import PROGRAM, Pooler

__all__ = ["runner", "team"]


def pooler_of(
    team: Team, folder: Path, pool_size: int, tls: tuple[Path, Path] | None = None
) -> Pooler:
    return Pooler(team.cluster.port, team.cluster.passwords["postgres"], folder, pool_size, tls)


@pytest.fixture(params=[1, 2], ids=["pool of 1", "pool of 2"])
def pooler(team: Team, postgres: Session, request: pytest.FixtureRequest) -> Iterator[Pooler]:
    if PROGRAM is None:
        pytest.skip("PGBOUNCER IS NOT TESTED: apt-get install pgbouncer")
    started = pooler_of(team, postgres.place("pgbouncer"), request.param)
    yield started
    started.close()


def joined(team: Team, pooler: Pooler, dsn: str) -> Machine:
    """By `syncd login`, through the pooler."""
    machine = team.blank()
    machine.ok("login", "-", stdin=pooler.before(dsn))
    team.machines.append(machine)
    return machine


def test_everything_works_through_a_pooler(team: Team, pooler: Pooler) -> None:
    ann = joined(team, pooler, team.login("ann", "desktop"))
    added = ann.json("device", "add", "laptop")["dsn"]
    assert conninfo_to_dict(added)["port"] == str(pooler.port)
    laptop = joined(team, pooler, added)
    first = ann.create()
    team.settle(ann, laptop)
    ann.update(first, "by the desktop")
    laptop.update(first, "by the laptop")
    team.settle(ann, laptop)
    [conflict] = laptop.json("conflicts", "list")
    assert ann.json("conflicts", "show", conflict["id"])["state"] == "open"
    laptop.ok("conflicts", "restore", conflict["id"])
    team.agree()
    assert ann.json("conflicts", "list") == []
    assert ann.json("flush", "--wait", "5")["safe"]
    ann.ok("device", "rename", "laptop", "notebook")
    ann.ok("device", "revoke", "notebook")
    assert laptop.run("sync").code in (1, 6)
    assert "revoked" in str(ann.json("device", "list"))


def test_two_machines_that_write_and_sync_at_once_lose_nothing(team: Team, pooler: Pooler) -> None:
    # Two machines of one login's member would have a pool each: PgBouncer has one per login.
    dsn = team.login()
    ann, bob = joined(team, pooler, dsn), joined(team, pooler, dsn)
    for machine in (ann, bob):
        for _ in range(5):
            machine.create()
    words = [
        [SYNCD, "--home", str(machine.home), "sync"] for machine in (ann, bob) for _ in range(3)
    ]
    with ThreadPoolExecutor(len(words)) as pool:
        done = list(pool.map(lambda w: subprocess.run(w, capture_output=True), words))
    assert [result.returncode for result in done] == [0] * len(words), done
    team.agree()


def test_who_gives_the_wrong_password_to_the_pooler_is_refused(team: Team, pooler: Pooler) -> None:
    dsn = make_conninfo(pooler.before(team.login()), password="wrong-word")
    error = team.blank().fails(1, "login", "-", stdin=dsn)
    assert error["code"] == "login_refused"
    assert "wrong-word" not in str(error)


def test_the_pooler_does_not_hand_a_session_from_one_login_to_another(
    team: Team, pooler: Pooler
) -> None:
    ours, theirs = team.login(), team.another().login()
    for dsn in (ours, theirs, ours):
        with psycopg.connect(pooler.before(dsn), prepare_threshold=None) as connection:
            row = connection.execute("SELECT session_user").fetchone()
            assert row == (conninfo_to_dict(dsn)["user"],)
