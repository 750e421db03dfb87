"""`syncd sync`, `flush`, `prove`: the exchange with the replica, once and now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from syncd.cli import render
from syncd.cli.bars import bars
from syncd.cli.verb import App, Number, verb, warn
from syncd.errors import LoginRefusedError, ReplicaError, UnconfiguredError

if TYPE_CHECKING:
    from syncd.proof import Proof
    from syncd.sync import Engine, Outcome, Progress

_SHOWN = 10
_READS_ONLY = "this login only reads (an auditor's)"
_DIRECTIONS = {"push": "Sending", "pull": "Receiving"}


@click.command()
@click.option("--push-only", is_flag=True, help="Send, do not fetch.")
@click.option("--pull-only", is_flag=True, help="Fetch, do not send.")
@verb
def sync(app: App, push_only: bool, pull_only: bool) -> None:
    """Exchange entries with the replica, once, now."""
    if push_only and pull_only:
        raise click.UsageError("--push-only and --pull-only exclude each other")
    with bars(app, _DIRECTIONS) as progress, _exchange(app, progress) as engine:
        outcome = engine.sync(push=not pull_only, pull=not push_only)
        reads_only = not engine.may_write()
        if not pull_only:
            _exchange_signs(app, engine)
    _finish_purges(app)
    document = {**outcome._asdict(), "state": "online", "reads_only": reads_only}
    app.emit(document, lambda: _told(outcome, reads_only))


def _exchange_signs(app: App, engine: Engine) -> None:
    """Who is at work here, and elsewhere; an auditor only hears."""
    from syncd import agents

    signs = agents.own_signs(app.node) if engine.may_write() else []
    agents.exchange(app.node, engine, signs)
    if signs:
        _announce(engine)


def _announce(engine: Engine) -> None:
    """Daemons elsewhere ask for signs when they are told. They are not told twice within some
    milliseconds, and may have been told of entries just now."""
    engine.announce()
    if engine.announce_in:
        time.sleep(engine.announce_in)
        engine.announce()


def _finish_purges(app: App) -> None:
    """What was purged and has now taken effect goes from the files here too."""
    from syncd import retention

    for path in retention.complete(app.node):
        warn(f"{path} may still hold what was purged; it is tried again next time")


def _told(outcome: Outcome, reads_only: bool) -> str:
    sent = render.count(outcome.pushed, "entry", "entries")
    new = render.count(outcome.pulled, "entry", "entries")
    lines = [f"Sent {sent}, received {new}."]
    if outcome.pending:
        waits = f"Kept here, for {_READS_ONLY}" if reads_only else "Still to be sent"
        lines.append(f"{waits}: {outcome.pending:,}.")
    if outcome.conflicts:
        found = render.count(outcome.conflicts, "conflict", "conflicts")
        lines.append(click.style(f"{found}: ", fg="yellow") + "syncd conflicts list")
    if outcome.quarantined:
        found = render.count(outcome.quarantined, "entry", "entries")
        lines.append(click.style(f"{found} in quarantine: ", fg="red") + "syncd quarantine list")
    return "\n".join(lines)


@contextmanager
def _exchange(app: App, progress: Progress | None = None) -> Iterator[Engine]:
    """Whoever is refused wants to know first what becomes of his work."""
    try:
        with app.node.syncing(progress) as engine:
            yield engine
    except LoginRefusedError as error:
        waiting = render.count(_pending(app), "entry", "entries")
        raise LoginRefusedError(
            f"{error.message}; not sent yet, and safe on this machine: {waiting}", error.remedy
        ) from None


def _pending(app: App) -> int:
    from syncd.exchange import Exchange

    return Exchange(app.node.store).pending_count()


def _refused(app: App) -> int:
    from syncd.exchange import Exchange

    return len(Exchange(app.node.store).refused())


class UnsentError(ReplicaError):
    """The replica has not everything yet, or will not take it; for programs with the numbers."""

    code = "unsent"
    remedy = "Run it again with a longer --wait; the daemon sends what is left by itself."

    def __init__(self, message: str, remedy: str | None, numbers: dict[str, object]) -> None:
        super().__init__(message, remedy)
        self.numbers = numbers

    def as_dict(self) -> dict[str, object]:
        return super().as_dict() | self.numbers

    def because(self, cause: ReplicaError) -> UnsentError:
        """As what kept the last attempt from sending it."""
        self.code, self.exit_code, self.data_safe = cause.code, cause.exit_code, cause.data_safe
        return self


class _ReadsOnlyError(ReplicaError):
    """However long one waits."""

    code = "reads_only"
    exit_code = 1
    remedy = "A member's login sends it: `syncd admin member add`, then `syncd login`."


@click.command()
@click.option(
    "--wait", "seconds", type=Number(0, 1e6), default=10.0, show_default=True,
    help="Give up after so many seconds.",
)  # fmt: skip
@verb
def flush(app: App, seconds: float) -> None:
    """Wait until the replica has everything that was written here.

    Exits 6 if it cannot be reached until then, 1 if it has not everything for another reason; what
    is missing stays safe on this machine.
    """
    began = time.monotonic()
    while True:
        pending, problem = _attempt(app)
        left = began + seconds - time.monotonic()
        if not pending or left <= 0 or isinstance(problem, _ReadsOnlyError):
            break
        time.sleep(min(0.5, left))
    refused = _refused(app)
    numbers = {"safe": not pending and not refused, "pending": pending, "refused": refused,
               "last_error": problem.message if problem else "",
               "waited_s": round(time.monotonic() - began, 3)}  # fmt: skip
    if pending or refused:
        raise _unsent(pending, refused, problem, numbers)
    safe = click.style("Safe: ", fg="green", bold=True) + "the replica has everything."
    app.emit(numbers, safe)


def _attempt(app: App) -> tuple[int, ReplicaError | None]:
    """Send; how many entries are left then, and why."""
    problem = None
    try:
        with app.node.syncing() as engine:
            if engine.sync(pull=False).pending and not engine.may_write():
                raise _ReadsOnlyError(_READS_ONLY)
    except UnconfiguredError:
        raise
    except ReplicaError as error:
        problem = error
    return _pending(app), problem


def _unsent(
    pending: int, refused: int, problem: ReplicaError | None, numbers: dict[str, object]
) -> UnsentError:
    lines = []
    if pending:
        waiting = render.count(pending, "entry waits", "entries wait")
        lines.append(f"{waiting} on this machine")
    if refused:
        found = render.count(refused, "entry was", "entries were")
        lines.append(f"{found} refused and only on this machine")
    if not pending:
        return UnsentError(lines[0], _REFUSED, numbers)
    if problem is None:
        return UnsentError("; ".join(lines), None, numbers)
    lines.append(problem.message)
    return UnsentError("; ".join(lines), problem.remedy, numbers).because(problem)


_REFUSED = "`syncd quarantine list` says why; `syncd quarantine retry ID` offers it again."


@click.command()
@click.option("--repair", is_flag=True, help="Send and fetch what is missing, then look again.")
@click.pass_context
@verb
def prove(app: App, ctx: click.Context, repair: bool) -> None:
    """Compare everything here with everything at the replica.

    Exits 3 if one side lacks something, or an entry here is damaged, and names it.
    """
    from syncd import audit, mending, proof

    with _exchange(app) as engine:
        engine.meet()
        found = proof.repair(engine) if repair else proof.prove(engine.exchange, engine.replica)
        damaged = audit.damaged(app.node.store)
        if repair:
            damaged = mending.mend_bodies(app.node.store, engine.replica, damaged)
        reads_only = not engine.may_write()
    ok = found.ok and not damaged
    document = {"ok": ok, **found._asdict(), "damaged": damaged}
    app.emit(document, lambda: _compared(app, found, damaged, repair, reads_only))
    if not ok:
        ctx.exit(3)


def _compared(app: App, found: Proof, damaged: list[str], repaired: bool, reads_only: bool) -> str:
    lines = [_proved(app, found, repaired, reads_only)] if damaged == [] or not found.ok else []
    if damaged:
        lines += [render.labelled("Damaged here: ", _few(damaged), "red"), _TO_MEND[repaired]]
    return "\n".join(lines)


# Before a repair, and after it.
_TO_MEND = (
    "`syncd prove --repair` fetches what the replica has of it.",
    "`syncd audit verify` says what is wrong; `syncd recover TASK` goes on with a task, `syncd "
    "backup restore` goes back to a copy.",
)


def _few(entry_ids: list[str]) -> str:
    more = f" and {len(entry_ids) - _SHOWN:,} more" if len(entry_ids) > _SHOWN else ""
    return f"{', '.join(entry_ids[:_SHOWN])}{more}"


def _proved(app: App, found: Proof, repaired: bool, reads_only: bool) -> str:
    if found.ok:
        all_of_them = render.count(found.local, "entry", "entries")
        good = click.style("Proven: ", fg="green", bold=True)
        return good + f"both sides have the same {all_of_them}."
    lines = [click.style("Different: ", fg="red", bold=True)
             + f"{found.local:,} entries here, {found.cloud:,} at the replica."]  # fmt: skip
    for title, missing in (
        ("Missing at the replica", found.missing_in_cloud),
        ("Missing here", found.missing_here),
    ):
        if missing:
            lines.append(f"{title}: {_few(missing)}")
    if reads_only and found.missing_in_cloud:
        lines.append(f"What is missing at the replica stays here, for {_READS_ONLY}.")
    elif not repaired:
        lines.append("`syncd prove --repair` exchanges what is missing.")
    elif refused := _refused(app):
        found_there = render.count(refused, "entry", "entries")
        lines.append(f"In quarantine: {found_there}. `syncd quarantine list` says why; `syncd "
                     "quarantine retry ID` offers it again.")  # fmt: skip
    elif found.missing_in_cloud:
        lines.append(
            "Other machines wrote what is still missing there. They send it themselves; if they "
            "are lost,\nan administrator runs `syncd admin recovery open`, then repeat this."
        )
    else:
        lines.append("It could not be taken in: `syncd quarantine list` says why.")
    return "\n".join(lines)
