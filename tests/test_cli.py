"""The command line keeps its contract: names, JSON shapes, exit codes, errors that help."""

from __future__ import annotations

import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path

import click
import pytest
from machines import SYNCD, Result, the_runner

from syncd.cli import render
from syncd.cli.app import command_paths
from syncd.cli.verb import Number

CREATE = ("checkpoint", "create", "--task", "t", "--agent", "a")


def run(*arguments: str, stdin: str | bytes = "", cwd: Path | None = None) -> Result:
    cwd = cwd or Path(os.environ["SYNCD_HOME"]).parent  # outside any repository
    return the_runner().run(arguments, dict(os.environ), stdin, folder=cwd)


def ok(*arguments: str, stdin: str | bytes = "", cwd: Path | None = None) -> Result:
    result = run(*arguments, stdin=stdin, cwd=cwd)
    assert result.code == 0, result.err
    return result


def create(task: str = "t", *options: str) -> str:
    return ok("checkpoint", "create", "--task", task, "--agent", "ann", *options).out.strip()


def corrupt(home: Path, checkpoint_id: str) -> str:
    """Change a byte of a checkpoint's body; returns its entry."""
    connection = sqlite3.connect(home / "context.db")
    seq, entry_id = connection.execute(
        "SELECT l.seq, l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.seq WHERE c.id = ?",
        (checkpoint_id,),
    ).fetchone()
    connection.execute(
        "UPDATE log SET body = CAST(replace(body, 'version', 'versiom') AS BLOB) WHERE seq = ?",
        (seq,),
    )
    connection.commit()
    connection.close()
    return str(entry_id)


# --- writing and reading ----------------------------------------------------------------------


def test_create_prints_the_id_and_latest_shows_the_checkpoint() -> None:
    checkpoint_id = create("demo", "--completed", "one", "--pending", "two", "--decision", "three")
    shown = ok("checkpoint", "latest", "demo")
    for text in (checkpoint_id, "one", "two", "three", "verified"):
        assert text in shown.out


def test_create_prints_the_whole_checkpoint_as_json() -> None:
    document = ok(
        "checkpoint", "create", "--task", "demo", "--agent", "ann", "--agent-type", "qa",
        "--iteration", "3", "--phase", "testing", "--status", "blocked", "--reason", "failure",
        "--error", "it broke", "--completed", "a", "--completed", "b", "--pending", "c",
        "--blocked", "d", "--focus", "c", "--decision", "e", "--tokens", "42", "--json",
    ).json()  # fmt: skip
    assert document["metadata"]["agent_type"] == "qa"
    assert document["metadata"]["iteration"] == 3
    assert document["metadata"]["reason"] == "failure"
    state = document["execution_state"]
    assert (state["phase"], state["status"]) == ("testing", "blocked")
    assert state["completed_items"] == ["a", "b"]
    assert state["blocked_items"] == ["d", "it broke"]
    assert document["metrics"]["tokens_consumed"] == 42
    assert document["verified"] is True
    assert re.fullmatch(r"[0-9a-f]{64}", document["compliance"]["hash"])
    assert ok("checkpoint", "latest", "demo", "--json").json() == document


def test_the_hash_can_be_recomputed_from_the_json_alone() -> None:
    import hashlib

    import rfc8785

    create("demo", "--duration", "1.5", "--finding", "größer → 😀 ﬀ")
    document = ok("checkpoint", "latest", "demo", "--json").json()
    wanted = document["compliance"].pop("hash")
    document["compliance"].pop("signature")
    document.pop("revision")
    document.pop("verified")
    assert hashlib.sha256(rfc8785.dumps(document)).hexdigest() == wanted


