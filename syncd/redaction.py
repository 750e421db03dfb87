"""Takes secrets out of what is about to be written, and tells where they were, never what.

A secret becomes `[redacted: RULE]`. What was taken out before is found again by this mark, so that
each version of a document tells of all that is missing in it.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from syncd.canonical import MAX_DEPTH
from syncd.errors import ConfigError, InvalidInputError
from syncd.rules import ENTROPY, NAMING, RULES, WORD, Rule, Span, Spans, named_secret, secret_span

log = logging.getLogger("syncd")

_OPENING = "[redacted: "
_MARK = re.compile(r"\[redacted: ([a-z0-9-]{1,40})\]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:\d\d)")
_TOLD = 20


class Found(NamedTuple):
    path: str
    rule: str


class Cleaned(NamedTuple):
    """A document without its secrets: what was taken out now, and all that is missing in it."""

    document: Any
    taken: list[Found]
    marked: list[Found]


class Shape(NamedTuple):
    """What is known of a kind of document. At the paths `clear` no secret is allowed, as what
    stands there is stored outside the body too; what stands at `fixed`, and the names of its
    fields, are ours."""

    clear: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


class Redactor:
    """The rules in force. Keeps nothing of what it reads."""

    def __init__(
        self,
        *,
        enabled: bool = True,
        entropy: bool = False,
        patterns: Sequence[str] = (),
        allow: Sequence[str] = (),
    ) -> None:
        self.enabled = enabled
        self.entropy = entropy
        self.patterns = [_Pattern("patterns", n, p) for n, p in enumerate(patterns, start=1)]
        self.allow = [_Pattern("allow", n, p) for n, p in enumerate(allow, start=1)]

    def cleaned(self, document: Any, shape: Shape) -> Cleaned:
        """A document without secrets; the one that was given stays as it is. Where there is
        nothing to take out or to tell, it is the same object."""
        if self.enabled:
            suspicion = _suspicion(document, shape)
            if suspicion or self.patterns or self.entropy:
                walk = _Walk(self, suspicion, shape)
                return Cleaned(walk.value(document, ""), walk.taken, walk.marked)
        return Cleaned(document, [], [])

    def text(self, text: str, path: str) -> str:
        """One text without secrets, after a warning."""
        cleaned = self._one(text, path)
        warn([found._replace(path=path) for found in cleaned.taken])
        return str(cleaned.document[path])

    def quoted(self, text: str) -> str:
        """A message without the secrets that somebody's input has brought into it."""
        return str(self._one(text, "message").document["message"])

    def refuse(self, path: str, text: str) -> None:
        """Raises where a text that stays clear holds a secret."""
        self._one(text, path, clear=frozenset((path,)))

    def _one(self, text: str, path: str, clear: frozenset[str] = frozenset()) -> Cleaned:
        return self.cleaned({path: text}, Shape(clear, names=frozenset((path,))))


def of(settings: Mapping[str, Any]) -> Redactor:
    """As the settings say; made once for the same ones."""
    return _made(
        settings["redaction.enabled"],
        settings["redaction.entropy"],
        tuple(settings["redaction.patterns"]),
        tuple(settings["redaction.allow"]),
    )


@lru_cache(maxsize=8)
def _made(
    enabled: bool, entropy: bool, patterns: tuple[str, ...], allow: tuple[str, ...]
) -> Redactor:
    return Redactor(enabled=enabled, entropy=entropy, patterns=patterns, allow=allow)


def warn(taken: Sequence[Found]) -> None:
    if not taken:
        return
    told = ", ".join(f"{found.path} ({found.rule})" for found in taken[:_TOLD])
    more = f" and {len(taken) - _TOLD} more" if len(taken) > _TOLD else ""
    log.warning("taken out before writing, as secrets: %s%s", told, more)


# --- the first look -----------------------------------------------------------------------------
# Nearly all that is written is not looked at any further, so this is what has to be fast.

