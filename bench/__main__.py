"""`python -m bench`: Mainstem and Apache Kafka side by side, a table at the end, results in bench/results/.

`--quick` for a smoke test of a minute (its figures mean little), `--record` to keep the results under the
day's date as well, `--only mainstem` to leave Apache Kafka out. Exits with 1 when a figure misses its bound.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import apache_kafka, loader
from bench.mainstem_stack import Mainstem
from bench.measure import FULL, QUICK, QUICK_WARM_UP, WARM_UP, Say, measure
from bench.report import OURS, THEIRS, Figure, Samples, Verdict, table, write_json
from bench.system import System

RESULTS: Final = Path(__file__).parent / "results"
DISK_BYTES_MIN: Final = 8 << 30
LOADER_BOUND: Final = 6.0


def main() -> int:
    arguments = _parse()
    begun = dt.datetime.now(dt.UTC)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {what}", flush=True)

    with _workspace() as directory, contextlib.ExitStack() as running:
        systems: list[System] = [_run(running, Mainstem(directory / "mainstem"), say)]
        if not arguments.mainstem_alone:
            try:
                kafka = apache_kafka.ApacheKafka(directory / "kafka", apache_kafka.fetch())
                systems.append(_run(running, kafka, say))
            except apache_kafka.NotAvailable as reason:
                say(str(reason))
        scale, warm_up = (QUICK, QUICK_WARM_UP) if arguments.quick else (FULL, WARM_UP)
        if arguments.rounds:
            scale = dataclasses.replace(scale, rounds=arguments.rounds)
        measured = measure(systems, scale, warm_up, say)
        figures = measured.figures
        if not arguments.quick:
            figures.append(_loader_figure(systems[0], scale.rounds, say))
    command = "python -m bench" + (" --quick" if arguments.quick else "")
    paths = [RESULTS / "latest.json"]
    if arguments.record:
        paths.append(RESULTS / f"{begun.date().isoformat()}.json")
    for path in paths:
        write_json(
            path,
            figures,
            begun=begun.isoformat(timespec="seconds"),
            command=command,
            neighbour_cores=measured.neighbour_cores,
        )
    say("results in " + " and ".join(f"bench/results/{path.name}" for path in paths))
    print(table(figures))
    return 1 if any(figure.verdict is Verdict.FAIL for figure in figures) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test of about a minute")
    parser.add_argument("--record", action="store_true", help="keep the results under today's date as well")
    parser.add_argument("--mainstem-alone", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often everything is done (default 5)")
    return parser.parse_args()


@contextlib.contextmanager
def _workspace() -> Iterator[Path]:
    """A folder for both systems' data, gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    try:
        if shutil.disk_usage(directory).free < DISK_BYTES_MIN:
            sys.exit(
                f"The bench needs {DISK_BYTES_MIN >> 30} GiB in {directory.parent}: "
                "set TMPDIR to a folder that has more."
            )
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(running: contextlib.ExitStack, system: System, say: Say) -> System:
    say(f"{system.name}: starting")
    running.callback(system.stop)
    system.start()
    return system


def _loader_figure(system: System, rounds: int, say: Say) -> Figure:
    """Rows a second of our loader and, where the other system stands, of one that goes message by message."""
    say("loader, and one that goes message by message, by turns")
    found = loader.run(system.bootstrap_servers, rounds=rounds)
    samples: dict[str, Samples] = {
        OURS: {"loader": [found["records"] / seconds for seconds in found["seconds"]]},
        THEIRS: {"loader": [found["records"] / seconds for seconds in found["other_seconds"]]},
    }
    return Figure("Loader (and message by message)", "loader", "rows/s", True, LOADER_BOUND, samples)


if __name__ == "__main__":
    sys.exit(main())
