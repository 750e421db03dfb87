"""After a crash: find the newest checkpoint that can be trusted, say what was passed over, and let
one agent go on from it; or say who has to decide, where there is none.

Every attempt is an entry of the log. What follows from several, a pause for instance, is derived
from those entries, so that no flag can get stuck.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from syncd import agents, attempts, clock, facts, mending, presence, tasks, tenure, threads
from syncd.attempts import LOOP, MINUTE_MS, SELF
from syncd.entry import RECOVERY, uuid7
from syncd.errors import LeaseHeldError, SyncdError, UsageError, WorkAtRiskError
from syncd.fallback import Usable, usable
from syncd.leases import Worker
from syncd.mending import Mended
from syncd.node import Node, user
from syncd.outlet import Aside, put_aside
from syncd.resume import Reader, Resumption, resumed
from syncd.resume.chain import line
from syncd.resume.fit import Room
from syncd.resume.gather import Origin
from syncd.service import CheckpointService
from syncd.store import VIEW_COLUMNS, Record
from syncd.tenure import Tenure
from syncd.views import CheckpointRow
from syncd.vocabulary import CheckpointReason, CheckpointStatus, ExecutionPhase

RESUME, TAKEOVER, RESTART = "resume", "takeover", attempts.RESTART
RESUMED, ESCALATED = "resumed", "escalated"
CRASHED, ABORTED = "crashed_archived", "aborted_archived"
_MUCH_WORK_MINUTES = 30.0
_REPLICA_SECONDS = 10.0


class Wish(NamedTuple):
    """Who wants to go on with what, and how. Without an agent, the one before."""

    task_id: str
    mode: str = RESUME
    agent: str = ""
    force: bool = False
    start: Path = Path()
    program: Sequence[str] = ("syncd",)
    rooms: Sequence[Room] = ()


class Recovery(NamedTuple):
    """What came of it. `found` is the resumption, unless nothing was left to resume."""

    task_id: str
    outcome: str
    mode: str
    agent: str
    former: str
    session_id: str
    usable: Usable
    mended: Mended
    found: Resumption | None = None
    tenure: Tenure | None = None
    escalation: dict[str, str] | None = None
    aside: Aside = Aside()

    def document(self) -> dict[str, Any]:
        told = self.found.document() if self.found else {}
        return {
            "outcome": self.outcome,
            "task_id": self.task_id,
            "checkpoint_id": told.get("checkpoint_id", ""),
            "mode": self.mode,
            "agent": self.agent,
            "former_agent": self.former,
            "session_id": self.session_id,
            "skipped": [gone._asdict() for gone in self.usable.skipped],
            "mended": self.mended.entries,
            "lost": self.mended.lost,
            "line_broken": self.usable.broken,
            "replica_unreachable": self.mended.unreachable,
            "fence": self.tenure.fence if self.tenure else None,
            "provisional": bool(self.tenure and self.tenure.provisional),
            "verified": told.get("verified", False),
            "claims": told.get("claims", []),
            "stale_files": told.get("stale_files", []),
            "escalation": self.escalation,
            "put_aside": list(self.aside.files),
            "prompt": told.get("prompt", ""),
        }


def recover(node: Node, wish: Wish) -> Recovery:
    """Go on with a task after a crash. Raises where that is not for this agent, or not now."""
    with node.store.tolerating():
        mended = mending.mend(node, wish.task_id, _REPLICA_SECONDS)
        with _told(mended):
            attempts.check(node, wish.task_id)
            attempt = _Attempt(node, wish, mended)
            if wish.mode == RESTART:
                return attempt.restart()
            if attempt.hopeless:
                return attempt.escalate()
            return attempt.take_over() if wish.mode == TAKEOVER else attempt.resume()


@contextmanager
def _told(mended: Mended) -> Iterator[None]:
    """What was mended stays so where all else is refused."""
    try:
        yield
    except SyncdError as error:
        if count := len(mended.entries):
            what = "entry was" if count == 1 else "entries were"
            error.message += f"; {count} damaged {what} mended"
            error.args = (error.message,)
        raise


def _newest(node: Node, task_id: str) -> CheckpointRow | None:
    """The task's current checkpoint, intact or not, as the view tells of it."""
    row = node.store.row("checkpoint", (node.store.current_id(task_id),))
    return CheckpointRow(*row[:VIEW_COLUMNS]) if row else None


