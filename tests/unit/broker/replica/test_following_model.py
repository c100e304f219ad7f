"""A follower becomes its leader's copy, whatever happens between its fetches (R4, R19).

Batches have several records, DeleteRecords moves the leader's start to any of them, and a follower may be
replaced by an empty one at any moment: what is a boundary per record for a leader must not be one between
batches for a follower.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.folders import temporary_folder
from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages, open_log, read_all, settings
from tests.unit.broker.replica.replicas import state_of, valid_lease

from mainstem_broker.errors import OffsetOutOfRange
from mainstem_broker.log.partition_log import AppendInfo, PartitionLog
from mainstem_broker.protocol.batches import split_batches
from mainstem_broker.protocol.compression import Buffer
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.replica.divergence import Divergence
from mainstem_broker.replica.partition import Partition

US, THEM = 1, 2
EPOCH = 9
FETCHES_MAX = 200
"""More than enough for all batches, one in each fetch."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 10)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
        st.tuples(st.just("fetch"), st.just(1)),
        st.tuples(st.just("replace"), st.just(1)),
    ),
    max_size=30,
)


class Pair:
    """A leader and its follower, on real logs with small segments."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._replacements = 0
        self.leader = self._replica("leader", THEM)
        self.replace(1)

    def _replica(self, name: str, broker: int) -> Partition:
        directory = self._directory / name
        directory.mkdir()
        log = open_log(directory, settings(segment_bytes=400))
        made = Partition("t", 0, UUID(int=1), log, broker, valid_lease())
        made.update_state(state_of(THEM, EPOCH, (THEM,), 3), (US, THEM), NOW_MS)
        return made

    def append(self, count: int) -> None:
        batch = encode_batch(messages([b"x"] * count))
        append_batch(self.leader, batch, acks=-1, produce_version=9, now_ms=NOW_MS)

    def delete(self, percent: int) -> None:
        """Delete that share of the records up to the high watermark."""
        log = self.leader.log
        count = (self.leader.high_watermark - log.log_start_offset) * percent // 100
        self.leader.delete_records_before(log.log_start_offset + count)
        self.leader.apply_retention(NOW_MS)

    def replace(self, _count: int) -> None:
        self._replacements += 1
        self.follower = self._replica(f"follower-{self._replacements}", US)

    def fetch(self, _count: int) -> None:
        """One fetch, and what `replica/fetcher.py` makes of the answer."""
        offset, last_epoch = self.follower.fetch_position()
        try:
            answer = self.leader.read_as_follower(
                *(US, 0, offset, last_epoch, 1), leader_epoch=EPOCH, min_one_batch=True, now_ms=NOW_MS
            )
        except OffsetOutOfRange:
            self.follower.start_over(self.leader.log.log_start_offset, leader_epoch=EPOCH)
            return
        assert not isinstance(answer, Divergence)
        self.follower.append_from_leader(
            b"" if answer.slice is None else bytes(answer.slice.read()),
            leader_epoch=EPOCH,
            high_watermark=self.leader.high_watermark,
            log_start_offset=self.leader.log.log_start_offset,
            now_ms=NOW_MS,
        )

    @property
    def is_level(self) -> bool:
        """Whether the follower has the same offsets as the leader, and knows that they are committed."""
        ours, theirs = self.follower.log, self.leader.log
        return (ours.log_start_offset, ours.log_end_offset, self.follower.high_watermark) == (
            theirs.log_start_offset,
            theirs.log_end_offset,
            self.leader.high_watermark,
        )


def live_through(history: list[tuple[str, int]]) -> None:
    with temporary_folder() as directory:
        pair = Pair(directory)
        for step, argument in history:
            getattr(pair, step)(argument)
        fetches = 0
        while not pair.is_level:
            assert fetches < FETCHES_MAX, "it never gets there"
            pair.fetch(1)
            fetches += 1
        assert read_all(pair.follower.log) == read_all(pair.leader.log)


@given(steps)
@example([("append", 10), ("delete", 50)])
@example([("append", 10), ("append", 10), ("fetch", 1), ("delete", 75)])
@example([("append", 10), ("fetch", 1), ("delete", 30), ("append", 3), ("replace", 1)])
def test_a_follower_becomes_its_leaders_copy(history: list[tuple[str, int]]) -> None:
    live_through(history)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_follower_that_takes_the_leaders_start_for_a_boundary_between_batches_is_found(
    monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """As before KAFKA-6975: a batch that begins below the log's start is refused, and asked for again."""
    append = PartitionLog.append_as_follower

    def refuse(log: PartitionLog, records: Buffer, now_ms: int) -> AppendInfo:
        if split_batches(records)[0][0].base_offset < log.log_end_offset:
            raise OffsetOutOfRange("It begins below the log's end.")
        return append(log, records, now_ms)

    monkeypatch.setattr(PartitionLog, "append_as_follower", refuse)
    history = [("append", 10), ("append", 10), ("fetch", 1), ("delete", 75)]
    with pytest.raises(OffsetOutOfRange, match="below the log's end"):
        live_through([*history, ("replace", 1)] if replaced else history)
