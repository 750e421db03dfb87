"""`python -m bench`: run everything once, print the report, write bench.json and a page with
pictures; a complete run writes docs/benchmarks.md anew.

It exits with 0 even where a figure is missed: this is a report, not a gate.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bench import daemon, files, growth, hooks, loop, payload, report, resume, startup, sync
from bench.contenders import contenders
from bench.disk import PATIENCE_SECONDS, connection, probed, raw_commit, wait_until_calm
from bench.measure import interleaved
from bench.results import Comparison, Local, Results, machine
from bench.settings import Settings, Transfers, Watches
from bench.stores import Others
from bench.verdict import verdicts

LOCAL, SYNC, DAEMON, OTHERS = PARTS = ("local", "sync", "daemon", "others")
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # syncd says so when a prompt gets long; it may, but not into the table.
    logging.getLogger("syncd").addHandler(logging.NullHandler())
    # So that a stopped run removes its databases too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Beside the results and not in /tmp, which may be memory: syncing would cost nothing there.
    with tempfile.TemporaryDirectory(prefix="databases-", dir=options.out) as folder:
        results = _run(Path(folder), _settings(options), options.only)
    complete = not (options.quick or options.only or options.samples or options.entries)
    _publish(results, options.out, DOCS if complete else options.out)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--samples", type=int, help="timings per operation (4,000)")
    parser.add_argument("--entries", type=int, help="entries of the long history (1,000,000)")
    parser.add_argument("--sync-entries", type=int, help="entries to push and pull (50,000)")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute or two")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args(arguments)


def _settings(options: argparse.Namespace) -> Settings:
    if options.quick:
        transfers = Transfers(10_000, 3, 1_000, 20, 50)
        watches = Watches(30, 10, 5.0, 5_000, 200, 200, 5_000, 2)
        usual = Settings(50, 20_000, 3, 0.0, quick=True, transfers=transfers, watches=watches)
    else:
        transfers = Transfers(50_000, 5, 1_000, 50, 200)
        watches = Watches(300, 100, 60.0, 50_000, 2_000, 200, 20_000, 5)
        usual = Settings(4_000, 1_000_000, 40, PATIENCE_SECONDS, quick=False, transfers=transfers,
                         watches=watches)  # fmt: skip
    if entries := options.sync_entries:
        fewer = min(transfers.organizations, max(1, entries // 10))
        transfers = replace(transfers, entries=entries, organizations=fewer)
        watches = replace(watches, arrivals=5, handoffs=2, idle_seconds=1.0, backlog=entries,
                          writes=10, devices=fewer, pushed=entries, rounds=1)  # fmt: skip
        usual = replace(usual, transfers=transfers, watches=watches)
    asked = {"samples": options.samples, "entries": options.entries}
    return replace(usual, **{name: value for name, value in asked.items() if value})


def _run(folder: Path, settings: Settings, only: str | None) -> Results:
    before, small = machine(), payload.small()
    # PostgreSQL runs as a user of its own where this runs as root.
    folder.chmod(0o711)
    return Results(
        settings,
        _local(folder, settings, small) if only in (None, LOCAL) else None,
        sync.measured(folder / "sync", small, settings.transfers, _progress)
        if only in (None, SYNC)
        else None,
        daemon.measured(folder / "daemon", small, settings.watches, _progress)
        if only in (None, DAEMON)
        else None,
        _others(folder / "others", settings, small) if only in (None, OTHERS) else None,
        before,
    )


def _local(folder: Path, settings: Settings, small: payload.Payload) -> Local:
    payloads = [small, payload.large()]
    with closing(connection(folder / "control.db")) as opened:
        control = raw_commit(opened, payload.TASK, small.body, "control")

        def calm() -> None:
            waited = wait_until_calm(lambda: probed(control), settings.patience)
            _progress(f"waited {waited:.0f} s for a quiet machine")

        comparisons = []
        for item in payloads:
            calm()
            comparisons.append(_comparison(folder / item.label, item, settings.samples))
        _progress("start-up")
        started = startup.measured(folder, small, settings.start_ups)
        _progress(resume.LINE)
        prompts = resume.measured(folder, small, max(20, settings.samples // 20))
        _progress(loop.LINE)
        looped = loop.measured(folder, small, min(20, max(3, settings.samples // 20)))
        _progress("hooks of a session")
        hooked = hooks.replayed(folder, 20 if settings.quick else None)
        many = settings.entries // 100
        _progress(f"files: importing {many:,}")
        imported = files.measured(folder / "files", small, many, max(20, settings.samples // 20))
        _progress(f"growth: writing {settings.entries:,} entries")
        grown = growth.measured(folder, small, settings, control, calm)
    return Local(comparisons, grown, started, prompts, looped, imported, hooked)


def _others(folder: Path, settings: Settings, small: payload.Payload) -> Others:
    """What the others are made of takes a while to import."""
    from bench import others

    return others.measured(folder, small, max(50, settings.samples // 4), _progress)


def _comparison(folder: Path, item: payload.Payload, samples: int) -> Comparison:
    _progress(f"{item.label}: {samples:,} samples of each operation")
    with contenders(folder, item) as operations:
        found = interleaved(operations, samples)
    return Comparison(item.label, len(item.body), found)


def _publish(results: Results, out: Path, docs: Path) -> None:
    from bench import page

    held = verdicts(results)
    document = {
        **results.as_document(),
        "must_hold": [verdict.as_document() for verdict in held],
    }
    (out / "bench.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    written = [out / "bench.json", *page.write(results, held, document["date"][:10], docs)]
    print(report.text(results, held))
    print(f"\n{', '.join(map(str, written))}")


def _progress(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
