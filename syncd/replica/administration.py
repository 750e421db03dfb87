"""What an administrator asks of the replica: its schema, its organizations, who belongs to them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from syncd.errors import CheckpointNotFoundError, ReplicaOutdatedError
from syncd.replica import link
from syncd.replica.login import Login, Machine, credentials
from syncd.sql import (
    POSTGRES_VERSION,
    admin_views,
    postgres_steps,
    replica_queries,
    shipped,
)


class Organization(NamedTuple):
    id: str
    name: str
    created_at: datetime
    cloud_seq: int
    recovery_open: bool
    members: int


class Member(NamedTuple):
    id: str
    name: str
    kind: str
    added_at: datetime
    removed_at: datetime | None
    machines: int


class Administration:
    """A connection as an administrator, who need not be a superuser."""

    def __init__(self, dsn: str, tls: str = link.VERIFIED) -> None:
        self.connection: psycopg.Connection[Any] = link.connect(dsn, tls)
        self._sql = replica_queries()

    def close(self) -> None:
        self.connection.close()

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with link.translated():
            cursor = self.connection.execute(self._sql[query], values or None)
            return cursor.fetchall() if cursor.description else []

    # --- schema -----------------------------------------------------------------------------

    def migrate(self) -> list[str]:
        """Install the replica or bring it up to date; which steps were applied."""
        with link.translated(), self.connection.transaction():
            self.rows("one_installer")
            self._run(shipped("schema") / "postgres_roles.sql")
            version = self.version()
            if version > POSTGRES_VERSION:
                raise ReplicaOutdatedError(
                    f"the replica has schema {version}, this syncd knows up to {POSTGRES_VERSION}",
                    "Upgrade syncd on this machine; the replica was left as it is.",
                )
            applied = [self._step(number, path) for number, path in
                       enumerate(postgres_steps(), start=1) if number > version]  # fmt: skip
            self.connection.execute(admin_views())
            return applied

    def _step(self, number: int, path: Any) -> str:
        self._run(path)
        self.rows("as_owner")
        self.rows("record_migration", number, path.stem)
        self.rows("as_oneself")
        return str(path.stem)

    def _run(self, path: Any) -> None:
        self.connection.execute(path.read_bytes())

    def version(self) -> int:
        if not self.rows("installed")[0][0]:
            return 0
        return int(self.rows("replica_version")[0][0])

    def sync_roles(self) -> list[str]:
        """After a restore into another server; before one, it makes what a dump refers to."""
        with link.translated(), self.connection.transaction():
            self._run(shipped("schema") / "postgres_roles.sql")
            if not self.version():
                self.rows("expect_restore")
                return []
            self.rows("restored")
            return [row[0] for row in self.rows("sync_roles")]

    # --- organizations ----------------------------------------------------------------------

    def organizations(self) -> list[Organization]:
        return [Organization(*row) for row in self.rows("organizations")]

    def organization(self, name: str) -> Organization:
        """By name or id."""
        for found in self.organizations():
            if name in (found.name, found.id):
                return found
        raise CheckpointNotFoundError(
            f"there is no organization {name!r}", "`syncd admin org list` shows what there is."
        )

    def create_organization(self, name: str) -> str:
        return str(self.rows("create_organization", name)[0][0])

    def set_recovery(self, organization_id: str, *, is_open: bool) -> None:
        self.rows("set_recovery", organization_id, is_open)

    # --- members and their machines -----------------------------------------------------------

    def members(self, organization_id: str) -> list[Member]:
        return [Member(*row) for row in self.rows("members", organization_id)]

    def member(self, organization_id: str, name: str) -> Member:
        for found in self.members(organization_id):
            if name in (found.name, found.id) and found.removed_at is None:
                return found
        raise CheckpointNotFoundError(
            f"there is no member {name!r}", "`syncd admin member list ORG` shows who there is."
        )

    def add_member(self, organization_id: str, name: str, kind: str, machine: str) -> Login:
        login = credentials(self.connection)
        self.rows("add_member", organization_id, name, kind, machine, login.role, login.verifier)
        return login

    def remove_member(self, organization_id: str, name: str, reason: str) -> int:
        """Refuse all machines of a member from now on; how many there were."""
        member = self.member(organization_id, name)
        gone = [row[0] for row in self.rows("remove_member", organization_id, member.id, reason)]
        self.rows("end_sessions", gone)
        return len(gone)

    def machines(self, organization_id: str, member: str | None = None) -> list[Machine]:
        return [Machine(*row) for row in self.rows("machines", organization_id, member, member)]

    def add_machine(self, organization_id: str, member: str, machine: str) -> Login:
        login = credentials(self.connection)
        found = self.member(organization_id, member)
        self.rows("add_machine", organization_id, found.id, machine, login.role, login.verifier)
        return login

    def reset_machine(self, organization_id: str, role: str) -> Login:
        login = credentials(self.connection, role)
        self.rows("reset_machine", organization_id, login.role, login.verifier)
        return login

    def revoke_machine(self, organization_id: str, role: str, reason: str) -> None:
        self.rows("revoke_machine", organization_id, role, reason)
        self.rows("end_sessions", [role])
