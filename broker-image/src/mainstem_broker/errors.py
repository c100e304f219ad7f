"""The broker's errors: one tree, ordered by whose fault it is and what happens to the connection.

A `ProtocolError` is answered with its Kafka error code, per partition or per request, and harms nothing
else. An `InvalidRequestBytes` means the peer's framing can no longer be trusted, so the connection is
closed. A `StartupError` stops the process with one sentence that says what to do.
Numbers are those of Apache Kafka's `Errors` (protocol guide, "Error Codes").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

MESSAGE_CHARACTERS_MAX: Final = 1_000
"""Longest sentence sent to a peer: it may quote what the peer sent, and strings end at 32,767 bytes."""


class MainstemError(Exception):
    """Root of everything this broker raises on purpose."""


class StartupError(MainstemError):
    """The broker cannot start, or go on, as configured; the message says what to change."""


class NewerFormat(MainstemError, ValueError):
    """A node or record has a version that only a later version of this broker reads (R44)."""


class InvalidRequestBytes(MainstemError):
    """Bytes that are no request: the connection that sent them is closed."""


class PeerUnavailable(MainstemError):
    """Another broker cannot be reached, or the connection to it broke."""


class InvalidSetting(MainstemError):
    """A setting that is unknown or whose value does not fit; the message names it."""


class ProtocolError(MainstemError):
    """A request, or one partition of it, that is answered with an error code."""

    code: ClassVar[int] = -1

    @property
    def message(self) -> str | None:
        """The sentence for the peer, where the protocol has a field for one."""
        return str(self)[:MESSAGE_CHARACTERS_MAX] or None


class UnknownServerError(ProtocolError):
    code = -1


class OffsetOutOfRange(ProtocolError):
    code = 1


class CorruptMessage(ProtocolError):
    code = 2


class UnknownTopicOrPartition(ProtocolError):
    code = 3


class LeaderNotAvailable(ProtocolError):
    code = 5


class NotLeaderOrFollower(ProtocolError):
    code = 6


class RequestTimedOut(ProtocolError):
    code = 7


class MessageTooLarge(ProtocolError):
    """Clients send the records of such a batch again in smaller batches."""

    code = 10


class OffsetMetadataTooLarge(ProtocolError):
    code = 12


class CoordinatorLoadInProgress(ProtocolError):
    """The coordinator still reads its partition; ask again."""

    code = 14


class CoordinatorNotAvailable(ProtocolError):
    code = 15


class NotCoordinator(ProtocolError):
    code = 16


class InvalidTopic(ProtocolError):
    code = 17


class RecordListTooLarge(ProtocolError):
    code = 18


class NotEnoughReplicas(ProtocolError):
    code = 19


class NotEnoughReplicasAfterAppend(ProtocolError):
    code = 20


class InvalidRequiredAcks(ProtocolError):
    code = 21


class IllegalGeneration(ProtocolError):
    code = 22


class InconsistentGroupProtocol(ProtocolError):
    code = 23


class InvalidGroupId(ProtocolError):
    code = 24


class UnknownMemberId(ProtocolError):
    code = 25


class InvalidSessionTimeout(ProtocolError):
    code = 26


class RebalanceInProgress(ProtocolError):
    code = 27


class InvalidCommitOffsetSize(ProtocolError):
    """The offsets of one commit take more than a batch of the offsets topic may."""

    code = 28


class TopicAuthorizationFailed(ProtocolError):
    code = 29


class GroupAuthorizationFailed(ProtocolError):
    code = 30


class ClusterAuthorizationFailed(ProtocolError):
    code = 31


class InvalidTimestamp(ProtocolError):
    """`batch_indexes` are the first of the records whose timestamps break a rule, where they are known."""

    code = 32

    def __init__(self, message: str, batch_indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.batch_indexes = tuple(batch_indexes)


class UnsupportedSaslMechanism(ProtocolError):
    code = 33


class IllegalSaslState(ProtocolError):
    code = 34


class UnsupportedVersion(ProtocolError):
    code = 35


class TopicAlreadyExists(ProtocolError):
    code = 36


class InvalidPartitions(ProtocolError):
    code = 37


class InvalidReplicationFactor(ProtocolError):
    code = 38


class InvalidReplicaAssignment(ProtocolError):
    code = 39


class InvalidConfig(ProtocolError):
    code = 40


class NotController(ProtocolError):
    code = 41


class InvalidRequest(ProtocolError):
    code = 42


class UnsupportedForMessageFormat(ProtocolError):
    code = 43


class PolicyViolation(ProtocolError):
    code = 44


class OutOfOrderSequenceNumber(ProtocolError):
    """A producer's batch does not continue its last one (KIP-98)."""

    code = 45


class InvalidProducerEpoch(ProtocolError):
    """A later instance of the same producer has written already."""

    code = 47


