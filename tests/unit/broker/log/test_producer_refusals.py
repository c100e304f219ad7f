"""First batches of unknown producers that were refused, and what comes after them (R11)."""

from __future__ import annotations

import pytest
from tests.unit.broker.log.producer_logs import NOW_MS, ProducerLog, header

from mainstem_broker.errors import OutOfOrderSequenceNumber
from mainstem_broker.log.producer_refusals import REFUSAL_MS_MAX, REFUSALS_MAX


def test_r11_others_do_not_overtake_a_first_batch_that_was_refused() -> None:
    log = ProducerLog()
    log.producers.note_refusal(header(sequence=0, count=2), NOW_MS)
    for sequence in (2, 3):
        with pytest.raises(OutOfOrderSequenceNumber, match="0 was refused before"):
            log.send(header(sequence=sequence))
    assert [log.send(header(sequence=at, count=2)) for at in (0, 2)] == [0, 2]


def test_a_refusal_counts_for_its_epoch_and_not_for_earlier_sequence_numbers() -> None:
    log = ProducerLog()
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    log.producers.note_refusal(header(sequence=9), NOW_MS)  # the earliest one counts
    with pytest.raises(OutOfOrderSequenceNumber, match="5 was refused"):
        log.send(header(sequence=6))
    assert log.send(header(epoch=1, sequence=3)) == 0

    log = ProducerLog()
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    assert log.send(header(sequence=4)) == 0

    log = ProducerLog()
    for sequence in (38, 0):
        log.producers.note_refusal(header(sequence=sequence), NOW_MS)
    with pytest.raises(OutOfOrderSequenceNumber, match="0 was refused"):
        log.send(header(sequence=38))


def test_only_a_beginning_that_is_none_may_be_overtaking() -> None:
    log = ProducerLog()
    assert not log.producers.may_be_overtaking(header(sequence=0))
    assert log.producers.may_be_overtaking(header(sequence=5))
    log.producers.note_refusal(header(sequence=5), NOW_MS)
    assert not log.producers.may_be_overtaking(header(sequence=5))
    assert log.producers.may_be_overtaking(header(epoch=1, sequence=5))
    log.send(header(8))
    assert not log.producers.may_be_overtaking(header(8, sequence=5))


def test_refusals_of_known_producers_need_no_note_and_others_are_forgotten_in_time() -> None:
    log = ProducerLog()
    log.send(header(sequence=0))
    log.producers.note_refusal(header(sequence=1), NOW_MS)
    log.producers.note_refusal(header(8), NOW_MS)
    log.producers.expire(NOW_MS + REFUSAL_MS_MAX, 1)
    assert log.send(header(8, sequence=1)) == 1
    assert log.send(header(7, sequence=5)) == 2


def test_only_so_many_refusals_are_remembered() -> None:
    log = ProducerLog()
    for producer_id in range(REFUSALS_MAX + 1):
        log.producers.note_refusal(header(producer_id), NOW_MS)
    assert log.send(header(0, sequence=1)) == 0
    with pytest.raises(OutOfOrderSequenceNumber):
        log.send(header(1, sequence=1))
