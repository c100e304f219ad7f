"""Asks one broker whether it serves and who is in its cluster, by one bare request.

Not a client (`client.py` builds those): a probe asks exactly one address once, and it says nothing about
why there was no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from mainstem.bare_request import ask


@dataclass(frozen=True, slots=True)
class ClusterAnswer:
    """What a broker says of its cluster."""

    cluster_id: str
    broker_ids: frozenset[int]


def ask_cluster(port: int, host: str = "127.0.0.1") -> ClusterAnswer | None:
    """The answer of the broker at `host:port` (Metadata v12 without topics); None when there is none."""
    from kio.schema.metadata.v12.request import MetadataRequest

    request = MetadataRequest(
        topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    try:
        response = ask((host, port), request, client_id="mainstem-probe")
    except OSError:
        return None
    broker_ids = frozenset(int(broker.node_id) for broker in response.brokers)
    return ClusterAnswer(response.cluster_id or "", broker_ids)
