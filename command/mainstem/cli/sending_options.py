"""Options of the commands that send records: `produce`, `bench` and `verify`."""

from __future__ import annotations

from typing import Annotated

import typer

from mainstem.cli.number_options import PARTITIONS_MAX, REPLICAS_MAX, integer
from mainstem.records.sending import Acks, Compression

AcksChoice = Annotated[
    Acks, typer.Option("--acks", help="Which replicas must have a record before it counts as sent.")
]
CompressionChoice = Annotated[Compression, typer.Option("--compression", help="How batches are compressed.")]
TemporaryTopicPartitions = Annotated[
    int,
    typer.Option(
        "--partitions", "-p", **integer(1, PARTITIONS_MAX), help="Partitions of the temporary topic."
    ),
]
TemporaryTopicReplicas = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "-r",
        **integer(1, REPLICAS_MAX),
        help="Replicas of the temporary topic; by default 3, or one per broker if there are fewer.",
    ),
]
