"""Whether several devices and the replica have the same entries, views and conflicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from devices import Device

from syncd import conflicts
from syncd.entry import FINALIZE, PURGE, Version, heads, winner

Rows = list[tuple[Any, ...]]
# Asks the replica, as superuser: a query and its values.
Ask = Callable[..., Rows]

LOG = (
    "entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at, key_id, meta,"
    " hash, chain, effective_hlc, cloud_seq, batch, refused"
)
CHECKPOINTS = (
    "c.id, c.task_id, c.agent_id, c.agent_type, c.iteration, c.phase, c.status, c.reason, c.tokens,"
    " c.parent_id, c.final, c.device_id, c.hlc"
)
CONFLICTS = "id, kind, entity, entity_id, bases, winner, loser, detected_at, state"
TASKS = "id, status, budget, retention"
CREATED = "to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS+00:00')"


def rows_of(device: Device) -> dict[str, Rows]:
    """Everything but places in the local log, and what only the writer of a refused entry has."""
    taken = "FROM log WHERE refused IS NULL"
    return {
        "log": sorted(device.rows(f"SELECT {LOG} {taken}")),
        "bodies": sorted(device.rows(f"SELECT entry_id, body, purged {taken}"), key=str),
        "refused": sorted(
            device.rows("SELECT entry_id, entity, refused FROM log WHERE refused IS NOT NULL")
        ),
        "checkpoints": sorted(
            device.rows(
                f"SELECT {CHECKPOINTS}, l.entry_id, f.entry_id, c.task_seq, c.created_at"
                " FROM checkpoints c JOIN log l ON l.seq = c.seq JOIN log f ON f.seq = c.first_seq"
            )
        ),
        "tasks": sorted(
            device.rows(f"SELECT {TASKS}, revision, created_at FROM tasks"), key=lambda row: row[0]
        ),
        "links": sorted(device.rows("SELECT child_id, parent_id, hlc, revision FROM links")),
        "fences": sorted(device.rows("SELECT * FROM fences")),
        "participants": sorted(device.rows("SELECT * FROM participants")),
        "conflicts": sorted(device.rows(f"SELECT {CONFLICTS} FROM conflicts")),
    }


def rows_at(ask: Ask, organization_id: str) -> dict[str, Rows]:
    """The same as far as the replica has it."""
    where = "WHERE organization_id = %s"

    def sql(text: str) -> Rows:
        return ask(text, organization_id)

    log = LOG.replace("entry_id, device_id", "entry_id::text, device_id::text")
    names = "id::text, kind, entity, entity_id, bases, winner::text, loser::text, detected_at,state"
    columns = CHECKPOINTS.replace("c.final", "c.final::integer").replace(
        "c.device_id", "c.device_id::text"
    )
    found = {
        "log": sql(
            f"SELECT {log.replace('batch', 'batch::text')} FROM syncd.log {where}"
            " AND refused IS NULL"
        ),
        "bodies": sql(
            f"SELECT entry_id::text, coalesce(body, ''), purged_by::text FROM syncd.log {where}"
            " AND refused IS NULL"
        ),
        "refused": sql(
            f"SELECT entry_id::text, entity, refused FROM syncd.log {where} AND refused IS NOT NULL"
        ),
        "checkpoints": sql(f"SELECT {columns}, c.entry_id::text FROM syncd.checkpoints c {where}"),
        "tasks": sql(f"SELECT {TASKS}, entry_id::text, {CREATED} FROM syncd.tasks {where}"),
        "conflicts": sql(f"SELECT {names} FROM syncd.conflicts {where}"),
    }
    return {name: sorted(rows, key=str) for name, rows in found.items()}


def assert_equal(told: str, mine: Any, theirs: Any) -> None:
    """Only what differs is of interest."""
    only_mine = [row for row in mine if row not in theirs]
    only_theirs = [row for row in theirs if row not in mine]
    assert not only_mine, f"{told}: {only_mine}, not {only_theirs}"
    assert not only_theirs, f"{told}: {only_theirs} is missing"
    assert len(mine) == len(theirs), f"{told}: some are there twice"


def assert_the_same(
    devices: Sequence[Device], ask: Ask, organization_id: str
) -> dict[str, bytes | None]:
    """On every device and at the replica; the last one knows nothing but what the replica had. The
    bodies of all entries; None for one that was purged."""
    expected = rows_of(devices[-1])
    for number, device in enumerate(devices):
        found = rows_of(device)
        for name in expected:
            assert_equal(f"{name} of device {number}", found[name], expected[name])
        assert not (problems := device.problems()), problems
        assert_only_purges_were_refused(device)
        assert (proof := device.proof()).ok, f"device {number}: {proof}"
        assert not (waiting := device.exchange.pending_count()), f"device {number}: {waiting} wait"
    _compare_with_replica(rows_at(ask, organization_id), expected)
    assert_equal("current", *_current_by_rule(devices[-1]))
    assert {body for _, body, purge in expected["bodies"] if purge is not None} <= {b""}
    return {entry: None if purge else body for entry, body, purge in expected["bodies"]}


def assert_only_purges_were_refused(device: Device) -> None:
    """Of tasks on legal hold; whoever wrote them lets it rest."""
    text = "SELECT entity FROM log WHERE refused = 'its task is on legal hold'"
    refused = device.rows("SELECT entity, refused FROM log WHERE refused IS NOT NULL")
    assert [entity for entity, _ in refused] == [entity for (entity,) in device.rows(text)], refused
    assert {entity for entity, _ in refused} <= {PURGE}, refused
    for entry in conflicts.quarantined(device.node, "open"):
        assert entry["reason"] == "its task is on legal hold", entry
        conflicts.drop(device.node, entry["entry_id"])


def _compare_with_replica(there: dict[str, Rows], expected: dict[str, Rows]) -> None:
    for name in ("log", "bodies", "refused", "conflicts"):
        assert_equal(f"{name} at the replica", there[name], expected[name])
    cut = [row[:14] for row in expected["checkpoints"]]
    assert_equal("checkpoints at the replica", there["checkpoints"], cut)
    described = [(*row[:4], row[4] or None, row[5]) for row in expected["tasks"]]
    assert_equal("tasks at the replica", there["tasks"], described)


def _current_by_rule(device: Device) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Each checkpoint's current entry as the view has it, and as DESIGN.md §2 says."""
    by_entity: dict[str, list[Version]] = {}
    text = "SELECT entity_id, entry_id, bases, op, effective_hlc, device_id, hash FROM log"
    for entity_id, entry_id, bases, op, *rest in device.rows(f"{text} WHERE entity = 'checkpoint'"):
        version = Version(entry_id, orjson.loads(bases), op == FINALIZE, *rest)
        by_entity.setdefault(entity_id, []).append(version)
    ruled = {(name, winner(heads(found)).entry_id) for name, found in by_entity.items()}
    viewed = device.rows("SELECT c.id, l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.seq")
    return set(viewed), ruled
