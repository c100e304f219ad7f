"""R34: topics as DataFrames of a real Spark, on real brokers with stock clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer, TopicPartition
from pyspark.sql import SparkSession
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until

from mainstem_loader import register
from mainstem_loader.spark.executors import SparkExecutor

NEW_YEAR_MS: Final = 1_356_998_400_000
# Else retention deletes records with times of the past whenever it runs.
KEEP: Final = {"retention.ms": "-1"}
STREAM_SECONDS: Final = 240


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests of the module."""
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Else a busy machine is a failure.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    with SparkExecutor("local[2]", settings) as executor:
        yield SparkSession(executor.context)


@pytest.fixture
def send(local_stack: SharedCluster) -> Callable[..., None]:
    """Sends values to one partition, with keys, headers and times that count from New Year 2013."""

    def send_values(topic: str, values: Sequence[bytes | None], partition: int = 0) -> None:
        # A new producer each time, because one that knows the topic learns of new partitions minutes later.
        producer: Any = Producer({"bootstrap.servers": local_stack.bootstrap_servers, "log_level": 0})
        for index, value in enumerate(values):
            producer.produce(
                topic,
                value,
                b"k%d" % index,
                partition=partition,
                timestamp=NEW_YEAR_MS + index,
                headers=[("n", b"%d" % index)],
            )
        assert producer.flush(30) == 0

    return send_values


def reader(spark: Any, cluster: ReachableCluster) -> Any:
    return spark.read.format("mainstem").option("kafka.bootstrap.servers", cluster.bootstrap_servers)


def frame(spark: Any, cluster: ReachableCluster, topic: str, **options: object) -> Any:
    return reader(spark, cluster).option("subscribe", topic).options(**options).load()


def numbers(count: int) -> list[bytes]:
    return [b'{"n": %d}' % number for number in range(count)]


def test_a_batch_has_the_columns_of_sparks_own_connector(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None]
) -> None:
    """The format is found by its name, without registration."""
    topic = new_topic(2, KEEP)
    send(topic, [b"a", None])
    send(topic, [b"b"], 1)
    rows = frame(spark, local_stack, topic, includeHeaders="true").orderBy("partition", "offset").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {
            "key": b"k%d" % index,
            "value": value,
            "topic": topic,
            "partition": partition,
            "offset": index,
            "timestamp": datetime.fromtimestamp((NEW_YEAR_MS + index) / 1000, UTC).replace(tzinfo=None),
            "timestampType": 0,
            "headers": [{"key": "n", "value": b"%d" % index}],
        }
        for partition, index, value in [(0, 0, b"a"), (0, 1, None), (1, 0, b"b")]
    ]


def test_a_batch_reads_the_offsets_times_and_columns_that_are_named(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None]
) -> None:
    topic = new_topic(2, KEEP)
    send(topic, numbers(100))
    send(topic, numbers(100), 1)
    part = frame(
        spark,
        local_stack,
        topic,
        startingOffsets=json.dumps({topic: {"0": 90, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "1": 5}}),
        minPartitions=7,
    )
    assert part.rdd.getNumPartitions() >= 7
    assert sorted((row.partition, row.offset) for row in part.select("partition", "offset").collect()) == [
        *((0, offset) for offset in range(90, 100)),
        *((1, offset) for offset in range(5)),
    ]
    by_time = frame(
        spark, local_stack, topic, startingTimestamp=NEW_YEAR_MS + 97, endingTimestamp=NEW_YEAR_MS + 99
    )
    assert sorted(row.offset for row in by_time.collect()) == [97, 97, 98, 98]
    assigned = reader(spark, local_stack).option("assign", json.dumps({topic: [1]}))
    few = assigned.schema("offset long, value binary").load()
    assert few.columns == ["offset", "value"]
    assert few.count() == 100
    pattern = reader(spark, local_stack).option("subscribePattern", f"{topic[:-1]}.")
    assert pattern.schema("topic string").load().distinct().collect() == [(topic,)]


