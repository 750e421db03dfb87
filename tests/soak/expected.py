"""Which errors a user or a daemon may be told of, and when. Every other one is a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from syncd import errors
from syncd.errors import SyncdError

if TYPE_CHECKING:
    from soak.machine import Machine

# They give a name that may be in use.
_NAMING = frozenset({"create_named", "describe_task"})
# What was asked for cannot be done as things are.
_REFUSALS = frozenset({
    errors.InvalidInputError, errors.CheckpointNotFoundError, errors.TaskNotFoundError,
    errors.PurgedError, errors.ErasedError, errors.FinalizedError, errors.StaleBaseError,
    errors.LegalHoldError, errors.HandoffError, errors.LeaseHeldError,
})  # fmt: skip


def is_expected(error: SyncdError, machine: Machine, what: str) -> bool:
    """`what` is the action of a user, or nothing if it is the daemon that was told."""
    if machine.disk.dead:
        return True
    kind = type(error)
    if kind in (errors.DiskFullError, errors.KeyChangedError):
        # Without room a database from before the key was changed cannot take note of it.
        return machine.disk.full
    if kind is errors.LoginRefusedError:
        return machine.revoked
    if kind is errors.ReplicaOutdatedError:
        return machine.world.ground.is_too_old
    if kind is errors.CheckpointExistsError:
        return what in _NAMING
    return kind is errors.ReplicaUnreachableError or (bool(what) and kind in _REFUSALS)
