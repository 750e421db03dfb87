"""Columns of many entries as binary arrays, encoded before they are sent.

psycopg's own encoding of lists costs more than reading the entries from disk, and would happen
while the server waits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format

_BYTEA, _BIGINT, _TEXT = 17, 20, 25
_length = struct.Struct("!i").pack
_bigint = struct.Struct("!iq").pack
_head = struct.Struct("!iiIii").pack
_NULL = _length(-1)


class Texts(bytes):
    """A text[] in PostgreSQL's binary form."""


class Blobs(bytes):
    """A bytea[]."""


class Bigints(bytes):
    """A bigint[]."""


def texts(values: Sequence[str | None]) -> Texts:
    return Texts(_array(_TEXT, [None if value is None else value.encode() for value in values]))


def blobs(values: Sequence[bytes | None]) -> Blobs:
    return Blobs(_array(_BYTEA, values))


def bigints(values: Sequence[int]) -> Bigints:
    items = b"".join([_bigint(8, value) for value in values])
    return Bigints(_head(1, 0, _BIGINT, len(values), 1) + items)


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [_head(1, None in values, kind, len(values), 1)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_length(len(value)), value)
    return b"".join(parts)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _TextsDumper(_ArrayDumper):
    oid = 1009


class _BlobsDumper(_ArrayDumper):
    oid = 1001


class _BigintsDumper(_ArrayDumper):
    oid = 1016


def register(adapters: AdaptersMap) -> None:
    for kind, dumper in ((Texts, _TextsDumper), (Blobs, _BlobsDumper), (Bigints, _BigintsDumper)):
        adapters.register_dumper(kind, dumper)
