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

from mainstem.client import (
    ADMIN_TIMEOUT_SECONDS,
    DEFAULT_BOOTSTRAP_SERVERS,
    Cluster,
    Offsets,
    Partition,
    Topic,
)
from mainstem.errors import BadInput
from mainstem.options import BootstrapServers, OutputChoice, TopicName, complete_topics, settings_of
from mainstem.output import Column, Output, OutputFormat, facts, table

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter and delete topics.")

_BROKERS_CHOICE = -1  # the protocol's "whatever num.partitions or default.replication.factor says"


@app.command()
def create(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the new topic.")],
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="How many; else the broker's default.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Copies of each; else the broker's default."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated."),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Accept one that is there.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Create a topic."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    new = NewTopic(
        topic,
        num_partitions=partitions or _BROKERS_CHOICE,
        replication_factor=replication_factor or _BROKERS_CHOICE,
        config=settings_of(config),
    )
    created = True
    try:
        cluster.admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_SECONDS)[topic].result()
    except KafkaException as exception:
        if not (if_not_exists and exception.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS):
            raise cluster.refusal(exception, f"Topic {topic} was not created") from exception
        created = False
    found = cluster.topic(topic)
    size = f"{len(found.partitions)} partition{'s' * (len(found.partitions) != 1)}"
    copies = f"{found.replication_factor} replica{'s' * (found.replication_factor != 1)} each"
    if created:
        out.done(f"Created topic {topic}: {size}, {copies}.")
    else:
        out.done(f"Topic {topic} is there already: {size}, {copies}.")
    if out.json:
        out.result(
            {
                "topic": topic,
                "created": created,
                "partitions": len(found.partitions),
                "replication_factor": found.replication_factor,
            }
        )


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--all", "-a", help="Also the brokers' own (__name).")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
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
        for topic in Cluster(bootstrap_servers).topics().values()
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
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    found = cluster.topic(topic)
    led = [partition for partition in found.topic_partitions() if _has_leader(found, partition.partition)]
    earliest, latest = cluster.offsets(led, OffsetSpec.earliest(), OffsetSpec.latest())
    rows = [_partition_row(partition, earliest, latest) for partition in found.partitions]
    entries = cluster.topic_settings(topic)
    settings = None if entries is None else _own_settings(entries)
    records = sum(row["records"] or 0 for row in rows)
    value = {
        "topic": topic,
        "replication_factor": found.replication_factor,
        "records": records,
        "state": _state(found),
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
    headline: dict[str, object] = {"Topic": topic, "State": _state(found)}
    headline["Settings"] = _settings_text(settings)
    total = {"partition": "total", "records": records}
    shown = [*rows, total] if len(rows) > 1 else rows
    out.result(value, facts(headline), table("", columns, shown, total_row=True))


@app.command()
def alter(
    topic: TopicName,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to this many; never fewer.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="A setting to take back to the broker's."),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Add partitions to a topic, or change its settings."""
    changes = settings_of(config)
    if partitions is None and not changes and not delete_config:
        raise BadInput("Say what to alter: --partitions, --config NAME=VALUE or --delete-config NAME.")
    deleted = delete_config or []
    if both := sorted(changes.keys() & set(deleted)):
        raise BadInput(f"{both[0]} is both in --config and in --delete-config: leave one of them out.")
    cluster, out = Cluster(bootstrap_servers), Output(output)
    found = cluster.topic(topic)
    if changes or deleted:
        entries = [_change(name, value, AlterConfigOpType.SET) for name, value in changes.items()]
        entries += [_change(name, None, AlterConfigOpType.DELETE) for name in deleted]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        answers = cluster.admin.incremental_alter_configs([resource], request_timeout=ADMIN_TIMEOUT_SECONDS)
        cluster.result(answers[resource], f"The settings of topic {topic} were not changed")
        out.done(f"Changed the settings of topic {topic}.")
    if partitions is not None and partitions != len(found.partitions):
        answers = cluster.admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=ADMIN_TIMEOUT_SECONDS
        )
        cluster.result(answers[topic], f"Topic {topic} did not grow to {partitions} partitions")
        out.done(f"Topic {topic} grew from {len(found.partitions)} to {partitions} partitions.")
        if found.partitions:
            out.warn("records of a key that are there already may be in another partition than new ones.")
    elif partitions is not None:
        out.done(f"Topic {topic} has {partitions} partitions already.")
    if out.json:
        out.result({"topic": topic, "partitions": partitions or len(found.partitions), "changed": changes})


@app.command()
def delete(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="Topics.", autocompletion=complete_topics)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Delete topics with all their records."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
    for topic in topics:
        cluster.topic(topic)  # an unknown one is told before anything is deleted
    names = ", ".join(topics)
    if not yes:
        if not sys.stdin.isatty():
            raise BadInput(f"Deleting {names} needs --yes when nobody is there to be asked.")
        typer.confirm(f"Delete {names} with all records for good?", abort=True, err=True)
    futures = cluster.admin.delete_topics(topics, request_timeout=ADMIN_TIMEOUT_SECONDS)
    for topic in topics:
        cluster.result(futures[topic], f"Topic {topic} was not deleted")
        out.done(f"Deleted topic {topic}.")
    if out.json:
        out.result({"deleted": topics})


def _own_settings(entries: dict[str, Any]) -> dict[str, str]:
    """Those set on the topic itself."""
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == own}


def _settings_text(settings: dict[str, str] | None) -> str:
    if settings is None:
        return "not known: the controller does not answer"
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
