"""The daemon's side of the exchange: one thread, one connection, and when to try again.

It sleeps until a bell rings (somebody wrote here), the connection has news, or a time has come.
Nothing it must do is remembered in a flag that could get stuck: what waits is in the log, and as
long as the replica cannot be reached there is a time for the next attempt.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

from syncd import agents, clock, disk
from syncd.breaker import Breaker
from syncd.daemon import logs
from syncd.daemon.signs import Signs
from syncd.errors import (
    DivergedError,
    KeyChangedError,
    LoginRefusedError,
    ReplicaError,
    SyncdError,
    UnconfiguredError,
)
from syncd.exchange import Exchange
from syncd.node import Node
from syncd.replica import Replica
from syncd.sync import Engine

UNCONFIGURED, ONLINE, OFFLINE = "unconfigured", "online", "offline"
PUSH, PULL, REPORT, NEWS, PRESENCE = "push", "pull", "report", "news", "presence"
LOOK, LOOK_AGAIN, HEARD = "look", "look again", "heard"
HURRY, RELOAD, REOPEN = "hurry", "reload", "reopen"
_REPORT_SECONDS = 2.0
# What was sent is numbered among the entries of others, and the cursor goes past it with the next
# pull: once nothing more is sent, not in the midst of writing, nor out of a long silence.
_CATCH_UP_SECONDS = 2.0
_NEVER = float("inf")
# A commit is seen in the file before SQLite shows it to others: it is synced to disk in between.
# A busy disk can take seconds for that, and says nothing when it is done.
_LOOKS = tuple(0.001 * 2**number for number in range(13))
_ROUNDS = 3


class Cloud(NamedTuple):
    """What is known of the replica, and since when."""

    state: str = UNCONFIGURED
    as_of: str = ""
    last_error: str = ""
    remedy: str = ""
    skew_ms: int = 0
    cloud_seq: int = 0
    told_of_news: bool = False
    needs_person: bool = False


class _InterruptedError(Exception):
    """The daemon is to end: between two batches is a good moment."""


class Exchanger(threading.Thread):
    def __init__(self, node: Node, changed: Callable[[], None]) -> None:
        super().__init__(name="exchange", daemon=True)
        self.cloud = Cloud()
        self.breaker = Breaker()
        self.disk_problem = ""
        self._node = node
        self._changed = changed
        self._lock = threading.Lock()
        self._wanted: set[str] = {PUSH, PULL}
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._rope, False)
        os.set_blocking(self._bell, False)
        self._replica: Replica | None = None
        self._engine: Engine | None = None
        self._version: object = None
        self._report_at = self._announce_at = self._look_at = self._catch_up_at = _NEVER
        self._signs = Signs(node)
        self._looks = 0
        self._stop_by = _NEVER
        self._failure = ""

    # --- from other threads -------------------------------------------------------------------

    def want(self, *what: str) -> None:
        with self._lock:
            self._wanted.update(what)
        with suppress(BlockingIOError):  # it is ringing already
            os.write(self._rope, b"!")

    def hurry(self) -> None:
        """The machine woke up, or its network changed: whoever still waits for an answer on the
        old connection would wait for long."""
        self.want(HURRY)
        if replica := self._replica:
            replica.cut()

    def finish(self, seconds: float) -> bool:
        """Send what is left, then end; whether that was done in time."""
        self._stop_by = time.monotonic() + seconds
        self.want(PUSH)
        self.join(seconds + 0.5)
        return not self.is_alive()

    # --- the thread ---------------------------------------------------------------------------

    def run(self) -> None:
        while self.step(self._waited()):
            pass

    def step(self, wanted: set[str]) -> bool:
        """Do what is wanted, as far as the breaker allows; False if that was the last time."""
        stopping = self._stop_by < _NEVER
        if REOPEN in wanted:
            self._reopen()
        if wanted & {HURRY, RELOAD, REOPEN}:
            self._hang_up()
            wanted |= {PUSH, PULL}
        if stopping or wanted & {HURRY, RELOAD, REOPEN}:
            self.breaker = self.breaker.hurried()
        self.breaker = self.breaker.asked(time.monotonic())
        if not self.breaker.blocks:
            self._attempt({PUSH} if stopping else wanted)
        if stopping:
            self._hang_up()
        return not stopping

    def _waited(self) -> set[str]:
        """What is to be done next, once there is something."""
        while True:
            wanted = self.ready()
            if wanted or self._stop_by < _NEVER:
                return wanted
            self._sleep()

    def ready(self) -> set[str]:
        """What somebody has asked for, or whose time has come."""
        with self._lock:
            wanted, self._wanted = self._wanted, set()
        return wanted | self._due()

    def wakes_at(self) -> float:
        """When it goes on by itself, by the steady clock."""
        if self.breaker.blocks:
            return self.breaker.retry_at
        return min(self._tell_at(), self._look_at, self._catch_up_at)

    def _due(self) -> set[str]:
        now = time.monotonic()
        if self.breaker.blocks:
            return {PUSH, PULL} if now >= self.breaker.retry_at else set()
        times = ((REPORT, self._tell_at()), (LOOK_AGAIN, self._look_at), (PULL, self._catch_up_at))
        return {what for what, at in times if now >= at}

    def _tell_at(self) -> float:
        return min(self._report_at, self._announce_at, self._signs.due)

    def _sleep(self) -> None:
        pause = self.wakes_at() - time.monotonic()
        watched = [self._bell]
        if self._engine and self._replica and self._replica.fileno() >= 0:
            watched.append(self._replica.fileno())
        ready, _, _ = select.select(watched, [], [], min(max(pause, 0), 3600.0))
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, 4096)
        if len(ready) > (self._bell in ready):
            with self._lock:
                self._wanted.add(NEWS)

    # --- one exchange -------------------------------------------------------------------------

    def _attempt(self, wanted: set[str]) -> None:
        before = self._known()
        try:
            try:
                self._exchange(wanted)
            except KeyChangedError:  # by another process: who connects anew has the new one
                self._hang_up()
                self._exchange(wanted)
            self.breaker, self._failure = Breaker(), ""
        except UnconfiguredError:
            self.cloud, self.breaker = Cloud(), Breaker()
            self._report_at = self._announce_at = _NEVER
        except _InterruptedError:
            logs.info("interrupted between two batches")
        except SyncdError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 (a fault of ours must not end replication)
            self._failed(SyncdError(f"unexpected: {error!r}"))
        if before != self._known():
            self._changed()

    def _known(self) -> tuple[object, ...]:
        """What others are told of when it changes."""
        cloud = self.cloud
        return (cloud.state, cloud.last_error, cloud.told_of_news, self.breaker.state,
                self.disk_problem)  # fmt: skip

    def _exchange(self, wanted: set[str]) -> None:
        if self._engine is None:
            self._connect()
            wanted = {PUSH, PULL, *wanted}
        engine = self._engine
        if engine is None or self._replica is None:
            return
        if self._replica.news():
            wanted.add(HEARD)
        if wanted & {HEARD, NEWS}:
            wanted.add(PULL)
        if self._looked(wanted):
            wanted.add(PUSH)
            self._signs.look(time.monotonic())
        pushed = self._push(engine) if PUSH in wanted else 0
        if pushed and engine.exchange.store.row("claim_ahead"):
            wanted.add(PULL)  # whoever made it waits to hear whether another came first
        pulled = self._pull(engine) if PULL in wanted else 0
        self._heed_signs(wanted, pushed, pulled)
        self._tell(engine, pushed + pulled)
        if not wanted & {PUSH, PULL, REPORT}:
            return  # it was not asked
        if self._replica.news():  # it came with an answer
            self.want(HEARD)
        self.cloud = self.cloud._replace(
            state=ONLINE, as_of=clock.iso(clock.wall_ms()), last_error="", remedy="",
            needs_person=False,
        )  # fmt: skip

    def _connect(self) -> None:
        """Meet the replica: both sides compare what they remember before anything is sent."""
        self._replica = self._node.replica()
        logs.keep_secret(self._replica.password)
        engine = self._node.engine(self._replica, self._progress)
        with self._turn():
            standing = engine.meet()
        told = self._replica.listen(standing.channel)
        self._engine = engine
        self._signs.ask(time.monotonic())
        skew = int(engine.exchange.state("skew_ms") or 0)
        self.cloud = self.cloud._replace(
            skew_ms=skew, cloud_seq=standing.cloud_seq, told_of_news=told
        )
        logs.info("connected", organization=self._replica.membership.organization,
                  skew_ms=skew, told_of_news=told)  # fmt: skip

    def _turn(self) -> AbstractContextManager[None]:
        """`syncd sync` may be at work. If that takes long, the daemon says so and comes back."""
        return self._node.exchanging(self._node.settings["store.busy_seconds"])

    def _looked(self, wanted: set[str]) -> bool:
        """Whether somebody else has changed the database. Another may be about to: look again
        soon, some times."""
        if not wanted & {LOOK, LOOK_AGAIN}:
            return False
        version = self._node.store.row("data_version")
        changed, self._version = version != self._version, version
        self._looks = 0 if LOOK in wanted else self._looks + 1
        more = self._looks < len(_LOOKS)
        self._look_at = time.monotonic() + _LOOKS[self._looks] if more else _NEVER
        return changed

    def _push(self, engine: Engine) -> int:
        """Until nothing waits: what is written during a push is part of the next."""
        if not engine.may_write():
            return 0
        sent, parted, began = 0, 0, time.monotonic()
        while engine.exchange.pending_count():
            self._announce_at = began  # should the connection end before the others are told
            try:
                with self._turn():
                    sent += (now := engine.push())
            except DivergedError:
                parted += 1
                if parted > _ROUNDS:
                    raise
                with self._turn():
                    engine.meet()
                continue
            if not now:
                break
        if sent:
            self._announce_later(engine)
            engine.exchange.note(sent, 0)
            logs.info("pushed", entries=sent, ms=_ms(began))
            self._catch_up_at = time.monotonic() + _CATCH_UP_SECONDS
        return sent

    def _pull(self, engine: Engine) -> int:
        self._catch_up_at = _NEVER
        before, self.disk_problem = self.disk_problem, disk.problem(self._node)
        if self.disk_problem:
            if not before:  # news may come often, and a full disk is no place for long logs
                logs.warning("nothing is fetched", why=self.disk_problem)
            self.cloud = self.cloud._replace(cloud_seq=engine.asked().cloud_seq)
            return 0
        began = time.monotonic()
        with self._turn():
            new = engine.pull()
        self.cloud = self.cloud._replace(cloud_seq=engine.exchange.cursor()[0])
        if new:
            engine.exchange.note(0, new)
            logs.info("pulled", entries=new, ms=_ms(began))
        return new

    def _heed_signs(self, wanted: set[str], pushed: int, pulled: int) -> None:
        """Being told of news when there are no entries means that somebody came or went."""
        now = time.monotonic()
        if pushed:
            self._signs.written(now)
        silent = PRESENCE in wanted and agents.overdue(self._node)
        if silent or (HEARD in wanted and not pulled):
            self._signs.ask(now)

    def _tell(self, engine: Engine, moved: int) -> None:
        now = time.monotonic()
        if now >= self._signs.due and self._signs.speak(engine, now):
            self._announce_later(engine)
        if now >= self._announce_at:
            engine.announce()
            self._announce_later(engine)
        if moved:
            self._report_at = min(self._report_at, now + _REPORT_SECONDS)
        if now >= self._report_at:
            engine.report()
            self._report_at = _NEVER

    def _announce_later(self, engine: Engine) -> None:
        self._announce_at = _NEVER
        if engine.announce_in:
            self._announce_at = time.monotonic() + engine.announce_in

    def _progress(self, what: str, _done: int, _all: int) -> None:
        stopping = self._stop_by < _NEVER
        if stopping and (what == PULL or time.monotonic() > self._stop_by):
            raise _InterruptedError

    # --- failures -----------------------------------------------------------------------------

    def _failed(self, error: SyncdError) -> None:
        """Being offline is nothing unusual. A refused login stays refused until somebody acts."""
        error.message = logs.clean(error.message)
        self._hang_up()
        cap = self._node.settings["daemon.retry_seconds"]
        chance = 1.0 if isinstance(error, LoginRefusedError) else random.random()  # noqa: S311
        known, self._failure = self._failure, error.code
        self.breaker = self.breaker.failed(time.monotonic(), chance, cap)
        self.cloud = self.cloud._replace(
            state=OFFLINE if isinstance(error, ReplicaError) else self.cloud.state,
            last_error=error.message, remedy=error.remedy,
            as_of=clock.iso(clock.wall_ms()), needs_person=not error.passes,
        )  # fmt: skip
        # What a server that comes and goes says differs from time to time: one piece of news.
        say = logs.debug if known == error.code else logs.warning
        wait = round(self.breaker.retry_at - time.monotonic(), 1)
        say("not reached", why=error.message, next_attempt_s=wait)
        if known != error.code:
            with suppress(SyncdError):
                exchange = Exchange(self._node.store)
                exchange.note(0, 0, error)

    def _reopen(self) -> None:
        """The database that is open is no longer the file of that name. What it has that the
        replica has not is sent while it can still be read."""
        self._attempt({PUSH})
        self._node.close()

    def _hang_up(self) -> None:
        replica, self._replica, self._engine = self._replica, None, None
        self._catch_up_at = _NEVER  # whoever connects pulls
        self._signs = Signs(self._node)
        if replica is not None:
            with suppress(Exception):
                replica.close()


def _ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
