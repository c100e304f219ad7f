"""A topic for as long as a measurement or a check takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from confluent_kafka.admin import NewTopic

from mainstem.client import ADMIN_TIMEOUT_SECONDS, Cluster
from mainstem.errors import CommandError
from mainstem.output import Output

_REPLICAS: Final = 3


@contextmanager
def temporary_topic(
    cluster: Cluster,
    out: Output,
    purpose: str,
    partitions: int,
    replication_factor: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Create a topic, named after its purpose, and delete it at the end, however that comes.

    It has three replicas unless told otherwise, or as many as there are brokers.

    Raises:
        ClusterUnreachable, ClusterRefused: it was not created.
    """
    name = f"{purpose}-{uuid4().hex[:8]}"
    replicas = replication_factor or min(_REPLICAS, len(cluster.description().brokers))
    new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(settings or {}))
    created = cluster.admin.create_topics([new], request_timeout=ADMIN_TIMEOUT_SECONDS)[name]
    cluster.result(created, f"Topic {name} was not created")
    try:
        yield name
    finally:
        deleted = cluster.admin.delete_topics([name], request_timeout=ADMIN_TIMEOUT_SECONDS)[name]
        try:
            cluster.result(deleted, f"Topic {name} was not deleted")
        except CommandError as error:
            out.warn(f"{error} Delete it with `mainstem topic delete {name}`.")
