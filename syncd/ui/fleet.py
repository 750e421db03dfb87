"""All machines of the organization, as the replica knows them: what row-level security lets this
machine's login see, as it does with `syncd admin`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, NamedTuple

from syncd.errors import SyncdError
from syncd.node import Node
from syncd.replica import Replica


class Fleet(NamedTuple):
    """`problem`: why there is nothing to show, and `remedy` what to do about it."""

    organization: str
    machines: Sequence[tuple[Any, ...]] = ()
    tasks: Sequence[tuple[Any, ...]] = ()
    silent: Sequence[tuple[Any, ...]] = ()
    days: Sequence[tuple[Any, ...]] = ()
    agents: Sequence[tuple[Any, ...]] = ()
    problem: str = ""
    remedy: str = ""


def asked(node: Node) -> Fleet:
    """What the replica says; being offline is an answer too."""
    if not node.settings["cloud.dsn"]:
        return Fleet(
            "", problem="This home has no replica.", remedy="`syncd login` connects it with one."
        )
    try:
        with closing(node.replica()) as replica:
            return _read(replica)
    except SyncdError as error:
        return Fleet("", problem=error.message, remedy=error.remedy)


def _read(replica: Replica) -> Fleet:
    member = replica.membership
    if replica.rows("fleet_known") != [(True,)]:
        return Fleet(
            member.organization,
            problem="This replica does not have the views that the fleet is read from.",
            remedy="An administrator brings it up to date: `syncd cloud migrate`.",
        )

    def part(query: str) -> list[tuple[Any, ...]]:
        return [_plain(row) for row in replica.rows(query, member.organization_id)]

    return Fleet(member.organization, part("fleet_machines"), part("fleet_tasks"),
                 part("fleet_silent"), part("fleet_days"), part("fleet_agents"))  # fmt: skip


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Moments as text, as everywhere else on the pages."""
    return tuple(value.isoformat() if isinstance(value, datetime) else value for value in row)
