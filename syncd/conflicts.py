"""What lost, and what to do about it: look at both sides, take the loser back, or let it rest.

Each decision is an entry like any other, so that it reaches every device.
"""

from __future__ import annotations

from typing import Any

import orjson

from syncd import tasks
from syncd.compare import changes
from syncd.entry import CHECKPOINT, CHOICE, CREATE, FINALIZE, KEY, UPDATE, Draft, Entry, uuid7
from syncd.errors import CheckpointExistsError, CheckpointNotFoundError, FinalizedError, UsageError
from syncd.fold import FORK, OPEN, Conflict
from syncd.node import Node, user
from syncd.purges import recalled
from syncd.seal import flaw, header_intact
from syncd.service import CheckpointService
from syncd.views import Views

RESTORED, DISMISSED, CHOSEN_AGAINST = "restored", "dismissed", "chosen_against"


def everything(node: Node, state: str | None = None) -> list[Conflict]:
    return [Conflict(*row) for row in node.store.rows("conflicts", (state,))]


def named(node: Node, prefix: str) -> Conflict:
    found = node.store.find("conflict_ids", prefix) if prefix else []
    if len(found) > 1 and prefix not in found:
        raise UsageError(f"{prefix!r} fits more than one conflict: {', '.join(found)}")
    if not found:
        raise CheckpointNotFoundError(
            f"there is no conflict {prefix!r}", "`syncd conflicts list --all` shows what there is."
        )
    row = node.store.row("conflict", (prefix if prefix in found else found[0],))
    return Conflict(*(row or ()))


def document(conflict: Conflict) -> dict[str, Any]:
    return {**conflict._asdict(), "bases": orjson.loads(conflict.bases)}


def shown(node: Node, prefix: str) -> dict[str, Any]:
    """Base, winner and loser side by side, and where the two differ."""
    conflict = named(node, prefix)
    winner, loser = (node.store.version(entry) for entry in (conflict.winner, conflict.loser))
    base = _base(node, conflict)
    ours, theirs = orjson.loads(winner.body), orjson.loads(loser.body)
    return {
        **document(conflict),
        "final": winner.op == FINALIZE,
        "base": orjson.loads(base.body) if base else None,
        "ours": _side(winner, ours),
        "theirs": _side(loser, theirs),
        "differences": [change._asdict() for change in changes(ours, theirs)],
    }


def _side(entry: Entry, body: Any) -> dict[str, Any]:
    return {"revision": entry.entry_id, "device_id": entry.device_id, "actor": entry.actor,
            "at": entry.at, "body": body}  # fmt: skip


def _base(node: Node, conflict: Conflict) -> Entry | None:
    """What both began from, if it is here."""
    bases = orjson.loads(conflict.bases)
    base = node.store.entry(bases[0]) if bases else None
    return base if base and base.body else None


def dismiss(node: Node, prefix: str) -> Conflict:
    """Let the winner stand; what lost stays in the log."""
    return _resolve(node, prefix, DISMISSED)


def restore(node: Node, prefix: str) -> Conflict:
    """Make what lost the current version again; what won stays in the log."""
    return _resolve(node, prefix, RESTORED)


def _resolve(node: Node, prefix: str, how: str) -> Conflict:
    with node.store.transaction():
        conflict = named(node, prefix)
        if conflict.state != OPEN:
            raise CheckpointExistsError(
                f"conflict {conflict.id} is closed already ({conflict.state})",
                "`syncd conflicts list` shows what is open.",
            )
        if conflict.kind == FORK:
            _choose(node, conflict, how)
        else:
            _settle(node, conflict, how)
    return named(node, conflict.id)


def _settle(node: Node, conflict: Conflict, how: str) -> None:
    winner = _header(node, conflict.winner)
    if how == RESTORED and winner.op == FINALIZE:
        raise FinalizedError(f"{winner.entity} {winner.entity_id} is finalized, and stays so")
    if winner.entity == CHECKPOINT:
        node.store.refuse_erased(winner.entity_id)
    # Of what is not kept, only the name is needed: its body may have been purged.
    kept = node.store.version(conflict.loser if how == RESTORED else conflict.winner)
    draft = Draft(
        uuid7(), kept.entity, kept.entity_id, UPDATE, user(),
        {**_meta(kept), "resolution": how}, kept.body, (conflict.winner, conflict.loser),
    )  # fmt: skip
    node.store.append(draft, node.store.place(draft.meta["task_id"]))


