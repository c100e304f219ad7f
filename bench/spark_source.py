"""How many records a second come through Spark's data source `mainstem`: into a count and into files.

`python -m bench.spark_source 127.0.0.1:9092` fills a topic of two partitions and reads it on two cores. Each
figure is the median of several runs in a warm session; a first run, in which Python workers start, does not
count.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from bench.loader import CORES, RECORDS, ROUNDS, delete_topic, fill_topic
from mainstem_loader.spark.executors import SparkExecutor


def run(bootstrap_servers: str, records: int = RECORDS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure.

    Args:
        bootstrap_servers: a cluster with nothing else to do.
        records: how many there are.
        rounds: how often each measurement is made.

    Returns:
        Rows a second by what is done with them.
    """
    topic = f"bench-spark-{uuid4().hex[:8]}"
    fill_topic(bootstrap_servers, topic, records)
    folder = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    try:
        with SparkExecutor(f"local[{CORES}]") as executor:
            session: Any = SparkSession(executor.context)
            reader = session.read.format("mainstem").option("kafka.bootstrap.servers", bootstrap_servers)
            whole = reader.option("subscribe", topic)
            frame = whole.load()
            narrow = whole.schema("offset long").load()
            measured: dict[str, Callable[[], Any]] = {
                "count": frame.count,
                "count_of_offsets": narrow.count,
                "noop": lambda: frame.write.format("noop").mode("overwrite").save(),
                "parquet": lambda: frame.write.mode("overwrite").parquet(str(folder / "rows")),
            }
            assert frame.count() == records
            return {name: _rate(action, records, rounds) for name, action in measured.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        delete_topic(bootstrap_servers, topic)


def _rate(action: Callable[[], Any], records: int, rounds: int) -> float:
    seconds: list[float] = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return records / statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    rates = run(options.bootstrap_servers, options.records, options.rounds)
    print(json.dumps({name: round(rate) for name, rate in rates.items()}, indent=2))


if __name__ == "__main__":
    main()
