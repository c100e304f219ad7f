"""A topic that exists for the duration of one trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from confluent_kafka.admin import NewTopic

from mainstem.errors import CommandError
from mainstem.kafka.client import ADMIN_TIMEOUT_SECONDS, Cluster

_REPLICATION_FACTOR: Final = 3


@contextmanager
def temporary_topic(
    cluster: Cluster,
    on_trouble: Callable[[str], None],
    purpose: str,
    partitions: int,
    replication_factor: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Create a topic whose name begins with `purpose`, yield the name, and delete the topic at the end.

    Without `replication_factor` it has three replicas, or one per broker in a smaller cluster. `on_trouble`
    receives a sentence when the topic could not be deleted.

    Raises:
        ClusterUnreachable, ClusterRefused: the topic was not created.
    """
    name = f"{purpose}-{uuid4().hex[:8]}"
    replicas = replication_factor or min(_REPLICATION_FACTOR, len(cluster.description().brokers))
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
            on_trouble(f"{error} Delete it with `mainstem topic delete {name}`.")
