"""Nonsense at every door: no crash, no traceback, and nothing written when it is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from counts import full
from devices import cloud
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from replicas import Cloud

from syncd import CheckpointService, bundle, conflicts, status, tasks
from syncd.audit import verify
from syncd.cli import document
from syncd.cli.app import main
from syncd.errors import DatabaseCorruptError, SyncdError
from syncd.node import Node
from syncd.projection import rebuild

__all__ = ["cloud"]

# Together 100,000 inputs in `make proof`.
COMMANDS, LOGS, FILES, CALLS = full((60, 60, 150, 60), (20_000, 20_000, 40_000, 20_000))


def many(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None,
                    suppress_health_check=list(HealthCheck))  # fmt: skip


# --- strategies ---------------------------------------------------------------------------------

TEXT = st.text(max_size=30) | st.sampled_from(
    [
        "",
        "\0",
        "\ud800",
        "../../etc/passwd",
        "planning",
        "2026-13-45",
        "9" * 40,
        "é" * 200,
        "{",
        "-",
    ]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**63, -(2**63), 2**64, 1e308, -0.0])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["metadata", "execution_state", "context_summary", "metrics", "recovery", "compliance",
     "verification", "workspace", "version", "revision", "verified", "checkpoint_id", "task_id",
     "agent_id", "iteration", "phase", "status", "completed_items", "pending_items",
     "key_decisions", "tokens_consumed", "tests_status", "last_successful_state", "hash",
     "signed_by", "files",
     "completedSteps", "timestamp", "reason"]
)  # fmt: skip
DOCUMENTS = st.dictionaries(
    NAMES, VALUES | st.dictionaries(NAMES, VALUES, max_size=5), max_size=6
) | st.dictionaries(TEXT, VALUES, max_size=3)


def encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


INPUTS = st.binary(max_size=60) | DOCUMENTS.map(encoded) | VALUES.map(encoded)


# --- the command line's JSON --------------------------------------------------------------------


def run(words: tuple[str, ...], stdin: bytes) -> tuple[int, str, str]:
    """A command in this process: starting one for each of thousands would take hours."""
    document._cache.clear()
    before, umask = (sys.argv, sys.stdin), os.umask(0o077)
    sys.argv, sys.stdin = ["syncd", *words], io.TextIOWrapper(io.BytesIO(stdin))
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv, sys.stdin = before
        os.umask(umask)
    raise AssertionError("a command ends with an exit code")


def entries(home: Path) -> int:
    with closing(sqlite3.connect(home / "context.db")) as database:
        return int(database.execute("SELECT count(*) FROM log").fetchone()[0])


def test_whatever_a_command_is_given_as_json_it_writes_or_refuses(
    home: Path, service: CheckpointService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    one = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    seen = {"written": 0, "refused": 0}

    @many(COMMANDS)
    @given(INPUTS, st.sampled_from(["create", "update"]))
    def try_it(given: bytes, how: str) -> None:
        before = entries(home)
        words = ("create", "--task", "t", "--agent", "a") if how == "create" else ("update", one)
        code, out, err = run(("checkpoint", *words, "--file", "-", "--json"), given)
        assert code in (0, 1, 2, 4, 7), (given, err)
        if code == 0:
            assert json.loads(out)["verified"]
            assert entries(home) == before + 1
            seen["written"] += 1
        else:
            error = json.loads(err.splitlines()[-1])["error"]
            assert error["message"]
            assert error["remedy"]
            assert not error["message"].startswith("unexpected"), (given, error)
            assert "Traceback" not in err
            assert entries(home) == before
            seen["refused"] += 1

    try_it()
    assert min(seen.values()) > 0
    assert not (home / "log" / "crash.log").exists()
    assert verify(service.node.store, service.node.key.public()).problems == []


# --- the log ------------------------------------------------------------------------------------


@pytest.fixture
def template(service: CheckpointService, tmp_path: Path) -> Iterator[Path]:
    """A home with every kind of entry."""
    one = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    service.update_checkpoint(one, {"execution_state": {"current_focus": "x"}})
    two = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    service.link_checkpoints(one, two)
    tasks.add(service.node, "task", title="t")
    service.finalize_checkpoint(two)
    service.close()
    with closing(sqlite3.connect(service.node.database)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
    yield service.node.home
    assert tmp_path.exists()


PLAIN = TEXT.map(lambda text: text.encode(errors="replace").decode())
NUMBER = st.integers(-(2**63), 2**63 - 1)
CELLS = st.none() | NUMBER | st.floats() | st.binary(max_size=40) | PLAIN
TABLES = ("log", "checkpoints", "tasks", "links", "devices", "state", "conflicts", "quarantine",
          "batches", "participants", "numbers", "problems", "purges", "working")  # fmt: skip


def columns(database: sqlite3.Connection) -> list[tuple[str, str]]:
    return [
        (table, row[1])
        for table in TABLES
        for row in database.execute(f"PRAGMA table_info({table})").fetchall()
    ]


def test_whatever_stands_in_the_database_a_reader_reads_or_refuses(
    template: Path, tmp_path: Path
) -> None:
    pristine = (template / "context.db").read_bytes()
    with closing(sqlite3.connect(template / "context.db")) as database:
        places = columns(database)
    found = {"sound": 0, "damaged": 0}

    @many(LOGS)
    @given(st.sampled_from(places), CELLS, st.integers(0, 5), st.binary(max_size=4),
           st.integers(0, len(pristine) - 5))  # fmt: skip
    @example(("tasks", "id"), b"\0", 0, b"", 0)
    def try_it(place: tuple[str, str], cell: Any, row: int, noise: bytes, where: int) -> None:
        for leftover in template.glob("context.db-*"):
            leftover.unlink()
        content = bytearray(pristine)
        if row == 5:  # once in a while the file itself
            content[where : where + len(noise)] = noise
        (template / "context.db").write_bytes(content)
        if row != 5:
            _put(template / "context.db", *place, cell, row)
        found["sound" if _read_everything(template) else "damaged"] += 1

    try_it()
    assert min(found.values()) > 0
    shutil.rmtree(tmp_path, ignore_errors=True)
    tmp_path.mkdir()


@pytest.mark.parametrize(("table", "column"), [("log", "purged"), ("checkpoints", "created_at")])
def test_a_file_that_says_its_tables_have_other_columns_is_refused(
    template: Path, table: str, column: str
) -> None:
    with closing(sqlite3.connect(template / "context.db", isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        change = "UPDATE sqlite_master SET sql = replace(sql, ?, 'x') WHERE name = ?"
        database.execute(change, (column, table))
    with pytest.raises(DatabaseCorruptError):
        CheckpointService(home=template).get_latest_checkpoint("task", skipped=[])


def _put(file: Path, table: str, column: str, cell: Any, row: int) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        values = database.execute(f"SELECT rowid FROM {table}" if table in ("log", "batches")
                                  else f"SELECT {column} FROM {table}").fetchall()  # fmt: skip
        if not values:
            return
        key = "rowid" if table in ("log", "batches") else column
        try:
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?",
                             (cell, values[row % len(values)][0]))  # fmt: skip
        except sqlite3.Error:
            return  # SQLite itself keeps some things out


def _read_everything(home: Path) -> bool:
    """Every read there is; each answers or raises an error of ours. Whether all was sound."""
    node = Node(home)
    sound = True
    try:
        service = CheckpointService(node=node)
    except SyncdError:
        return False
    for read in (
        lambda: verify(node.store, node.key.public()).ok,
        lambda: service.get_latest_checkpoint("task"),
        lambda: service.get_latest_checkpoint("task", skipped=[]),
        lambda: service.get_checkpoint_history("task", 10),
        lambda: service.get_checkpoint_history("task", 10, skipped=[]),
        lambda: service.get_checkpoints_by_agent("agent"),
        lambda: tasks.everything(node),
        lambda: tasks.show(node, "task"),
        lambda: conflicts.everything(node),
        lambda: status.status(node)["verdict"] != "failed",
        lambda: rebuild(node.store),
    ):
        try:
            sound = read() is not False and sound
        except SyncdError:
            sound = False
    node.close()
    return sound


# --- the exported file --------------------------------------------------------------------------


def test_whatever_stands_in_a_bundle_it_is_judged(
    service: CheckpointService, tmp_path: Path
) -> None:
    one = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    service.create_checkpoint("other", "agent")
    service.update_checkpoint(one, {"execution_state": {"current_focus": "x"}})
    service.finalize_checkpoint(one, sign_as="Ann", meaning="reviewed")
    file = tmp_path / "bundle"
    bundle.export(service.node.store, service.node.key, "task", file)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert bundle.verify_file(file, []).ok
    found = {True: 0, False: 0}

    @many(FILES)
    @given(st.integers(0, 3), st.integers(0, len(whole)), st.binary(max_size=8),
           st.permutations(range(len(lines))), VALUES, st.binary(max_size=300))  # fmt: skip
    def try_it(
        how: int, where: int, noise: bytes, order: list[int], value: Any, other: bytes
    ) -> None:
        content = (
            whole[:where] + noise + whole[where + len(noise) :],
            b"".join(lines[number] for number in order),
            _with_value(lines, where, value),
            other,
        )[how]
        file.write_bytes(content)
        try:
            verdict = bundle.verify_file(file, [])
        except SyncdError:
            found[False] += 1
            return
        found[verdict.ok] += 1
        assert not verdict.ok or _same(content, whole), content

    try_it()
    assert min(found.values()) > 0


def _same(content: bytes, whole: bytes) -> bool:
    """Spaces and the like change nothing that is signed."""
    try:
        return [json.loads(x) for x in content.splitlines()] == [
            json.loads(x) for x in whole.splitlines()
        ]
    except ValueError:
        return False


def _with_value(lines: list[bytes], where: int, value: Any) -> bytes:
    """One field of one line is something else."""
    number = where % len(lines)
    line = json.loads(lines[number])
    names = list(line) if isinstance(line, dict) else []
    if names:
        line[names[where % len(names)]] = value
    return b"".join([*lines[:number], encoded(line) + b"\n", *lines[number + 1 :]])


# --- the replica's functions --------------------------------------------------------------------

TYPES: dict[str, Any] = {
    "uuid": st.builds(lambda: str(uuid4())) | st.just("00000000-0000-0000-0000-000000000000"),
    "bytea": st.binary(max_size=40) | st.just(bytes(32)),
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(["[]", "{}", "checkpoint", "create", '{"task_id": "t", "task_seq": 1}']),
    "bigint": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    "integer": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
    "boolean": st.booleans(),
    "jsonb": VALUES.map(lambda v: json.dumps(v).replace("\\u0000", "").replace("\\ud800", "")),
}


def functions(cloud: Cloud) -> list[tuple[str, list[str]]]:
    """What a member may call, with the types of the arguments."""
    rows = cloud.sql(
        "SELECT p.oid::regproc::text, pg_get_function_identity_arguments(p.oid),"
        " ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) AS t)"
        " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname = 'syncd' AND has_function_privilege('syncd_member', p.oid, 'execute')"
        " AND p.prokind = 'f' AND p.prorettype <> 'trigger'::regtype ORDER BY 1"
    )
    return [(name, list(kinds)) for name, _, kinds in rows]


def argument(kind: str, own: dict[str, Any]) -> Any:
    if kind.endswith("[]"):
        return st.lists(argument(kind[:-2], own) | st.none(), max_size=3) | st.none()
    usual = TYPES.get(kind, st.none())
    return usual | st.none() | st.just(own[kind]) if kind in own else usual | st.none()


def test_whatever_a_member_calls_the_replica_with_it_answers_or_refuses(cloud: Cloud) -> None:
    organization = cloud.organization()
    person = cloud.person(organization)
    person.hello()
    person.push(person.writer.create())
    known = functions(cloud)
    assert len(known) > 5
    own = {"uuid": person.organization_id, "bytea": person.writer.chain}
    calls = st.one_of(
        [st.tuples(st.just(name), st.just(kinds), st.tuples(*(argument(k, own) for k in kinds)))
         for name, kinds in known]
    )  # fmt: skip
    found = {"answered": 0, "refused": 0}
    watched = "SELECT count(*), sum(hashtext(l::text)) FROM syncd.log l"

    @many(CALLS)
    @given(calls)
    def try_it(call: tuple[str, list[str], tuple[Any, ...]]) -> None:
        name, kinds, values = call
        spots = ", ".join(f"%s::{kind}" for kind in kinds)
        before = cloud.sql(watched)
        if state := _refusal(person.plain, f"SELECT * FROM {name}({spots})", values):
            found["refused"] += 1
            # An internal error, a crash or a connection that is gone would be a fault.
            assert state[:2] not in ("XX", "57", "58", "08"), (name, values, state)
            assert cloud.sql(watched) == before
        else:
            found["answered"] += 1
        assert person.plain.execute("SELECT 1").fetchone() == (1,)

    try_it()
    assert min(found.values()) > 0


def _refusal(connection: psycopg.Connection[Any], text: str, values: tuple[Any, ...]) -> str:
    try:
        connection.execute(text.encode(), values).fetchall()
    except psycopg.Error as error:
        return error.sqlstate or "XX"
    return ""
