"""Checkpoints inside `builder-state.json`: one of the document that is being worked on, one of each
queued task. The file is its builder's own: all but the checkpoint stays as it is, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from syncd.canonical import canonical
from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.formats import files
from syncd.formats.jsontext import Path as JsonPath
from syncd.formats.jsontext import Source, located
from syncd.formats.keeping import (
    KEY,
    RESERVED,
    Layout,
    ahead,
    beyond,
    dated,
    extras,
    rejoined,
    texts,
)
from syncd.formats.reading import Reading, slug
from syncd.formats.shape import faults, published
from syncd.formats.style import with_member
from syncd.formats.times import assumed_utc
from syncd.items import CurrentStep, Decision, Step, Verification
from syncd.part import Part
from syncd.vocabulary import ExecutionPhase as Phase

SCHEMA = "builder-state.schema.json"
PARTIAL_WORK, RATIONALE, STEPS = 200, 100, 10
ACTIVE = "activePrd"
_QUEUE, _CHECKPOINT, _OWNER = "adhocQueue", "checkpoint", "owner"
# The format has no words for the last two: work is still going on, or all that is left is to tell.
_WRITTEN = {
    Phase.PLANNING.value: "planning",
    Phase.IMPLEMENTING.value: "implementation",
    Phase.TESTING.value: "verification",
    Phase.REVIEWING.value: "documentation",
    Phase.HANDOFF.value: "implementation",
    Phase.COMPLETE.value: "documentation",
}
_READ = {word: phase for phase, word in reversed(_WRITTEN.items())}
_TIMES = ("timestamp", "startedAt", "runAt", "lastUpdatedAt")
_WITH_TIMES = ("completedSteps", "currentStep", "decisions", "verification", "results", "metadata")


class _Place(NamedTuple):
    """Where a checkpoint may stand, and what the work there is called."""

    path: JsonPath
    owner: str


# --- reading ------------------------------------------------------------------------------------


def read(data: bytes, source: str) -> list[Reading]:
    file = _file(data, source)
    found = ((name, place, _at(file, place)) for name, place in _places(file.document).items())
    return [_reading(file, name, place, it) for name, place, it in found if it is not None]


def _file(data: bytes, source: str) -> Source:
    file, schema = Source(data, source), published(SCHEMA)
    for path, expected in faults(file.document, schema, schema):
        raise file.fault(path, expected)
    return file


def _reading(file: Source, name: str, place: _Place, document: dict[str, Any]) -> Reading:
    path = (*place.path, _CHECKPOINT)
    seen, notes = _seen(document)
    kept = _kept(document.get(KEY), place.owner)
    checkpoint = rejoined(file, path, seen, kept, _LAYOUT)
    return Reading(checkpoint, place.owner, name, notes=tuple(notes))


def _kept(kept: Any, owner: str) -> Any:
    """Where the builder has gone on to another story, the checkpoint is no longer that of the task
    for which it was written."""
    if not isinstance(kept, dict):
        return kept
    rest = {name: value for name, value in kept.items() if name != _OWNER}
    if kept.get(_OWNER, owner) == owner:
        return rest
    for section, names in (("metadata", ("task_id", "checkpoint_id")),
                           ("recovery", ("last_successful_state",))):  # fmt: skip
        if isinstance(part := rest.get(section), dict):
            rest[section] = {name: value for name, value in part.items() if name not in names}
    return rest


def _seen(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The visible fields in the words of the model, and what was assumed or left out."""
    notes = [f"{name} is syncd's own word and was left out"
             for name in document if name in RESERVED - {KEY}]  # fmt: skip
    seen = {name: value for name, value in document.items() if name not in RESERVED}
    if "phase" in seen:
        seen["phase"] = _READ[seen["phase"]]
    if (step := seen.get("currentStep")) is not None:
        seen["currentStep"] = {"description": ""} | step
    if (verification := seen.get("verification")) is not None:
        results = [{"activity": ""} | result for result in verification.get("results", [])]
        seen["verification"] = verification | {"results": results}
    if "lastUpdatedAt" not in seen.get("metadata", {}):
        notes.append("lastUpdatedAt is missing: the time of reading was taken")
    return assumed_utc(seen, _TIMES, _WITH_TIMES, notes), notes


