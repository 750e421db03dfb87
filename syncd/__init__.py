"""Checkpoints for AI coding agents: written locally, verified on every read.

Names are imported when first used, so that commands which need few of them start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from syncd.version import __version__ as __version__

if TYPE_CHECKING:
    from syncd.checkpoint import (
        Checkpoint,
        CheckpointMetadata,
        CheckpointMetrics,
        ComplianceInfo,
        ContextSummary,
        ExecutionState,
        RecoveryInfo,
        TestStatus,
    )
    from syncd.errors import (
        CheckpointCorruptionError,
        CheckpointError,
        CheckpointExistsError,
        CheckpointNotFoundError,
        ErasedError,
        FinalizedError,
        HandoffError,
        InvalidInputError,
        StaleBaseError,
        SyncdError,
    )
    from syncd.handoff import HandoffProtocol, HandoffRequest
    from syncd.items import Workspace
    from syncd.service import CheckpointService
    from syncd.vocabulary import (
        AgentType,
        CheckpointReason,
        CheckpointStatus,
        ExecutionPhase,
        HandoffTrigger,
    )

_HOMES = {
    "checkpoint": (
        "Checkpoint", "CheckpointMetadata", "CheckpointMetrics", "ComplianceInfo",
        "ContextSummary", "ExecutionState", "RecoveryInfo", "TestStatus",
    ),
    "errors": (
        "CheckpointCorruptionError", "CheckpointError", "CheckpointExistsError",
        "CheckpointNotFoundError", "ErasedError", "FinalizedError", "HandoffError",
        "InvalidInputError", "StaleBaseError", "SyncdError",
    ),
    "handoff": ("HandoffProtocol", "HandoffRequest"),
    "items": ("Workspace",),
    "service": ("CheckpointService",),
    "vocabulary": (
        "AgentType", "CheckpointReason", "CheckpointStatus", "ExecutionPhase", "HandoffTrigger",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 (grouped by what they are for)
    "CheckpointService",
    "Checkpoint", "CheckpointMetadata", "CheckpointMetrics", "ComplianceInfo", "ContextSummary",
    "ExecutionState", "RecoveryInfo", "TestStatus", "Workspace",
    "AgentType", "CheckpointReason", "CheckpointStatus", "ExecutionPhase",
    "HandoffProtocol", "HandoffRequest", "HandoffTrigger",
    "SyncdError", "CheckpointError", "CheckpointCorruptionError", "CheckpointExistsError",
    "CheckpointNotFoundError", "ErasedError", "FinalizedError", "HandoffError",
    "InvalidInputError", "StaleBaseError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'syncd' has no attribute {name!r}")
    value = getattr(import_module(f"syncd.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
