"""The pages, one function each: read, then draw. They run in threads, beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from syncd import agents, conflicts, lineage
from syncd.entry import KINDS
from syncd.errors import CheckpointNotFoundError, SyncdError
from syncd.fold import Conflict
from syncd.lineage import Knot
from syncd.trail import Row as Entry
from syncd.ui import drawing, look, reading
from syncd.ui.desk import Days, Desk, Sums
from syncd.ui.kept import Found
from syncd.ui.reading import PAGE, Pager

_STATUSES = ("in_progress", "waiting", "blocked", "escalated", "complete", "failed")
_RANGES = {"7": 7, "30": 30, "90": 90, "all": None}
_ATTEMPTS = 60
# So far back the list of entries looks for what is asked: a question must not take long.
_ENTRIES = 10_000
_WANTING = ("lost", "silent", "behind")
_OUTCOMES = {
    "restored": "Restored: what had lost is current again.",
    "dismissed": "Dismissed: what is current stays, the other one is kept in the log.",
}


class Pages:
    def __init__(self, desk: Desk, word: str) -> None:
        self._desk = desk
        self._word = word

    def of_today(self, page: Callable[[Request], Response]) -> Callable[[Request], Response]:
        """A page that looks at the database which is there now."""

        def drawn(request: Request) -> Response:
            self._desk.renew()
            return page(request)

        return drawn

    # --- one for each place in the navigation -----------------------------------------------------

    def overview(self, _: Request) -> Response:
        desk, found = self._desk, self._desk.status()
        attempts = desk.store.rows("recent_attempts", (_ATTEMPTS,))
        recent = reading.titled(desk, reading.task_lines(desk)[:6])
        return self._page(
            "overview.html", "Overview", status=found.value, fresh=found.fresh, attempts=attempts,
            exchanges=drawing.exchanges(attempts), recent=recent,
        )  # fmt: skip

    def tasks(self, request: Request) -> Response:
        text, status = _asked(request, "q"), _asked(request, "status")
        lines, pager = reading.page_of(
            reading.task_lines(self._desk, text, status), _number(request)
        )
        sums = self._desk.sums()
        known = sums.value.tasks if sums.value else {}
        return self._page(
            "tasks.html", "Tasks", tasks=reading.titled(self._desk, lines), pager=pager, text=text,
            status=status, statuses=_STATUSES, counted=sums.value is not None,
            totals=_totals({line.id: known[line.id] for line in lines if line.id in known}),
            threads={line.id: _thread(sums, line.id) for line in lines if line.thread_at},
            address="/tasks", asked={"q": text, "status": status},
        )  # fmt: skip

    def task(self, request: Request) -> Response:
        desk, task_id, number = self._desk, _asked(request, "id"), _number(request)
        task = reading.task(desk, task_id)
        steps, rows = reading.steps(desk, task_id, number)
        thread = _thread(desk.sums(), task_id) if task.thread_at else None
        knots = lineage.knots(desk.node, task_id, reading.LOOKED_AT)
        spent = _totals(_days_of(knots))
        shares, more, _ = drawing.shares(spent, 8)
        damaged = [step.row.knot.id for step in steps if step.kind == "damaged"]
        pager = Pager(number, number * PAGE < task.checkpoints, task.checkpoints)
        return self._page(
            "task.html", task_id, "tasks", task=task, steps=steps, pager=pager,
            chain=drawing.chain(rows[:PAGE], damaged), shares=shares, more_agents=more,
            timeline=drawing.timeline(reading.stretches(knots)), looked_at=len(knots),
            tokens=sum(tokens for _, tokens in spent.values()), address="/task",
            asked={"id": task_id}, open_forks=_open_forks(desk, task.heads), row_height=drawing.ROW,
            thread=thread,
        )  # fmt: skip

    def checkpoint(self, request: Request) -> Response:
        desk = self._desk
        checkpoint_id = desk.node.checkpoint_id(_asked(request, "id"))
        seen = reading.checkpoint(desk, checkpoint_id)
        parent = _parent(desk, seen.knot.parent_id)
        both = seen.document and parent and parent.document
        return self._page(
            "checkpoint.html", f"Checkpoint of {seen.task_id}", "tasks", seen=seen, parent=parent,
            differences=reading.differences(both, seen.document or {}) if both else None,
            versions=desk.store.rows("versions_of", (checkpoint_id, "checkpoint")),
            disputes=[Conflict(*row) for row in desk.store.rows("conflicts_of", (checkpoint_id,))],
        )  # fmt: skip

    def conflicts(self, request: Request) -> Response:
        everything, number = _asked(request, "all") == "1", _number(request)
        asked = (None if everything else "open", PAGE + 1, (number - 1) * PAGE)
        rows = [Conflict(*row) for row in self._desk.store.rows("conflicts_page", asked)]
        return self._page(
            "conflicts.html", "Conflicts", conflicts=rows[:PAGE], everything=everything,
            pager=Pager(number, len(rows) > PAGE), address="/conflicts",
            asked={"all": "1" if everything else ""},
            counts=dict(self._desk.store.rows("conflict_counts")),
            quarantined=conflicts.quarantined(self._desk.node, "open")[:PAGE],
        )  # fmt: skip

    def conflict(self, request: Request) -> Response:
        dispute = reading.dispute(self._desk, _asked(request, "id"))
        done = _OUTCOMES.get(_asked(request, "done"), "")
        return self._page("conflict.html", "Conflict", "conflicts", dispute=dispute, done=done)

    def agents(self, request: Request) -> Response:
        state, text = _asked(request, "state"), _asked(request, "q").casefold()
        everybody = agents.listed(self._desk.node, everything=True)
        found = [
            agent for agent in everybody
            if state in ("", agent["state"])
            and (text in agent["agent_id"].casefold() or text in agent["task_id"].casefold())
        ]  # fmt: skip
        shown, pager = reading.page_of(found, _number(request))
        return self._page(
            "agents.html", "Agents", agents=shown, pager=pager, state=state,
            text=_asked(request, "q"), states=sorted({agent["state"] for agent in everybody}),
            address="/agents", asked={"state": state, "q": _asked(request, "q")},
        )  # fmt: skip

    def cost(self, request: Request) -> Response:
        range_ = _asked(request, "days") if _asked(request, "days") in _RANGES else "30"
        task_id, found, today = _asked(request, "task"), self._desk.sums(), datetime.now(UTC).date()
        sums = _of_task(self._desk, task_id, found.value) if task_id else found.value
        days = _RANGES[range_]
        context: dict[str, Any] = {"known": sums is not None}
        if sums is not None:
            by_day = _by_day(sums.tasks)
            columns = drawing.columns(by_day, days, today)
            first = columns.first
            context |= {
                "columns": columns,
                "tasks": drawing.shares(_totals(sums.tasks, first)),
                "agents": drawing.shares(_totals(sums.agents, first)),
            }
        return self._page(
            "cost.html", "Cost", days=range_, ranges=list(_RANGES), task_id=task_id,
            fresh=found.fresh, **context,
        )  # fmt: skip

    def audit(self, request: Request) -> Response:
        store, number = self._desk.store, _number(request)
        asked = {name: _asked(request, name) for name in ("entity", "task", "actor")}
        newest = store.row("newest")
        earliest = max(0, (newest[0] if newest else 0) - _ENTRIES)
        rows = store.rows(
            "recent_entries", (earliest, *asked.values(), PAGE + 1, (number - 1) * PAGE)
        )
        return self._page(
            "audit.html", "Audit", problems=store.rows("problems")[:200], check=self._desk.check,
            entries=[Entry._make(row) for row in rows[:PAGE]], asked=asked, limit=_ENTRIES,
            entities=KINDS, devices=store.rows("signed_devices")[:200],
            own=store.device_id, last=newest, pager=Pager(number, len(rows) > PAGE),
            address="/audit", everything=earliest == 0,
        )  # fmt: skip

    def fleet(self, _: Request) -> Response:
        found = self._desk.fleet().value
        if found is None or found.problem:
            return self._page("fleet.html", "Fleet", fleet=found)
        spent = {name: (number, tokens) for name, number, tokens in found.agents}
        days = {str(row[0]): int(row[1]) for row in found.days}
        return self._page(
            "fleet.html", "Fleet", fleet=found, agents=drawing.shares(spent, 10),
            columns=drawing.columns(days, 30, datetime.now(UTC).date()),
            attention=sum(machine[2] in _WANTING for machine in found.machines),
        )  # fmt: skip

    # --- what changes something -------------------------------------------------------------------

    def restore(self, request: Request) -> Response:
        return self._settled(request, "restored")

    def dismiss(self, request: Request) -> Response:
        return self._settled(request, "dismissed")

    def _settled(self, request: Request, how: str) -> Response:
        conflict_id = request.scope["syncd_form"].get("id", "")
        settle = conflicts.restore if how == "restored" else conflicts.dismiss
        settle(self._desk.node, conflict_id)
        return RedirectResponse(look.link("/conflict", id=conflict_id, done=how), 303)

    def verify(self, _: Request) -> Response:
        self._desk.verify()
        return RedirectResponse("/audit", 303)

    # --- the rest -------------------------------------------------------------------------------

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in look.files():
            raise CheckpointNotFoundError(f"there is no file {name!r}", "Go back to the overview.")
        content, kind = look.files()[name]
        return Response(content, media_type=kind)

    async def live(self, _: Request) -> Response:
        return StreamingResponse(self._desk.live.events(), media_type="text/event-stream")

    def problem(self, error: SyncdError) -> Response:
        code = {"not_found": 404, "usage": 400, "invalid_input": 400}.get(error.code, 500)
        if error.exit_code == 7:
            code = 409
        return self._page("problem.html", "Not possible", "", code=code, error=error)

    def _page(
        self,
        template: str,
        title: str,
        place: str | None = None,
        *,
        code: int = 200,
        **context: Any,
    ) -> Response:
        here = template.removesuffix(".html") if place is None else place
        html = look.drawn(
            template, title=title, here=here, word=self._word, badges=self._badges(), **context
        )
        return HTMLResponse(html, code)

    def _badges(self) -> dict[str, int]:
        """How much waits for a decision; what cannot be counted is told elsewhere."""
        try:
            disputed, held = self._desk.store.row("counts_open") or (0, 0)
        except SyncdError:
            return {}
        return {"conflicts": disputed + held}


def _asked(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()[:500]


def _number(request: Request) -> int:
    text = _asked(request, "page")
    return min(max(int(text), 1), 100_000) if text.isascii() and text.isdigit() else 1


def _parent(desk: Desk, parent_id: str) -> reading.Seen | None:
    try:
        return reading.checkpoint(desk, parent_id) if parent_id else None
    except CheckpointNotFoundError:
        return None


def _open_forks(desk: Desk, heads: list[dict[str, Any]]) -> list[Conflict]:
    rows = [row for head in heads[:50] for row in desk.store.rows(
        "conflicts_of", (head["checkpoint_id"],))]  # fmt: skip
    return [Conflict(*row) for row in rows]


# --- sums ---------------------------------------------------------------------------------------


def _thread(sums: Found[Sums], task_id: str) -> tuple[int, str] | None:
    """How many states a graph's thread has, and the time of the last one, if that is known yet."""
    known = sums.value.threads.get(task_id) if sums.value else None
    return known or ((0, "") if sums.fresh else None)


def _totals(by_name: Mapping[str, Any], first: str = "") -> dict[str, tuple[int, int]]:
    """Checkpoints and tokens of each, from some day on."""
    found = {}
    for name, days in by_name.items():
        meant = [value for day, value in days.items() if day >= first]
        if meant:
            found[name] = (sum(n for n, _ in meant), sum(tokens for _, tokens in meant))
    return found


def _by_day(by_name: Mapping[str, Days]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for days in by_name.values():
        for day, (_, tokens) in days.items():
            found[day] += tokens
    return found


def _of_task(desk: Desk, task_id: str, known: Sums | None) -> Sums | None:
    """One task alone."""
    if known is None:
        return None
    knots = lineage.knots(desk.node, task_id, reading.LOOKED_AT)
    days = known.tasks.get(task_id, {})
    return Sums({task_id: days} if days else {}, _days_of(knots), {})


def _days_of(knots: Sequence[Knot]) -> dict[str, Days]:
    """What each agent spent on each day."""
    found: dict[str, Days] = defaultdict(dict)
    for knot in knots:
        day = knot.created_at[:10]
        number, tokens = found[knot.agent_id].get(day, (0, 0))
        found[knot.agent_id][day] = (number + 1, tokens + knot.tokens)
    return dict(found)
