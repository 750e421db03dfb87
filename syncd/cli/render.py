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
        grid.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    if not grid.row_count:
        return "Nothing yet."
    with console.capture() as capture:
        console.print(grid)
    # Trailing blanks only fill up the last column.
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def checkpoint(document: dict[str, Any]) -> str:
    """One checkpoint on a screen."""
    metadata, state = document["metadata"], document["execution_state"]
    phase, status = state["phase"], state["status"]
    head = [
        click.style(metadata["checkpoint_id"], bold=True)
        + ("  " + click.style("verified", fg="green") if document.get("verified") else ""),
        _line("Task", metadata["task_id"]),
        _line("Agent", f"{metadata['agent_id']} ({metadata['agent_type']})"
              f", iteration {metadata['iteration']}"),
        _line("State", f"{click.style(phase, fg=_PHASE_COLOURS.get(phase))}"
              f", {click.style(status, fg=_STATUS_COLOURS.get(status))}"
              + (f", {state['stage']}" if state.get("stage") else "")),
        _line("Time", metadata["timestamp"]),
    ]  # fmt: skip
    if parent := document["recovery"]["last_successful_state"]:
        head.append(_line("Parent", parent))
    return "\n".join([*head, *_sections(document), *_proof(document)])


def _sections(document: dict[str, Any]) -> list[str]:
    state, context = document["execution_state"], document["context_summary"]
    metrics = document["metrics"]
    step = state.get("current_step") or {}
    lines = [
        *_list("Completed", state["completed_items"], "✓"),
        *_list("Pending", state["pending_items"], "·"),
        *_list("Blocked", state["blocked_items"], "!"),
        *_list("Decided", context["key_decisions"], "→"),
        *_list("Constraints", context["constraints"], "·"),
        *_list("Assumptions", context["assumptions"], "·"),
        *_list("Findings", context.get("findings", []), "·"),
    ]
    if focus := state["current_focus"] or step.get("description"):
        lines.append(_line("Focus", focus))
    if state.get("error"):
        lines.append(_line("Error", state["error"]))
    if metrics["files_modified"]:
        lines.append(_line("Files", ", ".join(metrics["files_modified"])))
    if metrics["tokens_consumed"]:
        lines.append(_line("Tokens", f"{metrics['tokens_consumed']:,}"))
    return lines


def _proof(document: dict[str, Any]) -> list[str]:
    compliance, workspace = document["compliance"], document.get("workspace")
    lines = []
    if workspace:
        dirty = ", with changes" if workspace.get("dirty") else ""
        place = f"{workspace['repository']} {workspace['branch']} {workspace['head'][:12]}{dirty}"
        lines.append(_line("Code", place))
    lines.append(_line("Hash", compliance["hash"]))
    if signer := compliance.get("signed_by"):
        lines.append(_line("Signed", f"{signer['name']}: {signer['meaning']} ({signer['at']})"))
    elif compliance["signature"]:
        lines.append(_line("Signed", "by this device"))
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
        return str(item)
    main = item.get("step") or item.get("decision") or item.get("description") or item.get("text")
    note = item.get("rationale") or item.get("impact") or item.get("category")
    return f"{main} ({note})" if note else str(main)


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