def test_a_document_and_options_combine(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.json"
    file.write_text(
        json.dumps(
            {
                "metadata": {"task_id": "from-file", "agent_id": "bob", "team": "blue"},
                "execution_state": {"phase": "implementation", "completed_items": ["a"]},
            }
        )
    )
    document = ok(
        "checkpoint", "create", "--file", str(file), "--completed", "b", "--agent", "ann", "--json"
    ).json()
    assert document["metadata"]["task_id"] == "from-file"
    assert document["metadata"]["agent_id"] == "ann"
    assert document["metadata"]["team"] == "blue"
    assert document["execution_state"]["completed_items"] == ["a", "b"]
    assert document["execution_state"]["phase"] == "implementing"


def test_a_document_is_read_from_standard_input() -> None:
    body = json.dumps(
        {"phase": "verification", "completedSteps": [{"step": "s", "filesCreated": ["f"]}]}
    )
    document = ok(
        "checkpoint", "create", "--task", "t", "--agent", "a", "--file", "-", "--json", stdin=body
    ).json()
    assert document["execution_state"]["phase"] == "testing"
    done = document["execution_state"]["completed_items"]
    assert done == [{"step": "s", "files_created": ["f"]}]


def test_update_moves_a_completed_item_out_of_pending() -> None:
    checkpoint_id = create("t", "--pending", "x", "--pending", "y", "--focus", "x")
    changed = ok("checkpoint", "update", checkpoint_id, "--completed", "x", "--json").json()
    state = changed["execution_state"]
    assert state["completed_items"] == ["x"]
    assert state["pending_items"] == ["y"]
    assert state["current_focus"] == ""


def test_update_takes_a_merge_patch(tmp_path: Path) -> None:
    checkpoint_id = create("t", "--stage", "early", "--tokens", "5")
    patch = json.dumps({"execution_state": {"stage": None, "current_focus": "z"}})
    changed = ok("checkpoint", "update", checkpoint_id, "--file", "-", "--json", stdin=patch).json()
    assert "stage" not in changed["execution_state"]
    assert changed["execution_state"]["current_focus"] == "z"
    assert changed["metrics"]["tokens_consumed"] == 5


def test_a_stale_base_is_a_conflict() -> None:
    checkpoint_id = create()
    first = ok("checkpoint", "show", checkpoint_id, "--json").json()["revision"]
    ok("checkpoint", "update", checkpoint_id, "--base", first, "--focus", "x")
    refused = run("checkpoint", "update", checkpoint_id, "--base", first, "--focus", "y", "--json")
    assert refused.code == 7
    assert refused.error()["code"] == "stale_base"
    assert (
        ok("checkpoint", "show", checkpoint_id, "--json").json()["execution_state"]["current_focus"]
        == "x"
    )


def test_a_finalized_checkpoint_is_signed_and_takes_no_update() -> None:
    checkpoint_id = create()
    done = ok(
        "checkpoint", "finalize", checkpoint_id, "--status", "complete", "--sign-as", "Ann",
        "--meaning", "approved", "--json",
    ).json()  # fmt: skip
    assert done["execution_state"]["status"] == "complete"
    assert done["compliance"]["signed_by"]["name"] == "Ann"
    assert len(done["compliance"]["signature"]) == 128
    assert "Ann: approved" in ok("checkpoint", "show", checkpoint_id).out
    assert run("checkpoint", "update", checkpoint_id, "--focus", "x").code == 7
    assert run("checkpoint", "finalize", checkpoint_id).code == 7


def test_a_task_that_is_set_to_nothing_is_refused_and_not_written() -> None:
    ok("task", "add", "t")
    before = ok("task", "show", "t", "--json").json()
    refused = run("task", "set", "t")
    assert (refused.code, "nothing to change was given" in refused.err) == (2, True)
    assert ok("task", "show", "t", "--json").json() == before
    assert len(ok("audit", "list", "--json").json()) == 1


def test_without_a_replica_no_entry_is_called_queued_for_one() -> None:
    created = ok("checkpoint", "create", "--task", "t", "--agent", "a").out.strip()
    story = ok("explain", created).out
    assert "replica: none" in story
    assert "queued" not in story


def test_link_names_another_parent() -> None:
    first, second, third = create(), create(), create()
    assert (
        ok("checkpoint", "show", third, "--json").json()["recovery"]["last_successful_state"]
        == second
    )
    ok("checkpoint", "link", first, third)
    linked = ok("checkpoint", "show", third, "--json").json()
    assert linked["recovery"]["last_successful_state"] == first
    assert linked["verified"]


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_option_is_refused_where_leaving_it_out_means_something_else(empty: str) -> None:
    one = create("t")
    for words in (
        ("update", one, "--base", empty, "--decision", "X"),
        ("finalize", one, "--base", empty),
        ("finalize", one, "--sign-as", empty, "--meaning", empty),
        ("create", "--task", "t", "--agent", "a", "--parent", empty),
    ):
        error = run("checkpoint", *words, "--json")
        assert error.code == 2, error
        assert error.error()["code"] == "usage"
        assert "is empty" in error.error()["message"]
    (found,) = ok("checkpoint", "list", "--json").json()
    assert found["revision"] == one


def test_an_empty_task_is_not_the_one_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
    for words in (("recover", "", "--takeover"), ("checkpoint", "latest", ""), ("resume", " "),
                  ("task", "show", ""), ("handoff", "request", "--task", "")):  # fmt: skip
        refused = run(*words, "--json", cwd=repository)
        assert refused.code == 2, refused
        assert refused.error()["message"] == "the task is empty"
    monkeypatch.setenv("SYNCD_TASK", "")
    assert run("checkpoint", "latest", cwd=repository).code == 4, "nobody has named one"


def test_history_list_and_search_are_newest_first() -> None:
    ids = [create("t", "--completed", f"Step {number}") for number in range(12)]
    history = ok("checkpoint", "history", "t", "--json").json()
    assert [c["metadata"]["checkpoint_id"] for c in history] == ids[:1:-1]
    listed = ok("checkpoint", "list", "--agent", "ann", "--limit", "3", "--json")
    assert [c["metadata"]["checkpoint_id"] for c in listed.json()] == ids[:-4:-1]
    assert "more than 3" in listed.err
    searched = ok("checkpoint", "search", "step", "--limit", "11", "--json")
    assert [c["metadata"]["checkpoint_id"] for c in searched.json()] == ids[:0:-1]
    assert "There are more than 11: use --limit" in searched.err
    assert ok("checkpoint", "search", "step", "--limit", "12").err == ""
    found = ok("checkpoint", "search", "step 7", "--json").json()
    assert [c["metadata"]["checkpoint_id"] for c in found] == [ids[7]]
    assert ok("checkpoint", "list", "--since", "2100-01-01T00:00:00Z", "--json").json() == []


def test_diff_compares_checkpoints_and_revisions() -> None:
    checkpoint_id = create("t", "--focus", "old")
    before = ok("checkpoint", "show", checkpoint_id, "--json").json()["revision"]
    after = ok("checkpoint", "update", checkpoint_id, "--focus", "new", "--json").json()["revision"]
    found = {c["path"]: c for c in ok("checkpoint", "diff", before, after, "--json").json()}
    assert found["execution_state.current_focus"] == {
        "path": "execution_state.current_focus", "before": "old", "after": "new",
    }  # fmt: skip
    other = create("t", "--focus", "other")
    text = ok("checkpoint", "diff", checkpoint_id, other).out
    assert "execution_state.current_focus" in text
    assert "- new" in text
    assert "+ other" in text
    assert "event_log_ref" not in text


def test_ids_may_be_shortened_while_unambiguous() -> None:
    first = create()
    assert ok("checkpoint", "show", first[:13]).out.startswith(first)
    create()
    ambiguous = run("checkpoint", "show", first[:4], "--json")
    assert ambiguous.code == 2
    assert "more than one" in ambiguous.error()["message"]


def test_inside_a_repository_the_task_and_the_workspace_are_known(tmp_path: Path) -> None:
    repository = tmp_path / "project"
    repository.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    (repository / "code.py").write_text("print()\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    document = ok(
        "checkpoint", "create", "--agent", "a", "--modified", "code.py", "--json", cwd=repository
    ).json()
    assert document["metadata"]["task_id"] == "project@main"
    workspace = document["workspace"]
    assert workspace["branch"] == "main"
    assert workspace["dirty"] is False
    assert len(workspace["head"]) == 40
    assert set(workspace["files"]) == {"code.py"}
    assert ok("checkpoint", "latest", "--json", cwd=repository).json() == document
    assert ok("task", "show", "--json", cwd=repository).json()["id"] == "project@main"


# --- tasks, audit, backup, diagnosis ----------------------------------------------------------


def test_tasks_have_the_documented_shape() -> None:
    added = ok("task", "add", "T-1", "--title", "Title", "--budget", "100", "--json").json()
    assert set(added) >= {"id", "title", "status", "budget", "retention", "heads", "cost"}
    head = create("T-1", "--tokens", "30", "--status", "blocked")
    shown = ok("task", "show", "T-1", "--json").json()
    assert shown["heads"] == [head]
    assert shown["cost"]["tokens"] == 30
    assert shown["cost"]["budget_used"] == 0.3
    assert shown["status"] == "blocked"
    assert ok("task", "set", "T-1", "--status", "complete", "--json").json()["status"] == "complete"
    assert [t["id"] for t in ok("task", "list", "--json").json()] == ["T-1"]
    assert run("task", "add", "T-1").code == 7
    assert run("task", "show", "T-2").code == 4
    assert run("task", "set", "T-1", "--retention", "for a while").code == 2


def test_two_checkpoints_with_one_parent_are_two_heads() -> None:
    parent = create()
    first, second = create("t", "--parent", parent), create("t", "--parent", parent)
    assert ok("task", "show", "t", "--json").json()["heads"] == [second, first]
    assert "Forked" in ok("task", "show", "t").out


def test_damage_is_refused_recorded_and_passed_over_only_on_request(home: Path) -> None:
    good, bad = create("t", "--focus", "good"), create("t", "--focus", "bad")
    entry_id = corrupt(home, bad)
    for command in (["latest", "t"], ["show", bad], ["history", "t"], ["list"], ["search", "bad"]):
        refused = run("checkpoint", *command, "--json")
        assert refused.code == 5, command
        assert entry_id in refused.error()["message"]
        assert refused.out == ""
    assert run("doctor").code == 3
    audit = run("audit", "verify", "--json")
    assert audit.code == 5
    assert audit.json()["problems"][0]["entry_id"] == entry_id
    back = ok("checkpoint", "latest", "t", "--fallback", "--json")
    assert back.json()["metadata"]["checkpoint_id"] == good
    assert back.json()["skipped"][0]["checkpoint_id"] == bad
    assert bad in back.err
    rest = ok("checkpoint", "history", "t", "--fallback", "--json")
    assert [c["metadata"]["checkpoint_id"] for c in rest.json()] == [good]
    assert bad in rest.err
    corrupt(home, good)
    assert run("checkpoint", "latest", "t", "--fallback").code == 5


_BYTES = "X'00ff'"


@pytest.mark.parametrize("column", ["entry_id", "device_id", "entity_id", "at", "hash", "body"])
def test_a_column_of_another_type_is_told_as_damage_by_every_reader(
    home: Path, tmp_path: Path, column: str
) -> None:
    create("t", "--focus", "three")
    change = "replace(CAST(body AS TEXT), 'three', 'thr33')" if column == "body" else _BYTES
    with closing(sqlite3.connect(home / "context.db")) as database:
        database.execute(f"UPDATE log SET {column} = {change}")
        database.commit()
    audit = run("audit", "verify", "--json")
    assert (audit.code, audit.json()["ok"]) == (5, False)
    assert len(ok("audit", "list", "--since", "2020-01-01", "--json").json()) == 1
    ok("audit", "list")
    ok("agents", "--json")
    output = str(tmp_path / "bundle")
    if column == "body":
        assert run("checkpoint", "search", "three").code == 5
    for words in (["audit", "export", "t", "--output", output], ["resume", "t"],
                  ["checkpoint", "latest", "t", "--fallback"]):  # fmt: skip
        assert run(*words, "--json").code in (4, 5), words
        assert "unexpected" not in run(*words, "--json").err, words
    rebuilt = run("rebuild", "--json")
    assert rebuilt.code == (0 if column == "body" else 5), rebuilt


def test_audit_verify_has_the_documented_shape() -> None:
    ok("checkpoint", "finalize", create())
    report = ok("audit", "verify", "--json").json()
    assert report == {
        "ok": True, "signer": "established", "entries": 2, "signatures": 1, "problems": [],
    }  # fmt: skip
    assert "Intact" in ok("audit", "verify").out


def test_audit_list_shows_the_log() -> None:
    checkpoint_id = create()
    (entry,) = ok("audit", "list", "--json").json()
    assert entry["entity_id"] == checkpoint_id
    assert entry["meta"]["task_id"] == "t"
    assert ok("audit", "list", "--task", "other", "--json").json() == []


def test_explain_tells_the_versions_of_a_checkpoint() -> None:
    checkpoint_id = create()
    ok("checkpoint", "update", checkpoint_id, "--focus", "x")
    revision = ok("checkpoint", "finalize", checkpoint_id, "--json").json()["revision"]
    told = ok("explain", checkpoint_id, "--json").json()
    assert [v["op"] for v in told["versions"]] == ["finalize", "update", "create"]
    assert told["versions"][0]["signed"]
    assert told["safe"] == {"local": True, "cloud": "unconfigured"}
    assert ok("explain", revision, "--json").json() == told
    assert run("explain", "nothing").code == 4


def test_rebuild_mends_a_view(home: Path) -> None:
    create()
    assert ok("rebuild", "--json").json()["equal"] is True
    connection = sqlite3.connect(home / "context.db")
    connection.execute("DELETE FROM checkpoints")
    connection.commit()
    connection.close()
    assert ok("rebuild", "--json").json()["equal"] is False
    assert ok("checkpoint", "latest", "t").code == 0


def test_backups_are_made_listed_and_restored() -> None:
    kept = create()
    made = ok("backup", "create", "--json").json()
    create()
    assert [b["name"] for b in ok("backup", "list", "--json").json()] == [made["name"]]
    done = ok("backup", "restore", made["name"], "--json").json()
    assert done["entries"] == 1
    assert done["only_in_replaced"] == 1
    assert ok("checkpoint", "latest", "t", "--json").json()["metadata"]["checkpoint_id"] == kept
    assert run("backup", "restore", "nothing").code == 4


def test_init_config_stats_and_doctor_speak_json(home: Path) -> None:
    made = ok("init", "--json").json()
    assert made["home"] == str(home)
    assert made["created"] is True
    assert ok("init", "--json").json()["created"] is False
    settings = {s["name"]: s for s in ok("config", "--json").json()}
    assert settings["backup.keep"]["source"] == "default"
    create()
    stats = ok("stats", "--json").json()
    assert (stats["entries"], stats["checkpoints"], stats["tasks"]) == (1, 1, 1)
    report = ok("doctor", "--json").json()
    assert report["verdict"] == "ok"
    assert {check["state"] for check in report["checks"]} == {"ok"}


def test_doctor_notices_a_home_that_others_can_read(home: Path) -> None:
    ok("init")
    home.chmod(0o755)
    result = run("doctor")
    assert result.code == 3
    assert "chmod" in result.out


def test_the_home_option_goes_before_the_environment(tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert ok("--home", str(other), "init", "--json").json()["home"] == str(other)


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "word"),
    [
        (["checkpoint", "latest", "nothing"], "", 4, "no checkpoint"),
        (["checkpoint", "show", "nope"], "", 4, "nope"),
        (["checkpoint", "create", "--task", "t"], "", 2, "--agent"),
        (["checkpoint", "create", "--agent", "a"], "", 2, "task"),
        ([*CREATE, "--phase", "x"], "", 2, "planning"),
        ([*CREATE, "--tokens", "x"], "", 2, "integer"),
        ([*CREATE, "--tokens", "-1"], "", 2, "--tokens (metrics.tokens_consumed): "),
        ([*CREATE, "--tests-failed", "-1"], "", 2, "--tests-failed (metrics.tests_status"),
        (["checkpoint", "history", "--limit", "x"], "", 2, "'x' is not a valid integer."),
        (["checkpoint", "create", "--task", "a\nb", "--agent", "a"], "", 2, "U+000A"),
        (["checkpoint", "create", "--task", "x" * 10_000, "--agent", "a"], "", 2, "10000"),
        ([*CREATE, "--parent", "z"], "", 4, "z"),
        ([*CREATE, "-f", "-"], "{bad", 2, "line 1"),
        ([*CREATE, "-f", "-"], "[]", 2, "object"),
        ([*CREATE, "-f", "-"], '{"a":NaN}', 2, "NaN"),
        (
            [*CREATE, "-f", "-"],
            '{"x": "\\ud800"}', 2, "surrogate",
        ),
        (
            [*CREATE, "-f", "-"],
            '{"metrics": {"tokens_consumed": "many"}}', 2, "metrics.tokens_consumed",
        ),
        (
            [*CREATE, "-f", "-"],
            '{"execution_state": {"completed_items": [5]}}', 2, "completed_items.0: should be",
        ),
        (
            [*CREATE, "-f", "-"],
            '{"x": "' + "y" * 1_100_000 + '"}', 2, "1,000,000",
        ),
        ([*CREATE, "-f", "/no/file"], "", 2, "/no/file"),
        (["checkpoint", "list", "--since", "yesterday"], "", 2, "ISO 8601"),
        (["checkpoint", "finalize", "x"], "", 4, "x"),
        (["nonsense"], "", 2, "nonsense"),
        (["checkpoint", "create", "--nonsense"], "", 2, "--nonsense"),
        (["--home", "", "init"], "", 2, "an empty path is no home"),
        (["--home", "", "hook", "codex"], "", 2, "an empty path is no home"),
        (["flush", "--wait", "nan"], "", 2, "'nan' is not a number"),
        (["flush", "--wait", "-1"], "", 2, "0<=x<=1000000.0"),
        (["loop", "--task", "t", "--timeout", "nan", "--", "true"], "", 2, "is not a number"),
        (["loop", "--task", "t", "--timeout", "inf", "--", "true"], "", 2, "is not a number"),
        (["handoff", "accept", "x", "--agent", "a", "--wait", "nan"], "", 2, "is not a number"),
        (["backup", "restore", "/etc/passwd"], "", 5, "passwd"),
    ],
)  # fmt: skip
def test_bad_input_gets_cause_and_remedy_and_writes_nothing(
    home: Path, arguments: list[str], stdin: str, code: int, word: str
) -> None:
    ok("init")
    for_people = run(*arguments, stdin=stdin)
    assert for_people.code == code
    assert for_people.out == ""
    cause, remedy, data = for_people.err.strip().splitlines()
    assert word in cause + remedy
    assert cause.startswith("Error: ")
    assert remedy.startswith("Remedy: ")
    assert data == "Data: safe"
    for_machines = run(*arguments, "--json", stdin=stdin)
    assert for_machines.code == code
    assert set(for_machines.error()) == {"code", "message", "remedy", "data_safe"}
    connection = sqlite3.connect(home / "context.db")
    assert connection.execute("SELECT COUNT(*) FROM log").fetchone() == (0,)
    connection.close()


