"""How results look to people: colours and tables on a terminal, plain text in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

_PHASE_COLOURS = {"complete": "green", "handoff": "magenta", "testing": "cyan"}
_STATUS_COLOURS = {"complete": "green", "blocked": "red", "failed": "red", "escalated": "red"}


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str | None:
    """A table as wide as the terminal; in a pipe, aligned text that is never cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 100_000, no_color=not terminal, highlight=False)
    grid = Table(box=None, pad_edge=False, header_style="bold" if terminal else "")
    for name in columns:
        grid.add_column(name, overflow="fold", no_wrap=not terminal)
    for row in rows:
        grid.add_row(*(Text("" if cell is None else clean(cell)) for cell in row))
    if not grid.row_count:
        return "Nothing found."
    with console.capture() as capture:
        console.print(grid)
    # Trailing blanks only fill up the last column.
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def clean(value: Any) -> str:
    """Text for a terminal: one line, and nothing in it that a terminal would obey."""
    text = f"{value:,}" if type(value) is int else str(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def checkpoint(document: dict[str, Any]) -> str:
    """One checkpoint on a screen."""
    metadata, state = document["metadata"], document["execution_state"]
    phase, status = state["phase"], state["status"]
    verified = "  " + click.style("verified", fg="green") if document.get("verified") else ""
    agent = f"{clean(metadata['agent_id'])} ({clean(metadata['agent_type'])})"
    shown = [
        click.style(phase, fg=_PHASE_COLOURS.get(phase)),
        click.style(status, fg=_STATUS_COLOURS.get(status)),
        *(clean(state[name]) for name in ("stage",) if state.get(name)),
    ]
    lines = [
        click.style(clean(metadata["checkpoint_id"]), bold=True) + verified,
        _line("Task", clean(metadata["task_id"])),
        _line("Agent", f"{agent}, iteration {metadata['iteration']}"),
        _line("State", ", ".join(shown)),
        _line("Time", metadata["timestamp"]),
    ]
    lines += _named(document, _HEAD)
    for title, path, mark in _LISTS:
        lines += _list(title, _at(document, path) or [], mark)
    return "\n".join([*lines, *_named(document, _FOOT), *_proof(document)])


_HEAD = (
    ("Parent", "recovery.last_successful_state"),
    ("Mission", "metadata.mission"),
    ("Reason", "metadata.reason"),
)
_LISTS = (
    ("Completed", "execution_state.completed_items", "✓"),
    ("Pending", "execution_state.pending_items", "·"),
    ("Blocked", "execution_state.blocked_items", "!"),
    ("Next", "execution_state.next_steps", "·"),
    ("Decided", "context_summary.key_decisions", "→"),
    ("Constraints", "context_summary.constraints", "·"),
    ("Assumptions", "context_summary.assumptions", "·"),
    ("Dependencies", "context_summary.external_dependencies", "·"),
    ("Findings", "context_summary.findings", "·"),
    ("Files", "metrics.files_modified", "·"),
)
_FOOT = (
    ("Focus", "execution_state.current_focus"),
    ("Step", "execution_state.current_step.description"),
    ("Error", "execution_state.error"),
    ("Tokens", "metrics.tokens_consumed"),
    ("Context", "metrics.context_used_percent"),
    ("Rollback", "recovery.rollback_instructions"),
)


def _at(document: dict[str, Any], path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _named(document: dict[str, Any], fields: Iterable[tuple[str, str]]) -> list[str]:
    found = [(name, _at(document, path)) for name, path in fields]
    return [_line(name, clean(value)) for name, value in found if value]


def _proof(document: dict[str, Any]) -> list[str]:
    compliance, workspace = document["compliance"], document.get("workspace")
    tests = document["metrics"]["tests_status"]
    lines = []
    if any(tests.values()):
        counts = ", ".join(f"{tests[name]} {name}" for name in ("passed", "failed", "skipped"))
        lines.append(_line("Tests", f"{counts}, {tests['coverage_percent']} % covered"))
    if workspace:
        place = f"{workspace['repository']}@{workspace['branch']}"
        commit = f" at {workspace['head'][:12]}" if workspace["head"] else ", no commit yet"
        dirty = ", with changes" if workspace.get("dirty") else ""
        lines.append(_line("Code", clean(place + commit + dirty)))
    if document.get("revision"):
        lines.append(_line("Revision", document["revision"]))
    lines.append(_line("Hash", compliance["hash"]))
    if signer := compliance.get("signed_by"):
        who = f"{signer['name']}: {signer['meaning']} ({signer['at']})"
        lines.append(_line("Signed", clean(who)))
    elif compliance["signature"]:
        lines.append(_line("Signed", "by the device that wrote it"))
    return lines


def _line(name: str, value: str) -> str:
    return click.style(f"{name:<11} ", dim=True) + value


def _list(title: str, items: list[Any], mark: str) -> list[str]:
    if not items:
        return []
    return [click.style(title, bold=True), *(f"  {mark} {item_text(item)}" for item in items)]


def item_text(item: Any) -> str:
    """A plain or structured item in one line."""
    if not isinstance(item, dict):
        return clean(item)
    main = item.get("step") or item.get("decision") or item.get("description") or item.get("text")
    note = item.get("rationale") or item.get("impact") or item.get("category")
    return clean(f"{main} ({note})" if note else main)


def checkpoint_table(documents: list[dict[str, Any]]) -> str | None:
    return table(
        ("ID", "TASK", "AGENT", "PHASE", "STATUS", "DONE", "TODO", "TIME"),
        (
            (
                d["metadata"]["checkpoint_id"], d["metadata"]["task_id"],
                d["metadata"]["agent_id"], d["execution_state"]["phase"],
                d["execution_state"]["status"], len(d["execution_state"]["completed_items"]),
                len(d["execution_state"]["pending_items"]), d["metadata"]["timestamp"],
            )
            for d in documents
        ),
    )  # fmt: skip


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def size(count: int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024  # type: ignore[assignment]
    raise AssertionError