_CONTAINERS = (dict, list, tuple)
_APART = "\n" * 4  # more than any rule reaches over
_LETTERS = rb"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~\-"
_SEPARATED = bytes(byte if byte in _LETTERS else 32 for byte in range(256))
_ANYWHERE = tuple(rule for rule in RULES if not rule.one_word)
_IN_WORDS = tuple(rule for rule in RULES if rule.one_word)
_NEEDLES_ANYWHERE = tuple({needle for rule in _ANYWHERE for needle in rule.needles})
_NEEDLES_IN_WORDS = tuple({needle for rule in _IN_WORDS for needle in rule.needles})
_NEEDLES_IN_NAMES = tuple(n for rule in RULES if rule.name in NAMING for n in rule.needles)


class _Suspicion(NamedTuple):
    """The rules that find something in a document as a whole, whether a name in it is like that of
    a secret, and whether something was taken out before."""

    rules: list[Rule]
    naming: bool
    marked: bool


def _suspicion(document: Any, shape: Shape) -> _Suspicion | None:
    text, names = _texts(document, shape)
    encoded = text.encode(errors="replace")
    lowered = encoded.lower().decode("latin-1")
    found = {needle for needle in _NEEDLES_ANYWHERE if needle in lowered}
    rules = _finding(_ANYWHERE, found, text) if found else []
    if long := _long_words(encoded):
        lowered = long.lower()
        found = {needle for needle in _NEEDLES_IN_WORDS if needle in lowered}
        rules += _finding(_IN_WORDS, found, long) if found else []
    names = names.lower()
    naming = bool(names) and any(needle in names for needle in _NEEDLES_IN_NAMES)
    suspicion = _Suspicion(rules, naming, _OPENING in text)
    return suspicion if any(suspicion) else None


