"""Faults that replicated logs have had, to be put back one at a time: each must be found.

The first five are classics of Kafka's history, and so is the last of `BUGS` (KAFKA-6975). The others were in
this broker until the simulation found them.
`put_back` patches the present process; use it in one that is thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mainstem_broker.cluster import controller, reassignment
from mainstem_broker.cluster.controller import Brokers, ElectionPolicy
from mainstem_broker.cluster.controllership import Controllership
from mainstem_broker.cluster.znodes import Claim
from mainstem_broker.cluster.zookeeper import Operation, SetData
from mainstem_broker.errors import OffsetOutOfRange, StorageError
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.protocol.batches import parse_batch_header
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.replica import partition
from mainstem_broker.replica.follower_grants import FollowerGrants
from mainstem_broker.replica.lease import Lease
from mainstem_broker.replica.partition import Partition
from mainstem_broker.replica.partition_state import PartitionState


def truncate_to_the_high_watermark() -> None:
    """As before KIP-101: a follower cuts its log at its own high watermark, and nobody compares epochs."""
    begin_role = Partition._begin_role

    def begin(self: Partition, state: PartitionState, old: PartitionState | None) -> None:
        begin_role(self, state, old)
        if not self.is_leader:
            with suppress(StorageError):  # a full disk is no bug
                self._truncate(self.high_watermark)

    Partition._begin_role = begin  # type: ignore[method-assign]  # the bug
    partition.find_divergence = lambda *_positions: None  # type: ignore[attr-defined]  # the bug


def advance_over_an_unconfirmed_set() -> None:
    """The high watermark goes by the set that was proposed, though ZooKeeper may refuse it."""

    def proposed(self: Partition) -> tuple[int, ...]:
        assert self.state is not None
        return (self._pending or self.state).isr

    Partition._maximal_isr = proposed  # type: ignore[method-assign]  # the bug


def let_a_stale_controller_write() -> None:
    """A controller's writes check nothing: neither that it still is the controller, nor what they replace.

    Either check alone keeps a stale controller's elections out.
    """

    async def write(self: Controllership, operations: Sequence[Operation]) -> None:
        await self._zookeeper.multi(
            [replace(each, version=-1) if isinstance(each, SetData) else each for each in operations]
        )

    Controllership.write = write  # type: ignore[method-assign]  # the bug


def elect_from_outside_the_in_sync_set() -> None:
    """The first live replica of the assignment leads."""
    elect = controller.elect

    def elect_anyone(
        state: PartitionState,
        replicas: tuple[int, ...],
        brokers: Brokers,
        policy: ElectionPolicy,
        claims: Mapping[int, Claim],
    ) -> PartitionState | None:
        live = [broker for broker in replicas if broker in brokers]
        if controller.has_valid_leader(state, brokers) or not live:
            return elect(state, replicas, brokers, policy, claims)
        return controller.elected(state, live[0], (live[0],), brokers, policy)

    controller.elect = elect_anyone


def acknowledge_before_the_followers() -> None:
    """acks=all is answered when the leader has the record."""
    Partition.acknowledged_offset = lambda self, acks: self.log.log_end_offset  # type: ignore[method-assign]  # the bug


def lead_in_a_later_life() -> None:
    """A broker that restarted goes on leading what it led before."""
    Partition.is_leader = property(  # type: ignore[method-assign,assignment]  # the bug
        lambda self: self.state is not None and self.state.leader == self.local_broker_id
    )


def go_on_in_the_same_epoch_when_replicas_go() -> None:
    """What a replica reported before it was moved away counts when it comes back, though its log is gone."""
    complete = reassignment.complete

    def complete_quietly(
        state: PartitionState, move: reassignment.Move, brokers: Brokers, policy: ElectionPolicy
    ) -> PartitionState | None:
        new = complete(state, move, brokers, policy)
        return None if new is None else replace(new, leader_epoch=state.leader_epoch)

    reassignment.complete = complete_quietly


def count_any_refusal_as_a_grant() -> None:
    """Also of a broker that led between its last grant and its death."""
    has_refused = Lease.has_refused

    def has_refused_ever(self: Lease, broker: int, covered_until_s: float) -> bool:
        return has_refused(self, broker, max(covered_until_s, math.inf))

    Lease.has_refused = has_refused_ever  # type: ignore[method-assign]  # the bug


def count_grants_of_a_follower_that_knows_a_later_epoch() -> None:
    """A leader that was cut off counts what a follower grants that has led after it."""

    def present_until_s(self: FollowerGrants, broker: int, leader_epoch: int) -> float:
        return self._present[broker][0].until_s if broker in self._present else -math.inf

    FollowerGrants._present_until_s = present_until_s  # type: ignore[method-assign]  # the bug


def refuse_a_batch_that_begins_below_an_empty_log() -> None:
    """A leader whose log starts inside a batch sends that batch whole: no replica can begin there."""
    append = PartitionLog.append_as_follower

    def append_from_the_end_on(self: PartitionLog, records: Buffer, now_ms: int) -> AppendInfo:
        if parse_batch_header(records).base_offset < self.log_end_offset:
            raise OffsetOutOfRange("The batch begins below the log's end.")
        return append(self, records, now_ms)

    PartitionLog.append_as_follower = append_from_the_end_on  # type: ignore[method-assign]  # the bug


BUGS: Final[Mapping[str, Callable[[], None]]] = {
    bug.__name__: bug
    for bug in (
        truncate_to_the_high_watermark,
        advance_over_an_unconfirmed_set,
        let_a_stale_controller_write,
        elect_from_outside_the_in_sync_set,
        acknowledge_before_the_followers,
        lead_in_a_later_life,
        go_on_in_the_same_epoch_when_replicas_go,
        count_any_refusal_as_a_grant,
        refuse_a_batch_that_begins_below_an_empty_log,
    )
}
RARE_BUGS: Final[Mapping[str, Callable[[], None]]] = {
    bug.__name__: bug for bug in (count_grants_of_a_follower_that_knows_a_later_epoch,)
}
"""Bugs that one history in thousands finds; the history changes with every change of the broker. So the
ordinary run does not look for them: unit tests hold the history itself (`replica/test_grants.py`)."""


def put_back(name: str) -> None:
    {**BUGS, **RARE_BUGS}[name]()
