from __future__ import annotations

import _sqlite3
import ast
import ctypes
import os
import re
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_utils import Database

from syncd import sql
from syncd.errors import NewerDatabaseError
from syncd.node import Node

ROOT = Path(__file__).parent.parent
_REPREPARED = 5  # SQLITE_STMTSTATUS_REPREPARE
QUERIES = (ROOT / "schema" / "queries.sql").read_text(encoding="utf-8")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(tmp_path / "context.db", isolation_level=None)
    yield opened
    opened.close()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "migrate.lock"


# --- the schema ---------------------------------------------------------------------------------


def described(connection: sqlite3.Connection) -> dict[str, Any]:
    """Tables, columns and indexes as sqlite-utils sees them; its own record left out."""
    database = Database(connection)
    tables = {}
    for table in database.tables:
        if not table.name.startswith("_sqlite_migrations"):
            tables[table.name] = {
                "columns": table.columns,
                "primary key": table.pks,
                "indexes": sorted(table.indexes),
                "foreign keys": table.foreign_keys,
                "triggers": table.triggers,
                "strict": table.strict,
                "text": _bare(table.schema),
            }
    return {"tables": tables, "views": {view.name: _bare(view.schema) for view in database.views}}


def _bare(statement: str) -> str:
    """Without comments and layout."""
    return "".join(re.sub(r"--[^\n]*", "", statement).split())


def test_replaying_the_migrations_equals_todays_schema(
    connection: sqlite3.Connection, lock: Path
) -> None:
    sql.migrate_sqlite(connection, lock)
    today = sqlite3.connect(":memory:")
    today.executescript((ROOT / "schema" / "sqlite.sql").read_text(encoding="utf-8"))
    assert described(connection) == described(today)
    assert {"log", "checkpoints"} <= described(today)["tables"].keys()
    today.close()


def test_the_number_of_migrations_is_the_version() -> None:
    files = sorted((ROOT / "migrations" / "sqlite").iterdir())
    assert sql.sqlite_steps() == files
    assert len(files) == sql.SQLITE_VERSION
    assert [file.name[:4] for file in files] == [f"{n:04}" for n in range(1, len(files) + 1)]


def test_migrating_tells_what_it_did_and_the_second_time_does_nothing(
    connection: sqlite3.Connection, lock: Path
) -> None:
    names = [file.stem for file in sql.sqlite_steps()]
    assert sql.version_of(connection) == 0
    assert sql.migrate_sqlite(connection, lock) == names
    assert sql.version_of(connection) == sql.SQLITE_VERSION
    assert sql.migrate_sqlite(connection, lock) == []


def test_connections_that_migrate_together_do_it_once(tmp_path: Path, lock: Path) -> None:
    gate = threading.Barrier(4)

    def migrate() -> list[str]:
        opened = sqlite3.connect(tmp_path / "context.db", isolation_level=None)
        try:
            gate.wait()
            return sql.migrate_sqlite(opened, lock)
        finally:
            opened.close()

    with ThreadPoolExecutor(4) as pool:
        applied = [done.result() for done in [pool.submit(migrate) for _ in range(4)]]
    assert sum(map(len, applied)) == sql.SQLITE_VERSION


def test_a_newer_database_is_refused_and_left_as_it_is(
    connection: sqlite3.Connection, lock: Path
) -> None:
    connection.execute(f"PRAGMA user_version = {sql.SQLITE_VERSION + 1}")
    with pytest.raises(NewerDatabaseError, match=f"knows up to {sql.SQLITE_VERSION}"):
        sql.migrate_sqlite(connection, lock)
    assert sql.version_of(connection) == sql.SQLITE_VERSION + 1
    assert described(connection)["tables"] == {}


def add_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """From now on there is one migration more than ship."""
    file = tmp_path / f"{sql.SQLITE_VERSION + 1:04}_next.sql"
    file.write_text(script)
    steps = [*sql.sqlite_steps(), file]
    monkeypatch.setattr(sql, "sqlite_steps", lambda: steps)
    for name, module in list(sys.modules.items()):
        if name.startswith("syncd.") and hasattr(module, "SQLITE_VERSION"):
            monkeypatch.setattr(module, "SQLITE_VERSION", len(steps))
    return file


