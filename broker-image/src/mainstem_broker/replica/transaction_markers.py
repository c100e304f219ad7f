"""The end of a transaction in one partition: the leader writes the marker that a coordinator sends (KIP-98).

Belongs here: the checks and the append. Does not: what the marker does to the producer (`log.producers`), and
waiting until it is replicated (`api.write_txn_markers`).
"""

from __future__ import annotations

from mainstem_broker.protocol.markers import Marker, make_marker
from mainstem_broker.replica.partition import Partition


def append_marker(
    partition: Partition,
    producer_id: int,
    producer_epoch: int,
    marker: Marker,
    *,
    raises_epoch: bool,
    now_ms: int,
) -> int:
    """Write the marker, unless it is in the log already; the offset up to which it has to be replicated.

    A marker that comes again waits for its own offset, not for the log's end: while the replicas of a busy
    partition are slow, that would be out of reach again at each attempt.

    Args:
        raises_epoch: the marker has the epoch of the producer's next transaction (KIP-890).

    Raises:
        NotEnoughReplicas: the marker could not be replicated to min.insync.replicas.
        ProtocolError: as `Partition.require_leader`, `Producers.check_marker` and `Partition.write`.
    """
    partition.require_leader()
    partition.require_in_sync()
    producers = partition.log.producers
    if producers.check_marker(producer_id, producer_epoch, marker, raises_epoch=raises_epoch):
        header, batch = make_marker(producer_id, producer_epoch, marker, now_ms)
        partition.write(header, batch, now_ms)
        return partition.log.log_end_offset
    if not raises_epoch:
        # In the first protocol the marker may be that of the producer's next transaction, which has the same
        # epoch and no records here. In the second one it can only be that of the last transaction.
        producers.void_verification(producer_id)
    return producers.states[producer_id].marker_offset + 1
