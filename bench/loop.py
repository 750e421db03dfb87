"""What `syncd loop` adds to the commands that it runs."""

from __future__ import annotations

import subprocess
import time
from contextlib import closing
from pathlib import Path

from bench.payload import AGENT, Payload
from bench.resume import repository
from syncd.loop import Limits, Loop, Plan, Watcher
from syncd.service import CheckpointService

LINE = "loop, beside the agent's command, per iteration"
# Changes a file each time, so that there is progress, and writes no checkpoint itself.
_COMMAND = ["sh", "-c", "date +%s%N > src/handler_0.py"]


def measured(folder: Path, payload: Payload, iterations: int) -> float:
    """Milliseconds."""
    project = repository(folder / "looped")
    with closing(CheckpointService(home=folder / "loop")) as service:
        service.create_checkpoint("loop", AGENT, payload.state, payload.context, payload.metrics)
        plan = Plan("loop", _COMMAND, "implementation", project, Limits(iterations), 60.0, None,
                    1.0, {}, ["syncd"])  # fmt: skip
        began = time.perf_counter()
        done = Loop(service, plan, Watcher(lambda _: None, lambda _: None)).run()
        whole = time.perf_counter() - began
    if done.iterations != iterations:
        raise AssertionError(f"the loop stopped early: {done}")
    return (whole - _alone(project, iterations)) / iterations * 1_000


def _alone(project: Path, times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        subprocess.run(_COMMAND, cwd=project, check=True)
    return time.perf_counter() - began