def _header(node: Node, entry_id: str) -> Entry:
    entry = node.store.entry(entry_id)
    if entry is None:
        raise CheckpointNotFoundError(f"there is no revision {entry_id!r}")
    if not header_intact(entry):
        raise node.store.damaged(f"revision {entry_id}", entry_id, "its header is damaged")
    return entry


def _meta(entry: Entry) -> dict[str, Any]:
    """The header's own words about the content; what told of its place is not carried over."""
    meta: dict[str, Any] = orjson.loads(entry.meta)
    return {name: meta[name] for name in meta if name not in ("task_seq", "continues")}


def _choose(node: Node, conflict: Conflict, how: str) -> None:
    """A branch: say which one goes on. To go on from the other one, its state becomes the task's
    newest checkpoint again."""
    loser = _header(node, conflict.loser)
    _say(node, orjson.loads(loser.meta)["task_id"], conflict.entity_id, how)
    if how == RESTORED:
        _go_on_from(node, conflict.entity_id)


def _go_on_from(node: Node, checkpoint_id: str) -> str:
    """A state becomes the task's newest again; the id of the checkpoint that says so. Whoever had
    lost the task has not won it back: it is the user who goes on."""
    service = CheckpointService(node=node)
    branch = service.get_checkpoint(checkpoint_id)
    again = branch.renewed()
    if tasks.fenced(node, node.store.checkpoint(checkpoint_id).row):
        writer = again.metadata.amended(agent_id=user(), handoff_from=branch.metadata.agent_id)
        again = again.amended(metadata=writer)
    return service.save(again, parent=checkpoint_id).metadata.checkpoint_id


def choose(node: Node, checkpoint_id: str, task_id: str = "") -> dict[str, Any]:
    """Of several heads of a task, say from which one the work goes on."""
    with node.store.transaction():
        row = node.store.checkpoint(checkpoint_id).row  # raises if it is damaged
        if task_id and row.task_id != task_id:
            raise CheckpointNotFoundError(f"task {task_id!r} has no checkpoint {checkpoint_id!r}")
        heads = [head["checkpoint_id"] for head in tasks.heads(node, row.task_id, decided=True)]
        if checkpoint_id not in heads:
            raise UsageError(
                f"{checkpoint_id} is no head: another checkpoint follows it",
                "`syncd task heads` lists those from which a task can go on.",
            )
        others = [h for h in heads if h != checkpoint_id and not tasks.was_decided(node, h)]
        _decide(node, row.task_id, checkpoint_id, others)
        current = node.store.current_id(row.task_id)
        if current != checkpoint_id:
            current = _go_on_from(node, checkpoint_id)
    return {"task_id": row.task_id, "checkpoint_id": checkpoint_id, "current": current,
            "decided_against": others}  # fmt: skip


def _decide(node: Node, task_id: str, chosen: str, others: list[str]) -> None:
    """Word about each head, and about the branches that lead to them and are open conflicts."""
    kept = _line(node, chosen)
    lines = {other: _line(node, other) for other in others}
    shared = {name for line in lines.values() for name in line}
    for name in filter(lambda n: n not in shared and _is_open_fork(node, n), kept):
        _say(node, task_id, name, RESTORED)
    against = {
        name: None
        for other, line in lines.items()
        for name in line
        if name == other or (name not in kept and _is_open_fork(node, name))
    }
    for name in against:
        _say(node, task_id, name, CHOSEN_AGAINST)


def _line(node: Node, checkpoint_id: str) -> list[str]:
    """A checkpoint and all before it, by what the headers say."""
    found: dict[str, None] = {}
    while checkpoint_id and checkpoint_id not in found:
        found[checkpoint_id] = None
        branch = node.store.row("branch_of", (checkpoint_id,))
        checkpoint_id = branch[1] if branch else ""
    return list(found)


def _is_open_fork(node: Node, checkpoint_id: str) -> bool:
    found = (Conflict(*row) for row in node.store.rows("conflicts_of", (checkpoint_id,)))
    return any(conflict.kind == FORK for conflict in found)


