"""What is sealed: no plain byte of it anywhere, and nobody who has the key loses anything."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest
from counts import full
from machines import Machine, Runner, Team, runner, team

from syncd import CheckpointService, backup, bodies, config, keychain, retention, sealing, tasks
from syncd.audit import verify
from syncd.diagnosis import doctor
from syncd.errors import (
    CheckpointCorruptionError,
    ConfigError,
    KeyMissingError,
)
from syncd.keychain import AT_REST, END_TO_END, DataKey, Keychain
from syncd.node import Node

__all__ = ["runner", "team"]

CANARY = "canary-41c7e0b2"
MODES = (AT_REST, END_TO_END)
TESTS = Path(__file__).parent


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SYNCD_ENCRYPTION", request.param)
    return str(request.param)


def holding(folder: Path, text: str = CANARY) -> set[str]:
    """The files below a folder that have these bytes anywhere in them, as they are or in hex."""
    words = (text.encode(), text.encode().hex().encode())
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.name for file in files if any(word in file.read_bytes() for word in words)}


def written(service: CheckpointService, text: str = CANARY, task: str = "task") -> str:
    """Whatever a user can say, in every kind of entry; the id of a checkpoint."""
    state = {"current_focus": text, "completed_items": [text], "blocked_items": [text]}
    made = service.create_checkpoint(task, "agent", execution_state=state)
    one = made.metadata.checkpoint_id
    service.update_checkpoint(one, {"context_summary": {"key_decisions": [text]}})
    gone = service.create_checkpoint(task, "agent", execution_state=state).metadata.checkpoint_id
    service.link_checkpoints(one, gone)
    tasks.add(service.node, task, title=text, description=text)
    service.node.back_up()
    retention.erase(service.node, gone, text)
    service.finalize_checkpoint(one, sign_as=text, meaning=text)
    service.node.back_up()
    return one


def documents(service: CheckpointService) -> list[dict[str, Any]]:
    """Without their signatures: a backup signs the newest."""
    found = [c.to_dict() for c in service.get_checkpoint_history("task", limit=100)]
    for document in found:
        del document["compliance"]["signature"]
    return found


def sound(service: CheckpointService) -> bool:
    return verify(service.node.store, service.node.key.public()).problems == []


def reopened(home: Path) -> CheckpointService:
    return CheckpointService(home=home)


# --- no plain byte ------------------------------------------------------------------------------


def test_a_search_finds_what_is_not_sealed(service: CheckpointService) -> None:
    written(service)
    found = holding(service.node.home)
    assert "context.db" in found or "context.db-wal" in found
    assert sum(name.endswith(".db") and name.startswith("context-") for name in found) == 2


def test_no_file_of_a_home_has_a_plain_byte_of_what_is_sealed(
    mode: str, service: CheckpointService
) -> None:
    one = written(service)
    assert holding(service.node.home) == set()
    assert service.get_checkpoint(one).execution_state.current_focus == CANARY
    assert tasks.show(service.node, "task")["title"] == CANARY
    assert sound(service)
    service.close()
    assert holding(service.node.home) == set()
    with closing(reopened(service.node.home)) as again:
        assert again.get_checkpoint(one).compliance.signed_by.name == CANARY  # type: ignore[union-attr]
        assert again.get_checkpoint(one).verify_integrity()


def test_what_arrives_is_sealed_where_it_arrives_and_plain_at_the_replica_only_if_it_may_be(
    team: Team,
) -> None:
    ann, bob = team.machine(), team.machine()
    for machine in (ann, bob):
        machine.environment["SYNCD_ENCRYPTION"] = AT_REST
    one = ann.create("t", "--focus", CANARY)
    team.settle(ann, bob)
    assert holding(ann.home) == holding(bob.home) == set()
    assert bob.json("checkpoint", "show", one)["execution_state"]["current_focus"] == CANARY
    [(found, key)] = team.sql("SELECT checkpoint_data::text, key_id FROM syncd.checkpoints"
                              " JOIN syncd.log USING (organization_id, entry_id)")  # fmt: skip
    assert (CANARY in found, key) == (True, "")
    team.agree()


def test_what_is_in_quarantine_is_sealed_too(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    bob.environment["SYNCD_ENCRYPTION"] = AT_REST
    ann.create("t", "--focus", CANARY)
    ann.sync()
    team.sql("ALTER TABLE syncd.log DISABLE TRIGGER ALL")
    team.sql("UPDATE syncd.log SET body = body || ' '::bytea")
    bob.sync()
    assert [q["reason"] for q in bob.json("quarantine", "list")] == [
        "its body does not match its hash"
    ]
    assert holding(bob.home) == set()


def test_nothing_at_the_replica_has_a_plain_byte_of_what_is_sealed_end_to_end(team: Team) -> None:
    sealed_text, plain_text = f"canary-{uuid.uuid4()}", f"planted-{uuid.uuid4()}"
    ann = team.machine()
    team.sql("ALTER SYSTEM SET log_statement = 'all'")
    team.sql("SELECT pg_reload_conf()")
    try:
        ann.create("t", "--focus", plain_text)
        ann.sync()
        assert holding_at(team, plain_text), "what is plain is found"
        ann.ok("keys", "encrypt", "--mode", END_TO_END)
        one = ann.create("t", "--focus", sealed_text, "--decision", sealed_text)
        ann.update(one, sealed_text)
        ann.ok("task", "add", "t", "--title", sealed_text)
        ann.ok("erase", one, "--yes", "--reason", sealed_text)
        ann.sync()
        assert holding_at(team, sealed_text) == set()
    finally:
        team.sql("ALTER SYSTEM RESET log_statement")
        team.sql("SELECT pg_reload_conf()")
    rows = team.sql("SELECT agent_id, phase, status, checkpoint_data FROM syncd.checkpoints"
                    " WHERE checkpoint_data IS NULL")  # fmt: skip
    assert ("ann", "planning", "in_progress", None) in rows, "what queries need is there"


def holding_at(team: Team, text: str) -> set[str]:
    """Files of the server, its log and a dump included, that have these bytes."""
    team.sql("CHECKPOINT")
    found = holding(team.cluster.base, text)
    dump = team.dumped()
    words = subprocess.run(["strings", "-n", "6", str(dump)], capture_output=True).stdout
    plain = dump.read_bytes() + words
    return found | ({"dump"} if text.encode() in plain else set())


# --- turned on and off --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODES)
def test_a_home_is_sealed_and_opened_again_as_it_was(service: CheckpointService, kind: str) -> None:
    node = service.node
    written(service)
    for number in range(450):
        service.create_checkpoint("task", f"agent {number}")
    before, rows = documents(service), _bodies(node)
    assert holding(node.home)
    done = sealing.encrypt(node, kind)
    assert done["not_cleaned"] == []
    assert done["sealed"] == len([body for body in rows.values() if body])
    assert holding(node.home) == set(), "backups from before included"
    assert documents(service) == before
    assert sound(service)
    assert sealing.shown(node)["plain"] == 0
    assert sealing.encrypt(node, kind)["sealed"] == 0
    assert sealing.decrypt(node)["still_sealed"] == 0
    assert _bodies(node) == rows
    assert documents(service) == before
    assert sound(service)


def _bodies(node: Node) -> dict[str, bytes]:
    return dict(node.store.connection.execute("SELECT entry_id, body FROM log").fetchall())


@pytest.mark.parametrize("point", ["bodies", "rest", "rewriting", "backups"])
def test_what_was_cut_off_is_done_by_the_next_run(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    node = service.node
    written(service)
    for number in range(450):
        service.create_checkpoint(
            "task", f"agent {number}", execution_state={"current_focus": CANARY}
        )
    before = documents(service)
    pieces = iter(range(1))
    seal = bodies.seal

    def dying(*words: Any, **_: Any) -> Any:
        if point == "bodies" and next(pieces, None) is not None:
            return seal(*words)
        raise KeyboardInterrupt

    places = {"bodies": (bodies, "seal"), "rest": (bodies, "seal_rest"),
              "rewriting": (sealing, "rewritten"), "backups": (backup, "seal")}  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(*places[point], dying)
        with pytest.raises(KeyboardInterrupt):
            sealing.encrypt(node, AT_REST)
    assert holding(node.home), "half done"
    with closing(reopened(node.home)) as again:
        assert again.node.vault.mode == AT_REST
        assert documents(again) == before
        sealing.complete(again.node)
        assert holding(node.home) == set()
        assert documents(again) == before
        assert sound(again)


def test_what_a_program_that_ran_on_wrote_plain_is_sealed_later(home: Path) -> None:
    with closing(reopened(home)) as running:
        written(running, "before")
        with closing(Node(home)) as other:
            sealing.encrypt(other, AT_REST)
        one = written(running, task="another")
        assert holding(home)
        running.node.reload()
        assert {c.name: c.state for c in doctor(running.node)}["encryption"] == "attention"
        with closing(Node(home)) as daemon:
            sealing.complete(daemon)
        assert holding(home) == set()
        assert {c.name: c.state for c in doctor(running.node)}["encryption"] == "ok"
        assert running.get_checkpoint(one).execution_state.current_focus == CANARY


def test_a_backup_from_before_is_sealed_when_it_is_restored(team: Team) -> None:
    ann = team.machine()
    one = ann.create("t", "--focus", CANARY)
    made = Path(ann.json("backup", "create")["path"])
    kept = made.rename(ann.home.parent / "elsewhere.db")
    assert CANARY.encode() in kept.read_bytes()
    ann.ok("keys", "encrypt")
    ann.ok("backup", "restore", str(kept))
    assert holding(ann.home) == set()
    assert ann.json("checkpoint", "show", one)["execution_state"]["current_focus"] == CANARY


def test_a_backup_of_a_home_that_seals_is_restored_with_its_key(team: Team) -> None:
    ann = team.machine()
    ann.ok("keys", "encrypt")
    one = ann.create("t", "--focus", CANARY)
    made = ann.json("backup", "create")
    ann.create("t", "--focus", "after the backup")
    assert ann.json("backup", "restore", made["name"])["only_in_replaced"] == 1
    assert holding(ann.home) == set()
    assert ann.json("checkpoint", "latest", "t")["metadata"]["checkpoint_id"] == one


def test_a_setting_in_the_environment_that_overrules_it_is_named(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(service)
    monkeypatch.setenv("SYNCD_ENCRYPTION", "none")
    service.node.reload()
    with pytest.raises(ConfigError, match="SYNCD_ENCRYPTION=none"):
        sealing.encrypt(service.node, AT_REST)
    assert not (service.node.home / "keys" / "data.json").exists()
    monkeypatch.setenv("SYNCD_ENCRYPTION", "everything")
    with pytest.raises(ConfigError, match="must be one of none, at_rest, end_to_end"):
        service.node.reload()


@pytest.mark.parametrize("kind", MODES)
def test_what_the_environment_said_of_a_new_home_holds_without_it(
    runner: Runner, tmp_path: Path, kind: str
) -> None:
    first = Machine(runner, tmp_path / "home", SYNCD_ENCRYPTION=kind)
    first.create("t", "--focus", CANARY)
    older = Machine(runner, tmp_path / "older")
    older.create()
    older.environment["SYNCD_ENCRYPTION"] = kind
    older.create()
    assert not (older.home / "config.toml").exists()
    later = Machine(runner, tmp_path / "home")
    later.create("t", "--focus", CANARY)
    assert (later.json("keys", "show")["encryption"], holding(later.home)) == (kind, set())


def test_status_and_doctor_say_that_nothing_here_can_be_opened(team: Team, tmp_path: Path) -> None:
    ann = team.machine()
    ann.create("t")
    ann.ok("keys", "encrypt")
    ann.sync()
    assert ann.run("status").code == 0
    for file in (ann.home / "keys" / "data.json", *(ann.home / "keys").glob("master*")):
        kept = file.rename(tmp_path / "kept")
        status = ann.run("status", "--json")
        [need] = status.json()["attention"]
        assert (status.code, str(file) in need["what"]) == (3, True)
        checks = {c["name"]: c for c in ann.run("doctor", "--json").json()["checks"]}
        assert checks["encryption"]["state"] == "attention"
        assert str(file) in checks["encryption"]["detail"]
        kept.rename(file)
    assert ann.run("status").code == 0


def test_doctor_tries_the_passphrase(team: Team) -> None:
    ann = team.machine()
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    ann.create("t")
    ann.ok("keys", "encrypt", "--passphrase")
    assert "attention" not in ann.ok("doctor").out
    for given, told in (("wrong", "not the passphrase"), ("", "need their passphrase")):
        ann.environment["SYNCD_KEYS_PASSPHRASE"] = given
        assert told in ann.run("doctor").out


def test_without_its_passphrase_a_home_is_not_made_plain(team: Team) -> None:
    """It would write plain from then on, and what is sealed would stay so."""
    ann = team.machine()
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    one = ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt", "--passphrase")
    before = (ann.home / "config.toml").read_text()
    for given, told in (("wrong", "not the passphrase"), ("", "need their passphrase")):
        error = ann.fails(1, "keys", "decrypt", SYNCD_KEYS_PASSPHRASE=given)
        assert told in error["message"]
        assert (ann.home / "config.toml").read_text() == before
    assert ann.json("keys", "decrypt") == {"encryption": "none", "opened": 1, "still_sealed": 0}
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = ""
    assert ann.json("checkpoint", "show", one)["verified"]


def test_doctor_tries_the_keys_of_what_is_sealed_also_where_nothing_is_sealed_any_more(
    team: Team,
) -> None:
    ann = team.machine()
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    ann.create("t")
    ann.ok("keys", "encrypt", "--passphrase")
    (ann.home / "config.toml").write_text('encryption = "none"\n')
    assert "need their passphrase" in ann.run("doctor", SYNCD_KEYS_PASSPHRASE="").out
    assert "need their passphrase" not in ann.run("doctor").out


# --- two machines -------------------------------------------------------------------------------


def test_a_second_machine_reads_once_it_has_the_key_and_loses_nothing_before(team: Team) -> None:
    sealed_text = f"canary-{uuid.uuid4()}"
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    one = ann.create("t", "--focus", sealed_text)
    ann.sync()
    assert bob.sync()["pulled"] == 1
    key = ann.json("keys", "show")["keys"][-1]["id"]
    error = bob.fails(1, "checkpoint", "show", one)
    assert error["code"] == "key_missing"
    assert key in error["message"]
    assert "keys import" in error["remedy"]
    said = bob.run("status", "--json")
    assert said.code == 3
    need = said.json()["attention"][0]["what"]
    assert key in need
    assert "what is written here can be read at the replica" in need
    assert bob.json("keys", "show")["missing"] == [key]
    assert bob.json("audit", "verify")["ok"], "as far as can be told without the key"
    assert bob.json("prove")["ok"]
    bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    assert bob.json("checkpoint", "show", one)["execution_state"]["current_focus"] == sealed_text
    assert bob.run("status").code == 0
    two = bob.create("t", "--focus", f"{sealed_text} too")
    team.settle(ann, bob)
    assert ann.json("checkpoint", "show", two)["execution_state"]["current_focus"]
    assert holding_at(team, sealed_text) == set()
    team.agree()


def test_lists_leave_out_what_is_sealed_by_others_and_say_so(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    before, _sealed = bob.create("t", "--focus", "canary one"), ann.create("t", "--focus", "x")
    sealed = ann.create("t", "--focus", "canary two")
    after = bob.create("t", "--focus", "canary three")
    team.settle(ann, bob)
    key = ann.json("keys", "show")["keys"][-1]["id"]
    for words in (("list",), ("list", "--fallback"), ("search", "canary"),
                  ("search", "canary", "--fallback"), ("history", "t")):  # fmt: skip
        said = bob.ok("checkpoint", *words, "--json")
        assert [d["metadata"]["checkpoint_id"] for d in said.json()] == [after, before]
        (line,) = said.err.splitlines()
        assert line.startswith("Left out: 2 checkpoints whose key is missing")
        assert key in line
        assert "keys import" in line
    said = bob.ok("checkpoint", "list", "--limit", "3")
    assert "There are more than 3" in said.err
    assert "Left out" not in ann.ok("checkpoint", "list").err
    with closing(sqlite3.connect(bob.home / "context.db")) as database:
        database.execute("UPDATE log SET actor = 'eve' WHERE entity_id = ?", (sealed,))
        database.commit()
    for words in (("list",), ("search", "canary"), ("history", "t")):
        assert bob.fails(5, "checkpoint", *words)["code"] == "corrupt"
        assert sealed in bob.ok("checkpoint", *words, "--fallback").err


def test_conflicts_between_sealed_versions_are_shown_and_settled(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    one = ann.create()
    team.settle(ann, bob)
    ann.update(one, "by ann")
    bob.update(one, "by bob")
    team.settle(ann, bob)
    [conflict] = ann.json("conflicts", "list")
    shown = ann.json("conflicts", "show", conflict["id"])
    assert {"by ann", "by bob"} <= set(orjson.dumps(shown).decode().split('"'))
    ann.ok("conflicts", "restore", conflict["id"])
    team.settle(ann, bob)
    assert bob.json("conflicts", "list") == []
    team.agree()


def test_a_new_key_is_used_from_now_on_and_the_old_one_still_reads(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    one = ann.create("t", "--focus", "first")
    rows = ann.sql("SELECT hex(body) FROM log")
    new = ann.json("keys", "rotate")["key"]
    two = ann.create("t", "--focus", "second")
    assert ann.sql("SELECT hex(body) FROM log LIMIT 1") == rows, "nothing is sealed again"
    assert ann.sql("SELECT key_id FROM log ORDER BY seq DESC LIMIT 1") == [(new,)]
    team.settle(ann, bob)
    assert bob.json("checkpoint", "show", one)["execution_state"]["current_focus"] == "first"
    assert new in bob.fails(1, "checkpoint", "show", two)["message"]
    bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    for machine in (ann, bob):
        for name, focus in ((one, "first"), (two, "second")):
            shown = machine.json("checkpoint", "show", name)
            assert shown["execution_state"]["current_focus"] == focus


@pytest.mark.parametrize(
    "text", ["", "nonsense", "syncd-key-1:", "syncd-key-1:ab:cd:ef", "\0" * 50]
)
def test_what_is_no_key_is_refused_and_changes_nothing(team: Team, text: str) -> None:
    ann = team.machine()
    error = ann.fails(1, "keys", "import", stdin=text)
    assert "no exported key" in error["message"]
    assert not (ann.home / "keys" / "data.json").exists()


def test_a_key_with_a_slip_of_the_pen_is_refused(team: Team) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    line = ann.ok("keys", "export").out
    for spot in range(12, len(line) - 1, 7):
        other = "0" if line[spot] != "0" else "1"
        bob.fails(1, "keys", "import", stdin=line[:spot] + other + line[spot + 1 :])
    assert bob.json("keys", "show")["keys"] == []


@pytest.mark.plain
def test_what_was_written_before_stays_readable_at_the_replica_and_is_counted(team: Team) -> None:
    ann = team.machine()
    ann.create()
    ann.sync()
    sent = ann.json("keys", "show")["plain_at_replica"]
    assert sent >= 1
    assert "readable" not in ann.ok("keys", "show").out  # nobody was promised anything
    ann.create()
    done = " ".join(ann.ok("keys", "encrypt", "--mode", END_TO_END).out.split())
    assert "on this disk" in done
    assert f"Still plain: {sent} that the replica has already" in done
    assert "1 written before and not sent yet stays readable when sent" in done
    ann.create()
    ann.sync()
    now = ann.json("keys", "show")
    assert (now["plain_at_replica"], now["plain_to_send"]) == (sent + 1, 0)
    assert f"{sent + 1} that the replica has already stay readable" in ann.ok("keys", "show").out
    (check,) = [c for c in ann.json("doctor")["checks"] if c["name"] == "encryption"]
    assert check["state"] == "ok"
    assert f"{sent + 1} older bodies are plain" in check["detail"]


def test_of_a_home_that_began_end_to_end_nothing_is_plain(team: Team) -> None:
    ann = team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    ann.create()
    ann.sync()
    found = ann.json("keys", "show")
    assert (found["plain_at_replica"], found["plain_to_send"]) == (0, 0)
    assert "readable" not in ann.ok("keys", "show").out


def test_an_export_goes_to_a_file_for_its_owner_alone_and_never_into_json(
    team: Team, tmp_path: Path
) -> None:
    ann = team.machine()
    assert "does not encrypt end to end" in ann.fails(1, "keys", "export")["message"]
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    secret = ann.ok("keys", "export").out.split(":")[2]
    assert ann.fails(2, "keys", "export")["remedy"] == "Give --output FILE."
    told = ann.ok("keys", "export", "--output", str(tmp_path / "key"), "--json").out
    assert secret not in told
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert "exists" in ann.fails(7, "keys", "export", "--output", str(tmp_path / "key"))["message"]
    ann.ok("keys", "export", "--output", str(tmp_path / "key"), "--force")
    assert ann.ok("keys", "export", "--output", "-").out.split(":")[2] == secret
    assert ann.fails(2, "keys", "export", "--output", "/dev/stdout")["code"] == "usage"
    bob = team.machine()
    bob.ok("keys", "import", str(tmp_path / "key"))
    for words in (("keys", "show"), ("config",), ("doctor",), ("stats",)):
        result = ann.run(*words, "--json")
        assert secret not in result.out + result.err
    assert holding(ann.home, secret) == set(), "keys are never plain in a file"


# --- where the keys are -------------------------------------------------------------------------


def test_with_a_passphrase_nothing_in_the_home_opens_the_keys(team: Team, tmp_path: Path) -> None:
    ann = team.machine()
    one = ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt", "--passphrase", SYNCD_KEYS_PASSPHRASE="correct horse")
    assert holding(ann.home, "correct horse") == set()
    assert not list((ann.home / "keys").glob("master*"))
    assert ann.json("keys", "show")["master_key"] == "passphrase"
    missing = ann.fails(1, "checkpoint", "show", one)
    assert "need their passphrase" in missing["message"]
    wrong = ann.fails(1, "checkpoint", "show", one, SYNCD_KEYS_PASSPHRASE="wrong")
    assert "not the passphrase" in wrong["message"]
    assert missing["code"] == wrong["code"] == "key_missing"
    before = ann.sql("SELECT count(*) FROM log")
    ann.fails(1, "checkpoint", "create", "--task", "t", "--agent", "a")
    assert ann.sql("SELECT count(*) FROM log") == before, "nothing is written plain instead"
    (tmp_path / "pass").write_text("correct horse\n")
    ann.environment["SYNCD_KEYS_PASSPHRASE_FILE"] = str(tmp_path / "pass")
    assert ann.json("checkpoint", "show", one)["verified"]
    ann.ok("keys", "rotate")
    assert ann.json("checkpoint", "show", one)["verified"]


def test_whoever_was_locked_out_and_let_in_is_told_what_is_really_missing(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = team.machine(), team.machine()
    for machine in (ann, bob):
        machine.ok("keys", "encrypt", "--mode", END_TO_END, "--passphrase",
                   SYNCD_KEYS_PASSPHRASE="correct horse")  # fmt: skip
        machine.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    mine, others = ann.create("t"), bob.create("t")
    team.settle(ann, bob)
    monkeypatch.setenv("SYNCD_KEYS_PASSPHRASE", "wrong")
    with closing(CheckpointService(home=ann.home)) as service:
        with pytest.raises(KeyMissingError, match="not the passphrase"):
            service.get_checkpoint(mine)
        monkeypatch.setenv("SYNCD_KEYS_PASSPHRASE", "correct horse")
        assert service.get_checkpoint(mine)
        with pytest.raises(KeyMissingError, match="which is not here"):
            service.get_checkpoint(others)


def test_without_the_passphrase_nothing_is_called_damaged(team: Team) -> None:
    ann = team.machine()
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    one = ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt", "--passphrase")
    name = ann.json("backup", "create")["name"]
    for given in ("", "wrong"):
        ann.environment["SYNCD_KEYS_PASSPHRASE"] = given
        report = ann.run("audit", "verify", "--json")
        assert report.code == 5
        assert not report.json()["ok"]
        assert report.json()["problems"] == []
        assert report.json()["closed"]["entries"] == 1
        assert "passphrase" in report.json()["closed"]["message"]
        assert "Not checked: " in ann.run("audit", "verify").out
        assert ann.json("backup", "create")["intact"]
        refused = ann.fails(1, "backup", "restore", name)
        assert (refused["code"], refused["data_safe"]) == ("key_missing", True)
        assert ann.sql("SELECT count(*) FROM problems") == [(0,)]
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    assert ann.json("audit", "verify")["ok"]
    ann.ok("backup", "restore", name)
    assert all(copy["intact"] for copy in ann.json("backup", "list"))
    assert ann.json("checkpoint", "show", one)["verified"]


@pytest.mark.parametrize("gone", ["data.json", "passphrase file", "master key", "its content"])
def test_without_a_file_of_keys_nothing_is_called_damaged(
    gone: str, team: Team, tmp_path: Path
) -> None:
    ann, phrase = team.machine(), tmp_path / "phrase"
    phrase.write_text("correct horse\n")
    if gone == "passphrase file":
        ann.environment["SYNCD_KEYS_PASSPHRASE_FILE"] = str(phrase)
    one = ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt")
    keys = ann.home / "keys"
    file = {"data.json": keys / "data.json", "passphrase file": phrase}.get(gone)
    file = file or next(keys.glob("master*"))
    kept = file.rename(tmp_path / "kept")
    if gone == "its content":
        file.write_bytes(b"\xff\xfe" * 16)
    report = ann.run("audit", "verify", "--json")
    assert (report.code, report.json()["problems"]) == (5, [])
    assert report.json()["closed"]["entries"] == 1
    assert str(file) in report.json()["closed"]["message"]
    assert ann.json("backup", "create")["intact"]
    assert ann.fails(1, "checkpoint", "show", one)["code"] == "key_missing"
    kept.rename(file)
    assert ann.json("audit", "verify")["ok"]
    assert ann.json("checkpoint", "show", one)["verified"]


def sealed_under_a_passphrase(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    monkeypatch.setenv("SYNCD_KEYS_PASSPHRASE", "correct horse")
    sealing.encrypt(service.node, AT_REST)
    for _ in range(checkpoints):
        service.create_checkpoint("task", "agent")


def test_what_was_passed_over_for_want_of_a_key_stays_unchecked(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the keyring is unlocked while the audit runs."""
    sealed_under_a_passphrase(service, monkeypatch, 3)
    service.node.store.record_problems([("e", "damaged")])
    given = iter(["wrong", "wrong"])
    with closing(Node(service.node.home)) as other:
        monkeypatch.setattr(other, "passphrase", lambda _: next(given, "correct horse"))
        report = verify(other.store, other.key.public())
    assert report.closed is not None
    assert (report.closed.entries, report.problems, report.ok) == (2, [], False)
    assert "not the passphrase" in report.closed.why.message
    assert len(service.node.store.rows("problems")) == 1


