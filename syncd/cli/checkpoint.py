"""`syncd checkpoint`: write, change, read, compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from syncd.cli import printing, render
from syncd.cli.document import (
    changed,
    continued,
    created,
    document_options,
    given,
    says_something,
    task_in,
)
from syncd.cli.verb import (
    App,
    Count,
    complete_tasks,
    fallback_option,
    id_argument,
    not_empty,
    task_argument,
    verb,
    warn,
)
from syncd.errors import CheckpointCorruptionError, CheckpointNotFoundError, UsageError

if TYPE_CHECKING:
    from syncd.checkpoint import Checkpoint
    from syncd.compare import Change
    from syncd.entry import Entry
    from syncd.items import Workspace
    from syncd.store import Record, Sealed, Skipped


@click.group()
def checkpoint() -> None:
    """Write and read checkpoints."""


# --- writing ----------------------------------------------------------------------------------

base_option = click.option(
    "--base", metavar="REVISION", callback=not_empty,
    help="Refuse if this is no longer the newest revision.",
)  # fmt: skip


@checkpoint.command()
@click.option(
    "--task", envvar="SYNCD_TASK", shell_complete=complete_tasks, help="The task it belongs to."
)
@click.option("--agent", envvar="SYNCD_AGENT", help="The agent that writes it.")
@click.option(
    "--parent", metavar="ID", callback=not_empty,
    help="The checkpoint before it (else the task's newest).",
)  # fmt: skip
@click.option(
    "--continue", "carry", is_flag=True,
    help="Begin with what the checkpoint before says, and change that as `update` does.",
)  # fmt: skip
@document_options
@verb
def create(
    app: App, task: str | None, agent: str | None, parent: str | None, carry: bool, **options: Any
) -> None:
    """Write a checkpoint and print its id.

    Options and a JSON document (--file) combine. Inside a git repository the checkpoint records
    repository, branch, HEAD and the content of the files it names; without --task it belongs to
    the task of that repository and branch.
    """
    from syncd import drafting

    limit = app.node.settings["limits.body_bytes"]
    if task is not None and not task.strip():
        raise UsageError("--task is empty", "Name a task, or leave --task out in a repository.")
    name = task or task_in(options["file"], limit) or app.task(None, "Add --task NAME")
    parent = app.node.checkpoint_id(parent) if parent else None
    before, parent = _before(app, name, parent) if carry else (None, parent)
    draft = (
        continued(options, before, name, agent, limit)
        if before
        else created(options, name, agent, limit)
    )
    draft = drafting.with_workspace(draft, Path.cwd())
    _emit_written(app, app.service.save(draft, parent=parent))
    if not options["file"] and not says_something(options):
        warn("it says nothing of the work: add --completed, --pending, --decision, --focus, …")


def _before(app: App, task: str, parent: str | None) -> tuple[Checkpoint | None, str | None]:
    from syncd import drafting

    found = drafting.before(app.service, task, parent)
    app.say_skipped(found.skipped)
    return found.checkpoint, found.parent


@checkpoint.command()
@id_argument
@base_option
@click.option("--agent", envvar="SYNCD_AGENT", help="The agent that goes on with it.")
@document_options
@verb
def update(
    app: App, checkpoint_id: str, base: str | None, agent: str | None, **options: Any
) -> None:
    """Write a new version of a checkpoint.

    --completed X also takes X out of pending; --pending, --blocked and --decision add; single
    values replace; --file is a JSON merge patch (null removes).
    """
    if agent is None and not given(options) and options["file"] is None:
        raise UsageError("nothing to change was given", "See `syncd checkpoint update --help`.")
    base = app.node.entry_id(base) if base else None
    limit = app.node.settings["limits.body_bytes"]
    full_id = app.node.checkpoint_id(checkpoint_id)
    here = _workspace_now(changed(options, app.service.get_checkpoint(full_id), limit))
    with app.node.store.transaction():
        app.node.store.changeable(full_id, base)
        current = app.service.get_checkpoint(full_id)
        draft = changed(options, current, limit)
        if agent:
            draft = draft.amended(metadata=draft.metadata.amended(agent_id=agent))
        if here and draft.workspace == current.workspace:
            draft = draft.amended(workspace=here)
        result = app.service.revise(current, draft)
    _emit_written(app, result)


def _workspace_now(draft: Checkpoint) -> Workspace | None:
    """What is written now is about the code as it is now, if this is still the same repository.
    Asked before the transaction: nobody should wait for git."""
    from syncd.drafting import captured

    found, before = captured(draft, Path.cwd()), draft.workspace
    elsewhere = found and before and found.repository != before.repository
    return None if elsewhere else found


@checkpoint.command()
@id_argument
@click.option(
    "--status", default="complete", show_default=True,
    help="How it ended: complete or failed; or in_progress, waiting, blocked, escalated.",
)  # fmt: skip
@base_option
@click.option("--sign-as", metavar="NAME", callback=not_empty, help="Who signs, in person.")
@click.option("--meaning", metavar="TEXT", callback=not_empty, help="What the signature means.")
@verb
def finalize(
    app: App,
    checkpoint_id: str,
    status: str,
    base: str | None,
    sign_as: str | None,
    meaning: str | None,
) -> None:
    """Close a checkpoint for good and sign it."""
    base = app.node.entry_id(base) if base else None
    full_id = app.node.checkpoint_id(checkpoint_id)
    result = app.service.finalize_checkpoint(
        full_id, status, sign_as=sign_as, meaning=meaning, base=base
    )
    _emit_written(app, result)


@checkpoint.command()
@click.argument("parent")
@click.argument("child")
@verb
def link(app: App, parent: str, child: str) -> None:
    """Name PARENT as a parent of CHILD."""
    parent, child = app.node.checkpoint_id(parent), app.node.checkpoint_id(child)
    app.service.link_checkpoints(parent, child)
    app.emit({"parent": parent, "child": child}, f"{parent} → {child}")


# --- verified reads ---------------------------------------------------------------------------


@checkpoint.command()
@id_argument
@fallback_option
@verb
def show(app: App, checkpoint_id: str, fallback: bool) -> None:
    """Show a checkpoint.

    With --fallback, its nearest intact ancestor.
    """
    full_id = app.node.checkpoint_id(checkpoint_id)
    if not fallback:
        return _emit(app, app.node.store.checkpoint(full_id))
    return _emit_intact(app, full_id)


@checkpoint.command()
@task_argument
@fallback_option
@verb
def latest(app: App, task: str | None, fallback: bool) -> None:
    """Show a task's newest checkpoint.

    With --fallback, its nearest intact ancestor.
    """
    task = app.task(task)
    if fallback:
        return _emit_intact(app, app.node.store.current_id(task), task)
    record = app.node.store.latest(task)
    if record is None:
        raise _none(app, task)
    return _emit(app, record)


def _none(app: App, task: str) -> CheckpointNotFoundError:
    from syncd.threads import no_checkpoint

    return no_checkpoint(app.node, task)


def _emit_intact(app: App, checkpoint_id: str, task: str = "") -> None:
    if not checkpoint_id:
        raise _none(app, task)
    skipped: list[Skipped] = []
    record = app.node.store.intact_from(checkpoint_id, skipped)
    told = app.say_skipped(skipped)
    if record is None:
        raise CheckpointCorruptionError(
            f"no intact checkpoint is left along the parents of {checkpoint_id}",
            "Restore a backup: `syncd backup list`.",
        )
    document = record.document()
    if told:
        document["skipped"] = told
    app.emit(document, lambda: render.checkpoint(document))


@checkpoint.command()
@task_argument
@click.option("--limit", default=10, show_default=True, type=Count(1), help="How many.")
@fallback_option
@verb
def history(app: App, task: str | None, limit: int, fallback: bool) -> None:
    """List a task's checkpoints, newest first."""
    skipped: list[Skipped] | None = [] if fallback else None
    sealed: list[Sealed] = []
    records = app.node.store.select("history", (app.task(task), limit), skipped, sealed)
    app.say_sealed(sealed)
    _emit_all(app, records, skipped, one_task=True)


