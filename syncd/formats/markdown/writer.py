"""A checkpoint as a page that people can read and edit.

What the page has no place for goes into one block at its end: whatever reading the page again does
not give. An edit of the page therefore never contradicts the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from syncd.canonical import canonical
from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats.markdown import layout, table
from syncd.formats.markdown.headers import series_in
from syncd.formats.markdown.layout import DOING, DONE, FOOTER, RECORD, RECORD_FENCE, TO_DO, UNKNOWN
from syncd.formats.markdown.reader import understood
from syncd.formats.markdown.texts import as_json, block, entries, entry, fits_block, line
from syncd.formats.reading import slug
from syncd.formats.remainder import remainder
from syncd.formats.source import Source
from syncd.vocabulary import ExecutionPhase

Body = Mapping[str, Any]
Page = Sequence[Sequence[str]]


def file_name(checkpoint: Checkpoint) -> str:
    """S2's name, with the time in UTC. It is as exact as a second: an agent that writes twice in
    one has two checkpoints of this name."""
    agent = slug(checkpoint.metadata.agent_id).replace("-", "_").upper() or "UNNAMED"
    moment = datetime.fromisoformat(checkpoint.metadata.timestamp)
    try:
        moment = moment.astimezone(UTC)
    except OverflowError:  # in the first or the last year there is
        moment = moment.replace(tzinfo=UTC)
    digits = "".join(char for char in moment.isoformat()[:19] if char.isdigit())
    return f"AGENT_{agent}_{digits[:8]}_{digits[8:]}.md"


def write(checkpoint: Checkpoint, *, previous: str = "") -> str:
    """The page. Proof, signer and retention stay with the store: they are about its own bytes."""
    body = checkpoint.body()
    canonical(body)
    del body["compliance"]
    page, rest = _with_unknown(body, previous) or _without_unknown(body, previous)
    return _text([*page, _fenced(RECORD, RECORD_FENCE, rest)], _footer(body))


def _with_unknown(body: Body, previous: str) -> tuple[Page, Body] | None:
    """The page with all that was kept, unless some of it would be read as something else."""
    shown = _unknown(body.get(UNKNOWN))
    page = _page(body, previous, shown)
    try:
        rest = _rest(body, page)
    except InvalidInputError:
        return None
    unread = rest.get(UNKNOWN)
    return None if isinstance(unread, Mapping) and shown.keys() & unread.keys() else (page, rest)


def _without_unknown(body: Body, previous: str) -> tuple[Page, Body]:
    page = _page(body, previous, {})
    return page, _rest(body, page)


def _rest(body: Body, page: Page) -> Body:
    """What reading the page does not give."""
    empty = _fenced(RECORD, RECORD_FENCE, {})
    draft = understood(Source("", _text([*page, empty], _footer(body))))
    return remainder(body, Checkpoint.from_dict(draft.document).body())


def _text(page: Page, footer: str) -> str:
    parts = ["\n".join(lines) for lines in (*page, [footer])]
    return "\n\n---\n\n".join(parts) + "\n"


def _page(body: Body, previous: str, unknown: Body) -> Page:
    """The sections, the one with the headers first."""
    top = [f"# Agent Checkpoint: {line(body['metadata']['agent_id'])}", ""]
    headers = [*_headers(body, previous), *unknown.get("headers", ())]
    top += [f"**{name}:** {line(text)}" for name, text in headers]
    if unknown.get("preamble"):
        top += ["", block(unknown["preamble"])]
    more = unknown.get("sections", ())
    found = [*_sections(body), *([f"## {line(title)}", "", block(text)] for title, text in more)]
    return [top, *found]


def _headers(body: Body, previous: str) -> Iterator[tuple[str, str]]:
    metadata, state = body["metadata"], body["execution_state"]
    percent = body["metrics"].get("context_used_percent")
    shown = {
        "Mission": metadata.get("mission"),
        "Status": layout.STATUS_WORDS[state["status"]],
        "Checkpoint": _series(metadata.get("series")),
        "Timestamp": metadata["timestamp"],
        "Context Used": None if percent is None else f"{percent}%",
        "Previous": previous or _said_before(body),
        **{name: body[part].get(field) for name, (part, field) in layout.MORE_HEADERS.items()},
    }
    if shown["Phase"] == ExecutionPhase.PLANNING:  # what a page means that says nothing of it
        del shown["Phase"]
    return ((name, text) for name, text in shown.items() if text)


def said_before(checkpoint: Checkpoint) -> str:
    """Which page is the one before it, in the words of the page that it was read from."""
    return _said_before(checkpoint.body())


def _said_before(body: Body) -> str:
    kept = body.get(UNKNOWN)
    text = kept.get(layout.PREVIOUS) if isinstance(kept, Mapping) else ""
    return text if isinstance(text, str) else ""


def _series(series: Body | None) -> str:
    """`N of M`, and a note where that can be told from them."""
    if not series:
        return ""
    text = (
        f"{series['number']} of {series['total']}" if "total" in series else f"{series['number']}"
    )
    noted = f"{text} {series.get('note')}"
    known = {name: series[name] for name in ("number", "total", "note") if name in series}
    return noted if "\n" not in noted and series_in(noted) == known else text


# --- sections -----------------------------------------------------------------------------------


def _sections(body: Body) -> Iterator[list[str]]:
    state, context, recovery = body["execution_state"], body["context_summary"], body["recovery"]
    yield from _list(body, layout.CHAIN)
    yield from _titled("Progress", list(_progress(state)))
    if context.get("state"):
        yield _fenced("State", "```json", context["state"])
    yield from _titled("Findings", list(_findings(context.get("findings", []))))
    for kind in layout.CONTEXT:
        yield from _list(body, kind)
    if state["blocked_items"]:
        yield ["## Blockers", "", *table.written(state["blocked_items"])]
    yield from _list(body, layout.NEXT_STEPS)
    if recovery.get("escalation"):
        yield ["## Escalation", "", *_escalation(recovery["escalation"])]
    if recovery.get("resume_instructions"):
        yield ["## Resume Instructions", "", block(recovery["resume_instructions"])]


def _titled(title: str, lines: list[str]) -> Iterator[list[str]]:
    if lines:
        yield [f"## {title}", *lines]


def _list(body: Body, kind: layout.ListSection) -> Iterator[list[str]]:
    part, name = kind.field
    lines: list[str] = []
    for number, item in enumerate(body[part].get(name, ()), 1):
        text, details = _parts(item, kind.key)
        lines += entry(f"{number}. " if kind.numbered else "- ", "", text, details)
    yield from _titled(kind.title, ["", *lines] if lines else [])


def _parts(item: str | Body, key: str) -> tuple[str, dict[str, Any] | None]:
    """The text of an item, and its details if it is an object."""
    if isinstance(item, str):
        return item, None
    return item[key], {name: value for name, value in item.items() if name != key}


def _progress(state: Body) -> Iterator[str]:
    current = state.get("current_step")
    groups = {
        DONE: (state["completed_items"], "[x] "),
        DOING: ([_current(current)] if current else [], "[ ] "),
        TO_DO: (state["pending_items"], "[ ] "),
    }
    for title, (items, box) in groups.items():
        yield from ["", f"### {title}"] if items else []
        for item in items:
            text, details = _parts(item, layout.PROGRESS[title])
            yield from entry("- ", box, text, details)


def _current(step: Body) -> str | Body:
    """Of the current step there is only one form: it needs no details to be an object."""
    return step if len(step) > 1 else str(step["description"])


def _findings(findings: Sequence[str | Body]) -> Iterator[str]:
    """By category, as they come; those without one go first, or below an empty title."""
    for number, (category, group) in enumerate(groupby(findings, _category)):
        yield ""
        if category or number:
            yield f"### {line(category)}"
        yield from _group([_finding(finding) for finding in group])


def _category(finding: str | Body) -> str:
    return "" if isinstance(finding, str) else str(finding.get("category", ""))


def _finding(finding: str | Body) -> tuple[str, dict[str, Any] | None]:
    text, details = _parts(finding, "text")
    if details and details.pop("category", "") and not details:
        return text, None
    return text, details


def _group(found: Sequence[tuple[str, dict[str, Any] | None]]) -> Iterator[str]:
    """A finding that stands alone and is no list stands there as it is; others are items."""
    text, details = found[0]
    items = entries(text.split("\n"))
    alone = len(found) == 1 and details is None and not all(each.indent for each in items)
    if alone and fits_block(text, level=3):
        yield text
    else:
        for text, details in found:
            yield from entry("- ", "", text, details)


def _escalation(escalation: Body) -> list[str]:
    shown = {title: escalation[name] for name, title in layout.ESCALATION_HEADERS.items()}
    return [
        f"**{title}:** {line(text)}" if text else f"**{title}:**" for title, text in shown.items()
    ]


def _fenced(title: str, opening: str, value: Any) -> list[str]:
    return [f"## {title}", "", opening, as_json(value, indent=2), "```"]


def _footer(body: Body) -> str:
    metadata = body["metadata"]
    return f"{FOOTER}{line(metadata['agent_id'])} at {line(metadata['timestamp'])}*"


# --- what nobody here knows ---------------------------------------------------------------------


def _unknown(value: Any) -> dict[str, Any]:
    """What can be shown of it: headers, sections and a text, if they are what the reader keeps."""
    kept = value if isinstance(value, Mapping) else {}
    headers, sections = _pairs(kept.get("headers"), "name"), _pairs(kept.get("sections"), "title")
    text = kept.get("preamble")
    preamble = text if isinstance(text, str) else ""
    shown = {"headers": headers, "sections": sections, "preamble": preamble}
    return {name: items for name, items in shown.items() if items}


def _pairs(items: Any, name: str) -> list[tuple[str, str]]:
    wanted = [item for item in items if _is_pair(item, name)] if isinstance(items, list) else []
    return [(item[name], item["text"]) for item in wanted]


def _is_pair(item: Any, name: str) -> bool:
    texts = (item.get(name), item.get("text")) if isinstance(item, Mapping) else (None,)
    return all(isinstance(text, str) for text in texts)
