"""`mainstem bench`: how fast this cluster is for this client: produce, consume, latency.

The client is librdkafka in one process, so these are figures of one producer or consumer, of which a cluster
serves many. `bench/` in the source compares brokers; this is for the cluster at hand.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, PARTITION_EOF, Cluster, Offsets, sentence_of
from mainstem.errors import BadInput, ClusterRefused
from mainstem.latencies import Latencies
from mainstem.options import BootstrapServers, OutputChoice, complete_topics
from mainstem.output import Column, Output, OutputFormat, facts, size_text, table
from mainstem.produce import Acks, Compression
from mainstem.sending import DELIVERY_TIMEOUT_MS
from mainstem.temporary_topic import temporary_topic

app = typer.Typer(no_args_is_help=True, help="Measure this cluster: throughput and latency.")

_SAMPLES_MAX: Final = 100_000
_VALUES: Final = 1000
_RECORDS_BETWEEN_POLLS: Final = 1000
_ANSWER_SECONDS: Final = 10.0
_WORDS: Final = ("click", "view", "cart", "home", "search", "user", "page", "order", "item", "price")
_SEED: Final = 20110612  # the same values each time, so that runs can be compared

Records = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records.")]
Size = Annotated[int, typer.Option("--size", min=1, help="Bytes of each record's value.")]
AcksOption = Annotated[Acks, typer.Option("--acks", help="Who must have a record before it counts as sent.")]
CompressionOption = Annotated[
    Compression, typer.Option("--compression", help="How batches are compressed; values are random words.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Bytes of a batch, at most.")]
Linger = Annotated[float, typer.Option("--linger-ms", min=0, help="How long a batch waits to be filled.")]
Partitions = Annotated[
    int,
    typer.Option("--partitions", "-p", min=1, help="Of the topic that is made for this, and then deleted."),
]
Replicas = Annotated[
    int | None,
    typer.Option("--replication-factor", "-r", min=1, help="Of that topic; else 3, or all brokers."),
]
BenchTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="This topic, instead of one of its own.",
        autocompletion=complete_topics,
    ),
]


@app.command()
def produce(
    records: Records = 1_000_000,
    size: Size = 100,
    acks: AcksOption = Acks.ALL,
    compression: CompressionOption = Compression.NONE,
    batch_size: BatchSize = 16_384,
    linger_ms: Linger = 5,
    partitions: Partitions = 6,
    replication_factor: Replicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send records as fast as one producer can."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    settings = _producer_settings(acks, compression, batch_size, linger_ms)
    with _topic(cluster, out, topic, partitions, replication_factor) as name:
        seconds, latencies = _send(cluster, out, name, records, size, settings)
    value = {
        "records": records,
        "size_bytes": size,
        "acks": acks.value,
        "compression": compression.value,
        "batch_size_bytes": batch_size,
        "linger_ms": linger_ms,
        **_rates(records, records * size, seconds),
        "acknowledged_after": None if latencies is None else asdict(latencies),
    }
    _show(out, value, _throughput_facts("Sent", value), {"Acknowledged after": latencies})


@app.command()
def consume(
    records: Annotated[
        int | None,
        typer.Option("--records", "-n", min=1, help="How many; else a million, or all of --topic."),
    ] = None,
    size: Size = 100,
    compression: CompressionOption = Compression.NONE,
    partitions: Partitions = 6,
    replication_factor: Replicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Read a topic from its beginning as fast as one consumer can; without --topic, fill one first."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    with _topic(cluster, out, topic, partitions, replication_factor) as name:
        wanted = records
        if topic is None:
            wanted = records or 1_000_000
            settings = _producer_settings(Acks.ALL, compression, 1_000_000, 10)
            _send(cluster, out, name, wanted, size, settings)
        read, size_bytes, seconds = _read(cluster, out, name, wanted)
    value = {"topic": topic, "records": read, **_rates(read, size_bytes, seconds)}
    _show(out, value, _throughput_facts("Read", value), {})


@app.command()
def latency(
    records: Records = 1000,
    size: Size = 100,
    acks: AcksOption = Acks.ALL,
    replication_factor: Replicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send records one by one: how long until each is acknowledged, and until a consumer has it."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    settings = _producer_settings(acks, Compression.NONE, 16_384, 0)
    with _topic(cluster, out, topic, 1, replication_factor) as name:
        acknowledged, arrived = _one_by_one(cluster, out, name, records, size, settings)
    value = {
        "records": records,
        "size_bytes": size,
        "acks": acks.value,
        "acknowledged_after": None if acknowledged is None else asdict(acknowledged),
        "consumed_after": None if arrived is None else asdict(arrived),
    }
    measured = {"Acknowledged after": acknowledged, "Consumed after": arrived}
    _show(out, value, {"Records": f"{records:,} of {size:,} bytes, acks={acks.value}"}, measured)


def _producer_settings(
    acks: Acks, compression: Compression, batch_size: int, linger_ms: float
) -> dict[str, object]:
    return {
        "acks": acks.value,
        "compression.type": compression.value,
        "batch.size": batch_size,
        "batch.num.messages": 1_000_000,  # let the bytes decide
        "linger.ms": linger_ms,
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "queue.buffering.max.messages": 500_000,
    }


@contextmanager
def _topic(
    cluster: Cluster, out: Output, given: str | None, partitions: int, replication_factor: int | None
) -> Iterator[str]:
    own = temporary_topic(cluster, out, "bench", partitions, replication_factor)
    with own if given is None else nullcontext(cluster.topic(given).name) as name:
        yield name


def _values(size: int) -> list[bytes]:
    """Values that compress about as events do."""
    chosen = random.Random(_SEED)
    words = size // min(map(len, _WORDS)) + 1
    return [
        f"{number:08x} {' '.join(chosen.choices(_WORDS, k=words))}".encode()[:size].ljust(size)
        for number in range(_VALUES)
    ]


def _send(
    cluster: Cluster, out: Output, topic: str, records: int, size: int, settings: dict[str, object]
) -> tuple[float, Latencies | None]:
    """Send the records; the seconds until all were acknowledged, and how long single ones took.

    Raises:
        ClusterRefused: some were not acknowledged.
    """
    latencies: list[float] = []
    failed: list[KafkaError] = []

    def sampled(error: KafkaError | None, message: Message) -> None:
        if error is None:
            latencies.append(message.latency())

    def reported(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = cluster.producer({**settings, "on_delivery": reported}, out.warn)
    values, step = _values(size), max(1, records // _SAMPLES_MAX)
    produce, poll = producer.produce, producer.poll
    with out.progress("Sending", records) as advance:
        started = time.perf_counter()
        for number in range(records):
            while True:
                try:
                    if number % step:
                        produce(topic, values[number % _VALUES])
                    else:
                        produce(topic, values[number % _VALUES], on_delivery=sampled)
                except BufferError:
                    poll(0.1)
                except KafkaException as exception:
                    raise cluster.refusal(exception, "The records were not sent") from exception
                else:
                    break
            if number % _RECORDS_BETWEEN_POLLS == 0:
                poll(0)
                advance(min(_RECORDS_BETWEEN_POLLS, records - number))
        while producer.flush(1.0):
            pass
        seconds = time.perf_counter() - started
    if failed:
        raise ClusterRefused(
            f"{len(failed):,} of {records:,} records were not acknowledged: {sentence_of(failed[0])}"
        )
    return seconds, Latencies.of(latencies)


def _read(cluster: Cluster, out: Output, topic: str, wanted: int | None) -> tuple[int, int, float]:
    """Read up to `wanted` records of a topic, or all: how many, their bytes, and the seconds it took."""
    partitions = cluster.topic(topic).topic_partitions()
    answers = cluster.offsets(partitions, OffsetSpec.earliest(), OffsetSpec.latest())
    earliest, latest = map(_known, answers)
    held = sum(latest[number] - offset for number, offset in earliest.items())
    if held == 0:
        raise BadInput(f"Topic {topic} is empty: fill it first, or leave --topic out.")
    limit = held if wanted is None else min(wanted, held)
    consumer = cluster.consumer({"enable.partition.eof": True}, out.warn)
    open_partitions = {number for number, offset in earliest.items() if offset < latest[number]}
    read = size_bytes = 0
    with out.progress("Reading", limit) as advance:
        started = time.perf_counter()
        consumer.assign([TopicPartition(topic, number, earliest[number]) for number in open_partitions])
        while read < limit and open_partitions:
            messages = consumer.consume(500, 0.1)
            before = read
            for message in messages:
                error = message.error()
                if error is None:
                    read += 1
                    size_bytes += len(message)
                elif error.code() == PARTITION_EOF:
                    open_partitions.discard(message.partition())
                else:
                    raise ClusterRefused(f"Reading {topic} failed: {sentence_of(error)}")
            advance(read - before)
        seconds = time.perf_counter() - started
    consumer.close()
    return read, size_bytes, seconds


def _known(offsets: Offsets) -> dict[int, int]:
    known = {number: offset for number, offset in offsets.items() if offset is not None}
    for number in sorted(offsets.keys() - known.keys()):
        raise ClusterRefused(
            f"Partition {number} has no leader that answers: see `mainstem cluster status`, then run this"
            " again."
        )
    return known


def _one_by_one(
    cluster: Cluster, out: Output, topic: str, records: int, size: int, settings: dict[str, object]
) -> tuple[Latencies | None, Latencies | None]:
    """Send a record, and the next when it came back: times until acknowledged, and until consumed.

    Raises:
        ClusterRefused: one did not come back.
    """
    acknowledged: list[float] = []
    arrived: list[float] = []

    def reported(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        acknowledged.append(message.latency())

    producer = cluster.producer({**settings, "on_delivery": reported}, out.warn)
    (ends,) = cluster.offsets([TopicPartition(topic, 0)], OffsetSpec.latest())
    consumer = cluster.consumer({}, out.warn)
    consumer.assign([TopicPartition(topic, 0, _known(ends)[0])])
    values = _values(size)
    warm_up = min(records, 100)  # connections, and code that runs for the first time
    with out.progress("Sending", records) as advance:
        for number in range(warm_up + records):
            started = time.perf_counter()
            producer.produce(topic, values[number % _VALUES], partition=0)
            message = consumer.poll(_ANSWER_SECONDS)
            seconds = time.perf_counter() - started
            try:
                producer.flush(_ANSWER_SECONDS)
            except KafkaException as exception:
                raise cluster.refusal(exception, "A record was not acknowledged") from exception
            if message is None or message.error() is not None:
                why = "nothing came" if message is None else sentence_of(message.error())
                raise ClusterRefused(f"Record {number:,} did not come back: {why}")
            arrived.append(seconds)
            if number >= warm_up:
                advance(1)
    consumer.close()
    return Latencies.of(acknowledged[warm_up:]), Latencies.of(arrived[warm_up:])


def _rates(records: int, size_bytes: int, seconds: float) -> dict[str, Any]:
    return {
        "seconds": round(seconds, 3),
        "records_per_second": round(records / seconds),
        "bytes_per_second": round(size_bytes / seconds),
    }


def _throughput_facts(done: str, value: dict[str, Any]) -> dict[str, object]:
    return {
        done: f"{value['records']:,} records in {value['seconds']:.1f} s",
        "Records a second": value["records_per_second"],
        "Values a second": size_text(value["bytes_per_second"]),
    }


def _show(
    out: Output, value: dict[str, Any], headline: dict[str, object], measured: dict[str, Latencies | None]
) -> None:
    rows = [{"what": what, **asdict(times)} for what, times in measured.items() if times is not None]
    columns = [
        Column("Milliseconds", "what"),
        Column("Median", "p50_ms"),
        Column("95 %", "p95_ms"),
        Column("99 %", "p99_ms"),
        Column("99.9 %", "p999_ms"),
        Column("Longest", "max_ms"),
    ]
    out.result(value, facts(headline), *([table("", columns, rows)] if rows else []))
