"""One process per home: what wakes it, what it does by the clock, and how it ends."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from syncd import clock, liveness, running
from syncd.daemon import exchanger, housekeeping, logs
from syncd.daemon.exchanger import Exchanger
from syncd.daemon.files import Files
from syncd.daemon.notify import Notifier
from syncd.daemon.wake import Pulse, Watch
from syncd.errors import DaemonError, SyncdError
from syncd.exchange import Exchange
from syncd.node import Node
from syncd.version import __version__

_TICK_SECONDS = 1.0
# An editor empties a file before it fills it: half of it would be taken for the settings.
_SETTLE_SECONDS = 0.2
# Behind a pooler nobody can be told of news.
_UNTOLD_SECONDS = 5.0
# So many times the pause between two scans must have passed since the last one.
_ASLEEP = 3
_NEVER = float("inf")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCONT)


_HOUSE = (
    ("log merge", 600, housekeeping.merge_log),
    ("purge clean-up", 600, housekeeping.clean),
    ("sessions", 300, housekeeping.sessions),
    ("sealing", 3_600, housekeeping.seal),
    ("backup", 3_600, housekeeping.back_up),
    ("integrity sample", 3_600, housekeeping.sample),
    ("retention", 86_400, housekeeping.let_go),
    ("compaction", 3_600, housekeeping.compact),
)
# A machine that is never on for long gets its backup all the same.
_SOON = {"backup": 5, "retention": 60}


class Daemon:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._notifier = Notifier()
        self._exchanger = Exchanger(node, self._changed)
        self._watch: Watch | None = None
        self._files: Files | None = None
        self._signals: list[int] = []
        self._started = time.time()
        self._reload_at = _NEVER
        self._reopening = False
        self._settings_file = _signature(node)
        self._done: dict[str, dict[str, Any]] = {}
        self._results: dict[str, dict[str, Any]] = {}
        self._scanned = time.time()
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
            timezone=UTC,
        )

    # --- its life -----------------------------------------------------------------------------

    def run(self) -> None:
        """Until a signal says otherwise, or there is nothing left to work for."""
        bell, rope = os.pipe()
        os.set_blocking(rope, False)
        os.set_blocking(bell, False)
        signal.set_wakeup_fd(rope, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda caught, _frame: self._signals.append(caught))
        self._node.store  # noqa: B018 (makes the home)
        with running.hold(self._node.home) as lock:
            self._begin()
            try:
                self._loop(lock, bell)
            finally:
                self._end()
        if self._exchanger.is_alive():
            # It waits for a server that does not answer. Nothing of it needs to be finished.
            os._exit(0)

    def _begin(self) -> None:
        logs.info("started", pid=os.getpid(), home=str(self._node.home), version=__version__)
        self._watch = Watch(self._node.home)
        if self._watch.descriptor < 0:
            logs.warning("no watch on the home: writes are seen each second")
        self._schedule()
        self._exchanger.start()
        self._watch_files()
        self._tell()
        self._notifier.ready()

    def _watch_files(self) -> None:
        """As the settings say now."""
        paths = tuple(self._node.settings["watch.paths"])
        if self._files is not None and self._files.paths != paths:
            self._files.stop()
            self._files = None
        if paths and self._files is None:
            self._files = Files(self._node.home, paths)
            self._files.start()

    def _end(self) -> None:
        self._notifier.stopping()
        self._scheduler.shutdown(wait=False)
        if self._files is not None:
            self._files.stop()
        done = self._exchanger.finish(self._node.settings["daemon.grace_seconds"])
        logs.info("stopped", sent_the_rest=done and not self._backlog())
        if self._watch:
            self._watch.close()

    def _backlog(self) -> int:
        with suppress(SyncdError):
            return Exchange(self._node.store).pending_count()
        return 0

    def _loop(self, lock: running.Lock, bell: int) -> None:
        watched = [bell]
        if self._watch and self._watch.descriptor >= 0:
            watched.append(self._watch.descriptor)
        alive = self._notifier.watchdog_seconds
        tick = min(_TICK_SECONDS, alive) if alive else _TICK_SECONDS
        before = _now()
        while True:
            pause = min(tick, max(self._reload_at - time.monotonic(), 0.0))
            ready, _, _ = select.select(watched, [], [], pause)
            if bell in ready:
                with suppress(BlockingIOError):
                    os.read(bell, 4096)
            if self._heed_signals():
                return
            self._heed_watch(bool(set(ready) - {bell}))
            self._heed_settings()
            now = _now()
            if before.slept(now, tick):
                logs.info("woke up", after_s=round(now.wall - before.wall, 1))
                self._exchanger.hurry()
                if now.wall < before.wall:  # or what is due by the clock would wait as long again
                    self._schedule()
            before = now
            self._check_ground(lock)
            self._notifier.alive()

    def _heed_signals(self) -> bool:
        """True if it is time to go."""
        while self._signals:
            number = self._signals.pop(0)
            if number in (signal.SIGTERM, signal.SIGINT):
                logs.info("stopping", signal=signal.Signals(number).name)
                return True
            if number == signal.SIGHUP:
                self._reload()
            elif number == signal.SIGUSR1:
                self._tell()
            elif number == signal.SIGCONT:
                self._exchanger.hurry()
        return False

    def _heed_watch(self, something: bool) -> None:
        if self._watch is None or self._watch.descriptor < 0:
            self._exchanger.want(exchanger.LOOK)
        elif something:
            names = self._watch.names()
            if names & {"context.db-wal", "context.db"}:
                self._exchanger.want(exchanger.LOOK)

    def _heed_settings(self) -> None:
        """A file that is being written is waited for."""
        before, self._settings_file = self._settings_file, _signature(self._node)
        if before != self._settings_file:
            self._reload_at = time.monotonic() + _SETTLE_SECONDS
        if time.monotonic() >= self._reload_at:
            self._reload()

    def _reload(self) -> None:
        self._reload_at = _NEVER
        self._notifier.status("reading the settings again")
        try:
            self._node.reload()
        except SyncdError as error:
            logs.warning("the settings stay as they were", why=error.message)
            return
        logs.info("read the settings again")
        self._schedule()
        self._watch_files()
        self._tell()
        self._exchanger.want(exchanger.RELOAD)

    def _check_ground(self, lock: running.Lock) -> None:
        """Nobody is served by a daemon whose home is gone, or that two could believe to be."""
        if not lock.intact():
            raise DaemonError(
                f"{lock.path} is gone: this daemon can no longer be the only one of its home",
                "If the home was deleted on purpose, nothing is to be done. Else: `syncd start`.",
            )
        replaced = self._node.replaced()
        if replaced and not self._reopening:  # once: the exchange may be busy for a while
            logs.warning("the database file was replaced: opening the new one")
            self._exchanger.want(exchanger.REOPEN)
        self._reopening = replaced

    # --- by the clock -------------------------------------------------------------------------

    def _schedule(self) -> None:
        poll = self._node.settings["daemon.poll_seconds"]
        self._every("push", poll, partial(self._exchanger.want, exchanger.PUSH))
        self._every("pull", self._pull_seconds(), partial(self._exchanger.want, exchanger.PULL))
        pace = liveness.pace_seconds(self._node)
        self._every("presence", pace, partial(self._exchanger.want, exchanger.PRESENCE))
        self._every("stale scan", pace, partial(self._keep_house, "stale scan", self._scan))
        for name, seconds, do in _HOUSE:
            self._every(name, seconds, partial(self._keep_house, name, do), soon=_SOON.get(name, 0))
        if not self._scheduler.running:
            self._scheduler.start()

    def _pull_seconds(self) -> float:
        poll: float = self._node.settings["daemon.poll_seconds"]
        told = self._exchanger.cloud.told_of_news
        return (
            poll
            if told or self._exchanger.cloud.state != exchanger.ONLINE
            else min(poll, _UNTOLD_SECONDS)
        )

    def _every(self, name: str, seconds: float, do: Callable[[], object], soon: float = 0) -> None:
        """`soon`: the first time is not a whole interval away."""
        first = datetime.fromtimestamp(time.time() + (soon or seconds), UTC)
        self._scheduler.add_job(
            partial(self._run, name, do), "interval", seconds=seconds, id=name, name=name,
            replace_existing=True, next_run_time=first,
        )  # fmt: skip

    def _run(self, name: str, do: Callable[[], object]) -> None:
        self._done[name] = {"last_at": clock.iso(clock.wall_ms())}
        try:
            do()
        except Exception as error:  # noqa: BLE001 (one job that fails must not stop the others)
            message = error.message if isinstance(error, SyncdError) else repr(error)
            self._done[name]["failed"] = logs.clean(message)
            logs.warning(f"{name} failed", why=message)

    def _keep_house(self, name: str, do: Callable[[Node], dict[str, Any]]) -> None:
        """What came of it is told once, however often it comes to the same."""
        done = do(self._node)
        if done and done != self._results.get(name):
            logs.info(name, **done)
        self._results[name] = done

    def _scan(self, node: Node) -> dict[str, Any]:
        """Agents that were suspended with the machine get a moment to give a sign of life."""
        before, self._scanned = self._scanned, time.time()
        asleep = self._scanned - before > _ASLEEP * liveness.pace_seconds(node)
        return {} if asleep else housekeeping.stale_agents(node)

    # --- telling ------------------------------------------------------------------------------

    def _changed(self) -> None:
        """The replica came or went, or cannot tell of news."""
        job = self._scheduler.get_job("pull")
        seconds = self._pull_seconds()
        if job and job.trigger.interval.total_seconds() != seconds:
            job.reschedule("interval", seconds=seconds)
        self._tell()

    def _tell(self) -> None:
        cloud, breaker = self._exchanger.cloud, self._exchanger.breaker
        wait = breaker.retry_at - time.monotonic() if breaker.blocks else 0.0
        told = {
            "pid": os.getpid(),
            "version": __version__,
            "started_at": self._started,
            "cloud": {**cloud._asdict(), "circuit": breaker.state},
            "next_attempt_s": round(max(wait, 0.0), 1),
            "disk_problem": self._exchanger.disk_problem,
            "jobs": [self._job(job) for job in self._scheduler.get_jobs()],
        }
        # To be asked how it is must not end it where the disk is full.
        with suppress(OSError):
            running.tell(self._node.home, told)
        words = cloud.state if cloud.state != exchanger.OFFLINE else f"offline: {cloud.last_error}"
        self._notifier.status(words)

    def _job(self, job: Any) -> dict[str, Any]:
        due = job.next_run_time
        at = clock.iso(int(due.timestamp() * 1000)) if due else ""
        return {"name": job.id, "next_at": at, **self._done.get(job.id, {})}


def _signature(node: Node) -> tuple[int, ...]:
    """Changes with the file of settings."""
    try:
        found = (node.home / "config.toml").stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _now() -> Pulse:
    return Pulse(time.time(), time.monotonic())
