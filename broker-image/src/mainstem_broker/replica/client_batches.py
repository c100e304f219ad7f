"""Appends what clients produce: the checks that a batch passes before the leader writes it.

Belongs here: which refusals the log's producers have to remember, so that later batches of a producer do not
overtake a refused one. Does not: the checks themselves (`protocol.batch_validation`, `log.producers`).
"""

from __future__ import annotations

from mainstem_broker.errors import (
    InvalidTxnState,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProtocolError,
    StorageError,
)
from mainstem_broker.log.partition_log import AppendInfo
from mainstem_broker.log.producers import Verification
from mainstem_broker.protocol.batch_validation import ValidatedBatch, validate_for_append
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.replica.partition import Partition


def append_batch(
    partition: Partition,
    records: Buffer | None,
    *,
    acks: int,
    produce_version: int,
    now_ms: int,
    valid: ValidatedBatch | None = None,
    verification: Verification | None = None,
) -> AppendInfo:
    """Check a client's batch and write it at the log's end.

    A batch that an idempotent producer repeats is not written again; the result is that of its first append.

    Args:
        valid: the batch after `validate_for_append`, where the caller has validated it.
        verification: that of the transaction which the batch begins in this partition.

    Raises:
        NotEnoughReplicas: acks is -1 (all) and the in-sync set is smaller than min.insync.replicas.
        InvalidTxnState: the batch would begin a transaction that is not verified, or has ended since.
        ProtocolError: of the kinds that `validate_for_append`, `Partition.require_leader`, `Producers.check`
            and the log raise.
    """
    try:
        partition.require_leader()
    except NotLeaderOrFollower:
        note_refusal(partition, records, now_ms)  # this broker may lead when the next batch arrives
        raise
    if acks == -1:
        try:
            partition.require_in_sync()
        except NotEnoughReplicas:
            note_refusal(partition, records, now_ms)
            raise
    log = partition.log
    if valid is None:
        valid = validate_for_append(records, log.config, produce_version=produce_version, now_ms=now_ms)
    header = valid.header
    if header.producer_id >= 0:
        producers = log.producers
        if producers.may_be_overtaking(header):
            producers.note_refusal(header, now_ms)
            # The error after which clients send all their batches again, and soon.
            raise NotLeaderOrFollower(
                f"Producer {header.producer_id} begins {partition!r} with sequence number"
                f" {header.base_sequence}: it has to send the batch again, as an earlier one may be missing."
            )
        repeated = producers.check(header)
        if repeated is not None:
            return log.repeated(header, repeated)
        if producers.must_verify(header) and not producers.is_verified(header.producer_id, verification):
            if verification is not None and verification.is_outlived:
                producers.note_refusal(header, now_ms)
                raise NotLeaderOrFollower(  # the client sends again, and the next verification decides
                    f"The leader of {partition!r} has changed while the transaction was verified."
                )
            raise InvalidTxnState(
                f"{partition!r} is not part of an open transaction of producer {header.producer_id}."
            )
    try:
        info = partition.write(header, valid.batch, now_ms)
    except StorageError:
        log.producers.note_refusal(header, now_ms)
        raise
    partition.produced_bytes += header.size_bytes
    return info


def note_refusal(partition: Partition, records: Buffer | None, now_ms: int) -> None:
    """Remember that a client's batch was refused for a temporary reason: later ones must not overtake it."""
    try:
        header = parse_batch_header(records or b"")
    except ProtocolError:
        return  # not a batch, so nothing can overtake it
    partition.log.producers.note_refusal(header, now_ms)
