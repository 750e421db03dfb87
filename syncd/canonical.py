"""Canonical JSON (RFC 8785): the one byte sequence that is hashed, chained and stored.

orjson's sorted output is the same bytes for almost every document and thirty times faster,
so it goes first; floats and exotic keys are looked at, and the complete implementation follows
where the two would differ.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from syncd.errors import InvalidInputError

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    # What is no JSON is refused, not turned into some text.
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)
# Keys sort by UTF-16 units here but by UTF-8 bytes in orjson; the two orders differ only
# between U+E000..U+FFFF and what lies beyond the basic plane.
_HIGH_BASIC = re.compile(rb"[\xee\xef]")
_ASTRAL = re.compile(rb"[\xf0-\xf4]")
# What orjson can write.
MAX_DEPTH = 254


class _NotPlainError(Exception):
    """A number that the two implementations would print differently."""


class _LargeIntegerError(Exception):
    """An integer that a double may not hold."""


def canonical(document: Any) -> bytes:
    """The canonical bytes of a JSON value; refuses what JSON cannot hold exactly."""
    try:
        encoded = _orjson(document)
    except _LargeIntegerError:
        return _complete(_doubles(document))
    if _has_to_change(document):
        try:
            encoded = _orjson(_plain(document))
        except _NotPlainError:
            return _complete(document)
    if not encoded.isascii() and _HIGH_BASIC.search(encoded) and _ASTRAL.search(encoded):
        return _complete(document)
    return encoded


def _has_to_change(document: Any) -> bool:
    """Whether some number would be printed otherwise, NaN included, which orjson makes null.

    One flat loop: this looks at every value of every checkpoint that is written.
    """
    pending = [(document,)]
    while pending:
        values = pending.pop()
        for value in values:
            kind = type(value)
            if kind is str or kind is int:
                continue
            if kind is dict:
                pending.append(value.values())
            elif kind is list:
                if value:
                    pending.append(value)
            elif kind is float:
                if value.is_integer() or not 1e-3 <= abs(value) < 1e15:
                    return True
            elif kind is not bool and value is not None:
                return True
    return False


def _orjson(document: Any) -> bytes:
    try:
        return orjson.dumps(document, option=_OPTIONS)
    except orjson.JSONEncodeError as error:  # a TypeError: unknown types and keys too
        text = str(error)
        if "53-bit" in text or "64-bit" in text:
            raise _LargeIntegerError from None
        raise InvalidInputError(f"cannot be written as JSON: {_reason(text)}") from None


def _reason(text: str) -> str:
    if "surrogates" in text:
        return "a text contains half of a surrogate pair (not valid Unicode)"
    if "ecursion" in text:
        return f"nested deeper than {MAX_DEPTH} levels"
    return text


def _doubles(value: Any) -> Any:
    """Integers beyond 2^53 as the doubles they are in JSON; refused if digits would be lost."""
    if isinstance(value, dict):
        return {key: _doubles(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_doubles(item) for item in value]
    if not isinstance(value, int) or abs(value) < 2**53:
        return value
    if abs(value) < 2**1000:
        number = float(value)
        # Either it is a double exactly, or it is what a whole double reads as in JSON.
        if int(number) == value or _complete(number) == str(value).encode():
            return number
    raise InvalidInputError(
        f"cannot be written as JSON: the integer {str(value)[:24]} beyond ±(2^53 − 1) "
        "would lose digits; give it as a string"
    )


def _plain(value: Any) -> Any:
    """The same value with whole floats as integers; raises where orjson would differ."""
    if isinstance(value, float):
        return _plain_float(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _plain_float(value: float) -> int | float:
    if not math.isfinite(value):
        raise InvalidInputError(f"{value} is not a JSON number")
    if value.is_integer() and abs(value) < 2**53:
        return int(value)
    if 1e-3 <= abs(value) < 1e15:
        return value
    raise _NotPlainError


def _complete(document: Any) -> bytes:
    import rfc8785

    try:
        return rfc8785.dumps(document)
    except rfc8785.CanonicalizationError as error:
        raise InvalidInputError(f"cannot be written as JSON: {error}") from None


def parse(text: bytes | str, source: str = "input") -> Any:
    """Parse JSON strictly: duplicate keys, NaN and endless nesting are errors, with a place."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        _check_depth(document)
        return document
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{source}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{source}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise InvalidInputError(f"{source}: nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidInputError(f"{source}: {error}") from None


def _check_depth(document: Any) -> None:
    """Raises RecursionError, as the parser itself does for what is deeper still."""
    level, depth = [document], 0
    while level:
        containers = [v for v in level if isinstance(v, dict | list)]
        depth += bool(containers)
        if depth > MAX_DEPTH:
            raise RecursionError
        level = [i for v in containers for i in (v.values() if isinstance(v, dict) else v)]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} stands twice in one object")
            seen.add(key)
    return result


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
