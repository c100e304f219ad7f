"""Transactions against a list of all that was written: whatever is done to a log in whatever order.

A reader with isolation level read_committed, which leaves out what the log lists as aborted, sees the records
of committed transactions and those of none, and nothing else. The last stable offset is that of the model.
Rolls, clean and unclean restarts, truncation above the high watermark, retention, and compaction.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.folders import new_folder
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, open_log, settings
from tests.unit.broker.log.transactional import TRANSACTIONAL

from mainstem_broker.config.setting import INT64_MAX
from mainstem_broker.log.compaction.compaction_pass import run
from mainstem_broker.log.compaction.facts import CompactedGroup
from mainstem_broker.log.compaction.messages import CompactionJob
from mainstem_broker.log.compaction.plan import plan_compaction
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import parse_batch_header, read_records, split_batches
from mainstem_broker.protocol.markers import Marker, make_marker, read_marker

PRODUCERS = [1, 2, 3]
NO_PRODUCER = -1
KEYS = [b"a", b"b", b"c"]


@dataclass
class Transaction:
    producer_id: int
    first_offset: int
    marker_offset: int = INT64_MAX
    is_commit: bool = False
    may_be_forgotten: bool = False
    """Whether a restart came between its marker and the marker's replication."""


@dataclass
class Written:
    offset: int
    key: bytes
    transaction: Transaction | None


