"""`python -m scale`: measure how far one server goes, write a JSON file for each part, and
docs/scale.md of all parts that there are.

The exit code is that of the table at the end: 1 if anything in it is called FAIL, be it an entry
that was missed or a figure that a busy machine did not reach. The load of --quick is too small for
the figures: there, only missed entries count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scale import document, fleet, histories, page, replicas, settings
from scale.verdict import failed, figures, missed, verdicts

PARTS = ("fleet", "crowd", "device", "replica")
RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
HISTORIES = (1_000, 10_000, 100_000)
REPLICAS = (10_000, 100_000, 1_000_000)
QUICK_HISTORIES, QUICK_REPLICAS = (1_000, 3_000), (1_000, 5_000)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    # So that a stopped run ends its server and its processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    databases = options.out / "databases"
    databases.mkdir(exist_ok=True)
    # PostgreSQL runs as a user of its own where this runs as root.
    databases.chmod(0o711)
    try:
        for part in options.only or PARTS:
            found = _measured(part, databases / part, options)
            (options.out / f"{part}.json").write_text(json.dumps(found, indent=2) + "\n")
    finally:
        if not options.keep:
            shutil.rmtree(databases)
    parts = _publish(options.out, options.out if options.quick else DOCS)
    return int(failed(missed(parts)) or (not options.quick and failed(figures(parts))))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scale", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run one part, or several")
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--organizations", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=60, help="of the main load")
    parser.add_argument("--rate", type=int, default=5_400, help="entries a second that are offered")
    parser.add_argument("--batch", type=int, default=50, help="entries of one push")
    parser.add_argument("--crowd", type=int, default=200, help="devices of one organization")
    parser.add_argument("--history", type=int, default=1_000_000, help="of the longest device")
    parser.add_argument("--entries", type=int, default=10_000_000, help="of the largest replica")
    parser.add_argument("--samples", type=int, default=1_000, help="timings per operation")
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute")
    parser.add_argument("--keep", action="store_true", help="long histories stay for the next run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    options = parser.parse_args(arguments)
    if options.quick:
        options.devices, options.organizations, options.crowd = 20, 4, 10
        options.seconds, options.rate, options.samples = 6, 250, 20
    return options


def _measured(part: str, place: Path, options: argparse.Namespace) -> dict[str, Any]:
    quick = options.quick
    if part == "fleet":
        asked = settings.fleet(options.devices, options.organizations, options.seconds,
                               options.rate, options.batch)  # fmt: skip
        return document.of_fleet(fleet.measured(_fresh(place), asked, _progress))
    if part == "crowd":
        asked = settings.crowd(options.crowd, 2 if quick else 5, max(1, options.batch // 2))
        return document.of_fleet(fleet.measured(_fresh(place), asked, _progress))
    if part == "device":
        longer = (options.history,) if options.history > HISTORIES[-1] else ()
        sizes = QUICK_HISTORIES if quick else (*HISTORIES, *longer)
        return document.of_histories(histories.measured(place, sizes, options.samples, _progress))
    sizes = QUICK_REPLICAS if quick else (*REPLICAS, options.entries)
    samples = max(10, options.samples // 5)
    return document.of_replicas(
        replicas.measured(place, sizes, samples, _progress, keep=options.keep)
    )


def _fresh(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    return place


def _publish(out: Path, docs: Path) -> dict[str, dict[str, Any]]:
    """Of what this run has measured and of what earlier ones have left."""
    files = {part: out / f"{part}.json" for part in PARTS}
    parts = {part: json.loads(file.read_text()) for part, file in files.items() if file.exists()}
    held = verdicts(parts)
    written = page.write(parts, held, docs)
    for verdict in held:
        print(f"{verdict.word:5} {verdict.claim}: {verdict.measured:,g} {verdict.unit} "
              f"({verdict.sign} {verdict.limit:,g})")  # fmt: skip
    print(f"\n{', '.join(map(str, [*(files[part] for part in parts), *written]))}")
    return parts


def _progress(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
