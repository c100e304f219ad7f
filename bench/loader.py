"""How many records a second reach a table: the loader beside one that goes message by message.

Both run as tasks of the same warm Spark on as many cores, one task for each partition, and end with files of
the same columns and compression in a Delta commit. The other one is what one writes first: confluent-kafka's
`poll`, a message at a time, its fields into lists, the lists into Parquet with pyarrow. In each round the
loader loads several times for once of the other, so that both take about as long; the ratio is of medians.

`seconds` are those from asking the brokers to the end of the commit. Starting Spark is the same for both and
is reported on its own; so is a first load, in which Python workers start.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake
from pyarrow import parquet
from pyspark import cloudpickle

from mainstem_loader.load_topic import LoadReport, LoadSettings, load_topic
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.spark.executors import SparkExecutor

CORES: Final = 2
RECORDS: Final = 2_000_000
ROUNDS: Final = 3
LOADS_PER_ROUND: Final = 4
KEY_BYTES: Final = 8
VALUE_BYTES: Final = 100
ROW_GROUP_ROWS: Final = 200_000
# Values are hexadecimal digits, so about as compressible as text, and too many to be found again by a codec.
VALUES: Final = 100_000


def run(bootstrap_servers: str, records: int = RECORDS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure both.

    Args:
        bootstrap_servers: a cluster with nothing else to do.
        records: how many each load brings.
        rounds: how often the other one loads.

    Returns:
        `rows_per_second`, `other_rows_per_second` (medians), `ratio`, and what they come from.
    """
    topic = f"bench-loader-{uuid4().hex[:8]}"
    fill_topic(bootstrap_servers, topic, records)
    folder = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
    ours: list[float] = []
    others: list[float] = []
    reports: list[LoadReport] = []
    try:
        began = time.perf_counter()
        with SparkExecutor(f"local[{CORES}]") as spark:
            spark_seconds = time.perf_counter() - began
            cold, _ = _load(spark, bootstrap_servers, topic, folder / "cold", records)
            _load_by_message(spark, bootstrap_servers, topic, folder / "cold-other", records)
            for number in range(rounds):
                for load in range(LOADS_PER_ROUND):
                    warehouse = folder / f"ours-{number}-{load}"
                    seconds, report = _load(spark, bootstrap_servers, topic, warehouse, records)
                    shutil.rmtree(warehouse)
                    ours.append(seconds)
                    reports.append(report)
                others.append(
                    _load_by_message(spark, bootstrap_servers, topic, folder / f"other-{number}", records)
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        delete_topic(bootstrap_servers, topic)
    rate, other_rate = records / statistics.median(ours), records / statistics.median(others)
    return {
        "records": records,
        "cores": CORES,
        "rows_per_second": rate,
        "other_rows_per_second": other_rate,
        "ratio": rate / other_rate,
        "seconds": ours,
        "other_seconds": others,
        "first_load_seconds": cold,
        "spark_start_seconds": spark_seconds,
        "task_seconds": reports[-1].task_seconds,
        "table_bytes_per_row": reports[-1].size_bytes / records,
    }


@dataclass(frozen=True, slots=True)
class _MessageTask:
    bootstrap_servers: str
    topic: str
    partition: int
    end: int
    file: str


def _load(
    spark: SparkExecutor, bootstrap_servers: str, topic: str, warehouse: Path, records: int
) -> tuple[float, LoadReport]:
    settings = LoadSettings(
        bootstrap_servers, topic, warehouse, table="loaded", payload=PayloadFormat.RAW, cores=CORES
    )
    began = time.perf_counter()
    report = load_topic(settings, spark)
    seconds = time.perf_counter() - began
    assert report.loaded == records, f"{report.loaded} of {records} records were loaded"
    return seconds, report


def _load_by_message(
    spark: SparkExecutor, bootstrap_servers: str, topic: str, warehouse: Path, records: int
) -> float:
    began = time.perf_counter()
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "bench", "log_level": 0}
    )
    warehouse.mkdir()
    tasks: list[_MessageTask] = []
    for partition in consumer.list_topics(topic, timeout=20).topics[topic].partitions:
        _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=20)
        tasks.append(
            _MessageTask(bootstrap_servers, topic, partition, end, str(warehouse / f"{partition}.parquet"))
        )
    consumer.close()
    # Workers need not find this module: what they run of it is sent whole.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rows = sum(spark.run(lambda task, _: _load_messages(task), tasks, lambda _: None))
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    # What a commit costs: the schema, an action for each file, a log entry.
    write_deltalake(warehouse / "loaded", parquet.ParquetFile(tasks[0].file).schema_arrow.empty_table())
    seconds = time.perf_counter() - began
    assert rows == records, f"{rows} of {records} records were loaded"
    return seconds


def _load_messages(task: _MessageTask) -> int:
    """Load one partition a message at a time. Returns how many rows were written."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": task.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.message.max.bytes": 16 * 1024 * 1024,
            "queued.max.messages.kbytes": 256 * 1024,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(task.topic, task.partition, 0)])
    writer: parquet.ParquetWriter | None = None
    rows: list[tuple[int, int, int, bytes, bytes]] = []
    written = 0
    offset = -1
    while offset < task.end - 1:
        message = consumer.poll(10)
        if message is None or message.error():
            raise RuntimeError(f"nothing came: {message and message.error()}")
        offset = message.offset()
        rows.append((message.partition(), offset, message.timestamp()[1], message.key(), message.value()))
        if len(rows) == ROW_GROUP_ROWS or offset == task.end - 1:
            names = ("_partition", "_offset", "_timestamp", "_key", "value")
            table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
            writer = writer or parquet.ParquetWriter(task.file, table.schema, compression="zstd")
            writer.write_table(table)
            written += len(rows)
            rows.clear()
    if writer is not None:
        writer.close()
    consumer.close()
    return written


def fill_topic(bootstrap_servers: str, topic: str, records: int) -> None:
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, CORES, 1)])[topic].result(30)
    producer: Any = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 500_000,
        }
    )
    chance = random.Random(1)
    values = [chance.randbytes(VALUE_BYTES // 2).hex().encode() for _ in range(VALUES)]
    for index in range(records):
        while len(producer) > 400_000:
            producer.poll(0.1)
        key = b"%0*d" % (KEY_BYTES, index)
        producer.produce(topic, values[index % VALUES], key, partition=index % CORES)
    assert producer.flush(60) == 0


def delete_topic(bootstrap_servers: str, topic: str) -> None:
    admin: Any = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic])[topic].result(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    figures = run(options.bootstrap_servers, options.records, options.rounds)
    print(json.dumps(figures, indent=2))
    print(
        f"loader: {figures['rows_per_second'] / 1e6:.2f} M rows/s, {figures['ratio']:.1f} times message by"
        " message"
    )


if __name__ == "__main__":
    main()