def test_filters_on_partition_offset_and_time_narrow_what_is_read(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None]
) -> None:
    """A filter leaves fewer tasks or offsets, and the same rows."""
    topic = new_topic(3, KEEP)
    for partition in range(3):
        send(topic, numbers(50), partition)
    whole = frame(spark, local_stack, topic)
    late = whole.where(f"timestamp >= timestamp_millis({NEW_YEAR_MS + 48})")
    assert sorted(row.offset for row in late.collect()) == [48, 48, 48, 49, 49, 49]
    one = whole.where("partition = 1 and offset >= 10 and offset < 12")
    assert one.rdd.getNumPartitions() == 1
    assert sorted((row.partition, row.offset) for row in one.collect()) == [(1, 10), (1, 11)]
    assert whole.where("partition in (0, 2) and offset = 7").count() == 2
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        again = frame(spark, local_stack, topic).where("partition = 1 and offset >= 10 and offset < 12")
        assert again.rdd.getNumPartitions() == 3
        assert again.count() == 2
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def stream(
    spark: Any, cluster: ReachableCluster, topic: str, checkpoint: Path, **options: object
) -> list[Any]:
    """Read what there is, until the end; the rows of all micro-batches since the checkpoint began."""
    rows = checkpoint / "rows"
    source = (
        spark.readStream.format("mainstem")
        .option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )
    query = (
        source.writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint / "state"))
        .trigger(availableNow=True)
        .start(str(rows))
    )
    assert query.awaitTermination(STREAM_SECONDS)
    return sorted((row.partition, row.offset) for row in spark.read.parquet(str(rows)).collect())


def test_a_stream_continues_at_its_checkpoint_in_limited_batches_and_finds_new_partitions(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None], tmp_path: Path
) -> None:
    topic = new_topic(2, KEEP)
    send(topic, numbers(50))
    assert stream(spark, local_stack, topic, tmp_path, maxOffsetsPerTrigger=20) == [
        (0, offset) for offset in range(50)
    ]
    offsets = sorted((tmp_path / "state" / "offsets").iterdir(), key=lambda path: path.name)
    batches = [json.loads(path.read_text().splitlines()[-1]) for path in offsets if path.name.isdecimal()]
    assert [batch[topic]["offsets"]["0"] for batch in batches] == [20, 40, 50]
    send(topic, numbers(5), 1)
    new_topic.grow(topic, 3)
    send(topic, numbers(7), 2)
    assert stream(spark, local_stack, topic, tmp_path) == [
        *((0, offset) for offset in range(50)),
        *((1, offset) for offset in range(5)),
        *((2, offset) for offset in range(7)),
    ]


def test_a_stream_fails_on_lost_records_unless_it_may_not(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None], tmp_path: Path
) -> None:
    """Deleted records, then a topic that is created anew under the same name."""
    topic = new_topic(config=KEEP)
    send(topic, numbers(10))
    assert len(stream(spark, local_stack, topic, tmp_path)) == 10
    send(topic, numbers(10))
    new_topic.admin.delete_records([TopicPartition(topic, 0, 15)])[TopicPartition(topic, 0)].result(
        ANSWER_SECONDS
    )
    with pytest.raises(Exception, match=r"Offsets 10 to 14 of partition 0 .* failOnDataLoss to false"):
        stream(spark, local_stack, topic, tmp_path)
    assert len(stream(spark, local_stack, topic, tmp_path, failOnDataLoss="false")) == 15
    new_topic.admin.delete_topics([topic], operation_timeout=ANSWER_SECONDS)[topic].result(ANSWER_SECONDS)
    new_topic(config=KEEP, name=topic)
    send(topic, numbers(30))
    with pytest.raises(Exception, match=f"Topic {topic} was deleted, or deleted and created anew"):
        stream(spark, local_stack, topic, tmp_path)
    assert len(stream(spark, local_stack, topic, tmp_path, failOnDataLoss="false")) == 45


