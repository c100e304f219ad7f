"""A partition's state in ZooKeeper, as a value: its leader, the leader's epoch, the trusted replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition; its znode's version is `partition_epoch`.

    - `leader`: broker id, -1 for none. `leader_epoch` grows with every election (KIP-101), and when replicas
      are moved away.
    - `isr`: brokers that have every record below the high watermark; the last one never leaves.
    - `elr`: brokers that left the in-sync set while it was too small for acks=all. Nothing was acknowledged
      since, so they still have every acknowledged record and may lead when no member of `isr` can (KIP-966).
    - `incarnations`: for each broker of both, the incarnation in which it was found in sync. One that has
      since come back from an unclean stop may have lost the end of its log and is not trusted (KIP-903).
    - `controller_epoch`: of the controller that wrote the last election.
    - `recovering`: the leader was elected from outside both sets, and records may have been lost.
    - `partition_epoch`: grows with every write.
    - `assignment_version`: that of the topic's assignment with which replicas were last moved away. A broker
      that does not have this assignment yet ignores the state: it may hold no replica any more.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    partition_epoch: int = 0
    recovering: bool = False
    elr: tuple[int, ...] = ()
    incarnations: Mapping[int, int] = field(default_factory=dict)
    assignment_version: int = 0

    def with_isr(
        self, isr: Iterable[int], incarnations: Mapping[int, int], min_insync_replicas: int
    ) -> PartitionState:
        """The state after the in-sync set became `isr`; `incarnations` are those of its new members.

        Members that leave a set which is or becomes too small become eligible leader replicas. When the set
        is large enough again, there are none.
        """
        members = tuple(isr)
        left = [broker for broker in self.isr + self.elr if broker not in members]
        elr = tuple(left) if len(members) < min_insync_replicas else ()
        merged = {**self.incarnations, **incarnations}
        return replace(
            self,
            isr=members,
            elr=elr,
            incarnations={broker: merged[broker] for broker in members + elr if broker in merged},
            partition_epoch=self.partition_epoch + 1,
        )
