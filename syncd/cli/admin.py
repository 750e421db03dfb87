"""`syncd admin`: organizations, who belongs to them, their machines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from syncd.cli import admin_queries, render
from syncd.cli.device import (
    login_document,
    login_text,
    machine_document,
    machine_table,
    one_of,
)
from syncd.cli.verb import App, Name, verb
from syncd.errors import CheckpointExistsError, CheckpointNotFoundError, UnconfiguredError

if TYPE_CHECKING:
    from syncd.replica import Administration
    from syncd.replica.administration import Member, Organization


@contextmanager
def administration(app: App, dsn: str | None = None) -> Iterator[Administration]:
    """A connection as an administrator."""
    from syncd.replica import Administration

    given = dsn or app.node.settings["admin.dsn"]
    if not given:
        raise UnconfiguredError(
            "no administrator's login is given", "Set SYNCD_ADMIN_DSN to an administrator's DSN."
        )
    opened = Administration(given, app.node.settings["cloud.tls"])
    try:
        yield opened
    finally:
        opened.close()


@click.group()
def admin() -> None:
    """Administer a replica, and ask it. Uses SYNCD_ADMIN_DSN; queries do with a member's login."""


for _command in admin_queries.commands():
    admin.add_command(_command)


# --- organizations ------------------------------------------------------------------------------


@admin.group()
def org() -> None:
    """Organizations: each sees only its own."""


@org.command()
@click.argument("name", type=Name())
@verb
def create(app: App, name: str) -> None:
    """Create an organization."""
    with administration(app) as replica:
        made = replica.create_organization(name)
    app.emit({"id": made, "name": name}, f"{made}\nNext: syncd admin member add '{name}' PERSON")


@org.command("list")
@verb
def list_organizations(app: App) -> None:
    """List the organizations."""
    with administration(app) as replica:
        found = replica.organizations()
    document = [{**o._asdict(), "created_at": o.created_at.isoformat()} for o in found]
    rows = [
        (o.name, o.members, o.cloud_seq, "open" if o.recovery_open else "", o.id) for o in found
    ]
    columns = ("NAME", "MEMBERS", "ENTRIES", "RECOVERY", "ID")
    app.emit(document, lambda: render.table(columns, rows))


# --- members ------------------------------------------------------------------------------------


@admin.group()
def member() -> None:
    """Members of an organization."""


@member.command("add")
@click.argument("organization")
@click.argument("name", type=Name())
@click.option(
    "--role", type=click.Choice(["member", "lead", "auditor"]), default="member", show_default=True,
    help="A lead may run admin queries, an auditor may only read.",
)  # fmt: skip
@click.option(
    "--machine", default="first machine", show_default=True, type=Name(), help="What to call it."
)
@verb
def add_member(app: App, organization: str, name: str, role: str, machine: str) -> None:
    """Add a member, and make a login for their first machine.

    Prints its DSN, this once. On that machine: syncd login
    """
    with administration(app) as replica:
        found = replica.organization(organization)
        try:
            made = replica.add_member(found.id, name, role, machine)
        except CheckpointExistsError as error:
            raise CheckpointExistsError(error.message, _member_exists(found.name, name)) from None
    app.emit(login_document(made, found.id), lambda: login_text(made))


def _member_exists(organization: str, name: str) -> str:
    words = f"{shlex.quote(organization)} {shlex.quote(name)}"
    return (
        f"A new DSN for {name}: `syncd admin member reset {words}`; another machine: "
        f"`syncd admin device add {words} MACHINE`."
    )


@member.command("remove")
@click.argument("organization")
@click.argument("name")
@click.option("--reason", default="removed by an administrator", show_default=True, help="Why.")
@verb
def remove_member(app: App, organization: str, name: str, reason: str) -> None:
    """Refuse a member and all their machines from now on. What they wrote stays."""
    with administration(app) as replica:
        found = replica.organization(organization)
        machines = replica.remove_member(found.id, name, reason)
    refused = render.count(machines, "machine", "machines")
    app.emit({"removed": name, "machines": machines}, f"{name} is refused, with {refused}.")


@member.command("list")
@click.argument("organization")
@verb
def list_members(app: App, organization: str) -> None:
    """List the members of an organization."""
    with administration(app) as replica:
        found = replica.members(replica.organization(organization).id)
    document = [
        {**m._asdict(), "added_at": m.added_at.isoformat(),
         "removed_at": m.removed_at.isoformat() if m.removed_at else None}
        for m in found
    ]  # fmt: skip
    rows = [(m.name, m.kind, m.machines, "removed" if m.removed_at else "active") for m in found]
    columns = ("NAME", "ROLE", "MACHINES", "STATE")
    app.emit(document, lambda: render.table(columns, rows))


