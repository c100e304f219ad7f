"""Requests to a group and what it decides, as values.

A request that has to wait has a number, which the coordinator gave it; the group answers each number exactly
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from mainstem_broker.group.classic.records import GroupMetadata
from mainstem_broker.group.consumer.records import ConsumerGroupKey, ConsumerGroupValue, Partitions
from mainstem_broker.protocol.topic_partition import TopicPartition

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
LEAVING_FOR_A_WHILE_EPOCH: Final = -2
"""Of a static member that will be back: its partitions are kept for it until its session ends."""


# --- Requests of the classic protocol ---


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request; timeouts in ms.

    - `member_id`: empty for a member that joins for the first time, which is then given `fresh_id`.
    - `protocols`: name and metadata of each, the member's favourite first.
    - `must_know_id`: the client can be sent back for its id first (version 4 on, KIP-394).
    - `may_skip_assignment`: a returning static leader can be made to assign nothing (version 9 on, KIP-814).
    """

    number: int
    member_id: str
    fresh_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_id: bool
    may_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request.

    - `protocol_type`, `protocol`: what the client believes was elected; None from clients before version 5.
    - `assignments`: member id and assignment of each member, from the leader only.
    """

    number: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader learns of it, with its metadata for the elected protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`members` is only for the leader. With an error code only `member_id` counts."""

    member_id: str
    error_code: int = 0
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """A member's part of the leader's assignment."""

    error_code: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


# --- Requests of the consumer protocol (KIP-848) ---


class TopicVisibility(NamedTuple):
    """Which topics a client may see.

    `may_see` answers by name, for the rules as they are now. The answers stay the same while `version` does.
    """

    may_see: Callable[[str], bool]
    version: Hashable


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat; a field that is None has not changed since the member's last heartbeat.

    - `rebalance_timeout_ms`: how long the member may take to give up partitions.
    - `owned`: the partitions that the member reports to have.
    - `visibility`: of topics to the member's client; None: it may see all. It is never left out.
    """

    number: int
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int | None
    topics: tuple[str, ...] | None
    topic_regex: str | None
    assignor: str | None
    owned: Partitions | None
    client_id: str
    client_host: str
    visibility: TopicVisibility | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`assignment`: the partitions that the member may read from now on; None: the same as before."""

    member_id: str | None
    member_epoch: int = 0
    assignment: Partitions | None = None
    error_code: int = 0
    error_message: str | None = None


# --- Requests to groups of both kinds ---


@dataclass(frozen=True, slots=True)
class Commit:
    """An OffsetCommit request, as far as it decides whether the commit is allowed.

    - `generation`: of a consumer member its member epoch; -1: the commit is not from a member.
    - `version`: of the request.
    - `is_transactional`: a TxnOffsetCommit. It need not name a member: clients before its version 3 cannot.
    - `partitions`: those that offsets are committed of.
    """

    member_id: str
    instance_id: str | None
    generation: int
    version: int
    is_transactional: bool = False
    partitions: Collection[TopicPartition] = ()

    @property
    def names_member(self) -> bool:
        return self.generation >= 0 or bool(self.member_id) or self.instance_id is not None

    @property
    def knows_group_not_found(self) -> bool:
        """Whether the client knows GROUP_ID_NOT_FOUND as an answer: from OffsetCommit 9 on (KIP-848), and
        from TxnOffsetCommit 6 on, which is not served here."""
        return not self.is_transactional and self.version >= 9


# --- Decisions ---

AnyAnswer = JoinAnswer | SyncAnswer | HeartbeatAnswer


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request of this number."""

    number: int
    answer: AnyAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """A classic group's record to be written; the outcome comes back by `stored(ticket, ...)`.

    The coordinator fills in `group.state_ms`: the group does not know the time of day.
    """

    ticket: int
    group: GroupMetadata


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """A consumer group's records to be written in this order (None: a tombstone); likewise."""

    ticket: int
    records: tuple[tuple[ConsumerGroupKey, ConsumerGroupValue | None], ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a coordinator has to do, in any order."""

    answers: tuple[Answer, ...] = ()
    stores: tuple[Store, ...] = ()
    records: tuple[StoreRecords, ...] = ()