def test_with_json_what_was_warned_of_stands_in_the_error(home: Path) -> None:
    nobody = "postgresql://u:secret@127.0.0.1:1/x"
    failed = run("--json", "cloud", "migrate", nobody)
    error = json.loads(failed.err)["error"]
    assert (failed.code, error["code"]) == (6, "unreachable")
    assert error["warnings"][0].startswith("a password on the command line can be seen by others")
    for_people = run("cloud", "migrate", nobody)
    assert for_people.err.startswith("Warning: a password on the command line")


def test_with_json_a_command_that_is_done_warns_on_standard_error(home: Path) -> None:
    done = run("--json", "checkpoint", "create", "--task", "t", "--agent", "a")
    assert done.code == 0
    assert done.json()["metadata"]["task_id"] == "t"
    assert done.err.startswith("Warning: it says nothing of the work")


@pytest.mark.parametrize("group", [["checkpoint"], ["admin", "org"]])
def test_a_group_without_a_command_shows_its_help_and_programs_an_error(group: list[str]) -> None:
    for_people = run(*group)
    assert (for_people.code, for_people.err.partition(" ")[0]) == (2, "Usage:")
    for_machines = run("--json", *group)
    assert (for_machines.code, for_machines.error()["code"]) == (2, "usage")
    assert "needs a command" in for_machines.error()["message"]


