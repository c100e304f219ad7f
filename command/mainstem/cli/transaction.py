"""`mainstem transaction`: list, describe, abort, find-hanging."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import BootstrapServers, ClientProperties, OutputChoice, complete_topics, connect
from mainstem.cli.output import Column, Output, OutputFormat, facts, table
from mainstem.errors import BadInput
from mainstem.kafka.client import Cluster
from mainstem.kafka.reassignment_plan import TopicPartition
from mainstem.kafka.transactions import (
    OpenTransaction,
    abort_in_partition,
    abort_transaction,
    describe_transaction,
    hanging_transactions,
    list_transactions,
    open_transactions,
)
from mainstem.times import duration_ms, duration_text, text_of_ms, time_or_none

app = typer.Typer(no_args_is_help=True, help="Show transactions, and end those that hang.")

_SILENT_FOR: Final = "15m"  # Kafka's transaction.max.timeout.ms: no honest transaction is open for longer


@app.command("list")
def list_all(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only in this state, such as Ongoing; repeatable."),
    ] = None,
    open_for: Annotated[
        str | None,
        typer.Option("--open-for", metavar="DURATION", help="Only those open for longer, such as 10m."),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the transactional ids and their states."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    open_for_ms = -1 if open_for is None else _duration(open_for, "--open-for")
    listed = list_transactions(cluster, states=states or (), open_for_ms=open_for_ms)
    if not listed and not out.json:
        out.say("There are no such transactional ids.")
        return
    rows = [
        {
            "transactional_id": one.transactional_id,
            "state": one.state,
            "producer_id": one.producer_id,
            "coordinator": one.coordinator,
        }
        for one in listed
    ]
    columns = [
        Column("Transactional id", "transactional_id"),
        Column("State", "state"),
        Column("Producer id", "producer_id"),
        Column("Coordinator", "coordinator"),
    ]
    out.result(rows, table("", columns, rows))


@app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", help="A transactional id.")],
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a transactional id: its producer, how long its transaction is open, and the partitions in it."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    transaction = describe_transaction(cluster, transactional_id)
    value = {
        "transactional_id": transaction.transactional_id,
        "state": transaction.state,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.producer_epoch,
        "timeout_ms": transaction.timeout_ms,
        "started": None if transaction.started_ms is None else text_of_ms(transaction.started_ms),
        "partitions": [{"topic": topic, "partition": index} for topic, index in transaction.partitions],
    }
    headline = {
        "Transactional id": transaction.transactional_id,
        "State": transaction.state,
        "Producer": f"id {transaction.producer_id}, epoch {transaction.producer_epoch}",
        "Timeout": duration_text(transaction.timeout_ms),
        "Started": value["started"],
    }
    if transaction.is_open and transaction.started_ms is not None:
        headline["Open for"] = _age(transaction.started_ms)
    shown: list[Any] = [facts(headline)]
    if transaction.partitions:
        columns = [Column("Topic", "topic"), Column("Partition", "partition")]
        rows: Sequence[dict[str, object]] = [
            {"topic": topic, "partition": index} for topic, index in transaction.partitions
        ]
        shown.append(table("", columns, rows))
    out.result(value, *shown)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]", help="The transactional id.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Abort a hanging transaction in this topic.", autocompletion=complete_topics),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(**integer(0), help="The partition of the hanging transaction.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option(**integer(0), help="First offset of the transaction there, as `find-hanging` shows."),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Abort the transaction of a transactional id and fence its producer, or abort a hanging one."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    in_partition = (topic, partition, start_offset)
    if transactional_id is not None and in_partition == (None, None, None):
        # Described first: an id that does not exist would be created.
        abort_transaction(cluster, describe_transaction(cluster, transactional_id))
        out.done(f"Transactional id {transactional_id} has no open transaction, and its producer is fenced.")
        return
    if transactional_id is not None or topic is None or partition is None or start_offset is None:
        raise BadInput(
            "Give a TRANSACTIONAL_ID; or for a hanging transaction --topic, --partition and --start-offset,"
            " as `mainstem transaction find-hanging` shows them."
        )
    waiting = open_transactions(cluster, [(topic, partition)])
    hanging = next((one for one in waiting if one.start_offset == start_offset), None)
    if hanging is None:
        raise BadInput(
            f"Partition {partition} of {topic} has no open transaction that begins at {start_offset}:"
            " `mainstem transaction find-hanging` shows those that hang."
        )
    abort_in_partition(cluster, hanging)
    out.done(f"The transaction at offset {start_offset} of partition {partition} of {topic} is aborted.")


@app.command("find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...", help="Topics to search; all by default.", autocompletion=complete_topics
        ),
    ] = None,
    silent_for: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Time since the producer's last write; at least transaction.max.timeout.ms.",
        ),
    ] = _SILENT_FOR,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Find hanging transactions: partitions wait for them, and no coordinator will end them."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    partitions = _partitions(cluster, topics or [])
    with out.waiting("Asking the leaders"):
        hanging = hanging_transactions(cluster, partitions, _duration(silent_for, "--silent-for"))
    if not hanging and not out.json:
        out.say(f"None of {len(partitions):,} partitions has a hanging transaction.")
        return
    rows = [_row(one) for one in hanging]
    columns = [
        Column("Topic", "topic"),
        Column("Partition", "partition"),
        Column("Start offset", "start_offset"),
        Column("Producer id", "producer_id"),
        Column("Epoch", "producer_epoch"),
        Column("Last written", "last_written"),
    ]
    out.result(rows, table("", columns, rows))
    if hanging and not out.json:
        first = hanging[0]
        out.say("Consumers with read_committed wait there. To abort the first:")
        out.command(
            f"mainstem transaction abort --topic {first.topic} --partition {first.partition}"
            f" --start-offset {first.start_offset}"
        )


def _partitions(cluster: Cluster, names: Sequence[str]) -> list[TopicPartition]:
    topics = [cluster.topic(name) for name in names] if names else list(cluster.topics().values())
    return [
        (topic.name, partition.number)
        for topic in topics
        for partition in topic.partitions
        if partition.leader is not None
    ]


def _row(hanging: OpenTransaction) -> dict[str, object]:
    return {
        "topic": hanging.topic,
        "partition": hanging.partition,
        "start_offset": hanging.start_offset,
        "producer_id": hanging.producer_id,
        "producer_epoch": hanging.producer_epoch,
        "coordinator_epoch": hanging.coordinator_epoch,
        "last_written": time_or_none(hanging.last_written_ms),
    }


def _duration(text: str, option: str) -> int:
    milliseconds = duration_ms(text)
    if milliseconds is None:
        raise BadInput(f"{option} {text} is not a duration: write it as 90s, 10m or 1h30m.")
    return milliseconds


def _age(since_ms: int) -> str:
    seconds = max(int(time.time()) - since_ms // 1000, 0)
    return duration_text(seconds * 1000)
