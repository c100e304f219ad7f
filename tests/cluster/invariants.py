"""What must hold in every simulated history, whatever happens to it; raises `Violation` when it does not.

The ledger sees everything at once, as nobody in the cluster can: all disks, ZooKeeper's tree, the answers
to clients. "Trusted" means: in the in-sync set that ZooKeeper holds, without an unclean stop since the life
that was found in sync, and on a disk that works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tests.cluster.memory_log import MemoryLog, StoredBatch
from tests.cluster.simulated_zookeeper import ZooKeeperServer

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.reassignment import moving_partitions
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


class Ledger:
    """All that was promised, and the checks of it. `partition` is the number within the one topic."""

    def __init__(self, server: ZooKeeperServer, topic: str) -> None:
        self._server = server
        self.topic = topic
        self.brokers: Mapping[int, SimulatedBroker] = {}
        self._acknowledged: dict[int, dict[int, bytes]] = {}
        """By partition and offset: what was acknowledged with acks=all and not yet read."""
        self._read: dict[int, list[StoredBatch]] = {}
        """By partition: what the consumer has read, from offset 0 on without a gap."""
        self._leaders: dict[tuple[int, int], int] = {}
        self._appended_epoch: dict[int, int] = {}
        self._latest: dict[int, int] = {}
        self._violations: list[Violation] = []
        """Seen where raising would only stop the broker that did it."""
        self.acknowledgements = self.reads = 0
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
                self._has_all(partition, broker, self._stored(broker, partition))
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
        """A client received that the record is at `offset`, and safe."""
        self.acknowledgements += 1
        read = self._read.setdefault(partition, [])
        if offset < len(read):
            current = read[offset].batch
        else:
            current = self._acknowledged.setdefault(partition, {}).setdefault(offset, batch)
        if current != batch:
            raise Violation(f"{partition}: offset {offset} is acknowledged for a record, and has another one")

    def consumed(self, partition: int, stored: StoredBatch) -> None:
        """The consumer has read the next record."""
        self.reads += 1
        read = self._read.setdefault(partition, [])
        if stored.offset != len(read):
            raise Violation(f"{partition}: offset {stored.offset} was read after {len(read) - 1}")
        promised = self._acknowledged.setdefault(partition, {}).pop(stored.offset, stored.batch)
        if promised != stored.batch:
            raise Violation(
                f"{partition}: offset {stored.offset} was acknowledged for another record than is read"
            )
        read.append(stored)

    def consumed_from_follower(self, partition: int, stored: StoredBatch) -> None:
        """Another consumer has read this record from a follower (KIP-392): no other may be there, ever."""
        self.reads += 1
        read = self._read.setdefault(partition, [])
        if stored.offset < len(read):
            promised = read[stored.offset].batch
        else:
            promised = self._acknowledged.setdefault(partition, {}).setdefault(stored.offset, stored.batch)
        if promised != stored.batch:
            raise Violation(f"{partition}: a follower has another record at offset {stored.offset}")

    def latest(self, partition: int, offset: int, epoch: int) -> None:
        """A leader of `epoch` answers a consumer that the partition ends at `offset` (ListOffsets)."""
        if self._is_deposed(partition, epoch):
            return
        if offset < self._latest.get(partition, 0):
            self._violations.append(
                Violation(f"{partition}: the end went back from {self._latest[partition]} to {offset}")
            )
        self._latest[partition] = offset

    def out_of_range(self, partition: int, offset: int, epoch: int) -> None:
        """A leader of `epoch` answers a consumer that has read up to `offset` that it ends earlier."""
        if not self._is_deposed(partition, epoch):
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
            contents = {broker: self._stored(broker, partition) for broker in self._trusted(partition, state)}
            for broker, batches in contents.items():
                self._has_all(partition, broker, batches)
            self._agree(partition, contents)

    def check_ends(self) -> None:
        """After all is well again: every replica has the same log, and in it all that was promised."""
        for partition, members in self.replicas().items():
            for broker in members:
                log = self._log(broker, partition)
                self._has_all(partition, broker, log.batches)
                if log.batches != self._log(members[0], partition).batches:
                    raise Violation(
                        f"{partition}: brokers {members[0]} and {broker} hold different logs at the end"
                    )
        for partition, broker in self.left_behind():
            raise Violation(
                f"{partition}: broker {broker} still has a log that was moved to {self.replicas()[partition]}"
            )

    def contents(self, partition: int) -> bytes:
        """All of the leader's log."""
        return b"".join(stored.batch for stored in self.log_of_leader(partition))

    def log_of_leader(self, partition: int) -> Sequence[StoredBatch]:
        state = self.state(partition)
        assert state is not None
        return self._log(state.leader, partition).batches

    def all_in_sync(self) -> bool:
        """Whether no replica is being moved, and every partition is led and has all replicas in sync."""
        return not moving_partitions(self._assignment()) and all(
            state is not None and state.leader >= 0 and set(state.isr) == set(members)
            for partition, members in self.replicas().items()
            for state in [self.state(partition)]
        )

    def all_level(self) -> bool:
        """Whether all replicas have the same log: one as long may have another end, yet to be cut off."""
        return all(
            self._stored(broker, partition) == self._stored(members[0], partition)
            for partition, members in self.replicas().items()
            for broker in members
        )

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
            and self.is_unbroken(state, broker)
            and self._server.get(znodes.broker_path(broker)) is not None
            and not self.brokers[broker].is_offline(self.topic, partition)
        ]

    def _log(self, broker: int, partition: int) -> MemoryLog:
        log = self.brokers[broker].disks.logs.get((self.topic, partition))
        if log is None:
            raise Violation(f"{partition}: broker {broker} has no log")
        return log

    def _stored(self, broker: int, partition: int) -> list[StoredBatch]:
        """What a replica has, from offset 0 on; nothing before its broker has opened the log.

        The first in-sync set of a partition names brokers that have not heard of it yet.
        """
        log = self.brokers[broker].disks.logs.get((self.topic, partition))
        return [] if log is None else log.batches

    def _has_all(self, partition: int, broker: int, batches: Sequence[StoredBatch]) -> None:
        read = self._read.get(partition, [])
        if batches[: len(read)] != read:
            raise Violation(f"{partition}: in-sync broker {broker} misses a record that was read")
        for offset, batch in self._acknowledged.get(partition, {}).items():
            if offset >= len(batches) or batches[offset].batch != batch:
                raise Violation(
                    f"{partition}: in-sync broker {broker} misses offset {offset}, which was acknowledged;"
                    f" its log ends at {len(batches)}"
                )

    def _agree(self, partition: int, contents: Mapping[int, Sequence[StoredBatch]]) -> None:
        """Logs of the in-sync set agree below the high watermark."""
        marks = [
            replica.high_watermark
            for broker in contents
            if (replica := self.brokers[broker].replicas.find(self.topic, partition)) is not None
            and replica.is_leader
        ]
        if not marks:
            return
        committed = [batches[: max(marks)] for batches in contents.values()]
        if any(batches != committed[0] for batches in committed):
            raise Violation(f"{partition}: in-sync logs differ below the high watermark {max(marks)}")
