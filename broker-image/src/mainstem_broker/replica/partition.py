"""One replica of a partition on this broker: its role, its offsets, and who waits for them to move.

Offsets, lowest to highest, and what moves each:

- log start offset: the first record that may be read; retention and DeleteRecords move it up.
- high watermark: the first offset that consumers may not read yet; it follows the log end of the whole
  in-sync set, so with one replica every append moves it.
- log end offset: the offset that the next record will get; appends move it.

`log start <= high watermark <= log end` always. The leader epoch fences requests of clients that know an
older or newer leader (KIP-320).

All methods are called on the broker's one event loop. No method awaits, so nothing can come between
reading a partition's state and changing it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from mainstem_broker.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.files import ReadResult
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.protocol.batches import validate_for_append

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What ZooKeeper holds of a partition: who leads, since which epoch, who is in sync.

    `leader_epoch` grows with every election; `partition_epoch` is the znode's version and grows with
    every write; `controller_epoch` is that of the controller whose election this was. `recovering` is
    set when a replica outside the in-sync set was elected and may have lost records.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int = 0
    recovering: bool = False


class Partition:
    """The local replica of `topic`-`index`."""

    __slots__ = ("_listeners", "_local_broker_id", "index", "log", "state", "topic", "topic_id")

    def __init__(
        self, topic: str, index: int, topic_id: UUID, log: PartitionLog, local_broker_id: int
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.state: PartitionState | None = None
        self._local_broker_id = local_broker_id
        self._listeners: set[Callable[[], None]] = set()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def is_leader(self) -> bool:
        return self.state is not None and self.state.leader == self._local_broker_id

    @property
    def leader_epoch(self) -> int:
        return -1 if self.state is None else self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of the earliest transaction still open."""
        return self.high_watermark

    def update_state(self, state: PartitionState) -> None:
        """Take the state that ZooKeeper holds now; older versions than the known one are ignored."""
        if self.state is not None and state.partition_epoch < self.state.partition_epoch:
            return
        was_leader = self.is_leader
        self.state = state
        if was_leader and not self.is_leader:
            self._notify()  # whoever waits must learn that this is no longer the leader

    def require_leader(self, client_epoch: int = -1) -> None:
        """Let only requests pass that this replica may answer as leader.

        Raises:
            NotLeaderOrFollower: another broker leads, or none.
            FencedLeaderEpoch, UnknownLeaderEpoch: the client's leader epoch is older or newer (KIP-320);
                -1 means that the client does not know one.
        """
        if not self.is_leader:
            raise NotLeaderOrFollower(f"This broker does not lead {self!r}.")
        if client_epoch >= 0 and client_epoch != self.leader_epoch:
            if client_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self!r} is at leader epoch {self.leader_epoch}.")
            raise UnknownLeaderEpoch(f"{self!r} is still at leader epoch {self.leader_epoch}.")

    def append(self, records: bytes | None, *, acks: int, produce_version: int, now_ms: int) -> AppendInfo:
        """Check a client's batch and write it at the log's end.

        Raises:
            ProtocolError: of the kinds that `validate_for_append`, `require_leader` and the log raise.
        """
        self.require_leader()
        config = self.log.config
        assert self.state is not None
        if acks == -1 and len(self.state.isr) < config.min_insync_replicas:
            raise NotEnoughReplicas(
                f"{self!r} has {len(self.state.isr)} in-sync replicas of the {config.min_insync_replicas}"
                " that min.insync.replicas asks for."
            )
        valid = validate_for_append(records, config, produce_version=produce_version, now_ms=now_ms)
        info = self.log.append_as_leader(valid.batch, valid.header, self.leader_epoch, now_ms)
        if self.log.unflushed_messages >= config.flush_messages:
            # Whoever sets flush.messages wants records on the disk before they are acknowledged.
            self.log.mark_flushed(self.log.flush(), now_ms)
        self._notify()
        return info

    def read(
        self, offset: int, max_bytes: int, *, client_epoch: int, min_one_batch: bool, committed: bool
    ) -> ReadResult:
        """Plan a read from `offset` up to the high watermark, or the last stable offset if `committed`.

        Raises:
            OffsetOutOfRange: outside [log start offset, log end offset]; between the high watermark and
                the log end an offset is valid and the answer empty.
        """
        self.require_leader(client_epoch)
        bound = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, bound, min_one_batch)

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark); answer the new one.

        Raises:
            OffsetOutOfRange: above the high watermark or below -1.
        """
        self.require_leader()
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{offset} is not in {self!r}, whose high watermark is {self.high_watermark}."
            )
        return self.log.delete_records_before(offset)

    def take_offline(self) -> None:
        """The partition's files are going away: answer whoever waits."""
        self.state = None
        self._notify()

    # --- Waiting for progress ---

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the high watermark moves or this replica ceases to lead."""
        self._listeners.add(listener)

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.discard(listener)

    def _notify(self) -> None:
        if self._listeners:
            for listener in tuple(self._listeners):
                listener()
