"""Encryption turned on and off for a home that has entries already, and what its keys are.

Each step may be cut off and is simply begun again: what is left to do can be seen in the database.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from syncd import backup, bodies, config, keychain, redaction, running
from syncd.delivery import delivered
from syncd.errors import ConfigError, InvalidInputError, KeyMissingError
from syncd.exchange import Exchange
from syncd.keychain import AT_REST, END_TO_END, DataKey, Keychain
from syncd.node import Node, user
from syncd.retention import rewritten
from syncd.rotation import change
from syncd.seal import fingerprint
from syncd.vault import NONE

# In the device's own state: there are plain bodies in the files, or may be in their unused parts.
_UNSEALED = "unsealed"
_LONGEST_REASON = 1_000


def encrypt(node: Node, mode: str, kept: str = "", passphrase: str = "") -> dict[str, Any]:
    """Seal everything here from now on, and what is here already. A backup is made first."""
    _refuse_if_overruled(node, mode)
    chain = Keychain(node.home, lambda asking: passphrase or node.passphrase(asking))
    node.store  # noqa: B018 (makes the home)
    chain.current(AT_REST)  # if no key can be kept, nothing has been changed
    if kept or passphrase:
        chain.rewrap(kept, passphrase)
    if mode == END_TO_END:
        chain.current(END_TO_END)
    if node.store.row("newest"):
        node.back_up("before-encryption")
    with node.store.transaction():
        node.store.change("put_state", (_UNSEALED, "1"))
    config.put(node.home / "config.toml", "encryption", mode)
    node.reload()
    return {"encryption": mode, **complete(node), **plain_for_replica(node)}


def plain_for_replica(node: Node) -> dict[str, int]:
    """What was written before end to end is signed as it is: so it stays at the replica, and so it
    is sent."""
    with node.store.locked():
        there, waiting = bodies.plain_for_replica(node.store.connection)
    return {"plain_at_replica": there, "plain_to_send": waiting}


def complete(node: Node) -> dict[str, Any]:
    """Seal what still lies plain: a program that ran on may have written some since. Costs one look
    where there is nothing to do."""
    if node.vault.mode == NONE:
        return {"sealed": 0, "not_cleaned": []}
    row = node.store.row("state", (_UNSEALED,))
    with node.store.locked():
        left = bodies.plain_left(node.store.connection)
    if not left and not (row and row[0]):
        return {"sealed": 0, "not_cleaned": []}
    sealed = _sealed(node)
    unclean = [] if rewritten(node, anew=True) else [node.database]
    unclean += backup.seal(node.home / "backups", node.vault)
    if not unclean:
        with node.store.transaction():
            node.store.change("put_state", (_UNSEALED, ""))
    return {"sealed": sealed, "not_cleaned": [str(path) for path in unclean]}


def _sealed(node: Node) -> int:
    """How many bodies were sealed; others write in between."""
    count, after = 0, 0
    while True:
        with node.store.transaction():
            before = node.store.connection.total_changes
            after = bodies.seal(node.store.connection, node.vault, after)
            count += node.store.connection.total_changes - before
            if not after:
                bodies.seal_rest(node.store.connection, node.vault)
                return count


def decrypt(node: Node) -> dict[str, Any]:
    """Write plain from now on, and make plain what only this home had sealed."""
    _refuse_if_overruled(node, NONE)
    if node.store.rows("sealed_bodies", (0, 1)):
        node.vault.try_keys()  # else all would stay sealed, and what comes next would be plain
    node.back_up("before-decryption")
    config.put(node.home / "config.toml", "encryption", NONE)
    node.reload()
    count, after = 0, 0
    while True:
        with node.store.transaction():
            before = node.store.connection.total_changes
            after = bodies.unseal(node.store.connection, node.vault, after)
            count += node.store.connection.total_changes - before
            if not after:
                bodies.unseal_rest(node.store.connection, node.vault)
                break
    return {"encryption": NONE, "opened": count, "still_sealed": _still_sealed(node)}


def _still_sealed(node: Node) -> int:
    with node.store.locked():
        named = bodies.keys_named(node.store.connection)
    return sum(count for key_id, count in named.items() if key_id)


def _refuse_if_overruled(node: Node, mode: str) -> None:
    found = next(v for v in node.settings.explained() if v.setting.name == "encryption")
    if found.source == found.setting.variable and found.value != mode:
        raise ConfigError(
            f"{found.source}={found.value} in the environment overrules this",
            f"Unset {found.source}, or set it to {mode}.",
        )


# --- keys ---------------------------------------------------------------------------------------


def shown(node: Node) -> dict[str, Any]:
    """The keys of this home and what they are used for; nothing of the keys themselves."""
    chain = Keychain(node.home, node.passphrase)
    with node.store.locked():
        named = bodies.keys_named(node.store.connection)
    document = chain.document()
    return {
        **_signing(node),
        "encryption": node.vault.mode,
        "master_key": document["kept"],
        "keys": [
            {"id": name, "use": key["use"], "made_at": key["made_at"],
             "current": document["current"].get(key["use"]) == name,
             "bodies": named.get(name, 0)}
            for name, key in document["keys"].items()
        ],
        "plain": named.get("", 0),
        **plain_for_replica(node),
        "missing": sorted({name for name in named if name} - set(document["keys"])),
    }  # fmt: skip


def _signing(node: Node) -> dict[str, Any]:
    """The id of this home and its key, and those that it had before, the first one first. Last
    come ids that only have the same key: of copies, or of entries that could not stay where they
    were."""
    key, exchange = node.key, Exchange(node.store)
    ended, keys = exchange.former_ids(), exchange.keys()
    ids = {row[0] for row in node.store.rows("own_ids")} - {exchange.device_id}
    former = [
        {"device_id": name, "fingerprint": fingerprint(keys[name]), "until": ended.get(name)}
        for name in sorted(ids, key=lambda name: (ended.get(name, "later"), name))
    ]
    return {"device_id": exchange.device_id, "signing_key": fingerprint(key.public()),
            "former": former}  # fmt: skip


def exported(node: Node) -> tuple[DataKey, str]:
    """The key that this home shares, as a line to carry to another machine."""
    chain = Keychain(node.home, node.passphrase)
    if END_TO_END not in chain.document()["current"]:
        raise KeyMissingError(
            "this home has no key to share: it does not encrypt end to end",
            "`syncd keys encrypt --mode end_to_end` makes one.",
        )
    key = chain.current(END_TO_END)
    return key, keychain.exported(key)


def take(node: Node, text: str) -> dict[str, Any]:
    """Have a key that another machine exported, and write with it from now on."""
    key = keychain.imported(text)
    _refuse_if_overruled(node, END_TO_END)
    node.store  # noqa: B018 (makes the home)
    Keychain(node.home, node.passphrase).add(key)
    _found(node, key)
    config.put(node.home / "config.toml", "encryption", END_TO_END)
    node.reload()
    return {"id": key.id, "encryption": END_TO_END, **complete(node)}


def _found(node: Node, key: DataKey) -> None:
    """What was sealed with it can be read now."""
    with node.store.transaction():
        node.store.missing_keys(without={key.id})


def rotate(node: Node) -> dict[str, Any]:
    """A new master key for all; a new shared key for what is written from now on."""
    chain = Keychain(node.home, node.passphrase)
    kept = chain.document()["kept"]
    if not kept:
        raise KeyMissingError("this home has no data keys", "`syncd keys encrypt` makes them.")
    chain.rewrap()
    key = None
    if END_TO_END in chain.document()["current"]:
        key = chain.another(END_TO_END)
    node.reload()
    return {"master_key": kept, "key": key.id if key else None}


def rotate_signing(node: Node, reason: str = "") -> dict[str, Any]:
    """Another key to sign with, and another id: a key belongs to one id for ever. While this home
    exchanges with the replica, it is waited for."""
    reason = redaction.of(node.settings).text(reason, "reason")
    if len(reason) > _LONGEST_REASON:
        raise InvalidInputError(f"the reason is longer than {_LONGEST_REASON:,} characters")
    node.store  # noqa: B018 (makes the home)
    with node.exchanging(node.settings["store.busy_seconds"]):
        change(Exchange(node.store), node.home / "keys", user(), reason)
    # A daemon that does not hear it finds out when it next sends something.
    if pid := running.pid(node.home):
        with suppress(OSError):
            os.kill(pid, signal.SIGHUP)
    return _signing(node)


def write_export(path: Path, text: str, *, force: bool) -> None:
    with delivered(path, force=force) as file:
        file.write(text.encode() + b"\n")
