"""Idempotence as one log decides it (R11), without files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st
from tests.unit.broker.log.producer_logs import (
    CONTROL,
    DAY_MS,
    LOG_APPEND_TIME,
    NOW_MS,
    TRANSACTIONAL,
    ProducerLog,
    header,
)

from mainstem_broker.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, ProtocolError
from mainstem_broker.log.producer_snapshot_format import encode_snapshot
from mainstem_broker.protocol.batches import BatchHeader


@pytest.fixture
def log() -> ProducerLog:
    return ProducerLog()


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (header(epoch=1, sequence=2), OutOfOrderSequenceNumber, "number 2, but 1 is next at epoch 1"),
        (header(epoch=2, sequence=2), OutOfOrderSequenceNumber, "epoch 2 with sequence number 2, not 0"),
        (header(epoch=0), InvalidProducerEpoch, "Producer 7 is at epoch 1, not 0 any more"),
    ],
)
def test_a_refusal_says_what_is_expected(
    log: ProducerLog, batch: BatchHeader, error: type[ProtocolError], message: str
) -> None:
    log.send(header(epoch=1))
    with pytest.raises(error, match=message):
        log.send(batch)


def test_followers_take_what_the_leader_wrote_whatever_they_think_of_it(log: ProducerLog) -> None:
    for batch in (header(sequence=10), header(sequence=50), header(epoch=2, sequence=9), header(epoch=1)):
        log.copy(batch)
    assert log.producers.states[7].epoch == 1
    assert log.send(header(epoch=1, sequence=1)) == 4


def test_a_producer_expires_by_the_time_of_its_last_append_not_by_its_records(log: ProducerLog) -> None:
    log.send(header(sequence=0, timestamp_ms=-1), NOW_MS)
    log.send(header(sequence=1, timestamp_ms=0), NOW_MS + 1000)
    assert log.producers.expire(NOW_MS + 999 + DAY_MS, DAY_MS) == 0
    assert log.send(header(sequence=1)) == 1
    assert log.producers.expire(NOW_MS + 1000 + DAY_MS, DAY_MS) == 1
    assert not log.producers.states
    assert log.send(header(sequence=77)) == 2


def test_the_leaders_stamp_is_the_time_of_append_for_followers_too(log: ProducerLog) -> None:
    log.copy(header(attributes=LOG_APPEND_TIME, timestamp_ms=NOW_MS - 500), NOW_MS)
    assert log.producers.states[7].last_timestamp_ms == NOW_MS - 500
    assert log.producers.states[7].batches[-1].timestamp_ms == NOW_MS - 500


def test_a_producer_with_an_open_transaction_does_not_expire(log: ProducerLog) -> None:
    log.copy(header(attributes=TRANSACTIONAL))
    log.copy(header(sequence=1, attributes=TRANSACTIONAL))
    assert log.producers.states[7].transaction_first_offset == 0
    assert log.producers.expire(NOW_MS + 2 * DAY_MS, DAY_MS) == 0
    log.copy(header(sequence=-1, attributes=TRANSACTIONAL | CONTROL))
    assert log.producers.states[7].transaction_first_offset == -1
    assert log.send(header(sequence=2)) == 3
    assert log.producers.expire(NOW_MS + 2 * DAY_MS, DAY_MS) == 1


@pytest.mark.parametrize(
    ("write", "end_offset"),
    [
        (lambda log: [log.send(header(sequence=at)) for at in range(6)], 1),
        (lambda log: [log.send(header(epoch=epoch)) for epoch in (0, 1)], 1),
        (lambda log: [log.copy(header(attributes=at)) for at in (TRANSACTIONAL, TRANSACTIONAL | CONTROL)], 1),
    ],
    ids=["past the five remembered", "past the start of an epoch", "past the end of a transaction"],
)
def test_what_truncation_cannot_know_takes_reading_the_log(
    log: ProducerLog, write: Callable[[ProducerLog], object], end_offset: int
) -> None:
    write(log)
    before = encode_snapshot(log.producers)
    assert not log.truncate_to(end_offset)
    assert encode_snapshot(log.producers) == before


def test_truncation_takes_back_the_beginning_of_a_transaction(log: ProducerLog) -> None:
    log.send(header())
    log.copy(header(sequence=1, attributes=TRANSACTIONAL))
    assert log.truncate_to(1)
    assert log.producers.states[7].transaction_first_offset == -1


@dataclass(frozen=True)
class Sent:
    producer_id: int
    epoch: int
    sequence: int
    count: int

    @property
    def header(self) -> BatchHeader:
        return header(self.producer_id, self.epoch, self.sequence, self.count)


class History:
    """What a log would have to know: every batch it holds, and of each producer those not forgotten."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, Sent]] = []
        self.remembered: dict[int, list[tuple[int, Sent]]] = {}

    def write(self, offset: int, batch: Sent) -> None:
        self.batches.append((offset, batch))
        current = self.remembered.get(batch.producer_id, [])
        current = [(at, one) for at, one in current if one.epoch == batch.epoch]
        self.remembered[batch.producer_id] = [*current, (offset, batch)][-5:]

    def truncate_to(self, end_offset: int) -> None:
        self.batches = [(at, one) for at, one in self.batches if at < end_offset]
        for producer_id, current in list(self.remembered.items()):
            self.remembered[producer_id] = [(at, one) for at, one in current if at < end_offset]
            if not self.remembered[producer_id]:
                del self.remembered[producer_id]

    def expected(self, batch: Sent) -> int | type[ProtocolError] | None:
        """What becomes of `batch`: a duplicate's offset, an error, or None to write it."""
        own = [one for _, one in self.batches if one.producer_id == batch.producer_id]
        if not own:
            return None
        last = own[-1]
        if batch.epoch != last.epoch:
            if batch.epoch < last.epoch:
                return InvalidProducerEpoch
            return None if batch.sequence == 0 else OutOfOrderSequenceNumber
        for offset, sent in self.remembered[batch.producer_id]:
            if sent == batch:
                return offset
        in_order = (last.sequence + last.count) % 2**31 == batch.sequence
        return None if in_order else OutOfOrderSequenceNumber


