"""How often a test repeats itself: a sample in daily work, all of it under `make proof`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

# Read once, at import: a test's own environment is cleared of every setting.
_PROOF = os.environ.get("SYNCD_PROOF") == "1"
# How the homes of the tests are encrypted, if all of it is to be run that way once.
ENCRYPTION = os.environ.get("SYNCD_TEST_ENCRYPTION", "none")


def full(sample: T, complete: T) -> T:
    return complete if _PROOF else sample
