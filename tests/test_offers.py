"""Hand-offs: offered here, taken there, by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from counts import full
from daemons import ann, away, bob, online, until
from machines import SYNCD, Machine, Team, runner, team

from syncd import CheckpointService, offering, offers, tenure
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointNotFoundError,
    HandoffError,
    LeaseHeldError,
)
from syncd.node import Node
from syncd.offering import Wish
from syncd.offers import Taker
from syncd.vocabulary import HandoffTrigger

__all__ = ["ann", "bob", "runner", "team"]

TASK = "shop"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[CheckpointService]:
    with closing(CheckpointService(home=tmp_path / "home")) as made:
        begun(made)
        yield made


def begun(service: CheckpointService, agent: str = "ann") -> str:
    made = service.create_checkpoint(
        TASK, agent, execution_state={"phase": "implementing", "pending_items": ["pay"],
                                      "completed_items": ["cart"]},
        context_summary={"key_decisions": ["Stripe"]}, metrics={"tokens_consumed": 700},
    )  # fmt: skip
    return made.metadata.checkpoint_id


def offered(service: CheckpointService, **wish: Any) -> offers.Offer:
    return offering.request(service, TASK, Wish(**wish))[0]


# --- offering -------------------------------------------------------------------------------------


def test_a_request_leaves_a_last_checkpoint_of_the_phase_handoff(
    service: CheckpointService,
) -> None:
    before = service.get_latest_checkpoint(TASK)
    offer, prompt = offering.request(service, TASK, Wish())
    last = service.get_latest_checkpoint(TASK)
    assert before
    assert last
    assert last.metadata.checkpoint_id == offer.checkpoint_id
    assert last.recovery.last_successful_state == before.metadata.checkpoint_id
    assert last.execution_state.phase == "handoff"
    assert last.execution_state.completed_items == before.execution_state.completed_items
    assert last.metrics.tokens_consumed == 0  # what was spent is counted once
    assert "Why it was handed over" in prompt
    assert last.recovery.continuation_prompt == prompt


def test_the_offer_is_signed_and_with_it_the_checkpoint(service: CheckpointService) -> None:
    entry = service.node.store.version(offered(service).fact.entry_id)
    assert entry.signature


@pytest.mark.parametrize(
    ("trigger", "target", "priority", "reason"),
    [
        (HandoffTrigger.PHASE_COMPLETE, "qa", 5, "reassignment"),
        (HandoffTrigger.ERROR_THRESHOLD, "", 8, "failure"),
        (HandoffTrigger.EXPLICIT_REQUEST, "", 10, "manual"),
        (HandoffTrigger.CONTEXT_THRESHOLD, "", 5, "context_limit"),
        (HandoffTrigger.TOKEN_BUDGET, "", 8, "reassignment"),
        (HandoffTrigger.TIMEOUT, "", 5, "reassignment"),
    ],
)
def test_each_trigger_says_for_whom_and_how_urgent(
    service: CheckpointService, trigger: HandoffTrigger, target: str, priority: int, reason: str
) -> None:
    document = offered(service, trigger=trigger).document()
    assert document["target_agent_type"] == target
    assert document["next_agent_type"] == (target or "implementation")
    assert document["priority"] == priority
    last = service.get_latest_checkpoint(TASK)
    assert last
    assert last.metadata.reason == reason


def test_what_the_agent_wishes_counts_more_than_what_the_trigger_says(
    service: CheckpointService,
) -> None:
    document = offered(service, target="documentation", priority=1).document()
    assert (document["target_agent_type"], document["priority"]) == ("documentation", 1)


def test_a_task_without_a_checkpoint_has_nothing_to_hand_over(service: CheckpointService) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint to hand over"):
        offering.request(service, "unknown", Wish())


def test_a_damaged_checkpoint_is_not_handed_over(service: CheckpointService) -> None:
    damage(service, begun(service))
    with pytest.raises(CheckpointCorruptionError):
        offered(service)
    assert offers.everything(service.node) == []


def damage(service: CheckpointService, checkpoint_id: str) -> None:
    with service.node.store.transaction():
        service.node.store.execute(
            "UPDATE log SET body = x'7b7d' WHERE entry_id = ?", (checkpoint_id,)
        )


# --- taking ---------------------------------------------------------------------------------------


def test_what_was_accepted_is_held_and_then_acknowledged(service: CheckpointService) -> None:
    node, offer = service.node, offered(service)
    assert [found.id for found in offers.ready(offers.everything(node))] == [offer.id]
    taken = offers.accept(node, offer.id[:13], Taker("bob"))
    assert (taken.state, taken.provisional) == (offers.ACCEPTED, False)
    assert taken.document()["holder"] == "bob"
    assert taken.document()["fence"] > 0
    assert offers.acknowledge(node, offer.id, "bob").state == offers.ACKNOWLEDGED
    assert offers.ready(offers.everything(node)) == []


def test_the_next_checkpoint_is_a_child_of_the_one_handed_over(service: CheckpointService) -> None:
    offer = offered(service)
    offers.accept(service.node, offer.id, Taker("bob"))
    child = service.create_checkpoint(TASK, "bob")
    assert child.recovery.last_successful_state == offer.checkpoint_id


def test_a_second_agent_is_refused_and_leaves_nothing_behind(service: CheckpointService) -> None:
    offer = offered(service)
    offers.accept(service.node, offer.id, Taker("bob"))
    entries = service.node.store.row("newest")
    with pytest.raises(LeaseHeldError, match="bob holds it") as caught:
        offers.accept(service.node, offer.id, Taker("cat"))
    assert caught.value.exit_code == 7
    assert service.node.store.row("newest") == entries


def test_to_accept_twice_is_to_accept_once(service: CheckpointService) -> None:
    """A command that was killed before it could answer is simply repeated."""
    offer = offered(service)
    first = offers.accept(service.node, offer.id, Taker("bob"))
    assert offers.accept(service.node, offer.id, Taker("bob")) == first


def test_only_its_holder_acknowledges(service: CheckpointService) -> None:
    offer = offered(service)
    with pytest.raises(HandoffError, match="accepted by nobody"):
        offers.acknowledge(service.node, offer.id)
    offers.accept(service.node, offer.id, Taker("bob"))
    with pytest.raises(LeaseHeldError):
        offers.acknowledge(service.node, offer.id, "cat")


def test_a_newer_offer_takes_the_place_of_one_that_nobody_took(service: CheckpointService) -> None:
    old, new = offered(service), offered(service)
    assert [found.state for found in offers.everything(service.node)] == ["superseded", "open"]
    with pytest.raises(HandoffError, match="superseded"):
        offers.accept(service.node, old.id, Taker("bob"))
    assert offers.accept(service.node, new.id, Taker("bob")).state == offers.ACCEPTED


def test_the_most_urgent_comes_first_then_the_oldest(service: CheckpointService) -> None:
    made = []
    for name, priority in (("a", 5), ("b", 9), ("c", 5)):
        service.create_checkpoint(name, "ann")
        made.append(offering.request(service, name, Wish(priority=priority))[0].id)
    found = [offer.id for offer in offers.ready(offers.everything(service.node))]
    assert found == [made[1], made[0], made[2]]


def test_a_damaged_checkpoint_is_not_accepted(service: CheckpointService) -> None:
    offer = offered(service)
    damage(service, offer.checkpoint_id)
    with pytest.raises(CheckpointCorruptionError):
        offers.accept(service.node, offer.id, Taker("bob"))
    assert tenure.holder(service.node, TASK) is None


def test_a_damaged_offer_is_not_accepted(service: CheckpointService) -> None:
    offer = offered(service)
    damage(service, offer.fact.entry_id)
    with pytest.raises(CheckpointCorruptionError):
        offers.accept(service.node, offer.id, Taker("bob"))


# --- the one who gave it away ---------------------------------------------------------------------


def test_work_after_the_hand_off_is_a_branch_and_not_what_the_next_agent_reads(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    offer = offered(service)
    offers.accept(service.node, offer.id, Taker("bob"))
    mine = service.create_checkpoint(TASK, "bob")
    late = [service.create_checkpoint(TASK, "ann") for _ in range(2)]
    assert "is now another's" in caplog.text
    assert late[0].recovery.last_successful_state == offer.checkpoint_id
    assert late[1].recovery.last_successful_state == late[0].metadata.checkpoint_id
    latest = service.get_latest_checkpoint(TASK)
    assert latest
    assert latest.metadata.checkpoint_id == mine.metadata.checkpoint_id
    kept = {found.metadata.checkpoint_id for found in service.get_checkpoint_history(TASK)}
    assert {found.metadata.checkpoint_id for found in late} <= kept


def test_who_gave_it_away_cannot_give_it_away_again(service: CheckpointService) -> None:
    offers.accept(service.node, offered(service).id, Taker("bob"))
    with pytest.raises(LeaseHeldError, match="ann cannot hand it over"):
        offered(service, agent="ann")
    # Bob has taken it and written nothing yet: it is his to give.
    assert offered(service).document()["from_agent"] == "bob"


def test_who_takes_it_back_goes_on_where_the_other_stopped(service: CheckpointService) -> None:
    offers.accept(service.node, offered(service).id, Taker("bob"))
    theirs = service.create_checkpoint(TASK, "bob")
    offers.accept(service.node, offered(service).id, Taker("ann"))
    back = service.create_checkpoint(TASK, "ann")
    assert back.recovery.last_successful_state != theirs.metadata.checkpoint_id
    line = [found.metadata.agent_id for found in service.get_checkpoint_history(TASK)]
    assert line == ["ann", "bob", "bob", "ann", "ann"]
    latest = service.get_latest_checkpoint(TASK)
    assert latest
    assert latest.metadata.checkpoint_id == back.metadata.checkpoint_id


# --- two machines ---------------------------------------------------------------------------------


@contextmanager
def nodes(*machines: Machine) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Node(machine.home))) for machine in machines]


def asked(machine: Machine, *options: str) -> str:
    machine.create(TASK, "--phase", "implementing", "--completed", "cart")
    return str(machine.json("handoff", "request", "--task", TASK, *options)["id"])


def test_a_hand_off_crosses_machines(team: Team) -> None:
    one, two = team.machine(), team.machine()
    handoff = asked(one, "--trigger", "phase_complete")
    team.settle(one, two)
    [seen] = two.json("handoff", "list")
    assert (seen["event"], seen["id"], seen["state"]) == ("AGENT_HANDOFF", handoff, "open")
    taken = two.json("handoff", "accept", handoff, "--agent", "bob")
    assert (taken["holder"], taken["provisional"], taken["state"]) == ("bob", False, "accepted")
    assert taken["fence"] > 0
    assert "cart" in taken["prompt"]
    assert "--agent bob" in taken["prompt"]
    two.ok("handoff", "acknowledge", handoff)
    child = two.json("checkpoint", "create", "--task", TASK, "--agent", "bob", "--continue")
    assert child["recovery"]["last_successful_state"] == taken["checkpoint_id"]
    two.sync()
    error = one.fails(7, "handoff", "accept", handoff, "--agent", "ann")
    assert "bob holds it" in error["message"]
    team.agree(one, two)
    [known] = one.json("handoff", "list", "--all")
    assert (known["state"], known["fence"]) == ("acknowledged", taken["fence"])


def test_who_hands_over_twice_means_the_same_agent(team: Team) -> None:
    one = team.machine()
    asked(one, "--trigger", "phase_complete")
    for _ in range(2):
        one.ok("handoff", "request", "--task", TASK, "--trigger", "phase_complete")
    offers = one.json("handoff", "list", "--all")
    assert [offer["next_agent_type"] for offer in offers] == ["qa"] * 3


def test_a_race_has_exactly_one_winner(team: Team) -> None:
    """Both machines ask at the same moment, with no daemon in between, many times."""
    one, two = team.machine(), team.machine()
    with nodes(one, two) as (first, second), closing(CheckpointService(node=first)) as service:
        for number in range(full(12, 500)):
            service.create_checkpoint(f"task {number}", "ann")
            offer, _ = offering.request(service, f"task {number}", Wish())
            for node in (first, second):
                with node.syncing() as engine:
                    engine.sync()
            got = raced(
                partial(offers.accept, first, offer.id, Taker("ann's next")),
                partial(offers.accept, second, offer.id, Taker("bob")),
            )
            won = [found for found in got if isinstance(found, offers.Offer)]
            lost = [found for found in got if isinstance(found, LeaseHeldError)]
            assert (len(won), len(lost)) == (1, 1), got
            assert not won[0].provisional
    team.agree(one, two)
    states = [offer["state"] for offer in one.json("handoff", "list", "--all")]
    assert set(states) == {"accepted"}
    assert one.json("handoff", "list", "--all") == two.json("handoff", "list", "--all")


def raced(*calls: Callable[[], object]) -> list[object]:
    """What each call gave, or raised, when all began at once."""
    found: list[object] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(number: int) -> None:
        start.wait()
        try:
            found[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_offline_it_is_granted_provisionally_and_who_was_second_becomes_a_branch(
    team: Team,
) -> None:
    one, two = team.machine(), team.machine()
    handoff = asked(one)
    team.settle(one, two)
    dead = {"SYNCD_CLOUD_DSN": "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"}
    result = two.ok("handoff", "accept", handoff, "--agent", "bob", "--json", **dead)
    assert (result.json()["provisional"], result.json()["fence"]) == (True, None)
    assert "granted provisionally" in result.err
    offline = two.json("checkpoint", "create", "--task", TASK, "--agent", "bob")
    granted = one.json("handoff", "accept", handoff, "--agent", "ann's next")
    assert not granted["provisional"]
    winner = one.json("checkpoint", "create", "--task", TASK, "--agent", "ann's next")
    two.written |= {offline["revision"]}
    one.written |= {winner["revision"]}
    team.agree(one, two)
    for machine in (one, two):
        [known] = machine.json("handoff", "list", "--all")
        assert known["holder"] == "ann's next"
        latest = machine.json("checkpoint", "latest", TASK)
        assert latest["metadata"]["checkpoint_id"] == winner["metadata"]["checkpoint_id"]
        heads = {head["checkpoint_id"] for head in machine.json("task", "heads", TASK)}
        assert offline["metadata"]["checkpoint_id"] in heads


def test_a_provisional_grant_that_came_first_becomes_a_grant(team: Team) -> None:
    one, two = team.machine(), team.machine()
    handoff = asked(one)
    team.settle(one, two)
    dead = {"SYNCD_CLOUD_DSN": "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"}
    two.ok("handoff", "accept", handoff, "--agent", "bob", **dead)
    team.agree(one, two)
    [known] = one.json("handoff", "list", "--all")
    assert (known["holder"], known["provisional"]) == ("bob", False)
    assert known["fence"] > 0


def test_a_replica_that_was_restored_does_not_give_it_to_the_one_who_lost(team: Team) -> None:
    one, two = team.machine(), team.machine()
    handoff = asked(one)
    team.settle(one, two)
    dump = team.dumped()
    with nodes(one, two) as (first, second):
        got = raced(
            partial(offers.accept, first, handoff, Taker("ann's next")),
            partial(offers.accept, second, handoff, Taker("bob")),
        )
    [won] = [found for found in got if isinstance(found, offers.Offer)]
    holder = won.document()["holder"]
    team.settle(one, two)
    team.restored(dump)
    team.settle(*((two, one) if holder == "ann's next" else (one, two)))  # who lost comes first
    team.agree(one, two)
    assert {m.json("handoff", "list", "--all")[0]["holder"] for m in (one, two)} == {holder}


# --- with daemons ---------------------------------------------------------------------------------


class Watching:
    """`syncd handoff list --watch` of one machine."""

    def __init__(self, machine: Machine, *words: str) -> None:
        self._process = subprocess.Popen(
            [SYNCD, "--home", str(machine.home), "handoff", "list", "--watch", *words],
            stdout=subprocess.PIPE, env={**os.environ, **machine.environment},
        )  # fmt: skip

    def line(self) -> dict[str, Any]:
        assert self._process.stdout
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def interrupted(self) -> int:
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(10)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_an_orchestrator_on_another_machine_hears_of_it_and_takes_it(
    team: Team, ann: Machine, bob: Machine
) -> None:
    with online(ann, bob), closing(Watching(bob)) as watching:
        handoff = asked(ann)
        heard = watching.line()
        assert (heard["event"], heard["id"], heard["state"]) == ("AGENT_HANDOFF", handoff, "open")
        taken = bob.json("handoff", "accept", handoff, "--agent", "bob")
        assert not taken["provisional"]
        assert watching.line()["state"] == "accepted"
        until(lambda: ann.json("handoff", "list") == [])
        assert watching.interrupted() == 0


def test_while_the_replica_is_away_the_daemon_says_nothing_and_it_is_provisional(
    team: Team, ann: Machine, bob: Machine
) -> None:
    handoff = asked(ann)
    team.settle(ann, bob)
    with online(bob), away(team):
        began = time.monotonic()
        taken = bob.json("handoff", "accept", handoff, "--agent", "bob", "--wait", "0.5")
        assert taken["provisional"]
        assert time.monotonic() - began < 10
    bob.sync()
    [known] = bob.json("handoff", "list", "--all")
    assert not known["provisional"]


# --- what a person types --------------------------------------------------------------------------


def test_bad_words_get_a_remedy(team: Team) -> None:
    one = team.machine()
    handoff = asked(one)
    assert one.fails(4, "handoff", "accept", "nothing", "--agent", "x")["remedy"]
    assert one.fails(2, "handoff", "accept", handoff, "--agent", "")["remedy"]
    assert one.fails(2, "handoff", "request", "--task", TASK, "--priority", "11")["remedy"]
    assert one.fails(2, "handoff", "request", "--task", TASK, "--trigger", "boredom")["remedy"]
    assert one.fails(4, "handoff", "request", "--task", "unknown")["remedy"]
    assert one.fails(1, "handoff", "acknowledge", handoff)["remedy"]


def test_to_take_a_hand_off_loads_neither_models_nor_drivers() -> None:
    code = "import sys, syncd.cli.handoff, syncd.offers, syncd.resume; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"pydantic", "psycopg", "apscheduler"} & set(loaded.stdout.split())


# --- upgrades -------------------------------------------------------------------------------------


def test_claims_that_an_older_release_took_in_count_after_the_upgrade(
    service: CheckpointService,
) -> None:
    """It kept them, and had no view for them."""
    node = service.node
    offers.accept(node, offered(service).id, Taker("bob"))
    before = node.store.connection.execute("SELECT * FROM fences").fetchall()
    assert before
    for statement in (
        "DROP INDEX log_by_kind", "DROP TABLE fences", "DROP TABLE presence", "DROP TABLE sources",
        "DELETE FROM _sqlite_migrations WHERE name LIKE '0003%'", "PRAGMA user_version = 2",
        "DELETE FROM state WHERE name = 'views'",
    ):  # fmt: skip
        node.store.connection.execute(statement)
    node.close()
    with closing(Node(node.home)) as upgraded:
        found = upgraded.store.connection.execute("SELECT * FROM fences").fetchall()
    assert found == before
