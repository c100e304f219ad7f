"""Faults that transactions and compaction could have, to be put back one at a time: each must be found.

`put_back` patches the present process; use it in one that is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from tests.cluster.transactions import broker

from mainstem_broker.config.topic_settings import TopicConfig
from mainstem_broker.coordinator.journal import Journal
from mainstem_broker.group.shard import GroupShard
from mainstem_broker.log.compaction import compaction_pass
from mainstem_broker.log.compaction.facts import SegmentFacts
from mainstem_broker.log.compaction.messages import CompactionJob
from mainstem_broker.log.compaction.plan import group_segments
from mainstem_broker.log.compaction.records import Flags, RecordTable
from mainstem_broker.log.compaction.rewrite import Rules, surviving
from mainstem_broker.log.producers import Producers
from mainstem_broker.log.transactions import Transactions
from mainstem_broker.txn import shard as transaction_shard
from mainstem_broker.txn.markers import Markers
from mainstem_broker.txn.shard import CoordinatedTransaction, TransactionShard
from mainstem_broker.txn.transaction import Transaction


def patch(owner: Any, name: str, value: object) -> None:
    """Put a bug into a class or module."""
    setattr(owner, name, value)


def send_markers_before_the_decision_is_replicated() -> None:
    """The markers are on their way when the decision is only in the coordinator's own log."""
    write = TransactionShard.write

    def write_and_send(
        self: TransactionShard, coordinated: CoordinatedTransaction, changed: Transaction
    ) -> Any:
        written = write(self, coordinated, changed)
        if changed.state.is_prepared and coordinated.pending is changed:
            markers = Markers(
                changed.producer_id,
                changed.epoch,
                self._coordinator_epoch,
                changed.is_committed,
                changed.client_version,
                changed.partitions,
            )
            self._markers.write(markers, lambda: None)
        return written

    patch(TransactionShard, "write", write_and_send)


def send_markers_without_the_coordinators_epoch() -> None:
    """A coordinator that was replaced is not distinguished from the present one."""

    class EpochlessMarkers(Markers):
        __slots__ = ()

        def __init__(self, producer_id: int, epoch: int, coordinator_epoch: int, *rest: Any) -> None:
            super().__init__(producer_id, epoch, min(coordinator_epoch, 0), *rest)

    patch(transaction_shard, "Markers", EpochlessMarkers)


def move_the_last_stable_offset_before_the_markers() -> None:
    """Consumers of committed records read up to the high watermark."""
    patch(Transactions, "_update", _nothing_is_unstable)


def _nothing_is_unstable(self: Transactions) -> None:
    self.first_unstable_offset = 2**63 - 1


def show_offsets_before_their_transaction_ends() -> None:
    """An offset counts as soon as it is replicated."""
    add = GroupShard.commit_in_transaction

    def commit(self: GroupShard, group: Any, producer: Any, offsets: Any) -> Any:
        first_offset = self.journal.end_offset
        committed = add(self, group, producer, offsets)
        for record_offset, (partition, offset) in enumerate(offsets.items(), first_offset):
            group.offsets.put(partition, offset, record_offset)
        return committed

    patch(GroupShard, "commit_in_transaction", commit)


def forget_offsets_of_open_transactions_at_a_failover() -> None:
    """The next group coordinator does not know what a marker that comes later commits."""
    restore = GroupShard.restore

    async def restore_without(self: GroupShard) -> None:
        await restore(self)
        self.pending_offsets.clear()

    patch(GroupShard, "restore", restore_without)


def leave_decided_transactions_to_the_former_coordinator() -> None:
    """The next coordinator does not send the markers of what was decided before it."""
    restore = TransactionShard.restore

    async def restore_only(self: TransactionShard) -> None:
        patch(self, "_write_markers", lambda _: None)
        try:
            await restore(self)
        finally:
            del self._write_markers

    patch(TransactionShard, "restore", restore_only)


