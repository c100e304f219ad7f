"""Idempotence as one log decides it (R11), without files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from mainstem_broker.config import INT32_MAX
from mainstem_broker.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber, ProtocolError
from mainstem_broker.log.producers import REFUSAL_MS_MAX, REFUSALS_MAX, Producers
from mainstem_broker.protocol.batches import BatchHeader

NOW_MS = 1_750_000_000_000
DAY_MS = 86_400_000

TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08


def header(
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    *,
    attributes: int = 0,
    timestamp_ms: int = NOW_MS,
) -> BatchHeader:
    return BatchHeader(
        0, 70, 0, 2, 0, attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, epoch, sequence, count
    )


class Log:
    """Producers, and the offsets that a log around them would give."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.end_offset = 0

    def send(self, batch: BatchHeader, now_ms: int = NOW_MS) -> int:
        """The first offset that the batch has; written only if it is no duplicate."""
        found = self.producers.check(batch)
        return self.copy(batch, now_ms) if found is None else found.first_offset

    def copy(self, batch: BatchHeader, now_ms: int = NOW_MS) -> int:
        """As a follower, which does not check."""
        first_offset = self.end_offset
        self.producers.update(batch, first_offset, now_ms)
        self.end_offset += batch.last_offset_delta + 1
        return first_offset

    def truncate_to(self, offset: int) -> bool:
        self.end_offset = offset
        return self.producers.truncate_to(offset)


# --- Sequence numbers ---


def test_r11_batches_in_order_are_written() -> None:
    log = Log()
    assert [log.send(header(sequence=at, count=3)) for at in (0, 3, 6)] == [0, 3, 6]


def test_r11_each_of_the_last_five_batches_is_recognised_at_its_offset() -> None:
    log = Log()
    batches = [header(sequence=at, count=3) for at in range(0, 18, 3)]
    offsets = [log.send(batch) for batch in batches]
    for batch, offset in zip(batches[1:], offsets[1:], strict=True):
        assert log.send(batch) == offset
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(batches[0])
    assert log.end_offset == 18


def test_a_batch_that_begins_like_another_but_is_longer_is_no_duplicate() -> None:
    log = Log()
    log.send(header(sequence=0, count=3))
    log.send(header(sequence=3, count=3))
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(sequence=3, count=4))
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(sequence=4, count=2))


def test_r11_a_gap_is_refused_until_the_missing_batch_has_come() -> None:
    log = Log()
    log.send(header(sequence=0))
    with pytest.raises(OutOfOrderSequenceNumber, match="sequence number 2, but 1 is next at epoch 0"):
        log.send(header(sequence=2))
    assert [log.send(header(sequence=at)) for at in (1, 2)] == [1, 2]


def test_sequence_numbers_go_round_within_a_batch_and_between_batches() -> None:
    log = Log()
    across = header(sequence=INT32_MAX - 1, count=4)
    assert log.send(across) == 0
    assert log.send(header(sequence=2)) == 4
    assert log.send(across) == 0

    log = Log()
    log.send(header(sequence=INT32_MAX))
    assert log.send(header(sequence=0)) == 1


def test_producers_do_not_disturb_one_another() -> None:
    log = Log()
    assert [log.send(header(producer_id)) for producer_id in (1, 2, 3)] == [0, 1, 2]
    assert [log.send(header(producer_id)) for producer_id in (3, 1, 2)] == [2, 0, 1]


@pytest.mark.parametrize("sequence", [0, 1, 1000, INT32_MAX])
def test_of_an_unknown_producer_any_sequence_number_is_taken(sequence: int) -> None:
    log = Log()
    assert log.send(header(sequence=sequence)) == 0
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(sequence=(sequence + 2) & INT32_MAX))


# --- Epochs ---


def test_a_higher_epoch_begins_with_zero() -> None:
    log = Log()
    log.send(header(sequence=0, count=2))
    with pytest.raises(OutOfOrderSequenceNumber, match="begins epoch 1 with sequence number 2, not 0"):
        log.send(header(epoch=1, sequence=2))
    assert log.send(header(epoch=1, sequence=0)) == 2


def test_a_lower_epoch_is_refused_even_for_what_was_written_under_it() -> None:
    log = Log()
    log.send(header(epoch=4))
    log.send(header(epoch=5))
    with pytest.raises(InvalidProducerEpoch, match="Producer 7 is at epoch 5, not 4 any more"):
        log.send(header(epoch=4))


def test_followers_take_what_the_leader_wrote_whatever_they_think_of_it() -> None:
    log = Log()
    for batch in (header(sequence=10), header(sequence=50), header(epoch=2, sequence=9), header(epoch=1)):
        log.copy(batch)
    assert log.producers.states[7].epoch == 1
    assert log.send(header(epoch=1, sequence=1)) == 4


# --- Refused first batches ---