KILLED: Final = """
import sys
from pyspark.sql import SparkSession
servers, topic, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
source = (
    spark.readStream.format("mainstem").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 2000).load()
)
query = (
    source.writeStream.format("parquet").option("checkpointLocation", folder + "/state")
    .trigger(availableNow=True).start(folder + "/rows")
)
query.awaitTermination()
"""


def test_a_stream_that_is_killed_continues_and_no_row_is_lost_or_doubled(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None], tmp_path: Path
) -> None:
    """The driver's process group is killed after its second micro-batch is planned."""
    topic = new_topic(2, KEEP)
    for partition in range(2):
        send(topic, numbers(10_000), partition)
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, local_stack.bootstrap_servers, topic, str(tmp_path)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    try:
        wait_until((tmp_path / "state" / "offsets" / "1").exists, "a second micro-batch", STREAM_SECONDS)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    expected = [(partition, offset) for partition in range(2) for offset in range(10_000)]
    assert stream(spark, local_stack, topic, tmp_path, maxOffsetsPerTrigger=8000) == expected


def test_a_batch_is_written_to_topics_and_read_back(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    """Keys, headers, times and partitions arrive as they were selected."""
    topic, other = new_topic(3, KEEP), new_topic(config=KEEP)
    rows = spark.range(1000).selectExpr(
        "cast(id as string) key",
        "to_json(struct(id)) value",
        f"if(id % 2 = 0, '{topic}', '{other}') topic",
        "if(id % 2 = 0, cast(id % 3 as int), null) partition",
        f"timestamp_millis({NEW_YEAR_MS} + id) timestamp",
        "if(id = 4, array(struct('h' as key, cast('v' as binary) as value)), null) headers",
    )
    writer = rows.write.format("mainstem").option("kafka.bootstrap.servers", local_stack.bootstrap_servers)
    writer.mode("append").save()
    assert frame(spark, local_stack, other).count() == 500
    result = frame(spark, local_stack, topic, includeHeaders="true").collect()
    assert sorted(int(row.key) for row in result) == list(range(0, 1000, 2))
    assert all(row.partition == int(row.key) % 3 for row in result)
    (four,) = [row for row in result if row.key == b"4"]
    assert (four.value, four.headers) == (b'{"id":4}', [("h", b"v")])
    assert four.timestamp.replace(tzinfo=UTC).timestamp() * 1000 == NEW_YEAR_MS + 4
    with pytest.raises(Exception, match="No topic is given; write"):
        writer_without_topic = rows.drop("topic").write.format("mainstem").mode("append")
        writer_without_topic.option("kafka.bootstrap.servers", local_stack.bootstrap_servers).save()
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.mode("overwrite").save()


def test_a_stream_copies_a_topic_into_another(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None], tmp_path: Path
) -> None:
    topic, copy = new_topic(2, KEEP), new_topic(2, KEEP)
    send(topic, numbers(300))
    servers = local_stack.bootstrap_servers
    source = (
        spark.readStream.format("mainstem")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    for _ in range(2):
        writer = source.select("key", "value").writeStream.format("mainstem").option("topic", copy)
        query = (
            writer.option("kafka.bootstrap.servers", servers)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(STREAM_SECONDS)
    assert sorted(row.value for row in frame(spark, local_stack, copy).collect()) == sorted(numbers(300))


def test_mistakes_are_named_before_anything_is_read(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory
) -> None:
    with pytest.raises(Exception, match="no option 'startingoffset'; did you mean startingOffsets"):
        frame(spark, local_stack, "t", startingOffset="earliest").collect()
    with pytest.raises(Exception, match="There is no topic missing"):
        frame(spark, local_stack, "missing").collect()
    with pytest.raises(Exception, match="Column offset of the schema is int32; it must be bigint"):
        reader(spark, local_stack).option("subscribe", "t").schema("offset int").load().collect()


def test_a_session_that_did_not_find_the_format_registers_it(
    spark: Any, local_stack: SharedCluster, new_topic: TopicFactory, send: Callable[..., None]
) -> None:
    register(spark)
    topic = new_topic(config=KEEP)
    send(topic, numbers(1))
    assert frame(spark, local_stack, topic).count() == 1
