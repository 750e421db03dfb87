"""How results look to people: colours and tables on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

import click

_PHASE_COLOURS = {"complete": "green", "handoff": "magenta", "testing": "cyan"}
_STATUS_COLOURS = {"complete": "green", "blocked": "red", "failed": "red", "escalated": "red"}


def width(stream: TextIO) -> int | None:
    """How wide the terminal is that it goes to; None in a pipe."""
    if not stream.isatty():
        return None
    return os.get_terminal_size(stream.fileno()).columns or 80


def wrapped(text: str, *, indent: str = "", err: bool = False) -> str:
    """Lines that end between words on a terminal; in a pipe, the text as it is."""
    columns = width(sys.stderr if err else sys.stdout)
    if columns is None:
        return text
    import textwrap

    return "\n".join(
        textwrap.fill(
            line, max(columns, 20), subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False, replace_whitespace=False, drop_whitespace=True,
        )
        for line in text.splitlines()
    )  # fmt: skip


def labelled(
    label: str, text: str, fg: str | None = None, *, indent: str = "", err: bool = False
) -> str:
    """A text after a coloured word, wrapped as one."""
    shown = wrapped(label + text, indent=indent, err=err)
    word = label.rstrip()  # a long word after it may have to begin a line
    return click.style(word, fg=fg, bold=True) + shown.removeprefix(word)


# --- tables -------------------------------------------------------------------------------------

_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)")
# The shortest beginning that is shown: of a UUIDv7, the time.
_SHORTEST_ID = 13
# So narrow a column becomes, by breaking words, where nothing else helps.
_NARROWEST = 8


class _Column(NamedTuple):
    """`whole`: its cells are for copying, or for comparing, and never take two lines."""

    name: str
    cells: list[str]
    whole: bool

    def widest(self) -> int:
        return max(map(_cells, (self.name, *self.cells)))

    def least(self) -> int:
        """As wide as its longest word."""
        if self.whole:
            return self.widest()
        words = (word for text in (self.name, *self.cells) for word in text.split())
        return max(map(_cells, words), default=0)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    whole: Sequence[str] = (),
    spare: Sequence[str] = (),
    elsewhere: str = "",
    empty: str = "Nothing found.",
) -> str:
    """A table as wide as the terminal; in a pipe, aligned text that is never cut.

    On a terminal ids are shortened, times brief, and texts folded between words, but not those of
    the columns `whole`. The columns `spare` are left out where there is no room for all; a last
    line says so if `elsewhere` tells what shows them.
    """
    texts = [["" if cell is None else clean(cell) for cell in row] for row in rows]
    if not texts:
        return empty
    room = width(sys.stdout)
    shown = brief(texts) if room else texts
    found = [
        _Column(name, list(cells), name in whole or any(map(_exact, full)))
        for name, cells, full in zip(
            columns, zip(*shown, strict=True), zip(*texts, strict=True), strict=True
        )
    ]
    for name in spare:
        if room and _taken([column.least() for column in found]) > room:
            found = [column for column in found if column.name != name]
    drawn = _drawn(found, _fitting(found, room), room)
    gone = [name for name in columns if name and name not in {column.name for column in found}]
    if not gone or not elsewhere:
        return drawn
    said = wrapped(f"No room for {', '.join(gone)}: {elsewhere} shows all, or a wider terminal.")
    return f"{drawn}\n{click.style(said, dim=True)}"


def _taken(widths: Sequence[int], gap: int = 1) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _drawn(columns: Sequence[_Column], widths: Sequence[int], room: int | None) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # As wide as it must be: a table that is too wide is better than ids that are cut.
    gap = 2 if room is None or _taken(widths, 2) <= room else 1
    console = Console(width=_taken(widths, gap), no_color=room is None, highlight=False)
    style = "" if room is None else "bold"
    grid = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style=style)
    for column, size in zip(columns, widths, strict=True):
        grid.add_column(column.name, overflow="fold", width=size)
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*map(Text, row))
    with console.capture() as capture:
        console.print(grid)
    # Trailing blanks only fill up the last column.
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _exact(text: str) -> bool:
    return bool(_ID.fullmatch(text) or _TIME.fullmatch(text))


def _fitting(columns: Sequence[_Column], room: int | None) -> list[int]:
    """The widest columns give way: first as far as no word breaks, then those of texts further."""
    widths = [column.widest() for column in columns]
    if room is None:
        return widths
    for least in (
        [column.least() for column in columns],
        [column.least() if column.whole else _NARROWEST for column in columns],
    ):
        while _taken(widths) > room:
            wide = [n for n, size in enumerate(widths) if size > least[n]]
            if not wide:
                break
            widths[max(wide, key=lambda n: widths[n])] -= 1
    return widths


def brief(rows: list[list[str]]) -> list[list[str]]:
    """Ids as short as they stay different from each other, times to the second."""
    ids = sorted({found for row in rows for cell in row for found in _ID.findall(cell)})
    short = {
        full: full[: max(_SHORTEST_ID, _common(full, before) + 1, _common(full, after) + 1)]
        for before, full, after in zip(["", *ids], ids, [*ids[1:], ""], strict=False)
    }
    return [
        [_ID.sub(lambda match: short[match[0]], _TIME.sub(_to_the_second, cell)) for cell in row]
        for row in rows
    ]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    differ = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


def _to_the_second(match: re.Match[str]) -> str:
    at = datetime.fromisoformat(match[0]).astimezone(UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S")


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
        counts = [f"{tests[name]} {name}" for name in ("passed", "failed", "skipped")]
        if covered := tests["coverage_percent"]:  # zero where nobody has measured it
            counts.append(f"{covered} % covered")
        lines.append(_line("Tests", ", ".join(counts)))
    if workspace:
        place = f"{workspace['repository']}@{workspace['branch']}"
        commit = f" at {workspace['head'][:12]}" if workspace["head"] else ", no commit yet"
        dirty = ", with changes" if workspace.get("dirty") else ""
        lines.append(_line("Code", clean(place + commit + dirty)))
    if erasure := document.get("erase_waiting"):
        told = f"asked for by {erasure['actor']} on {erasure['at']}; waits for the replica"
        lines.append(click.style(_line("Erase", clean(told)), fg="yellow"))
    if document.get("revision"):
        lines.append(_line("Revision", document["revision"]))
    lines.append(_line("Hash", compliance["hash"]))
    if signer := compliance.get("signed_by"):
        who = f"{signer['name']}: {signer['meaning']} ({signer['at']})"
        lines.append(_line("Signed", clean(who)))
    elif compliance["signature"]:
        lines.append(_line("Signed", "by the device that wrote it"))
    if taken := compliance.get("redactions"):
        where = ", ".join(f"{found['path']} ({found['rule']})" for found in taken)
        lines.append(_line("Redacted", clean(where)))
    return lines


def _line(name: str, value: str) -> str:
    shown = wrapped(f"{name:<11} {value}", indent=" " * 12)
    return click.style(name, dim=True) + shown.removeprefix(name)


def _list(title: str, items: list[Any], mark: str) -> list[str]:
    if not items:
        return []
    lines = [wrapped(f"  {mark} {item_text(item)}", indent="    ") for item in items]
    return [click.style(title, bold=True), *lines]


def item_text(item: Any) -> str:
    """A plain or structured item in one line."""
    if not isinstance(item, dict):
        return clean(item)
    main = item.get("step") or item.get("decision") or item.get("description") or item.get("text")
    note = item.get("rationale") or item.get("impact") or item.get("category")
    return clean(f"{main} ({note})" if note else main)


def checkpoint_table(documents: list[dict[str, Any]], *, one_task: bool = False) -> str:
    """A line for each; where they are of one task, its name is left out on a terminal."""
    columns: tuple[str, ...] = ("ID", "TASK", "AGENT", "PHASE", "STATUS", "DONE", "TODO", "TIME")
    rows: list[tuple[Any, ...]] = [
        (
            d["metadata"]["checkpoint_id"], d["metadata"]["task_id"], d["metadata"]["agent_id"],
            d["execution_state"]["phase"], _status(d),
            len(d["execution_state"]["completed_items"]),
            len(d["execution_state"]["pending_items"]), d["metadata"]["timestamp"],
        )
        for d in documents
    ]  # fmt: skip
    if one_task and width(sys.stdout):
        columns, rows = columns[:1] + columns[2:], [row[:1] + row[2:] for row in rows]
    return table(columns, rows, spare=("DONE", "TODO", "PHASE", "AGENT"),
                 elsewhere="--json")  # fmt: skip


def _status(document: dict[str, Any]) -> str:
    if purge := document.get("purged"):
        return "erased" if purge["kind"] == "erase" else "purged"
    return str(document["execution_state"]["status"])


def count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def size(count: int) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    raise AssertionError
