"""A Markdown checkpoint, as a person or an agent wrote it.

What is visible counts. What is not understood is kept: a paragraph in a list is an item of it, an
unknown header or section goes to the field `markdown` as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from syncd.formats.markdown import headers, layout, sections
from syncd.formats.markdown.draft import Draft
from syncd.formats.markdown.layout import FOOTER, RECORD, RECORD_FENCE, TIMESTAMP, UNKNOWN
from syncd.formats.markdown.page import Page, Section, page
from syncd.formats.markdown.texts import read_block, read_line
from syncd.formats.reading import FormatError, Reading, slug
from syncd.formats.remainder import completed
from syncd.formats.source import Source

_NAME = re.compile(r"AGENT_([A-Z0-9]+(?:_[A-Z0-9]+)*)_([0-9]{8}_[0-9]{6})\.md")


def is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def read(data: bytes, source: str) -> Reading:
    """What a file says. Raises nothing but FormatError."""
    draft = understood(Source.of(data, source))
    checkpoint = draft.source.checkpoint(
        completed(draft.document, draft.record or {}), draft.line_of
    )
    owner = slug(checkpoint.metadata.mission) or slug(checkpoint.metadata.agent_id)
    return Reading(checkpoint, owner, previous=draft.previous, notes=tuple(draft.notes))


def understood(source: Source) -> Draft:
    found = page(source)
    record, line, others = _record(source, found.sections)
    draft = Draft(source, record, line)
    draft.notes += found.notes
    for header in found.headers:
        headers.take(draft, header)
    for section in others:
        sections.take(draft, section)
    if preamble := read_block(found.preamble):
        draft.document.setdefault(UNKNOWN, {})["preamble"] = preamble
    _who_and_when(draft, found)
    return draft


def _record(
    source: Source, found: Sequence[Section]
) -> tuple[dict[str, Any] | None, int, list[Section]]:
    """The block that only syncd writes, its line, and the sections without it."""
    for number, section in enumerate(found):
        if section.title == RECORD and section.fenced(RECORD_FENCE):
            record, around = section.json(source, RECORD_FENCE)
            left = section._replace(lines=around)
            return record, section.line, [*found[:number], left, *found[number + 1 :]]
    return None, 1, list(found)


def _who_and_when(draft: Draft, found: Page) -> None:
    """The title and the header say it; where they do not, the footer and the file's name do."""
    name = _NAME.fullmatch(PurePath(draft.source.name).name)
    agent = read_line(found.title)
    if not agent and name and draft.record is None:
        agent = name[1]
    draft.put(layout.AGENT, agent, 1)
    if found.footer:
        _footer(draft, found.footer)
    if not draft.has(TIMESTAMP) and name:
        _time_of_name(draft, name[2])
    if not draft.has(TIMESTAMP):
        draft.notes.append("no time is stated: read as written now")


def _footer(draft: Draft, footer: str) -> None:
    """It repeats the agent and the time. On a page that is not ours it is kept if it does not."""
    who, _, when = footer.removeprefix(FOOTER).removesuffix("*").rpartition(" at ")
    time = ""
    with suppress(FormatError):
        time, notes = draft.source.time(read_line(when), 1)
        if draft.put(TIMESTAMP, time, 1):
            draft.notes += notes
    metadata = draft.document["metadata"]
    repeats = (read_line(who), time) == (metadata["agent_id"], metadata.get("timestamp"))
    if draft.record is None and not repeats:
        draft.document.setdefault(UNKNOWN, {})["footer"] = footer


def _time_of_name(draft: Draft, digits: str) -> None:
    with suppress(ValueError):
        moment = datetime.strptime(digits, "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
        draft.put(TIMESTAMP, moment.isoformat(), 1)
        draft.notes.append(f"the time {digits} is the file name's: read as UTC")
