"""Each fault: what is done, to whom, and how it is made good."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from chaos import network
from chaos.agent import SHARED, TASKS
from chaos.plan import Act
from chaos.pooler import Pooler
from chaos.tally import Tally
from chaos.world import Done, Machine, World, said

# Whether it took place.
Fault = Callable[[World, random.Random], bool]
# Commands that a user may type at any time; `{n}` is a number of a task or shared checkpoint.
COMMANDS = (
    "sync", "sync --pull-only", "flush --wait 1", "prove", "backup create",
    "retention run", "keys rotate", "keys rotate --signing --reason chaos", "rebuild",
    "audit verify", "checkpoint latest {task}", "checkpoint create --task {task} --agent typed",
    "checkpoint update shared-{n} --decision typed", "message send hello --to typed --from chaos",
    "task set {task} --title renamed", "status", "handoff request --task {task} --agent typed",
)  # fmt: skip
# The replica's absence, a full disk, what has not arrived, what another did meanwhile.
_USUAL_EXITS = {0, 1, 3, 4, 6, 7}
# Errors that tell of damage, or of what nobody has foreseen, whatever the exit code.
_DAMAGE = {"corrupt", "view_damaged", "replica_tampered", "diverged", "exists", "error"}
# Which is what a full disk is called where no database is involved.
_NO_ROOM = tuple(
    f"the system refused: {os.strerror(number)}"
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
)
# The outermost brace of a document, which is printed last.
_WHOLE = "\n}\n"

_FULL = "Error: the disk is full"
_MEND_SECONDS = 30.0
# A full disk that refuses nothing is no fault: it stays full until it does, if that is soon.
_REFUSED_SECONDS = 10.0
# A machine that is too slow for all of them need not go on for ever.
_LATE = 1.1
_MOSTLY, _BUSY_SECONDS = 0.7, 8.0


# --- processes of the machines --------------------------------------------------------------------


def kill_agent(world: World, dice: random.Random) -> bool:
    machine = dice.choice(world.machines)
    pid = machine.agents.pop(dice.randrange(len(machine.agents)))
    if killed := world.nursery.send(pid, signal.SIGKILL):
        world.journal.killed("agent", f"{machine} process {pid}")
    else:
        world.journal.problem(f"{machine}: an agent ended by itself: {world.nursery.ended(pid)}")
    machine.start_agent(dice)
    return killed


def kill_daemon(world: World, dice: random.Random) -> bool:
    """Mostly one that has sent or fetched something: it is likely to be at that again."""
    machine = dice.choice(world.machines)
    if dice.random() < _MOSTLY:
        _wait_until_busy(machine)
    time.sleep(dice.uniform(0, 0.5))
    if killed := world.nursery.send(machine.daemon, signal.SIGKILL):
        world.journal.killed("daemon", f"{machine} process {machine.daemon}")
    else:
        _ended_by_itself(world, machine)
    time.sleep(dice.choice((0, 0, 0.2, 1.0)))
    machine.start_daemon()
    return killed


def _wait_until_busy(machine: Machine) -> None:
    deadline = time.monotonic() + _BUSY_SECONDS
    while time.monotonic() < deadline:
        words = said(machine.daemon_out)[1]
        if "pushed" in words or "pulled" in words:
            return
        time.sleep(0.05)


def _ended_by_itself(world: World, machine: Machine) -> None:
    """Which no daemon does, unless it cannot open the database where the disk is full."""
    words = said(machine.daemon_out)[1]
    if words.startswith(_FULL):
        world.journal.outcome("daemon refused", f"{machine}: {_FULL}")
    else:
        code = world.nursery.ended(machine.daemon)
        world.journal.problem(f"{machine}: the daemon ended by itself: {code} {words[-500:]}")


def kill_command(world: World, dice: random.Random) -> bool:
    """Begin a command, and end it somewhere in its midst; some come to their own end before."""
    machine, words = dice.choice(world.machines), (*_typed(dice), "--json")
    pid, out = machine.begin(*words)
    time.sleep(dice.uniform(0.005, dice.choice((0.1, 0.3, 2.0))))
    killed = world.nursery.send(pid, signal.SIGKILL)
    done = machine.finish(pid, out, words, 1)
    if words[:2] == ("checkpoint", "create") and (done.code == 0 or done.out.endswith(_WHOLE)):
        world.told(machine, done.json()["metadata"]["checkpoint_id"])
    if killed:
        world.journal.killed("command", f"{machine} syncd {' '.join(words)}")
    else:
        world.journal.outcome("command done", f"{machine} {done.code} syncd {' '.join(words)}")
        if problem := wrong(done):
            world.journal.problem(f"{machine}: syncd {' '.join(words)} {problem}: {out}")
    return killed


def wrong(done: Done) -> str:
    """How a command ended that should not have ended so."""
    code, message = done.error
    if done.code not in _USUAL_EXITS:
        return f"ended with {done.code}"
    if code in _DAMAGE and not message.startswith(_NO_ROOM):
        return f"ended with the error `{code}`"
    return "failed without a word" if done.code and not code and not done.out else ""


def _typed(dice: random.Random) -> tuple[str, ...]:
    task, n = f"task_{dice.randrange(TASKS)}", str(dice.randrange(SHARED))
    words = dice.choice(COMMANDS).format(task=task, n=n).split()
    return tuple(word.replace("task_", "task ") for word in words)


def suspend_agent(world: World, dice: random.Random) -> bool:
    machine = dice.choice(world.machines)
    return _suspended(world, dice.choice(machine.agents), f"{machine} agent", dice.uniform(0.2, 2))


def suspend_daemon(world: World, dice: random.Random) -> bool:
    machine = dice.choice(world.machines)
    return _suspended(world, machine.daemon, f"{machine} daemon", dice.uniform(0.5, 4))


def _suspended(world: World, pid: int, whom: str, seconds: float) -> bool:
    if not world.nursery.send(pid, signal.SIGSTOP):
        return False
    world.journal.note("suspend", f"{whom} process {pid} for {seconds:.1f} s")
    time.sleep(seconds)
    world.nursery.send(pid, signal.SIGCONT)
    return True


# --- the server -----------------------------------------------------------------------------------


def kill_backend(world: World, dice: random.Random) -> bool:
    """PostgreSQL then ends all others, and recovers."""
    found = world.server.backends()
    if not found or not _sent(pid := dice.choice(found), signal.SIGKILL):
        return False
    world.journal.killed("postgres backend", f"process {pid}")
    return True


def suspend_backend(world: World, dice: random.Random) -> bool:
    found = world.server.backends()
    if not found or not _sent(pid := dice.choice(found), signal.SIGSTOP):
        return False
    world.journal.note("suspend", f"postgres process {pid}")
    time.sleep(dice.uniform(0.2, 3))
    _sent(pid, signal.SIGCONT)
    return True


def _sent(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def kill_postmaster(world: World, dice: random.Random) -> bool:
    whom = f"process {world.server.pid}"
    if stopped := world.server.stop(signal.SIGKILL):
        world.journal.killed("postmaster", whom)
    _start_server(world, dice)
    return stopped


def stop_server(world: World, dice: random.Random) -> bool:
    """As `pg_ctl stop -m immediate` does."""
    world.journal.note("server stopped", "immediate")
    stopped = world.server.stop(signal.SIGQUIT)
    _start_server(world, dice)
    return stopped


def _start_server(world: World, dice: random.Random) -> None:
    time.sleep(dice.uniform(0, 3))
    world.server.start()


def kill_pooler(world: World, dice: random.Random) -> bool:
    if world.pooler:
        world.journal.killed("pgbouncer", f"process {world.pooler.pid}")
        _restart_pooler(world.pooler, dice, signal.SIGKILL)
    return world.pooler is not None


def restart_pooler(world: World, dice: random.Random) -> bool:
    if world.pooler:
        world.journal.note("pooler restarted", f"process {world.pooler.pid}")
        _restart_pooler(world.pooler, dice, signal.SIGTERM)
    return world.pooler is not None


def _restart_pooler(pooler: Pooler, dice: random.Random, how: signal.Signals) -> None:
    pooler.close(how)
    time.sleep(dice.uniform(0, 2))
    pooler.start()


# --- network and disk -----------------------------------------------------------------------------


def cut_line(world: World, dice: random.Random) -> bool:
    machine = _worse(world, dice, "line cut")
    machine.line.pull()
    time.sleep(dice.uniform(0, 4))
    machine.line.plug()
    return True


def slow_line(world: World, dice: random.Random) -> bool:
    machine = _worse(world, dice, "line slow")
    machine.line.slow(dice.uniform(0.002, 0.03))
    time.sleep(dice.uniform(1, 4))
    machine.line.mend()
    return True


def silence_line(world: World, dice: random.Random) -> bool:
    machine = _worse(world, dice, "line silent")
    machine.line.silence()
    time.sleep(dice.uniform(1, 4))
    machine.line.mend()
    return True


def _worse(world: World, dice: random.Random, how: str) -> Machine:
    machine = dice.choice(world.machines)
    world.journal.note(how, machine)
    return machine


def network_down(world: World, dice: random.Random) -> bool:
    if not network.isolated():
        return False
    world.journal.note("network down", "all")
    network.up(False)
    time.sleep(dice.uniform(0.5, 3))
    network.up(True)
    return True


def fill_disk(world: World, dice: random.Random) -> bool:
    if not world.disk:
        return False
    before = world.refusals()
    if not world.disk.fill():
        return False
    world.journal.note("disk full", world.machines[2])
    time.sleep(dice.uniform(0.5, 4))
    deadline = time.monotonic() + _REFUSED_SECONDS
    while world.refusals() == before and time.monotonic() < deadline:
        time.sleep(0.1)
    world.disk.empty()
    world.journal.note("disk has room", f"{world.refusals() - before} writes were refused")
    return True


FAULTS: dict[str, Fault] = {
    "kill agent": kill_agent, "kill daemon": kill_daemon, "kill command": kill_command,
    "kill backend": kill_backend, "kill postmaster": kill_postmaster, "stop server": stop_server,
    "kill pooler": kill_pooler, "restart pooler": restart_pooler,
    "suspend agent": suspend_agent, "suspend daemon": suspend_daemon,
    "suspend backend": suspend_backend,
    "cut line": cut_line, "slow line": slow_line, "silence line": silence_line,
    "network down": network_down, "fill disk": fill_disk,
}  # fmt: skip


def absent(world: World) -> dict[str, str]:
    """The kinds that cannot take place here, and why."""
    pooler, line, disk = ("kill pooler", "restart pooler"), ("network down",), ("fill disk",)
    return {
        **dict.fromkeys(() if world.pooler else pooler, "PgBouncer is not installed"),
        **dict.fromkeys(() if network.isolated() else line, "no network of the run's own"),
        **dict.fromkeys(() if world.disk and world.disk.can_fill else disk,
                        "no disk that can be filled"),
    }  # fmt: skip


# --- all of them ----------------------------------------------------------------------------------


class Conductor:
    """Does what the timetable says: each line of it in a thread of its own."""

    def __init__(
        self, world: World, timetable: dict[str, list[Act]], seconds: float, tally: Tally
    ) -> None:
        self._world = world
        self._seconds = seconds
        self._tally = tally
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(acts,), name=name, daemon=True)
            for name, acts in timetable.items()
        ]

    def run(self) -> None:
        """Until all is done, and made good."""
        self._began = time.monotonic()
        try:
            for thread in self._threads:
                thread.start()
            for thread in self._threads:
                thread.join()
        finally:
            self._stop.set()
            for thread in self._threads:  # what one has broken it makes good, interrupted or not
                if thread.ident:
                    thread.join(_MEND_SECONDS)

    def _follow(self, acts: list[Act]) -> None:
        for number, act in enumerate(acts):
            late = time.monotonic() - self._began - act.at
            if self._stop.wait(max(0, -late)):
                return
            if act.at + late > self._seconds * _LATE:
                self._world.journal.note("left out", f"the last {len(acts) - number}: too late")
                self._tally.late(acts[number:])
                return
            try:
                took_place = FAULTS[act.what](self._world, random.Random(act.seed))
                self._tally.done[act.what] += took_place
            except Exception as error:  # noqa: BLE001 (the others go on; the verdict tells of it)
                self._world.journal.problem(f"{act.what} could not be done: {error!r}")