def drop_tombstones_while_older_segments_have_their_keys() -> None:
    """A pass rewrites only what it has not seen before, and drops tombstones at once."""
    run = compaction_pass.run
    first_dirty_offset = 0

    def group_dirty(
        segments: Sequence[SegmentFacts], config: TopicConfig, end_offset: int
    ) -> list[tuple[SegmentFacts, ...]]:
        dirty = [segment for segment in segments if segment.end_offset > first_dirty_offset]
        return group_segments(dirty, config, end_offset)

    def surviving_values(table: RecordTable, newest: Any, aborted: Flags, rules: Rules) -> Flags:
        stays = surviving(table, newest, aborted, rules)
        is_covered = np.asarray(table.offsets < rules.map_end_offset)
        result: Flags = stays & (table.has_value | ~is_covered)
        return result

    def run_over_the_dirty_part(job: CompactionJob, *rest: Any) -> Iterator[Any]:
        nonlocal first_dirty_offset
        first_dirty_offset = job.first_dirty_offset
        yield from run(job, *rest)

    patch(compaction_pass, "group_segments", group_dirty)
    patch(compaction_pass, "surviving", surviving_values)
    patch(broker, "run_compaction", run_over_the_dirty_part)


def compact_by_records_of_aborted_transactions() -> None:
    """The newest record of a key counts, also if its transaction was aborted."""
    add_batches = compaction_pass._add_batches

    def add_all(table: RecordTable, aborted: Flags, *rest: Any) -> int:
        return add_batches(table, np.zeros_like(aborted), *rest)

    patch(compaction_pass, "_add_batches", add_all)


def begin_transactions_without_the_coordinator() -> None:
    """As before KIP-890: a batch that comes late begins a transaction that nobody ends."""
    patch(Producers, "is_verified", lambda self, producer_id, verification: True)
    patch(Producers, "must_verify", lambda self, header: False)


def keep_the_verification_when_a_marker_is_skipped() -> None:
    """A marker that is not written leaves a batch verified whose transaction it has ended."""
    patch(Producers, "void_verification", lambda self, producer_id: None)


def leave_transactions_open_past_their_timeout() -> None:
    """A transaction whose producer has vanished is aborted only when another instance comes."""
    patch(TransactionShard, "_abort_timed_out", lambda self, now_ms: None)


def append_repeated_batches_again() -> None:
    """A batch that comes again, as its answer was lost, is written again."""
    check = Producers.check

    def check_sequence(self: Producers, header: Any) -> Any:
        check(self, header)

    patch(Producers, "check", check_sequence)


def answer_the_end_before_it_is_replicated() -> None:
    """A client hears of its commit when only the coordinator has it."""
    append = Journal.append

    def append_and_answer(self: Journal, entries: Any, now_ms: int, settle: Any, apply: Any) -> None:
        append(self, entries, now_ms, lambda _: None, apply)
        settle(None)

    def write(self: TransactionShard, coordinated: CoordinatedTransaction, changed: Transaction) -> Any:
        patch(Journal, "append", append_and_answer if changed.state.is_prepared else append)
        try:
            return original(self, coordinated, changed)
        finally:
            patch(Journal, "append", append)

    original = TransactionShard.write
    patch(TransactionShard, "write", write)


BUGS: Final[Mapping[str, Callable[[], None]]] = {
    bug.__name__: bug
    for bug in (
        send_markers_before_the_decision_is_replicated,
        send_markers_without_the_coordinators_epoch,
        move_the_last_stable_offset_before_the_markers,
        show_offsets_before_their_transaction_ends,
        forget_offsets_of_open_transactions_at_a_failover,
        leave_decided_transactions_to_the_former_coordinator,
        drop_tombstones_while_older_segments_have_their_keys,
        compact_by_records_of_aborted_transactions,
        begin_transactions_without_the_coordinator,
        keep_the_verification_when_a_marker_is_skipped,
        leave_transactions_open_past_their_timeout,
        append_repeated_batches_again,
        answer_the_end_before_it_is_replicated,
    )
}


def put_back(name: str) -> None:
    BUGS[name]()
