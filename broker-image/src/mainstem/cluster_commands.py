"""`mainstem cluster`: status, reassign, elect."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import ElectionType, KafkaError, TopicPartition

from mainstem.client import DEFAULT_BOOTSTRAP_SERVERS, Cluster, sentence_of
from mainstem.cluster_status import status
from mainstem.errors import ClusterRefused
from mainstem.options import BootstrapServers, OutputChoice, complete_topics
from mainstem.output import Output, OutputFormat
from mainstem.reassign import reassign

app = typer.Typer(no_args_is_help=True, help="See how the cluster is, move replicas, choose leaders.")
app.command()(status)
app.command()(reassign)


@app.command()
def elect(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", help="Topics; else all.", autocompletion=complete_topics),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    output: OutputChoice = OutputFormat.TABLE,
) -> None:
    """Give leaderships back to preferred leaders: the first replica of each partition."""
    cluster, out = Cluster(bootstrap_servers), Output(output)
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
            " it is in sync (`mainstem cluster status` tells), then ask again."
        )
