"""`python -m chaos`: kill, suspend, cut off and starve real processes for a while, then prove that
nothing which was acknowledged is lost and that everything has healed.

The same seed gives the same faults at the same times; what they meet differs from run to run. If
something is wrong, the exit code is 1 and the folder stays, with a journal of what was done when.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from chaos import network
from chaos.faults import Conductor, absent
from chaos.journal import Journal
from chaos.plan import timetable
from chaos.plants import PLANTS
from chaos.proof import few, proven
from chaos.tally import Tally
from chaos.world import World

# A run of ten minutes that kills fewer proves too little.
_ENOUGH, _LONG_SECONDS = 1_000, 600


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    network.enter(arguments)
    # So that a run that is ended removes its processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = int(time.time()) if options.seed is None else options.seed
    folder = Path(tempfile.mkdtemp(prefix="syncd-chaos-")).resolve()
    world = World(folder, Journal(folder / "journal"), options.plant or "")
    try:
        good = _run(world, options, seed)
    except BaseException:
        _say(f"\nStopped. What there is: {folder}")
        raise
    finally:
        world.close()
    if good and not options.keep:
        world.remove()
    else:
        _tell_where(folder)
    return 0 if good else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults go on (600)")
    parser.add_argument("--seed", type=int, help="which faults come when (else by the clock)")
    parser.add_argument("--machines", type=int, default=3, help="each with a daemon (3)")
    parser.add_argument("--agents", type=int, default=2, help="on each machine (2)")
    parser.add_argument("--keep", action="store_true", help="leave the folder, also if all is well")
    parser.add_argument("--plant", choices=PLANTS, help="a defect that the run must find")
    return parser.parse_args(arguments)


def _run(world: World, options: argparse.Namespace, seed: int) -> bool:
    _say(f"Chaos for {options.seconds:g} s, seed {seed}"
         + (f", planted: {options.plant}" if options.plant else ""))  # fmt: skip
    world.build(options.machines)
    planned = timetable(seed, options.seconds)
    tally = Tally(planned, absent(world))
    _introduce(world, tally)
    dice = random.Random(seed)
    for machine in world.machines:
        machine.start_daemon()
        for _ in range(options.agents):
            machine.start_agent(dice)
    world.await_daemons()
    Conductor(world, planned, options.seconds, tally).run()
    world.journal.note("the last fault")
    good = _judged(world, tally)
    _report(world, tally)
    if options.seconds >= _LONG_SECONDS and world.journal.kills.total() < _ENOUGH:
        _say(f"Fewer than {_ENOUGH:,} were killed: this run proves too little.")
        return False
    return good


def _introduce(world: World, tally: Tally) -> None:
    _say(f"Journal     {world.journal.file}")
    _say(f"Network     {_network()}")
    _say(f"Pooler      {'PgBouncer' if world.pooler else 'none: PgBouncer is not installed'}")
    _say(f"Full disk   {world.disk.kind if world.disk else 'none: needs three machines'}")
    for kinds in tally.not_here():
        _say(f"ABSENT      {kinds}")


def _network() -> str:
    own = "and a network of its own that goes down"
    return f"a proxy for each machine, {own if network.isolated() else 'no network of its own'}"


def _judged(world: World, tally: Tally) -> bool:
    _say("\nProof")
    good = True
    for kinds in tally.not_here():
        _say(f"  {'ABSENT':<7} {kinds}")
    for check in proven(world, tally):
        good = good and not check.problems
        _say(f"  {'FAILED' if check.problems else 'ok':<7} {check.name}")
        for problem in few(check.problems):
            _say(f"            {problem}")
            world.journal.note("FAILED", problem)
    return good


def _report(world: World, tally: Tally) -> None:
    journal = world.journal
    _say("\nKilled with -9")
    for kind, count in sorted(journal.kills.items()):
        _say(f"  {kind:<18} {count:>6,}")
    _say(f"  {'total':<18} {journal.kills.total():>6,}")
    _say("Faults that took place, of those that were planned")
    for line in tally.lines():
        _say(f"  {line}")
    _say("Besides")
    for kind, count in sorted(journal.outcomes.items()):
        _say(f"  {kind:<18} {count:>6,}")
    [(entries,)] = world.server.sql("SELECT count(*) FROM syncd.log")
    _say(f"Acknowledged to agents: {len(world.acknowledged().entries):,} entries; "
         f"at the replica: {entries:,}")  # fmt: skip


def _tell_where(folder: Path) -> None:
    _say(f"\nEverything is in {folder}: `journal` (what was done when), `said` (what each process\n"
         "printed), `notes` (what agents were told), `machine-N` (homes: log/daemon.log, and\n"
         f"`syncd --home {folder}/machine-0 …`), `postgres` (log/postgres.log).")  # fmt: skip


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
