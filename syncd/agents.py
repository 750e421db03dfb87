"""Who is at work, on every machine, and who has fallen silent.

An agent's sign of life is the newest of its heartbeat and its newest checkpoint. Those of this
device are dated by its own clock. Those of others come from the replica as ages, so that nobody
depends on another machine's clock, and are judged as of the last time that it was asked: what could
not be heard is no silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from syncd import clock, facts
from syncd.entry import AGENT
from syncd.facts import Fact
from syncd.node import Node
from syncd.presence import CRASHED, MINUTE_MS, RECOVERED, WARNED, Sign, minutes_ms, own_ids

if TYPE_CHECKING:
    from syncd.sync import Engine

ACTIVE, WARNING, IDLE = "active", "warning", "idle"
# Why nobody expects a sign of life, beside what the task and the agent's own words say.
ELSEWHERE, FORGOTTEN = "elsewhere", "forgotten"
KEPT_MS = 7 * 24 * 60 * MINUTE_MS
_AT_ONCE = 1_000
_AS_OF = "presence_as_of"
GOES_ON = (WARNED, CRASHED, RECOVERED)
Key = tuple[str, str, str]


class Agent(NamedTuple):
    """`why` says why no sign of life is expected, `age_ms` how old the last one was when that could
    last be known, `history` what was recorded since, newest last."""

    sign: Sign
    own: bool
    why: str
    age_ms: int
    state: str
    history: list[Fact]

    @property
    def recorded(self) -> str:
        """The last transition."""
        return str(self.history[-1].meta["state"]) if self.history else ""

    @property
    def expected(self) -> bool:
        """Whether its silence means something."""
        return not self.why and self.state in (ACTIVE, WARNING, CRASHED)

    def since(self, state: str) -> str | None:
        """When it was first found so, if it has not recovered since."""
        first = None
        for fact in self.history:
            if fact.meta["state"] == RECOVERED:
                first = None
            elif fact.meta["state"] == state:
                first = first or fact.at
        return first

    def last(self, state: str) -> str:
        """The entry that last said so."""
        found = (f.entry_id for f in reversed(self.history) if f.meta["state"] == state)
        return next(found, "")


class View(NamedTuple):
    """From where and when the others are looked at."""

    node: Node
    own: set[str]
    now: int
    as_of: int
    skew: int

    def local_ms(self, hlc: int, device_id: str) -> int:
        """A reading in this device's time; those of others are near the replica's."""
        return clock.milliseconds(hlc) + (0 if device_id in self.own else self.skew)

    def histories(self, names: list[str]) -> list[list[Fact]]:
        """What was recorded of each, newest last; named as transitions name them."""
        found = facts.about_each(self.node, AGENT, names)
        order = {name: sorted(told, key=_by_time) for name, told in found.items()}
        return [order.get(name, []) for name in names]


def _by_time(fact: Fact) -> tuple[int, str]:
    return fact.hlc, fact.entry_id


def view(node: Node) -> View:
    now, state = node.store.now_ms(), dict(node.store.rows("states"))
    as_of = min(int(state.get(_AS_OF) or now), now)
    return View(node, own_ids(node), now, as_of, int(state.get("skew_ms") or 0))


def everybody(node: Node) -> list[Agent]:
    """All of whom anything is known that has not been forgotten, the newest first."""
    with node.store.snapshot():
        return judged(view(node), node.store.rows("at_work", (None,)))


def judged(seen_from: View, at_work: Iterable[tuple[Any, ...]]) -> list[Agent]:
    """Those who gave signs of life, and of those at work these: rows of the query `at_work`."""
    found = _moved(dict(_signs(seen_from, at_work)))
    histories = seen_from.histories([sign.about for sign, _, _ in found])
    agents = [
        _judged(seen_from, *signs, history) for signs, history in zip(found, histories, strict=True)
    ]
    return sorted(_without_general(agents), key=lambda agent: -agent.sign.seen_ms)


def by_age(seen_from: View, at_work: Iterable[tuple[Any, ...]]) -> list[Agent]:
    """Those of whom nothing is known but when they wrote: rows of the same query, of agents that
    give no other signs of life, and of whom nothing was recorded that is still true."""
    return [
        _judged(
            seen_from, Sign(device, agent, task, kind, "", seen_from.local_ms(hlc, device)),
            "", False, [],
        )
        for device, agent, task, kind, hlc in at_work
    ]  # fmt: skip


# --- signs of life --------------------------------------------------------------------------------


class _Found(NamedTuple):
    sign: Sign
    why: str
    beats: bool  # whether there was a heartbeat, not only a checkpoint


def _signs(view: View, at_work: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Key, _Found]]:
    """By device, agent and task: the newest of heartbeat and checkpoint."""
    present = view.node.store.rows("present")
    beats = {row[:3]: _Found(Sign(*row[:6]), row[6], True) for row in present}
    wrote = {row[:3]: (row[3], view.local_ms(row[4], row[0])) for row in at_work}
    for key in {**beats, **wrote}:
        kind, at = wrote.get(key, ("", 0))
        device, agent, task = key
        found = beats.get(key) or _Found(Sign(device, agent, task, kind, "", at), "", False)
        general = beats.get((device, agent, ""))
        seen = max(found.sign.seen_ms, at, general.sign.seen_ms if general else 0)
        kind = found.sign.agent_type or kind
        yield key, found._replace(sign=found.sign._replace(seen_ms=seen, agent_type=kind))


def _moved(signs: dict[Key, _Found]) -> list[_Found]:
    """An agent that goes on with its task on another machine is not missed on the one before."""
    newest: dict[tuple[str, str], Sign] = {}
    for (_, agent, task), found in signs.items():
        before = newest.get((agent, task))
        if before is None or found.sign.seen_ms > before.seen_ms:
            newest[agent, task] = found.sign
    return [
        found if found.sign == newest[key[1:]] else found._replace(why=found.why or ELSEWHERE)
        for key, found in signs.items()
    ]


def _without_general(agents: list[Agent]) -> list[Agent]:
    """Whoever is known by what it works on need not be listed without it."""
    busy = {a.sign[:2] for a in agents if a.sign.task_id and not a.why}
    return [a for a in agents if a.sign.task_id or a.sign[:2] not in busy]


# --- what they mean -------------------------------------------------------------------------------


def _judged(view: View, sign: Sign, why: str, beats: bool, history: list[Fact]) -> Agent:
    own = sign.device_id in view.own
    age = max((view.now if own else view.as_of) - sign.seen_ms, 0)
    state = state_of(view.node, age)
    if age > KEPT_MS and not (history and history[-1].meta["state"] == CRASHED):
        why = why or FORGOTTEN
    if history and history[-1].meta["state"] not in GOES_ON:
        at = view.local_ms(history[-1].hlc, history[-1].device_id)
        if at > sign.seen_ms or (at == sign.seen_ms and not beats):
            state = str(history[-1].meta["state"])
    elif why and state != ACTIVE:
        state = IDLE
    return Agent(sign, own, why, age, state, history)


def state_of(node: Node, age_ms: float) -> str:
    """By how long nothing was heard."""
    if age_ms > minutes_ms(node, CRASHED):
        return CRASHED
    return WARNING if age_ms > minutes_ms(node, WARNING) else ACTIVE


def counts(found: Iterable[Agent]) -> dict[str, int]:
    """How many agents are in each state. One that is alive anywhere is."""
    best: dict[tuple[str, str], int] = {}
    order = (ACTIVE, WARNING, CRASHED)
    for agent in found:
        if agent.state in order:
            name = (agent.sign.device_id, agent.sign.agent_id)
            best[name] = min(best.get(name, len(order)), order.index(agent.state))
    states = list(best.values())
    return {"active": states.count(0), "warning": states.count(1), "stale": states.count(2)}


def to_reassign(node: Node, task_id: str | None = None) -> set[str]:
    """Tasks whose agent was presumed to have crashed, and that nobody else goes on with."""
    suspected = {task for (task,) in node.store.rows("crashed_tasks")}
    if not suspected or (task_id is not None and task_id not in suspected):
        return set()
    agents = [a for a in everybody(node) if a.sign.task_id in suspected]
    alive = {a.sign.task_id for a in agents if a.state in (ACTIVE, WARNING)}
    gone = {a.sign.task_id for a in agents if a.state == a.recorded == CRASHED}
    return gone - alive


def listed(node: Node, *, everything: bool = False, task_id: str = "") -> list[dict[str, Any]]:
    """CONTRACT: `syncd agents --json`. Without `everything`, those at work, or missed there."""
    found = (a for a in everybody(node) if task_id in ("", a.sign.task_id))
    return [document(node, a) for a in found if everything or a.expected or a.state == ACTIVE]


def document(node: Node, agent: Agent) -> dict[str, Any]:
    sign = agent.sign
    expected = int(sign.seen_ms + minutes_ms(node, "heartbeat"))
    return {
        "agent_id": sign.agent_id,
        "task_id": sign.task_id,
        "agent_type": sign.agent_type,
        "session_id": sign.session_id,
        "device_id": sign.device_id,
        "state": agent.state,
        "why": agent.why,
        "last_seen": clock.iso(sign.seen_ms),
        "age_s": round(max(node.store.now_ms() - sign.seen_ms, 0) / 1000, 3),
        "next_expected": clock.iso(expected),
        "warned_since": agent.since(WARNED),
        "crashed_since": agent.since(CRASHED),
    }


# --- the replica ----------------------------------------------------------------------------------


def own_signs(node: Node) -> list[Sign]:
    """What others are told of this device: the newest sign of each agent that has not ended."""
    states = (ACTIVE, WARNING, CRASHED, IDLE)
    found = [a.sign for a in everybody(node) if a.own and a.state in states]
    earliest = node.store.now_ms() - KEPT_MS
    return [sign for sign in found if sign.seen_ms > earliest][:_AT_ONCE]


def exchange(node: Node, engine: Engine, signs: Iterable[Sign]) -> None:
    """Tell of this device's agents, and hear of all others'."""
    from syncd.replica import Seen

    now = node.store.now_ms()
    own = [Seen(*sign[:5], max(now - sign.seen_ms, 0)) for sign in signs]
    engine.check_key()
    heard = engine.replica.presence(node.store.device_id, own)
    now, mine = node.store.now_ms(), own_ids(node)
    with node.store.transaction():
        node.store.change("drop_signs_elsewhere", (orjson.dumps(list(mine)).decode(),))
        node.store.change("drop_old_signs", (now - KEPT_MS,))
        for seen in heard:
            if seen.device_id not in mine:
                node.store.change("put_sign", (*seen[:5], now - seen.age_ms))
        node.store.change("put_state", (_AS_OF, str(now)))


def overdue(node: Node) -> bool:
    """Whether somebody on another machine should have given a sign of life by now, as far as is
    known here: then the replica may know more."""
    now, patience = node.store.now_ms(), minutes_ms(node, "heartbeat")
    return any(
        not agent.own and agent.expected and agent.recorded != CRASHED
        and now - agent.sign.seen_ms > patience
        for agent in everybody(node)
    )  # fmt: skip
