"""The admin queries, asked by whoever may: row-level security decides what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from syncd.errors import CheckpointNotFoundError, ReplicaError, UsageError
from syncd.replica import link
from syncd.sql import admin_queries, replica_queries

ROWS, COST = "admin_rows", "admin_cost_by"
_NO_VALUE = ("22007", "22008", "22P02", "22003")
_UNSORTED = ("1",)


class Asked(NamedTuple):
    """A query by name, and which of its rows: those whose columns have the values of `equal`, in
    which `*` stands for anything. `by` adds up costs."""

    name: str
    organization: str | None = None
    equal: Mapping[str, str] = {}
    since: str = ""
    until: str = ""
    limit: int | None = None
    by: str = ""


class Found(NamedTuple):
    """Rows with names for their columns; `more` if there are others beyond the limit."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool


class Queries:
    """A connection of a lead, an auditor, a member or an administrator."""

    def __init__(self, dsn: str, tls: str = link.VERIFIED) -> None:
        self.connection: psycopg.Connection[Any] = link.connect(dsn, tls)
        self._sql = replica_queries()

    def close(self) -> None:
        self.connection.close()

    def names(self) -> dict[str, str]:
        """The queries that this replica has, and what each is for."""
        return dict(self._rows("admin_views"))

    def ask(self, asked: Asked) -> Found:
        """Raises if there is no such query, column or organization."""
        self._check(asked)
        limit = sql.SQL("ALL") if asked.limit is None else sql.Literal(asked.limit + 1)
        statement = sql.SQL(self._sql[COST if asked.by else ROWS].decode()).format(
            view=sql.Identifier("syncd", f"admin_{asked.name}"),
            by=sql.Identifier(asked.by or "organization"),
            conditions=sql.SQL(" AND ").join([sql.SQL("true"), *self._conditions(asked)]),
            order=sql.SQL(", ").join(_order(asked)),
            limit=limit,
        )
        return self._found(statement, asked.limit)

    def _found(self, statement: sql.Composed, limit: int | None) -> Found:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)
                columns = [column.name for column in cursor.description or ()]
                rows = cursor.fetchall()
        except psycopg.Error as error:
            if error.sqlstate in _NO_VALUE:
                raise UsageError(f"no such value: {error.diag.message_primary}") from None
            with link.translated():
                raise
        return Found(columns, rows[:limit], limit is not None and len(rows) > limit)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with link.translated():
            return self.connection.execute(self._sql[query], values or None).fetchall()

    def _check(self, asked: Asked) -> None:
        columns = [row[0] for row in self._rows("admin_columns", f"syncd.admin_{asked.name}")]
        if not columns:
            raise self._unknown(asked.name)
        known = admin_queries()[asked.name].words if asked.name in admin_queries() else {}
        for name, value in asked.equal.items():
            if name not in columns:
                raise UsageError(
                    f"{asked.name} has no column {name!r}", f"It has {', '.join(columns)}."
                )
            if name in known and "*" not in value and value not in known[name]:
                raise UsageError(
                    f"{value!r} is no {name} of {asked.name}", f"It is {_either(known[name])}."
                )

    def _unknown(self, name: str) -> ReplicaError | CheckpointNotFoundError:
        if name in admin_queries():
            return ReplicaError(
                f"the replica does not have the query {name!r} yet",
                "An administrator runs `syncd cloud migrate`.",
            )
        return CheckpointNotFoundError(
            f"there is no admin query {name!r}", f"There are {', '.join(self.names())}."
        )

    def _conditions(self, asked: Asked) -> Iterator[sql.Composed]:
        if asked.organization is not None:
            yield _comparison("organization_id", "=", self._organization(asked.organization))
        for column, value in asked.equal.items():
            if "*" in value:
                pattern = _escaped(value).replace("*", "%")
                yield sql.SQL("{}::text LIKE {}").format(sql.Identifier(column), pattern)
            else:
                yield _comparison(column, "=", value)
        moment = admin_queries()[asked.name].since if asked.name in admin_queries() else ""
        for operator, value in ((">=", asked.since), ("<", asked.until)):
            if value:
                yield _comparison(moment, operator, value)

    def _organization(self, name: str) -> str:
        found = self._rows("admin_organization", name, name)
        if not found:
            raise CheckpointNotFoundError(
                f"there is no organization {name!r} that this login may see",
                "Leave --org out: then all are shown that there are for it.",
            )
        return str(found[0][0])


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _comparison(column: str, operator: LiteralString, value: str) -> sql.Composed:
    """The value as a literal, so that the plan is made for it, and of the column's own type."""
    return sql.SQL("{} " + operator + " {}").format(sql.Identifier(column), value)


def _order(asked: Asked) -> list[sql.Composable]:
    if asked.by:
        wished: tuple[str, ...] = ("day",) if asked.by == "day" else ("-tokens", asked.by)
    else:
        known = admin_queries().get(asked.name)
        wished = known.order if known else _UNSORTED
    return [_sorted(name) for name in wished]


def _sorted(name: str) -> sql.Composable:
    if name in _UNSORTED:
        return sql.SQL("1")
    if name.startswith("-"):
        return sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(name[1:]))
    return sql.Identifier(name)