def _texts(document: Any, shape: Shape) -> tuple[str, str]:
    """All texts of a document in one, and all names that its kind does not have anyway."""
    texts: list[str] = []
    names: list[str] = []
    pending = [(document, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:  # it may contain itself
            raise InvalidInputError(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            if not value.keys() <= shape.names:
                names += map(str, value.keys() - shape.names)
            value = value.values()
        for item in value:
            if isinstance(item, str):
                texts.append(item)
            elif item and isinstance(item, _CONTAINERS):
                pending.append((item, depth + 1))
    return _APART.join(texts + names), _APART.join(names)


def _long_words(encoded: bytes) -> str:
    """Tokens are long. So are UUIDs, which are everywhere."""
    words = {word for word in encoded.translate(_SEPARATED).split() if len(word) >= WORD}
    long = [
        word
        for word in words
        if not (len(word) == 36 and word[8] == word[13] == word[18] == word[23] == ord("-"))
    ]
    return b" ".join(long).decode()


def _finding(rules: Sequence[Rule], needles: set[str], text: str) -> list[Rule]:
    possible = (rule for rule in rules if not needles.isdisjoint(rule.needles))
    return [rule for rule in possible if any(rule.find(text))]


# --- the document -------------------------------------------------------------------------------


class _Walk:
    """Through one document, value by value."""

    def __init__(self, redactor: Redactor, suspicion: _Suspicion | None, shape: Shape) -> None:
        self._redactor = redactor
        rules, self._naming, _ = suspicion or _Suspicion([], False, False)
        # In their order: what is surely a token is named so, not by the name that it has.
        self._rules = [rule for rule in RULES if rule in rules]
        self._shape = shape
        self._timer = _Timer()
        self.taken: list[Found] = []
        self.marked: list[Found] = []

    def value(self, value: Any, path: str, name: str = "") -> Any:
        if isinstance(value, str):
            return value if path in self._shape.fixed else self._text(value, path, name)
        if isinstance(value, dict):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            return [self.value(item, f"{path}[{n}]", name) for n, item in enumerate(value)]
        return value

    def _mapping(self, mapping: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Names may hold secrets too; those are told with the path of what they stand in."""
        result: dict[str, Any] = {}
        for key, value in mapping.items():
            name = key
            if isinstance(key, str) and key not in self._shape.names:
                name = self._text(key, path or "document")
                if name != key:
                    name = _unlike(name, mapping.keys() | result.keys())
            result[name] = self.value(value, _joined(path, name), key)
        return result

    def _text(self, text: str, path: str, name: str = "") -> str:
        cleaned, rules = self._without_secrets(text, name)
        if rules and path in self._shape.clear:
            raise InvalidInputError(
                f"{path} holds what looks like a secret ({rules[0]}), and is stored in clear text, "
                "at the replica too",
                "Choose another one; if it is no secret, let a pattern of redaction.allow match "
                "it. Nothing was written.",
            )
        self.taken += [Found(path, rule) for rule in rules]
        if _OPENING in cleaned:
            marks = dict.fromkeys(_MARK.findall(cleaned))
            self.marked += [Found(path, rule) for rule in marks]
        return cleaned

    def _without_secrets(self, text: str, name: str) -> tuple[str, list[str]]:
        """The text, and the rules that found something in it. Times must stay what they are."""
        if _TIME.fullmatch(text):
            return text, []
        if self._naming and name and (known := named_secret(name, text)):
            return (text, []) if self._allowed(text) else (_mark(known), [known])
        found: list[str] = []
        lowered = text.lower()
        for rule in self._rules:
            if any(needle in lowered for needle in rule.needles):
                text = self._taken_out(text, rule.name, rule.find(text), found)
        for pattern in self._redactor.patterns:
            text = self._taken_out(text, pattern.name, pattern.find(text, self._timer), found)
        if self._redactor.entropy:
            text = self._taken_out(text, ENTROPY.name, ENTROPY.find(text), found)
        return text, found

    def _taken_out(self, text: str, rule: str, spans: Spans, found: list[str]) -> str:
        marks = [mark.span() for mark in _MARK.finditer(text)] if _OPENING in text else []
        pieces: list[str] = []
        end = 0
        for start, stop in spans:
            if end <= start < stop and not _touches(marks, start, stop):
                if self._allowed(text[start:stop]):
                    continue
                pieces += (text[end:start], _mark(rule))
                end = stop
        if not pieces:
            return text
        if rule not in found:
            found.append(rule)
        return "".join((*pieces, text[end:]))

    def _allowed(self, secret: str) -> bool:
        return any(pattern.covers(secret, self._timer) for pattern in self._redactor.allow)


def _mark(rule: str) -> str:
    return f"{_OPENING}{rule}]"


def _touches(marks: Sequence[Span], start: int, stop: int) -> bool:
    """Whether a span overlaps with what was taken out already."""
    after = bisect(marks, (start, start))
    before = marks[after - 1][1] > start if after else False
    return before or (after < len(marks) and marks[after][0] < stop)


def _unlike(name: str, others: Collection[str]) -> str:
    number, shown = 1, name
    while shown in others:
        number += 1
        shown = f"{name} {number}"
    return shown


def _joined(path: str, name: str) -> str:
    if not name.isidentifier():
        return f"{path}[{name[:60]!r}]"
    return f"{path}.{name}" if path else name


# --- the team's own patterns --------------------------------------------------------------------

# What they may take for one document, after which the write is refused. (That they see short texts
# only would not help: the worst of them need years for fifty letters.)
PATTERN_SECONDS = 1.0
_TOO_LONG = f"takes longer than {PATTERN_SECONDS:g} s for one document"


class _Timer:
    def __init__(self) -> None:
        self._end = time.monotonic() + PATTERN_SECONDS

    def left(self) -> float:
        return max(self._end - time.monotonic(), 0.001)


class _Pattern:
    """A regular expression from the settings, run by a library that can be stopped."""

    def __init__(self, setting: str, number: int, source: str) -> None:
        import regex

        self.name = f"pattern-{number}"
        self._place = f"redaction.{setting}, number {number}"
        try:
            self._compiled = regex.compile(source)
        except regex.error as error:
            raise self._wrong(f"is not a regular expression: {error}") from None

    def find(self, text: str, timer: _Timer) -> list[Span]:
        try:
            matches = self._compiled.finditer(text, timeout=timer.left())
            return [secret_span(match) for match in matches]
        except TimeoutError:
            raise self._wrong(_TOO_LONG) from None

    def covers(self, text: str, timer: _Timer) -> bool:
        try:
            return self._compiled.fullmatch(text, timeout=timer.left()) is not None
        except TimeoutError:
            raise self._wrong(_TOO_LONG) from None

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._place}, {what}",
            "Correct it, or take it out; `syncd config` shows where it comes from. Nothing was "
            "written.",
        )