class InvalidTxnState(ProtocolError):
    """A request does not fit the state of its producer's transaction."""

    code = 48


class InvalidProducerIdMapping(ProtocolError):
    """The transactional id is unknown, or belongs to another producer id."""

    code = 49


class InvalidTransactionTimeout(ProtocolError):
    code = 50


class ConcurrentTransactions(ProtocolError):
    """The transactional id is being changed by another request, or its last transaction is being ended:
    retry."""

    code = 51


class OperationNotAttempted(ProtocolError):
    """Another part of the same request failed, and the request is done as a whole or not at all."""

    code = 55


class UnstableOffsetCommit(ProtocolError):
    """Offsets of an open transaction may replace the committed ones (KIP-447): retry."""

    code = 88


class ProducerFenced(ProtocolError):
    """A later instance of the producer has been initialized (KIP-588)."""

    code = 90


class TransactionalIdNotFound(ProtocolError):
    code = 105


class TransactionAbortable(ProtocolError):
    """The producer can go on after it has aborted its transaction (KIP-890)."""

    code = 120


class TransactionCoordinatorFenced(ProtocolError):
    """A later coordinator has written a transaction marker already."""

    code = 52


class TransactionalIdAuthorizationFailed(ProtocolError):
    code = 53


class SecurityDisabled(ProtocolError):
    """The broker has no authorizer, so there are no rules."""

    code = 54


class OffsetNotAvailable(ProtocolError):
    """A new leader does not know its high watermark yet (KIP-207); try again."""

    code = 78


class StorageError(ProtocolError):
    """KAFKA_STORAGE_ERROR: the partition's disk failed or is full.

    `is_failure` says that the disk can't be used any more, which a full one can.
    """

    code = 56
    is_failure = False


class SaslAuthenticationFailed(ProtocolError):
    code = 58


class NonEmptyGroup(ProtocolError):
    code = 68


class GroupIdNotFound(ProtocolError):
    code = 69


class FetchSessionIdNotFound(ProtocolError):
    code = 70


class InvalidFetchSessionEpoch(ProtocolError):
    code = 71


class TopicDeletionDisabled(ProtocolError):
    code = 73


class FencedLeaderEpoch(ProtocolError):
    code = 74


class UnknownLeaderEpoch(ProtocolError):
    code = 75


class UnsupportedCompressionType(ProtocolError):
    code = 76


class PreferredLeaderNotAvailable(ProtocolError):
    code = 80


class EligibleLeadersNotAvailable(ProtocolError):
    code = 83


class ElectionNotNeeded(ProtocolError):
    code = 84


class NoReassignmentInProgress(ProtocolError):
    code = 85


class MemberIdRequired(ProtocolError):
    """The member now has an id, with which it joins (KIP-394)."""

    code = 79


class GroupMaxSizeReached(ProtocolError):
    code = 81


class FencedInstanceId(ProtocolError):
    """Another process has taken the place of this static member (KIP-345)."""

    code = 82


class GroupSubscribedToTopic(ProtocolError):
    code = 86


class InvalidRecord(ProtocolError):
    """The batch's records break a rule; `batch_indexes` are the first that do, where they are known."""

    code = 87

    def __init__(self, message: str, batch_indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.batch_indexes = tuple(batch_indexes)


class ThrottlingQuotaExceeded(ProtocolError):
    """The client has changed more topics than its quota allows: it asks again after the throttle time."""

    code = 89


class ResourceNotFound(ProtocolError):
    code = 91


class DuplicateResource(ProtocolError):
    """A request names something more than once."""

    code = 92


class UnacceptableCredential(ProtocolError):
    code = 93


class UnknownTopicId(ProtocolError):
    code = 100


class FetchSessionTopicIdError(ProtocolError):
    """A fetch session was begun with names of topics and goes on with ids, or the other way round."""

    code = 106


class InconsistentTopicId(StorageError):
    """A log belongs to an earlier topic of the same name."""

    code = 103


class MismatchedEndpointType(ProtocolError):
    """The client takes this broker for a controller of KRaft."""

    code = 114


class UnsupportedEndpointType(ProtocolError):
    code = 115


# --- Of groups of KIP-848 ---


class FencedMemberEpoch(ProtocolError):
    """The member has lost its place: it gives up its partitions and joins again."""

    code = 110


class UnreleasedInstanceId(ProtocolError):
    """Another process still has the instance id; it has to leave first, or its session to end."""

    code = 111


class UnsupportedAssignor(ProtocolError):
    code = 112


class StaleMemberEpoch(ProtocolError):
    """The member has not heard of its present epoch yet: it asks again after its next heartbeat."""

    code = 113


class InvalidRegularExpression(ProtocolError):
    code = 128
