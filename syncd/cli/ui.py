"""`syncd ui`: a page in the browser."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec

import click

from syncd.cli import render
from syncd.cli.verb import App, until_interrupted, verb
from syncd.errors import ExtraMissingError, SyncdError
from syncd.leases import FOREVER

_NEEDED = ("jinja2", "starlette", "uvicorn")


@click.command()
@click.option("--no-browser", is_flag=True, help="Only print the link.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Where to listen (else a free one)."
)
@verb
def ui(app: App, no_browser: bool, port: int) -> None:
    """Show this home in the browser: tasks, conflicts, agents, cost, audit.

    For this machine only, through the link that is printed. It works once; for another one, run the
    command again. Needs no network and no daemon. Ctrl-C ends it.
    """
    if not all(map(find_spec, _NEEDED)):
        raise ExtraMissingError("ui")
    from syncd.ui.server import Site

    with until_interrupted():
        _unlock(app)
        site = Site(app.node, port)
        app.emit(
            {"url": site.link, "port": site.port, "home": str(app.node.home)},
            lambda: _text(site.link, not no_browser and _has_display()),
        )
        sys.stdout.flush()
        if not no_browser and not app.json and _has_display():
            threading.Thread(target=click.launch, args=(site.link,), daemon=True).start()
        site.serve()


def _text(link: str, opened: bool) -> str:
    doing = (
        "Opening in your browser; if nothing happens, open" if opened else "Open in your browser"
    )
    return "\n".join([
        f"{doing} (good for one time):",
        "",
        f"  {click.style(link, fg='cyan')}",
        "",
        render.wrapped("For this machine only. Ctrl-C ends it."),
    ])  # fmt: skip


def _has_display() -> bool:
    """Else the system might start a browser for the terminal, in the terminal."""
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _unlock(app: App) -> None:
    """Whoever protects the data keys with a passphrase is asked here, not behind a page."""
    for row in app.node.store.rows("page_before", (FOREVER, 1)):
        with suppress(SyncdError):  # the page says what is wrong with it
            app.node.store.verified(row)
