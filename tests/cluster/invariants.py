"""What must hold in every simulated history, whatever happens to it; raises `Violation` when it does not.

The ledger sees everything at once, as nobody in the cluster can: all disks, ZooKeeper's tree, the answers
to clients. "Trusted" means: in the in-sync set that ZooKeeper holds, without an unclean stop since the life
that was found in sync, and on a disk that works.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.cluster.memory_log import MemoryLog
from tests.cluster.simulated_zookeeper import ZooKeeperServer

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.reassignment import moving_partitions
from mainstem_broker.protocol.batches import STAMP_BYTES, BatchHeader, parse_batch_header
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState

if TYPE_CHECKING:
    from tests.cluster.simulated_broker import SimulatedBroker


# The same few nodes are looked at every some milliseconds of virtual time.
_decode_assignment: Final = lru_cache(64)(znodes.TopicAssignment.decode)
_decode_state: Final = lru_cache(64)(znodes.decode_state)
_decode_incarnation: Final = lru_cache(64)(znodes.decode_incarnation)


class Violation(AssertionError):
    """An invariant does not hold."""


class _Promise(NamedTuple):
    """A batch that must be there: its offsets up to before `next_offset`, and its bytes after what leaders
    stamp."""

    next_offset: int
    content: bytes


@dataclass(slots=True)
class _Promises:
    """What was promised of one partition, from `floor` on: what lies before it may be deleted.

    - `read`: the batches that the consumer has read, one after another, from the one that holds `floor` on.
    - `read_end`: the offset after them.
    - `read_contents`: their contents, by base offset.
    - `others`: by base offset, what was acknowledged with acks=all, or read from a follower, and that the
      consumer has not read yet.
    """

    floor: int = 0
    read: bytearray = field(default_factory=bytearray)
    read_end: int = 0
    read_contents: dict[int, bytes] = field(default_factory=dict)
    others: dict[int, _Promise] = field(default_factory=dict)

    def raise_floor(self, offset: int) -> None:
        self.floor = offset
        gone_bytes = 0
        while gone_bytes < len(self.read):
            header = parse_batch_header(self.read, gone_bytes)
            if header.next_offset > offset:
                break
            del self.read_contents[header.base_offset]
            gone_bytes += header.size_bytes
        del self.read[:gone_bytes]
        self.read_end = max(self.read_end, offset)
        self.others = {base: promise for base, promise in self.others.items() if promise.next_offset > offset}


class Ledger:
    """All that was promised, and the checks of it. `partition` is the number within the one topic."""

    def __init__(self, server: ZooKeeperServer, topic: str) -> None:
        self._server = server
        self.topic = topic
        self.brokers: Mapping[int, SimulatedBroker] = {}
        self._promises: defaultdict[int, _Promises] = defaultdict(_Promises)
        self._high_watermarks: dict[tuple[int, int], tuple[Partition, int]] = {}
        """By broker and partition: the highest of a replica in the broker's present life."""
        self._leaders: dict[tuple[int, int], int] = {}
        self._appended_epoch: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        self._violations: list[Violation] = []
        """Seen where raising would only stop the broker that did it."""
        self.acknowledgements = self.reads = 0
        self.restored_epoch = -1
        """The controller epoch of the backup from which ZooKeeper was restored last."""
        self.leaderships_are_exclusive = True
        """Until a broker that lives is taken for dead: only acks=all is safe then."""
        server.on_write = self._written

    # --- Events ---

    def leads(self, broker: int, partition: Partition) -> None:
        """`broker` believes to lead."""
        key = (partition.index, partition.leader_epoch)
        leader = self._leaders.setdefault(key, broker)
        if leader != broker:
            self._violations.append(
                Violation(f"{partition!r}: brokers {leader} and {broker} both lead epoch {key[1]}")
            )

    def _written(self, path: str, before: bytes, after: bytes, session: int) -> None:
        """A node's data changes.

        Who joins an in-sync set has what was read, at once: it would soon have caught up anyway. The present
        controller elects, and a leader may hand over what it leads.
        """
        if not path.endswith("/state"):
            return
        old, new = znodes.decode_state(before, 0), znodes.decode_state(after, 0)
        partition = int(path.split("/")[-2])
        try:
            for broker in set(self._trusted(partition, new)).difference(old.isr):
                self._has_all(partition, broker)
        except Violation as violation:
            self._violations.append(violation)
        if new.leader_epoch == old.leader_epoch:
            return
        epoch_node = self._server.get(znodes.CONTROLLER_EPOCH)
        assert epoch_node is not None
        leader = self._server.get(znodes.broker_path(old.leader))
        hands_over = (
            leader is not None
            and leader.ephemeral_owner == session
            and self._holds(old.leader, leader.data, old.incarnations.get(old.leader, -1))
            and new.leader in old.isr
        )
        if leader is None and old.leader in self.brokers and not self.leaderships_are_exclusive:
            # A broker that lives and was taken for dead leads until the controller has elected another one,
            # and may hand over until then: the write is conditional, and whom it names is in sync.
            hands_over = (
                self.brokers[old.leader].zookeeper.session_id == session
                and old.incarnations == new.incarnations
                and new.leader in old.isr
            )
        if new.controller_epoch != int(epoch_node.data) and not hands_over:
            self._violations.append(
                Violation(
                    f"{path}: a controller of epoch {new.controller_epoch} elected after one of epoch"
                    f" {int(epoch_node.data)} had taken its place"
                )
            )

    def appended(self, partition: int, epoch: int) -> None:
        """A leader has taken a record of a client, in its epoch, just now."""
        latest = self._appended_epoch.get(partition, -1)
        if epoch < latest and self.leaderships_are_exclusive:
            self._violations.append(
                Violation(f"{partition}: a leader of epoch {epoch} takes records after one of {latest} did")
            )
        self._appended_epoch[partition] = epoch

    def acknowledge(self, partition: int, offset: int, batch: bytes) -> None:
        """A client received that the batch is at `offset`, and safe."""
        self.acknowledgements += 1
        if not self._is_kept(partition, offset, batch):
            raise Violation(f"{partition}: offset {offset} is acknowledged for a batch, and has another one")

    def consumed_from_follower(self, partition: int, offset: int, batch: bytes) -> None:
        """Another consumer has read this batch from a follower (KIP-392): no other may be there, ever."""
        self.reads += 1
        if not self._is_kept(partition, offset, batch):
            raise Violation(f"{partition}: a follower has another batch at offset {offset}")

    def _is_kept(self, partition: int, offset: int, batch: bytes) -> bool:
        """Take a promise; whether no other one contradicts it."""
        promises = self._promises[partition]
        next_offset = offset + parse_batch_header(batch).last_offset_delta + 1
        if next_offset <= promises.floor:
            return True
        content = batch[STAMP_BYTES:]
        if promises.read and offset < promises.read_end:
            return promises.read_contents.get(offset) == content
        promise = _Promise(next_offset, content)
        return promises.others.setdefault(offset, promise) == promise

    def consumed(self, partition: int, position: int, header: BatchHeader, batch: bytes) -> None:
        """The consumer, which is at `position`, has read the next batch."""
        self.reads += 1
        if not header.base_offset <= position < header.next_offset:
            raise Violation(f"{partition}: a batch from {header.base_offset} on was read at {position}")
        promises = self._promises[partition]
        if header.next_offset <= promises.floor:
            return
        if header.base_offset != promises.read_end and (
            promises.read or not header.base_offset <= promises.read_end < header.next_offset
        ):
            raise Violation(
                f"{partition}: offset {header.base_offset} was read after {promises.read_end - 1}"
            )
        promise = _Promise(header.next_offset, batch[STAMP_BYTES:])
        if promises.others.pop(header.base_offset, promise) != promise:
            raise Violation(
                f"{partition}: offset {header.base_offset} was promised for another batch than is read"
            )
        promises.read += batch
        promises.read_end = header.next_offset
        promises.read_contents[header.base_offset] = promise.content

    def deleted(self, partition: int, offset: int) -> None:
        """A replica has deleted what lies before `offset`, as somebody asked, or by the topic's retention."""
        if offset > self._promises[partition].floor:
            self._promises[partition].raise_floor(offset)

    def latest(self, partition: int, offset: int, epoch: int) -> None:
        """A leader of `epoch` answers a consumer that the partition ends at `offset` (ListOffsets)."""
        if self._is_deposed(partition, epoch):
            return
        if offset < self._latest.get(partition, 0):
            self._violations.append(
                Violation(f"{partition}: the end went back from {self._latest[partition]} to {offset}")
            )
        self._latest[partition] = offset

    def out_of_range(self, partition: int, offset: int, leader: Partition) -> None:
        """A leader answers a consumer that goes on at `offset` that it ends earlier, or starts later."""
        if offset >= leader.log.log_start_offset and not self._is_deposed(partition, leader.leader_epoch):
            self._violations.append(Violation(f"{partition}: a consumer at offset {offset} was sent away"))

    def _is_deposed(self, partition: int, epoch: int) -> bool:
        """Whether a leader that was wrongly taken for dead answers; clients know by its epoch (KIP-320)."""
        state = self.state(partition)
        return not self.leaderships_are_exclusive and state is not None and epoch < state.leader_epoch

    def disk_failed(self, broker: SimulatedBroker, elsewhere: Iterable[Partition]) -> None:
        """`broker` has taken a data directory out of use; `elsewhere` are its other replicas (R8)."""
        if missing := [each for each in elsewhere if broker.replicas.find(each.topic, each.index) is None]:
            self._violations.append(
                Violation(f"broker {broker.broker_id} lost {missing} by the failure of another disk")
            )

    # --- The whole ---

    def check(self) -> None:
        """Everything that can be seen at one moment."""
        if self._violations:
            raise self._violations[0]
        for partition in self.partitions():
            state = self.state(partition)
            if state is None:
                continue
            holders = self.replicas()[partition]
            if not set(state.isr + state.elr) <= set(holders):
                raise Violation(f"{partition}: {state} names a broker that is not one of {holders}")
            contents = {
                broker: self._has_all(partition, broker) for broker in self._trusted(partition, state)
            }
            self._agree(partition, contents)
            for broker in holders:
                self._check_offsets(partition, broker)

    def check_ends(self) -> None:
        """After all is well again: every replica has the same log, and in it all that was promised."""
        for partition, members in self.replicas().items():
            contents = []
            for broker in members:
                self._log(broker, partition)
                contents.append(self._has_all(partition, broker))
                if contents[-1] != contents[0]:
                    raise Violation(
                        f"{partition}: brokers {members[0]} and {broker} hold different logs at the end"
                    )
        for partition, broker in self.left_behind():
            raise Violation(
                f"{partition}: broker {broker} still has a log that was moved to {self.replicas()[partition]}"
            )

    def contents(self, partition: int) -> bytes:
        """All of the leader's log that no replica has deleted."""
        return self.log_of_leader(partition).content_from(self._promises[partition].floor)

    def log_of_leader(self, partition: int) -> MemoryLog:
        state = self.state(partition)
        assert state is not None
        return self._log(state.leader, partition)

    def all_in_sync(self) -> bool:
        """Whether no replica is being moved, and every partition is led and has all replicas in sync."""
        return not moving_partitions(self._assignment()) and all(
            state is not None and state.leader >= 0 and set(state.isr) == set(members)
            for partition, members in self.replicas().items()
            for state in [self.state(partition)]
        )

    def all_level(self) -> bool:
        """Whether all replicas have the same log: one as long may have another end, yet to be cut off.

        Followers delete what their leader has deleted.
        """
        for partition, members in self.replicas().items():
            leader = self.log_of_leader(partition)
            content = self.contents(partition)
            for broker in members:
                log = self._log(broker, partition)
                if (
                    log.log_end_offset != leader.log_end_offset
                    or log.log_start_offset < leader.log_start_offset
                    or self._content(broker, partition) != content
                ):
                    return False
        return True

    def left_behind(self) -> list[tuple[int, int]]:
        """Partitions and brokers that have a log of them, though it was moved to others.

        A move ends without those that it takes a log from: one that is paused or cut off then hears of it in
        its next session, and deletes the log at the end of the pass that registers it.
        """
        return [
            (partition, broker)
            for partition, members in self.replicas().items()
            for broker in sorted(self.brokers.keys() - set(members))
            if (self.topic, partition) in self.brokers[broker].disks.logs
        ]

    def replicas(self) -> Mapping[int, tuple[int, ...]]:
        """Who holds which partition, or is to hold it."""
        return self._assignment().replicas

    def _assignment(self) -> znodes.TopicAssignment:
        node = self._server.get(znodes.topic_path(self.topic))
        assert node is not None
        return _decode_assignment(self.topic, node.data, node.version)

    def life(self, broker: int) -> int:
        """The number of the broker's present incarnation."""
        node = self._server.get(znodes.incarnation_path(broker))
        return -1 if node is None else node.version

    def _holds(self, broker: int, data: bytes, incarnation: int) -> bool:
        """Whether what was given to `incarnation` is the broker's present process's."""
        registration = znodes.BrokerRegistration.decode(broker, data, 0)
        return replace(registration, incarnation=self.life(broker)).holds(incarnation)

    def is_unbroken(self, state: PartitionState, broker: int) -> bool:
        """Whether no life of the broker's began uncleanly since the one that was found in sync.

        A later life that began well changes nothing: nobody writes the state anew for it.
        """
        node = self._server.get(znodes.incarnation_path(broker))
        return node is not None and state.incarnations.get(broker, -1) >= _decode_incarnation(node.data)

    def partitions(self) -> list[int]:
        return [int(name) for name in self._server.children(znodes.partitions_path(self.topic))]

    def state(self, partition: int) -> PartitionState | None:
        node = self._server.get(znodes.state_path(self.topic, partition))
        return None if node is None else _decode_state(node.data, node.version)

    def _trusted(self, partition: int, state: PartitionState) -> list[int]:
        return [
            broker
            for broker in state.isr
            if self.brokers[broker].joined
            and state.controller_epoch > self.restored_epoch
            and self.is_unbroken(state, broker)
            and self._server.get(znodes.broker_path(broker)) is not None
            and not self.brokers[broker].is_offline(self.topic, partition)
        ]

    def _log(self, broker: int, partition: int) -> MemoryLog:
        log = self.brokers[broker].disks.logs.get((self.topic, partition))
        if log is None:
            raise Violation(f"{partition}: broker {broker} has no log")
        return log

    def _content(self, broker: int, partition: int) -> bytes:
        """What a replica has, from where no replica has deleted anything; nothing before its broker has
        opened the log.

        The first in-sync set of a partition names brokers that have not heard of it yet.
        """
        log = self.brokers[broker].disks.logs.get((self.topic, partition))
        return b"" if log is None else log.content_from(self._promises[partition].floor)

    def _has_all(self, partition: int, broker: int) -> bytes:
        """Check that a replica has all that was promised, and return its content."""
        promises = self._promises[partition]
        content = self._content(broker, partition)
        if not content.startswith(promises.read):
            raise Violation(f"{partition}: in-sync broker {broker} misses a record that was read")
        if promises.others:
            log = self.brokers[broker].disks.logs.get((self.topic, partition))
            for offset, promise in promises.others.items():
                batch = None if log is None else log.batch_at(offset)
                if batch is None or batch[STAMP_BYTES:] != promise.content:
                    raise Violation(
                        f"{partition}: in-sync broker {broker} misses offset {offset}, which was"
                        f" acknowledged; its log ends at {0 if log is None else log.log_end_offset}"
                    )
        return content

    def _agree(self, partition: int, contents: Mapping[int, bytes]) -> None:
        """Logs of the in-sync set agree below the high watermark, from where nothing is deleted on."""
        leaders = [
            (replica.high_watermark, broker)
            for broker in contents
            if (replica := self.brokers[broker].replicas.find(self.topic, partition)) is not None
            and replica.is_leader
        ]
        if not leaders:
            return
        mark, leader = max(leaders)
        above_bytes = len(self._log(leader, partition).content_from(mark))
        size_bytes = max(len(contents[leader]) - above_bytes, 0)
        committed = [content[:size_bytes] for content in contents.values()]
        if any(content != committed[0] for content in committed):
            raise Violation(f"{partition}: in-sync logs differ below the high watermark {mark}")

    def _check_offsets(self, partition: int, broker: int) -> None:
        """Log start <= high watermark <= log end. The first rises for a reason, the second never falls."""
        log = self.brokers[broker].disks.logs.get((self.topic, partition))
        if log is None:
            return
        start, end = log.log_start_offset, log.log_end_offset
        if start > self._promises[partition].floor:
            raise Violation(
                f"{partition}: the log of broker {broker} starts at {start}, and nobody has deleted more than"
                f" what lies before {self._promises[partition].floor}"
            )
        replica = self.brokers[broker].replicas.find(self.topic, partition)
        if replica is None or not self.brokers[broker].joined:
            return
        mark = replica.high_watermark
        if not start <= mark <= end:
            raise Violation(
                f"{partition}: the high watermark {mark} of broker {broker} is not in {start} to {end}"
            )
        known, highest = self._high_watermarks.get((broker, partition), (replica, 0))
        if known is replica and mark < highest:
            raise Violation(
                f"{partition}: the high watermark of broker {broker} fell from {highest} to {mark}"
            )
        self._high_watermarks[broker, partition] = replica, mark
