"""`mainstem topic`: create, list, describe, alter, delete."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from mainstem.cli.number_options import PARTITIONS_MAX, REPLICAS_MAX, integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    Confirmed,
    OutputChoice,
    TopicName,
    TopicSettings,
    complete_topics,
    connect,
    settings_of,
)
from mainstem.cli.output import Column, Output, OutputFormat, facts, table
from mainstem.errors import BadInput
from mainstem.kafka.client import (
    ADMIN_TIMEOUT_SECONDS,
    Offsets,
    Partition,
    Topic,
)
from mainstem.kafka.settings import in_milliseconds

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

_BROKERS_CHOICE = -1  # the protocol's value for num.partitions and default.replication.factor


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the new topic.")],
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            **integer(1, PARTITIONS_MAX),
            help="Number of partitions; the broker's default otherwise.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            **integer(1, REPLICAS_MAX),
            help="Replicas of each partition; the broker's default otherwise.",
        ),
    ] = None,
    config: TopicSettings = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Accept an existing topic.")] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a topic."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    new = NewTopic(
        topic,
        num_partitions=partitions or _BROKERS_CHOICE,
        replication_factor=replication_factor or _BROKERS_CHOICE,
        config=_topic_settings(config),
    )
    created = True
    try:
        cluster.admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_SECONDS)[topic].result()
    except KafkaException as exception:
        if not (if_not_exists and exception.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
            raise cluster.refusal(exception, f"Topic {topic} was not created") from exception
        created = False
    new_topic = cluster.topic(topic)
    size = f"{len(new_topic.partitions)} partition{'s' * (len(new_topic.partitions) != 1)}"
    copies = f"{new_topic.replication_factor} replica{'s' * (new_topic.replication_factor != 1)} each"
    if created:
        out.done(f"Created topic {topic}: {size}, {copies}.")
    else:
        out.done(f"Topic {topic} already exists: {size}, {copies}.")
    if out.json:
        out.result(
            {
                "topic": topic,
                "created": created,
                "partitions": len(new_topic.partitions),
                "replication_factor": new_topic.replication_factor,
            }
        )


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--all", "-a", help="Include internal topics (__name).")] = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the topics."""
    out = Output(output)
    rows = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
            "state": _state(topic),
        }
        for topic in connect(bootstrap_servers, client_properties).topics().values()
        if internal or not topic.name.startswith("__")
    ]
    if not rows and not out.json:
        out.say("There are no topics yet: create one with `mainstem topic create NAME`.")
        return
    columns = [
        Column("Topic", "topic"),
        Column("Partitions", "partitions"),
        Column("Replicas", "replication_factor"),
        Column("State", "state"),
    ]
    out.result(rows, table("", columns, rows))


