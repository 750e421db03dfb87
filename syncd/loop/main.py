"""Run an agent's command in fresh contexts until its task is complete, or there is reason to stop.

The record is the checkpoints: each run begins from the newest one, verified, and leaves one behind,
written by the agent or, if it wrote none, by the loop.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from syncd import offers, presence, tasks, tenure, workspace
from syncd.checkpoint import Checkpoint
from syncd.entry import uuid7
from syncd.errors import CheckpointNotFoundError, LeaseHeldError
from syncd.invocations import invoked
from syncd.items import Workspace
from syncd.loop import appeal, judge
from syncd.loop.child import Command, Ran, run
from syncd.loop.turn import alone
from syncd.node import user
from syncd.offers import Taker
from syncd.resume import Reader, resumed
from syncd.service import CheckpointService
from syncd.store import Skipped
from syncd.triggers import Circumstances, action
from syncd.vocabulary import CheckpointStatus, ExecutionPhase, HandoffTrigger

log = logging.getLogger("syncd")
_TAIL_CHARACTERS = 2_000
_FILES, _COMMITS = 100, 20
PROMPT, PROMPT_FILE = "{prompt}", "{prompt_file}"
_FIRST = (
    "Begin with task {task}. Nothing was recorded of it so far: find out what is to be done, plan "
    "it, and write a checkpoint after each significant step:\n{command}"
)


class Plan(NamedTuple):
    """What is to be run, and within what."""

    task: str
    words: Sequence[str]
    agent_type: str
    folder: Path
    limits: judge.Limits
    seconds: float
    budget: int | None
    pause_seconds: float
    by_type: Mapping[str, Sequence[str]]
    program: Sequence[str]


class Report(NamedTuple):
    """Why it stopped, and what was done. `tokens` are all that the task has taken so far; exit code
    and error are those of the last run, `escalation` is what a person has to decide for it."""

    stopped: str
    iterations: int
    checkpoint_id: str
    tokens: int
    seconds: float
    outcomes: list[str]
    exit_code: int
    error: str
    escalation: dict[str, str] | None


class Watcher(NamedTuple):
    """Who sees it work: what the command says, and a line of progress each second."""

    show: Callable[[bytes], None]
    progress: Callable[[str], None]


class Loop:
    def __init__(self, service: CheckpointService, plan: Plan, watcher: Watcher) -> None:
        self._service = service
        self._plan = plan
        self._watcher = watcher
        self._agent_type = plan.agent_type
        self._began = time.monotonic()
        self._history: list[judge.Iteration] = []
        self._refusals = 0
        self._passed_over: set[str] = set()
        self._tail = self._phase = ""

    def run(self) -> Report:
        """Until there is a reason to stop; an interruption leaves a last checkpoint, and names
        it."""
        with alone(self._service.node.home, self._plan.task):
            try:
                return self._until_it_stops()
            except KeyboardInterrupt:
                raise KeyboardInterrupt(self._farewell()) from None

    def _farewell(self) -> str:
        newest = self._newest()
        if newest is None:
            return ""
        return (
            f"The last checkpoint that was left is {newest.metadata.checkpoint_id}; `syncd resume "
            f"{quote(self._plan.task)}` shows what is next."
        )

    def _until_it_stops(self) -> Report:
        newest = self._newest()
        if newest and newest.execution_state.status == CheckpointStatus.COMPLETE:
            return self._report(judge.COMPLETE)
        start, first = self._mark(newest), newest.metadata.iteration + 1 if newest else 1
        while True:
            number = first + len(self._history)
            session = uuid7()
            try:
                if not self._taken_over(number, session):
                    return self._report(judge.TAKEN)
                appeal.take_back(self._service.node, self._plan.task)
                iteration = self._once(number, session)
            finally:
                self._ended(number, session)
            self._history.append(iteration)
            stop = judge.verdict(self._history, self._plan.limits, start,
                                 over_budget=self._over_budget())  # fmt: skip
            if stop:
                return self._report(stop)
            self._between(iteration)

    # --- one iteration ------------------------------------------------------------------------

    def _agent(self, number: int) -> str:
        return f"{self._agent_type}-{number}"

    def _taken_over(self, number: int, session: str) -> bool:
        """Take what was offered, on this machine or another. False if the work is another
        machine's by now."""
        node = self._service.node
        waiting = [o for o in offers.everything(node) if o.task_id == self._plan.task]
        try:
            for offer in offers.ready(waiting):
                self._agent_type = self._following(offer.document()["next_agent_type"])
                offers.accept(node, offer.id, Taker(self._agent(number), session, user()))
                offers.acknowledge(node, offer.id)
        except LeaseHeldError:
            return False
        holder = tenure.holder(node, self._plan.task)
        return holder is None or holder.holder[1] == node.store.device_id

    def _following(self, agent_type: str) -> str:
        """Where it has no command of its own, the same command goes on."""
        return agent_type if agent_type in self._plan.by_type else self._agent_type

    def _once(self, number: int, session: str) -> judge.Iteration:
        agent, before = self._agent(number), self._newest()
        invoked(self._service.node, self._plan.task, agent, user(), session, self._agent_type)
        with tempfile.TemporaryDirectory(prefix="syncd-loop-") as place:
            command = self._command(agent, session, number, Path(place))
            try:
                ran = run(
                    command, self._plan.seconds, self._watcher.show, self._tick(number, session)
                )
            except KeyboardInterrupt:
                self._leave_word(agent, session, number, "interrupted by the user")
                raise
        after = self._newest()
        if after is None or (before and after.revision == before.revision):
            after = self._written_for(agent, session, number, ran)
        self._tail = ran.tail
        if after.execution_state.phase != ExecutionPhase.HANDOFF:
            self._phase = str(after.execution_state.phase)
        return judge.judged(self._found(ran, after))

    def _ended(self, number: int, session: str) -> None:
        """Nobody waits for an agent whose command has ended, under whatever name it wrote; what was
        written for it, too, would else say that it goes on."""
        node, task = self._service.node, self._plan.task
        presence.ended(node, self._agent(number), task)
        newest = self._newest()
        if newest and newest.metadata.session_id == session:
            presence.ended(node, newest.metadata.agent_id, task)

    def _command(self, agent: str, session: str, number: int, place: Path) -> Command:
        prompt = self._prompt(agent)
        file = place / "prompt.md"
        file.write_text(prompt, encoding="utf-8")
        words = list(self._plan.by_type.get(self._agent_type) or self._plan.words)
        given = any(PROMPT in word or PROMPT_FILE in word for word in words)
        words = [w.replace(PROMPT_FILE, str(file)).replace(PROMPT, prompt) for w in words]
        environment = {
            **os.environ,
            "SYNCD_HOME": str(self._service.node.home),
            "SYNCD_TASK": self._plan.task,
            "SYNCD_AGENT": agent,
            "SYNCD_AGENT_TYPE": self._agent_type,
            "SYNCD_SESSION": session,
            "SYNCD_ITERATION": str(number),
            "SYNCD_PROMPT_FILE": str(file),
        }
        stdin = b"" if given else prompt.encode()
        return Command(words, stdin, environment, self._plan.folder)

    def _prompt(self, agent: str) -> str:
        reader = Reader(self._plan.folder, self._plan.program, agent)
        try:
            return resumed(self._service.node, self._plan.task, reader).prompt
        except CheckpointNotFoundError:
            command = " ".join([*self._plan.program, "checkpoint", "create", "--task",
                                self._plan.task, "--agent", agent, "--completed", "…"])  # fmt: skip
            return _FIRST.format(task=self._plan.task, command=command)

    def _tick(self, number: int, session: str) -> Callable[[], None]:
        def tick() -> None:
            presence.heartbeat(
                self._service.node, self._agent(number), self._plan.task, self._agent_type, session
            )
            tokens = self._tokens()
            spent = f", {tokens:,} tokens" if tokens else ""
            minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
            self._watcher.progress(
                f"iteration {number}, {self._agent_type}, {minutes}:{seconds:02}{spent}"
            )

        return tick

    # --- what it left behind ------------------------------------------------------------------

    def _newest(self) -> Checkpoint | None:
        """The newest that is intact; of each that is not, the user is told once."""
        skipped: list[Skipped] = []
        found = self._service.get_latest_checkpoint(self._plan.task, skipped=skipped)
        for gone in skipped:
            if gone.checkpoint_id not in self._passed_over:
                log.warning("checkpoint %s is passed over: %s", gone.checkpoint_id, gone.problem)
                self._passed_over.add(gone.checkpoint_id)
        return found

    def _written_for(self, agent: str, session: str, number: int, ran: Ran) -> Checkpoint:
        """The agent wrote nothing: what can be seen of its run from outside."""
        ended = "ran out of time" if ran.timed_out else f"ended with {ran.exit_code}"
        words = f"The agent {ended} after {ran.seconds:.0f} s and wrote no checkpoint."
        failed = ran.timed_out or ran.exit_code != 0
        return self._left(agent, session, number, words, ran.tail, failed=failed)

    def _leave_word(self, agent: str, session: str, number: int, why: str) -> None:
        self._left(agent, session, number, f"Stopped: {why}.", "", failed=False)

    def _left(
        self, agent: str, session: str, number: int, words: str, tail: str, *, failed: bool
    ) -> Checkpoint:
        """A checkpoint that goes on from the newest one and claims nothing new as done."""
        before = self._newest()
        state = before.execution_state.to_dict() if before else {}
        state |= {"status": "in_progress", "phase": state.get("phase", "implementing")}
        if failed:
            state["error"] = judge.last_words(tail) or words
        seen = _seen(self._plan.folder, before)
        told = [words, *seen.commits, f"Its last words:\n{tail[-_TAIL_CHARACTERS:]}"]
        found = workspace.capture(self._plan.folder, seen.files)
        return self._service.create_checkpoint(
            self._plan.task, agent, execution_state=state,
            recovery={"resume_instructions": "\n".join(told)},
            context_summary=before.context_summary if before else None,
            metrics={"files_modified": seen.files},
            agent_type=self._agent_type, iteration=number, session_id=session,
            reason="failure" if failed else "periodic",
            workspace=Workspace.from_dict(found) if found else None,
        )  # fmt: skip

    def _found(self, ran: Ran, newest: Checkpoint) -> judge.Found:
        state = newest.execution_state
        return judge.Found(
            ran.exit_code, ran.timed_out, ran.tail, str(state.status or ""), str(state.phase),
            str(newest.metadata.reason or ""), state.error, self._mark(newest),
            self._over_budget(),
        )  # fmt: skip

    def _mark(self, newest: Checkpoint | None) -> str:
        """Changes with what is completed, and with the files and commits of the repository."""
        done = sorted(map(str, newest.execution_state.completed_items)) if newest else []
        return hashlib.sha256(repr((done, _repository(self._plan.folder))).encode()).hexdigest()

    def _tokens(self) -> int:
        try:
            return int(tasks.show(self._service.node, self._plan.task)["cost"]["tokens"])
        except CheckpointNotFoundError:
            return 0

    def _over_budget(self) -> bool:
        return self._plan.budget is not None and self._tokens() > self._plan.budget

    # --- between two --------------------------------------------------------------------------

    def _between(self, last: judge.Iteration) -> None:
        if last.outcome == judge.RATE_LIMITED:
            self._refusals += 1
            seconds = judge.pause(self._tail, self._refusals, self._plan.pause_seconds)
            self._watcher.progress(f"refused for a while: waiting {seconds:g} s")
            time.sleep(seconds)
            return
        self._refusals = 0
        if last.outcome == judge.HANDOFF:
            known = Circumstances(phase=self._phase)
            following = action(HandoffTrigger.PHASE_COMPLETE, known).target_agent_type
            self._agent_type = self._following(following)

    def _report(self, stop: str) -> Report:
        newest = self._newest()
        return Report(
            stop, len(self._history), newest.metadata.checkpoint_id if newest else "",
            self._tokens(), round(time.monotonic() - self._began, 1),
            [iteration.outcome for iteration in self._history],
            self._history[-1].exit_code if self._history else 0,
            self._history[-1].error if self._history else "",
            self._asked(stop),
        )  # fmt: skip

    def _asked(self, stop: str) -> dict[str, str] | None:
        if not self._history or not judge.hopeless(stop, self._history[-1]):
            return None
        why = appeal.reason(stop, self._history[-1], self._plan.limits)
        return appeal.ask(self._service.node, self._plan.task, why)