@checkpoint.command("list")
@click.option("--agent", help="Only this agent's.")
@click.option("--since", metavar="TIME", help="From this time on (ISO 8601).")
@click.option("--until", metavar="TIME", help="Before this time (ISO 8601).")
@click.option("--limit", default=100, show_default=True, type=Count(1), help="How many.")
@fallback_option
@verb
def list_(
    app: App,
    agent: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    fallback: bool,
) -> None:
    """List checkpoints of every task, newest first."""
    from syncd.service import time_range

    skipped: list[Skipped] | None = [] if fallback else None
    query, first = ("by_agent", (agent,)) if agent else ("by_time", ())
    parameters = (*first, *time_range(since, until), limit + 1)
    sealed: list[Sealed] = []
    records = app.node.store.select(query, parameters, skipped, sealed)
    app.say_sealed(sealed)
    if len(records) + len(sealed) > limit:
        _say_more(limit, "--limit, --since or --until")
    _emit_all(app, records[:limit], skipped)


def _say_more(limit: int, options: str) -> None:
    printing.say(f"There are more than {limit}: use {options}.")


@checkpoint.command()
@click.argument("text")
@click.option("--limit", default=20, show_default=True, type=Count(1), help="How many.")
@fallback_option
@verb
def search(app: App, text: str, limit: int, fallback: bool) -> None:
    """Find checkpoints that contain TEXT, newest first."""
    if not text.strip():
        raise UsageError("nothing to search for was given", "For example: `search migration`.")
    skipped: list[Skipped] | None = [] if fallback else None
    sealed: list[Sealed] = []
    records = app.node.store.search(text, limit + 1, skipped, sealed)
    app.say_sealed(sealed)
    if len(records) > limit:
        _say_more(limit, "--limit or more of the text")
    _emit_all(app, records[:limit], skipped)


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@verb
def diff(app: App, a: str, b: str) -> None:
    """Compare two checkpoints, or two revisions of one."""
    from syncd.compare import changes
    from syncd.store import opened

    before, after = _versions(app, a, b)
    found = changes(opened(before), opened(after))
    app.emit([change._asdict() for change in found], lambda: _diff_text(found))


