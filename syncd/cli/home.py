"""`syncd init`, `config`, `doctor`, `stats`, `completion`: this installation itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd import loss
from syncd.cli import render
from syncd.cli.verb import App, verb

if TYPE_CHECKING:
    from syncd.config import Value


@click.command()
@verb
def init(app: App) -> None:
    """Create the home, the device's id and its key.

    The first use of any command does it too. Where the database was gone and a new one was begun,
    this says that it may stay so.
    """
    from syncd.seal import fingerprint

    fresh, gone = not app.node.database.exists(), loss.is_gone(app.node.home)
    document = {
        "home": str(app.node.home),
        "device_id": app.node.store.device_id,
        "key": fingerprint(app.node.key.public()),
        "created": fresh,
    }
    if app.node.store.row("state", (loss.BEGUN_ANEW,)) and not gone:
        with app.node.store.transaction():
            app.node.store.change("put_state", (loss.BEGUN_ANEW, ""))
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
    app.emit(document, lambda: f"Home: {app.node.home}\n{_settings(values, app.node.home)}")


def _settings(values: list[Value], home: Path) -> str:
    """A narrow terminal has no room for what they mean."""
    near = f"{home}/" if render.width(sys.stdout) else ""
    rows = [
        (v.setting.name, _shown(v), v.source.removeprefix(near), v.setting.help) for v in values
    ]
    columns = ("SETTING", "VALUE", "FROM", "MEANING")
    text = render.table(columns, rows, whole=("SETTING", "FROM", "MEANING"), spare=("MEANING",))
    if "MEANING" in text.partition("\n")[0]:
        return text
    return f"{text}\nWhat they mean: on a wider terminal, with --json, or in the README."


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
    indent = " " * 23
    line = render.labelled(
        f"{check.state:<9}", f" {check.name:<12} {check.detail}", colour, indent=indent
    )
    remedy = render.wrapped(indent + check.remedy, indent=indent)
    return f"{line}\n{remedy}" if check.remedy else line


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
        lines.append(render.table(("TASK", "CHECKPOINTS", "TOKENS"), rows))
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
