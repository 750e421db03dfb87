"""A home that changes its signing key: nothing is lost, and nobody else can take its place."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import orjson
import pytest
from counts import full
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from daemons import arrives, files_with, online, status, until
from devices import BEFORE, Device, cloud, crew
from devices import Team as Crew
from machines import Machine, Team, runner, team
from replicas import Person

from syncd import CheckpointService, exchange, rotation, running, sealing
from syncd.audit import verify
from syncd.endorsement import NOT_ENDORSED, Succession, unendorsed
from syncd.entry import CREATE, KEY, Draft, uuid7
from syncd.errors import InvalidInputError, KeyChangedError, TamperedError
from syncd.exchange import Exchange
from syncd.keychain import AT_REST, END_TO_END
from syncd.node import Node
from syncd.seal import GENESIS, SigningKey

__all__ = ["cloud", "crew", "runner", "team"]

ROTATE = ("keys", "rotate", "--signing")


def device_of(machine: Machine) -> str:
    return machine.state("device_id")


def rotated(machine: Machine, *words: str) -> str:
    """The id that it has afterwards."""
    before = device_of(machine)
    told = machine.json(*ROTATE, *words)
    assert told["device_id"] == device_of(machine) != before
    for (entry_id,) in machine.sql("SELECT entry_id FROM log WHERE entity = 'key'"):
        machine.written.add(entry_id)
    return device_of(machine)


def former_of(machine: Machine) -> list[str]:
    return [former["device_id"] for former in machine.json("keys", "show")["former"]]


def key_files(home: Path) -> set[str]:
    return {file.name for file in (home / "keys").glob("signing*")}


def sound(node: Node) -> list[str]:
    key = node.key
    return [problem.problem for problem in verify(node.store, key.public()).problems]


def key_entry(node: Node) -> dict[str, Any]:
    """The newest one, its meta opened."""
    row = node.store.connection.execute(
        "SELECT device_id, device_seq, entity_id, meta, signature FROM log WHERE entity = 'key'"
        " ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    names = ("device_id", "device_seq", "entity_id", "meta", "signature")
    return {**dict(zip(names, row, strict=True)), "meta": orjson.loads(row[3])}


# --- alone --------------------------------------------------------------------------------------


def test_the_first_entry_under_the_new_key_has_the_old_keys_word(
    service: CheckpointService,
) -> None:
    service.create_checkpoint("task", "agent")
    old, public = service.node.store.device_id, service.node.key.public()
    [(number, chain)] = service.node.store.connection.execute(
        "SELECT device_seq, chain FROM log"
    ).fetchall()
    sealing.rotate_signing(service.node, "a laptop was left alone")
    entry = key_entry(service.node)
    meta, new = entry["meta"], service.node.store.device_id
    assert (entry["device_id"], entry["device_seq"], entry["entity_id"]) == (new, 1, new)
    assert meta["task_id"] == ""
    assert meta["continues"] == {"device_id": old, "device_seq": number, "chain": chain.hex()}
    assert bytes.fromhex(meta["public_key"]) == service.node.key.public() != public
    # As docs/log.md says it, without a word of the program.
    told = f'syncd key 1\0["{old}","{chain.hex()}","{new}","{meta["public_key"]}"]'
    endorsement = bytes.fromhex(meta["endorsement"])
    Ed25519PublicKey.from_public_bytes(public).verify(endorsement, told.encode())
    assert sound(service.node) == []


@pytest.mark.plain
def test_what_the_command_says_and_shows(team: Team) -> None:
    ann = team.blank()
    ann.create("t")
    before = ann.json("keys", "show")
    assert before["former"] == []
    told = ann.json(*ROTATE, "--reason", "a laptop was left alone")
    shown = ann.json("keys", "show")
    assert told == {name: shown[name] for name in ("device_id", "signing_key", "former")}
    [former] = told["former"]
    assert former["device_id"] == before["device_id"] != told["device_id"]
    assert former["fingerprint"] == before["signing_key"] != told["signing_key"]
    assert re.fullmatch(r"2\d{3}-.*\+00:00", former["until"])
    text = ann.ok("keys", "show").out
    assert former["fingerprint"] in text
    assert former["until"][:19] in text
    said = ann.ok(*ROTATE).out
    assert ann.json("keys", "show")["signing_key"] in said
    assert len(ann.json("keys", "show")["former"]) == 2
    [(body,)] = ann.sql("SELECT body FROM log WHERE entity = 'key' ORDER BY seq LIMIT 1")
    assert orjson.loads(body) == {"reason": "a laptop was left alone"}
    assert "only with --signing" in ann.fails(2, "keys", "rotate", "--reason", "x")["message"]
    ann.fails(2, *ROTATE, "--reason", "x" * 1_001)


def test_a_reason_has_no_secrets_in_it(service: CheckpointService) -> None:
    service.create_checkpoint("task", "agent")
    sealing.rotate_signing(service.node, "leaked: password=hunter2-and-more-of-it")
    [(body,)] = service.node.store.connection.execute("SELECT body FROM log WHERE entity = 'key'")
    assert b"hunter2" not in service.node.vault.plain("", "", "", body)


def test_the_old_key_is_gone(home: Path, service: CheckpointService) -> None:
    service.create_checkpoint("task", "agent")
    old = (home / "keys" / "signing.pem").read_text().splitlines()[1]
    sealing.rotate_signing(service.node)
    assert files_with(home, old) == set()
    assert key_files(home) == {"signing.pem"}
    assert (home / "keys" / "signing.pem").stat().st_mode & 0o777 == 0o600


def test_an_entry_about_a_key_belongs_to_no_task(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.create("t")
    rotated(ann)
    ann.create("t")
    team.agree()
    for machine in (ann, bob):
        assert [task["id"] for task in machine.json("task", "list")] == ["t"]
        assert machine.json("rebuild")["equal"]
    assert team.sql("SELECT id FROM syncd.tasks") == [("t",)]
    assert [e["entity"] for e in ann.json("audit", "list", "--entity", "key")] == ["key"]


def test_a_home_that_has_written_nothing_has_nothing_to_continue(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok(*ROTATE)
    assert ann.entries() == []
    ann.create()
    rotated(ann)
    team.agree()
    assert len(bob.sql("SELECT * FROM log WHERE entity = 'key'")) == 1


@pytest.mark.proof
def test_a_copy_that_has_written_nothing_yet_continues_what_it_is_a_copy_of(
    team: Team, tmp_path: Path
) -> None:
    ann = team.machine()
    ann.create()
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy", image=False)
    team.machines.append(copy)
    copy.json("status")
    assert device_of(copy) != device_of(ann)
    rotated(copy)
    [(said,)] = copy.sql("SELECT meta ->> '$.continues.device_id' FROM log WHERE entity = 'key'")
    assert said == device_of(ann)
    team.agree()


def test_a_program_that_runs_on_signs_with_the_new_key(
    home: Path, service: CheckpointService
) -> None:
    made = service.create_checkpoint("task", "agent")
    assert service.node.key
    with closing(Node(home)) as another:
        sealing.rotate_signing(another)
    service.finalize_checkpoint(made.metadata.checkpoint_id)
    assert sound(service.node) == []
    [(device, number)] = service.node.store.connection.execute(
        "SELECT device_id, device_seq FROM log WHERE op = 'finalize'"
    ).fetchall()
    assert (device, number) == (service.node.store.device_id, 2)


def test_every_entry_that_was_not_sent_is_signed_before_the_key_goes(
    service: CheckpointService,
) -> None:
    for _ in range(5):
        service.create_checkpoint("task", "agent")
    sealing.rotate_signing(service.node)
    unsigned = "SELECT count(*) FROM log WHERE signature IS NULL"
    assert service.node.store.connection.execute(unsigned).fetchone() == (0,)
    assert verify(service.node.store, service.node.key.public()).signed == 6


def test_evidence_reaches_over_a_change_of_the_key(team: Team, tmp_path: Path) -> None:
    ann = team.machine()
    for _ in range(3):
        ann.create("t")
        ann.create("other")
    ann.sync()
    ann.create("t")
    rotated(ann)
    ann.create("t")
    file = str(tmp_path / "evidence")
    ann.ok("audit", "export", "t", "--output", file)
    now = ann.json("keys", "show")
    verdict = ann.json("audit", "verify", file, "--key", now["signing_key"])
    assert verdict["ok"]
    assert verdict["signer"] == "established"
    fingerprints = {device["fingerprint"] for device in verdict["devices"]}
    assert fingerprints == {now["signing_key"], now["former"][0]["fingerprint"]}


# --- cut off ------------------------------------------------------------------------------------

_WATCHED = ("rotation.py", "keychain.py")
_FUNCTIONS = ("begin_anew", "_end")  # of the transaction
_LONG = "_sign_rest"  # the longer, the more there is to sign


def changed_until(line: int, home: Path) -> None:
    """Change the key, and be killed after so many lines of it."""
    node, left = Node(home), line
    assert node.key
    exchange = Exchange(node.store)

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        nonlocal left
        name, function = Path(frame.f_code.co_filename).name, frame.f_code.co_name
        if (name not in _WATCHED and function not in _FUNCTIONS) or function == _LONG:
            return None
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    rotation.change(exchange, home / "keys", "tester", "")


def killed_at(line: int, home: Path) -> bool:
    """Whether it was, before it came to its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            changed_until(line, home)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.plain
