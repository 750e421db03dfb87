"""The release before this one: what its replica did, and how its homes looked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import patch

from postgres import Cluster
from replicas import build

from syncd.replica import administration
from syncd.sql import postgres_steps

# The last step before the one that changed what the replica's functions do, and nothing else: they
# do their work on today's tables too.
BEFORE_PUSH = 3
_FUNCTIONS = """
SELECT p.oid::regprocedure::text, pg_get_function_result(p.oid), pg_get_functiondef(p.oid)
FROM pg_proc p WHERE p.pronamespace = 'syncd'::regnamespace AND p.proname <> 'clock'
"""
# Each step of a home's database taken back, the last one first.
_HOME_STEPS = {
    5: "DROP TABLE working; DELETE FROM state WHERE name = 'tally';",
    4: "DROP INDEX log_by_entity;"
       "CREATE INDEX log_by_entity ON log (entity_id) WHERE entry_id <> entity_id;",
    3: "DROP INDEX log_by_kind; DROP TABLE fences; DROP TABLE presence; DROP TABLE sources;",
}  # fmt: skip
HOME_VERSIONS = tuple(number - 1 for number in _HOME_STEPS)


def older_home(version: int) -> str:
    """What makes today's database one of that version."""
    undone = [number for number in _HOME_STEPS if number > version]
    steps = "".join(
        f"{_HOME_STEPS[number]} DELETE FROM _sqlite_migrations WHERE name LIKE '{number:04}%';"
        for number in undone
    )
    return f"{steps} DELETE FROM state WHERE name = 'views'; PRAGMA user_version = {version};"


class Function(NamedTuple):
    result: str
    text: str


Functions = dict[str, Function]
Sql = Callable[[str], list[tuple[Any, ...]]]


def older_functions(cluster: Cluster) -> Functions:
    template = cluster.template(_build_older)
    return {name: Function(*rest) for name, *rest in cluster.sql(template, _FUNCTIONS)}


def _build_older(admin_dsn: str) -> None:
    with patch.object(administration, "postgres_steps", lambda: postgres_steps()[:BEFORE_PUSH]):
        build(admin_dsn)


def put(sql: Sql, functions: Functions) -> Functions:
    """Have a replica do as these say; those that stood in their place."""
    standing = {name: Function(*rest) for name, *rest in sql(_FUNCTIONS)}
    script, before = "SET check_function_bodies = off;", {}
    for name, function in functions.items():
        if name in standing:
            before[name] = standing[name]
        if name in standing and standing[name].result != function.result:
            script += f"DROP FUNCTION {name};"
        if standing.get(name) != function:
            script += f"{function.text}; ALTER FUNCTION {name} OWNER TO syncd_owner;"
    sql(script)
    return before
