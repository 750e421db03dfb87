"""`syncd login`, `logout`, `device`: this machine and the replica."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render
from syncd.cli.verb import App, Name, verb, warn_of_password
from syncd.errors import CheckpointNotFoundError, ReplicaUnreachableError, UsageError

if TYPE_CHECKING:
    from syncd.replica.login import Login, Machine


@click.command()
@click.argument("dsn", required=False)
@verb
def login(app: App, dsn: str | None) -> None:
    """Connect this machine to a replica.

    DSN is what an administrator (`syncd admin member add`) or another machine of yours
    (`syncd device add`) printed. Give - to read it from standard input, or leave it out to be
    asked: as an argument, others on this machine could see its password.
    """
    from syncd import credentials
    from syncd.replica import Replica

    given = _given(dsn)
    warn_of_password(dsn)
    try:
        with closing(Replica(given, app.node.settings["cloud.tls"])) as replica:
            member = replica.membership
    except ReplicaUnreachableError as error:
        raise ReplicaUnreachableError(
            error.message, "Nothing was changed: log in again when it can be reached."
        ) from None
    _check_home(app, member.organization_id, member.organization)
    place = credentials.keep(app.node.home, given)
    with app.node.store.transaction():
        app.node.store.change("put_state", ("reads_only", "1" if member.reads_only else ""))
    document = {**member._asdict(), "password_in": place, "device_id": app.node.store.device_id}
    app.emit(document, lambda: (
        f"This machine is {render.clean(member.machine)} of {render.clean(member.member)}, "
        f"in {render.clean(member.organization)}.\n{_ONLY_READS if member.reads_only else ''}"
        "Now: syncd start (or syncd sync once)"
    ))  # fmt: skip


_ONLY_READS = "It is an auditor's: it fetches, and what is written here stays here.\n"


def _given(dsn: str | None) -> str:
    if dsn == "-":
        return sys.stdin.readline().strip()
    if dsn:
        return dsn
    if kept := os.environ.get("SYNCD_CLOUD_DSN"):
        return kept
    if not sys.stdin.isatty():
        raise UsageError("no DSN is given", "Pipe it in: syncd login - < FILE")
    answer: str = click.prompt("DSN (hidden)", hide_input=True, err=True)
    return answer.strip()


def _check_home(app: App, organization_id: str, name: str) -> None:
    """A home belongs to one organization: its entries must not end up in another's."""
    from syncd import trial

    row = app.node.store.row("state", ("organization",))
    if row and row[0] != organization_id:
        tried = trial.known(app.node)
        whose = f"{trial.ORGANIZATION}, not" if row[0] == tried else "another organization than"
        raise UsageError(
            f"this home belongs to {whose} {name}",
            "Use a home of its own for each organization: SYNCD_HOME=… syncd login",
        )


@click.command()
@verb
def logout(app: App) -> None:
    """Forget the login; everything written here stays, and stays usable."""
    from syncd import credentials
    from syncd.exchange import Exchange

    exchange = Exchange(app.node.store)
    pending = exchange.pending_count()
    configured = bool(app.node.settings["cloud.dsn"])
    credentials.forget(app.node.home)
    lines = ["Logged out." if configured else "There was no login."]
    if os.environ.get("SYNCD_CLOUD_DSN"):
        lines.append("SYNCD_CLOUD_DSN is set all the same: unset it too.")
    if configured and pending:
        lines.append(
            f"{render.count(pending, 'entry is', 'entries are')} on this machine only; "
            "they are sent after the next login."
        )
    app.emit({"logged_out": configured, "pending": pending}, "\n".join(lines))


@click.group()
def device() -> None:
    """Your own machines: add, list, rename, revoke."""


@device.command()
@click.argument("name", type=Name())
@verb
def add(app: App, name: str) -> None:
    """Make a login for your next machine.

    Prints its DSN, this once. On that machine: syncd login
    """
    with closing(app.node.replica()) as replica:
        made, organization = replica.add_machine(name), replica.organization
    app.emit(login_document(made, organization), lambda: login_text(made))


def login_document(made: Login, organization_id: str) -> dict[str, Any]:
    return {"organization_id": organization_id, "role": made.role, "dsn": made.dsn}


def login_text(made: Login) -> str:
    return f"{made.dsn}\n\nShown this once. On that machine: syncd login, and paste it."


@device.command("list")
@verb
def list_(app: App) -> None:
    """List your machines."""
    with closing(app.node.replica()) as replica:
        machines = replica.machines()
    app.emit([machine_document(m) for m in machines], lambda: machine_table(machines))


def machine_document(machine: Machine) -> dict[str, Any]:
    seen = machine.last_seen.isoformat(timespec="seconds") if machine.last_seen else None
    return {**machine._asdict(), "last_seen": seen}


def machine_table(machines: list[Machine]) -> str:
    rows = [
        (
            machine.name,
            machine.member,
            machine.kind,
            f"revoked ({machine.reason})" if machine.revoked else "active",
            machine.last_seen.isoformat(timespec="seconds") if machine.last_seen else "never",
            machine.login,
        )
        for machine in machines
    ]
    columns = ("MACHINE", "MEMBER", "ROLE", "STATE", "LAST SEEN", "LOGIN")
    return render.table(columns, rows, whole=("LOGIN",), spare=("LOGIN",))


@device.command()
@click.argument("machine")
@click.argument("name", type=Name())
@verb
def rename(app: App, machine: str, name: str) -> None:
    """Give one of your machines another name."""
    with closing(app.node.replica()) as replica:
        found = one_of(replica.machines(), machine)
        replica.rename_machine(found.login, name)
    app.emit(
        {"role": found.login, "name": name},
        f"{render.clean(machine)} is now called {render.clean(name)}.",
    )


@device.command()
@click.argument("machine")
@click.option("--reason", default="revoked by its owner", show_default=True, help="Why.")
@verb
def revoke(app: App, machine: str, reason: str) -> None:
    """Refuse one of your machines from now on: it was lost, stolen or sold.

    Its open connections are ended at once. What it wrote before stays.
    """
    with closing(app.node.replica()) as replica:
        found = one_of(replica.machines(), machine)
        replica.revoke_machine(found.login, reason)
    app.emit({"role": found.login, "revoked": True}, f"{found.name} is refused from now on.")


def one_of(machines: list[Machine], name: str, listed: str = "syncd device list") -> Machine:
    """A machine by its name, login or device id; `listed` is the command that shows them."""
    found = [m for m in machines if name in (m.name, m.login, *m.devices)]
    active = [m for m in found if not m.revoked] or found
    if not active:
        raise CheckpointNotFoundError(
            f"there is no machine {name!r}", f"`{listed}` shows what there is."
        )
    if len(active) > 1:
        logins = ", ".join(m.login for m in active)
        raise UsageError(f"{name!r} fits more than one machine: {logins}", "Name its login.")
    return active[0]