def test_a_change_that_is_killed_anywhere_leaves_the_old_key_or_the_new_one(
    home: Path, service: CheckpointService
) -> None:
    """At every line of it, by kill -9, which the next start finds and mends."""
    written, seen, leftovers, line = set[str](), set[str](), set[str](), 0
    written.add(service.create_checkpoint("task", "agent").revision)
    service.close()
    while killed_at(line, home):
        leftovers |= key_files(home)
        with closing(CheckpointService(home=home)) as again:
            made = again.create_checkpoint("task", "agent")
            done = again.finalize_checkpoint(made.metadata.checkpoint_id)
            written |= {made.revision, done.revision}
            assert sound(again.node) == [], line
            seen.add(again.node.store.device_id)
            assert written <= {row[0] for row in again.node.store.rows("all_ids")}, line
            keys = dict(again.node.store.rows("device_keys"))
            assert len(set(keys.values())) == len(keys), "each id has a key of its own"
        assert key_files(home) == {"signing.pem"}, line
        line += full(2, 1)
    assert line > 50
    assert len(seen) > 1, "none of them was killed after it was done: this run proves little"
    assert leftovers == {"signing.pem", "signing.pem.old", "signing.pem.next"}


@pytest.mark.parametrize("point", ["begin_anew", "synced", "_put_in_place", "_sign_rest"])
def test_a_change_that_fails_leaves_everything_as_it_was(
    home: Path, service: CheckpointService, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    made = service.create_checkpoint("task", "agent")
    before = service.node.store.device_id, service.node.key.public()

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise InvalidInputError("the disk is full")

    monkeypatch.setattr(rotation, point, fail)
    with pytest.raises(InvalidInputError, match="the disk is full"):
        sealing.rotate_signing(service.node)
    assert (service.node.store.device_id, service.node.key.public()) == before
    assert key_files(home) == {"signing.pem"}
    service.finalize_checkpoint(made.metadata.checkpoint_id)
    assert sound(service.node) == []


# --- with others --------------------------------------------------------------------------------


def test_a_key_changed_offline_with_entries_that_were_not_sent(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    first = ann.create()
    team.settle(ann, bob)
    old = device_of(ann)
    for number in range(3):
        ann.update(first, f"not sent {number}")
    new = rotated(ann)
    ann.ok("checkpoint", "finalize", ann.create("u"))
    assert status(ann)["push"]["pending"] == 6
    assert ann.sync()["pushed"] == 6
    team.machine()
    team.agree()
    counts = bob.sql("SELECT device_id, count(*) FROM log GROUP BY 1 ORDER BY min(seq)")
    assert counts == [(old, 4), (new, 3)]
    keys = dict(bob.sql("SELECT device_id, hex(public_key) FROM devices"))
    assert keys[old] != keys[new]


@pytest.mark.proof
def test_keys_changed_again_and_again(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ids = [device_of(ann)]
    for sync in (True, False, False, True):
        ann.create()
        ids += [rotated(ann), rotated(ann)]
        if sync:
            ann.sync()
        bob.create("u")
    ann.ok("checkpoint", "finalize", ann.create())
    team.machine()
    team.agree()
    assert [former["device_id"] for former in ann.json("keys", "show")["former"]] == ids[:-1]
    said = dict(
        bob.sql("SELECT device_id, meta ->> '$.continues.device_id' FROM log WHERE entity = 'key'")
    )
    assert said == dict(zip(ids[1:], ids, strict=False))


@pytest.mark.plain
@pytest.mark.parametrize("mode", [AT_REST, END_TO_END])
def test_a_key_changed_where_everything_is_sealed(team: Team, mode: str) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", mode)
    if mode == END_TO_END:
        bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    first = ann.create("t", "--focus", "before")
    rotated(ann, "--reason", "canary-1b6e2")
    ann.update(first, "after")
    team.agree()
    assert bob.json("checkpoint", "show", first)["execution_state"]["current_focus"] == "before"
    assert files_with(ann.home, "canary-1b6e2") == set()
    ann.ok("keys", "rotate")
    rotated(ann)
    ann.create("t")
    if mode == AT_REST:
        team.agree()


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_daemon_goes_on_with_the_new_key(
    team: Team, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    ann, bob = team.machine(), team.machine()
    with online(ann, bob) as (daemon, _):
        arrives(ann.create(), bob)
        if told:
            rotated(ann)
            until(lambda: daemon.events("read the settings again"))
        else:
            monkeypatch.setattr(running, "pid", lambda _: 0)
            with closing(Node(ann.home)) as node:
                sealing.rotate_signing(node)
        arrives(one := ann.create(), bob)
        final = ann.json("checkpoint", "finalize", one)["revision"]
        arrives(final, bob)
        assert daemon.events("not reached") == []
    team.agree()


def test_an_exchange_that_has_the_old_key_stops_and_says_so(crew: Crew) -> None:
    ann, bob = crew.device(), crew.device()
    ann.service.create_checkpoint("task", "agent")
    engine = ann.engine
    engine.sync()
    with closing(Node(ann.home)) as another:
        sealing.rotate_signing(another)
    for work in (engine.sync, engine.push, engine.asked, engine.meet):
        with pytest.raises(KeyChangedError):
            work()
    assert KeyChangedError("").passes
    known = crew.sql("SELECT device_id FROM syncd.devices WHERE organization_id = %s")
    assert len(known) == 1, "nothing was made known with the wrong key"
    assert ann.sync().pushed == 1
    bob.sync()
    assert bob.problems() == []


@pytest.mark.proof
def test_the_replica_restored_to_before_the_change(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.create()
    team.settle(ann, bob)
    dump = team.dumped()
    ann.create("u")
    ann.sync()
    ann.create("u")
    rotated(ann)
    ann.create()
    team.settle(ann, bob)
    team.restored(dump)
    assert ann.sync()["pushed"] == 4
    team.machine()
    team.agree()


def test_another_login_takes_what_was_not_sent_under_the_old_key(team: Team) -> None:
    """The old id stays the first login's, and the key that could sign for a new one is gone."""
    ann, bob = team.machine(), team.machine()
    ann.create()
    team.settle(ann, bob)
    ann.create("u")
    rotated(ann)
    ann.create("u")
    ann.environment["SYNCD_CLOUD_DSN"] = team.login()
    team.agree()
    assert len(bob.sql("SELECT DISTINCT device_id FROM log")) == 3
    assert orjson.loads(ann.state("left")) == [former_of(ann)[0]], "it is not asked for again"


def test_another_login_before_anything_came_under_the_new_key(team: Team) -> None:
    """The id that the old key vouched for is the first login's, and was never used: what was said
    of it stays true."""
    ann, bob = team.machine(), team.machine()
    ann.create()
    team.settle(ann, bob)
    ids = [device_of(ann), rotated(ann)]
    ann.ok("sync", "--pull-only")
    ann.environment["SYNCD_CLOUD_DSN"] = team.login()
    ann.create()
    team.agree()
    [(device, about, meta)] = bob.sql(
        "SELECT device_id, entity_id, meta FROM log WHERE entity = 'key'"
    )
    assert (about, orjson.loads(meta)["continues"]["device_id"]) == (ids[1], ids[0])
    assert device == device_of(ann)
    assert device not in ids


@pytest.mark.proof
def test_a_copy_that_writes_while_the_other_one_fetches(crew: Crew) -> None:
    """What the old key signed here and was not sent parts from what it signed there, at any moment
    of the exchange."""
    for call in range(1, 12):
        ann = crew.device()
        ann.service.create_checkpoint("task", "agent")
        ann.sync()
        copy = crew.joined(ann.clone(crew.home()))
        ann.service.create_checkpoint("task", "agent")
        sealing.rotate_signing(ann.node)

        def beside(copy: Device = copy) -> None:
            copy.service.create_checkpoint("task", "agent")
            copy.sync()

        ann.replica.arm(call, BEFORE, beside)
        ann.sync(push=False)
        ann.replica.disarm()
    crew.settle()
    for device in crew.devices:
        assert device.problems() == []
        assert device.rows("SELECT reason FROM quarantine") == []
        assert device.proof().ok


def test_what_cannot_be_signed_any_more_does_not_keep_back_the_rest(team: Team) -> None:
    """One entry in the middle of a batch, which the replica has lost."""
    ann, bob = team.machine(), team.machine()
    lost = ann.create()
    ann.create()
    team.settle(ann, bob)
    rotated(ann)
    ann.sync()
    team.sql("DELETE FROM syncd.log WHERE entry_id = %s", lost)
    assert ann.run("prove", "--repair", "--json").json()["missing_in_cloud"] == [lost]
    arrived = ann.create()
    assert ann.sync()["pushed"] == 1
    bob.sync()
    assert bob.json("checkpoint", "show", arrived)["verified"]


def test_what_is_said_of_a_key_is_not_written_again(team: Team) -> None:
    ann = team.blank()
    ann.create()
    rotated(ann)
    [(entry,)] = ann.sql("SELECT entry_id FROM log WHERE entity = 'key'")
    ann.sql(
        "INSERT INTO quarantine VALUES (?, ?, 'refused', '', 'open', '')", entry, device_of(ann)
    )
    assert "quarantine drop" in ann.fails(2, "quarantine", "retry", entry)["remedy"]
    ann.ok("quarantine", "drop", entry)


# --- a database from before the change ------------------------------------------------------------


@pytest.mark.variants
@pytest.mark.parametrize("unsent", ["nothing", "sent later", "never sent"])
def test_a_backup_from_before_the_change_comes_back_and_heals(team: Team, unsent: str) -> None:
    """The database has the old id again, and nobody has its key."""
    ann, bob = team.machine(), team.machine()
    first = ann.create()
    team.settle(ann, bob)
    if unsent != "nothing":
        ann.update(first, "not sent")
        ann.create("u")
    backup = ann.json("backup", "create")
    if unsent == "sent later":
        ann.sync()
    ann.create("u")
    ids = [device_of(ann), rotated(ann)]
    if unsent != "never sent":
        ann.create("u")
        ann.sync()
    else:
        ann.written = {row[0] for row in ann.sql("SELECT entry_id FROM log LIMIT 3")}
    ann.restored(backup)
    assert device_of(ann) not in ids
    ann.ok("checkpoint", "finalize", ann.create("v"))
    ann.update(first, "after the restore")
    assert ann.json("audit", "verify")["ok"]
    team.machine()
    team.agree()
    assert device_of(ann) not in ids
    assert ids[0] in {former["device_id"] for former in ann.json("keys", "show")["former"]}
    rotated(ann)
    team.agree()


def test_a_backup_from_before_the_change_comes_back_under_a_running_daemon(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    with online(ann, bob):
        arrives(ann.create(), bob)
        backup = ann.json("backup", "create")
        arrives(ann.create(), bob)
        rotated(ann)
        arrives(ann.create(), bob)
        ann.restored(backup)
        arrives(ann.create(), bob)
        arrives(ann.json("checkpoint", "finalize", ann.create())["revision"], bob)
    team.agree()


def test_a_backup_from_before_the_change_comes_back_where_there_is_no_replica(
    team: Team, tmp_path: Path
) -> None:
    ann = team.blank()
    ann.create("t")
    backup = ann.json("backup", "create")
    rotated(ann)
    ann.restored(backup)
    ann.create("t")
    ann.ok("checkpoint", "finalize", ann.create("t"))
    assert ann.json("audit", "verify")["ok"]
    ann.ok("audit", "export", "t", "--output", str(tmp_path / "evidence"))


@pytest.mark.parametrize("met", [False, True], ids=["before they met", "after they met"])
def test_a_database_that_comes_back_after_every_change(crew: Crew, met: bool) -> None:
    """What it has and nobody can sign any more was sent under an id with a key that is gone, too:
    it is not sent a second time."""
    ann, bob = crew.device(), crew.device()
    if met:
        ann.service.create_checkpoint("task", "agent")
        ann.sync()
    for _ in range(2):
        made = ann.service.create_checkpoint("task", "agent")
        ann.service.update_checkpoint(
            made.metadata.checkpoint_id, {"execution_state": {"current_focus": "unsigned"}}
        )
    copy = ann.copy(crew.place / "copy.db")
    for number in range(4):
        sealing.rotate_signing(ann.node)
        ann.restore(copy)
        if number % 2:
            ann.service.finalize_checkpoint(made.metadata.checkpoint_id)
        ann.sync()
        assert ann.problems() == []
    crew.settle()
    for device in crew.devices:
        assert device.problems() == []
        assert device.proof().ok
        assert device.rows("SELECT refused FROM log WHERE refused IS NOT NULL") == []
    assert sorted(bob.entry_ids()) == sorted(ann.entry_ids())


def test_signatures_that_are_too_far_apart_for_a_batch_are_made_anew(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch must end with one, and the key that made them is gone."""
    monkeypatch.setattr(exchange, "BATCH_ROWS", 3)
    ann, bob = crew.device(), crew.device()
    for unsigned in (2, 5):
        for _ in range(unsigned):
            made = ann.service.create_checkpoint("task", "agent")
        ann.service.finalize_checkpoint(made.metadata.checkpoint_id)
    copy = ann.copy(crew.place / "copy.db")
    before = ann.exchange.device_id
    sealing.rotate_signing(ann.node)
    ann.restore(copy)
    crew.settle()
    assert ann.exchange.sendable_to(before, 0) == 3
    for device in crew.devices:
        assert device.problems() == []
        assert device.proof().ok
    assert sorted(bob.entry_ids()) == sorted(ann.entry_ids())


def test_a_key_that_was_lost_costs_the_id_and_nothing_else(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.create()
    team.settle(ann, bob)
    ann.create()
    before = device_of(ann)
    (ann.home / "keys" / "signing.pem").unlink()
    ann.create()
    assert f"the signing key of {ann.home} is gone" in ann.ok("sync").err
    team.agree()
    assert device_of(ann) != before


def test_what_was_not_signed_before_its_key_was_lost_is_no_evidence_until_it_is_sent(
    team: Team, tmp_path: Path
) -> None:
    ann, file = team.blank(), str(tmp_path / "evidence")
    ann.create()
    (ann.home / "keys" / "signing.pem").unlink()
    ann.create()
    assert "is gone" in ann.ok("keys", "show").err
    assert "not signed" in ann.fails(1, "audit", "export", "t", "--output", file)["message"]
    assert not Path(file).exists()
    ann.ok("login", team.login("ann", "laptop"))
    ann.sync()
    ann.ok("audit", "export", "t", "--output", file)
    assert ann.json("audit", "verify", file)["ok"]


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.variants
@pytest.mark.parametrize("who", ["the copy", "the original", "both"])
@pytest.mark.parametrize("unsent", [False, True], ids=["all sent", "some unsent"])
def test_a_copied_home_and_a_change_of_the_key(
    team: Team, tmp_path: Path, who: str, unsent: bool
) -> None:
    """Both wrote under the old id before; the old key has signed both."""
    ann, bob = team.machine(), team.machine()
    first = ann.create()
    team.settle(ann, bob)
    copy = ann.copied_to(tmp_path / "copy")
    team.machines.append(copy)
    for machine, name in ((ann, "the original"), (copy, "the copy")):
        if unsent:
            machine.update(first, f"by {name}")
            machine.create("u")
        if who in (name, "both"):
            rotated(machine)
        machine.create("v")
    team.agree()
    assert device_of(ann) != device_of(copy)


@pytest.mark.proof
@pytest.mark.variants
@pytest.mark.parametrize("both", [True, False], ids=["both changed", "one changed"])
@pytest.mark.parametrize("changed_first", [True, False], ids=["this one first", "that one first"])
def test_copies_that_part_with_the_same_entries_and_have_different_keys(
    team: Team, tmp_path: Path, both: bool, changed_first: bool
) -> None:
    """Who comes first brings them; the other one finds them there."""
    ann, bob = team.machine(), team.machine()
    ann.create()
    team.settle(ann, bob)
    other = ann.copied_to(tmp_path / "other")
    ann.ok("checkpoint", "finalize", ann.create("u"))
    copy = ann.copied_to(tmp_path / "copy")
    team.machines += [other, copy]
    other.create("v")
    other.sync()
    rotated(copy)
    if both:
        rotated(ann)
    ann.create("u")
    copy.create("w")
    for machine in (copy, ann) if changed_first else (ann, copy):
        machine.sync()
    ann.create("u")
    copy.create("w")
    team.agree()


@pytest.mark.parametrize("image", [False, True], ids=["cp -a", "disk image"])
def test_a_home_that_is_copied_after_the_change(team: Team, tmp_path: Path, image: bool) -> None:
    ann = team.machine()
    ann.create()
    rotated(ann)
    ann.sync()
    copy = ann.copied_to(tmp_path / "copy", image=image)
    team.machines.append(copy)
    for machine in (ann, copy):
        machine.ok("checkpoint", "finalize", machine.create())
    team.agree()
    assert device_of(ann) != device_of(copy)


# --- those who would take a place that is not theirs ----------------------------------------------


@pytest.fixture
def stage(crew: Crew) -> tuple[Device, Device, Person]:
    """One who has changed her key, one who watches, and one who has a login and bad intentions."""
    ann, bob = crew.device(), crew.device()
    ann.service.create_checkpoint("task", "agent")
    sealing.rotate_signing(ann.node)
    ann.sync()
    return ann, bob, crew.cloud.person(crew.organization_id)


def forged(ann: Device, person: Person, how: str) -> dict[str, Any]:
    """The meta of a key entry that is not true."""
    meta: dict[str, Any] = key_entry(ann.node)["meta"]
    old, chain = meta["continues"]["device_id"], bytes.fromhex(meta["continues"]["chain"])
    key, new = person.writer.key, person.writer.device_id
    true = Succession(old, 1, chain, new, key.public())
    if how == "by its own key":
        return true.meta(key)
    if how == "replayed":
        return {**meta, "public_key": key.public().hex()}
    if how == "replayed as it is":
        return meta
    if how == "a signature made for a chain":
        signature: bytes = ann.rows("SELECT signature FROM log WHERE device_id = ?", old)[0][0]
        return {**true.meta(key), "endorsement": signature.hex()}
    if how == "of nobody":
        return true._replace(old=uuid7()).meta(key)
    assert how == "no words"
    return {**true.meta(key), "endorsement": "x"}


FORGERIES = {
    "by its own key": NOT_ENDORSED,
    "replayed": NOT_ENDORSED,
    "replayed as it is": NOT_ENDORSED,
    "a signature made for a chain": NOT_ENDORSED,
    "of nobody": "the device that it says it continues is not known",
    "no words": "its meta is incomplete",
}


@pytest.mark.parametrize("how", FORGERIES)
def test_nobody_continues_a_device_without_its_word(
    stage: tuple[Device, Device, Person], how: str
) -> None:
    ann, bob, mallory = stage
    writer = mallory.writer
    meta = forged(ann, mallory, how)
    claim = writer.append(Draft(uuid7(), KEY, writer.device_id, CREATE, "m", meta, b"{}"))
    verdicts = mallory.push(claim, writer.create())
    assert {verdict.verdict for verdict in verdicts} == {"accepted"}, "the replica cannot tell"
    bob.sync()
    assert bob.problems() == []
    held = dict(bob.rows("SELECT entry_id, reason FROM quarantine"))
    assert held.pop(claim.entry_id) == FORGERIES[how]
    assert set(held.values()) == {"it does not follow entry 0 of its device"}
    known = set(bob.exchange.keys())
    assert writer.device_id not in known
    assert ann.node.store.device_id in known, "the true one was taken"


def test_a_device_vouches_even_where_what_it_wrote_is_held_back(
    crew: Crew, stage: tuple[Device, Device, Person]
) -> None:
    """Its key is pinned with the one that it vouches for."""
    ann, bob, _ = stage
    old = key_entry(ann.node)["meta"]["continues"]["device_id"]
    crew.sql("UPDATE syncd.log SET body = '{}' WHERE device_id = %s AND organization_id = %s", old)
    bob.sync()
    assert {row[0] for row in bob.rows("SELECT device_id FROM quarantine")} == {old}
    assert {row[0] for row in bob.rows("SELECT device_id FROM log")} == {ann.node.store.device_id}
    assert bob.problems() == []
    assert bob.exchange.keys()[old] == ann.exchange.keys()[old]


@pytest.mark.parametrize("place", ["second", "of another device"])
def test_a_key_entry_in_another_place(
    crew: Crew, stage: tuple[Device, Device, Person], place: str
) -> None:
    """Later than first, it is nothing. About another device it is as true as it ever was, and says
    nothing of the one that repeats it."""
    ann, bob, mallory = stage
    writer = mallory.writer
    true = key_entry(ann.node)
    name = writer.device_id if place == "second" else true["entity_id"]
    first = writer.create()
    claim = writer.append(Draft(uuid7(), KEY, name, CREATE, "m", true["meta"], b"{}"))
    mallory.push(first, claim)
    bob.sync()
    held = dict(bob.rows("SELECT entry_id, reason FROM quarantine"))
    assert held == ({claim.entry_id: NOT_ENDORSED} if place == "second" else {})
    assert bob.problems() == []
    assert bob.rows("SELECT * FROM conflicts") == [], "it is nothing that a user could decide"
    assert crew.sql("SELECT * FROM syncd.conflicts WHERE organization_id = %s") == []


@pytest.mark.parametrize("whose", ["the new one", "the old one"])
def test_keys_that_are_exchanged_at_the_replica_deceive_nobody(
    crew: Crew, stage: tuple[Device, Device, Person], whose: str
) -> None:
    ann, bob, mallory = stage
    old = key_entry(ann.node)["meta"]["continues"]["device_id"]
    device = {"the new one": ann.node.store.device_id, "the old one": old}
    crew.sql("UPDATE syncd.devices SET public_key = %s WHERE device_id = %s"
             " AND organization_id = %s", mallory.writer.key.public(), device[whose])  # fmt: skip
    bob.sync()
    held = bob.rows("SELECT device_id FROM quarantine")
    assert (device[whose],) in held
    assert (device["the new one"],) in held, "what the old one vouches for falls with it"
    assert bob.problems() == []
    with pytest.raises(TamperedError, match="another key"):
        ann.sync()


def test_an_audit_finds_a_key_that_the_old_one_did_not_vouch_for(
    service: CheckpointService,
) -> None:
    service.create_checkpoint("task", "agent")
    old = service.node.store.device_id
    sealing.rotate_signing(service.node)
    assert sound(service.node) == []
    connection = service.node.store.connection
    values = (SigningKey.new().public(), old)
    connection.execute("UPDATE devices SET public_key = ? WHERE device_id = ?", values)
    assert NOT_ENDORSED in sound(service.node)
    connection.execute("DELETE FROM devices WHERE device_id = ?", (old,))
    assert "the device that it says it continues is not known" in sound(service.node)


def test_each_word_of_an_endorsement_counts() -> None:
    old_key, new_key, other = SigningKey.new(), SigningKey.new(), SigningKey.new()
    true = Succession("a", 7, GENESIS, "b", new_key.public())
    keys = {"a": old_key.public(), "b": new_key.public(), "c": other.public()}
    meta = true.meta(old_key)
    assert unendorsed("b", 1, "b", meta, keys) is None
    for changed in (
        true._replace(old="c"),
        true._replace(chain=bytes(31) + b"\1"),
        true._replace(new="c"),
        true._replace(public_key=other.public()),
    ):
        said = {**changed.meta(old_key), "endorsement": meta["endorsement"]}
        known = {**keys, changed.new: changed.public_key}
        assert unendorsed(changed.new, 1, changed.new, said, known) == NOT_ENDORSED
    assert unendorsed("b", 1, "b", true.meta(other), keys) == NOT_ENDORSED
    assert unendorsed("b", 2, "b", meta, keys) == NOT_ENDORSED
    assert unendorsed("d", 3, "b", meta, keys) is None, "moved, and still true of b"


# --- history ------------------------------------------------------------------------------------


def test_the_list_of_machines_tells_which_device_continues_which(team: Team) -> None:
    ann = team.machine()
    ann.create()
    ids = [device_of(ann), rotated(ann), rotated(ann)]
    ann.sync()
    [machine] = ann.json("device", "list")
    assert set(machine["devices"]) == set(ids)
    assert machine["continues"] == {ids[1]: ids[0], ids[2]: ids[1]}
    listed = team.administrator().json("admin", "device", "list", team.organization)
    assert listed[0]["continues"] == machine["continues"]


def test_what_a_revoked_machine_wrote_stays_verifiable_and_nothing_new_comes(team: Team) -> None:
    ann = team.machine(team.login("ann", "desktop"))
    laptop, bob = team.machine(ann.json("device", "add", "laptop")["dsn"]), team.machine()
    laptop.create("t")
    rotated(laptop)
    laptop.ok("checkpoint", "finalize", laptop.create("t"))
    team.settle(laptop, ann, bob)
    ann.ok("device", "revoke", "laptop")
    laptop.create("t")
    rotated(laptop)
    assert "revoked" in laptop.fails(1, "sync")["message"]
    late = team.machine()
    for machine in (ann, bob, late):
        machine.sync()
        report = machine.json("audit", "verify", "--cloud")
        assert report["ok"]
        assert report["entries"] == 4
        assert machine.json("status")["quarantined"] == 0
