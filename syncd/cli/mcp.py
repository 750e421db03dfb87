"""`syncd mcp`: the tools for an agent's host."""

from __future__ import annotations

import click

from syncd.cli.verb import App, verb
from syncd.errors import ExtraMissingError


@click.command()
@verb
def mcp(app: App) -> None:
    """Serve an agent's host as an MCP server, on standard input and output.

    Hosts start it themselves: `syncd setup` tells them how. It ends when its input does.
    """
    try:
        from syncd.mcp.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ExtraMissingError("mcp") from None
    serve(app.named_home)