# --- places -------------------------------------------------------------------------------------


def _places(document: dict[str, Any]) -> dict[str, _Place]:
    """By name: `activePrd`, and the queued tasks by id, which stays when the queue moves on."""
    places = {}
    if isinstance(active := document.get(ACTIVE), dict):
        places[ACTIVE] = _Place((ACTIVE,), slug(f"{_title(active)} {_story(active)}"))
    queue = document.get(_QUEUE)
    for number, item in enumerate(queue if isinstance(queue, list) else ()):
        if isinstance(item, dict):
            names = (f"{_QUEUE}[{_word(item.get('id')) or number}]", f"{_QUEUE}[#{number}]")
            name = names[0] if names[0] not in places else names[1]
            owner = slug(_title(item)) or slug(f"{_QUEUE} {number}")
            places[name] = _Place((_QUEUE, number), owner)
    return places


def _named(places: dict[str, _Place], name: str, source: str) -> _Place:
    """A queued task by its number, too, unless that is the id of another."""
    numbers = {f"{_QUEUE}[{place.path[1]}]": place for place in places.values() if place.path[1:]}
    if found := places.get(name) or numbers.get(name):
        return found
    there = f"There are {', '.join(places)}." if places else f"It has no {ACTIVE} nor {_QUEUE}."
    raise InvalidInputError(f"{source} has no place {name} that is an object", there)


def _at(file: Source, place: _Place) -> dict[str, Any] | None:
    holder = file.document
    for step in place.path:
        holder = holder[step]
    found: dict[str, Any] | None = holder.get(_CHECKPOINT)
    return found


def _title(holder: dict[str, Any]) -> str:
    names = ("id", "title", "name", "description", "file")
    return next((text for name in names if (text := _word(holder.get(name)))), "")


def _story(active: dict[str, Any]) -> str:
    story = active.get("currentStory")
    return _title(story) if isinstance(story, dict) else _word(story)


def _word(value: Any) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


# --- writing ------------------------------------------------------------------------------------


def write(data: bytes, place: str, checkpoint: Checkpoint, source: str, as_of: str = "") -> bytes:
    """The file with the checkpoint at `place`. Without a file, one is made for it. `as_of` is when
    the checkpoint was changed last, if that was later than it was made."""
    data = data or _blank(checkpoint)
    file = _file(data, source)
    known = _named(_places(file.document), place, source)
    holder = located(file.text, known.path)
    document = _document(checkpoint, known.owner, as_of)
    text = with_member(file.text, holder, _CHECKPOINT, document)
    written = data[: len(data) - len(file.text.encode())] + text.encode()
    Source(written, source)  # what cannot be read must not be written
    return written


def update(
    path: Path, place: str, change: Callable[[Checkpoint | None], Checkpoint], as_of: str = ""
) -> None:
    """Change the checkpoint at `place` on disk. Whoever else edits the file keeps his change."""

    def edited(data: bytes) -> bytes:
        readings = read(data, str(path)) if data else []
        before = next((r.checkpoint for r in readings if r.place == place), None)
        return write(data, place, change(before), str(path), as_of)

    files.changed(path, edited)


def cut(checkpoint: Checkpoint) -> Checkpoint:
    """As much of it as the file is to hold; the store keeps everything."""
    state, context = checkpoint.execution_state, checkpoint.context_summary
    step = state.current_step
    if step is not None:
        step = step.amended(partial_work=step.partial_work[:PARTIAL_WORK])
    decisions = [
        item.amended(rationale=item.rationale[:RATIONALE]) if isinstance(item, Decision) else item
        for item in context.key_decisions
    ]
    return checkpoint.amended(
        execution_state=state.amended(
            current_step=step, completed_items=state.completed_items[-STEPS:]
        ),
        context_summary=context.amended(key_decisions=decisions),
    )


def _blank(checkpoint: Checkpoint) -> bytes:
    blank = {ACTIVE: {"id": checkpoint.metadata.task_id}}
    return (json.dumps(blank, indent=2, ensure_ascii=False) + "\n").encode()