@member.command("reset")
@click.argument("organization")
@click.argument("name")
@click.option("--machine", help="Which, if there are several: its name or login.")
@verb
def reset_member(app: App, organization: str, name: str, machine: str | None) -> None:
    """Give a member's machine a new password.

    Prints its DSN, this once; the old password is refused from then on.
    """
    with administration(app) as replica:
        found = replica.organization(organization)
        owner = replica.member(found.id, name)
        machines = [m for m in replica.machines(found.id, owner.name) if not m.revoked]
        if machine is None and len(machines) > 1:
            names = ", ".join(m.name for m in machines)
            raise click.UsageError(f"{name} has several machines: add --machine, one of {names}")
        if not machines:
            raise CheckpointNotFoundError(
                f"all machines of {owner.name} are revoked",
                f"Make a login for another one: `syncd admin device add {_quoted(found, owner)} "
                "MACHINE`.",
            )
        chosen = one_of(machines, machine or machines[0].login, _machines_of(found))
        made = replica.reset_machine(found.id, chosen.login)
    app.emit(login_document(made, found.id), lambda: login_text(made))


def _machines_of(organization: Organization) -> str:
    return f"syncd admin device list {_quoted(organization)}"


def _quoted(*named: Organization | Member) -> str:
    return shlex.join(each.name for each in named)


# --- machines -----------------------------------------------------------------------------------


@admin.group()
def device() -> None:
    """Machines of an organization."""


@device.command("add")
@click.argument("organization")
@click.argument("name")
@click.argument("machine", type=Name())
@verb
def add_device(app: App, organization: str, name: str, machine: str) -> None:
    """Make a login for another machine of a member.

    Prints its DSN, this once. On that machine: syncd login
    """
    with administration(app) as replica:
        found = replica.organization(organization)
        made = replica.add_machine(found.id, name, machine)
    app.emit(login_document(made, found.id), lambda: login_text(made))


@device.command("list")
@click.argument("organization")
@verb
def list_devices(app: App, organization: str) -> None:
    """List the machines of an organization."""
    with administration(app) as replica:
        machines = replica.machines(replica.organization(organization).id)
    app.emit([machine_document(m) for m in machines], lambda: machine_table(machines))


@device.command("revoke")
@click.argument("organization")
@click.argument("machine")
@click.option("--reason", default="revoked by an administrator", show_default=True, help="Why.")
@verb
def revoke_device(app: App, organization: str, machine: str, reason: str) -> None:
    """Refuse a machine from now on; its open connections are ended at once."""
    with administration(app) as replica:
        found = replica.organization(organization)
        chosen = one_of(replica.machines(found.id), machine, _machines_of(found))
        replica.revoke_machine(found.id, chosen.login, reason)
    app.emit({"role": chosen.login, "revoked": True}, f"{chosen.name} is refused from now on.")


# --- after a disaster ---------------------------------------------------------------------------


@admin.group()
def roles() -> None:
    """The server's roles."""


@roles.command("sync")
@verb
def sync_roles(app: App) -> None:
    """Make the roles anew from the tables, after a restore into another server.

    Run it before the restore too: a dump refers to roles that must exist. Passwords are in no
    dump: the machines named need `syncd admin member reset`.
    """
    with administration(app) as replica:
        made = replica.sync_roles()
    text = "\n".join(["These need a new password:", *made]) if made else "All roles are there."
    app.emit({"without_password": made}, text)


@admin.command()
@verb
def distribute(app: App) -> None:
    """Hand the tables to Citus: each organization's rows on one of its workers.

    SYNCD_ADMIN_DSN names the coordinator. The role syncd_owner may log in from then on, without a
    password: let the workers' pg_hba.conf take it from the coordinator only.
    """
    from syncd.replica.distribution import distribute

    with administration(app) as replica:
        made = distribute(replica)
    text = f"Distributed: {', '.join(made)}." if made else "All tables are distributed."
    app.emit({"distributed": made}, text)


@admin.group()
def recovery() -> None:
    """Let devices bring back what a lost machine had written."""


@recovery.command("open")
@click.argument("organization")
@verb
def open_recovery(app: App, organization: str) -> None:
    """Allow every device to send other devices' signed entries (`syncd prove --repair`)."""
    _set_recovery(app, organization, is_open=True)


@recovery.command("close")
@click.argument("organization")
@verb
def close_recovery(app: App, organization: str) -> None:
    """End it."""
    _set_recovery(app, organization, is_open=False)


def _set_recovery(app: App, organization: str, *, is_open: bool) -> None:
    with administration(app) as replica:
        found = replica.organization(organization)
        replica.set_recovery(found.id, is_open=is_open)
    state = "open" if is_open else "closed"
    name = shlex.quote(found.name)
    then = (
        "On each machine that may have it: syncd prove --repair\n"
        f"Afterwards: syncd admin recovery close {name}"
    )
    text = f"Recovery is {state}." + (f"\n{then}" if is_open else "")
    app.emit({"organization_id": found.id, "recovery": state}, text)
