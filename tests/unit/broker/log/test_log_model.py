"""A log against a list: whatever is done to it in whatever order, both say the same."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.folders import new_folder
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, find_by_time, open_log, settings

from mainstem_broker.log.partition_log import PartitionLog
from mainstem_broker.log.segment import Segment
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import split_batches


@dataclass(frozen=True)
class Batch:
    """A batch that the log should hold."""

    base_offset: int
    timestamps_ms: tuple[int, ...]
    epoch: int
    size_bytes: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.timestamps_ms)


class LogModel(RuleBasedStateMachine):
    """`batches` is the model; `start`, `end` and `flushed` are what the log's offsets should be."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = new_folder()
        self.batches: list[Batch] = []
        self.start = self.end = self.flushed = self.epoch = 0

    @initialize(
        segment_bytes=st.sampled_from([200, 500, 2000]),
        index_interval_bytes=st.sampled_from([0, 100, 700]),
        segment_ms=st.sampled_from([50, 10**9]),
    )
    def open_first(self, segment_bytes: int, index_interval_bytes: int, segment_ms: int) -> None:
        self.config = settings(
            segment_bytes=segment_bytes,
            index_interval_bytes=index_interval_bytes,
            segment_ms=segment_ms,
            retention_ms=-1,
        )
        self.log = open_log(self.directory, self.config)

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    def encode(self, base_offset: int, deltas_ms: list[int]) -> tuple[bytes, Batch]:
        times = tuple(NOW_MS + delta for delta in deltas_ms)
        content = [Message(b"%d" % (base_offset + n), timestamp_ms=at) for n, at in enumerate(times)]
        encoded = encode_batch(content, base_offset=base_offset, leader_epoch=self.epoch)
        return encoded, Batch(base_offset, times, self.epoch, len(encoded))

    def took(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = batch.next_offset

    @rule(deltas_ms=st.lists(st.integers(0, 100), min_size=1, max_size=5), new_epoch=st.booleans())
    def append_as_leader(self, deltas_ms: list[int], new_epoch: bool) -> None:
        self.epoch += new_epoch
        encoded, batch = self.encode(self.end, deltas_ms)
        ((header, _),) = split_batches(encoded)
        self.log.append_as_leader(encoded, header, self.epoch, NOW_MS)
        self.took(batch)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=4), gap=st.sampled_from([0, 0, 1, 7]))
    def append_as_follower(self, counts: list[int], gap: int) -> None:
        pairs = []
        base_offset = self.end + gap
        for count in counts:
            pairs.append(self.encode(base_offset, [count] * count))
            base_offset += count
        self.log.append_as_follower(b"".join(encoded for encoded, _ in pairs), NOW_MS)
        for _, batch in pairs:
            self.took(batch)

    @precondition(lambda self: self.batches)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.truncate_to(offset)
        if offset >= self.end:
            return
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.end_moved()
        assert self.end <= offset
        self.log.write_truncations(self.log)
        self.flushed = min(self.flushed, self.end)

    def end_moved(self) -> None:
        """The log ends with its last batch, or where a gap before the next one ended; or it is empty."""
        last = max((batch.next_offset for batch in self.batches), default=0)
        if last < self.start <= self.log.segments[0].base_offset:
            self.batches = []
        assert self.log.log_end_offset >= max(last, self.start)
        self.end = self.log.log_end_offset

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        self.log.delete_records_before(offset)
        self.start = max(self.start, offset)

    @rule(retention_bytes=st.integers(0, 3000))
    def apply_retention(self, retention_bytes: int) -> None:
        self.log.update_config(settings(retention_bytes=retention_bytes, retention_ms=-1))
        self.log.delete_old_segments(NOW_MS, self.end)
        self.log.update_config(self.config)
        first = self.log.segments[0].base_offset
        self.batches = [batch for batch in self.batches if batch.base_offset >= first]
        self.start = max(self.start, first)

    @rule()
    def flush(self) -> None:
        self.log.mark_flushed(self.log.flush())
        self.flushed = self.end

    @rule()
    def restart_cleanly(self) -> None:
        self.log.close()
        self.reopen(clean=True)
        self.flushed = self.end

    @rule()
    def be_killed(self) -> None:
        self.reopen(clean=False)

    @precondition(lambda self: self.batches)
    @rule(share=st.floats(0, 1), flip=st.booleans())
    def lose_power(self, share: float, flip: bool) -> None:
        """The newest segment loses or garbles its end, somewhere after what was flushed."""
        newest: Segment = self.log.segments[-1]
        inside = [batch for batch in self.batches if batch.base_offset >= newest.base_offset]
        safe = sum(batch.size_bytes for batch in inside if batch.next_offset <= self.flushed)
        size = sum(batch.size_bytes for batch in inside)
        at = safe + int((size - safe) * share)
        position = 0
        lost = False
        for batch in inside:
            position += batch.size_bytes
            if position > at:
                # A flip in what the checksum does not cover may go unnoticed, so it is made in what it does.
                flip_at = max(at, position - batch.size_bytes + 17)
                lost = True
                break
        if not lost:
            return
        with newest.path(".log").open("r+b") as file:
            if flip:
                file.seek(flip_at)
                byte = file.read(1)[0]
                file.seek(flip_at)
                file.write(bytes([byte ^ 0x10]))
            else:
                file.truncate(at)
        self.batches = [one for one in self.batches if one.next_offset <= batch.base_offset]
        self.reopen(clean=False)

    def reopen(self, clean: bool) -> None:
        self.log = open_log(
            self.directory, self.config, clean=clean, recovery_point=self.flushed, log_start_offset=self.start
        )
        self.end_moved()
        self.flushed = min(self.flushed, self.end)

    @rule(share=st.floats(0, 1), max_bytes=st.integers(0, 1500), bound_share=st.floats(0, 1))
    def read_somewhere(self, share: float, max_bytes: int, bound_share: float) -> None:
        offset = self.start + int((self.end - self.start) * share)
        bound = self.start + int((self.end - self.start) * bound_share)
        fetched = self.log.read(offset, max_bytes, bound, True)
        if fetched.slice is None:
            expected = [one for one in self.batches if one.next_offset > offset and one.base_offset < bound]
            assert offset >= bound or not expected
            return
        read = split_batches(fetched.slice.read())
        headers = [header for header, _ in read]
        candidates = [one for one in self.batches if one.next_offset > offset]
        assert [header.base_offset for header in headers] == [
            one.base_offset for one in candidates[: len(headers)]
        ]
        assert all(header.base_offset < bound for header in headers)
        assert fetched.size_bytes <= max_bytes or len(headers) == 1
        assert fetched.slice.base_offset == headers[0].base_offset

    @rule(delta_ms=st.integers(-1, 101))
    def look_up_a_time(self, delta_ms: int) -> None:
        match = find_by_time(self.log, NOW_MS + delta_ms)
        expected = next(
            (
                (batch.base_offset + n, at, batch.epoch)
                for batch in self.batches
                for n, at in enumerate(batch.timestamps_ms)
                if at >= NOW_MS + delta_ms and batch.base_offset + n >= self.start
            ),
            None,
        )
        assert (match and (match.offset, match.timestamp, match.leader_epoch)) == expected

    @invariant()
    def says_what_the_model_says(self) -> None:
        log: PartitionLog = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.size_bytes == sum(batch.size_bytes for batch in self.batches)
        for batch in self.batches:
            if batch.next_offset > self.start:
                assert log.epochs.epoch_of(max(batch.base_offset, self.start)) == batch.epoch
        assert verify_log(log.directory).problems == []


TestLogModel = LogModel.TestCase
TestLogModel.settings = example_settings(max_examples=60, stateful_step_count=30)