def _document(checkpoint: Checkpoint, owner: str, as_of: str) -> dict[str, Any]:
    whole = cut(checkpoint)
    document = _shown(whole, as_of)
    kept = beyond(whole, Checkpoint.from_dict(_seen(document)[0]))
    document[KEY] = {_OWNER: owner} | kept | dated(as_of)
    canonical(document)  # refuses what JSON cannot hold
    return document


def _shown(checkpoint: Checkpoint, as_of: str) -> dict[str, Any]:
    state, written_at = checkpoint.execution_state, as_of or checkpoint.metadata.timestamp
    document = {
        "phase": _WRITTEN[state.phase],
        "completedSteps": [_step(item, written_at) for item in state.completed_items],
        "pendingSteps": ahead(state.pending_items, state.next_steps),
        "currentStep": _current(state.current_step, state.current_focus),
        "decisions": [
            _decision(item, written_at) for item in checkpoint.context_summary.key_decisions
        ],
        "blockers": _blockers(checkpoint),
        "verification": _verification(checkpoint.verification),
        "metadata": _metadata(checkpoint, written_at),
        **extras(checkpoint),
    }
    return document | {"error": state.error} if state.error else document


def _step(item: str | Step, written_at: str) -> dict[str, Any]:
    own = {"filesCreated": [], "filesModified": [], "timestamp": written_at}
    return {"step": str(item)} | own | (_camel(item) if isinstance(item, Step) else {})


def _decision(item: str | Decision, written_at: str) -> dict[str, Any]:
    if isinstance(item, Decision):
        return {"decision": item.decision, "timestamp": written_at} | _camel(item)
    return {"decision": item, "timestamp": written_at}


def _current(step: CurrentStep | None, focus: str) -> dict[str, Any] | None:
    if step is None:
        return {"description": focus} if focus else None
    return _camel(step)


def _blockers(checkpoint: Checkpoint) -> list[str]:
    """A failure stands in the way too: what it said, and why the checkpoint was written."""
    state = checkpoint.execution_state
    blockers, reason = texts(state.blocked_items), checkpoint.metadata.reason
    failure = f"{reason}: {state.error}" if reason else state.error
    return blockers if not state.error or failure in blockers else [*blockers, failure]


def _verification(verification: Verification | None) -> dict[str, Any] | None:
    if verification is None:
        return None
    return _camel(verification) | {"results": [_camel(result) for result in verification.results]}


def _metadata(checkpoint: Checkpoint, written_at: str) -> dict[str, Any]:
    metadata = checkpoint.metadata
    return {
        **(metadata.model_extra or {}),
        "createdBy": metadata.agent_id,
        "lastUpdatedAt": written_at,
        **({"reason": metadata.reason} if metadata.reason else {}),
        "previousAgents": metadata.previous_agents,
    }


def _camel(part: Part) -> dict[str, Any]:
    """Its fields under the format's names; what nobody here knows stays under its own."""
    known = type(part).model_fields
    return {to_camel(n) if n in known else n: value for n, value in part.dumped().items()}


_STATE, _META = "execution_state", "metadata"
_LAYOUT = Layout(
    shown=lambda checkpoint, as_of: _seen(_shown(checkpoint, as_of))[0],
    behind={
        ("phase",): [(_STATE, "phase"), (_STATE, "raw", "phase")],
        ("currentStep",): [(_STATE, "current_step"), (_STATE, "current_focus")],
        ("error",): [(_STATE, "error")],
        ("verification",): [("verification",)],
        (_META, "createdBy"): [(_META, "agent_id")],
        (_META, "lastUpdatedAt"): [(_META, "timestamp")],
        (_META, "reason"): [(_META, "reason")],
        (_META, "previousAgents"): [(_META, "previous_agents")],
    },
    items={
        "completedSteps": (_STATE, "completed_items"),
        "pendingSteps": (_STATE, "pending_items"),
        "decisions": ("context_summary", "key_decisions"),
        "blockers": (_STATE, "blocked_items"),
    },
    beside={"pendingSteps": (_STATE, "next_steps")},
)