def test_a_failing_step_is_undone_and_stays_pending(
    connection: sqlite3.Connection, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = "CREATE TABLE half (a);\nINSERT INTO half VALUES (1);\nINSERT INTO no VALUES (1);\n"
    step = add_step(tmp_path, monkeypatch, half)
    with pytest.raises(sqlite3.OperationalError, match="no such table: no"):
        sql.migrate_sqlite(connection, lock)
    assert sql.version_of(connection) == sql.SQLITE_VERSION - 1, "the steps before it are done"
    assert "half" not in described(connection)["tables"]
    assert not connection.in_transaction

    step.write_text("CREATE TABLE whole (a);\n")
    assert sql.migrate_sqlite(connection, lock) == [step.stem]
    assert sql.version_of(connection) == sql.SQLITE_VERSION
    assert "whole" in described(connection)["tables"]


def test_a_backup_comes_before_the_first_step_of_an_existing_database_only(
    connection: sqlite3.Connection, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def before() -> None:
        seen.append(set(described(connection)["tables"]))

    sql.migrate_sqlite(connection, lock, before)
    assert seen == [], "a new database has nothing to save"
    add_step(tmp_path, monkeypatch, "CREATE TABLE whole (a);\n")
    for _ in range(2):
        sql.migrate_sqlite(connection, lock, before)
    (tables,) = seen
    assert "log" in tables
    assert "whole" not in tables


def test_a_home_of_an_older_version_is_backed_up_and_migrated_when_opened(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(home)
    device = node.store.device_id
    node.close()
    assert list((home / "backups").iterdir()) == []

    add_step(tmp_path, monkeypatch, "CREATE TABLE whole (a);\n")
    node = Node(home)
    assert sql.version_of(node.store.connection) == sql.SQLITE_VERSION
    assert node.store.device_id == device
    node.close()
    assert [file for file in (home / "backups").iterdir() if "before-migration" in file.name]


# --- scripts ------------------------------------------------------------------------------------


def test_a_script_is_split_where_sqlite_sees_the_end_of_a_statement() -> None:
    script = (
        "-- one; not a statement\nCREATE TABLE a (b TEXT DEFAULT 'x;\ny');\n"
        "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\n  DELETE FROM a;\nEND;\n"
        "SELECT 1;\n"
    )
    found = list(sql.statements(script))
    assert len(found) == 3
    fresh = sqlite3.connect(":memory:")
    for statement in found:
        fresh.execute(statement)
    fresh.close()


def test_a_last_statement_without_its_semicolon_is_not_lost() -> None:
    assert list(sql.statements("SELECT 1;\nSELECT 2\n")) == ["SELECT 1;", "SELECT 2"]


# --- named queries ------------------------------------------------------------------------------


def test_every_name_in_the_file_is_a_query_with_a_description() -> None:
    """One without a description, or with a typing error in its heading, would be missing."""
    blocks = QUERIES.split("\n\n")[1:]
    for block in blocks:
        heading, description, *_ = block.splitlines()
        name = re.fullmatch(r"-- (\w+) --", heading)
        assert name, heading
        assert re.fullmatch(r"-- .*\w.*", description), heading
        assert not re.fullmatch(r"-- \w+ --", description), heading
        assert name[1] in sql.queries(), heading
    assert len(blocks) == len(sql.queries()), "each name stands once"


@pytest.mark.parametrize("name", sql.queries())
def test_every_query_is_one_statement_that_sqlite_accepts(name: str) -> None:
    database = sqlite3.connect(":memory:")
    database.executescript((ROOT / "schema" / "sqlite.sql").read_text(encoding="utf-8"))
    assert any(_accepted(database, sql.queries()[name], count) for count in range(30))
    database.close()


def _accepted(database: sqlite3.Connection, statement: str, parameters: int) -> bool:
    """Whether it takes so many parameters; anything else that is wrong with it raises."""
    try:
        database.execute("EXPLAIN " + statement, (None,) * parameters)
    except sqlite3.ProgrammingError as error:
        if "number of bindings" not in str(error):
            raise
        return False
    return True


def code() -> list[ast.AST]:
    modules = sorted((ROOT / "syncd").rglob("*.py"))
    return [node for file in modules for node in ast.walk(ast.parse(file.read_text("utf-8")))]


def test_no_query_is_prepared_anew_for_other_values(home: Path) -> None:
    """SQLite does that where a value may decide about the plan, as in `entity = ?` beside a partial
    index for one kind: it takes ten times as long as the query itself."""
    with closing(Node(home)) as node:
        node.store  # noqa: B018 (makes the home)
        again = {
            name: preparations(node.database, text)
            for name, text in sql.queries().items()
            if "?" in text
        }
    assert {name: count for name, count in again.items() if count} == {}


def preparations(database: Path, text: str, executions: int = 4) -> int:
    """How often SQLite has prepared a statement again, of as many executions less one: the first
    may meet a schema that was not read yet."""
    library = ctypes.CDLL(_sqlite3.__file__)
    pointer = ctypes.c_void_p
    opened, statement = pointer(), pointer()
    stop = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(lambda _: 1)
    assert library.sqlite3_open(os.fsencode(database), ctypes.byref(opened)) == 0
    library.sqlite3_progress_handler(opened, 100_000, stop, None)
    library.sqlite3_exec(opened, b"BEGIN", None, None, None)
    code = library.sqlite3_prepare_v2(opened, text.encode(), -1, ctypes.byref(statement), None)
    assert code == 0, text
    counts = []
    for number in range(executions):
        for place in range(library.sqlite3_bind_parameter_count(statement)):
            value = f'["{number}"]'.encode()
            library.sqlite3_bind_text(statement, place + 1, value, -1, pointer(-1))
        library.sqlite3_step(statement)
        library.sqlite3_reset(statement)
        counts.append(library.sqlite3_stmt_status(statement, _REPREPARED, 0))
    library.sqlite3_finalize(statement)
    library.sqlite3_close(opened)
    return int(counts[-1] - counts[0])


def test_every_query_is_used() -> None:
    nodes = code()
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings]
    named = set(sql.queries()) | set(sql.replica_queries())
    assert named - {constant.value for constant in constants} == set()


def test_every_query_that_is_asked_for_exists() -> None:
    asked = {name for node in code() for name in _asked(node)}
    assert {"append", "latest", "history"} <= asked, "the search itself works"
    assert asked - set(sql.queries()) - set(sql.replica_queries()) == set()


_ASKING = ("row", "rows", "run", "change", "select")


def _asked(node: ast.AST) -> Iterator[str]:
    """`sql["x"]`, `self._sql["x"]`, `store.row("x", …)` and the like."""
    argument: ast.expr | None = None
    if isinstance(node, ast.Subscript) and _name(node.value) in ("sql", "_sql"):
        argument = node.slice
    elif isinstance(node, ast.Call) and _name(node.func) in _ASKING and node.args:
        argument = node.args[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        yield argument.value


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