class TransactionModel(RuleBasedStateMachine):
    """`records` and `transactions` are the model; `high_watermark` is what is replicated."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = new_folder()
        self.records: list[Written] = []
        self.transactions: list[Transaction] = []
        self.batch_offsets: list[int] = []
        """The first offset of each batch."""
        self.high_watermark = 0
        self.compacted_to = 0
        self.coordinator_epoch = 0

    @initialize(segment_bytes=st.sampled_from([100, 250, 1000]), compacts=st.booleans())
    def open_first(self, segment_bytes: int, compacts: bool) -> None:
        self.config = settings(
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            cleanup_policy="compact,delete" if compacts else "delete",
            retention_ms=-1,
            delete_retention_ms=0,
            min_cleanable_dirty_ratio=0.0,
        )
        self.compacts = compacts
        self.log = open_log(self.directory, self.config)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # --- What is done ---

    def open_transaction(self, producer_id: int) -> Transaction | None:
        for transaction in self.transactions:
            if transaction.producer_id == producer_id and transaction.marker_offset == INT64_MAX:
                return transaction
        return None

    @rule(
        producer_id=st.sampled_from([*PRODUCERS, NO_PRODUCER]),
        keys=st.lists(st.sampled_from(KEYS), min_size=1),
    )
    def append(self, producer_id: int, keys: list[bytes]) -> None:
        offset = self.log.log_end_offset
        content = [Message(b"%d" % (offset + at), key, (), NOW_MS) for at, key in enumerate(keys)]
        transaction: Transaction | None = None
        if producer_id == NO_PRODUCER:
            batch = encode_batch(content)
        else:
            state = self.log.producers.states.get(producer_id)
            batch = encode_batch(
                content,
                attributes=TRANSACTIONAL,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0 if state is None else state.next_sequence,
            )
            transaction = self.open_transaction(producer_id)
            if transaction is None:
                transaction = Transaction(producer_id, offset)
                self.transactions.append(transaction)
        self.log.append_as_leader(batch, parse_batch_header(batch), 0, NOW_MS)
        self.batch_offsets.append(offset)
        self.records += [Written(offset + at, key, transaction) for at, key in enumerate(keys)]

    @rule(producer_id=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def end(self, producer_id: int, is_commit: bool) -> None:
        header, batch = make_marker(producer_id, 0, Marker(is_commit, self.coordinator_epoch), NOW_MS)
        offset = self.log.append_as_leader(batch, header, 0, NOW_MS).first_offset
        self.batch_offsets.append(offset)
        transaction = self.open_transaction(producer_id)
        if transaction is not None:
            transaction.marker_offset, transaction.is_commit = offset, is_commit

    @rule(share=st.floats(0, 1))
    def replicate(self, share: float) -> None:
        end_offset = self.log.log_end_offset
        self.high_watermark += int((end_offset - self.high_watermark) * share)
        self.log.producers.transactions.replicated_to(self.high_watermark)

    @rule()
    def replicate_all(self) -> None:
        self.replicate(1.0)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        """Above the high watermark, as a follower does."""
        end_offset = self.log.log_end_offset
        target = self.high_watermark + int((end_offset - self.high_watermark) * share)
        self.log.truncate_to(target)
        # As the owner of a log does before it goes on: until then the checkpoint has epochs of what is gone.
        self.log.write_truncations(self.log)
        if target < end_offset:
            # The batch that has the target goes as a whole, also where the log starts within it.
            self.forget_from(max(offset for offset in self.batch_offsets if offset <= target))
        self.high_watermark = min(self.high_watermark, self.log.log_end_offset)
        self.log.producers.transactions.replicated_to(self.high_watermark)

    def forget_from(self, end_offset: int) -> None:
        self.batch_offsets = [offset for offset in self.batch_offsets if offset < end_offset]
        self.records = [record for record in self.records if record.offset < end_offset]
        self.transactions = [one for one in self.transactions if one.first_offset < end_offset]
        for transaction in self.transactions:
            if transaction.marker_offset >= end_offset:
                transaction.marker_offset, transaction.may_be_forgotten = INT64_MAX, False

    @rule(is_clean=st.booleans(), share=st.floats(0, 1))
    def restart(self, is_clean: bool, share: float) -> None:
        if is_clean:
            self.log.close()
        recovery_point = int(self.log.log_end_offset * share)
        self.log = open_log(
            self.directory,
            self.config,
            clean=is_clean,
            recovery_point=recovery_point,
            log_start_offset=self.log.log_start_offset,
        )
        for transaction in self.transactions:
            transaction.may_be_forgotten = transaction.marker_offset != INT64_MAX
        self.log.producers.transactions.replicated_to(self.high_watermark)

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        start = self.log.log_start_offset
        self.log.maybe_increment_log_start_offset(start + int((self.high_watermark - start) * share))
        self.log.delete_old_segments(NOW_MS, self.high_watermark)

    @rule()
    def compact(self) -> None:
        facts = self.log.segment_facts()
        plan = plan_compaction(
            facts,
            self.config,
            first_dirty_offset=self.log.first_dirty_offset,
            high_watermark=self.stable_offset(),
            now_ms=NOW_MS,
        )
        if plan is None:
            return
        job = CompactionJob(
            self.log.directory,
            self.config,
            tuple(facts),
            plan.first_dirty_offset,
            plan.end_offset,
            NOW_MS,
            self.log.producers.last_offsets(),
            map_bytes=1,
            aborted=tuple(self.log.aborted_transactions(0, plan.end_offset)),
            marker_epochs=self.log.producers.marker_epochs(),
        )
        for message in run(job, lambda _count: None):
            if isinstance(message, CompactedGroup):
                assert self.log.take_compacted(message, NOW_MS)
            else:
                self.log.first_dirty_offset = message.map_end_offset
        self.compacted_to = max(self.compacted_to, plan.end_offset)

    # --- What has to hold ---

    def stable_offset(self) -> int:
        first = self.log.producers.transactions.first_unstable_offset
        return max(min(first, self.high_watermark), self.log.log_start_offset)

    def expected_stable_offset(self, *, forgetful: bool) -> int:
        unstable = [
            one.first_offset
            for one in self.transactions
            if one.marker_offset >= self.high_watermark and not (forgetful and one.may_be_forgotten)
        ]
        return max(min([*unstable, self.high_watermark]), self.log.log_start_offset)

    @invariant()
    def the_stable_offset_is_that_of_the_earliest_undecided_transaction(self) -> None:
        if hasattr(self, "log"):
            low, high = (self.expected_stable_offset(forgetful=flag) for flag in (False, True))
            assert low <= self.stable_offset() <= high

    def visible(self) -> list[int]:
        """The offsets of the records that a read_committed client gives out, as Apache Kafka's does."""
        results: list[int] = []
        offset, bound = self.log.log_start_offset, self.stable_offset()
        while offset < bound:
            result = self.log.read(offset, 300, bound, True)
            if result.slice is None:
                break
            waiting = self.log.aborted_transactions(offset, result.end_offset)
            assert waiting == sorted(waiting, key=lambda one: one.first_offset)
            aborting: set[int] = set()
            for header, batch in split_batches(result.slice.read()):
                while waiting and waiting[0].first_offset <= header.last_offset:
                    aborting.add(waiting.pop(0).producer_id)
                if header.is_control:
                    marker = read_marker(header, batch)
                    if marker is not None and not marker.is_commit:
                        aborting.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborting):
                    # Reads are of whole batches; `replicate` may put the bound within one.
                    results += [
                        at.offset for at in read_records(header, batch) if offset <= at.offset < bound
                    ]
            offset = result.end_offset
        return results

    @invariant()
    def readers_see_what_was_committed_and_nothing_else(self) -> None:
        if not hasattr(self, "log"):
            return
        visible = self.visible()
        committed = [
            record
            for record in self.records
            if self.log.log_start_offset <= record.offset < self.stable_offset()
            and (record.transaction is None or record.transaction.is_commit)
        ]
        allowed = [record.offset for record in committed]
        assert set(visible) <= set(allowed), "an aborted record is visible"
        if self.compacted_to == 0:
            assert visible == allowed
        newest = {record.key: record.offset for record in committed}
        required = {
            record.offset
            for record in committed
            if record.offset >= self.compacted_to or newest[record.key] == record.offset
        }
        assert required <= set(visible), "a committed record is gone"

    @invariant()
    def its_files_are_right(self) -> None:
        if hasattr(self, "log"):
            for segment in self.log.segments:
                segment.offset_index.write()
                segment.time_index.write()
            assert verify_log(self.log.directory).problems == []


TransactionModel.TestCase.settings = example_settings(max_examples=60, stateful_step_count=30)
TestTransactions = TransactionModel.TestCase