# Near the end of the numbers as often as near their start, and few enough to collide.
SEQUENCES = st.integers(-4, 8).map(lambda number: number % 2**31)
STEPS = st.one_of(
    st.builds(Sent, st.integers(1, 2), st.integers(0, 2), SEQUENCES, st.integers(1, 3)),
    st.just("next"),
    st.integers(1, 7),  # again one of the last batches
    st.tuples(st.just("truncate"), st.floats(0, 1)),
)


@given(st.lists(STEPS, max_size=60))
@example_settings(max_examples=300)
def test_r11_producers_decide_as_the_whole_history_would(
    steps: list[Sent | str | int | tuple[str, float]],
) -> None:
    log, history = ProducerLog(), History()
    for step in steps:
        if isinstance(step, tuple):
            wanted_end = int(log.end_offset * step[1])
            ends = [at + one.count for at, one in history.batches]
            end = max((at for at in ends if at <= wanted_end), default=0)
            if log.truncate_to(end):
                history.truncate_to(end)
                continue
            # What the log's reading would bring.
            kept = [one for at, one in history.batches if at < end]
            log, history = ProducerLog(), History()
            for one in kept:
                history.write(log.copy(one.header), one)
            continue
        if isinstance(step, Sent):
            batch = step
        elif not history.batches:
            continue
        elif step == "next":
            last = history.batches[-1][1]
            batch = Sent(last.producer_id, last.epoch, (last.sequence + last.count) % 2**31, 1)
        else:
            assert isinstance(step, int)
            batch = history.batches[-min(step, len(history.batches))][1]
        target = history.expected(batch)
        if isinstance(target, type):
            with pytest.raises(target):
                log.send(batch.header)
        elif target is None:
            assert log.send(batch.header) == log.end_offset - batch.count
            history.write(log.end_offset - batch.count, batch)
        else:
            assert log.send(batch.header) == target
