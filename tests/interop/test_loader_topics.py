"""R28-R30: topics that stock clients wrote, on real brokers, into tables."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import kafka
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.support.clusters import ReachableCluster, SharedCluster, partition_directory
from tests.support.record_batches import HEADER, batch_positions
from tests.support.topics import TopicFactory

from mainstem_loader.errors import CorruptBatchError, LoaderError, SparkUnavailableError
from mainstem_loader.load_topic import LoadOutcome, LoadReport, LoadSettings, load_topic
from mainstem_loader.payload.readers import PayloadFormat
from mainstem_loader.spark.executors import InProcessExecutor, SparkExecutor
from mainstem_loader.table.query import query

NEW_YEAR_MS: Final = 1_356_998_400_000
RECORDS: Final = 3_000


def settings(cluster: ReachableCluster, topic: str, warehouse: Path, **more: Any) -> LoadSettings:
    return LoadSettings(cluster.bootstrap_servers, topic, warehouse, **more)


def load(cluster: ReachableCluster, topic: str, warehouse: Path, **more: Any) -> LoadReport:
    return load_topic(settings(cluster, topic, warehouse, **more), InProcessExecutor())


def send(cluster: ReachableCluster, topic: str, values: list[bytes | None], **how: Any) -> None:
    producer: Any = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **how})
    for index, value in enumerate(values):
        producer.produce(
            topic,
            value,
            b"%d" % index,
            timestamp=NEW_YEAR_MS + index,
            headers=[("n", b"%d" % index)],
            partition=0,
        )
    assert producer.flush(30) == 0


def send_with_kafka_python(
    cluster: ReachableCluster, topic: str, values: list[bytes], codec: str | None
) -> None:
    producer: Any = kafka.KafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=codec,
        linger_ms=20,
        enable_idempotence=False,
    )
    for index, value in enumerate(values):
        producer.send(topic, value, key=b"%d" % index, timestamp_ms=NEW_YEAR_MS + index, partition=0)
    producer.flush(30)
    producer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_of_stock_clients_is_loaded(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path, codec: str
) -> None:
    """R7: librdkafka and kafka-python frame snappy differently, among other things."""
    topic = new_topic()
    values = [b'{"n":%d,"text":"%s"}' % (index, b"x" * (index % 300)) for index in range(RECORDS)]
    send(local_stack, topic, list(values), **{"compression.type": codec})
    send_with_kafka_python(local_stack, topic, values, None if codec == "none" else codec)
    report = load(local_stack, topic, tmp_path, with_headers=True)
    assert (report.read, report.loaded, report.days) == (2 * RECORDS, 2 * RECORDS, ("2013-01-01",))
    rows = query(tmp_path, f'SELECT * FROM "{topic}" ORDER BY _offset').to_pylist()
    assert [row["_offset"] for row in rows] == list(range(2 * RECORDS))
    for index, row in enumerate(rows):
        sent = json.loads(values[index % RECORDS])
        assert (row["n"], row["text"], row["_key"]) == (sent["n"], sent["text"], b"%d" % (index % RECORDS))
        assert round(row["_timestamp"].timestamp() * 1000) == NEW_YEAR_MS + index % RECORDS
    assert rows[7]["_headers"] == [{"key": "n", "value": b"7"}]
    assert rows[RECORDS]["_headers"] == []


def test_spark_loads_a_topic_over_several_tasks(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """R28: driver and workers of real Spark, with an event time, dead letters and a second load."""
    topic = new_topic(3)
    count = 210_000
    producer: Any = Producer(
        {
            "bootstrap.servers": local_stack.bootstrap_servers,
            "log_level": 0,
            "queue.buffering.max.messages": 2 * count,
        }
    )
    for index in range(count):
        value = (
            b"bad" if index == 4444 else b'{"n":%d,"at":"2013-01-%02dT10:00:00Z"}' % (index, index % 28 + 1)
        )
        producer.produce(topic, value, partition=index % 3)
    assert producer.flush(30) == 0
    order = settings(
        local_stack, topic, tmp_path, event_time_field="at", columns={"at": pa.timestamp("us", "UTC")}
    )
    seen: list[str] = []
    with SparkExecutor("local[2]") as spark:
        report = load_topic(order, spark, lambda progress: seen.append(progress.stage.value))
        assert (report.loaded, report.dead_lettered, len(report.days)) == (count - 1, 1, 28)
        assert report.tries == 2
        producer.produce(topic, b'{"n":4444,"at":"2012-12-31T23:00:00-05:00"}', partition=0)
        assert producer.flush(30) == 0
        again = load_topic(replace(order, max_records=100), spark)
        assert (again.loaded, again.days) == (1, ("2013-01-01",))
        assert load_topic(order, spark).outcome is LoadOutcome.UP_TO_DATE
    assert list(dict.fromkeys(seen)) == ["connect", "start", "load", "commit", "dead letters", "sweep"]
    answer = query(
        tmp_path, f'SELECT count(*) AS rows, count(DISTINCT n) AS numbers FROM "{topic}"'
    ).to_pylist()
    assert answer == [{"rows": count, "numbers": count}]


def test_an_error_in_a_spark_task_reaches_the_person_as_its_sentence(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    topic = new_topic()
    send(local_stack, topic, [b'{"a":1}'] * 10)
    _flip_a_byte(local_stack, topic)
    with pytest.raises(
        CorruptBatchError, match=rf"^Partition 0 of topic {topic} is damaged at offset \d+: the checksum"
    ):
        load_topic(settings(local_stack, topic, tmp_path, spark_master="local[1]"))


def _flip_a_byte(cluster: ReachableCluster, topic: str) -> None:
    """In the middle batch of the segment, among its records, behind the broker's back."""
    (segment,) = partition_directory(cluster, topic).glob("*.log")
    with segment.open("r+b") as file:
        data = file.read()
        batches = [position for position, _ in batch_positions(data)]
        place = batches[len(batches) // 2] + HEADER.size + 3
        file.seek(place)
        file.write(bytes([data[place] ^ 0x10]))


def test_a_topic_made_anew_is_loaded_from_its_beginning(
    local_stack: SharedCluster, new_topic: TopicFactory, tmp_path: Path
) -> None:
    """Its offsets begin at 0 again, and its id distinguishes it from the old one."""
    topic = new_topic()
    send(local_stack, topic, [b"old"] * 5)
    before = load(local_stack, topic, tmp_path, payload=PayloadFormat.RAW)
    new_topic.admin.delete_topics([topic])[topic].result(60)
    new_topic(name=topic)
    send(local_stack, topic, [b"new"] * 2)
    after = load(local_stack, topic, tmp_path, payload=PayloadFormat.RAW)
    assert (before.loaded, after.loaded) == (5, 2)
    assert before.topic_id != after.topic_id


def test_two_sparks_in_one_process_are_refused_in_one_sentence() -> None:
    with (
        SparkExecutor("local[1]"),
        pytest.raises(SparkUnavailableError, match="Another Spark runs in this process"),
    ):
        SparkExecutor("local[1]").__enter__()


def test_a_task_that_ends_unexpectedly_is_reported_in_one_line() -> None:
    # Nested, so that they are sent whole to workers, which do not know this module.
    def kill_itself(task: int, attempt: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def divide(task: int, attempt: int) -> float:
        return task / 0

    with SparkExecutor("local[1]") as spark:
        with pytest.raises(
            LoaderError, match="process was killed, perhaps for want of memory; use fewer cores"
        ):
            spark.run(kill_itself, [1], lambda _: None)
        for _ in range(2):
            with pytest.raises(
                LoaderError, match="A task ended unexpectedly: ZeroDivisionError: division by zero"
            ):
                spark.run(divide, [1], lambda _: None)
            # With a session PySpark has other errors, also in what has none.
            spark.run_frames(lambda session: session.range(1).count(), 120)
