"""`syncd loop`: an agent's command, run in fresh contexts until its task is complete."""

from syncd.loop.judge import Limits
from syncd.loop.main import Loop, Plan, Report, Watcher

__all__ = ["Limits", "Loop", "Plan", "Report", "Watcher"]