@app.command()
def describe(
    topic: TopicName,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    described = cluster.topic(topic)
    led = [
        partition for partition in described.topic_partitions() if _has_leader(described, partition.partition)
    ]
    earliest, latest = cluster.offsets(led, OffsetSpec.earliest(), OffsetSpec.latest())
    rows = [_partition_row(partition, earliest, latest) for partition in described.partitions]
    entries = cluster.topic_settings(topic)
    settings = None if entries is None else _own_settings(entries)
    records = sum(row["records"] or 0 for row in rows)
    value = {
        "topic": topic,
        "replication_factor": described.replication_factor,
        "records": records,
        "state": _state(described),
        "settings": settings,
        "partitions": rows,
    }
    columns = [
        Column("Partition", "partition"),
        Column("Leader", "leader"),
        Column("Replicas", "replicas"),
        Column("In sync", "in_sync_replicas"),
        Column("Earliest", "earliest"),
        Column("Latest", "latest"),
        Column("Records", "records"),
    ]
    headline: dict[str, object] = {"Topic": topic, "State": _state(described)}
    headline["Settings"] = _settings_text(settings)
    total = {"partition": "total", "records": records}
    shown = [*rows, total] if len(rows) > 1 else rows
    out.result(value, facts(headline), table("", columns, shown, total_row=True))


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            **integer(1, PARTITIONS_MAX),
            help="Increase to this number; it cannot decrease.",
        ),
    ] = None,
    config: TopicSettings = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="A setting to reset to the broker's."),
    ] = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Add partitions to a topic, or change its settings."""
    changes = _topic_settings(config)
    if partitions is None and not changes and not delete_config:
        raise BadInput("Name the change: --partitions, --config NAME=VALUE or --delete-config NAME.")
    deleted = delete_config or []
    if both := sorted(changes.keys() & set(deleted)):
        raise BadInput(f"{both[0]} is both in --config and in --delete-config: leave one of them out.")
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    current = cluster.topic(topic)
    if changes or deleted:
        entries = [_change(name, value, AlterConfigOpType.SET) for name, value in changes.items()]
        entries += [_change(name, None, AlterConfigOpType.DELETE) for name in deleted]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        answers = cluster.admin.incremental_alter_configs([resource], request_timeout=ADMIN_TIMEOUT_SECONDS)
        cluster.result(answers[resource], f"The settings of topic {topic} were not changed")
        out.done(f"Changed the settings of topic {topic}.")
    if partitions is not None and partitions != len(current.partitions):
        answers = cluster.admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=ADMIN_TIMEOUT_SECONDS
        )
        cluster.result(answers[topic], f"Topic {topic} did not grow to {partitions} partitions")
        out.done(f"Topic {topic} grew from {len(current.partitions)} to {partitions} partitions.")
        if current.partitions:
            out.warn("existing records of a key may be in another partition than new ones.")
    elif partitions is not None:
        out.done(f"Topic {topic} has {partitions} partitions already.")
    if out.json:
        out.result({"topic": topic, "partitions": partitions or len(current.partitions), "changed": changes})


@app.command()
def delete(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics.", autocompletion=complete_topics)
    ],
    yes: Confirmed = False,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete topics with all their records."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    for topic in topics:
        cluster.topic(topic)  # raises for an unknown topic, before anything is deleted
    names = ", ".join(topics)
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"Deleting {names} needs --yes without a terminal.")
        typer.confirm(f"Delete {names} with all records for good?", abort=True, err=True)
    futures = cluster.admin.delete_topics(topics, request_timeout=ADMIN_TIMEOUT_SECONDS)
    for topic in topics:
        cluster.result(futures[topic], f"Topic {topic} was not deleted")
        out.done(f"Deleted topic {topic}.")
    if out.json:
        out.result({"deleted": topics})


def _topic_settings(pairs: list[str] | None) -> dict[str, str]:
    return {name: in_milliseconds(name, text) or "" for name, text in settings_of(pairs).items()}


def _own_settings(entries: dict[str, Any]) -> dict[str, str]:
    """Those set on the topic itself."""
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == own}


def _settings_text(settings: dict[str, str] | None) -> str:
    if settings is None:
        return "unknown: the controller does not answer"
    return ", ".join(f"{name}={text}" for name, text in settings.items()) or "all as the broker's"


def _change(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def _has_leader(topic: Topic, number: int) -> bool:
    return any(partition.number == number and partition.leader is not None for partition in topic.partitions)


def _partition_row(partition: Partition, earliest: Offsets, latest: Offsets) -> dict[str, Any]:
    first, end = earliest.get(partition.number), latest.get(partition.number)
    return {
        "partition": partition.number,
        "leader": partition.leader,
        "replicas": partition.replicas,
        "in_sync_replicas": partition.in_sync_replicas,
        "earliest": first,
        "latest": end,
        "records": end - first if first is not None and end is not None else None,
    }


def _state(topic: Topic) -> str:
    leaderless = sum(partition.leader is None for partition in topic.partitions)
    behind = sum(len(partition.in_sync_replicas) < len(partition.replicas) for partition in topic.partitions)
    if leaderless:
        return f"{leaderless} without leader"
    if behind:
        return f"{behind} under-replicated"
    return "ok"
