"""A checkpoint without its secrets."""

from __future__ import annotations

from typing import Any

from syncd import redaction
from syncd.checkpoint import Checkpoint
from syncd.errors import InvalidInputError
from syncd.handoff import HandoffProtocol
from syncd.part import Part
from syncd.redaction import Redactor, Shape

_PROMPT = "recovery.continuation_prompt"
# What the header repeats stays clear; what is fixed has a form that a mark would break.
_SHAPE = Shape(
    clear=frozenset(
        (
            "metadata.checkpoint_id",
            "metadata.task_id",
            "metadata.agent_id",
            "metadata.agent_type",
            "recovery.last_successful_state",
        )
    ),
    fixed=frozenset(
        (
            "execution_state.phase",
            "execution_state.status",
            "compliance.event_log_ref",
        )
    ),
    names=frozenset(name for kind in Part.__subclasses__() for name in kind.model_fields),
)


def redacted(checkpoint: Checkpoint, redactor: Redactor) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint without secrets, and its document. Each version tells of all that is missing
    in it. A prompt that was made from what is taken out is left to be made anew."""
    document = checkpoint.body()
    told = document["compliance"].pop("redactions", [])
    clean, taken, marked = redactor.cleaned(document, _SHAPE)
    if (taken or marked) and _made_here(checkpoint):
        clean["recovery"]["continuation_prompt"] = ""
        taken, marked = ([f for f in found if f.path != _PROMPT] for found in (taken, marked))
    missing = [found._asdict() for found in marked] if redactor.enabled else told
    if not taken and missing == told:
        return checkpoint, checkpoint.body() if told else document
    redaction.warn(taken)
    clean["compliance"]["redactions"] = missing
    result = _rebuilt(clean)
    return result, result.body()


def _rebuilt(document: dict[str, Any]) -> Checkpoint:
    try:
        return Checkpoint.from_dict(document)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"without what redaction takes out, this is no checkpoint: {error.message}",
            "Make the pattern of redaction.patterns narrower that matches there. Nothing was "
            "written.",
        ) from None


def _made_here(checkpoint: Checkpoint) -> bool:
    prompt = checkpoint.recovery.continuation_prompt
    return bool(prompt) and prompt == HandoffProtocol.generate_continuation_prompt(checkpoint)
