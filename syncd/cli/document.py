"""From options and a JSON document to a checkpoint. `create` and `update` share the options."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from syncd.canonical import parse
from syncd.cli.verb import Number
from syncd.errors import InvalidInputError, UsageError

if TYPE_CHECKING:
    from syncd.checkpoint import Checkpoint


class Field(NamedTuple):
    """An option, the field of a checkpoint that it fills, and whether it adds to a list."""

    option: str
    path: str
    help: str
    kind: Any = str
    adds: bool = False
    variable: str | None = None


FIELDS = (
    Field(
        "--agent-type",
        "metadata.agent_type",
        "architecture, implementation, qa, …",
        variable="SYNCD_AGENT_TYPE",
    ),
    Field(
        "--iteration",
        "metadata.iteration",
        "Which round of the loop this is.",
        int,
        variable="SYNCD_ITERATION",
    ),
    Field("--session", "metadata.session_id", "The agent's session.", variable="SYNCD_SESSION"),
    Field("--mission", "metadata.mission", "What the agent was asked to do."),
    Field(
        "--phase",
        "execution_state.phase",
        "planning, implementing, testing, reviewing, handoff or complete.",
    ),
    Field(
        "--status",
        "execution_state.status",
        "in_progress, waiting, blocked, escalated, complete or failed.",
    ),
    Field("--stage", "execution_state.stage", "The phase in your own words."),
    Field(
        "--reason",
        "metadata.reason",
        "periodic, context_limit, failure, reassignment, rate_limit or manual.",
    ),
    Field("--error", "execution_state.error", "What went wrong."),
    Field("--completed", "execution_state.completed_items", "Done.", adds=True),
    Field("--pending", "execution_state.pending_items", "Still to do.", adds=True),
    Field("--blocked", "execution_state.blocked_items", "Cannot go on, and why.", adds=True),
    Field("--focus", "execution_state.current_focus", "What is being worked on."),
    Field("--next", "execution_state.next_steps", "What comes next.", adds=True),
    Field("--decision", "context_summary.key_decisions", "Decided.", adds=True),
    Field("--assumption", "context_summary.assumptions", "Taken as given.", adds=True),
    Field("--constraint", "context_summary.constraints", "To be respected.", adds=True),
    Field("--dependency", "context_summary.external_dependencies", "Relied upon.", adds=True),
    Field("--finding", "context_summary.findings", "Found out.", adds=True),
    Field("--modified", "metrics.files_modified", "A file that was changed.", adds=True),
    Field("--tokens", "metrics.tokens_consumed", "Tokens since the checkpoint before.", int),
    Field("--tools", "metrics.tools_invoked", "Tool calls since then.", int),
    Field("--duration", "metrics.duration_seconds", "Seconds since then.", float),
    Field("--errors", "metrics.error_count", "Errors since then.", int),
    Field("--context", "metrics.context_used_percent", "Context used, in percent.", float),
    Field("--tests-passed", "metrics.tests_status.passed", "Tests that passed.", int),
    Field("--tests-failed", "metrics.tests_status.failed", "Tests that failed.", int),
    Field("--tests-skipped", "metrics.tests_status.skipped", "Tests skipped.", int),
    Field("--coverage", "metrics.tests_status.coverage_percent", "Coverage in percent.", float),
    Field("--rollback", "recovery.rollback_instructions", "How to undo this."),
    Field("--continuation", "recovery.continuation_prompt", "Prompt for the next agent."),
    Field(
        "--retention",
        "compliance.retention_policy",
        "A note in the document; what counts is `task set --retention`.",
    ),
)
# What says how a checkpoint came about, and nothing of the work.
_FRAME = {
    "metadata.agent_type", "metadata.iteration", "metadata.session_id", "metadata.reason",
    "execution_state.phase", "execution_state.status", "compliance.retention_policy",
}  # fmt: skip
_NAMES = {field.path: field.option[2:].replace("-", "_") for field in FIELDS}


def document_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add every option of FIELDS, and --file."""
    function = click.option(
        "--file", "-f", type=str, metavar="FILE", help="A JSON document; - reads standard input."
    )(function)
    for field in reversed(FIELDS):
        function = click.option(
            field.option,
            _NAMES[field.path],
            type=Number() if field.kind is float else field.kind,
            multiple=field.adds,
            envvar=field.variable,
            help=field.help,
            metavar={int: "N", float: "N"}.get(field.kind, "TEXT") + ("…" if field.adds else ""),
        )(function)
    return function


