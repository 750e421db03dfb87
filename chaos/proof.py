"""After the faults: everything that was acknowledged is everywhere, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from chaos import processes
from chaos.tally import Tally
from chaos.world import Machine, World

_FEW = 5
_AGENTS_SECONDS = 60.0
# A slow machine may take long for what has piled up, as long as it gets on.
_PROGRESS_SECONDS, _SETTLE_SECONDS = 120.0, 900.0
_LEAVE_SECONDS = 10.0
# Everything that is the same on all machines, and what is derived from it.
_ENTRIES = (
    "SELECT entry_id, device_id, device_seq, hex(chain), effective_hlc, cloud_seq FROM log"
    " ORDER BY entry_id",
    "SELECT entry_id::text, device_id::text, device_seq, upper(encode(chain, 'hex')),"
    " effective_hlc, cloud_seq FROM syncd.log ORDER BY 1",
)
_VIEWS = {
    "current versions": (
        "SELECT c.id, l.entry_id, c.parent_id, c.hlc FROM checkpoints c"
        " JOIN log l ON l.seq = c.seq",
        "SELECT id, entry_id::text, parent_id, hlc FROM syncd.checkpoints",
    ),
    "conflicts": (
        "SELECT id, kind, entity_id, winner, loser, state FROM conflicts",
        "SELECT id::text, kind, entity_id, winner::text, loser::text, state FROM syncd.conflicts",
    ),
}


class Check(NamedTuple):
    """What must hold, and what is wrong with it."""

    name: str
    problems: list[str]


def proven(world: World, tally: Tally) -> Iterator[Check]:
    """One after the other, as they are found out."""
    yield Check("nothing ended by itself, nobody was told nonsense", world.journal.problems)
    yield Check("agents end when they are asked to", _ended_agents(world))
    yield Check("no daemon is stuck: no backlog is left", _settled(world))
    yield Check("daemons end when they are asked to", _ended_daemons(world))
    yield Check("no process is left", _left(world))
    yield Check("what the daemons did last is exchanged", _exchanged(world))
    yield from meant(world, tally)
    told = world.acknowledged().entries
    for name, check in _CHECKS.items():
        yield Check(name, check(world))
    yield Check("everything acknowledged is at the replica", _missing_at_replica(world, told))
    yield Check("everything acknowledged is on every machine", _missing(world, told))
    yield Check("no report of a crash, no traceback", _crashes(world))


def meant(world: World, tally: Tally) -> Iterator[Check]:
    """Without this, that nothing was lost means nothing."""
    told = world.acknowledged()
    yield Check("something was acknowledged", [] if told.entries else ["not a single entry"])
    yield Check("what was acknowledged can be read", told.problems)
    yield Check("faults that were planned took place", tally.missing())
    if filled := tally.done["fill disk"]:
        never = [f"times that it was full: {filled:,}, writes that it refused: none"]
        yield Check("a full disk refused writes", [] if world.refusals() else never)


def few(found: list[str]) -> list[str]:
    more = [f"and {len(found) - _FEW:,} more"] if len(found) > _FEW else []
    return found[:_FEW] + more


# --- coming to rest -------------------------------------------------------------------------------


def _ended_agents(world: World) -> list[str]:
    agents = [(machine, pid) for machine in world.machines for pid in machine.agents]
    for _, pid in agents:
        world.nursery.send(pid, signal.SIGTERM)
    return _not_ended(world, agents, _AGENTS_SECONDS)


def _not_ended(world: World, those: list[tuple[Machine, int]], seconds: float) -> list[str]:
    """What begins only now may be ended by the signal itself."""
    deadline = time.monotonic() + seconds
    while any(world.lives(pid) for _, pid in those) and time.monotonic() < deadline:
        time.sleep(0.05)
    codes = [(machine, pid, world.nursery.ended(pid)) for machine, pid in those]
    return [
        f"{machine}: process {pid}: {code}"
        for machine, pid, code in codes
        if code not in (0, -signal.SIGTERM)
    ]


def _settled(world: World) -> list[str]:
    """Whether every daemon says so; the last answers if not."""
    began = moved = time.monotonic()
    before: list[str] = []
    while problems := [p for machine in world.machines for p in _behind(machine)]:
        now = time.monotonic()
        if problems != before:
            before, moved = problems, now
        if now > moved + _PROGRESS_SECONDS or now > began + _SETTLE_SECONDS:
            return problems
        time.sleep(0.5)
    world.journal.note("settled", f"after {time.monotonic() - began:.1f} s")
    return []


def _behind(machine: Machine) -> list[str]:
    status = machine.run("status", "--json").json()
    found = {
        "daemon": status["daemon"]["running"], "cloud": status["cloud"]["state"],
        "pending": status["push"]["pending"], "behind": status["pull"]["behind"],
    }  # fmt: skip
    good = {"daemon": True, "cloud": "online", "pending": 0, "behind": 0}
    return [] if found == good else [f"{machine}: {found} {status['cloud']['last_error']}"]


def _exchanged(world: World) -> list[str]:
    """Each lets go of what is too old at a time of its own, and writes that down."""
    again = (*world.machines, *world.machines[:-1])
    return [f"{m}: {done}" for m in again if (done := m.run("sync")).code != 0]


# --- what users can ask for -----------------------------------------------------------------------


def _says(*words: str, ok: Callable[[Any], bool]) -> Callable[[World], list[str]]:
    """A command on every machine, and what its answer must be."""

    def check(world: World) -> list[str]:
        done = [(machine, machine.run(*words, "--json")) for machine in world.machines]
        return [
            f"{machine}: {result.code} {result.out[:600]}{result.err[:600]}"
            for machine, result in done
            if result.code != 0 or not ok(json.loads(result.out))
        ]

    return check


def _alike(world: World) -> list[str]:
    at_replica = world.server.sql(_ENTRIES[1])
    return [
        f"{machine}: {_difference(machine.sql(_ENTRIES[0]), at_replica)}"
        for machine in world.machines
        if machine.sql(_ENTRIES[0]) != at_replica
    ]


def _views_alike(world: World) -> list[str]:
    problems = []
    for view, (here, there) in _VIEWS.items():
        at_replica = sorted(world.server.sql(there))
        for machine in world.machines:
            if (found := sorted(machine.sql(here))) != at_replica:
                problems.append(f"{machine}, {view}: {_difference(found, at_replica)}")
    return problems


def _difference(here: list[tuple[Any, ...]], there: list[tuple[Any, ...]]) -> str:
    ours, theirs = set(here), set(there)
    return (
        f"only here {len(ours - theirs)}: {[*ours - theirs][:2]}, "
        f"only at the replica {len(theirs - ours)}: {[*theirs - ours][:2]}"
    )


_CHECKS: dict[str, Callable[[World], list[str]]] = {
    "syncd prove": _says("prove", ok=lambda said: said["ok"] and said["local"] == said["cloud"]),
    "syncd audit verify --cloud: chains, signatures, views": _says(
        "audit", "verify", "--cloud", ok=lambda said: bool(said["ok"])
    ),
    "nothing is in quarantine": _says("quarantine", "list", ok=lambda said: said == []),
    "every backup is intact": _says(
        "backup", "list", ok=lambda said: all(made["intact"] for made in said)
    ),
    "the same entries everywhere": _alike,
    "the same heads and conflicts everywhere": _views_alike,
}


# --- what was acknowledged ------------------------------------------------------------------------


def _missing_at_replica(world: World, told: dict[str, str]) -> list[str]:
    return _lost(told, world.server.sql("SELECT entry_id::text, entity_id, hash FROM syncd.log"))


def _missing(world: World, told: dict[str, str]) -> list[str]:
    return [
        f"{machine}: {problem}"
        for machine in world.machines
        for problem in _lost(told, machine.sql("SELECT entry_id, entity_id, hash FROM log"))
    ]


def _lost(told: dict[str, str], found: list[tuple[Any, ...]]) -> list[str]:
    """Agents are told of entries, commands tell the name of the checkpoint."""
    hashes = {entry_id: digest for entry_id, _, digest in found}
    names = {entity_id: "-" for _, entity_id, _ in found}
    return [
        f"{name} is lost" if there is None else f"{name} has another hash than was told"
        for name, digest in told.items()
        if (there := (names if digest == "-" else hashes).get(name)) != digest
    ]


# --- what is left behind --------------------------------------------------------------------------


def _ended_daemons(world: World) -> list[str]:
    done = [(machine, machine.run("stop")) for machine in world.machines]
    refused = [f"{machine}: {result}" for machine, result in done if result.code != 0]
    return refused + _not_ended(world, [(m, m.daemon) for m in world.machines], _LEAVE_SECONDS)


def _left(world: World) -> list[str]:
    """Apart from the servers, which are ended last."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    while (found := _strays(world)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"process {process.pid}: {process.words[:200]}" for process in found]


def _strays(world: World) -> list[processes.Process]:
    known = {world.nursery.pid, world.server.pid, world.pooler.pid if world.pooler else 0}
    return [
        process
        for process in processes.of(world.folder)
        if process.pid not in known and process.parent != world.server.pid
    ]


def _crashes(world: World) -> list[str]:
    logs = [m.home / "log" / name for m in world.machines for name in ("crash.log", "daemon.log")]
    said = sorted((world.folder / "said").iterdir())
    found = [f"{file}" for file in logs if file.name == "crash.log" and file.exists()]
    for file in (*logs, *said):
        text = file.read_text(errors="replace") if file.exists() else ""
        signs = [line for line in text.splitlines() if "Traceback" in line or "unexpected:" in line]
        found += [f"{file}: {line[:300]}" for line in signs[:1]]
    return found
