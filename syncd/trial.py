"""A first replica without a server: the embedded PostgreSQL, an organization in it, and the login
of a home.

Each step looks first whether it is needed. So it can be taken again at any time, and goes on with
whatever was left: by an attempt that was killed, without the home, or without the server's folder.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from syncd import cluster, config, credentials, embedded
from syncd.embedded import Server
from syncd.errors import EmbeddedError, LoginRefusedError, UsageError
from syncd.node import Node, user
from syncd.replica import Administration, link
from syncd.replica.login import Login, Machine
from syncd.sql import exclusive

ORGANIZATION = "trial"
_STATE = "trial"
_LONGEST_NAME = 100


class Trial(NamedTuple):
    """What there is now. `made` tells what was missing before: server, organization, login."""

    server: Server
    organization: str
    member: str
    machine: str
    made: tuple[str, ...]


def prepare(node: Node) -> Trial | None:
    """Give a home its replica; None if it has one elsewhere, which is left alone."""
    here = _Preparation(node)
    if here.elsewhere():
        return None
    cluster.make_folder(here.folder)
    with exclusive(here.folder / "trial.lock"):
        return here.prepared()


def known(node: Node) -> str:
    """The id of the organization that a home was given here, if it was."""
    row = node.store.row("state", (_STATE,))
    return str(orjson.loads(row[0])["organization"]) if row else ""


class _Preparation:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._login: str = node.settings["cloud.dsn"]
        self.folder = embedded.location()
        self._before = embedded.status()
        self._known = self._state("organization")
        self._told: dict[str, Any] = orjson.loads(self._state(_STATE) or "{}")

    def _state(self, name: str) -> str:
        row = self._node.store.row("state", (name,))
        return row[0] if row else ""

    def elsewhere(self) -> bool:
        """Whether the login is certainly none of this server's, without starting it."""
        if not self._login:
            return False
        host = link.parsed(self._login).get("host")
        if os.environ.get("SYNCD_CLOUD_DSN") or host != cluster.HOST:
            return True
        return self._before is None and not self._told

    def prepared(self) -> Trial | None:
        self._refuse_another_folder()
        server = embedded.up()
        with closing(Administration(server.admin_dsn)) as admin:
            admin.migrate()
            machine = self._machine(admin)
            if self._login and machine is None and not self._lost(admin):
                return None
            made = [] if self._before and self._before.running else ["server"]
            if machine is None or machine.revoked:
                made += self._log_in(admin)
            else:
                made += self._mend(admin, machine, server.port)
        with self._node.syncing() as engine:
            engine.meet()
            mine = engine.replica.membership
        return Trial(server, mine.organization, mine.member, mine.machine, tuple(made))

    # --- what there is ------------------------------------------------------------------------

    def _refuse_another_folder(self) -> None:
        """Its replica is stopped, and this one is another: nothing of it is gone."""
        kept = Path(self._told.get("folder", self.folder))
        if kept != self.folder and embedded.status(kept) is not None:
            raise EmbeddedError(
                f"the replica of {self._node.home} is in {kept}, not in {self.folder}",
                f"Name it: SYNCD_CLOUD_FOLDER={kept}",
            )

    def _machine(self, admin: Administration) -> Machine | None:
        """The machine whose login this home has."""
        role = link.parsed(self._login).get("user") if self._login else ""
        machines = [m for o in admin.organizations() for m in admin.machines(o.id)]
        return next((machine for machine in machines if machine.login == role), None)

    def _lost(self, admin: Administration) -> bool:
        """Whether this home's replica was one of ours whose folder is gone."""
        there = [organization.id for organization in admin.organizations()]
        return bool(self._told) and self._told["organization"] not in there

    # --- what is missing ----------------------------------------------------------------------

    def _log_in(self, admin: Administration) -> list[str]:
        there = {o.name: o.id for o in admin.organizations()}
        known = there.get(ORGANIZATION, "")
        if self._known not in ("", known) and not self._lost(admin):
            raise UsageError(
                f"{self._node.home} belongs to another organization, though it has no login",
                "Log in there again (`syncd login`), or try with another home: "
                "SYNCD_HOME=… syncd cloud try",
            )
        with admin.connection.transaction():
            organization = known or admin.create_organization(ORGANIZATION)
            login = self._new_login(admin, organization)
        self._keep(login, organization)
        return ["login"] if known else ["organization", "login"]

    def _new_login(self, admin: Administration, organization: str) -> Login:
        """That of an attempt which was not finished, or one that this home had before, is used
        again: nobody else can be using it."""
        member, name = user(), _name(self._node.home)
        machines = [m for m in admin.machines(organization, member) if not m.revoked]
        for machine in machines:
            unused = not machine.devices and machine.name == name
            if unused or self._node.store.device_id in machine.devices:
                return admin.reset_machine(organization, machine.login)
        name = _free(name, {machine.name for machine in machines})
        members = {m.name for m in admin.members(organization) if m.removed_at is None}
        if member in members:
            return admin.add_machine(organization, member, name)
        return admin.add_member(organization, member, "member", name)

    def _keep(self, login: Login, organization: str) -> None:
        """A home stays with its organization; only if that was ours, and is gone, the new one
        takes its place."""
        told = {"organization": organization, "folder": str(self.folder)}
        store = self._node.store
        with store.transaction():
            store.change("put_state", (_STATE, orjson.dumps(told).decode()))
            if self._known:
                store.change("put_state", ("organization", organization))
        credentials.keep(self._node.home, login.dsn)
        self._node.reload()

    def _mend(self, admin: Administration, machine: Machine, port: int) -> list[str]:
        """The server may have moved to another port, the password may be gone from the keyring."""
        login = credentials.dsn(self._node.home, self._node.settings)
        if link.parsed(login).get("port") != str(port):
            credentials.keep(self._node.home, link.at_port(login, port))
            self._node.reload()
        try:
            with closing(self._node.replica()) as replica:
                replica.membership  # noqa: B018 (connects)
        except LoginRefusedError:
            fresh = admin.reset_machine(machine.organization_id, machine.login)
            credentials.keep(self._node.home, fresh.dsn)
            self._node.reload()
            return ["login"]
        return []


def _name(home: Path) -> str:
    """What a person would call it: the machine, or the folder of a further home on it."""
    name = socket.gethostname() if home == config.default_home() else home.name
    return name[:_LONGEST_NAME] if name and name.isprintable() else "machine"


def _free(name: str, taken: set[str]) -> str:
    names = (name, *(f"{name} {number}" for number in range(2, len(taken) + 3)))
    return next(candidate for candidate in names if candidate not in taken)
