"""The tree of commands, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
from importlib import import_module
from itertools import pairwise
from keyword import iskeyword
from pathlib import Path
from typing import Any

import click

from syncd import __version__
from syncd.cli import printing, render
from syncd.cli.verb import App
from syncd.config import named_home
from syncd.errors import SyncdError, UsageError

# name: module that holds it. A command's one-line help is the first line of its docstring.
_TOP = {
    "checkpoint": "checkpoint",
    "task": "task",
    "resume": "resume",
    "recover": "recover",
    "audit": "audit",
    "explain": "audit",
    "rebuild": "audit",
    "backup": "backup",
    "retention": "retention",
    "erase": "retention",
    "keys": "keys",
    "handoff": "handoff",
    "loop": "loop",
    "import": "files",
    "export": "files",
    "watch": "files",
    "agents": "agents",
    "heartbeat": "agents",
    "hook": "hook",
    "invocations": "agents",
    "inbox": "message",
    "message": "message",
    "sync": "sync",
    "flush": "sync",
    "prove": "sync",
    "login": "device",
    "logout": "device",
    "device": "device",
    "conflicts": "conflicts",
    "quarantine": "conflicts",
    "run": "daemon",
    "start": "daemon",
    "stop": "daemon",
    "restart": "daemon",
    "logs": "daemon",
    "status": "status",
    "service": "service",
    "demo": "demo",
    "mcp": "mcp",
    "setup": "setup",
    "ui": "ui",
    "cloud": "cloud",
    "admin": "admin",
    "init": "home",
    "config": "home",
    "doctor": "home",
    "stats": "home",
    "completion": "home",
}
_SECTIONS = {
    "Every day": (
        "checkpoint create",
        "checkpoint update",
        "checkpoint finalize",
        "checkpoint latest",
        "checkpoint history",
        "checkpoint show",
        "checkpoint search",
        "resume",
        "recover",
        "task list",
        "task show",
        "status",
        "sync",
        "prove",
        "conflicts list",
        "ui",
        "doctor",
    ),
    "Groups": (
        "checkpoint",
        "task",
        "conflicts",
        "quarantine",
        "audit",
        "backup",
        "retention",
        "keys",
    ),
    "Other machines": ("login", "logout", "device", "sync", "flush"),
    "Files of other tools": ("import", "export", "watch"),
    "Diagnosis": ("prove", "explain", "stats", "rebuild"),
    "For good": ("erase",),
    "From agent to agent": ("handoff", "loop"),
    "Agents": ("agents", "heartbeat", "inbox", "message", "invocations", "hook"),
    "The daemon": ("run", "start", "stop", "restart", "logs", "service", "demo"),
    "Agents' hosts": ("setup", "mcp"),
    "Set-up": ("init", "config", "completion"),
    "The replica": ("cloud", "admin"),
}


_RANGE = re.compile(r"is not a valid (integer|float) range\.")


def _function_of(command: str) -> str:
    """A command that is a word of Python has an underscore behind it there."""
    return f"{command}_" if iskeyword(command) else command.replace("-", "_")


class Tree(click.Group):
    """Imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(_TOP)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _TOP:
            return None
        command: click.Command = getattr(
            import_module(f"syncd.cli.{_TOP[cmd_name]}"), _function_of(cmd_name)
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click looks for similar names among the commands that are loaded: here, none.
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=_TOP, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, paths in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(path, self._help(ctx, path)) for path in paths])

    def _help(self, ctx: click.Context, path: str) -> str:
        first, _, second = path.partition(" ")
        command = self.get_command(ctx, first)
        if second and isinstance(command, click.Group):
            command = command.get_command(ctx, second)
        return command.get_short_help_str(80) if command else ""


