"""`mainstem cluster`: status, reassign, elect."""

from __future__ import annotations

import typer
from confluent_kafka import ElectionType, KafkaError, TopicPartition

from mainstem.cli.cluster_reassign import reassign
from mainstem.cli.cluster_status import status
from mainstem.cli.options import (
    BootstrapServers,
    ClientProperties,
    OutputChoice,
    TopicNames,
    connect,
)
from mainstem.cli.output import Output, OutputFormat
from mainstem.errors import ClusterRefused
from mainstem.kafka.client import sentence_of

app = typer.Typer(no_args_is_help=True, help="Show the cluster's state, move replicas, elect leaders.")
app.command()(status)
app.command()(reassign)


@app.command()
def elect(
    topics: TopicNames = None,
    bootstrap_servers: BootstrapServers = None,
    client_properties: ClientProperties = None,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Elect preferred leaders: the first replica of each partition."""
    cluster, out = connect(bootstrap_servers, client_properties), Output(output)
    partitions = (
        None
        if not topics
        else [partition for name in topics for partition in cluster.topic(name).topic_partitions()]
    )
    # Without a timeout: confluent-kafka 2.16 raises SystemError for either of the two it documents.
    future = cluster.admin.elect_leaders(ElectionType.PREFERRED, partitions)
    answers: dict[TopicPartition, KafkaError | None] = cluster.result(future, "No leaders were elected")
    elected, failed = [], []
    for partition, error in sorted(answers.items(), key=lambda item: (item[0].topic, item[0].partition)):
        if error is None:
            elected.append({"topic": partition.topic, "partition": partition.partition})
        elif error.code() != KafkaError.ELECTION_NOT_NEEDED:
            failed.append(f"{partition.topic}-{partition.partition}")
            out.problem(f"{failed[-1]}: {sentence_of(error)}")
    if out.json:
        out.result({"elected": elected, "failed": failed})
    if elected:
        out.done(f"{len(elected):,} partition{'s' * (len(elected) != 1)} got the preferred leader back.")
    elif not failed:
        out.done("Every partition is led by its preferred leader.")
    if failed:
        raise ClusterRefused(
            f"{len(failed):,} of {len(answers):,} partitions did not get the preferred leader: wait until"
            " it is in sync (`mainstem cluster status` shows it), then try again."
        )
