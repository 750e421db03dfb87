"""What is told of the whole log without looking at all of it: how much there is, whom one might
miss, and which claims were lost.

A tally is kept as of some place in the log, and what came after it is looked at each time. It is
true as long as the log only grows: whoever changes what is there, or puts something before its end,
makes it forgotten, and so does another clock or another name of this device. It is written by who
asks, since a write with every checkpoint would cost all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from syncd import agents, clock, tenure
from syncd.agents import GOES_ON, KEPT_MS, WARNING, Agent, View
from syncd.errors import StoreError
from syncd.facts import Fact
from syncd.node import Node
from syncd.presence import CRASHED, MINUTE_MS, about, minutes_ms

# The name in the device's own state.
_NAME = "tally"
# So many entries are looked at each time before the tally is brought up to date, and up to so many
# then; if there are more, all tasks are.
_FEW, _MANY = 32, 2_000
# Clocks are set right now and then: one day less is forgotten than could be.
_MARGIN_MS = 24 * 60 * MINUTE_MS
_NOTHING, _AGE, _ALWAYS = 0, 1, 2
_Row = tuple[Any, ...]


class Tally(NamedTuple):
    """`agents` are those who give signs of life, who are or may be missed, and of each agent that
    may be at work on several tasks one that stands for it; `lost` are tasks."""

    checkpoints: int
    tasks: int
    agents: list[Agent]
    lost: list[str]


class _Kept(NamedTuple):
    """Up to `seq`, for a device with these ids; of whom nothing was heard since `edge_ms` nothing
    is expected."""

    seq: int
    checkpoints: int
    tasks: int
    lost: list[str]
    own: list[str]
    edge_ms: int


def keep(node: Node) -> None:
    """Bring the tally up to date if much has come since. Whoever cannot write does without."""
    kept = _kept(agents.view(node))
    (head, _) = node.store.row("cursor_here") or (0, 0)
    if kept and head - kept.seq <= _FEW:
        return
    try:
        with node.store.transaction(patient=False):
            _keep(agents.view(node))
    except StoreError:  # what is wrong with the database is told by those who read it
        return


def read(node: Node) -> Tally:
    """As of this moment."""
    with node.store.snapshot():
        view = agents.view(node)
        kept = _kept(view)
        if kept is None:
            return _in_full(view)
        changed = _changed(node, kept.seq)
        counts = _counts(node, kept, changed)
        rows = node.store.rows("at_work", (_text(changed),)) if changed else []
        looked_at, stand_ins = _worth_a_look(view, changed)
        found = [*agents.judged(view, [*rows, *looked_at]), *agents.by_age(view, stand_ins)]
        return Tally(*counts, found, _lost(node, kept, changed))


def _in_full(view: View) -> Tally:
    _, checkpoints, tasks, _ = view.node.store.row("counts_here") or (0, 0, 0, 0)
    everybody = agents.everybody(view.node)
    return Tally(checkpoints, tasks, everybody, tenure.tasks_lost(view.node))


# --- what was kept --------------------------------------------------------------------------------


def _kept(view: View) -> _Kept | None:
    """The tally, if it is still true."""
    row = view.node.store.row("state", (_NAME,))
    kept = _Kept(*orjson.loads(row[0])) if row else None
    if kept and kept.own == sorted(view.own) and kept.edge_ms <= _forgotten_ms(view):
        return kept
    return None


def _keep(view: View) -> None:
    """Inside a transaction."""
    store, kept = view.node.store, _kept(view)
    (head, _) = store.row("cursor_here") or (0, 0)
    if kept is None or head - kept.seq > _MANY:
        _, checkpoints, tasks, _ = store.row("counts_here") or (0, 0, 0, 0)
        lost, names = tenure.tasks_lost(view.node), None
        store.change("clear_working")
    else:
        changed = _changed(view.node, kept.seq)
        checkpoints, tasks = _counts(view.node, kept, changed)
        lost, names = _lost(view.node, kept, changed), _text(changed)
    store.change("know_tasks", (names,))
    rows = store.rows("at_work", (names,))
    histories = view.histories([about(task, agent, device) for device, agent, task, *_ in rows])
    for row, history in zip(rows, histories, strict=True):
        store.change("put_working", (*row, _look(row, history)))
    edge = _forgotten_ms(view) - _MARGIN_MS
    store.change("forget_working", (edge << clock.COUNTER_BITS,))
    now = [head, checkpoints, tasks, lost, sorted(view.own), edge]  # as _Kept
    store.change("put_state", (_NAME, orjson.dumps(now).decode()))


def _look(row: tuple[Any, ...], history: list[Fact]) -> int:
    """Whether the time of a checkpoint tells what is to be expected of who wrote it."""
    device_id, hlc = row[0], row[4]
    if not history:
        return _AGE
    last = history[-1]
    if last.meta["state"] in GOES_ON:
        return _ALWAYS if last.meta["state"] == CRASHED else _AGE
    if last.device_id != device_id:  # by another clock
        return _ALWAYS
    return _NOTHING if clock.milliseconds(last.hlc) >= clock.milliseconds(hlc) else _AGE


def _forgotten_ms(view: View) -> int:
    """Of whom nothing was heard since then nothing is expected, on whatever device."""
    patience = max(KEPT_MS, minutes_ms(view.node, CRASHED), minutes_ms(view.node, WARNING))
    return min(view.now, view.as_of - view.skew) - int(patience) - 1


# --- what came since ------------------------------------------------------------------------------


def _changed(node: Node, seq: int) -> list[str]:
    return sorted(task for (task,) in node.store.rows("tasks_since", (seq,)) if task)


def _counts(node: Node, kept: _Kept, changed: Iterable[str]) -> tuple[int, int]:
    """Checkpoints and tasks."""
    more = node.store.row("counts_since", (kept.seq, _text(changed))) or (0, 0)
    return kept.checkpoints + more[0], kept.tasks + more[1]


def _lost(node: Node, kept: _Kept, changed: list[str]) -> list[str]:
    again = tenure.tasks_lost(node, changed) if changed else []
    return sorted({*kept.lost, *again} - (set(changed) - set(again)))


def _worth_a_look(view: View, changed: Iterable[str]) -> tuple[list[_Row], list[_Row]]:
    """Rows of the tally, as the query `at_work` gives them: whom to look at, and of each agent
    where it was heard of last, if nothing else is known of it."""
    now = max(view.now, view.as_of - view.skew)
    missed_ms = int(now - min(minutes_ms(view.node, CRASHED), KEPT_MS)) + 1
    beats, again = view.node.store.rows("sign_keys"), set(changed)
    on_tasks = {task for _, _, task in beats if task}
    general = {(device, agent) for device, agent, task in beats if not task}
    places = (missed_ms << clock.COUNTER_BITS, *map(_text, (again | on_tasks, on_tasks, general)))
    rows = view.node.store.rows("worth_a_look", places)
    looked_at = [row[:5] for row in rows if not row[5] and row[2] not in again]
    return looked_at, [row[:5] for row in rows if row[5] and row[:2] not in general]


def _text(names: Iterable[Any]) -> str:
    return orjson.dumps(list(names)).decode()
