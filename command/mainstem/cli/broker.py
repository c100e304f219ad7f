"""`mainstem broker`: list and describe the live brokers, what they lead and hold, and how large that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mainstem.cli.number_options import integer
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    complete_brokers,
    connect,
)
from mainstem.cli.output import Column, Output, OutputFormat, facts, size_text, table
from mainstem.errors import ClusterUnreachable
from mainstem.kafka.client import Broker, Cluster, Topic
from mainstem.kafka.routed_requests import ask_broker
from mainstem.kafka.setting_requests import Kind
from mainstem.kafka.settings import Resource, find_broker, read_settings

app = typer.Typer(no_args_is_help=True, help="Show the brokers and their data.")


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory: whether it serves, and the bytes of each topic's partitions in it."""

    path: str
    online: bool
    size_bytes: int
    partitions: int


@app.command("list")
def list_all(
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """List the live brokers."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    description, topics = cluster.description(), cluster.topics()
    rows = [
        _row(broker, description.controller_id, topics, _directories(cluster, broker))
        for broker in description.brokers
    ]
    columns = [
        Column("Broker", "broker", separators=False),
        Column("Host", "host"),
        Column("Port", "port", separators=False),
        Column("Rack", "rack"),
        Column("Controller", "controller"),
        Column("Leads", "leads"),
        Column("Replicas", "replicas"),
        Column("Data", "data"),
    ]
    shown = [row | {"data": size_text(row["size_bytes"])} for row in rows]
    out.result(rows, table("", columns, shown))


@app.command()
def describe(
    broker: Annotated[
        int,
        typer.Argument(**integer(), metavar="ID", help="Id of the broker.", autocompletion=complete_brokers),
    ],
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Show a broker: address, data directories, topics, and settings."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    broker_info, topics = find_broker(cluster, broker), cluster.topics()
    directories = _directories(cluster, broker_info)
    value = _row(broker_info, cluster.description().controller_id, topics, directories)
    settings = read_settings(cluster, Resource(Kind.BROKER, str(broker)))
    value["settings"] = {name: setting.value for name, setting in settings.items() if not setting.is_default}
    value["directories"] = None if directories is None else [_directory_row(one) for one in directories]
    value["topics"] = [row for topic in topics.values() if (row := _topic_row(topic, broker))["replicas"]]
    out.result(value, *_tables(value))


def _row(
    broker: Broker,
    controller_id: int | None,
    topics: Mapping[str, Topic],
    directories: list[LogDirectory] | None,
) -> dict[str, Any]:
    held = [_topic_row(topic, broker.broker_id) for topic in topics.values()]
    return {
        "broker": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "rack": broker.rack,
        "controller": broker.broker_id == controller_id,
        "leads": sum(row["leads"] for row in held),
        "replicas": sum(row["replicas"] for row in held),
        "behind": sum(row["behind"] for row in held),
        "size_bytes": None if directories is None else sum(one.size_bytes for one in directories),
    }


def _topic_row(topic: Topic, broker_id: int) -> dict[str, Any]:
    replicas = [partition for partition in topic.partitions if broker_id in partition.replicas]
    return {
        "topic": topic.name,
        "leads": sum(partition.leader == broker_id for partition in topic.partitions),
        "replicas": len(replicas),
        "behind": sum(broker_id not in partition.in_sync_replicas for partition in replicas),
    }


def _directory_row(directory: LogDirectory) -> dict[str, Any]:
    return {
        "directory": directory.path,
        "state": "ok" if directory.online else "offline",
        "partitions": directory.partitions,
        "size_bytes": directory.size_bytes,
    }


def _tables(value: Mapping[str, Any]) -> list[Any]:
    headline = {
        "Broker": f"{value['broker']} at {value['host']}:{value['port']}",
        "Rack": value["rack"],
        "Controller": value["controller"],
        "Leads": f"{value['leads']:,} of the {value['replicas']:,} partitions that it holds",
        "Not in sync": value["behind"],
        "Data": size_text(value["size_bytes"]),
    }
    shown: list[Any] = [facts(headline)]
    settings = [{"setting": name, "value": text} for name, text in value["settings"].items()]
    if settings:
        columns = [Column("Setting", "setting"), Column("Value", "value")]
        shown.append(table("", columns, settings))
    if value["directories"]:
        rows = [row | {"size": size_text(row["size_bytes"])} for row in value["directories"]]
        columns = [
            Column("Directory", "directory"),
            Column("State", "state"),
            Column("Partitions", "partitions"),
            Column("Data", "size"),
        ]
        shown.append(table("", columns, rows))
    if value["topics"]:
        columns = [
            Column("Topic", "topic"),
            Column("Leads", "leads"),
            Column("Replicas", "replicas"),
            Column("Not in sync", "behind"),
        ]
        shown.append(table("", columns, value["topics"]))
    return shown


def _directories(cluster: Cluster, broker: Broker) -> list[LogDirectory] | None:
    """The broker's data directories; None if it does not tell, as brokers without DescribeLogDirs do."""
    from kio.schema.describe_log_dirs.v1.request import DescribeLogDirsRequest

    try:
        answer = ask_broker(cluster, broker, DescribeLogDirsRequest(topics=None))
    except ClusterUnreachable:
        return None
    return [
        LogDirectory(
            directory.log_dir,
            directory.error_code.value == 0,
            sum(part.partition_size for topic in directory.topics for part in topic.partitions),
            sum(len(topic.partitions) for topic in directory.topics),
        )
        for directory in answer.results
    ]
