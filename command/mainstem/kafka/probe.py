"""One request to one address: whether a broker answers there, and who its cluster is.

This is not a client: it asks exactly one address once and does not report why there was no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainstem.kafka.raw_request import ask

_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """The cluster as one broker describes it."""

    cluster_id: str
    broker_ids: frozenset[int]


def ask_cluster(
    port: int, host: str = "127.0.0.1", timeout_seconds: float = _TIMEOUT_SECONDS
) -> ClusterAnswer | None:
    """The answer of the broker at `host:port` (Metadata v12 without topics); None without one in time."""
    from kio.schema.metadata.v12.request import MetadataRequest

    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    try:
        response = ask((host, port), request, client_id="mainstem-probe", timeout_seconds=timeout_seconds)
    except OSError:
        return None
    broker_ids = frozenset(int(broker.node_id) for broker in response.brokers)
    return ClusterAnswer(response.cluster_id or "", broker_ids)
