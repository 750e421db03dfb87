"""The replica of a simulation: a real database, whose clock is set by hand.

One for each process. Each seed finds it empty, with logins that are connected already: to make
those would take longer than all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import psycopg
from postgres import Cluster
from replicas import Cloud, cloud_on

from soak import release
from syncd.replica import link
from syncd.replica.columns import register
from syncd.replica.login import Login
from syncd.sql import POSTGRES_NEEDED

IDLE = psycopg.pq.TransactionStatus.IDLE
# In this order none refers to what is not there yet.
_TABLES = ("devices", "log", "awaited", "tasks", "checkpoints", "conflicts", "agents", "messages")
_MEMBER = "member"
_SEEDS_PER_VACUUM = 20
# Everything happens in one thread: whoever waits for a lock waits in vain.
_LOCK_WAIT = "10ms"
_SETUP = """
CREATE SCHEMA soak;
CREATE TABLE soak.clock (now timestamptz NOT NULL);
INSERT INTO soak.clock VALUES (now());
CREATE TABLE soak.organization (cloud_seq bigint);
GRANT USAGE ON SCHEMA soak TO syncd_owner, syncd_admin;
GRANT SELECT ON soak.clock TO syncd_owner, syncd_admin;
CREATE OR REPLACE FUNCTION syncd.clock() RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT now FROM soak.clock';
ALTER TABLE syncd.organizations SET (autovacuum_enabled = off);
"""
_SETUP_TABLE = """
CREATE TABLE soak.{0} AS SELECT * FROM syncd.{0};
ALTER TABLE syncd.{0} SET (autovacuum_enabled = off);
"""
LOG = (
    "cloud_seq, batch::text, entry_id::text, device_id::text, device_seq, chain, effective_hlc,"
    " refused"
)


class Ground:
    """A migrated database with one organization."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.organization = cloud.organization("soak")
        self._connections: dict[tuple[str, int], psycopg.Connection[Any]] = {}
        self._free: list[Login] = []
        self._made = 0
        self._seeds = 0
        self._said_ms = -1
        # What stands in place of today's functions while the replica is of an older release.
        self._older = release.older_functions(cloud.cluster)
        self._replaced: release.Functions = {}
        self.is_too_old = False
        self.sql(_SETUP + "".join(_SETUP_TABLE.format(table) for table in _TABLES))

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        return self.cloud.sql(text, *values)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # --- logins -----------------------------------------------------------------------------------

    def login(self) -> Login:
        if self._free:
            return self._free.pop()
        self._made += 1
        if self._made == 1:
            return self.cloud.admin.add_member(self.organization, _MEMBER, _MEMBER, "machine 1")
        name = f"machine {self._made}"
        return self.cloud.admin.add_machine(self.organization, _MEMBER, name)

    def give_back(self, logins: list[Login]) -> None:
        self._free += logins

    def revoke(self, login: Login) -> None:
        self.cloud.admin.revoke_machine(self.organization, login.role, "soak")

    def connection(self, dsn: str, number: int = 0) -> psycopg.Connection[Any]:
        """The same one for as long as it lasts; with a number, one beside it."""
        found = self._connections.get((dsn, number))
        if found is None or found.closed:
            found = link.connect(dsn)
            register(found.adapters)
            found.execute(f"SET lock_timeout = '{_LOCK_WAIT}'".encode())
            self._connections[dsn, number] = found
        return found

    def idle(self, dsn: str) -> psycopg.Connection[Any]:
        """One for a transaction that stays open."""
        for number in count(1):
            found = self.connection(dsn, number)
            if found.info.transaction_status == IDLE:
                found.autocommit = False
                return found
        raise AssertionError

    def forget(self, dsn: str) -> None:
        """The server has ended them."""
        for place in [place for place in self._connections if place[0] == dsn]:
            with suppress(psycopg.Error):
                self._connections.pop(place).close()

    # --- its clock --------------------------------------------------------------------------------

    def set_clock(self, ms: int) -> None:
        if ms != self._said_ms:
            self.sql("UPDATE soak.clock SET now = to_timestamp(%s)", ms / 1000)
            self._said_ms = ms

    # --- what it has ------------------------------------------------------------------------------

    def log(self, after: int = 0) -> list[tuple[Any, ...]]:
        text = f"SELECT {LOG} FROM syncd.log WHERE cloud_seq > %s ORDER BY cloud_seq"
        return self.sql(text, after)

    def views(self) -> set[tuple[Any, ...]]:
        """Which entry of each checkpoint counts, and the conflicts."""
        current = "SELECT id, entry_id::text FROM syncd.checkpoints"
        differ = "SELECT id::text, kind, winner::text, loser::text, state FROM syncd.conflicts"
        return {*self.sql(current), *self.sql(differ)}

    def devices_of_others(self, login: Login) -> set[str]:
        text = "SELECT device_id::text FROM syncd.devices WHERE login <> %s"
        return {row[0] for row in self.sql(text, login.role)}

    def last(self) -> int:
        return int(self.sql("SELECT cloud_seq FROM syncd.organizations")[0][0])

    def clear(self) -> None:
        """As if nobody had ever used it."""
        self._seeds += 1
        self.sql("".join(f"DELETE FROM syncd.{table}; DELETE FROM soak.{table};"
                         for table in _TABLES))  # fmt: skip
        self.be_of_today()
        self.sql(
            "DELETE FROM soak.organization; UPDATE syncd.organizations"
            " SET cloud_seq = 0, recovery_open = false, announced_at = '2000-01-01'"
        )
        if self._seeds % _SEEDS_PER_VACUUM == 0:
            for table in (*_TABLES, "organizations"):
                self.sql(f"VACUUM syncd.{table}")

    # --- its release ------------------------------------------------------------------------------

    def be_of_today(self) -> None:
        if self._replaced:
            release.put(self.sql, self._replaced)
            self._replaced = {}
        self.is_too_old = False
        self.sql("DELETE FROM syncd.schema_migrations WHERE name = 'soak'")
        self.sql("UPDATE syncd.schema_migrations SET version = abs(version)")

    def be_older(self, version: int) -> None:
        """As its administrator has left it while the devices went on."""
        self.be_of_today()
        self.is_too_old = version < POSTGRES_NEEDED
        self._replaced = release.put(self.sql, self._older)
        newer = "UPDATE syncd.schema_migrations SET version = -version WHERE version > %s"
        self.sql(newer, version)

    def be_newer(self) -> None:
        """It says so; what else it does differently only the next release knows."""
        self.be_of_today()
        self.sql(
            "INSERT INTO syncd.schema_migrations SELECT max(version) + 1, 'soak', now()"
            " FROM syncd.schema_migrations"
        )

    # --- backups ----------------------------------------------------------------------------------

    def back_up(self) -> None:
        self.sql(
            "".join(
                f"DELETE FROM soak.{table}; INSERT INTO soak.{table} SELECT * FROM syncd.{table};"
                for table in _TABLES
            )
            + "DELETE FROM soak.organization;"
            "INSERT INTO soak.organization SELECT cloud_seq FROM syncd.organizations"
        )

    def has_backup(self) -> bool:
        return bool(self.sql("SELECT FROM soak.organization"))

    def kept(self) -> tuple[set[tuple[str, str]], bool]:
        """The entries of the backup; whether the replica has purges that are not among them, which
        after a restore a legal hold may keep out."""
        kept = set(self.sql("SELECT entry_id::text, device_id::text FROM soak.log"))
        purges = {
            row[0]
            for row in self.sql(
                "SELECT entry_id::text FROM syncd.log WHERE entity = 'purge' AND refused IS NULL"
            )
        }
        return kept, bool(purges - {entry for entry, _ in kept})

    def restore(self) -> None:
        """The whole organization as it was then; who belongs to it stays."""
        self.sql(
            "".join(
                f"DELETE FROM syncd.{table}; INSERT INTO syncd.{table} SELECT * FROM soak.{table};"
                for table in _TABLES
            )
            + "UPDATE syncd.organizations SET cloud_seq = o.cloud_seq FROM soak.organization o"
        )


@contextmanager
def ground_on(cluster: Cluster) -> Iterator[Ground]:
    with cloud_on(cluster) as cloud:
        made = Ground(cloud)
        try:
            yield made
        finally:
            made.close()
