"""One replica of a partition on this broker: its role, its offsets, and who waits for them to move.

Decisions only: it is told what happened (an append, a follower's fetch, a new state, the passing of time),
changes its own log, and answers what has to be written or sent by others. It knows no network, no
ZooKeeper and no clock.

Offsets, lowest to highest, and what moves each:

- log start offset: the first record that may be read; retention and DeleteRecords move it up.
- high watermark: the first offset that consumers may not read yet. On the leader it is the lowest log end
  of the *maximal* in-sync set, that is, of all who are in sync and all who are about to be, and it
  stands still while the set is too small for acks=all (KIP-966). Followers learn it with the fetch after.
- log end offset: the offset that the next record will get; appends move it up, truncation down.

`log start <= high watermark <= log end` always.

A leader proposes changes of the in-sync set (`propose_isr`); they count once ZooKeeper has them. Until
then an expanding set already holds the high watermark back, and a shrinking one does not yet let it go.

A follower that comes to a new leader compares leader epochs (KIP-101, KIP-279): it says the epoch of its
last record, and if the leader's log has that epoch end earlier, it truncates to there. Never to the high
watermark: a follower knows that one too late, and would cut off records that others have acknowledged.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from mainstem_broker.errors import (
    FencedLeaderEpoch,
    InvalidTxnState,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ProtocolError,
    StorageError,
    UnknownLeaderEpoch,
)
from mainstem_broker.log.epochs import UNDEFINED_EPOCH
from mainstem_broker.log.files import ReadResult
from mainstem_broker.log.partition_log import AppendInfo, DeletedSegment, PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header, validate_for_append
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.replica.office import NO_LIFE, Office
from mainstem_broker.replica.progress import UNKNOWN_OFFSET, Progress
from mainstem_broker.replica.state import PartitionState
from mainstem_broker.replica.throttle import throttled_replicas


class Divergence(NamedTuple):
    """A follower's log does not continue the leader's: `epoch` ends at `end_offset` there."""

    epoch: int
    end_offset: int


@dataclass(slots=True, eq=False)
class Acknowledgement:
    """Someone waits until everything before `offset` is below the high watermark. Never changed.

    `settle` is called once, with this and None, or with this and why it will not be.
    """

    offset: int
    settle: Callable[[Acknowledgement, ProtocolError | None], None]


class Partition:
    """The local replica of `topic`-`index`."""

    __slots__ = (
        "_acknowledgements",
        "_end_listeners",
        "_epoch_start_offset",
        "_high_watermark",
        "_listeners",
        "_local_broker_id",
        "_office",
        "_pending",
        "_progress",
        "index",
        "led_since",
        "log",
        "produced_bytes",
        "replicas",
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
        office: Office,
        high_watermark: int = 0,
    ) -> None:
        """Take a log. `high_watermark` is the last one that was written down; the log may be shorter."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.state: PartitionState | None = None
        self.replicas: tuple[int, ...] = ()
        self.produced_bytes = 0
        """What clients have appended here, in this process."""
        self.led_since = -1
        """The leader epoch in which the present role began: since then a leader has led without a break."""
        self._local_broker_id = local_broker_id
        self._office = office
        self._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        # Sets that keep their order: who waits for the high watermark, and who for the log's end.
        self._listeners: dict[Callable[[], None], None] = {}
        self._end_listeners: dict[Callable[[], None], None] = {}
        # Of a leader only: where its epoch began, its followers, the proposal under way, who waits.
        self._epoch_start_offset = 0
        self._progress: dict[int, Progress] = {}
        self._pending: PartitionState | None = None
        self._acknowledgements: deque[Acknowledgement] = deque()

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    # --- Role ---

    @property
    def is_leader(self) -> bool:
        """Whether this replica was elected, in the life that its broker lives now.

        One that was elected in an earlier life may have lost records since, and leads nobody.
        """
        state = self.state
        if state is None or state.leader != self._local_broker_id:
            return False
        return self._office.is_held_by(state.incarnations.get(self._local_broker_id, NO_LIFE))

    @property
    def leader_epoch(self) -> int:
        return -1 if self.state is None else self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, or the first offset of the earliest transaction still open."""
        return self._high_watermark

    def update_state(self, state: PartitionState, replicas: tuple[int, ...], now_ms: int) -> None:
        """Take what ZooKeeper holds now and who holds replicas; a state older than the known one is ignored.

        A new leader epoch begins the role anew: a leader knows nothing of its followers yet. A leader that
        stays when replicas are moved away goes on, in the next epoch. A state that is known already, as when
        only the replicas have changed, leaves a proposal under way.
        """
        old, has_led = self.state, self.is_leader
        self.replicas = replicas
        if old is not None and state.partition_epoch <= old.partition_epoch:
            if self.is_leader:
                self._know_followers(now_ms)
                self._advance_high_watermark()  # with fewer replicas fewer have to be in sync
            return
        self.state = state
        self._pending = None
        if old is not None and has_led and self.is_leader and state.leader_epoch == old.leader_epoch + 1:
            self._lead_on(state)
        elif old is None or state.leader_epoch != old.leader_epoch or state.leader != old.leader:
            self._begin_role(state)
        if self.is_leader:
            self._know_followers(now_ms)
            self._advance_high_watermark()
            self._refuse_if_too_few()
            # Followers that left the in-sync set are to be looked at again, though nothing is appended.
            _call_all(self._end_listeners)

    def _begin_role(self, state: PartitionState) -> None:
        self.led_since = state.leader_epoch
        self._progress = {}
        if state.recovering:
            self.log.producers.forget_refusals()
        self._give_up_waiting(NotLeaderOrFollower(f"{self!r} has another leader."))
        if self.is_leader:
            self._epoch_start_offset = self.log.log_end_offset
            self.log.begin_epoch(state.leader_epoch)
        self._notify()

    def _lead_on(self, state: PartitionState) -> None:
        """Lead in the next epoch, with the same log; nobody has led in between.

        A replica that was let go may be back already, without the log of which it told. So what is known of
        those outside the in-sync set counts no more, nor does what they still say in the former epoch.
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
            if broker != self._local_broker_id and broker not in self._progress:
                self._progress[broker] = Progress(self.state.incarnations.get(broker, NO_LIFE), now_ms)

    def take_offline(self) -> None:
        """The replica is going away: answer whoever waits."""
        self.state = None
        self._give_up_waiting(NotLeaderOrFollower(f"{self!r} is no longer on this broker."))
        self._notify()

    def require_leader(self, client_epoch: int = -1) -> None:
        """Let only requests of clients pass that this replica may answer as leader.

        Raises:
            NotLeaderOrFollower: another broker leads, or none, or this one cannot know.
            FencedLeaderEpoch, UnknownLeaderEpoch: the client's leader epoch is older or newer (KIP-320);
                -1 means that the client does not know one.
        """
        self._require_role(client_epoch)
        if self._pending is not None and self._pending.leader != self._local_broker_id:
            raise NotLeaderOrFollower(f"This broker hands {self!r} over to another one.")
        if not self._office.is_open():
            raise NotLeaderOrFollower(f"This broker no longer knows whether it leads {self!r}.")

    def _require_role(self, client_epoch: int) -> None:
        if not self.is_leader:
            raise NotLeaderOrFollower(f"This broker does not lead {self!r}.")
        if client_epoch >= 0 and client_epoch != self.leader_epoch:
            if client_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"{self!r} is at leader epoch {self.leader_epoch}.")
            raise UnknownLeaderEpoch(f"{self!r} is still at leader epoch {self.leader_epoch}.")

    # --- Leader: clients ---

    def append(self, records: Buffer | None, *, acks: int, produce_version: int, now_ms: int) -> AppendInfo:
        """Check a client's batch and write it at the log's end.

        A batch that an idempotent producer sends again is not written again; the answer is that of its
        first append.

        Raises:
            NotEnoughReplicas: acks is -1 (all) and the in-sync set is smaller than min.insync.replicas.
            ProtocolError: of the kinds that `validate_for_append`, `require_leader`, `Producers.check` and
                the log raise.
        """
        try:
            self.require_leader()
        except NotLeaderOrFollower:
            self._note_refusal(records, now_ms)  # it may lead by the time the next one comes
            raise
        assert self.state is not None
        config = self.log.config
        if acks == -1 and not self._has_enough_in_sync():
            self._note_refusal(records, now_ms)
            raise NotEnoughReplicas(
                f"{self!r} has {len(self.state.isr)} in-sync replicas of the {self._min_insync_replicas()}"
                " that min.insync.replicas asks for."
            )
        valid = validate_for_append(records, config, produce_version=produce_version, now_ms=now_ms)
        header = valid.header
        if header.producer_id >= 0:
            if header.is_transactional:
                raise InvalidTxnState("This broker has no transactions yet: send without a transactional id.")
            if self.log.producers.may_be_overtaking(header):
                self.log.producers.note_refusal(header, now_ms)
                raise NotLeaderOrFollower(  # clients send again after it, all of them, and soon
                    f"Producer {header.producer_id} begins {self!r} with sequence number"
                    f" {header.base_sequence}: it has to come again, if nothing before it does."
                )
            repeated = self.log.producers.check(header)
            if repeated is not None:
                return self.log.repeated(header, repeated)
        try:
            info = self.log.append_as_leader(valid.batch, header, self.leader_epoch, now_ms)
        except StorageError:
            self.log.producers.note_refusal(header, now_ms)
            raise
        if self.log.unflushed_messages >= config.flush_messages:
            # Whoever sets flush.messages wants records on the disk before they are acknowledged.
            self.log.mark_flushed(self.log.flush(), now_ms)
        self.produced_bytes += header.size_bytes
        _call_all(self._end_listeners)
        self._advance_high_watermark()
        return info

    def _note_refusal(self, records: Buffer | None, now_ms: int) -> None:
        try:
            header = parse_batch_header(records or b"")
        except ProtocolError:
            return  # no batch at all: nothing that could be overtaken
        self.log.producers.note_refusal(header, now_ms)

    def acknowledge(self, waiting: Acknowledgement) -> bool:
        """Whether everything before the offset is below the high watermark; if not, settles it later.

        To be called right after the append, before anything else may happen to this replica.
        """
        if self._high_watermark >= waiting.offset:
            return True
        waiters = self._acknowledgements
        if waiters and waiters[-1].offset > waiting.offset:
            # A batch that is sent again while later ones wait already.
            bisect.insort(waiters, waiting, key=lambda one: one.offset)
        else:
            waiters.append(waiting)
        return False

    def stop_waiting(self, waiting: Acknowledgement) -> None:
        """The one who waited has given up."""
        try:
            self._acknowledgements.remove(waiting)
        except ValueError:
            pass  # settled already

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

    def latest_offset(self, *, committed: bool) -> int:
        """Where a consumer that starts at the end begins.

        Raises:
            OffsetNotAvailable: a new leader does not know yet how far consumers have read (KIP-207).
        """
        if self._high_watermark < self._epoch_start_offset:
            raise OffsetNotAvailable(f"{self!r} has a new leader that does not know its high watermark yet.")
        return self.last_stable_offset if committed else self._high_watermark

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark); answer the new one.

        Raises:
            OffsetOutOfRange: above the high watermark or below -1.
        """
        self.require_leader()
        if offset == -1:
            offset = self._high_watermark
        if not 0 <= offset <= self._high_watermark:
            raise OffsetOutOfRange(
                f"{offset} is not in {self!r}, whose high watermark is {self._high_watermark}."
            )
        start_offset = self.log.delete_records_before(offset)
        _call_all(self._listeners)
        return start_offset

    def apply_retention(self, now_ms: int) -> list[DeletedSegment]:
        """Drop the segments that are due; whoever waits is told where the log starts now.

        Raises:
            StorageError: the disk failed.
        """
        start_offset = self.log.log_start_offset
        deleted = self.log.delete_old_segments(now_ms, self._high_watermark)
        if self.log.log_start_offset > start_offset:
            _call_all(self._listeners)
        return deleted

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
    ) -> ReadResult | Divergence:
        """Take a follower's fetch: note how far it is, and plan what it gets, up to the log's end.

        Args:
            offset, last_epoch: where its log ends, and the epoch of its last record (-1: it has none).
            leader_epoch: the epoch that it follows.

        Raises:
            ProtocolError: as `require_leader`, but whether the office is open does not matter;
                NotLeaderOrFollower for a broker that holds no replica; OffsetOutOfRange.
        """
        self._require_role(leader_epoch)
        if broker not in self._progress:
            raise NotLeaderOrFollower(f"Broker {broker} holds no replica of {self!r}.")
        diverging = self._divergence(offset, last_epoch)
        if diverging is not None:
            return diverging
        found = self.log.read(offset, max_bytes, self.log.log_end_offset, min_one_batch)
        progress = self._progress[broker]
        if progress.incarnation != incarnation:
            # Another life: what its former one had says nothing about this one.
            progress = self._progress[broker] = Progress(incarnation, progress.caught_up_ms)
        has_moved = progress.log_end_offset != offset
        progress.record_fetch(offset, self.log.log_end_offset, now_ms)
        if has_moved:
            self._advance_high_watermark()
        return found

    def is_in_sync(self, broker: int) -> bool:
        return self.state is not None and broker in self.state.isr

    def was_caught_up(self, broker: int, at_ms: int) -> None:
        """A follower that had everything has fetched on, lastly at `at_ms`, and told of no change."""
        progress = self._progress.get(broker)
        if progress is not None:
            progress.was_at_end(at_ms)

    def _divergence(self, offset: int, last_epoch: int) -> Divergence | None:
        """Where the leader's log leaves the follower's; None if the follower's is a part of it."""
        if last_epoch == UNDEFINED_EPOCH:
            return None
        epoch, end_offset = self.log.epochs.end_offset_for(last_epoch, self.log.log_end_offset)
        if epoch < last_epoch or end_offset < offset:
            return Divergence(epoch, end_offset)
        return None

    def propose_isr(
        self, incarnations: Mapping[int, int], now_ms: int, lag_max_ms: int
    ) -> PartitionState | None:
        """The state to write if the in-sync set should change; None if not, or if one is under way.

        A follower joins when it has reached the high watermark and the start of this leader's epoch, in the
        life that its broker lives now; it leaves when it is no longer caught up. A dead broker is left to the
        controller.

        Args:
            incarnations: the present life of each live broker.
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
                if broker == self._local_broker_id:
                    isr.append(broker)
                continue
            same_life = incarnations.get(broker) == progress.incarnation
            if broker in self.state.isr:
                if broker not in incarnations or progress.is_caught_up(end_offset, now_ms, lag_max_ms):
                    isr.append(broker)
            elif same_life and progress.log_end_offset >= max(self._high_watermark, self._epoch_start_offset):
                isr.append(broker)
                joined[broker] = progress.incarnation
        min_insync_replicas = self.log.config.min_insync_replicas
        # A setting that was lowered makes the set large enough: then nobody else may be eligible any more.
        clears_eligible = bool(self.state.elr) and len(isr) >= min_insync_replicas
        if set(isr) == set(self.state.isr) and not clears_eligible:
            return None
        self._pending = self.state.with_isr(isr, joined, self.log.config.min_insync_replicas)
        return self._pending

    def propose_handover(self, leader: int, incarnations: Mapping[int, int]) -> PartitionState | None:
        """The state to write so that another in-sync replica leads; None if it cannot, or one is under way.

        From now on clients are refused until it is known what became of it: there are never two leaders.

        Args:
            incarnations: the present life of each live broker.
        """
        if not self.is_leader or self._pending is not None or leader == self._local_broker_id:
            return None
        assert self.state is not None
        progress = self._progress.get(leader)
        if leader not in self.state.isr or progress is None:
            return None
        if progress.incarnation != incarnations.get(leader) or progress.log_end_offset < self._high_watermark:
            return None  # in its present life it has not shown yet that it has everything
        lives = {leader: progress.incarnation}
        self._pending = replace(
            self.state.with_isr(self.state.isr, lives, self.log.config.min_insync_replicas),
            leader=leader,
            leader_epoch=self.state.leader_epoch + 1,
            recovering=False,
        )
        return self._pending

    def isr_refused(self) -> None:
        """The proposal was not written, and it is certain that it will not be: propose anew."""
        self._pending = None
        if self.is_leader:
            self._advance_high_watermark()  # whom it would have taken in holds it back no longer

    def _maximal_isr(self) -> Collection[int]:
        assert self.state is not None
        return self.state.isr if self._pending is None else {*self.state.isr, *self._pending.isr}

    def _has_enough_in_sync(self) -> bool:
        """Whether records may count as committed: the set is large enough, and nobody outside may lead."""
        assert self.state is not None
        return len(self.state.isr) >= self._min_insync_replicas() and not self.state.elr

    def _min_insync_replicas(self) -> int:
        """What the setting asks for, or all replicas where there are fewer, as in Kafka.

        A topic with a single replica could otherwise never be written to where the default asks for two. Who
        is eligible comes out the same either way. Members of the state count as replicas, so that an
        assignment that is heard of late lowers nothing.
        """
        assert self.state is not None
        known = max(len(self.replicas), len(self.state.isr) + len(self.state.elr))
        return min(self.log.config.min_insync_replicas, known)

    def settings_changed(self) -> None:
        """The log has new settings, maybe min.insync.replicas."""
        if self.is_leader:
            self._advance_high_watermark()

    def _advance_high_watermark(self) -> None:
        mark = self.log.log_end_offset
        for broker in self._maximal_isr():
            if broker != self._local_broker_id:
                progress = self._progress.get(broker)
                end_offset = UNKNOWN_OFFSET if progress is None else progress.log_end_offset
                if end_offset <= self._high_watermark:
                    return  # as when most records are appended and most followers fetch
                mark = min(mark, end_offset)
        if mark > self._high_watermark and self._has_enough_in_sync():
            self._high_watermark = mark
            self._settle()
            _call_all(self._listeners)

    def _settle(self) -> None:
        assert self.state is not None
        while self._acknowledgements and self._acknowledgements[0].offset <= self._high_watermark:
            acknowledgement = self._acknowledgements.popleft()
            acknowledgement.settle(acknowledgement, None)

    def _refuse_if_too_few(self) -> None:
        """Tell whoever waits at once that the in-sync set has become too small, not after a timeout."""
        assert self.state is not None
        if not self._has_enough_in_sync():
            self._give_up_waiting(NotEnoughReplicasAfterAppend(f"{self!r} lost in-sync replicas."))

    def _give_up_waiting(self, error: ProtocolError) -> None:
        waiting, self._acknowledgements = self._acknowledgements, deque()
        for acknowledgement in waiting:
            acknowledgement.settle(acknowledgement, error)

    # --- Follower ---

    def fetch_position(self) -> tuple[int, int]:
        """(offset to fetch next, latest epoch here; one that began here may have no record yet)."""
        return self.log.log_end_offset, self.log.epochs.latest_epoch

    def append_from_leader(
        self, records: Buffer, *, leader_epoch: int, high_watermark: int, log_start_offset: int, now_ms: int
    ) -> None:
        """Take what the leader of `leader_epoch` sent: batches, its high watermark, where its log starts.

        Nothing is taken if the role has changed since it was asked for.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        if records:
            self.log.append_as_follower(records, now_ms)
        mark = min(high_watermark, self.log.log_end_offset)
        self._high_watermark = max(self._high_watermark, mark)
        if log_start_offset > self.log.log_start_offset:
            self.log.maybe_increment_log_start_offset(min(log_start_offset, self._high_watermark))

    def truncate_to_divergence(self, diverging: Divergence, *, leader_epoch: int) -> None:
        """Cut off what the leader does not have.

        The leader named an epoch not above ours and its end there. If this log has that epoch, both agree up
        to the lower of the two ends; if not, up to the end of the next lower epoch here, and the next
        fetch compares again.
        """
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        if diverging.epoch == UNDEFINED_EPOCH:
            self._truncate(self._high_watermark)
            return
        own_epoch, own_end = self.log.epochs.end_offset_for(diverging.epoch, self.log.log_end_offset)
        if own_epoch == diverging.epoch:
            self._truncate(min(own_end, diverging.end_offset))
        else:
            self._truncate(own_end if own_end >= 0 else diverging.end_offset)

    def start_over(self, offset: int, *, leader_epoch: int) -> None:
        """The leader no longer has what this log would need next: begin empty at the leader's log start."""
        if self.is_leader or leader_epoch != self.leader_epoch:
            return
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark = offset

    def _truncate(self, offset: int) -> None:
        self.log.truncate_to(offset)
        self._high_watermark = min(self._high_watermark, self.log.log_end_offset)

    # --- Throttling ---

    def throttles(self, follower: int) -> bool:
        """As leader: whether what `follower` gets counts against the limit on moves."""
        if self.state is None or follower in self.state.isr:
            return False
        named = throttled_replicas(self.log.config.leader_replication_throttled_replicas)
        return named(self.index, self._local_broker_id)

    @property
    def is_throttled(self) -> bool:
        """As follower: whether what this replica fetches counts against the limit on moves."""
        if self.state is None or self._local_broker_id in self.state.isr:
            return False
        named = throttled_replicas(self.log.config.follower_replication_throttled_replicas)
        return named(self.index, self._local_broker_id)

    # --- Waiting for progress ---

    def add_listener(self, listener: Callable[[], None], *, of_end: bool = False) -> None:
        """Call `listener` whenever high watermark or log start move up, or this replica's role changes.

        With `of_end` when followers have to be looked at: a batch was appended, role or in-sync set changed.
        """
        (self._end_listeners if of_end else self._listeners)[listener] = None

    def remove_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.pop(listener, None)
        self._end_listeners.pop(listener, None)

    def _notify(self) -> None:
        """The role has changed."""
        _call_all(self._end_listeners)
        _call_all(self._listeners)


def _call_all(listeners: dict[Callable[[], None], None]) -> None:
    for listener in tuple(listeners):
        listener()
