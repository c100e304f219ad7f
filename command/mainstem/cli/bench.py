"""`mainstem bench`: its options and its reports; `trials/measurements.py` measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mainstem.cli.number_options import decimal, integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_topics,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, facts, size_text, table
from mainstem.cli.sending_options import (
    AcksChoice,
    CompressionChoice,
    TemporaryTopicPartitions,
    TemporaryTopicReplicas,
)
from mainstem.kafka.client import Cluster
from mainstem.records.sending import Acks, Compression
from mainstem.trials.latencies import Latencies
from mainstem.trials.measurements import (
    measure_latency,
    measure_reading,
    measure_sending,
    producer_settings,
)
from mainstem.trials.temporary_topic import temporary_topic

app = typer.Typer(no_args_is_help=True, help="Measure throughput and latency of this cluster.")

Records = Annotated[int, typer.Option("--records", **integer(1), help="How many records.")]
Size = Annotated[int, typer.Option("--size", **integer(1), help="Bytes of each record's value.")]
BatchSize = Annotated[int, typer.Option("--batch-size", **integer(1), help="Largest batch in bytes.")]
Linger = Annotated[
    float, typer.Option("--linger-ms", **decimal(0), help="Milliseconds that a batch waits to be filled.")
]
BenchTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Use this topic instead of a temporary one.",
        autocompletion=complete_topics,
    ),
]


@app.command()
def produce(
    records: Records = 1_000_000,
    size: Size = 100,
    acks: AcksChoice = Acks.ALL,
    compression: CompressionChoice = Compression.NONE,
    batch_size: BatchSize = 16_384,
    linger_ms: Linger = 5,
    partitions: TemporaryTopicPartitions = 6,
    replication_factor: TemporaryTopicReplicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send records as fast as one producer can."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    settings = producer_settings(acks, compression, batch_size, linger_ms)
    with (
        _topic(cluster, out, topic, partitions, replication_factor) as name,
        out.progress("Sending", records) as advance,
    ):
        seconds, latencies = measure_sending(cluster, name, records, size, settings, advance, out.warn)
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
        typer.Option(
            "--records", **integer(1), help="How many records. Default: a million, or all of --topic."
        ),
    ] = None,
    size: Size = 100,
    compression: CompressionChoice = Compression.NONE,
    partitions: TemporaryTopicPartitions = 6,
    replication_factor: TemporaryTopicReplicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Read a topic from its beginning as fast as one consumer can; without --topic, a temporary one."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    with _topic(cluster, out, topic, partitions, replication_factor) as name:
        count = records
        if topic is None:
            count = records or 1_000_000
            settings = producer_settings(Acks.ALL, compression, 1_000_000, 10)
            with out.progress("Sending", count) as advance:
                measure_sending(cluster, name, count, size, settings, advance, out.warn)
        with out.progress("Reading", count) as advance:
            read, size_bytes, seconds = measure_reading(cluster, name, count, advance, out.warn)
    value = {"topic": topic, "records": read, **_rates(read, size_bytes, seconds)}
    _show(out, value, _throughput_facts("Read", value), {})


@app.command()
def latency(
    records: Records = 1000,
    size: Size = 100,
    acks: AcksChoice = Acks.ALL,
    replication_factor: TemporaryTopicReplicas = None,
    topic: BenchTopic = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Send records one by one and measure the time until each is acknowledged, and until it is consumed."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    settings = producer_settings(acks, Compression.NONE, 16_384, 0)
    with (
        _topic(cluster, out, topic, 1, replication_factor) as name,
        out.progress("Sending", records) as advance,
    ):
        acknowledged, arrived = measure_latency(cluster, name, records, size, settings, advance, out.warn)
    value = {
        "records": records,
        "size_bytes": size,
        "acks": acks.value,
        "acknowledged_after": None if acknowledged is None else asdict(acknowledged),
        "consumed_after": None if arrived is None else asdict(arrived),
    }
    measured = {"Acknowledged after": acknowledged, "Consumed after": arrived}
    _show(out, value, {"Records": f"{records:,} of {size:,} bytes, acks={acks.value}"}, measured)


@contextmanager
def _topic(
    cluster: Cluster, out: Output, name: str | None, partitions: int, replication_factor: int | None
) -> Iterator[str]:
    own = temporary_topic(cluster, out.warn, "bench", partitions, replication_factor)
    with own if name is None else nullcontext(cluster.topic(name).name) as topic:
        yield topic


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
