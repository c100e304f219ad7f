"""One replica of a partition on this broker: its role, its offsets, and listeners to both.

Decisions only: it receives events (an append, a follower's fetch, a new state, the passing of time),
changes its own log, and returns what others have to write or send. It knows no network, no ZooKeeper and no
clock. Elsewhere: checks of client batches (`client_batches`), waiting requests (`acknowledgements`), where
two logs part (`divergence`), what followers grant (`follower_grants`), limits on moves (`throttle`).

Offsets, lowest to highest, and what moves each:

- log start offset: the first record that may be read; retention and DeleteRecords move it up.
- high watermark: the first offset that consumers may not read yet. On the leader it is the lowest log end
  of the *maximal* in-sync set: all members, and all that a proposal under way would add. It
  stands still while the set is too small for acks=all (KIP-966). Followers learn it with their next fetch.
- last stable offset: the first offset that read_committed consumers may not read yet. It follows from the
  high watermark and the log's transactions (`log/transactions.py`), but is never below the log start, though
  retention may pass the start of an open transaction.
- log end offset: the offset that the next record will get; appends move it up, truncation down.

`log start <= last stable <= high watermark <= log end` always.

A leader proposes changes of the in-sync set (`propose_isr`); they count once ZooKeeper has them. Until
then an expanding set already holds the high watermark back, and a shrinking one does not release it yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from uuid import UUID

from mainstem_broker.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    ProtocolError,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.files import ReadResult
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.log.retention import DeletedSegment
from mainstem_broker.protocol.batches import BatchHeader
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.replica.acknowledgements import Acknowledgement, Acknowledgements
from mainstem_broker.replica.divergence import Divergence, find_divergence, truncation_offset
from mainstem_broker.replica.follower_grants import FollowerGrants
from mainstem_broker.replica.follower_progress import UNKNOWN_OFFSET, Progress
from mainstem_broker.replica.lease import NO_INCARNATION, Lease
from mainstem_broker.replica.nearest_replica import Candidate, nearest_replica
from mainstem_broker.replica.partition_state import PartitionState
from mainstem_broker.runtime.page_cache import CACHED_ONLY


class Partition:
    """The local replica of `topic`-`index`."""

    __slots__ = (
        "_end_listeners",
        "_epoch_start_offset",
        "_has_leading_role",
        "_high_watermark",
        "_lease",
        "_listeners",
        "_pending",
        "_progress",
        "_rests_until_s",
        "acknowledgements",
        "flush_acknowledgements",
        "grants",
        "index",
        "led_since",
        "local_broker_id",
        "log",
        "produced_bytes",
        "replicas",
        "request_flush",
        "state",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: UUID,
        log: PartitionLog,
        local_broker_id: int,
        lease: Lease,
        high_watermark: int = 0,
    ) -> None:
        """Begin without a role. `high_watermark` is that of the checkpoint; the log may be shorter."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.state: PartitionState | None = None
        self.replicas: tuple[int, ...] = ()
        self.produced_bytes = 0
        """Bytes that clients have appended since the process started."""
        self.led_since = -1
        """The leader epoch in which the present role began: since then a leader has led without a break."""
        self.local_broker_id = local_broker_id
        self._lease = lease
        self._has_leading_role = False
        """Whether the lease held the leadership when the present state was taken."""
        self._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.transactions.replicated_to(self._high_watermark)
        # Ordered sets of what to call when the high watermark moves, and when the log's end does.
        self._listeners: dict[Callable[[], None], None] = {}
        self._end_listeners: dict[Callable[[], None], None] = {}
        self.grants = FollowerGrants(lease)
        # Of a leader only: where its epoch began, its followers, the proposal under way, waiting requests.
        self._epoch_start_offset = 0
        self._progress: dict[int, Progress] = {}
        self._rests_until_s = -math.inf
        self._pending: PartitionState | None = None
        self.acknowledgements = Acknowledgements()
        """Of requests that wait for the high watermark."""
        self.flush_acknowledgements = Acknowledgements()
        """Of requests that wait for `flush.messages` only."""
        self.request_flush: Callable[[Partition], None] = _flush_now
        """Called when `flush.messages` requires a flush; `flushed` or `flush_failed` is to be called after
        it. The owner flushes in a thread."""

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- Role ---

    @property
    def is_leader(self) -> bool:
        """Whether this replica was elected, in the present incarnation of its broker.

        A replica that was elected in an earlier incarnation may have lost records since, and does not lead.
        One that heard of its election before the lease of that incarnation began leads when it hears of it
        again: until then it has not begun the epoch in its log, and knows nothing of its followers.
        """
        state = self.state
        return state is not None and self._has_leading_role and self._is_elected(state)

    def _is_elected(self, state: PartitionState) -> bool:
        """Whether a state gives the leadership to this replica, in an incarnation that the lease holds."""
        return state.leader == self.local_broker_id and self._lease.is_held_by(
            state.incarnations.get(self.local_broker_id, NO_INCARNATION)
        )

    def _may_begin(self, state: PartitionState) -> bool:
        """Whether this replica leads by a state: not at an epoch below those of its log.

        Epochs only grow (KIP-101). A log has later ones only where the cluster does not know its history: it
        is from another cluster, or ZooKeeper was restored from a backup and nobody could notice. See
        `propose_epoch`.
        """
        return self._is_elected(state) and state.leader_epoch >= self.log.epochs.latest_epoch

    @property
    def leader_epoch(self) -> int:
        return -1 if self.state is None else self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of the earliest transaction that may still be aborted.

        It never moves without the high watermark or the log start offset, so listeners are called for it.
        """
        first_unstable_offset = self.log.producers.transactions.first_unstable_offset
        if first_unstable_offset >= self._high_watermark:
            return self._high_watermark
        return max(first_unstable_offset, self.log.log_start_offset)

    def update_state(self, state: PartitionState, replicas: tuple[int, ...], now_ms: int) -> None:
        """Take the state and the assignment that ZooKeeper holds now. A state that is not newer is ignored.

        A new leader epoch begins the role anew: a leader knows nothing of its followers yet. A leader that
        stays when replicas are moved away continues, in the next epoch. If only the replicas have changed, a
        proposal that is under way remains.
        """
        old, has_led = self.state, self.is_leader
        has_other_replicas = replicas != self.replicas
        self.replicas = replicas
        if old is not None and state.partition_epoch <= old.partition_epoch:
            if not self._has_leading_role and self._may_begin(old):
                self._has_leading_role = True
                # What the state before said of this replica is unknown: it rests as long as may be.
                self._begin_role(old, None)
            if self.is_leader:
                self._know_followers(now_ms)
                self._advance_high_watermark()  # with fewer replicas fewer have to be in sync
                if has_other_replicas:
                    _call_all(self._listeners)
            return
        self.state = state
        self._has_leading_role = self._may_begin(state)
        self._pending = None
        if old is not None and has_led and self.is_leader and state.leader_epoch == old.leader_epoch + 1:
            self._lead_on(state)
        elif old is None or state.leader_epoch != old.leader_epoch or state.leader != old.leader:
            self._begin_role(state, old)
        if self.is_leader:
            self._know_followers(now_ms)
            self._advance_high_watermark()
            self._refuse_if_too_few()
            # Followers may have left the in-sync set, though nothing was appended.
            _call_all(self._end_listeners)
            if has_other_replicas:
                _call_all(self._listeners)

    def _begin_role(self, state: PartitionState, old: PartitionState | None) -> None:
        self.led_since = state.leader_epoch
        self._progress = {}
        self.log.producers.void_verifications()
        if state.recovering:
            self.log.producers.forget_refusals()
        self._refuse_waiting(NotLeaderOrFollower(f"{self!r} has another leader."))
        if self.is_leader:
            self._epoch_start_offset = self.log.log_end_offset
            self.log.begin_epoch(state.leader_epoch)
            self._rests_until_s = self._end_of_own_grants_s(old)
        self._notify()

    def _end_of_own_grants_s(self, old: PartitionState | None) -> float:
        """Until when the former leader may act on the grants of this replica, which leads now."""
        if old is None:
            return self._lease.rest_until_s(NO_INCARNATION) if self.leader_epoch > 0 else -math.inf
        if old.isr == (self.local_broker_id,) and not old.elr:
            return -math.inf  # this broker has led before
        membership = old.incarnations.get(self.local_broker_id, NO_INCARNATION)
        return self._lease.rest_until_s(membership)

    def _lead_on(self, state: PartitionState) -> None:
        """Lead in the next epoch, with the same log; no other broker has led in between.

        A replica that was removed may be assigned again already, without the log that it reported. So the
        progress of replicas outside the in-sync set is dropped, and fetches in the former epoch are refused.
        """
        self._progress = {
            broker: progress for broker, progress in self._progress.items() if broker in state.isr
        }
        self.log.begin_epoch(state.leader_epoch)
        self._notify()

    def _know_followers(self, now_ms: int) -> None:
        """Keep a progress for each other replica; the assignment may change within an epoch."""
        assert self.state is not None
        for broker in self._progress.keys() - set(self.replicas):
            del self._progress[broker]
        for broker in self.replicas:
            if broker != self.local_broker_id and broker not in self._progress:
                self._progress[broker] = Progress(self.state.incarnations.get(broker, NO_INCARNATION), now_ms)

    def take_offline(self) -> None:
        """Give up the replica, and answer the requests that wait."""
        self.state = None
        self._refuse_waiting(NotLeaderOrFollower(f"{self!r} is no longer on this broker."))
        self._notify()

    def _refuse_waiting(self, error: ProtocolError) -> None:
        self.acknowledgements.refuse(error)
        self.flush_acknowledgements.refuse(error)

    def require_leader(self, client_epoch: int = -1) -> None:
        """Check that this replica may answer a client's request as leader.

        Args:
            client_epoch: the leader epoch that the client knows, or -1 (KIP-320).

        Raises:
            NotLeaderOrFollower: another broker leads, or none, or this one cannot know.
            FencedLeaderEpoch, UnknownLeaderEpoch: the client's leader epoch is older or newer.
        """
        self._require_role(client_epoch)
        if self._pending is not None and self._pending.leader != self.local_broker_id:
            raise NotLeaderOrFollower(f"This broker hands {self!r} over to another one.")
        if not self.is_served:
            raise NotLeaderOrFollower(f"This broker no longer knows whether it leads {self!r}.")
        if self._lease.now_s() < self._rests_until_s:
            raise NotLeaderOrFollower(
                f"This broker leads {self!r} after an outage of ZooKeeper, and waits until the former"
                " leader has certainly stopped."
            )

    @property
    def is_served(self) -> bool:
        """As leader: whether no other replica can have begun to answer clients (`replica/lease.py`)."""
        return self._lease.is_valid() or all(
            self.grants.is_granted_by(broker, self.leader_epoch) for broker in self._electable()
        )

    def _electable(self) -> set[int]:
        """The brokers that can be elected in place of this leader by any state that may be written by now.

        Only this leader adds to the in-sync set, so the present state and its proposal cover later states.
        """
        assert self.state is not None
        if self.log.config.unclean_leader_election_enable:
            return {*self.replicas} - {self.local_broker_id}
        members = {*self.state.isr, *self.state.elr}
        if self._pending is not None:
            members.update(self._pending.isr, self._pending.elr)
        return members - {self.local_broker_id}

    def _require_role(self, client_epoch: int) -> None:
        if not self.is_leader:
            raise NotLeaderOrFollower(f"This broker does not lead {self!r}.")
        self._require_epoch(client_epoch)

    def _require_epoch(self, client_epoch: int) -> None:
        if client_epoch >= 0 and client_epoch != self.leader_epoch:
            if client_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self!r} is at leader epoch {self.leader_epoch}.")
            raise UnknownLeaderEpoch(f"{self!r} is still at leader epoch {self.leader_epoch}.")

    # --- Leader: clients ---

    def require_in_sync(self) -> None:
        """Check that enough replicas can acknowledge an append. To be called on the leader.

        Raises:
            NotEnoughReplicas: the in-sync set is smaller than min.insync.replicas.
        """
        assert self.state is not None
        if not self._has_enough_in_sync():
            raise NotEnoughReplicas(
                f"{self!r} has {len(self.state.isr)} in-sync replicas of the {self._min_insync_replicas()}"
                " that min.insync.replicas requires."
            )

    def write(self, header: BatchHeader, batch: Buffer, now_ms: int) -> AppendInfo:
        """Write a batch, which the caller has checked, at the log's end. To be called on the leader.

        Raises:
            StorageError: the disk failed or is full; nothing of the batch is in the log.
        """
        info = self.log.append_as_leader(batch, header, self.leader_epoch, now_ms)
        _call_all(self._end_listeners)
        self._advance_high_watermark()
        return info

    def acknowledge(self, acknowledgement: Acknowledgement, acks: int = -1) -> bool:
        """Whether everything before its offset may be acknowledged. If not, it is settled later.

        That is what lies below the high watermark where `acks` is -1 (all), and else what `flush.messages`
        allows. To be called right after the append, before anything else may happen to this replica.
        """
        if self.acknowledged_offset(acks) >= acknowledgement.offset:
            return True
        self.waiting(acks).add(acknowledgement)
        return False

    def acknowledged_offset(self, acks: int) -> int:
        return self._high_watermark if acks == -1 else self.log.acknowledgeable_offset

    def waiting(self, acks: int) -> Acknowledgements:
        """The requests with these acks that wait."""
        return self.acknowledgements if acks == -1 else self.flush_acknowledgements

    def flushed(self) -> None:
        """Acknowledge what is durable now, after a flush that has raised the log's recovery point."""
        self.flush_acknowledgements.settle(self.log.acknowledgeable_offset)
        if self.is_leader:
            self._advance_high_watermark()

    def flush_failed(self, error: ProtocolError) -> None:
        """Refuse the requests that may wait for it; the records stay in the log."""
        self.flush_acknowledgements.refuse(error)
        if self.log.acknowledgeable_offset < self.log.log_end_offset:
            self.acknowledgements.refuse(error)

    def read(
        self, offset: int, max_bytes: int, *, client_epoch: int, min_one_batch: bool, committed: bool
    ) -> ReadResult:
        """Plan a consumer's read, up to the high watermark, or the last stable offset if `committed`.

        Raises:
            OffsetOutOfRange: outside [log start offset, log end offset]; between the high watermark and
                the log end an offset is valid and the answer empty.
        """
        self.require_leader(client_epoch)
        bound = self.last_stable_offset if committed else self._high_watermark
        return self.log.read(offset, max_bytes, bound, min_one_batch)

    def preferred_replica(self, offset: int, rack: str, racks: Mapping[int, str | None]) -> int | None:
        """As leader: the follower that a consumer in `rack` should read from; None: this replica (KIP-392).

        Only in-sync followers with `offset` in their logs are eligible: others would send the consumer back.

        Args:
            racks: of the brokers that the consumer can reach.
        """
        assert self.state is not None
        followers = [
            Candidate(broker, racks[broker], progress.log_end_offset, progress.caught_up_ms)
            for broker, progress in self._progress.items()
            if broker in self.state.isr
            and broker in racks
            and progress.log_start_offset <= offset <= progress.log_end_offset
        ]
        return nearest_replica(rack, racks.get(self.local_broker_id), followers)

    @property
    def is_follower(self) -> bool:
        """Whether another broker leads, or none, in the newest state that this broker has."""
        return self.state is not None and self.state.leader != self.local_broker_id

    def read_from_follower(
        self, offset: int, max_bytes: int, *, client_epoch: int, min_one_batch: bool, committed: bool
    ) -> ReadResult:
        """As `read`, but on a follower, up to its own high watermark (KIP-392).

        Raises:
            NotLeaderOrFollower: this replica has been elected and cannot serve.
            OffsetOutOfRange: outside this replica's log; the consumer returns to the leader.
        """
        if not self.is_follower:
            raise NotLeaderOrFollower(f"This broker does not follow {self!r}.")
        self._require_epoch(client_epoch)
        bound = self.last_stable_offset if committed else self._high_watermark
        return self.log.read(offset, max_bytes, bound, min_one_batch)

    def latest_offset(self, *, committed: bool) -> int:
        """The offset at which a consumer begins that starts at the end.

        Raises:
            OffsetNotAvailable: a new leader does not know yet how far consumers have read (KIP-207).
        """
        if self._high_watermark < self._epoch_start_offset:
            raise OffsetNotAvailable(f"{self!r} has a new leader that does not know its high watermark yet.")
        return self.last_stable_offset if committed else self._high_watermark

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark), and return that offset.

        Followers do so after their next fetches: see `low_watermark`. A log that starts later already stays
        as it is.

        Raises:
            PolicyViolation: the topic is only compacted: its latest records by key must stay.
            OffsetOutOfRange: above the high watermark or below -1.
        """
        self.require_leader()
        if self.log.config.compacts and not self.log.config.deletes:
            raise PolicyViolation(f"{self!r} keeps the last record of each key (cleanup.policy).")
        if offset == -1:
            offset = self._high_watermark
        if not 0 <= offset <= self._high_watermark:
            raise OffsetOutOfRange(
                f"{offset} is not in {self!r}, whose high watermark is {self._high_watermark}."
            )
        self.log.delete_records_before(offset)
        _call_all(self._listeners)
        return offset

    def low_watermark(self, live: Collection[int]) -> int:
        """The lowest log start offset of this leader and of its followers among the brokers `live`.

        Of a follower it is that of its last fetch; 0 before the first one of its present incarnation, and
        of the present leader epoch. Listeners are called whenever it may have moved, but for a change of
        `live`.

        Raises:
            NotLeaderOrFollower: this replica does not lead.
        """
        self._require_role(-1)
        start_offset = self.log.log_start_offset
        for broker, progress in self._progress.items():
            if progress.log_start_offset < start_offset and broker in live:
                start_offset = progress.log_start_offset
        return start_offset

    def apply_retention(self, now_ms: int) -> list[DeletedSegment]:
        """Drop the segments that are due. Listeners are called if the log's start moved.

        Raises:
            StorageError: the disk failed.
        """
        start_offset = self.log.log_start_offset
        try:
            return self.log.delete_old_segments(now_ms, self._high_watermark)
        finally:
            if self.log.log_start_offset > start_offset:
                _call_all(self._listeners)

    # --- Leader: followers ---

    def read_as_follower(
        self,
        broker: int,
        incarnation: int,
        offset: int,
        last_epoch: int,
        max_bytes: int,
        *,
        leader_epoch: int,
        min_one_batch: bool,
        now_ms: int,
        log_start_offset: int = 0,
        cached_only: bool = False,
    ) -> ReadResult | Divergence:
        """Take a follower's fetch: record its progress, and plan its read, up to the log's end.

        Args:
            offset, last_epoch: where its log ends, and the epoch of its last record (-1: it has none).
            log_start_offset: where its log begins.
            leader_epoch: the epoch that it follows.
            cached_only: raise NotCached before the read waits for the disk, and note nothing.

        Raises:
            ProtocolError: as `require_leader`, but without regard to the lease;
                NotLeaderOrFollower for a broker that holds no replica; OffsetOutOfRange.
        """
        self._require_role(leader_epoch)
        if broker not in self._progress:
            raise NotLeaderOrFollower(f"Broker {broker} holds no replica of {self!r}.")
        diverging = find_divergence(self.log.epochs, self.log.log_end_offset, offset, last_epoch)
        if diverging is not None:
            return diverging
        if cached_only:
            with CACHED_ONLY:
                planned_read = self.log.read(offset, max_bytes, self.log.log_end_offset, min_one_batch)
        else:
            planned_read = self.log.read(offset, max_bytes, self.log.log_end_offset, min_one_batch)
        progress = self._progress[broker]
        if progress.incarnation != incarnation:
            # The log of a new incarnation may be shorter than that of the former one.
            progress = self._progress[broker] = Progress(incarnation, progress.caught_up_ms)
        has_moved = progress.log_end_offset != offset
        has_other_start = progress.log_start_offset != log_start_offset
        progress.log_start_offset = log_start_offset
        progress.record_fetch(offset, self.log.log_end_offset, now_ms)
        if has_moved:
            self._advance_high_watermark()
        if has_other_start:
            _call_all(self._listeners)
        return planned_read

    def is_in_sync(self, broker: int) -> bool:
        return self.state is not None and broker in self.state.isr

    def was_caught_up(self, broker: int, at_ms: int) -> None:
        """A follower that had everything has continued to fetch until `at_ms`, from the same offset."""
        progress = self._progress.get(broker)
        if progress is not None:
            progress.was_at_end(at_ms)

    def propose_isr(
        self, incarnations: Mapping[int, int], now_ms: int, lag_max_ms: int
    ) -> PartitionState | None:
        """The state to write if the in-sync set should change; None if not, or if a proposal is under way.

        A follower joins when it has reached the high watermark and the start of this leader's epoch, in the
        present incarnation of its broker. It leaves when it is no longer caught up. The controller removes
        dead brokers.

        Args:
            incarnations: the present incarnation of each live broker.
        """
        if not self.is_leader or self._pending is not None:
            return None
        assert self.state is not None
        end_offset = self.log.log_end_offset
        isr = []
        joined: dict[int, int] = {}
        for broker in self.replicas:
            progress = self._progress.get(broker)
            if progress is None:
                if broker == self.local_broker_id:
                    isr.append(broker)
                continue
            is_present_incarnation = incarnations.get(broker) == progress.incarnation
            if broker in self.state.isr:
                if broker not in incarnations or progress.is_caught_up(end_offset, now_ms, lag_max_ms):
                    isr.append(broker)
            elif is_present_incarnation and progress.log_end_offset >= max(
                self._high_watermark, self._epoch_start_offset
            ):
                isr.append(broker)
                joined[broker] = progress.incarnation
        min_insync_replicas = self.log.config.min_insync_replicas
        # A lowered setting may make the set large enough: no broker outside it is eligible from then on.
        clears_eligible = bool(self.state.elr) and len(isr) >= min_insync_replicas
        if set(isr) == set(self.state.isr) and not clears_eligible:
            return None
        self._pending = self.state.with_isr(isr, joined, self.log.config.min_insync_replicas)
        return self._pending

    def propose_handover(self, leader: int, incarnations: Mapping[int, int]) -> PartitionState | None:
        """The state to write so that another in-sync replica leads.

        None if it cannot lead, or if a proposal is under way. From now on clients are refused until the
        outcome of the write is known: there are never two leaders.

        Args:
            incarnations: the present incarnation of each live broker.
        """
        if not self.is_leader or self._pending is not None or leader == self.local_broker_id:
            return None
        assert self.state is not None
        progress = self._progress.get(leader)
        if leader not in self.state.isr or progress is None:
            return None
        if progress.incarnation != incarnations.get(leader) or progress.log_end_offset < self._high_watermark:
            return None  # in its present incarnation it has not fetched up to the high watermark yet
        incarnation_of_leader = {leader: progress.incarnation}
        self._pending = replace(
            self.state.with_isr(self.state.isr, incarnation_of_leader, self.log.config.min_insync_replicas),
            leader=leader,
            leader_epoch=self.state.leader_epoch + 1,
            recovering=False,
        )
        return self._pending

    def propose_epoch(self) -> PartitionState | None:
        """The state to write so that this replica, which is elected, leads at an epoch that its log allows.

        None if it may lead as it is, or if a proposal is under way.
        """
        state = self.state
        if state is None or self._pending is not None or not self._is_elected(state):
            return None
        if self._may_begin(state):
            return None
        self._pending = replace(
            state,
            leader_epoch=self.log.epochs.latest_epoch + 1,
            partition_epoch=state.partition_epoch + 1,
        )
        return self._pending

    def isr_refused(self) -> None:
        """Withdraw the proposal, which certainly was not and will not be written."""
        self._pending = None
        if self.is_leader:
            self._advance_high_watermark()  # brokers that it would have added no longer hold it back

    def _maximal_isr(self) -> Collection[int]:
        assert self.state is not None
        return self.state.isr if self._pending is None else {*self.state.isr, *self._pending.isr}

    def _has_enough_in_sync(self) -> bool:
        """Whether records may count as committed: the set is large enough, and no other broker may lead."""
        assert self.state is not None
        return len(self.state.isr) >= self._min_insync_replicas() and not self.state.elr

    def _min_insync_replicas(self) -> int:
        """The setting, or the number of replicas where there are fewer, as in Kafka.

        Otherwise a topic with a single replica could never be written to where the default is two. The
        eligible brokers are the same either way. Members of the state count as replicas, so that an
        assignment that arrives late lowers nothing.
        """
        assert self.state is not None
        replica_count = max(len(self.replicas), len(self.state.isr) + len(self.state.elr))
        return min(self.log.config.min_insync_replicas, replica_count)

    def settings_changed(self) -> None:
        """Take new settings of the log, which may include min.insync.replicas."""
        if self.is_leader:
            self._advance_high_watermark()

    def _advance_high_watermark(self) -> None:
        # What could not be acknowledged here is not shown to consumers either.
        mark = self.log.acknowledgeable_offset
        if mark < self.log.log_end_offset:
            self.request_flush(self)
        for broker in self._maximal_isr():
            if broker != self.local_broker_id:
                progress = self._progress.get(broker)
                end_offset = UNKNOWN_OFFSET if progress is None else progress.log_end_offset
                if end_offset <= self._high_watermark:
                    return  # as when most records are appended and most followers fetch
                mark = min(mark, end_offset)
        if mark > self._high_watermark and self._has_enough_in_sync():
            self._high_watermark = mark
            self.log.producers.transactions.replicated_to(mark)
            self.acknowledgements.settle(mark)
            _call_all(self._listeners)

    def _refuse_if_too_few(self) -> None:
        """Answer waiting requests at once if the in-sync set has become too small, not after a timeout."""
        assert self.state is not None
        if not self._has_enough_in_sync():
            self.acknowledgements.refuse(NotEnoughReplicasAfterAppend(f"{self!r} lost in-sync replicas."))

    # --- Follower ---

    def fetch_position(self) -> tuple[int, int]:
        """The offset to fetch next, and the latest epoch here, which may have no record yet."""
        return self.log.log_end_offset, self.log.epochs.latest_epoch

    def append_from_leader(
        self, records: Buffer, *, leader_epoch: int, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Take what the leader of `leader_epoch` sent: batches, its high watermark, where its log starts.

        Nothing is taken if the role has changed since the fetch was sent.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        if records:
            self.log.append_as_follower(records, now_ms)
        mark = min(high_watermark, self.log.log_end_offset)
        has_moved = mark > self._high_watermark
        self._high_watermark = max(self._high_watermark, mark)
        self.log.producers.transactions.replicated_to(self._high_watermark)
        if log_start_offset > self.log.log_start_offset:
            has_moved |= self.log.maybe_increment_log_start_offset(
                min(log_start_offset, self._high_watermark)
            )
        if has_moved and self._listeners:
            _call_all(self._listeners)  # consumers read from followers, too

    def truncate_to_divergence(self, diverging: Divergence, *, leader_epoch: int) -> None:
        """Drop the records that the leader of `leader_epoch` does not have."""
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        log = self.log
        self._truncate(truncation_offset(diverging, log.epochs, log.log_end_offset, self._high_watermark))

    def start_over(self, offset: int, *, leader_epoch: int) -> None:
        """Begin empty at the leader's log start: the leader no longer has the record that comes next here."""
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark = offset

    def _truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self._high_watermark = min(self._high_watermark, self.log.log_end_offset)
        self.log.producers.transactions.replicated_to(self._high_watermark)

    # --- Waiting for progress ---

    def add_listener(self, listener: Callable[[], None], *, of_end: bool = False) -> None:
        """Call `listener` whenever high watermark or log start move up, this replica's role or its replicas
        change, or a follower reports another log start.

        With `of_end`, whenever the progress of followers may matter: a batch was appended, or the role or the
        in-sync set changed.
        """
        (self._end_listeners if of_end else self._listeners)[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)
        self._end_listeners.pop(listener, None)

    def _notify(self) -> None:
        """Call all listeners, after a change of the role."""
        _call_all(self._end_listeners)
        _call_all(self._listeners)


def _flush_now(partition: Partition) -> None:
    """Flush where the caller may wait for the disk."""
    partition.log.mark_flushed(partition.log.flush())
    partition.flushed()


def _call_all(listeners: dict[Callable[[], None], None]) -> None:
    for listener in tuple(listeners):
        listener()
