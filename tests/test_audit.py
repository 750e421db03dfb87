"""An audit finds every change that was not made by syncd, and names the entry."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from syncd import CheckpointService, ExecutionState, audit, projection, tasks
from syncd.errors import DiskFullError

LOG_COLUMNS = (
    "seq", "entry_id", "device_id", "device_seq", "entity", "entity_id", "op", "bases", "hlc",
    "actor", "at", "key_id", "meta", "hash", "previous", "chain", "signature", "effective_hlc",
    "body",
)  # fmt: skip
VIEW_KEYS = {"checkpoints": "id", "tasks": "id", "participants": "agent_id", "links": "child_id"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckpointService]:
    """A home with every kind of entry."""
    service = CheckpointService(home=tmp_path_factory.mktemp("recorded") / "home")
    tasks.add(service.node, "alpha", title="Alpha", budget=1000)
    first = service.create_checkpoint("alpha", "ann", ExecutionState(completed_items=["x"]))
    service.update_checkpoint(first.metadata.checkpoint_id, {"metadata": {"agent_id": "bob"}})
    second = service.create_checkpoint("alpha", "ann", ExecutionState(pending_items=["y"]))
    service.finalize_checkpoint(second.metadata.checkpoint_id, sign_as="Ann", meaning="approved")
    service.link_checkpoints(first.metadata.checkpoint_id, second.metadata.checkpoint_id)
    service.create_checkpoint("beta", "bob", ExecutionState())
    tasks.change(service.node, "beta", status="blocked")
    yield service
    service.close()


def copy_of(service: CheckpointService, target: Path) -> sqlite3.Connection:
    with sqlite3.connect(target, isolation_level=None) as copy:
        service.node.store.connection.backup(copy)
    copy.execute("PRAGMA journal_mode = DELETE")
    return copy


def found_in(
    connection: sqlite3.Connection, service: CheckpointService
) -> list[projection.Problem]:
    own = {service.node.store.device_id: service.node.key.public()}
    return audit.verify_database(connection, own).problems


def flipped(value: Any, bit: int) -> Any:
    """The value with one bit changed, of the same type."""
    if isinstance(value, int):
        return value ^ 1 << 4 + bit % 4  # high enough not to meet a neighbour
    raw = bytearray(value.encode() if isinstance(value, str) else value)
    if not raw:
        return "!" if isinstance(value, str) else b"!"
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    return raw.decode("utf-8", "replace") if isinstance(value, str) else bytes(raw)


def test_an_untouched_record_is_intact(recorded: CheckpointService) -> None:
    store = recorded.node.store
    report = audit.verify(store, recorded.node.key.public())
    assert report.ok
    assert report.signed == 1
    assert report.entries == store.connection.execute("SELECT COUNT(*) FROM log").fetchone()[0]


@pytest.mark.parametrize("column", LOG_COLUMNS)
def test_one_flipped_bit_in_any_column_of_any_entry_is_found_and_named(
    recorded: CheckpointService, tmp_path: Path, column: str
) -> None:
    rows = recorded.node.store.connection.execute(
        f"SELECT seq, entry_id, {column} FROM log WHERE {column} IS NOT NULL"
    ).fetchall()
    assert rows
    chance = random.Random(column)
    for seq, entry_id, value in rows:
        copy = copy_of(recorded, tmp_path / f"{column}-{seq}.db")
        new = flipped(value, chance.randrange(256))
        copy.execute(f"UPDATE log SET {column} = ? WHERE seq = ?", (new, seq))
        named = {problem.entry_id for problem in found_in(copy, recorded)}
        copy.close()
        # A flipped entry_id is itself what the audit sees of the entry.
        assert entry_id in named or (column == "entry_id" and new in named), (column, seq)


@pytest.mark.parametrize("view", VIEW_KEYS)
def test_one_flipped_bit_in_any_view_row_is_found(
    recorded: CheckpointService, tmp_path: Path, view: str
) -> None:
    source = recorded.node.store.connection
    columns = [row[1] for row in source.execute(f"PRAGMA table_info({view})")]
    rows = source.execute(f"SELECT * FROM {view}").fetchall()
    assert rows
    for number, row in enumerate(rows):
        for column, value in zip(columns, row, strict=True):
            copy = copy_of(recorded, tmp_path / f"{view}-{number}-{column}.db")
            same = " AND ".join(f"{name} IS ?" for name in columns)
            new = flipped(value if value is not None else 0, 3)
            copy.execute(f"UPDATE {view} SET {column} = ? WHERE {same}", (new, *row))
            problems = found_in(copy, recorded)
            copy.close()
            assert problems, (view, column)
            assert all(problem.entry_id for problem in problems)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("DELETE FROM log WHERE seq = 3", "missing"),
        ("UPDATE log SET device_seq = device_seq + 1 WHERE seq > 4", "missing"),
        ("UPDATE log SET signature = NULL", "signature"),
        ("UPDATE devices SET public_key = zeroblob(32)", "key"),
        ("DELETE FROM checkpoints WHERE task_id = 'beta'", "view checkpoints"),
        ("INSERT INTO participants VALUES ('mallory', 'alpha')", "view participants"),
    ],
)
def test_a_removed_moved_or_inserted_row_is_found(
    recorded: CheckpointService, tmp_path: Path, change: str, word: str
) -> None:
    copy = copy_of(recorded, tmp_path / "copy.db")
    copy.execute(change)
    texts = [problem.problem for problem in found_in(copy, recorded)]
    copy.close()
    assert any(word in text for text in texts), texts


def test_a_rewritten_entry_is_found_even_if_its_hash_and_chain_are_made_to_fit(
    recorded: CheckpointService, tmp_path: Path
) -> None:
    from syncd.entry import Entry
    from syncd.seal import chain_value, digest

    copy = copy_of(recorded, tmp_path / "copy.db")
    entry = Entry(*copy.execute("SELECT * FROM log WHERE seq = 2").fetchone())
    body = entry.body.replace(b'"x"', b'"z"')
    forged = chain_value(entry.previous, entry.header(), digest(body))
    copy.execute(
        "UPDATE log SET body = ?, hash = ?, chain = ? WHERE seq = 2", (body, digest(body), forged)
    )
    assert found_in(copy, recorded)
    copy.close()


def test_random_damage_to_the_file_is_found_or_changes_nothing(
    recorded: CheckpointService, tmp_path: Path
) -> None:
    clean = tmp_path / "clean.db"
    copy = copy_of(recorded, clean)
    wanted = copy.execute("SELECT * FROM log").fetchall()
    copy.close()
    content = clean.read_bytes()
    chance, found = random.Random(7), 0
    for number in range(300):
        damaged = bytearray(content)
        place = chance.randrange(len(damaged))
        damaged[place] ^= 1 << chance.randrange(8)
        path = tmp_path / f"damaged-{number}.db"
        path.write_bytes(damaged)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            problems = found_in(connection, recorded)
            if problems:
                found += 1
            else:
                assert connection.execute("SELECT * FROM log").fetchall() == wanted, place
        finally:
            connection.close()
    assert found > 10


def test_rebuild_proves_the_views_equal(recorded: CheckpointService) -> None:
    assert projection.rebuild(recorded.node.store) == []


@pytest.mark.parametrize("view", VIEW_KEYS)
def test_rebuild_recreates_a_lost_view(home: Path, recorded: CheckpointService, view: str) -> None:
    shutil.copytree(recorded.node.home, home)
    service = CheckpointService(home=home)
    connection = service.node.store.connection
    wanted = connection.execute(f"SELECT * FROM {view}").fetchall()
    connection.execute(f"DELETE FROM {view}")
    differences = projection.rebuild(service.node.store)
    assert {difference.view for difference in differences} == {view}
    assert connection.execute(f"SELECT * FROM {view}").fetchall() == wanted
    assert projection.rebuild(service.node.store) == []
    service.close()


def test_damage_stays_recorded_until_an_audit_is_clean(service: CheckpointService) -> None:
    service.create_checkpoint("t", "a", ExecutionState())
    connection = service.node.store.connection
    connection.execute("UPDATE checkpoints SET phase = 'testing'")
    key = service.node.key.public()
    assert not audit.verify(service.node.store, key).ok
    assert service.node.store.rows("problems")
    projection.rebuild(service.node.store)
    assert audit.verify(service.node.store, key).ok
    assert not service.node.store.rows("problems")


def test_no_room_to_check_is_not_taken_for_damage(
    recorded: CheckpointService, tmp_path: Path
) -> None:
    with closing(copy_of(recorded, tmp_path / "copy.db")) as copy:
        copy.execute("PRAGMA temp.max_page_count = 2")
        with pytest.raises(DiskFullError):
            audit.verify_database(copy, {})
        copy.execute("PRAGMA temp.max_page_count = 1000000")
        assert audit.verify_database(copy, {}).ok