def test_r11_others_do_not_overtake_a_first_batch_that_was_refused() -> None:
    log = Log()
    log.producers.note_refusal(header(sequence=0, count=2), NOW_MS)
    for sequence in (2, 3):
        with pytest.raises(OutOfOrderSequenceNumber, match="0 was refused before"):
            log.send(header(sequence=sequence))
    assert [log.send(header(sequence=at, count=2)) for at in (0, 2)] == [0, 2]


def test_a_refusal_counts_for_its_epoch_and_not_for_earlier_sequence_numbers() -> None:
    log = Log()
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    log.producers.note_refusal(header(sequence=9), NOW_MS)  # the earliest one counts
    with pytest.raises(OutOfOrderSequenceNumber, match="5 was refused"):
        log.send(header(sequence=6))
    assert log.send(header(epoch=1, sequence=3)) == 0

    log = Log()
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    assert log.send(header(sequence=4)) == 0

    log = Log()
    for sequence in (38, 0):
        log.producers.note_refusal(header(sequence=sequence), NOW_MS)
    with pytest.raises(OutOfOrderSequenceNumber, match="0 was refused"):
        log.send(header(sequence=38))


def test_only_a_beginning_that_is_none_may_be_overtaking() -> None:
    log = Log()
    assert not log.producers.may_be_overtaking(header(sequence=0))
    assert log.producers.may_be_overtaking(header(sequence=5))
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    assert not log.producers.may_be_overtaking(header(sequence=5))
    assert log.producers.may_be_overtaking(header(epoch=1, sequence=5))
    log.send(header(8))
    assert not log.producers.may_be_overtaking(header(8, sequence=5))


def test_refusals_of_known_producers_need_no_note_and_others_are_forgotten_in_time() -> None:
    log = Log()
    log.send(header(sequence=0))
    log.producers.note_refusal(header(sequence=1), NOW_MS)
    log.producers.note_refusal(header(8), NOW_MS)
    log.producers.expire(NOW_MS + REFUSAL_MS_MAX, 1)
    assert log.send(header(8, sequence=1)) == 1
    assert log.send(header(7, sequence=5)) == 2


def test_only_so_many_refusals_are_remembered() -> None:
    log = Log()
    for producer_id in range(REFUSALS_MAX + 1):
        log.producers.note_refusal(header(producer_id), NOW_MS)
    assert log.send(header(0, sequence=1)) == 0
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(1, sequence=1))


# --- Time ---


def test_a_producer_expires_by_the_time_of_its_last_append_not_by_its_records() -> None:
    log = Log()
    log.send(header(sequence=0, timestamp_ms=-1), NOW_MS)
    log.send(header(sequence=1, timestamp_ms=0), NOW_MS + 1000)
    assert log.producers.expire(NOW_MS + 999 + DAY_MS, DAY_MS) == 0
    assert log.send(header(sequence=1)) == 1
    assert log.producers.expire(NOW_MS + 1000 + DAY_MS, DAY_MS) == 1
    assert not log.producers.states
    assert log.send(header(sequence=77)) == 2


def test_the_leaders_stamp_is_the_time_of_append_for_followers_too() -> None:
    log = Log()
    log.copy(header(attributes=LOG_APPEND_TIME, timestamp_ms=NOW_MS - 500), NOW_MS)
    assert log.producers.states[7].last_timestamp_ms == NOW_MS - 500
    assert log.producers.states[7].batches[-1].timestamp_ms == NOW_MS - 500


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    log = Log()
    log.copy(header(attributes=TRANSACTIONAL))
    log.copy(header(sequence=1, attributes=TRANSACTIONAL))
    assert log.producers.states[7].transaction_first_offset == 0
    assert log.producers.expire(NOW_MS + 2 * DAY_MS, DAY_MS) == 0
    log.copy(header(sequence=-1, attributes=TRANSACTIONAL | CONTROL))
    assert log.producers.states[7].transaction_first_offset == -1
    assert log.send(header(sequence=2)) == 3
    assert log.producers.expire(NOW_MS + 2 * DAY_MS, DAY_MS) == 1


# --- Truncation ---


def test_truncation_takes_batches_back() -> None:
    log = Log()
    for sequence in range(4):
        log.send(header(sequence=sequence))
    log.send(header(8))
    assert log.truncate_to(2)
    assert log.producers.states.keys() == {7}
    assert log.send(header(sequence=1)) == 1
    assert log.send(header(sequence=2)) == 2
    assert log.send(header(8, sequence=40)) == 3


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
    write: Callable[[Log], object], end_offset: int
) -> None:
    log = Log()
    write(log)
    before = log.producers.encode()
    assert not log.truncate_to(end_offset)
    assert log.producers.encode() == before


def test_truncation_takes_back_the_beginning_of_a_transaction() -> None:
    log = Log()
    log.send(header())
    log.copy(header(sequence=1, attributes=TRANSACTIONAL))
    assert log.truncate_to(1)
    assert log.producers.states[7].transaction_first_offset == -1