class _Seen(NamedTuple):
    """What a run did to the repository, as far as git tells."""

    files: list[str]
    commits: list[str]


def _seen(folder: Path, before: Checkpoint | None) -> _Seen:
    """Files that differ from HEAD or were committed since the checkpoint before, and how the
    commits are called."""
    top = workspace.find(folder)
    if top is None:
        return _Seen([], [])
    now = workspace.status(top)
    changed = [*now.changes] if now else []
    since = before.workspace.head if before and before.workspace else ""
    commits = []
    if since and now and now.head not in ("", since):
        span = f"{since}..{now.head}"
        named = workspace.git(top, "log", "--format=%h %s", f"-{_COMMITS}", span, "--")
        commits = [f"Committed: {line}" for line in named.splitlines()]
        changed += workspace.git(top, "diff", "--name-only", "-z", span, "--").split("\0")
    files = [path for path in dict.fromkeys(changed) if path and workspace.is_source(path)]
    return _Seen(files[:_FILES], commits)


def _repository(folder: Path) -> tuple[str, ...]:
    """HEAD, and every source file that differs from it, with its content."""
    top = workspace.find(folder)
    if top is None:
        return ()
    top = top.resolve()
    head = workspace.git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    changed = workspace.git(top, "status", "--porcelain", "-z", "--untracked-files=all")
    paths = [line[3:] for line in changed.split("\0") if len(line) > 3]
    sources = [path for path in paths if workspace.is_source(path)]
    return (head, *(f"{path} {workspace.content(top, path)}" for path in sources))
