"""`syncd keys`: what this home signs and seals with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from syncd.cli import printing, render
from syncd.cli.verb import App, verb
from syncd.errors import UsageError


@click.group()
def keys() -> None:
    """Keys: sign entries, seal what they say."""


@keys.command()
@verb
def show(app: App) -> None:
    """Show which keys this home has, and what is sealed with them. Never the keys themselves."""
    from syncd import sealing

    found = sealing.shown(app.node)
    app.emit(found, lambda: _shown(found))


def _shown(found: dict[str, Any]) -> str:
    rows = [
        ("Signing", found["signing_key"]),
        ("Device", found["device_id"]),
        ("Encryption", found["encryption"]),
        ("Plain", render.count(found["plain"], "body", "bodies")),
    ]
    if found["encryption"] == "end_to_end" and (told := _plain_for_replica(found)):
        rows.append(("Replica", told))
    if found["master_key"]:
        rows.append(("Master key", _PLACES[found["master_key"]]))
    lines = [f"{name:<11} {text}" for name, text in rows]
    columns = ("KEY", "USE", "BODIES", "SINCE", "IN USE")
    table = [
        (key["id"], key["use"], key["bodies"], key["made_at"][:10], "yes" if key["current"] else "")
        for key in found["keys"]
    ]
    if table:
        lines += ["", render.table(columns, table)]
    if found["former"]:
        past = [(key["device_id"], key["fingerprint"], (key["until"] or "")[:19])
                for key in found["former"]]  # fmt: skip
        lines += ["", render.table(("FORMER DEVICE", "SIGNING KEY", "UNTIL"), past)]
    for name in found["missing"]:
        told = f"key {name} is not here, and bodies are sealed with it: `syncd keys import`."
        lines.append(render.labelled("Missing: ", told, "red"))
    return "\n".join(lines)


_PLACES = {"keyring": "in the system's keyring", "file": "in a file beside the keys",
           "passphrase": "follows from a passphrase"}  # fmt: skip


@keys.command()
@click.option("--mode", type=click.Choice(["at_rest", "end_to_end"]),
              help="Seal for this disk alone (the default), or so that the replica cannot read "
                   "either.")  # fmt: skip
@click.option("--passphrase", "ask", is_flag=True,
              help="Protect the keys with a passphrase, which is asked for, or taken from "
                   "SYNCD_KEYS_PASSPHRASE.")  # fmt: skip
@verb
def encrypt(app: App, mode: str | None, ask: bool) -> None:
    """Seal everything that is here, and what is written from now on.

    A backup is made first, and sealed with the rest at the end. If it is cut off, run it again.
    Ids, names of agents, times, phases and counts stay readable: administrators' queries need them.

    End to end, what was written before stays readable at the replica and on machines that fetch it,
    sent already or not, until it is erased (`syncd erase`): `syncd keys show` counts it.
    """
    from syncd import keychain, sealing

    set_mode = app.node.settings["encryption"]
    mode = mode or (set_mode if set_mode != "none" else "at_rest")
    passphrase = _new_passphrase(app) if ask else ""
    kept = keychain.PASSPHRASE if ask else ""
    done = sealing.encrypt(app.node, mode, kept, passphrase)
    app.emit(done, lambda: _encrypted(done))


def _new_passphrase(app: App) -> str:
    given = app.node.passphrase()
    if not given and sys.stdin.isatty():
        given = click.prompt("New passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not given:
        raise UsageError(
            "there is nobody to ask for a passphrase",
            "Set SYNCD_KEYS_PASSPHRASE, or keys.passphrase_file to a file that has it.",
        )
    app.node.ask_passphrase = lambda: str(given)
    return str(given)


def _encrypted(done: dict[str, Any]) -> str:
    sealed = render.count(done["sealed"], "body", "bodies")
    lines = [f"Sealed {sealed} on this disk ({done['encryption']})."]
    if done["encryption"] == "end_to_end":
        if told := _plain_for_replica(done):
            lines.append(render.labelled("Still plain: ", told, "yellow"))
        lines.append(
            "Your other machines need the key: `syncd keys export` here, `syncd keys import` "
            "there. Keep a copy: without it nobody can read what is sealed."
        )
    return "\n".join([*lines, *_unclean(done)])


def _plain_for_replica(found: dict[str, Any]) -> str:
    """What was written before keeps its hash and signature, so it cannot be sealed for others."""
    parts = []
    if there := found["plain_at_replica"]:
        parts.append(f"{there:,} that the replica has already {_stays(there)} readable there, and "
                     "on machines that fetched them")  # fmt: skip
    if waiting := found["plain_to_send"]:
        parts.append(f"{waiting:,} written before and not sent yet {_stays(waiting)} readable when "
                     "sent")  # fmt: skip
    return f"{'; '.join(parts)}. `syncd erase ID` takes a checkpoint's away." if parts else ""


def _stays(count: int) -> str:
    return "stays" if count == 1 else "stay"


def _unclean(done: dict[str, Any]) -> list[str]:
    told = "may still have plain text in it. Run `syncd keys encrypt` again; a damaged copy is "
    told += "yours to delete."
    return [
        render.labelled("Not finished: ", f"{path} {told}", "yellow")
        for path in done["not_cleaned"]
    ]


@keys.command()
@verb
def decrypt(app: App) -> None:
    """Make plain what only this home had sealed, and write plain from now on."""
    from syncd import sealing

    done = sealing.decrypt(app.node)
    app.emit(done, lambda: _decrypted(done))


def _decrypted(done: dict[str, Any]) -> str:
    lines = [f"Opened {render.count(done['opened'], 'body', 'bodies')}."]
    if done["still_sealed"]:
        count = render.count(done["still_sealed"], "entry is", "entries are")
        lines.append(f"{count} sealed for others too, or with a key that is not here: as they are "
                     "signed, so they stay.")  # fmt: skip
    return "\n".join(lines)


@keys.command()
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE",
              help="Write it to a new file that only you can read (-: stdout).")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@verb
def export(app: App, output: Path | None, force: bool) -> None:
    """Give out the key that your machines share, as one line for `syncd keys import`.

    Whoever has it can read everything that is sealed with it.
    """
    from syncd import delivery, sealing

    key, text = sealing.exported(app.node)
    if output is None or delivery.opened_as(output) == delivery.STDOUT:
        if app.json:
            raise UsageError(
                "a key is not printed as JSON, where it may be logged", "Give --output FILE."
            )
        printing.show(text)
        return
    sealing.write_export(output, text, force=force)
    told = f"Key {key.id} is in {output}. Whoever has that file can read what is sealed."
    app.emit({"id": key.id, "output": str(output)}, told)


@keys.command("import")
@click.argument("file", type=click.File("r", encoding="utf-8", lazy=False), default="-")
@verb
def import_(app: App, file: Any) -> None:
    """Take a key that another machine exported, from FILE or standard input.

    From now on what is written here is sealed with it, too.
    """
    from syncd import sealing

    try:
        text = file.read(10_000)
    except UnicodeDecodeError:
        text = ""
    done = sealing.take(app.node, text)
    app.emit(done, lambda: "\n".join([f"Key {done['id']} is here, and in use.", *_unclean(done)]))


@keys.command()
@click.option("--signing", is_flag=True, help="Change the key that this home signs with instead.")
@click.option("--reason", metavar="TEXT", help="With --signing: why. Stands in the log.")
@verb
def rotate(app: App, signing: bool, reason: str | None) -> None:
    """Change the keys: the one that protects the others, and the one that your machines share.

    What is written from now on is sealed with the new one; the old ones stay, to read with.

    With --signing, change the key that entries are signed with. This home goes on under a new
    device id, with the old key's signature under the new one, so that your other machines know
    whose it is. The old key is deleted; what it signed stays valid.
    """
    from syncd import sealing

    if reason is not None and not signing:
        raise UsageError("a reason is kept only with --signing", "Leave --reason out.")
    if signing:
        changed = sealing.rotate_signing(app.node, reason or "")
        app.emit(changed, lambda: _changed(changed))
        return
    done = sealing.rotate(app.node)
    app.emit(done, lambda: _rotated(done))


def _changed(done: dict[str, Any]) -> str:
    return (
        f"Entries are signed with key {done['signing_key']} from now on.\n"
        f"This device is {done['device_id']} now. The old key is deleted; who relies on its "
        "fingerprint needs the new one."
    )


def _rotated(done: dict[str, Any]) -> str:
    lines = ["The data keys have a new master key."]
    if done["key"]:
        lines.append(f"Key {done['key']} is used from now on. Your other machines need it: "
                     "`syncd keys export` here, `syncd keys import` there.")  # fmt: skip
    return "\n".join(lines)