def _versions(app: App, a: str, b: str) -> list[Entry]:
    """The entries meant: a checkpoint stands for its newest version, unless the other one is a
    revision of it. (A first revision has its checkpoint's id.)"""
    store = app.node.store
    ids = [_checkpoint_or_revision(app, prefix) for prefix in (a, b)]
    entries = [store.version(full_id) if revision else None for full_id, revision in ids]
    subjects = {entry.entity_id for entry in entries if entry}
    return [
        entry
        or (store.version(full_id) if full_id in subjects else store.checkpoint(full_id).entry)
        for entry, (full_id, _) in zip(entries, ids, strict=True)
    ]


def _checkpoint_or_revision(app: App, prefix: str) -> tuple[str, bool]:
    try:
        return app.node.checkpoint_id(prefix), False
    except CheckpointNotFoundError:
        return app.node.entry_id(prefix), True


# What differs between any two versions and says nothing about the work.
_NOISE = {
    "compliance.event_log_ref",
    "metadata.checkpoint_id",
    "metadata.timestamp",
    "recovery.continuation_prompt",
}


def _diff_text(found: list[Change]) -> str:
    lines = []
    for path, before, after in found:
        if path not in _NOISE:
            gone, come = _apart(before, after)
            lines.append(click.style(path, bold=True))
            lines += [click.style(f"  - {item}", fg="red") for item in gone]
            lines += [click.style(f"  + {item}", fg="green") for item in come]
    return "\n".join(lines) or "No difference in the work."


def _apart(before: Any, after: Any) -> tuple[list[str], list[str]]:
    """What only one side has; of lists, the items."""
    old, new = (
        [render.item_text(item) for item in value] if isinstance(value, list)
        else [] if value in (None, "") else [render.clean(value)]
        for value in (before, after)
    )  # fmt: skip
    return [i for i in old if i not in new], [i for i in new if i not in old]


def _emit_written(app: App, result: Checkpoint) -> None:
    """What was written, and what to do if the agent's context fills up."""
    from syncd.triggers import advice

    used = result.metrics.context_used_percent
    advised = advice(used, app.node.settings)
    document = result.to_dict()
    if used is not None:
        document["advice"] = advised._asdict() if advised else None
    app.emit(document, document["metadata"]["checkpoint_id"])
    if advised:
        printing.say(render.labelled("Advice: ", advised.text, "yellow", err=True))


def _emit(app: App, record: Record) -> None:
    document = record.document()
    if erasure := app.node.store.erasure_waiting(record):
        document["erase_waiting"] = {"at": erasure.at, "actor": erasure.actor}
    app.emit(document, lambda: render.checkpoint(document))


def _emit_all(
    app: App, records: list[Record], skipped: list[Skipped] | None, *, one_task: bool = False
) -> None:
    app.say_skipped(skipped or [])
    documents = [record.document() for record in records]
    app.emit(documents, lambda: render.checkpoint_table(documents, one_task=one_task))