@click.group(cls=Tree, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, "-V", "--version", prog_name="syncd", message="%(prog)s %(version)s"
)
@click.option("--home", type=click.Path(), help="The home to use (else SYNCD_HOME).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def syncd(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Checkpoints for AI coding agents: what is done, decided, blocked and next.

    Every write is on disk when the command returns; every read is verified.
    """
    ctx.obj = App(None if home is None else named_home(home))
    ctx.obj.json = as_json


def main() -> None:
    """Run a command; whatever goes wrong, the user reads cause, remedy and what of the data."""
    # Whatever a command makes is for its user alone, and usable by him.
    os.umask(0o077)
    as_json = "--json" in sys.argv
    if as_json:
        printing.hold()
    try:
        sys.exit(syncd.main(standalone_mode=False, color=printing.colour()) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt) as error:
        sys.exit(_interrupted(as_json, _farewell(error)))
    except click.exceptions.NoArgsIsHelpError as error:
        sys.exit(_without_command(error, as_json))
    except click.ClickException as error:
        sys.exit(_fail(_usage(error), as_json))
    except SyncdError as error:
        sys.exit(_fail(error, as_json))
    except BrokenPipeError:
        # The reader has gone (`| head`): nothing is left to say.
        printing.to_nowhere(sys.stdout)
        sys.exit(0)
    except OSError as error:
        sys.exit(_fail(_system(error), as_json))
    except Exception as error:  # noqa: BLE001 (the last resort: no traceback reaches a user)
        sys.exit(_fail(_unexpected(error), as_json))
    finally:
        printing.release()


def _farewell(error: BaseException) -> str:
    """What the command itself had to say when it was interrupted; click puts an error of its own
    around that."""
    inner = error.__cause__ if isinstance(error, click.Abort) else error
    return str(inner) if isinstance(inner, KeyboardInterrupt) else ""


def _interrupted(as_json: bool, farewell: str) -> int:
    again = farewell or "Run it again; what was done before is kept."
    stopped = SyncdError("interrupted", again)
    stopped.code, stopped.exit_code = "interrupted", 130
    if as_json:
        return _fail(stopped, as_json)
    printing.say(f"Interrupted. {farewell}".rstrip())
    return stopped.exit_code


def _without_command(error: click.exceptions.NoArgsIsHelpError, as_json: bool) -> int:
    """People are shown what there is."""
    path = error.ctx.command_path
    told = UsageError(f"{path} needs a command", f"See `{path} --help`.")
    if as_json:
        return _fail(told, as_json)
    printing.say(error.format_message())
    return told.exit_code


def _usage(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "syncd"
    # What is no number at all is in no range either, nor a range itself.
    message = _RANGE.sub(r"is not a valid \1.", error.format_message())
    return UsageError(message, f"See `{path} --help`.")


def _fail(error: SyncdError, as_json: bool) -> int:
    error.message = _discreet(error.message)
    if as_json:
        document = {"error": {**error.as_dict(), **_warnings()}}
        printing.say(json.dumps(document, ensure_ascii=False))
    else:
        safe = "safe" if error.data_safe else "damaged, as said above"
        for label, text, colour in (
            ("Error: ", error.message, "red"),
            ("Remedy: ", error.remedy, None),
            ("Data: ", safe, None),
        ):
            printing.say(render.labelled(label, text, colour, err=True))
    return error.exit_code


def _warnings() -> dict[str, list[str]]:
    """What was said before it failed, if anything, so that standard error is one document too."""
    said = (" ".join(click.unstyle(text).split()) for text in printing.held())
    warnings = [text.removeprefix("Warning: ") for text in said]
    return {"warnings": warnings} if warnings else {}


def _discreet(text: str) -> str:
    """Messages repeat what was wrong, and what others will see of it must not be a secret."""
    from syncd.redaction import Redactor

    return Redactor().quoted(text)


def _system(error: OSError) -> SyncdError:
    """The operating system refused; perhaps to take what click has printed, as a help."""
    printing.to_nowhere(sys.stdout)
    where = f" ({error.filename})" if error.filename else ""
    return SyncdError(
        f"the system refused: {error.strerror or error}{where}",
        "Check the disk and the permissions of what is named.",
    )


def _unexpected(error: Exception) -> SyncdError:
    """A fault of ours: the details go to a file that the user can send us."""
    import traceback

    from syncd.config import home

    text = _discreet("".join(traceback.format_exception(error)))
    named = [word for flag, word in pairwise(sys.argv) if flag == "--home"]
    file = home(Path(named[0]) if named else None) / "log" / "crash.log"
    try:
        with file.open("a", encoding="utf-8") as log:
            log.write(text + "\n")
    except OSError:
        return SyncdError(f"unexpected: {error!r}", "Run it again with SYNCD_HOME writable.")
    return SyncdError(f"unexpected: {error!r}", f"Details are in {file}; please report them.")


def command_paths() -> dict[str, click.Command]:
    """Every command by its full name, for the README's test and for completion."""
    context = click.Context(syncd, info_name="syncd")
    return dict(_walk(context, syncd, "syncd"))


def _walk(context: click.Context, command: click.Command, path: str) -> list[tuple[str, Any]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    found: list[tuple[str, Any]] = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None:
            found += _walk(context, child, f"{path} {name}")
    return found