def _say(node: Node, task_id: str, branch: str, how: str) -> None:
    """How a branch was decided."""
    found = node.store.row("branch_of", (branch,))
    meta = {"task_id": task_id, "fork": found[1] if found else "", "resolution": how}
    draft = Draft(uuid7(), CHOICE, branch, CREATE, user(), meta, b"{}")
    node.store.append(draft, node.store.place(task_id))


# --- quarantine -------------------------------------------------------------------------------


def quarantined(node: Node, state: str | None = None) -> list[dict[str, Any]]:
    names = ("entry_id", "device_id", "reason", "since", "state")
    rows = node.store.rows("quarantined", (state,))
    return [dict(zip(names, row, strict=True)) for row in rows]


def _quarantined_id(node: Node, prefix: str) -> str:
    rows = node.store.rows("quarantined_entry", (prefix, prefix + "\U0010ffff"))
    if len(rows) == 1 and rows[0][4] != OPEN:
        raise CheckpointExistsError(
            f"entry {rows[0][0]} was dealt with already ({rows[0][4]})",
            "`syncd quarantine list` shows what is open.",
        )
    if len(rows) == 1:
        return str(rows[0][0])
    if rows:
        raise UsageError(f"{prefix!r} fits more than one entry", "Give more characters.")
    raise CheckpointNotFoundError(
        f"there is no entry {prefix!r} in quarantine", "See `syncd quarantine list`."
    )


def retry(node: Node, prefix: str) -> str:
    """Offer an entry again: ours is written once more, another's is fetched once more."""
    entry_id = _quarantined_id(node, prefix)
    with node.store.transaction():
        entry = node.store.entry(entry_id)
        if entry is not None and (entry.body or entry.purged):
            node.store.version(entry_id)  # raises if it is damaged: that cannot be offered again
            _write_again(node, entry)
        elif (lost := _set_aside(node, entry_id)) is not None:
            _write_again(node, lost)
        else:
            _fetch_again(node, entry_id)
        node.store.change("settle_quarantine", ("retried", entry_id))
    return entry_id


def _write_again(node: Node, entry: Entry) -> None:
    if entry.entity == KEY:
        raise UsageError(
            f"entry {entry.entry_id} tells of a key, which is true at its own place only",
            "`syncd quarantine drop` leaves it at that.",
        )
    if entry.entity == CHECKPOINT:
        node.store.refuse_erased(entry.entity_id)
    op = UPDATE if entry.op == CREATE and entry.entity == CHECKPOINT else entry.op
    meta = _meta(entry)
    # The same bases: to the others, who never had it, it takes the place of the first attempt.
    bases = tuple(orjson.loads(entry.bases))
    draft = Draft(uuid7(), entry.entity, entry.entity_id, op, user(), meta, entry.body, bases)
    key = node.key if op == FINALIZE else None
    node.store.append(draft, node.store.place(meta["task_id"]), key)
    # It may have newer versions by now, beside which this one stands.
    Views(node.store.connection).settle(entry.entity, entry.entity_id)


def _set_aside(node: Node, entry_id: str) -> Entry | None:
    """Another's entry that was here, which nobody but its author could send as it was."""
    content = _content(node, entry_id)
    if "seq" not in content or not content.get("body"):
        return None
    entry = node.store.vault.opened(recalled(orjson.dumps(content).decode()))
    if problem := flaw(entry):
        raise node.store.damaged(f"{entry.entity} {entry.entity_id}", entry_id, problem)
    return node.store.vault.readable(entry)


def _content(node: Node, entry_id: str) -> dict[str, Any]:
    row = node.store.row("quarantined_content", (entry_id,))
    content: dict[str, Any] = orjson.loads(row[0]) if row and row[0] else {}
    return content


def _fetch_again(node: Node, entry_id: str) -> None:
    content = _content(node, entry_id)
    if content.get("cloud_seq") is not None:
        node.store.change("drop_batches", (content["cloud_seq"] - 1,))


def drop(node: Node, prefix: str) -> str:
    """Leave it at that: it is no longer counted, its header and reason stay."""
    entry_id = _quarantined_id(node, prefix)
    with node.store.transaction():
        node.store.change("settle_quarantine", ("dropped", entry_id))
    return entry_id