def test_a_wrong_passphrase_is_tried_once(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs 50 ms; a home has ten thousand entries."""
    sealed_under_a_passphrase(service, monkeypatch, 5)
    monkeypatch.setenv("SYNCD_KEYS_PASSPHRASE", "wrong")
    tried: list[bytes] = []

    def counted(phrase: bytes, **settings: Any) -> bytes:
        tried.append(phrase)
        return scrypt(phrase, **settings)

    scrypt = hashlib.scrypt
    monkeypatch.setattr(hashlib, "scrypt", counted)
    with closing(Node(service.node.home)) as node:
        report = verify(node.store, node.key.public())
    assert report.closed is not None
    assert report.closed.entries == 5
    assert tried == [b"wrong"]


def test_damage_stays_on_record_until_all_could_be_looked_at(team: Team) -> None:
    ann = team.machine()
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = "correct horse"
    ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt", "--passphrase")
    ann.sql("UPDATE log SET body = CAST(substr(body, 1, length(body) - 1) || x'00' AS BLOB)")
    assert len(ann.run("audit", "verify", "--json").json()["problems"]) == 1
    ann.environment["SYNCD_KEYS_PASSPHRASE"] = ""
    assert ann.run("audit", "verify", "--json").json()["problems"] == []
    assert ann.sql("SELECT count(*) FROM problems") == [(1,)]


def test_the_keyring_keeps_the_master_key_where_there_is_one(team: Team, tmp_path: Path) -> None:
    ann = team.machine()
    ann.environment |= {
        "PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    one = ann.create("t", "--focus", CANARY)
    ann.ok("keys", "encrypt")
    assert ann.json("keys", "show")["master_key"] == "keyring"
    assert not list((ann.home / "keys").glob("master*"))
    assert ann.json("checkpoint", "show", one)["verified"]
    ann.ok("keys", "rotate")
    assert ann.json("checkpoint", "show", one)["verified"]
    kept = tmp_path / "data" / "python_keyring" / "keyring_pass.cfg"
    assert kept.read_text().count("data_20keys") == 1, "the old one is forgotten"
    kept.unlink()
    assert "the system's keyring" in ann.fails(1, "checkpoint", "show", one)["message"]


def test_a_lost_master_key_is_named_and_one_that_comes_back_is_enough(
    service: CheckpointService,
) -> None:
    one = written(service)
    sealing.encrypt(service.node, AT_REST)
    [file] = (service.node.home / "keys").glob("master*")
    elsewhere = file.rename(service.node.home.parent / "lost")
    service.close()
    with (
        closing(reopened(service.node.home)) as again,
        pytest.raises(KeyMissingError, match="not in"),
    ):
        again.get_checkpoint(one)
    elsewhere.rename(file)
    with closing(reopened(service.node.home)) as again:
        assert again.get_checkpoint(one).execution_state.current_focus == CANARY
        assert again.node.store.row("counts_here")[3] == 0, "no damage was noted"  # type: ignore[index]


def test_processes_that_need_a_first_key_at_once_agree_on_one(home: Path) -> None:
    Node(home).store.close()
    program = (
        "import sys; from pathlib import Path; from syncd.keychain import Keychain\n"
        "print(Keychain(Path(sys.argv[1]), lambda _: '').current('end_to_end').id)"
    )
    words = [sys.executable, "-c", program, str(home)]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({process.communicate()[0] for process in started}) == 1


# --- damage -------------------------------------------------------------------------------------


@pytest.fixture
def sealed(mode: str, service: CheckpointService) -> tuple[CheckpointService, str, str]:
    one, two = (
        service.create_checkpoint(
            "task", "agent", execution_state={"current_focus": text}
        ).metadata.checkpoint_id
        for text in ("one", "two")
    )
    return service, one, two


def test_a_flipped_bit_of_a_sealed_body_is_found(
    sealed: tuple[CheckpointService, str, str],
) -> None:
    service, one, _ = sealed
    connection = service.node.store.connection
    [(body,)] = connection.execute("SELECT body FROM log WHERE entry_id = ?", (one,)).fetchall()
    for spot in (9, 15, 21, 40, len(body) - 1):
        bad = bytearray(body)
        bad[spot] ^= 1
        connection.execute("UPDATE log SET body = ? WHERE entry_id = ?", (bytes(bad), one))
        with pytest.raises(CheckpointCorruptionError, match="does not match its hash"):
            service.get_checkpoint(one)
        assert not sound(service)


def test_sealed_bodies_cannot_be_exchanged(sealed: tuple[CheckpointService, str, str]) -> None:
    service, one, two = sealed
    connection = service.node.store.connection
    bodies_now = _bodies(service.node)
    for name, other in ((one, two), (two, one)):
        values = (bodies_now[other], name)
        connection.execute("UPDATE log SET body = ? WHERE entry_id = ?", values)
    for name in (one, two):
        with pytest.raises(CheckpointCorruptionError, match="does not match its hash"):
            service.get_checkpoint(name)


def test_plain_text_in_the_place_of_a_sealed_body_is_found(
    service: CheckpointService, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing.encrypt(service.node, END_TO_END)
    one = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    plain = service.get_checkpoint(one)
    values = (orjson.dumps(plain.body(), option=orjson.OPT_SORT_KEYS), one)
    service.node.store.connection.execute("UPDATE log SET body = ? WHERE entry_id = ?", values)
    with pytest.raises(CheckpointCorruptionError, match="does not match its hash"):
        service.get_checkpoint(one)


@pytest.mark.parametrize("how", ["another's", "plain", "cut"])
def test_what_the_replica_changed_of_sealed_bodies_is_held_back(team: Team, how: str) -> None:
    ann, bob = team.machine(), team.machine()
    ann.ok("keys", "encrypt", "--mode", END_TO_END)
    bob.ok("keys", "import", stdin=ann.ok("keys", "export").out)
    one, two = ann.create("t", "--focus", "one"), ann.create("t", "--focus", "two")
    ann.sync()
    team.sql("ALTER TABLE syncd.log DISABLE TRIGGER ALL")
    change = {
        "another's": f"(SELECT body FROM syncd.log WHERE entry_id = '{two}')",
        "plain": "'{}'::bytea",
        "cut": "substr(body, 1, 30)",
    }[how]
    team.sql(f"UPDATE syncd.log SET body = {change} WHERE entry_id = '{one}'")
    bob.sync()
    [held] = [q for q in bob.json("quarantine", "list") if q["entry_id"] == one]
    assert held["reason"] == "its body does not match its hash"
    assert ann.json("checkpoint", "show", one)["execution_state"]["current_focus"] == "one"


def test_the_hash_of_a_sealed_body_is_no_hash_of_its_text(service: CheckpointService) -> None:
    """Whoever guesses a small body could compare."""
    sealing.encrypt(service.node, END_TO_END)
    one = service.create_checkpoint("task", "agent")
    [entry_hash] = service.node.store.connection.execute(
        "SELECT hash FROM log WHERE entry_id = ?", (one.revision,)
    ).fetchone()
    assert entry_hash != one.compute_hash() == one.compliance.hash


# --- everything else, sealed --------------------------------------------------------------------

SAMPLE = (
    "tests/test_sync.py::test_many_entries_go_in_batches_of_so_many_rows",
    "tests/test_sync.py::test_a_key_once_pinned_stays_whatever_the_replica_says",
    "tests/test_healing.py::test_a_replica_restored_from_an_older_dump_gets_the_rest_again",
    "tests/test_retention.py::test_a_conflict_about_what_was_erased_is_closed",
)
ALL = ("tests/test_tenancy.py", "tests/test_sync.py", "tests/test_healing.py",
       "tests/test_convergence.py", "tests/test_retention.py", "tests/test_network.py",
       "tests/test_rotation.py")  # fmt: skip


def test_the_stories_of_sync_and_tenancy_hold_with_sealed_entries_too() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SYNCD_TEST_ENCRYPTION": END_TO_END}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [*words, *full(SAMPLE, ALL)], cwd=TESTS.parent, env=environment, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]


def test_keys_that_only_seem_to_be_there_are_told_of(service: CheckpointService) -> None:
    file = service.node.home / "keys" / "data.json"
    for content in ("", "[]", '{"version": 2}', '{"version": 1, "kept": "file"}'):
        file.write_text(content)
        with pytest.raises(KeyMissingError, match=r"data\.json"):
            Keychain(service.node.home, lambda _: "").current(AT_REST)
    assert file.read_text() == '{"version": 1, "kept": "file"}', "and left as they are"


@pytest.mark.parametrize("way", ["put back", "new ones"])
def test_keys_that_are_gone_are_not_replaced_by_new_ones_unasked(
    home: Path, mode: str, way: str
) -> None:
    """Whoever puts the old file back later would lose what was sealed with the new ones."""
    with closing(reopened(home)) as service:
        one = written(service)
    file, aside = home / "keys" / "data.json", home / "aside"
    file.rename(aside)
    with closing(reopened(home)) as service:
        before = len(_bodies(service.node))
        with pytest.raises(KeyMissingError, match=r"data\.json is gone"):
            service.create_checkpoint("task", "agent")
        assert len(_bodies(service.node)) == before
        assert not file.exists()
        if way == "put back":
            aside.rename(file)
        else:
            assert sealing.encrypt(service.node, mode)["sealed"] == 0
        service.create_checkpoint("task", "agent")
        if way == "put back":
            assert service.get_checkpoint(one).execution_state.current_focus == CANARY
        else:
            with pytest.raises(KeyMissingError, match="which is not here"):
                service.get_checkpoint(one)


def test_the_id_of_a_key_follows_from_it() -> None:
    key = DataKey.of(bytes(range(32)), END_TO_END)
    assert keychain.imported(keychain.exported(key)).id == key.id
    assert len(key.id) == 16
    assert key.id not in key.secret.hex()


def test_settings_keep_the_rest_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("# mine\n[store]\nbusy_seconds = 3.0 # patient\n")
    config.put(file, "encryption", AT_REST)
    config.put(file, "cloud.dsn", "host=x")
    assert config.load(file)["encryption"] == AT_REST
    config.put(file, "encryption", None)
    config.put(file, "cloud.dsn", None)
    left = [line for line in file.read_text().splitlines() if line]
    assert left == ["# mine", "[store]", "busy_seconds = 3.0 # patient"]
