"""What a group is told and what it decides, as values.

A member's request that has to wait is known to the group by a number that its coordinator gave it, and the
group answers each number exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mainstem_broker.group.consumer_records import ConsumerGroupKey, ConsumerGroupValue, Partitions
from mainstem_broker.group.records import GroupMetadata

JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
LEAVING_FOR_A_WHILE_EPOCH: Final = -2
"""A static member that will be back: its partitions wait for it as long as its session lasts."""


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request; timeouts in ms.

    - `member_id`: empty for one who joins for the first time, who then gets `fresh_id`.
    - `protocols`: name and metadata of each, the member's favourite first.
    - `must_know_id`: the client can be sent back for its id first (version 4 on, KIP-394).
    - `may_skip_assignment`: a returning static leader can be told to assign nothing (version 9 on, KIP-814).
    """

    request: int
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
    """A SyncGroup request; `assignments` by member id, from the leader only. None: the client did not say."""

    request: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader is told of it."""

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
    """A member's part of what the leader decided."""

    error_code: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


# --- Of groups of KIP-848 ---


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat; what is None has not changed since the last one.

    `rebalance_timeout_ms` is None likewise. `owned` are the partitions that the member has by its own word.
    """

    request: int
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


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """`assignment` is what the member may read from now on; None: as before."""

    member_id: str | None
    member_epoch: int = 0
    assignment: Partitions | None = None
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class StoreRecords:
    """Records to be written in this order; None: a tombstone.

    The group goes on when it hears of it by `ConsumerGroup.stored(ticket, ...)`.
    """

    ticket: int
    records: tuple[tuple[ConsumerGroupKey, ConsumerGroupValue | None], ...]


# --- What comes of it ---

AnyAnswer = JoinAnswer | SyncAnswer | HeartbeatAnswer


@dataclass(frozen=True, slots=True)
class Answer:
    """What the waiting request of this number gets."""

    request: int
    answer: AnyAnswer


@dataclass(frozen=True, slots=True)
class Store:
    """A record to be written. The group goes on when it hears of it by `Group.stored(ticket, ...)`.

    The coordinator fills in `group.state_ms`, for it has the wall's clock.
    """

    ticket: int
    group: GroupMetadata


@dataclass(frozen=True, slots=True)
class Decisions:
    """What a coordinator has to carry out, in any order."""

    answers: tuple[Answer, ...] = ()
    stores: tuple[Store, ...] = ()
    records: tuple[StoreRecords, ...] = ()