def test_an_id_in_use_is_refused_without_naming_our_tables() -> None:
    document = json.dumps({"metadata": {"checkpoint_id": create()}})
    refused = run(*CREATE, "--file", "-", "--json", stdin=document)
    assert (refused.code, refused.error()["message"]) == (7, "this id is in use already")


@pytest.mark.parametrize(
    "command",
    [["checkpoint", "history", "t"], ["checkpoint", "list"], ["checkpoint", "search", "t"],
     ["audit", "list"]],
)  # fmt: skip
def test_a_limit_that_no_database_can_count_to_is_none(command: list[str]) -> None:
    create()
    assert len(ok(*command, "--limit", "9" * 30, "--json").json()) == 1


def test_a_hundred_megabytes_are_refused_without_being_read_in() -> None:
    result = run("checkpoint", "create", "--task", "t", "--agent", "a", "-f", "-",
                 stdin=b" " * 100_000_000)  # fmt: skip
    assert result.code == 2
    assert "8,000,000 bytes" in result.err


def test_an_odd_task_id_is_stored_as_it_is_and_never_becomes_a_path(home: Path) -> None:
    before = set(home.parent.rglob("*"))
    odd = "../../x '; DROP TABLE log; -- 😀"
    create(odd)
    assert ok("checkpoint", "latest", odd, "--json").json()["metadata"]["task_id"] == odd
    outside = {p for p in set(home.parent.rglob("*")) - before if not p.is_relative_to(home)}
    assert outside == set()


