"""`syncd admin fleet`, `tasks`, `cost` … and `query`: a command for each block of schema/admin.sql.

Whoever asks, with an administrator's login or with this machine's own, sees what row-level security
lets that login see.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from syncd.cli import printing, render
from syncd.cli.bars import bar
from syncd.cli.verb import App, Count, verb
from syncd.errors import InvalidInputError, UsageError
from syncd.sql import AdminQuery, admin_queries

if TYPE_CHECKING:
    from syncd.replica.queries import Asked, Found, Queries

_DIMENSIONS = {"task": "task_id", "agent": "agent_id", "type": "agent_type", "day": "day"}
SEGMENT = "segment"
_ROWS = 200


@contextmanager
def queries(app: App) -> Iterator[Queries]:
    """Asked as the administrator whose login is given, else as this machine."""
    from syncd import credentials
    from syncd.replica.queries import Queries

    settings = app.node.settings
    given = settings["admin.dsn"] or credentials.dsn(app.node.home, settings)
    opened = Queries(given, settings["cloud.tls"])
    try:
        yield opened
    finally:
        opened.close()


# --- options ------------------------------------------------------------------------------------


def _option(column: str) -> str:
    """What people call a column: the id of a task is its name."""
    return column.removesuffix("_id").replace("_", "-")


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    """What every query takes."""
    for option in (
        click.option("--csv", "as_csv", is_flag=True, help="Print CSV with all columns."),
        click.option("--limit", default=_ROWS, show_default=True, type=Count(0),
                     help="How many rows, 0 for all."),
        click.option("--org", help="Only this organization, by name or id."),
    ):  # fmt: skip
        function = option(function)
    return function


def _filters(query: AdminQuery) -> list[click.Option]:
    found = [
        click.Option([f"--{_option(column)}", column],
                     help=f"Only this {_option(column).replace('-', ' ')}"
                     f"{_one_of(query.words.get(column))}; * stands for anything.")
        for column in query.filters
    ]  # fmt: skip
    if query.since:
        moment = query.since.replace("_", " ")
        found += [
            click.Option(["--since"], metavar="TIME", help=f"From this time on ({moment})."),
            click.Option(["--until"], metavar="TIME", help=f"Before this time ({moment})."),
        ]
    return found


def _one_of(words: Sequence[str] | None) -> str:
    return f" ({', '.join(words)})" if words else ""


def _moment(text: str | None) -> str:
    from syncd.vocabulary import zoned

    try:
        return zoned(text) if text else ""
    except ValueError as error:
        raise InvalidInputError(str(error), "For example: --since 2030-01-31T09:00Z") from None


def _asked(name: str, org: str | None, limit: int, chosen: dict[str, str | None]) -> Asked:
    from syncd.replica.queries import Asked

    since, until = (_moment(chosen.pop(word, None)) for word in ("since", "until"))
    equal = {column: value for column, value in chosen.items() if value is not None}
    return Asked(name, org, equal, since, until, limit or None)


# --- commands -----------------------------------------------------------------------------------


def command(query: AdminQuery) -> click.Command:
    """The command of a query, with an option for each column it can be narrowed down by."""

    @verb
    @_common
    def run(app: App, org: str | None, limit: int, as_csv: bool, **chosen: str | None) -> None:
        with queries(app) as replica:
            found = replica.ask(_asked(query.name, org, limit, chosen))
        emit(app, found, query.shown, as_csv=as_csv)

    return _described(run, query)


def cost(query: AdminQuery) -> click.Command:
    """Costs are added up, and drawn."""

    @verb
    @_common
    @click.option(
        "--by", default="task", show_default=True, type=click.Choice([*_DIMENSIONS, SEGMENT]),
        help="What to add up for; segments are those of one task.",
    )  # fmt: skip
    def run(
        app: App, by: str, org: str | None, limit: int, as_csv: bool, **chosen: str | None
    ) -> None:
        with queries(app) as replica:
            found = replica.ask(_costs(by, _asked(query.name, org, limit, chosen)))
        column = _DIMENSIONS.get(by, "agent_id")
        shown = (column, "tokens", "seconds", "checkpoints", "iterations", "last_at")
        emit(app, found, shown, as_csv=as_csv, drawn="tokens")

    return _described(run, query)


def _costs(by: str, asked: Asked) -> Asked:
    if by != SEGMENT:
        return asked._replace(by=_DIMENSIONS[by])
    if "task_id" not in asked.equal or "day" in asked.equal:
        raise UsageError(
            "segments are those of one task", "Add --task, and leave --day out: --since, --until."
        )
    return asked._replace(name="segments")


def _described(function: Callable[..., Any], query: AdminQuery) -> click.Command:
    made = click.command(query.name, help=query.help)(function)
    made.params = [*_filters(query), *made.params]
    return made


@click.command("query")
@click.argument("name", required=False)
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Only rows that have it.")
@verb
@_common
def query_(
    app: App, name: str | None, where: Sequence[str], org: str | None, limit: int, as_csv: bool
) -> None:
    """Run a query of the replica by its name, all columns; without a name, list what there is.

    Whatever view the replica has as syncd.admin_NAME is one, also if this syncd does not know it.
    """
    pairs = [text.partition("=") for text in where]
    if not all(middle for _, middle, _ in pairs):
        raise UsageError("--where is a column, = and a value", "For example: --where state=blocked")
    with queries(app) as replica:
        if name is None:
            names = [{"name": known, "help": words} for known, words in replica.names().items()]
        else:
            equal: dict[str, str | None] = {column: value for column, _, value in pairs}
            found = replica.ask(_asked(name, org, limit, equal))
    if name is None:
        rows = [(each["name"], each["help"]) for each in names]
        app.emit(names, lambda: render.table(("NAME", "WHAT FOR"), rows, whole=("NAME",)))
    else:
        emit(app, found, found.columns, as_csv=as_csv)


def commands() -> list[click.Command]:
    return [
        *(cost(query) if query.name == "cost" else command(query)
          for query in admin_queries().values()),
        query_,
    ]  # fmt: skip


# --- what it looks like -------------------------------------------------------------------------


def emit(
    app: App, found: Found, shown: Sequence[str], *, as_csv: bool = False, drawn: str = ""
) -> None:
    if as_csv and app.json:
        raise UsageError("--csv and --json exclude each other", "Choose one.")
    if as_csv:
        printing.show(_csv(found), nl=False)
    else:
        app.emit(_documents(found), lambda: _table(found, shown, drawn))
    if found.more:
        printing.say("There are more rows: --limit 0 shows all.")


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value) if isinstance(value, UUID) else value


def _documents(found: Found) -> list[dict[str, Any]]:
    return [dict(zip(found.columns, map(_plain, row), strict=True)) for row in found.rows]


def _csv(found: Found) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(found.columns)
    writer.writerows([_cell_of_csv(value) for value in row] for row in found.rows)
    return text.getvalue()


def _cell_of_csv(value: Any) -> Any:
    plain = _plain(value)
    return json.dumps(plain) if isinstance(plain, dict | list | bool) else plain


def _table(found: Found, shown: Sequence[str], drawn: str) -> str:
    """The columns for people. Those that are the same all over, or empty, say nothing; which
    organization it is counts where there are several."""
    documents = _documents(found)
    several = len({document.get("organization") for document in documents}) > 1
    names = [name for name in shown if any(d[name] is not None for d in documents)] or shown
    names = ["organization", *names] if several and "organization" not in names else [*names]
    rows: list[list[Any]] = [[_cell(name, d[name]) for name in names] for d in documents]
    headings = [_heading(name) for name in names]
    if drawn and render.width(sys.stdout):
        _draw(headings, rows, names.index(drawn), [d[drawn] for d in documents])
    return render.table(headings, rows, spare=headings[:1:-1], elsewhere="--csv or --json")


def _heading(name: str) -> str:
    if name.endswith("seconds"):
        return name.removesuffix("seconds").rstrip("_").upper() or "TIME"
    return _option(name).replace("-", " ").upper()


def _draw(headings: list[str], rows: list[list[Any]], place: int, values: list[int]) -> None:
    """A bar per row, as long as its share of the greatest."""
    headings.insert(place + 1, "")
    for row, value in zip(rows, values, strict=True):
        row.insert(place + 1, bar(value, max(values)))


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "bytes" in name:
        return render.size(value)
    if name.endswith("seconds"):
        return _duration(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    return json.dumps(value) if isinstance(value, dict | list) else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
