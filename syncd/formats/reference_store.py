"""The reference implementation's store: `{task}/{checkpoint_id}.json` and `{task}/latest.json`.

Its reader takes the fields it knows from each section and ignores everything else at the top, but
stumbles over an unknown field in `tests_status`; its hash covers the fields it knows. So the file
has exactly those in its sections, with texts where syncd may have structured items, and one more
key at the top, `syncd`, with what they do not say and a hash over all of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats.reading import Reading, slug
from syncd.formats.remainder import completed, remainder
from syncd.formats.source import Source

LATEST = "latest.json"
_OURS = "syncd"
_NO_NAME = re.compile(r"[/\\:\x00-\x1f]")
# The fields that the reference implementation knows, with what it takes for those that are not
# there. It makes up an id and a time, which no hash can cover.
_SECTIONS: dict[str, dict[str, Any]] = {
    "metadata": {
        "checkpoint_id": None,
        "task_id": "",
        "agent_id": "",
        "agent_type": "implementation",
        "iteration": 1,
        "timestamp": None,
    },
    "execution_state": {
        "phase": "planning",
        "completed_items": [],
        "pending_items": [],
        "blocked_items": [],
        "current_focus": "",
    },
    "context_summary": {
        "key_decisions": [],
        "assumptions": [],
        "constraints": [],
        "external_dependencies": [],
    },
    "metrics": {
        "tokens_consumed": 0,
        "tools_invoked": 0,
        "files_modified": [],
        "tests_status": {"passed": 0, "failed": 0, "skipped": 0, "coverage_percent": 0.0},
        "duration_seconds": 0.0,
        "error_count": 0,
    },
    "recovery": {
        "last_successful_state": "",
        "rollback_instructions": "",
        "continuation_prompt": "",
    },
    "compliance": {"event_log_ref": "", "hash": "", "signature": "", "retention_policy": "default"},
}


def is_name(name: str) -> bool:
    return name.endswith(".json") and name != LATEST


def file_name(checkpoint: Checkpoint) -> str:
    """The path in the store. Ids are any text elsewhere; here they have to be names of files."""
    metadata = checkpoint.metadata
    for name in (metadata.task_id, metadata.checkpoint_id):
        if name in {"", ".", "..", "latest"} or _NO_NAME.search(name):
            raise InvalidInputError(f"the id {name!r} cannot be the name of a file")
    return f"{metadata.task_id}/{metadata.checkpoint_id}.json"


# --- reading ------------------------------------------------------------------------------------


def read(data: bytes, source: str) -> Reading:
    """What a file says, if its hash proves it. Raises nothing but FormatError."""
    file = Source.of(data, source)
    document = file.json(file.text)
    covered = _covered(file, document)
    _verify(file, covered)
    known, notes = _in_our_words(file, covered)
    ours = document.get(_OURS)
    checkpoint = _whole(file, ours, known) if ours is not None else file.checkpoint(known, file.at)
    owner = slug(checkpoint.metadata.task_id) or slug(PurePath(source).parent.name)
    return Reading(checkpoint, owner, notes=(*notes, *_left_out(document)))


def _covered(file: Source, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the hash is about, with the defaults for those that are not there."""
    covered = {
        name: _fields(file, document, name, defaults) for name, defaults in _SECTIONS.items()
    }
    tests = _SECTIONS["metrics"]["tests_status"]
    covered["metrics"]["tests_status"] = _fields(file, covered["metrics"], "tests_status", tests)
    return {"version": document.get("version", "1.0"), **covered}


def _fields(
    file: Source, document: Mapping[str, Any], section: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    given = document.get(section, {})
    if not isinstance(given, dict):
        raise file.fault(file.at(section), f"expected an object for `{section}`")
    fields = {name: given.get(name, default) for name, default in defaults.items()}
    for name, value in fields.items():
        if value is None:
            raise file.fault(file.at(section), f"expected `{section}.{name}`")
    return fields


def _verify(file: Source, covered: Mapping[str, Any]) -> None:
    stated = covered["compliance"]["hash"]
    if not stated:
        raise file.fault(file.at("compliance"), "expected a hash: without one nothing is verified")
    if stated != _hash(covered):
        raise file.fault(file.at("hash"), "expected the hash of the content, which was altered")


def _hash(covered: Mapping[str, Any]) -> str:
    """Its rule: SHA-256 of the sorted JSON, in Python's own style, with the hash itself empty."""
    document = {**covered, "compliance": {**covered["compliance"], "hash": ""}}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _in_our_words(
    file: Source, covered: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Without the proof, which is one by another rule than ours, and with a zone."""
    time, notes = file.time(str(covered["metadata"]["timestamp"]), file.at("timestamp"))
    compliance = {**covered["compliance"], "hash": "", "signature": ""}
    metadata = {**covered["metadata"], "timestamp": time}
    return {**covered, "metadata": metadata, "compliance": compliance}, notes


def _whole(file: Source, ours: Any, known: Mapping[str, Any]) -> Checkpoint:
    """With what syncd added, if its own hash proves that both belong together."""
    line = file.at(_OURS)
    if not isinstance(ours, dict) or not isinstance(ours.get("fields"), dict):
        raise file.fault(line, f"expected an object with `fields` and `hash` for `{_OURS}`")
    checkpoint = file.checkpoint(completed(ours["fields"], known), lambda _: line)
    if checkpoint.compute_hash() != ours.get("hash"):
        raise file.fault(line, "expected the hash of all fields, which were altered")
    return checkpoint


def _left_out(document: Mapping[str, Any]) -> list[str]:
    """What no hash covers, nor the reference implementation reads."""
    names = [name for name in document if name not in {*_SECTIONS, "version", _OURS}]
    for section, fields in _SECTIONS.items():
        names += [f"{section}.{name}" for name in document.get(section, {}) if name not in fields]
    return [f"{name} was left out: the hash does not cover it" for name in names]


# --- writing ------------------------------------------------------------------------------------


def write(checkpoint: Checkpoint) -> bytes:
    document = _shown(checkpoint)
    document["compliance"]["hash"] = _hash(document)
    rest = remainder(checkpoint.body(), Checkpoint.from_dict(document).body())
    if rest:
        document[_OURS] = {"fields": rest, "hash": checkpoint.compute_hash()}
    return json.dumps(document, indent=2).encode()


def latest(checkpoint: Checkpoint) -> bytes:
    """The pointer to a task's newest checkpoint."""
    metadata = checkpoint.metadata
    newest = {"checkpoint_id": metadata.checkpoint_id, "timestamp": metadata.timestamp}
    return json.dumps(newest).encode()


def _shown(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields that the reference implementation knows, items as texts."""
    body, state = checkpoint.body(), checkpoint.execution_state
    document: dict[str, Any] = {
        section: {name: body[section].get(name, "") for name in fields}
        for section, fields in _SECTIONS.items()
    }
    tests = document["metrics"]["tests_status"]
    known = _SECTIONS["metrics"]["tests_status"]
    document["metrics"]["tests_status"] = {name: tests[name] for name in known}
    for name in ("completed_items", "pending_items", "blocked_items"):
        document["execution_state"][name] = [str(item) for item in getattr(state, name)]
    decisions = checkpoint.context_summary.key_decisions
    document["context_summary"]["key_decisions"] = [str(decision) for decision in decisions]
    return {"version": body["version"], **document}
