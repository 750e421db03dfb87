"""Changes to a checkpoint as JSON merge patches (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from syncd.checkpoint import Checkpoint


def merged(document: Any, patch: Any) -> Any:
    """Null removes, objects merge, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def patched(checkpoint: Checkpoint, patch: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint with a merge patch applied, whose names may be aliases too."""
    patch = Checkpoint.named(patch)
    document = checkpoint.body()
    changes = patch.get("execution_state")
    for name in changes if isinstance(changes, Mapping) else ():
        # A new value says nothing about the word that the old one came in.
        document["execution_state"].get("raw", {}).pop(name, None)
    return Checkpoint.from_dict(merged(document, patch))


def plain(value: Any) -> Any:
    """Models inside a patch become documents, so that unset fields leave the base alone."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if dump else value
