"""Markdown checkpoints: `AGENT_{NAME}_{YYYYMMDD_HHMMSS}.md`, as agents keep in a scratchpad."""

from __future__ import annotations

from syncd.formats.markdown.reader import is_name, read
from syncd.formats.markdown.writer import file_name, said_before, write

__all__ = ["file_name", "is_name", "read", "said_before", "write"]
