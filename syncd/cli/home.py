"""`syncd init`, `config`, `doctor`, `stats`, `completion`: this installation itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render
from syncd.cli.verb import App, verb

if TYPE_CHECKING:
    from syncd.config import Value


@click.command()
@verb
def init(app: App) -> None:
    """Create the home, the device's id and its key.

    The first use of any command does it too.
    """
    from syncd.seal import fingerprint

    fresh = not app.node.database.exists()
    document = {
        "home": str(app.node.home),
        "device_id": app.node.store.device_id,
        "key": fingerprint(app.node.key.public()),
        "created": fresh,
    }
    word = "Created" if fresh else "Ready:"
    app.emit(document, f"{word} {app.node.home}\nDevice {document['device_id']}")


@click.command()
@verb
def config(app: App) -> None:
    """Show every setting, its value and where it came from."""
    values = app.node.settings.explained()
    document = [
        {
            "name": v.setting.name,
            "value": _shown(v),
            "source": v.source,
            "default": v.setting.default,
            "variable": v.setting.variable,
            "help": v.setting.help,
        }
        for v in values
    ]
    rows = [(v.setting.name, _shown(v), v.source, v.setting.help) for v in values]
    title = f"Home: {app.node.home}\n"
    columns = ("SETTING", "VALUE", "FROM", "MEANING")
    app.emit(document, lambda: title + (render.table(columns, rows) or ""))


def _shown(value: Value) -> Any:
    """A DSN without its password."""
    if not value.setting.secret or not value.value:
        return value.value
    from syncd.replica.link import masked

    return masked(value.value)


@click.command()
@click.pass_context
@verb
def doctor(app: App, ctx: click.Context) -> None:
    """Check this installation.

    Exits 3 if something needs attention.
    """
    from syncd import diagnosis

    checks = diagnosis.doctor(app.node)
    verdict = "ok" if all(check.state == "ok" for check in checks) else "attention"
    document = {"verdict": verdict, "checks": [check._asdict() for check in checks]}
    app.emit(document, lambda: "\n".join(_check_line(check) for check in checks))
    if verdict != "ok":
        ctx.exit(3)


def _check_line(check: Any) -> str:
    colour = {"ok": "green", "attention": "yellow", "failed": "red"}[check.state]
    line = f"{click.style(f'{check.state:<9}', fg=colour)} {check.name:<12} {check.detail}"
    return f"{line}\n{'':<23}{check.remedy}" if check.remedy else line


@click.command()
@verb
def stats(app: App) -> None:
    """Count entries, checkpoints, tasks and bytes."""
    from syncd import diagnosis

    found = diagnosis.stats(app.node)
    app.emit(found, lambda: _stats_text(found))


def _stats_text(found: dict[str, Any]) -> str:
    sizes = found["bytes"]
    lines = [
        f"Entries      {found['entries']:,} (cursor {found['cursor']:,})",
        f"Checkpoints  {found['checkpoints']:,}, "
        f"in {render.count(found['tasks'], 'task', 'tasks')}",
        f"Database     {render.size(sizes['database'])}, unmerged {render.size(sizes['wal'])}, "
        f"backups {render.size(sizes['backups'])}, free {render.size(sizes['free'])}",
    ]
    if found["problems"]:
        lines.append(click.style(f"Damaged      {found['problems']:,}", fg="red"))
    rows = [(t["id"], t["checkpoints"], t["tokens"]) for t in found["largest_tasks"]]
    if rows:
        lines.append(render.table(("TASK", "CHECKPOINTS", "TOKENS"), rows) or "")
    return "\n".join(lines)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verb
def completion(app: App, shell: str) -> None:
    """Print the completion script for a shell.

    For example in ~/.bashrc: eval "$(syncd completion bash)"
    """
    from click.shell_completion import get_completion_class

    from syncd.cli.app import syncd

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(syncd, {}, "syncd", "_SYNCD_COMPLETE").source()
    app.emit({"shell": shell, "script": script}, script)
