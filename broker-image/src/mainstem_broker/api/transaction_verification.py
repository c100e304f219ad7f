"""Before a produce begins a transaction in a partition, its coordinator verifies it (KIP-890).

Belongs here: which batches need it, and what the coordinator's answer means for the producer. Does not: how
the coordinator is asked (`server/transaction_verifier.py`), and whether a batch may be appended then
(`log/producers.py`).

A batch that comes late, from a producer whose transaction has ended, would begin one that nobody ends, and
read_committed consumers would wait for ever. So the first batch of a transaction in a partition is taken only
if the coordinator knows the partition as part of it. Up to Produce 11 the client has added it, and the
coordinator verifies; from 12 on the coordinator adds it for this broker. Other batches of the transaction are
appended without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
    UnknownServerError,
)
from mainstem_broker.log.producers import Verification
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.topic_partition import TopicPartition
from mainstem_broker.protocol.wire import Entity

IMPLICIT_SINCE: Final = 12
"""The version of Produce from which on this broker adds partitions to transactions."""
ABORTABLE_SINCE: Final = 11
"""The version of Produce whose clients know TRANSACTION_ABORTABLE."""

_COORDINATOR_AWAY: Final = (
    CoordinatorLoadInProgress.code,
    CoordinatorNotAvailable.code,
    NotCoordinator.code,
)

Verifications = Mapping[TopicPartition, Verification | ProtocolError]


def unverified(broker: BrokerContext, request: Entity) -> dict[tuple[int, int], list[TopicPartition]]:
    """The partitions, by producer id and epoch, in which a transactional request begins a transaction."""
    partitions_by_producer: dict[tuple[int, int], list[TopicPartition]] = {}
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = broker.replicas.find(topic.name, data.index)
            if partition is None or not partition.is_leader or data.records is None:
                continue
            try:
                header = parse_batch_header(data.records)
            except ProtocolError:
                continue  # the append says what is wrong
            if partition.log.producers.must_verify(header):
                producer = header.producer_id, header.producer_epoch
                partitions_by_producer.setdefault(producer, []).append((topic.name, data.index))
    return partitions_by_producer


async def verify(broker: BrokerContext, request: Entity, context: RequestContext) -> Verifications:
    """Have the transactions verified that the request begins; the outcome for each of their partitions."""
    outcomes: dict[TopicPartition, Verification | ProtocolError] = {}
    for (producer_id, producer_epoch), partitions in unverified(broker, request).items():
        # Before the request to the coordinator: a marker that comes meanwhile makes its answer void.
        for name, index in partitions:
            replica = broker.replicas.find(name, index)
            if replica is not None:
                outcomes[name, index] = replica.log.producers.begin_verification(producer_id, broker.now_ms())
        codes = await broker.verifier.verify(
            request.transactional_id,
            producer_id,
            producer_epoch,
            partitions,
            add=context.version >= IMPLICIT_SINCE,
        )
        for partition in partitions:
            code = codes.get(partition, UnknownServerError.code)
            if code != 0:
                outcomes[partition] = produce_error(code, context.version)
    return outcomes


def produce_error(code: int, version: int) -> ProtocolError:
    """The error of a Produce of that version, for the coordinator's error.

    Clients repeat a request after NOT_ENOUGH_REPLICAS without asking for metadata, which would not help.
    """
    if code in _COORDINATOR_AWAY or (code == ConcurrentTransactions.code and version < IMPLICIT_SINCE):
        return NotEnoughReplicas(f"The transaction could not be verified: its coordinator answered {code}.")
    if code == ConcurrentTransactions.code:
        return ConcurrentTransactions("The producer's last transaction is still being ended: retry.")
    if code in (ProducerFenced.code, InvalidProducerEpoch.code):
        return InvalidProducerEpoch("A later instance of the producer has been initialized.")
    if code == InvalidProducerIdMapping.code:
        return InvalidProducerIdMapping("The coordinator does not know the producer.")
    if code in (InvalidTxnState.code, TransactionAbortable.code):
        reason = "The partition is not part of an open transaction of the producer."
        return TransactionAbortable(reason) if version >= ABORTABLE_SINCE else InvalidTxnState(reason)
    return UnknownServerError(f"The transaction could not be verified: its coordinator answered {code}.")