def test_a_long_checkpoint_is_written_with_a_warning() -> None:
    items = [option for n in range(10) for option in ("--pending", f"{n} " + "x" * 190)]
    items += [option for n in range(10) for option in ("--completed", f"{n} " + "y" * 190)]
    result = ok("checkpoint", "create", "--task", "t", "--agent", "a", *items)
    assert "Warning:" in result.err
    assert "renders" in result.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    create()
    done = subprocess.run(
        f"{SYNCD} audit list --json | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoint", "create", "--task", " ", "--agent", "a"),
        ("checkpoint", "search", ""),
    ],
)
def test_an_empty_word_is_no_answer(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


def test_an_update_without_a_change_is_refused() -> None:
    checkpoint_id = create()
    assert run("checkpoint", "update", checkpoint_id).code == 2
    assert len(ok("explain", checkpoint_id, "--json").json()["versions"]) == 1


def test_output_that_cannot_be_written_is_told() -> None:
    create()
    done = subprocess.run(
        f"{SYNCD} checkpoint latest t > /dev/full", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
@pytest.mark.parametrize(
    "words", ["checkpoint latest t", "checkpoint list", "status", "checkpoint show nope", "agents"]
)
def test_a_terminal_has_colours_unless_the_user_wants_none(
    words: str, setting: dict[str, str], coloured: bool
) -> None:
    create()
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **setting}
    with subprocess.Popen(
        [SYNCD, *words.split()], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        shown = b""
        while piece := read_from(ours):
            shown += piece
    os.close(ours)
    assert shown
    assert (b"\x1b[" in shown) is coloured


def read_from(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other side is closed
        return b""


def shell(words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{SYNCD} {words}", shell=True, executable="/bin/bash", capture_output=True, text=True,
        cwd=Path(os.environ["SYNCD_HOME"]).parent,
    )  # fmt: skip


def test_an_answer_that_cannot_be_printed_does_not_ask_for_a_second_write() -> None:
    create()
    done = shell("checkpoint create --task t --agent ann --json > /dev/full")
    assert done.returncode == 1
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "unprinted"
    assert "is done" in error["message"]
    assert "do not run it again" in error["remedy"]
    assert len(ok("checkpoint", "list", "--json").json()) == 2


def test_another_disk_that_is_full_is_not_taken_for_the_answers(tmp_path: Path) -> None:
    create()
    (tmp_path / "full").symlink_to("/dev/full")
    done = shell(f"audit export t --output {tmp_path / 'full'}")
    assert done.returncode == 1
    assert "full was not written: No space left" in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("checkpoint create --task t --agent ann", 0), ("checkpoint latest t", 0),
        ("checkpoint list", 0), ("status", 0), ("checkpoint show nope", 4),
        ("checkpoint nonsense", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"]
)
def test_what_is_closed_leads_nowhere(words: str, code: int, closed: str) -> None:
    create()
    done = shell(f"{words} {closed}")
    assert done.returncode == code, done
    assert "unexpected" not in done.stderr
    written = len(ok("checkpoint", "list", "--json").json())
    assert written == (2 if "create" in words else 1)


def test_no_file_of_ours_gets_the_number_of_what_is_closed() -> None:
    script = (
        "import os, sys; from syncd.cli import _open_all; _open_all()\n"
        "assert [s.fileno() for s in (sys.stdin, sys.stdout, sys.stderr)] == [0, 1, 2]\n"
        "assert min(os.open(os.devnull, os.O_RDONLY), 3) == 3\n"
        "os._exit(17)\n"
    )
    words = f"{sys.executable} -c '{script}' <&- >&- 2>&-"
    assert subprocess.run(words, shell=True, executable="/bin/bash").returncode == 17


def test_a_hand_edited_view_is_refused_with_the_way_to_mend_it(home: Path) -> None:
    create()
    connection = sqlite3.connect(home / "context.db")
    connection.execute("UPDATE checkpoints SET phase = 'testing'")
    connection.commit()
    connection.close()
    refused = run("checkpoint", "latest", "t", "--json")
    assert refused.code == 5
    assert "syncd rebuild" in refused.error()["remedy"]
    assert refused.error()["data_safe"] is True
    (problem,) = run("audit", "verify", "--json").json()["problems"]
    assert "differs" in problem["problem"]
    ok("rebuild")
    assert ok("doctor").code == 0
    ok("checkpoint", "latest", "t")


def test_a_copy_of_a_damaged_database_never_takes_an_intact_ones_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_BACKUP_KEEP", "2")
    bad = create()
    good = ok("backup", "create", "--json").json()
    assert good["intact"] is True
    corrupt(home, bad)
    for _ in range(3):
        made = run("backup", "create")
        assert made.code == 5
        assert "damaged" in made.err
    kept = {b["name"]: b["intact"] for b in ok("backup", "list", "--json").json()}
    assert kept[good["name"]] is True
    assert sorted(kept.values()) == [False, False, True]
    ok("backup", "restore", good["name"])
    ok("checkpoint", "show", bad)


# --- what people see --------------------------------------------------------------------------


def on_a_terminal(*arguments: str, columns: int = 80, code: int = 0) -> str:
    """Run with a terminal for stdout and return what it shows."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    process = subprocess.Popen([SYNCD, *arguments], stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait(timeout=30) == code
    return shown.decode()


def test_a_terminal_gets_colours_and_a_pipe_plain_text() -> None:
    checkpoint_id = create("t", "--phase", "complete")
    assert "\x1b[" in on_a_terminal("checkpoint", "latest", "t")
    assert "\x1b[" in on_a_terminal("checkpoint", "history", "t")
    for command in (
        ["checkpoint", "latest", "t"],
        ["checkpoint", "history", "t"],
        ["task", "list"],
    ):
        assert "\x1b[" not in ok(*command).out
    assert checkpoint_id in ok("checkpoint", "history", "t").out


def test_text_cannot_command_the_terminal() -> None:
    create("t", "--completed", "two\nlines \x1b[31mred", "--focus", "\x1b]0;title\x07")
    for command in (("checkpoint", "latest", "t"), ("checkpoint", "history", "t")):
        assert "\x1b]" not in on_a_terminal(*command)
        assert "\x1b[31mred" not in on_a_terminal(*command)
    assert "two lines" in ok("checkpoint", "latest", "t").out


def test_what_was_written_is_shown() -> None:
    create(
        "t", "--next", "n1", "--dependency", "d1", "--mission", "m1", "--reason", "manual",
        "--rollback", "r1", "--tests-passed", "7", "--context", "40", "--modified", "f1",
    )  # fmt: skip
    shown = ok("checkpoint", "latest", "t").out
    for text in ("n1", "d1", "m1", "manual", "r1", "7 passed", "40", "f1", "Revision"):
        assert text in shown


def test_tables_in_a_pipe_are_never_cut() -> None:
    long = "a-task-with-a-name-that-is-far-longer-than-any-terminal-is-wide-" * 4
    create(long)
    assert long in ok("task", "list").out
    assert long in ok("checkpoint", "list").out


def shown_on(columns: int, *arguments: str, code: int = 0) -> list[str]:
    """The lines, without colours, that a terminal of so many columns shows."""
    shown = on_a_terminal(*arguments, columns=columns, code=code)
    return re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.proof)])
def test_a_terminal_shows_ids_and_times_on_one_line(columns: int) -> None:
    task = "a-project@some-branch"
    ids = [create(task, "--phase", "implementing", "--pending", "x") for _ in range(12)]
    ok("backup", "create")
    for command in (("history", task), ("list",), ("search", "x")):
        first, *lines = shown_on(columns, "checkpoint", *command)
        if lines[-1].startswith("No room for "):
            assert "--json shows all" in lines.pop()
        assert ("TASK" in first) == (command[0] != "history")
        found = [line.split()[0] for line in lines]
        assert len(lines) == len(set(found)) == (10 if command[0] == "history" else 12)
        assert all(len(name) >= 13 and any(i.startswith(name) for i in ids) for name in found)
        assert all(re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", line) for line in lines)
        assert ids[-1] in ok("checkpoint", *command).out
    assert len(shown_on(columns, "audit", "list")) == 13
    (name,) = [b["name"] for b in ok("backup", "list", "--json").json()]
    assert shown_on(columns, "backup", "list")[1].startswith(name + " ")
    for command in (("audit", "list"), ("backup", "list"), ("config",), ("task", "list")):
        lines = [line for line in shown_on(columns, *command) if not line.startswith("Home: ")]
        assert max(map(len, lines)) <= columns


def test_a_terminal_folds_text_between_words_only() -> None:
    title = "Several considerably longish words describing circumstances thoroughly"
    ok("task", "add", "a-task", "--title", title)
    words = " ".join(shown_on(80, "task", "list")).split()
    assert [word for word in title.split() if word in words] == title.split()
    assert "MEANING" in "".join(shown_on(120, "config"))
    assert "MEANING" not in "".join(shown_on(80, "config"))


def test_a_checkpoint_is_wrapped_between_words_on_a_terminal_only() -> None:
    secrets = [f"--pending=token {number} is ghp_{'a1B2' * 9}" for number in range(6)]
    ok(*CREATE, *secrets, "--decision", "several considerably longish words " * 4)
    lines = shown_on(80, "checkpoint", "latest", "t")
    assert max(map(len, lines)) <= 80
    first = next(
        n for n, line in enumerate(lines) if line.startswith("Redacted    execution_state")
    )
    assert lines[first + 1].startswith(" " * 12 + "execution_state.")
    narrow = [line for line in shown_on(50, "checkpoint", "latest", "t") if "Hash" in line]
    assert narrow == ["Hash"], "what is too long for any line begins one"
    (plain,) = [x for x in ok("checkpoint", "latest", "t").out.splitlines() if "Redacted" in x]
    assert len(plain) > 80


def test_a_table_that_leaves_columns_out_says_which_and_what_shows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from syncd.cli import render

    columns, rows = ("NAME", "FIRST", "SECOND"), [("n" * 20, "f" * 20, "s" * 20)]
    spare = ("SECOND", "FIRST")

    def drawn(room: int | None, elsewhere: str = "--csv") -> list[str]:
        monkeypatch.setattr(render, "width", lambda _: room)
        return render.table(columns, rows, spare=spare, elsewhere=elsewhere).splitlines()

    assert len(drawn(80)) == len(drawn(None)) == len(drawn(30, "")) == 2
    assert "No room for SECOND: --csv shows all, or a wider terminal." in drawn(60)[-1]
    assert "No room for FIRST, SECOND:" in drawn(30)[2]


def test_an_error_is_wrapped_between_words_on_a_terminal_only() -> None:
    lines = shown_on(40, "checkpoint", "latest", "no-such-task", code=4)
    assert max(map(len, lines)) <= 40
    plain = run("checkpoint", "latest", "no-such-task").err
    assert " ".join(lines).split() == plain.split()
    assert len(plain.splitlines()) == 3 < len(lines)
    long = "x" * 100
    assert shown_on(40, "checkpoint", "show", long, code=4)[0].startswith("Error: there is no")


def test_the_ids_of_a_table_are_as_short_as_they_stay_different() -> None:
    from syncd.cli.render import brief

    same = "01a1e484-deab-75da-a485-e72195ede64"
    other = "11a1e484-deab-75da-a485-e72195ede64d"
    rows = [[f"{same}d", "2026-11-16T21:22:11.435+01:00"], [f"create {same}e", other]]
    assert brief(rows) == [
        [f"{same}d", "2026-11-16 20:22:11"], [f"create {same}e", "11a1e484-deab"],
    ]  # fmt: skip


# --- small helps --------------------------------------------------------------------------------


def test_a_checkpoint_that_says_nothing_is_written_with_a_warning() -> None:
    assert "says nothing" in ok(*CREATE, "--phase", "testing").err
    assert ok(*CREATE, "--focus", "x").err == ""
    assert ok(*CREATE, "-f", "-", stdin='{"execution_state": {"stage": "x"}}').err == ""
    assert len(ok("checkpoint", "list", "--json").json()) == 3


def test_errors_name_the_next_step() -> None:
    assert "Did you mean 'checkpoint'" in run("checkpont").err
    assert "Add --task NAME" in run("checkpoint", "create", "--agent", "a").err
    assert "syncd cloud try" in run("device", "list").err


def test_nothing_to_show_is_said_in_its_own_words() -> None:
    assert ok("conflicts", "list").out == "No open conflicts.\n"
    assert ok("quarantine", "list").out == "Nothing is in quarantine.\n"
    assert ok("checkpoint", "list").out == "Nothing found.\n"


def test_an_erased_checkpoint_is_listed_as_such() -> None:
    ok("erase", create("t", "--focus", "x"), "--yes")
    assert " erased " in ok("checkpoint", "list").out


def test_the_audit_says_what_a_signature_covers() -> None:
    first = create()
    assert "none signed yet" in ok("audit", "verify").out
    ok("checkpoint", "finalize", first)
    assert "2 entries, 1 signature, which covers all" in ok("audit", "verify").out


def test_help_shows_everyday_commands_first_and_every_command_has_help() -> None:
    text = ok("--help").out
    assert text.index("Every day") < text.index("Groups")
    for path, command in command_paths().items():
        assert command.help, path
        for parameter in command.params:
            assert parameter.param_type_name == "argument" or getattr(parameter, "help", None), (
                path,
                parameter.name,
            )
    assert ok("--version").out.startswith("syncd ")


def test_every_command_takes_json() -> None:
    for path, command in command_paths().items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options, path


def test_every_option_that_takes_a_fraction_takes_numbers_only() -> None:
    for path, command in command_paths().items():
        for parameter in command.params:
            fraction = isinstance(parameter.type, click.types.FloatParamType)
            assert not fraction or isinstance(parameter.type, Number), (path, parameter.name)


def test_completion_knows_commands_tasks_and_ids() -> None:
    checkpoint_id = create("some-task")
    assert "_SYNCD_COMPLETE" in ok("completion", "bash").out
    for words, wanted in (
        ("syncd check", "checkpoint"),
        ("syncd checkpoint latest so", "some-task"),
        (f"syncd checkpoint show {checkpoint_id[:8]}", checkpoint_id),
    ):
        environment = {
            **os.environ,
            "_SYNCD_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        done = subprocess.run([SYNCD], env=environment, capture_output=True, text=True, timeout=60)
        assert wanted in done.stdout, (words, done)


def test_reading_imports_nothing_heavy() -> None:
    create()
    script = (
        "import sys; sys.argv = ['syncd', 'checkpoint', 'latest', 't']\n"
        "from syncd.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "heavy = {'pydantic', 'psycopg', 'apscheduler', 'rich', 'sqlite_utils', 'cryptography'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_stretch_of_the_work_has_its_cost() -> None:
    for agent, tokens in (("ann", "10"), ("ann", "20"), ("bob", "5"), ("ann", "1")):
        ok("checkpoint", "create", "--task", "t", "--agent", agent, "--tokens", tokens)
    found = ok("task", "show", "t", "--json").json()["cost"]["segments"]
    told = [(part["agent_id"], part["checkpoints"], part["tokens"]) for part in found]
    assert told == [("ann", 2, 30), ("bob", 1, 5), ("ann", 1, 1)]


def test_a_column_of_nothing_takes_no_room() -> None:
    """The bars of what has cost nothing."""
    assert render._Column("", ["", ""], False).least() == 0


# --- words --------------------------------------------------------------------------------------


def test_free_space_has_one_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    from syncd.ui import wording

    assert render.size(82_600_000_000) == wording.size(82_600_000_000) == "82.6 GB"
    assert render.size(999) == "999 B"
    create()
    free = r"([\d.]+ GB) free|free ([\d.]+ GB)"
    shown = [re.search(free, ok(words).out) for words in ("stats", "status")]
    found = {float((hit[1] or hit[2]).split()[0]) for hit in shown if hit}
    assert max(found, default=0) - min(found, default=0) < 1  # others use the disk too


@pytest.mark.parametrize(
    "words", ["checkpoint create --agent a --task", "checkpoint latest", "task show"]
)
def test_what_is_not_utf8_is_called_so(words: str) -> None:
    create()
    done = shell(f"{words} $'bad\\xff'")
    assert done.returncode == 2
    assert "is not UTF-8" in done.stderr
    assert "nothing was written" not in done.stderr or "create" in words


@pytest.mark.parametrize("table", ["checkpoints", "log"])
def test_doctor_notices_a_row_that_is_gone(home: Path, table: str) -> None:
    create()
    create()
    assert ok("doctor").code == 0
    with closing(sqlite3.connect(home / "context.db", isolation_level=None)) as database:
        database.execute(f"DELETE FROM {table} WHERE seq = 1")
    [views] = [c for c in run("doctor", "--json").json()["checks"] if c["state"] != "ok"]
    assert (views["name"], views["detail"]) == ("views", "1 row differs from the log")


def test_doctor_does_not_send_people_to_doctor(home: Path) -> None:
    create()
    page = (home / "context.db").stat().st_size // 2 // 4096 * 4096
    with (home / "context.db").open("r+b") as file:
        file.seek(page)
        file.write(os.urandom(4096))
    said = run("doctor", "--json").json()["checks"]
    wrong = [check for check in said if check["state"] != "ok"]
    assert wrong
    assert not [check for check in wrong if "syncd doctor" in check["remedy"]]
    assert not [check for check in said if "\n" in check["detail"]]


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "text"])
def test_ctrl_c_while_it_is_still_being_loaded_leaves_no_traceback(as_json: bool) -> None:
    script = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "syncd.cli.app":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from syncd.cli import main
main()
"""
    words = [sys.executable, "-c", script, "task", "list", *(["--json"] if as_json else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    if as_json:
        assert json.loads(done.stderr)["error"]["code"] == "interrupted"
    else:
        assert done.stderr == "Interrupted.\n"


def test_doctor_says_once_what_stops_many_checks(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("nonsense = 1\n")
    said = run("doctor", "--json").json()["checks"]
    remedies = [check["remedy"] for check in said if "no such setting" in check["detail"]]
    assert len(remedies) > 3
    assert sum("There are:" in remedy for remedy in remedies) == 1
    (key,) = [check for check in said if check["name"] == "signing key"]
    assert (key["state"], key["detail"]) == ("ok", "none yet: the first use makes it")


def test_a_home_without_a_replica_has_nothing_to_send() -> None:
    create()
    assert "To send" not in ok("status").out


def test_an_offline_replica_that_refused_is_called_so() -> None:
    from syncd.cli.status import _replica

    cloud = {"state": "offline", "needs_person": True, "as_of": "2026-01-01T00:00:00+00:00",
             "clock_skew_ms": 0, "last_error": "no", "next_attempt_s": 0}  # fmt: skip
    assert "refused" in _replica(cloud)
    assert "offline" in _replica({**cloud, "needs_person": False})


def test_a_narrow_table_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    document = ok("checkpoint", "show", create(), "--json").json()
    monkeypatch.setattr(render, "width", lambda _: 40)
    shown = " ".join(render.checkpoint_table([document]).split())
    assert "No room for" in shown
    assert "--json shows all" in shown
