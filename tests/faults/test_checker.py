"""The checker against made-up histories: each broken promise is found, named, and tied to its fault.

Each test takes a history in which all is well and breaks one thing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults.checker import check, describe
from tests.faults.history import (
    Acknowledged,
    Delivery,
    Failed,
    Fault,
    History,
    Read,
    Sent,
    Value,
    Watermark,
    longest_gap_s,
)

Logs = dict[int, dict[int, Value]]
ONCE = Delivery.ONCE.value
RETRIED = Delivery.RETRIED.value


def value(sequence: int, producer: str = ONCE) -> Value:
    return Value(producer, sequence)


def well(count: int = 6) -> tuple[History, Logs]:
    """Two producers send one message a second each, which is acknowledged and read half a second later.

    The log of partition 0 is once/0, retried/0, once/1, ... A fault strikes at 3 s.
    """
    history = History(
        deliveries={ONCE: Delivery.ONCE, RETRIED: Delivery.RETRIED},
        faults=[Fault("kill -9 of leader 2", 3.0)],
    )
    log: dict[int, Value] = {}
    for second in range(count):
        for producer in (ONCE, RETRIED):
            offset, message = len(log), value(second, producer)
            log[offset] = message
            history.sent.append(Sent(0, message, float(second)))
            history.acknowledged.append(Acknowledged(0, message, offset, second + 0.5))
            history.reads.append(Read("tail", 0, offset, message, second + 0.6))
        history.watermarks.append(Watermark("broker 1", 0, len(log), second + 0.6, second + 0.7))
    return history, {0: log}


def kinds(history: History, logs: Logs) -> set[str]:
    return {problem.kind for problem in check(history, logs)}


def test_a_history_in_which_all_is_well_has_no_problems() -> None:
    assert check(*well()) == []


def test_a_lost_record_is_named_with_its_offset_its_time_and_the_fault() -> None:
    history, logs = well()
    del logs[0][11]
    history.reads.pop()

    problems = check(history, logs)

    lost = [problem.text for problem in problems if problem.kind == "acknowledged record lost"]
    assert lost == [
        "partition 0: retried/5 was acknowledged at offset 11 at +5.500 s,"
        ' 2.500 s after "kill -9 of leader 2"; in the end nothing is there'
    ]


def test_an_overwritten_record_is_lost_and_what_was_read_there_was_above_the_high_watermark() -> None:
    history, logs = well()
    logs[0][11] = value(6, RETRIED)
    history.sent.append(Sent(0, value(6, RETRIED), 6.0))
    assert kinds(history, logs) == {"acknowledged record lost", "read above the high watermark"}


def test_a_record_at_another_offset_than_was_acknowledged() -> None:
    history, logs = well()
    history.acknowledged[11] = history.acknowledged[11]._replace(offset=12)
    assert kinds(history, logs) == {"acknowledged at another offset"}


def test_a_record_that_was_acknowledged_without_an_offset_has_to_be_somewhere() -> None:
    history, logs = well()
    history.acknowledged[11] = history.acknowledged[11]._replace(offset=None)
    assert check(history, logs) == []
    logs[0] = {offset: one for offset, one in logs[0].items() if one != history.acknowledged[11].value}
    assert "acknowledged record lost" in kinds(history, logs)


def test_an_unacknowledged_record_may_be_there_or_not() -> None:
    history, logs = well()
    history.acknowledged.pop()
    history.sent.append(Sent(0, value(6), 6.0))
    history.failed.append(Failed(0, value(6), "KafkaTimeoutError", 7.0))
    assert check(history, logs) == []
    logs[0][12] = value(6)
    assert check(history, logs) == []


def test_an_offset_that_two_readers_find_different_values_at() -> None:
    history, logs = well()
    history.sent.append(Sent(0, value(6), 0.0))
    history.reads.append(Read("reader 1", 0, 0, value(6), 5.9))

    problems = check(history, logs)

    assert {problem.kind for problem in problems} == {
        "offset with two values",
        "read above the high watermark",
    }
    assert "tail read once/0, and reader 1 read once/6" in describe(problems)


@pytest.mark.parametrize(
    "change",
    [lambda reads: reads.pop(3), lambda reads: reads.insert(4, reads[3]), lambda reads: reads.pop(0)],
    ids=["left out", "given twice", "begun too late"],
)
def test_a_reader_that_goes_astray(change: Callable[[list[Read]], object]) -> None:
    history, logs = well()
    change(history.reads)
    assert kinds(history, logs) == {"reader went astray"}


def swap(log: dict[int, Value], history: History, first: int, second: int) -> None:
    """Let two records change places: acknowledged there, when they were, and read there."""
    log[first], log[second] = log[second], log[first]
    offsets = {message: offset for offset, message in log.items()}
    history.acknowledged = [event._replace(offset=offsets[event.value]) for event in history.acknowledged]
    history.reads = [event._replace(value=log[event.offset]) for event in history.reads]


def test_records_of_a_producer_that_promises_order_out_of_order() -> None:
    history, logs = well()
    swap(logs[0], history, 8, 10)
    assert kinds(history, logs) == {"records out of order", "order against time"}


def test_without_idempotence_a_producer_with_retries_promises_no_order() -> None:
    history, logs = well()
    history.sent = [event._replace(at_s=0.0) for event in history.sent]
    swap(logs[0], history, 9, 11)
    assert check(history, logs) == []


@pytest.mark.parametrize(
    ("producer", "results"), [(ONCE, {"record twice"}), (RETRIED, set())], ids=["once", "retried"]
)
def test_a_record_that_is_there_twice(producer: str, results: set[str]) -> None:
    history, logs = well()
    logs[0][12] = value(5, producer)
    assert kinds(history, logs) == results


def test_a_record_sent_after_another_was_acknowledged_comes_after_it_from_any_producer() -> None:
    history, logs = well()
    swap(logs[0], history, 7, 8)  # retried/3 was acknowledged at 3.5 s, once/4 sent at 4 s
    assert kinds(history, logs) == {"order against time"}


def test_a_high_watermark_that_goes_back() -> None:
    history, logs = well()
    history.acknowledged.clear()
    history.watermarks[4] = history.watermarks[4]._replace(offset=7)
    problems = check(history, logs)
    assert [problem.kind for problem in problems] == ["high watermark went back"]
    assert problems[0].text.endswith("as broker 1 said, after 8")


def test_a_deposed_leader_that_goes_on_answering() -> None:
    history, logs = well()
    history.acknowledged.clear()
    history.watermarks += [Watermark("broker 2", 0, 6, 3.9, 4.0), Watermark("broker 2", 0, 6, 5.3, 5.4)]
    problems = check(history, logs)
    assert [problem.kind for problem in problems] == ["high watermark went back"]
    assert "+5.400 s" in problems[0].text


def test_a_high_watermark_that_long_leaves_out_what_was_acknowledged() -> None:
    history, logs = well()
    history.watermarks = [Watermark("broker 1", 0, 2, 3.4, 3.5)]
    assert kinds(history, logs) == {"high watermark below an acknowledged record"}


def test_a_leader_may_be_deposed_for_a_moment_before_it_hears_of_it() -> None:
    history, logs = well()
    history.watermarks = [Watermark("broker 1", 0, 6, 3.6, 3.7)]
    assert check(history, logs) == []


def test_a_high_watermark_above_what_is_there_in_the_end() -> None:
    history, logs = well()
    history.watermarks.append(Watermark("broker 1", 0, 13, 6.0, 6.1))
    assert kinds(history, logs) == {"high watermark above the log"}


def test_a_record_that_nobody_sent() -> None:
    history, logs = well()
    logs[0][12] = Value.decode(b"something else")
    assert kinds(history, logs) == {"record from nowhere"}


def test_a_record_that_was_refused_for_want_of_replicas_and_stored_all_the_same() -> None:
    history, logs = well()
    history.sent.append(Sent(0, value(6), 6.0))
    history.failed.append(Failed(0, value(6), "NotEnoughReplicasError", 6.1))
    assert check(history, logs) == []
    logs[0][12] = value(6)
    assert kinds(history, logs) == {"refused record stored"}


def test_a_record_that_a_producer_with_retries_gave_up() -> None:
    history, logs = well()
    history.sent.append(Sent(0, value(6, RETRIED), 6.0))
    history.failed.append(Failed(0, value(6, RETRIED), "OUT_OF_ORDER_SEQUENCE_NUMBER", 6.1))
    assert kinds(history, logs) == {"record given up"}


def test_what_a_client_complains_of_is_a_problem() -> None:
    history, logs = well()
    history.complaints.append("tail: _LOG_TRUNCATION: truncated")
    assert kinds(history, logs) == {"complaint of a client"}


def test_times_without_acknowledgement() -> None:
    history, _ = well()
    history.acknowledged = [event for event in history.acknowledged if not 3.0 <= event.at_s < 5.0]
    assert history.first_acknowledgement_after_s(3.0) == {0: 2.5}
    assert history.longest_silence_s(3.0, 6.0) == {0: 2.5}


def test_a_pause_of_the_machine_is_no_silence_of_the_brokers() -> None:
    history, _ = well()
    history.acknowledged = [event for event in history.acknowledged if not 3.0 <= event.at_s < 5.0]
    history.pauses = [(1.0, 3.25), (4.0, 4.5), (5.9, 7.0)]
    assert history.longest_silence_s(3.0, 6.0) == {0: 2.5 - 0.25 - 0.5}


def test_times_of_one_producer_are_its_own() -> None:
    history, _ = well()
    history.acknowledged = [
        event for event in history.acknowledged if event.value.producer == ONCE or event.at_s < 3.0
    ]
    assert history.first_acknowledgement_after_s(3.0, ONCE) == {0: 0.5}
    assert history.first_acknowledgement_after_s(3.0, RETRIED) == {}
    assert history.longest_silence_s(3.0, 6.0, RETRIED) == {0: 3.0}


def test_an_acknowledgement_of_what_was_sent_before_the_fault_does_not_count() -> None:
    history, _ = well()
    assert history.first_acknowledgement_after_s(4.2) == {0: pytest.approx(1.3)}


@given(st.text(alphabet="abc-/", min_size=1), st.integers(min_value=0, max_value=10**9))
def test_values_survive_the_wire(producer: str, sequence: int) -> None:
    assert Value.decode(Value(producer, sequence).encode()) == Value(producer, sequence)


@given(st.binary())
def test_any_bytes_can_be_read_as_a_value(data: bytes) -> None:
    Value.decode(data)


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=2))
def test_the_longest_gap_is_at_least_the_mean_one(moments: list[float]) -> None:
    span_s = max(moments) - min(moments)
    assert longest_gap_s(moments) >= span_s / (len(moments) - 1) - 1e-9
