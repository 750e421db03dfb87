"""`python -m bench`: run everything once, print the report, write bench.json and bench.png.

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

from bench import growth, payload, report, startup
from bench.contenders import contenders
from bench.disk import PATIENCE_SECONDS, connection, probed, raw_commit, wait_until_calm
from bench.measure import interleaved
from bench.results import Comparison, Results, machine
from bench.settings import Settings
from bench.verdict import verdicts

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # syncd says so when a prompt gets long; it may, but not into the table.
    logging.getLogger("syncd").addHandler(logging.NullHandler())
    # So that a stopped run removes its databases too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Beside the results and not in /tmp, which may be memory: syncing would cost nothing there.
    with tempfile.TemporaryDirectory(prefix="databases-", dir=options.out) as folder:
        results = _run(Path(folder), _settings(options))
    _publish(results, options.out)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--samples", type=int, help="timings per operation (4,000)")
    parser.add_argument("--entries", type=int, help="entries of the long history (1,000,000)")
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args(arguments)


def _settings(options: argparse.Namespace) -> Settings:
    if options.quick:
        usual = Settings(samples=50, entries=20_000, start_ups=3, patience=0.0, quick=True)
    else:
        usual = Settings(4_000, 1_000_000, 40, PATIENCE_SECONDS, quick=False)
    asked = {"samples": options.samples, "entries": options.entries}
    return replace(usual, **{name: value for name, value in asked.items() if value})


def _run(folder: Path, settings: Settings) -> Results:
    before = machine()
    payloads = [payload.small(), payload.large()]
    with closing(connection(folder / "control.db")) as opened:
        control = raw_commit(opened, payload.TASK, payloads[0].body, "control")

        def calm() -> None:
            waited = wait_until_calm(lambda: probed(control), settings.patience)
            _progress(f"waited {waited:.0f} s for a quiet machine")

        comparisons = []
        for item in payloads:
            calm()
            comparisons.append(_comparison(folder / item.label, item, settings.samples))
        _progress("start-up")
        started = startup.measured(folder, payloads[0], settings.start_ups)
        _progress(f"growth: writing {settings.entries:,} entries")
        grown = growth.measured(folder, payloads[0], settings, control, calm)
    return Results(settings, comparisons, grown, started, before)


def _comparison(folder: Path, item: payload.Payload, samples: int) -> Comparison:
    _progress(f"{item.label}: {samples:,} samples of each operation")
    with contenders(folder, item) as operations:
        found = interleaved(operations, samples)
    return Comparison(item.label, len(item.body), found)


def _publish(results: Results, out: Path) -> None:
    from bench import plot

    held = verdicts(results)
    document = {
        **results.as_document(),
        "must_hold": [verdict.as_document() for verdict in held],
    }
    (out / "bench.json").write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    plot.draw(results, out / "bench.png")
    print(report.text(results, held))
    print(f"\n{out / 'bench.json'}, {out / 'bench.png'}")


def _progress(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