def given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were used, by path; with the words checked that are not free."""
    from syncd.vocabulary import (
        PHASE_ALIASES,
        STATUS_ALIASES,
        CheckpointStatus,
        ExecutionPhase,
        known,
    )

    used = {f.path: options[_NAMES[f.path]] for f in FIELDS}
    used = {path: value for path, value in used.items() if value not in (None, ())}
    for path, names, aliases in (
        ("execution_state.phase", ExecutionPhase, PHASE_ALIASES),
        ("execution_state.status", CheckpointStatus, STATUS_ALIASES),
    ):
        if path in used and not known(used[path], names, aliases):
            raise UsageError(
                f"--{_NAMES[path]} {used[path]!r} is none of: {', '.join(names)}",
                "Free text goes to --stage.",
            )
    return used


def says_something(options: dict[str, Any]) -> bool:
    return bool(given(options).keys() - _FRAME)


def created(options: dict[str, Any], task: str, agent: str | None, limit: int) -> Checkpoint:
    """A new checkpoint from --file and the options; options win, lists are added to."""
    from syncd import drafting

    document = _read(options["file"], limit)
    with _naming(used := given(options)):
        draft = drafting.created(document, used, task, agent or "")
    if not draft.metadata.agent_id:
        raise UsageError("no agent is named", "Add --agent NAME, or set SYNCD_AGENT.")
    return draft


def continued(
    options: dict[str, Any], before: Checkpoint, task: str, agent: str | None, limit: int
) -> Checkpoint:
    """A new checkpoint that begins with what the one before it says, changed as by an update."""
    from syncd import drafting

    patch = _read(options["file"], limit)
    with _naming(used := given(options)):
        return drafting.continued(before, patch, used, task, agent or "")


def task_in(file: str | None, limit: int) -> str:
    """The task that a document names itself."""
    from syncd.checkpoint import Checkpoint

    return Checkpoint.from_dict(_read(file, limit)).metadata.task_id if file else ""


def changed(options: dict[str, Any], current: Checkpoint, limit: int) -> Checkpoint:
    """`current` with the changes: a merge patch from --file, then the options."""
    from syncd import drafting

    with _naming(used := given(options)):
        return drafting.changed(current, _read(options["file"], limit), used)


@contextmanager
def _naming(used: dict[str, Any]) -> Iterator[None]:
    """What is wrong with a field that an option has filled is said of the option."""
    try:
        yield
    except InvalidInputError as error:
        for field in FIELDS:
            if field.path in used:
                path = rf"(^|; )({re.escape(field.path)}(?:\.\d+)?)(?=: )"
                error.message = re.sub(path, rf"\1{field.option} (\2)", error.message)
        raise


_cache: dict[str, Any] = {}


def _read(file: str | None, limit: int) -> dict[str, Any]:
    """A JSON object from a file or standard input, refused unread if it is far too large."""
    if file is None:
        return {}
    if file not in _cache:
        _cache[file] = _object(_bytes(file, limit * 8), file)
    document: dict[str, Any] = _cache[file]
    return document


def _object(content: bytes, file: str) -> dict[str, Any]:
    name = "standard input" if file == "-" else file
    document = parse(content, name)
    if not isinstance(document, dict):
        raise InvalidInputError(f"{name}: expected a JSON object, found {type(document).__name__}")
    return document


def _bytes(file: str, limit: int) -> bytes:
    try:
        if file == "-":
            content = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(file).open("rb") as stream:
                content = stream.read(limit + 1)
    except OSError as error:
        raise InvalidInputError(f"{file}: {error.strerror}") from None
    if len(content) > limit:
        raise InvalidInputError(
            f"{'standard input' if file == '-' else file} has more than {limit:,} bytes",
            "Keep large data in files and name them in the checkpoint.",
        )
    return content