# --- Snapshots ---

# Written by Apache Kafka 4.1.0 (`ProducerStateManager.takeSnapshot`) after three batches: producer 5 wrote
# records 2147483646 to 1, round the end of sequence numbers, then producer 6 at epoch 3 records 0 to 1 and 2.
KAFKA_SNAPSHOT = bytes.fromhex(
    "0001438afcec00000002"
    "0000000000000005000000000001000000000000000300000003000001977420dc00ffffffffffffffffffffffff"
    "0000000000000006000300000002000000000000000600000000000001977420dc00ffffffffffffffffffffffff"
)


def test_a_snapshot_is_apache_kafkas_byte_for_byte_where_one_batch_is_remembered() -> None:
    log = Log()
    log.send(header(5, 0, INT32_MAX - 1, 4))
    log.end_offset = 6  # the first batch of producer 6 is left out: Kafka's file says nothing of it
    log.send(header(6, 3, 2, 1))
    assert log.producers.encode() == KAFKA_SNAPSHOT
    assert Producers.decode(KAFKA_SNAPSHOT).encode() == KAFKA_SNAPSHOT


def test_r11_a_snapshot_keeps_all_remembered_batches_the_last_one_last() -> None:
    log = Log()
    batches = [header(sequence=at, count=2) for at in range(0, 14, 2)]
    for number, batch in enumerate(batches):
        log.send(batch, NOW_MS + number)
    read = Producers.decode(log.producers.encode())
    assert read.states[7].batches == log.producers.states[7].batches
    assert read.states[7].last_timestamp_ms == NOW_MS + 6
    log.producers = read
    assert [log.send(batch) for batch in batches[2:]] == [4, 6, 8, 10, 12]


def test_from_a_snapshot_the_last_batch_of_each_producer_is_known() -> None:
    log = Log()
    log.producers, log.end_offset = Producers.decode(KAFKA_SNAPSHOT), 7
    assert log.send(header(5, 0, INT32_MAX - 1, 4)) == 0
    assert log.send(header(6, 3, 2, 1)) == 6
    assert log.send(header(5, 0, 2, 1)) == 7
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(6, 3, 0, 2))
    assert not log.truncate_to(6)


def test_a_snapshot_keeps_producers_without_batches_and_open_transactions() -> None:
    log = Log()
    log.copy(header(5, 2, -1, attributes=TRANSACTIONAL | CONTROL))
    log.copy(header(6, 0, 0, attributes=TRANSACTIONAL))
    log.producers.states[5].coordinator_epoch = 9
    read = Producers.decode(log.producers.encode())
    assert read.encode() == log.producers.encode()
    marked, open_one = read.states[5], read.states[6]
    assert (marked.epoch, marked.last_sequence, marked.next_sequence, len(marked.batches)) == (2, -1, 0, 0)
    assert (marked.coordinator_epoch, marked.last_timestamp_ms) == (9, NOW_MS)
    assert open_one.transaction_first_offset == 1


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda data: b"", "only 0 bytes"),
        (lambda data: data[:9], "only 9 bytes"),
        (lambda data: data[:-1], "checksum"),
        (lambda data: data[:40] + b"\x55" + data[41:], "checksum"),
        (lambda data: b"\x00\x02" + data[2:], "version is 2"),
        (lambda data: bytes(len(data)), "version is 0"),
    ],
    ids=["empty", "no head", "torn", "flipped", "of the future", "zeros"],
)
def test_a_broken_snapshot_is_told_by_a_sentence(spoil: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Producers.decode(spoil(KAFKA_SNAPSHOT))


@given(st.binary(max_size=200))
def test_no_bytes_but_a_snapshot_are_taken_for_one(data: bytes) -> None:
    try:
        assert Producers.decode(data).encode() == data
    except ValueError:
        pass


# --- Against a model ---


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
        known = self.remembered.get(batch.producer_id, [])
        known = [(at, one) for at, one in known if one.epoch == batch.epoch]
        self.remembered[batch.producer_id] = [*known, (offset, batch)][-5:]

    def truncate_to(self, end_offset: int) -> None:
        self.batches = [(at, one) for at, one in self.batches if at < end_offset]
        for producer_id, known in list(self.remembered.items()):
            self.remembered[producer_id] = [(at, one) for at, one in known if at < end_offset]
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
@example_settings(deadline=None, max_examples=300)
def test_r11_producers_decide_as_the_whole_history_would(
    steps: list[Sent | str | int | tuple[str, float]],
) -> None:
    log, history = Log(), History()
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
            log, history = Log(), History()
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
        wanted = history.expected(batch)
        if isinstance(wanted, type):
            with pytest.raises(wanted):
                log.send(batch.header)
        elif wanted is None:
            assert log.send(batch.header) == log.end_offset - batch.count
            history.write(log.end_offset - batch.count, batch)
        else:
            assert log.send(batch.header) == wanted
