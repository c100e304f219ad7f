"""Returns leadership to preferred leaders: the first replica of each partition.

After a restart the broker that came up first leads every partition, and the brokers' own rebalancing
(`auto.leader.rebalance.enable`) waits for up to `leader.imbalance.check.interval.seconds`. On one machine
nobody wants to wait for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mainstem.kafka.raw_request import ask

_CLIENT_ID: Final = "mainstem-up"
_PREFERRED: Final = 0
"""The election type of ElectLeaders (KIP-460)."""
_ELECTION_NOT_NEEDED: Final = 84


def restore_preferred_leaders(address: tuple[str, int]) -> bool:
    """Elect preferred leaders through the broker at `address` if all replicas of all partitions are in sync.

    Returns:
        Whether nothing is left to do: every partition is led by its preferred leader.

    Raises:
        OSError: the broker did not answer.
    """
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
    from kio.schema.metadata.v12.request import MetadataRequest

    metadata = ask(
        address,
        MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        ),
        client_id=_CLIENT_ID,
    )
    partitions = [partition for topic in metadata.topics for partition in topic.partitions]
    if not all_in_sync(partitions):
        return False
    if all_led_by_preferred(partitions):
        return True
    answer = ask(
        address,
        ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None),
        client_id=_CLIENT_ID,
    )
    return all(
        partition.error_code.value in (0, _ELECTION_NOT_NEEDED)
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    )


def all_in_sync(partitions: Sequence[Any]) -> bool:
    """Whether every replica is in sync. `partitions` are those of a Metadata response."""
    return all(set(partition.isr_nodes) == set(partition.replica_nodes) for partition in partitions)


def all_led_by_preferred(partitions: Sequence[Any]) -> bool:
    """Whether every partition is led by its first replica. `partitions` are those of a Metadata response."""
    return all(partition.leader_id == partition.replica_nodes[0] for partition in partitions)