def archived(node: Node, task_id: str, worker: Worker, state: str) -> None:
    """An agent's part in a task is over: what it left behind stays, as crashed or aborted."""
    presence.transition(node, task_id, *worker, state)


class _Attempt:
    """One recovery, after the search for where to go on from."""

    def __init__(self, node: Node, wish: Wish, mended: Mended) -> None:
        self._node, self._wish, self._mended = node, wish, mended
        self._task = wish.task_id
        self._usable = usable(node.store, wish.task_id)
        self._newest = _newest(node, wish.task_id)
        if self._newest is None and not mended.lost:
            raise threads.no_checkpoint(node, wish.task_id, " to recover from")
        self._former = self._worker()
        self._session = uuid7()

    def _worker(self) -> Worker:
        """Whose work it was: who wrote last, or has it since and did not write yet."""
        row, claim = self._newest, tenure.holder(self._node, self._task)
        if claim is not None and (row is None or claim.hlc > row.hlc):
            return claim.holder
        return (row.agent_id, row.device_id) if row else ("", "")

    @property
    def hopeless(self) -> bool:
        return self._usable.record is None

    # --- the ways ---------------------------------------------------------------------------

    def resume(self) -> Recovery:
        """The same agent, in a new session."""
        agent = self._wish.agent or self._former[0]
        self._check_mine(agent)
        return self._gone_on(agent)

    def take_over(self) -> Recovery:
        """Another agent: of several that try, one gets it."""
        agent = self._wish.agent or user()
        if self._is_mine(agent):
            return self._gone_on(agent)
        return self._gone_on(agent, self._claimed(agent), CRASHED)

    def restart(self) -> Recovery:
        """From scratch, whatever there is."""
        agent = self._wish.agent or self._former[0] or user()
        self._check_worth()
        claimed = None if self._is_mine(agent) else self._claimed(agent)
        return self._gone_on(agent, claimed, ABORTED)

    def escalate(self) -> Recovery:
        """No way is left: a person has to decide."""
        problems = [f"{gone.checkpoint_id}: {gone.problem}" for gone in self._usable.skipped]
        reason = "no checkpoint is left to go on from"
        told = "; ".join([*problems, *self._mended.lost])
        words = f"{reason} ({told})" if told else reason
        with self._node.store.transaction():
            shown = tasks.escalate(
                self._node, self._task, user(), words, _WAYS.format(task=self._task),
                status=CheckpointStatus.BLOCKED, by=SELF,
            )  # fmt: skip
            self._log(ESCALATED, "", self._former[0], words)
        return self._result(ESCALATED, self._former[0], escalation=shown["escalation"])

    # --- what they share --------------------------------------------------------------------

    def _gone_on(self, agent: str, claimed: Tenure | None = None, state: str = "") -> Recovery:
        with self._node.store.transaction():
            if state and self._former[0]:
                archived(self._node, self._task, self._former, state)
            checkpoint_id = self._begin(agent)
            self._unblock(agent, checkpoint_id)
            self._log(RESUMED, checkpoint_id, agent, "")
        aside = Aside()
        if state:
            crashed = state == CRASHED
            aside = put_aside(self._node.store, self._task, self._former[0], crashed=crashed)
        reader = Reader(
            self._wish.start, self._wish.program, agent, self._wish.rooms, self._session
        )
        origin = Origin(checkpoint_id, self._usable.skipped, [*self._notes(agent)])
        found = resumed(self._node, self._task, reader, origin)
        return self._result(RESUMED, agent, found=found, tenure=claimed, aside=aside)

    def _begin(self, agent: str) -> str:
        """Where to go on from."""
        record = self._usable.record
        return self._fresh(agent) if self._wish.mode == RESTART or not record else record.row.id

    def _result(self, outcome: str, agent: str, **more: Any) -> Recovery:
        return Recovery(
            self._task, outcome, self._wish.mode, agent, self._former[0], self._session,
            self._usable, self._mended, **more,
        )  # fmt: skip

    def _log(self, outcome: str, checkpoint_id: str, agent: str, why: str) -> None:
        meta = {"outcome": outcome, "checkpoint": checkpoint_id, "mode": self._wish.mode}
        body = {
            "who": agent, "former": self._former[0], "session": self._session, "why": why,
            "skipped": [gone._asdict() for gone in self._usable.skipped],
            "mended": self._mended.entries, "lost": self._mended.lost,
            "replica_unreachable": self._mended.unreachable,
        }  # fmt: skip
        facts.record(self._node, RECOVERY, self._task, meta, body, about=self._task, actor=agent)

    def _unblock(self, agent: str, checkpoint_id: str) -> None:
        """What this very command, or the loop that gave up, had asked for help with is solved."""
        asked = tasks.readable(self._node, self._task).get("escalation", {}).get("by")
        shown = tasks.show(self._node, self._task, described=False)
        if asked in (SELF, LOOP) and shown["status"] == CheckpointStatus.BLOCKED:
            tasks.resolve(self._node, self._task, f"recovered from {checkpoint_id}", agent)

    def _notes(self, agent: str) -> Iterator[str]:
        former, _ = self._former
        what = {RESUME: "the same agent goes on", TAKEOVER: f"{agent} takes over",
                RESTART: f"{agent} begins from scratch"}  # fmt: skip
        yield (
            f"This is a recovery: {former or 'nobody'} worked on it before and did not finish; "
            f"{what[self._wish.mode]}"
        )
        if self._mended.entries:
            yield f"{len(self._mended.entries)} damaged and mended: what is told here is verified"
        if self._usable.skipped and self._mended.unreachable:
            yield f"The replica could not be asked for good copies: {self._mended.unreachable}"
        for lost in self._mended.lost:
            yield f"Lost here: {lost}"
        if self._usable.broken:
            yield "The line of parents is broken: this is the newest one left, by its time alone"

    # --- whose work it is -------------------------------------------------------------------

    def _is_mine(self, agent: str) -> bool:
        """Whether an agent works on its own task, on the machine where it did before."""
        name, device = self._former
        own = {row[0] for row in self._node.store.rows("own_ids")}
        return agent == name and device in own and not self._fenced(agent)

    def _fenced(self, agent: str) -> bool:
        return bool(self._node.store.place(self._task, agent).fenced)

    def _check_mine(self, agent: str) -> None:
        if self._is_mine(agent):
            return
        holder = tenure.holder(self._node, self._task) if self._fenced(agent) else None
        if holder is not None:
            raise tenure.held(holder, f"{agent} has lost it")
        former, device = self._former
        if agent != former:
            raise UsageError(
                f"{former} worked on {self._task!r}, not {agent}",
                "Add --takeover to take it over, or leave --agent out.",
            )
        raise LeaseHeldError(
            f"{agent} worked on {self._task!r} on another machine (device {device})",
            f"Take it over: `syncd recover {self._task} --takeover`.",
        )

    def _claimed(self, agent: str) -> Tenure:
        """The task, if its agent is silent and nobody else is faster."""
        self._check_silence()
        subject = self._subject(agent)
        return tenure.take(self._node, self._task, subject, agent, self._former, _REPLICA_SECONDS)

    def _subject(self, agent: str) -> str:
        """The checkpoint to go on from; if somebody has it and fell silent before he wrote one,
        his claim."""
        record = self._usable.record
        subject = record.row.id if record else self._newest.id if self._newest else self._task
        me = (agent, self._node.store.device_id)
        by_subject = {c.subject: c for c in tenure.standing(self._node, self._task)}
        while (claim := by_subject.get(subject)) and claim.holder != me:
            subject = claim.entry_id
        return subject

    def _check_silence(self) -> None:
        """Who gave a sign of life a moment ago is at work."""
        if self._wish.force or self._ended():
            return
        limit = self._node.settings["liveness.warning_minutes"]
        for (agent, _), seen in self._signs():
            minutes = (clock.wall_ms() - seen) / MINUTE_MS
            if minutes < limit:
                ago = max(0, int(minutes))
                raise LeaseHeldError(
                    f"{agent} gave a sign of life {ago} minute{'s' * (ago != 1)} ago, "
                    f"less than {limit:g}",
                    "Wait, ask for a hand-off, or add --force if you know that it has crashed.",
                )

    def _ended(self) -> bool:
        """Whether the agent itself said that its work is over."""
        row = self._newest
        return (
            row is not None
            and row.agent_id == self._former[0]
            and (
                bool(row.final)
                or row.phase == ExecutionPhase.HANDOFF
                or row.status in (CheckpointStatus.COMPLETE, CheckpointStatus.FAILED)
            )
        )

    def _signs(self) -> Iterator[tuple[Worker, int]]:
        """The last one of whoever wrote last, and of whoever holds the task; that an agent says its
        work has ended is none."""
        workers = {self._former: 0}
        claim = tenure.holder(self._node, self._task)
        if claim and not presence.ended_since(self._node, self._task, claim.holder, claim.hlc):
            workers[claim.holder] = clock.milliseconds(claim.hlc)
        for found in agents.everybody(self._node):
            worker = (found.sign.agent_id, found.sign.device_id)
            here = found.sign.task_id in ("", self._task) and found.state != presence.ENDED
            if worker in workers and here:
                workers[worker] = max(workers[worker], found.sign.seen_ms)
        yield from workers.items()

    # --- from scratch -----------------------------------------------------------------------

    def _check_worth(self) -> None:
        record = self._usable.record
        minutes = worked_minutes(self._node, record) if record else 0.0
        if minutes > _MUCH_WORK_MINUTES and not self._wish.force:
            raise WorkAtRiskError(
                f"{minutes:.0f} minutes of intact work on {self._task!r} would be put aside, more "
                f"than {_MUCH_WORK_MINUTES:g}",
                f"Go on with it: `syncd recover {self._task}`. To begin anew all the same, add "
                "--force: it stays in the log.",
            )

    def _fresh(self, agent: str) -> str:
        row = self._newest
        why = "it was asked for" if self._usable.record else "nothing intact is left"
        made = CheckpointService(node=self._node).create_checkpoint(
            self._task,
            agent,
            {"phase": str(ExecutionPhase.PLANNING)},
            agent_type=row.agent_type if row else "implementation",
            recovery={"resume_instructions": f"The work begins from scratch, because {why}: take "
                      "nothing for done that was recorded before."},
            reason=str(CheckpointReason.REASSIGNMENT),
            session_id=self._session,
            previous_agents=[self._former[0]] if self._former[0] not in ("", agent) else [],
            parent=row.id if row else None,
        )  # fmt: skip
        return made.metadata.checkpoint_id


def worked_minutes(node: Node, record: Record) -> float:
    """How much work a checkpoint stands for: since the first of its line, or as its agent says."""
    ats = [record.row.created_at, *(before.at for before in line(node.store, record).ancestors)]
    first, last = datetime.fromisoformat(min(ats)), datetime.fromisoformat(max(ats))
    told = record.document().get("metrics", {}).get("duration_seconds", 0)
    return max((last - first).total_seconds(), float(told or 0)) / 60


_WAYS = (
    "how to go on: bring back a backup (`syncd backup list`), let a machine send it that has it "
    "(`syncd sync` there, then here), or begin anew (`syncd recover {task} --restart`)"
)
