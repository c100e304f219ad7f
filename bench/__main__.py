"""`python -m bench`: Mainstem and Apache Kafka side by side, a table at the end, results in bench/results/.

`--quick` for a smoke test of a minute (its figures mean little), `--record` to keep the results under the
day's date as well, `--mainstem-alone` to leave Apache Kafka out, `--only PART` for one part. Exits with 1
when a figure misses its bound.
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
from typing import Final, TypeVar

from bench import apache_kafka, loader, transactions
from bench.failover import measure_failover
from bench.mainstem_stack import Mainstem
from bench.measure import FULL, QUICK, QUICK_WARM_UP, WARM_UP, Say, measure
from bench.replicated import (
    ReplicatedApacheKafka,
    ReplicatedMainstem,
    measure_replicated,
    measure_transactions,
)
from bench.report import OURS, THEIRS, Figure, Samples, Verdict, table, write_json
from bench.system import Cluster, System
from mainstem_broker.compiled import are_made

AnyCluster = TypeVar("AnyCluster", bound=Cluster)

RESULTS: Final = Path(__file__).parent / "results"
DISK_BYTES_MIN: Final = 8 << 30
LOADER_BOUND: Final = 6.0
PARTS: Final = ("one-broker", "replication", "transactions", "failover")


def main() -> int:
    arguments = _parse()
    begun = dt.datetime.now(dt.UTC)
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {what}", flush=True)

    scale, warm_up = (QUICK, QUICK_WARM_UP) if arguments.quick else (FULL, WARM_UP)
    if arguments.rounds:
        scale = dataclasses.replace(scale, rounds=arguments.rounds)
    if not are_made():
        say("Mainstem's brokers are plain Python: `make compile` makes what `make bench` measures")
    jars = None
    parts = {arguments.only} if arguments.only else {"one-broker", "replication", "transactions"}
    if not (arguments.mainstem_alone or parts == {"failover"}):
        try:
            jars = apache_kafka.fetch()
        except apache_kafka.NotAvailable as reason:
            say(str(reason))
    figures: list[Figure] = []
    neighbour_cores: list[float] = []
    with _workspace() as directory:
        if "failover" in parts:
            figures += measure_failover(directory, rounds=scale.rounds, say=say)
        if "one-broker" in parts:
            with contextlib.ExitStack() as running:
                systems: list[System] = [_run(running, Mainstem(directory / "mainstem"), say)]
                if jars is not None:
                    systems.append(_run(running, apache_kafka.ApacheKafka(directory / "kafka", jars), say))
                measured = measure(systems, scale, warm_up, say)
                figures, neighbour_cores = measured.figures, measured.neighbour_cores
                if not arguments.quick:
                    figures.append(_loader_figure(systems[0], scale.rounds, say))
        if parts & {"replication", "transactions"}:
            with contextlib.ExitStack() as running:
                clusters: list[Cluster] = [_run(running, ReplicatedMainstem(directory / "mainstem-3"), say)]
                if jars is not None:
                    clusters.append(_run(running, ReplicatedApacheKafka(directory / "kafka-3", jars), say))
                if "replication" in parts:
                    figures += measure_replicated(
                        clusters,
                        rounds=scale.rounds,
                        messages=scale.messages,
                        synchronous_messages=scale.synchronous_messages // 2,
                        say=say,
                    )
                if "transactions" in parts:
                    figures += measure_transactions(
                        clusters,
                        rounds=scale.rounds,
                        scale=transactions.QUICK if arguments.quick else transactions.FULL,
                        say=say,
                    )
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
            neighbour_cores=neighbour_cores,
        )
    say("results in " + " and ".join(f"bench/results/{path.name}" for path in paths))
    print(table(figures))
    return 1 if any(figure.verdict is Verdict.FAIL for figure in figures) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smoke test of about a minute")
    parser.add_argument("--record", action="store_true", help="keep the results under today's date as well")
    parser.add_argument("--mainstem-alone", action="store_true", help="leave Apache Kafka out")
    parser.add_argument("--only", choices=PARTS, help="one part; failover is not measured otherwise")
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


def _run(running: contextlib.ExitStack, system: AnyCluster, say: Say) -> AnyCluster:
    say(f"{system.name}: starting")
    running.callback(system.stop)
    system.start()
    return system


def _loader_figure(system: System, rounds: int, say: Say) -> Figure:
    """Rows a second of our loader and, where the other system stands, of one that goes message by message."""
    say("loader, and one that goes message by message, by turns")
    figures = loader.run(system.bootstrap_servers, rounds=rounds)
    samples: dict[str, Samples] = {
        OURS: {"loader": [figures["records"] / seconds for seconds in figures["seconds"]]},
        THEIRS: {"loader": [figures["records"] / seconds for seconds in figures["other_seconds"]]},
    }
    return Figure("Loader (and message by message)", "loader", "rows/s", True, LOADER_BOUND, samples)


if __name__ == "__main__":
    sys.exit(main())
