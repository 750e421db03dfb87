"""What a format has no field for, kept beside its own fields, so that nothing is lost on the way
through a file. The format's own fields are what counts: where somebody changed one of them, what
was kept for it is out of date and left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import zip_longest
from typing import Any, NamedTuple

from pydantic import ValidationError

from syncd.checkpoint import READ_FIELDS, Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats.jsontext import Path, Source
from syncd.formats.times import has_zone

KEY = "syncd"
# Under that key: the time that is shown for that of the checkpoint, which has changed since.
AS_OF = "as_of"
# Not for a file to say: what the store finds out itself, and the form of its own documents.
RESERVED = frozenset({*READ_FIELDS, "version", KEY})
_MISSING = object()
Document = dict[str, Any]


class Layout(NamedTuple):
    """How a format shows a checkpoint, as of another time than its own if one is given. `behind`
    says which fields one of its own stands for, `items` which list an own list shows element by
    element, `beside` which other list it ends with, as texts that are not among those before."""

    shown: Callable[[Checkpoint, str], Document]
    behind: Mapping[Path, Sequence[Path]]
    items: Mapping[str, Path]
    beside: Mapping[str, Path]


def beyond(whole: Checkpoint, visible: Checkpoint) -> Document:
    """What a checkpoint says that its visible fields do not, by section and field."""
    full, seen = whole.body(), visible.body()
    kept: Document = {}
    for name in dict.fromkeys((*full, *seen)):
        value = full.get(name)
        if isinstance(value, dict) and isinstance(seen.get(name), dict):
            if rest := _differing(value, seen[name], getattr(whole, name)):
                kept[name] = rest
        elif full.get(name, _MISSING) != seen.get(name, _MISSING):
            kept[name] = value
    return kept


def dated(as_of: str) -> Document:
    return {AS_OF: as_of} if as_of else {}


def _differing(full: Document, seen: Document, section: Any) -> Document:
    """A field that only the visible reading has is kept as the blank that it is."""
    return {
        name: full[name] if name in full else getattr(section, name, None)
        for name in dict.fromkeys((*full, *seen))
        if full.get(name, _MISSING) != seen.get(name, _MISSING)
    }


def extras(checkpoint: Checkpoint) -> Document:
    """What nobody here knows, which stays a field of the file where the name is free."""
    body, names = checkpoint.body(), checkpoint.model_extra or {}
    return {
        name: body[name]
        for name in names
        if name in body and name not in RESERVED and name in Checkpoint.named({name: None})
    }


def texts(items: Iterable[object]) -> list[str]:
    return [str(item) for item in items]


def ahead(first: Iterable[object], second: Iterable[object]) -> list[str]:
    """Two lists of what is to be done as one; what stands in both is said once."""
    listed = texts(first)
    return [*listed, *(text for text in texts(second) if text not in listed)]


def rejoined(source: Source, path: Path, seen: Document, kept: Any, layout: Layout) -> Checkpoint:
    """The checkpoint of the visible fields, with what was kept for those that nobody changed."""
    base = validated(source, path, seen)
    if kept is None:
        return base
    plain = base.body()
    document = _overlaid(deepcopy(plain), kept, source, path)
    as_of = document.pop(AS_OF, "") if AS_OF in kept else ""
    whole = _whole(source, path, document)
    shown = layout.shown(whole, as_of if isinstance(as_of, str) and has_zone(as_of) else "")
    if shown == seen:
        return whole
    for field, paths in layout.behind.items():
        if _at(shown, field) != _at(seen, field):
            for behind in paths:
                _put(document, behind, _at(plain, behind))
    for name, behind in layout.items.items():
        listed = (_list(seen, (name,)), shown[name], _list(document, behind), _list(plain, behind))
        _put(document, behind, _picked(*listed))
    for name, behind in layout.beside.items():
        left = [i for i in _list(document, behind) if _text(i) in _list(seen, (name,))]
        _put(document, behind, left)
    return _whole(source, path, document)


def validated(source: Source, path: Path, seen: Document) -> Checkpoint:
    """Its checkpoint, or the first fault with the place of the field that has it."""
    source.check_fields(path, seen)
    try:
        return Checkpoint.model_validate(seen)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = _followed(seen, first["loc"])
        either = "str" in first["loc"][1:]
        message = "expected a text or an object" if either else first["msg"]
        raise source.fault((*path, *where), message) from None


def _followed(document: Any, steps: Sequence[str | int]) -> Path:
    """The steps that lead somewhere; others are names of sections or of a union's branches."""
    path: list[str | int] = []
    for step in steps:
        if _has(document, step):
            document = document[step]
            path.append(step)
    return tuple(path)


def _overlaid(document: Document, kept: Any, source: Source, path: Path) -> Document:
    if not isinstance(kept, dict):
        raise source.fault((*path, KEY), "expected what syncd wrote there, or nothing")
    for name, value in kept.items():
        if isinstance(value, dict) and isinstance(document.get(name), dict):
            document[name].update(value)
        elif name not in READ_FIELDS:
            document[name] = value
    return document


def _whole(source: Source, path: Path, document: Document) -> Checkpoint:
    source.check((*path, KEY), document)
    try:
        return Checkpoint.from_dict(document)
    except InvalidInputError as error:
        raise source.fault((*path, KEY), error.message) from None


def _picked(seen: list[Any], shown: list[Any], items: list[Any], plain: list[Any]) -> list[Any]:
    """Each element as it was kept, if it stands as it was written; else as it stands. What is
    shown beyond the items is said by another field and is not taken twice."""
    if seen == shown:
        return items
    if len(seen) != len(plain):  # it came under another name
        return plain
    left = list(zip_longest(shown, items[: len(shown)], fillvalue=_MISSING))
    found = []
    for element, as_it_stands in zip(seen, plain, strict=True):
        place = next((n for n, (written, _) in enumerate(left) if written == element), None)
        found.append(as_it_stands if place is None else left.pop(place)[1])
    return [item for item in found if item is not _MISSING]


def _text(item: Any) -> Any:
    return item.get("step") if isinstance(item, dict) else item


def _list(document: Document, path: Path) -> list[Any]:
    value = _at(document, path)
    return value if isinstance(value, list) else []


def _at(document: Any, path: Path) -> Any:
    for step in path:
        if not _has(document, step):
            return _MISSING
        document = document[step]
    return document


def _has(document: Any, step: str | int) -> bool:
    if isinstance(document, list):
        return isinstance(step, int) and step < len(document)
    return isinstance(document, dict) and step in document


def _put(document: Document, path: Path, value: Any) -> None:
    """Set, or take out where there is nothing."""
    *parents, last = path
    for step in parents:
        document = document.setdefault(str(step), {})
    if value is _MISSING:
        document.pop(str(last), None)
    else:
        document[str(last)] = value
