"""Compaction against a list of all records ever written: whatever is done in whatever order, no newest value
goes.

Appends of every codec, tombstones, passes with key maps that hold a few keys, passes that stop anywhere,
crashes between any two renames, restarts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from unittest.mock import patch

from hypothesis import settings as example_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.folders import new_folder
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.compaction.compacted_logs import Crash, failing_after
from tests.unit.broker.log.logs import NOW_MS, compressed_batch, open_log, settings

from mainstem_broker.log.compaction import compaction_pass
from mainstem_broker.log.compaction.compaction_pass import run
from mainstem_broker.log.compaction.facts import CompactedGroup
from mainstem_broker.log.compaction.key_map import KeyHash, KeyMap
from mainstem_broker.log.compaction.messages import CompactionEnd, CompactionJob
from mainstem_broker.log.compaction.plan import plan_compaction
from mainstem_broker.log.verification import verify_log
from mainstem_broker.protocol.batches import read_records, split_batches
from mainstem_broker.protocol.compression import Codec

KEYS = [b"", b"k", b"key", b"kez", b"\0", b"\0\0", b"long" * 40]
VALUES = st.one_of(st.none(), st.binary(max_size=30))
DELETE_RETENTION_MS = 1_000
PRODUCER = 9


@dataclass
class Written:
    key: bytes
    value: bytes | None
    timestamp_ms: int


class CompactionModel(RuleBasedStateMachine):
    """`written` is every record by offset, `first_pass_ms` when a pass first reached a tombstone, and
    `reached` how far any pass came, finished or not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = new_folder()
        self.written: dict[int, Written] = {}
        self.first_pass_ms: dict[int, int] = {}
        self.reached = 0
        self.now_ms = NOW_MS
        self.sequence = 0

    @initialize(
        segment_bytes=st.sampled_from([250, 600, 2500]), stretch_bytes=st.sampled_from([64, 300, 10**6])
    )
    def open_first(self, segment_bytes: int, stretch_bytes: int) -> None:
        self.config = settings(
            cleanup_policy="compact",
            segment_bytes=segment_bytes,
            index_interval_bytes=100,
            delete_retention_ms=DELETE_RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        self.stretch_bytes = stretch_bytes
        self.log = open_log(self.directory, self.config)
        self.first_dirty_offset = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @rule(
        content=st.lists(
            st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=30))),
            min_size=1,
            max_size=6,
        ),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.SNAPPY, Codec.LZ4, Codec.GZIP]),
        by_producer=st.booleans(),
    )
    def append(self, content: list[tuple[bytes, bytes | None]], codec: Codec, by_producer: bool) -> None:
        made = [
            Message(value, key, (("h", b"x"),), self.now_ms + number * 7)
            for number, (key, value) in enumerate(content)
        ]
        if codec is Codec.NONE and by_producer:
            batch = encode_batch(made, producer_id=PRODUCER, producer_epoch=0, base_sequence=self.sequence)
            self.sequence += len(made)
        else:
            batch = compressed_batch(made, codec)
        ((header, _),) = split_batches(batch)
        first = self.log.append_as_leader(batch, header, 0, self.now_ms).first_offset
        for number, message in enumerate(made):
            assert message.key is not None
            self.written[first + number] = Written(message.key, message.value, message.timestamp_ms)

    @rule(ms=st.sampled_from([1, 400, 1_500]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(groups_max=st.sampled_from([0, 1, 2, 100]), keys_max=st.sampled_from([1, 3, 1000]))
    def compact(self, groups_max: int, keys_max: int) -> None:
        for message in self.compacting(keys_max):
            if isinstance(message, CompactionEnd):
                self.finished(message)
            elif groups_max == 0:
                return  # the broker stops here
            else:
                assert self.log.take_compacted(message, self.now_ms)
                groups_max -= 1

    @rule(renames=st.integers(0, 25), keys_max=st.sampled_from([3, 1000]))
    def crash(self, renames: int, keys_max: int) -> None:
        """The process ends at the rename of this number, or at the end of the pass before it is written
        down.
        """
        with failing_after(renames, Crash()), suppress(Crash):
            for message in self.compacting(keys_max):
                if isinstance(message, CompactedGroup):
                    self.log.take_compacted(message, self.now_ms)
        self.reopen(clean=False)

    @rule()
    def restart(self) -> None:
        self.log.close()
        self.reopen(clean=True)

    def reopen(self, *, clean: bool) -> None:
        recovery_point = self.log.recovery_point
        self.log = open_log(self.directory, self.config, clean=clean, recovery_point=recovery_point)
        self.log.first_dirty_offset = self.first_dirty_offset

    def compacting(self, keys_max: int) -> Iterator[CompactedGroup | CompactionEnd]:
        facts = self.log.segment_facts()
        plan = plan_compaction(
            facts,
            self.config,
            first_dirty_offset=self.log.first_dirty_offset,
            high_watermark=self.log.log_end_offset,
            now_ms=self.now_ms,
        )
        if plan is None:
            return
        self.reached = max(self.reached, plan.end_offset)
        for offset, record in self.written.items():
            if record.value is None and offset < plan.end_offset:
                self.first_pass_ms.setdefault(offset, self.now_ms)
        state = self.log.producers.states.get(PRODUCER)
        last_offsets = {} if state is None else {PRODUCER: state.batches[-1].last_offset}
        job = CompactionJob(
            self.log.directory,
            self.config,
            tuple(facts),
            plan.first_dirty_offset,
            plan.end_offset,
            self.now_ms,
            last_offsets,
            map_bytes=1,
        )

        def small(memory_bytes: int, base_offset: int) -> KeyMap:
            key_map = KeyMap(memory_bytes, base_offset)
            key_map.count_max = keys_max
            return key_map

        with (
            patch.object(compaction_pass, "STRETCH_BYTES", self.stretch_bytes),
            patch.object(compaction_pass, "KeyMap", small),
        ):
            yield from run(job, lambda _count: None, KeyHash(seed=1))

    def finished(self, end: CompactionEnd) -> None:
        assert end.map_end_offset > self.first_dirty_offset, "a small map makes progress, too"
        self.first_dirty_offset = self.log.first_dirty_offset = end.map_end_offset

    def visible(self) -> dict[int, Written]:
        results: dict[int, Written] = {}
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            result = self.log.read(offset, 1000, self.log.log_end_offset, True)
            if result.slice is None:
                break
            for header, batch in split_batches(result.slice.read()):
                for record in read_records(header, batch):
                    assert record.key is not None
                    results[record.offset] = Written(record.key, record.value, record.timestamp_ms)
                offset = header.next_offset
        return results

    @invariant()
    def the_log_holds_what_it_must_and_nothing_that_it_must_not(self) -> None:
        if not hasattr(self, "log"):
            return
        visible = self.visible()
        newest: dict[bytes, int] = {}
        for offset, record in self.written.items():
            newest[record.key] = offset
        for offset, record in visible.items():
            assert record == self.written[offset], "a record that stays is what was written"
        for key, offset in newest.items():
            record = self.written[offset]
            if record.value is not None:
                assert offset in visible, f"the newest value of {key!r} is gone"
            elif offset not in visible:
                assert not [at for at in visible if visible[at].key == key], f"{key!r} has come back"
                assert self.now_ms >= self.first_pass_ms[offset] + DELETE_RETENTION_MS, "gone too early"
        for offset in self.written:
            assert offset < self.reached or offset in visible, "a record that no pass has reached is gone"
        clean = [visible[offset].key for offset in visible if offset < self.first_dirty_offset]
        assert len(clean) == len(set(clean)), "a clean key has two records"

    @invariant()
    def its_files_are_right(self) -> None:
        if hasattr(self, "log"):
            for segment in self.log.segments:
                segment.offset_index.write()
                segment.time_index.write()
            assert verify_log(self.log.directory).problems == []


CompactionModel.TestCase.settings = example_settings(max_examples=40, stateful_step_count=20)
TestCompaction = CompactionModel.TestCase
