"""`syncd service`: have the system run the daemon."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from syncd.cli.verb import App, verb, warn
from syncd.errors import ServiceError

if TYPE_CHECKING:
    from syncd.unit import Launchd, State, Systemd

_START_SECONDS = 15.0


@click.group()
def service() -> None:
    """Have the daemon start when you log in, and again should it fail."""


@service.command()
@verb
def install(app: App) -> None:
    """Install the daemon as a service of yours, and start it.

    With systemd a user unit, on macOS a launchd agent: no root is needed. Do it again after syncd
    has moved, or daemon.grace_seconds has changed.
    """
    from syncd import unit

    found = unit.service_of(app.node.home)
    if not found.answers():
        raise _no_manager(app)
    app.node.store  # noqa: B018 (makes the home, without which the service does not start)
    _warn_of_environment(app)
    _bring_up(app, found)
    pid = _running(app, found)
    document = {**found.state()._asdict(), "pid": pid}
    app.emit(document, _installed(found, pid))


def _bring_up(app: App, found: Systemd | Launchd) -> None:
    """One that runs as it should is left alone."""
    from syncd.cli.daemon import stopped

    text = found.text(app.node.settings["daemon.grace_seconds"])
    fresh = not found.file.exists() or found.file.read_text(encoding="utf-8") != text
    if fresh:
        found.install(text)
    if not found.state().active:
        stopped(app.node.home)  # the one of `syncd start`, if there is one
    elif fresh:
        found.stop()
    found.start()


def _running(app: App, found: Systemd | Launchd) -> int:
    from syncd import running

    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if pid := running.pid(app.node.home):
            return pid
        time.sleep(0.05)
    raise ServiceError(
        f"{found.name} is installed, but the daemon did not start",
        f"`syncd logs` and `{found.look}` say why; `syncd service uninstall` takes it back.",
    )


def _no_manager(app: App) -> ServiceError:
    from syncd.unit import command

    line = shlex.join(command(app.node.home))
    return ServiceError(
        "neither systemd nor launchd runs services for this user here",
        "`syncd start` starts the daemon now; to have it started with the machine, add this line "
        # cron takes a % for the end of a line.
        f"with `crontab -e`: @reboot {line.replace('%', chr(92) + '%')}",
    )


def _warn_of_environment(app: App) -> None:
    """What a shell has set, a service does not see."""
    for value in app.node.settings.explained():
        if value.source == value.setting.variable:
            warn(
                f"{value.source} is set in this shell only: for the service, write "
                f"{value.setting.name} to {app.node.home / 'config.toml'}"
            )


def _installed(found: Systemd | Launchd, pid: int) -> str:
    return (
        f"Installed and running, process {pid}; it starts when you log in.\n"
        f"Unit        {found.file}\n"
        f"See         syncd status, syncd logs, {found.look}\n"
        f"{found.hint}"
    )


@service.command()
@verb
def uninstall(app: App) -> None:
    """Stop the service and remove it; your data stays."""
    from syncd import running, unit

    found = unit.service_of(app.node.home)
    there = found.file.exists()
    found.remove()
    document = {"uninstalled": there, "unit": str(found.file), "home": str(app.node.home)}
    lines = [f"Removed {found.file}." if there else "There was no service."]
    lines.append(f"Your data is in {app.node.home}, untouched.")
    if pid := running.pid(app.node.home):
        lines.append(f"A daemon that is no service still runs, process {pid}: syncd stop ends it.")
    app.emit(document, "\n".join(lines))


@service.command()
@click.pass_context
@verb
def status(app: App, ctx: click.Context) -> None:
    """Say whether the service is installed and runs.

    Exits 3 if it is installed and does not run.
    """
    from syncd import unit

    found = unit.service_of(app.node.home)
    state = found.state()
    remedy = _remedy(found, state)
    document: dict[str, Any] = {**state._asdict(), "remedy": remedy}
    app.emit(document, lambda: _lines(state, remedy))
    if state.installed and not state.active:
        ctx.exit(3)


def _remedy(found: Systemd | Launchd, state: State) -> str:
    if not state.installed or state.active:
        return ""
    if state.manager == "none":
        return f"{found.manager} cannot be asked from here: log in as this user, or `syncd start`."
    return f"`syncd service install` starts it; `syncd logs` and `{found.look}` say why it ended."


def _lines(state: State, remedy: str) -> str:
    if not state.installed:
        way = "syncd start" if state.manager == "none" else "syncd service install"
        return f"No service is installed. What works here: {way}"
    words = ("runs" if state.active else "does not run", "" if state.enabled else "not ")
    told = f"The service {words[0]}, {words[1]}enabled.\nUnit        {state.unit}"
    return f"{told}\nRemedy      {remedy}" if remedy else told
