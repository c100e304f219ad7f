"""Judges a history: what was promised to clients, and what they found. Pure.

`check` compares what the clients of a workload saw with what the log holds in the end, when the cluster is
whole again. Its rules, each one sentence of R17, R19 and R22:

1. An acknowledged record is in the log, at the offset that the acknowledgement named.
2. An offset has one value: for all readers, at all times, and in the end.
3. What was read is there in the end; a read of anything else was a read above the high watermark.
4. A reader that follows a partition finds each offset once and leaves none out.
5. Records of a producer that promises it are in the order of sending, and none is there twice.
6. A record sent after another one was acknowledged comes after it, from any producer.
7. A broker that answers for the high watermark knows what was acknowledged, or answered elsewhere, `NEWS_S`
   before the question; one broker's never goes back; nothing below it is missing in the end.
8. Nothing is in the log that nobody sent, nor what was refused for want of replicas and not sent again.
9. A producer that sends again until it is answered gives up no record: all faults pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tests.faults.history import Delivery, History, Value

EXAMPLES_PER_KIND: Final = 3
NEWS_S: Final = 1.0
"""A leader that is deposed while it lives, as in a controlled shutdown, answers what it knows until it hears
of that from ZooKeeper, milliseconds later on an idle machine. One that is paused or cut off must not answer
at all by the time another may lead, and that is longer than this."""
REFUSED: Final = frozenset({"NotEnoughReplicasError"})
"""What a ONCE producer (kafka-python) calls NOT_ENOUGH_REPLICAS, the refusal before the append."""

PERSISTENT: Final = frozenset({Delivery.RETRIED, Delivery.EXACTLY_ONCE})
"""These try for minutes, longer than any trial lasts."""

Log = Mapping[int, Value]
"""A partition in the end: value by offset."""
Marks = dict[int, tuple[list[float], list[int]]]
"""By partition: moments in order, and the highest offset known at each."""


class Problem(NamedTuple):
    """A broken promise: `kind` in a few words, `text` with the record, the times and the latest fault."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(history: History, logs: Mapping[int, Log]) -> list[Problem]:
    """Every broken promise; empty if all were kept. `logs` are the partitions in the end."""
    return [
        *(Problem("complaint of a client", text) for text in history.complaints),
        *_check_acknowledged(history, logs),
        *_check_reads(history, logs),
        *_check_readers(history),
        *_check_producers(history, logs),
        *_check_persistence(history),
        *_check_order_in_time(history, logs),
        *_check_watermarks(history, logs),
    ]


def describe(problems: list[Problem]) -> str:
    """For people: how many problems of each kind there are, and the first few of each."""
    kinds: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        kinds[problem.kind].append(problem)
    lines: list[str] = []
    for kind, problems in kinds.items():
        lines.append(f"{kind} ({len(problems)} times):")
        lines += [f"  {problem.text}" for problem in problems[:EXAMPLES_PER_KIND]]
    return "\n".join(lines)


def _check_acknowledged(history: History, logs: Mapping[int, Log]) -> Iterator[Problem]:
    places: dict[tuple[int, Value], list[int]] = defaultdict(list)
    for partition, log in logs.items():
        for offset, value in log.items():
            places[partition, value].append(offset)
    for event in history.acknowledged:
        elsewhere = places.get((event.partition, event.value))
        if event.offset is None and elsewhere:
            continue
        held = None if event.offset is None else logs.get(event.partition, {}).get(event.offset)
        if held == event.value:
            continue
        what = (
            f"partition {event.partition}: {event.value} was acknowledged at offset {event.offset}"
            f" {_when(history, event.at_s)}"
        )
        if elsewhere:
            yield Problem("acknowledged at another offset", f"{what}, and is at {elsewhere}")
        elif held is not None:
            yield Problem("acknowledged record lost", f"{what}; in the end {held} is there")
        else:
            yield Problem("acknowledged record lost", f"{what}; in the end nothing is there")


def _check_reads(history: History, logs: Mapping[int, Log]) -> Iterator[Problem]:
    first: dict[tuple[int, int], tuple[Value, str]] = {}
    for event in history.reads:
        where = f"partition {event.partition}, offset {event.offset}"
        before = first.setdefault((event.partition, event.offset), (event.value, event.reader))
        if before[0] != event.value:
            yield Problem(
                "offset with two values",
                f"{where}: {before[1]} read {before[0]}, and {event.reader} read {event.value}"
                f" {_when(history, event.at_s)}",
            )
        held = logs.get(event.partition, {}).get(event.offset)
        if held != event.value:
            in_the_end = "nothing" if held is None else str(held)
            yield Problem(
                "read above the high watermark",
                f"{where}: {event.reader} read {event.value} {_when(history, event.at_s)};"
                f" in the end {in_the_end} is there",
            )


def _check_readers(history: History) -> Iterator[Problem]:
    expected: dict[tuple[str, int], int] = {}
    for event in history.reads:
        due = expected.get((event.reader, event.partition), 0)
        if event.offset != due:
            yield Problem(
                "reader went astray",
                f"partition {event.partition}: {event.reader} was given offset {event.offset} where {due}"
                f" was due {_when(history, event.at_s)}",
            )
        expected[event.reader, event.partition] = event.offset + 1


def _check_producers(history: History, logs: Mapping[int, Log]) -> Iterator[Problem]:
    refused = {
        (event.partition, event.value): event.at_s
        for event in history.failed
        if event.error in REFUSED and history.deliveries.get(event.value.producer) is Delivery.ONCE
    }
    sent_at_s = {(event.partition, event.value): event.at_s for event in history.sent}
    for partition, log in logs.items():
        by_producer: dict[str, list[tuple[int, Value]]] = defaultdict(list)
        for offset, value in sorted(log.items()):
            by_producer[value.producer].append((offset, value))
            if (partition, value) not in sent_at_s:
                yield Problem(
                    "record from nowhere", f"partition {partition}, offset {offset}: nobody sent {value}"
                )
            if (partition, value) in refused:
                yield Problem(
                    "refused record stored",
                    f"partition {partition}, offset {offset}: {value} was refused"
                    f" {_when(history, refused[partition, value])}",
                )
        for producer, records in by_producer.items():
            if history.deliveries.get(producer, Delivery.RETRIED) is Delivery.RETRIED:
                continue
            first_offset_of: dict[Value, int] = {}
            latest = -1
            for offset, value in records:
                earlier = first_offset_of.setdefault(value, offset)
                when = _when(history, sent_at_s.get((partition, value), 0.0), verb="sent")
                if earlier != offset:
                    yield Problem(
                        "record twice",
                        f"partition {partition}: {value}, {when}, is at offsets {earlier} and {offset}",
                    )
                elif value.sequence < latest:
                    yield Problem(
                        "records out of order",
                        f"partition {partition}: {value}, {when}, is at offset {offset},"
                        f" behind {producer}/{latest}",
                    )
                latest = max(latest, value.sequence)


def _check_persistence(history: History) -> Iterator[Problem]:
    for event in history.failed:
        if history.deliveries.get(event.value.producer) in PERSISTENT:
            yield Problem(
                "record given up",
                f"partition {event.partition}: {event.value} failed with {event.error}"
                f" {_when(history, event.at_s)}",
            )


def _check_order_in_time(history: History, logs: Mapping[int, Log]) -> Iterator[Problem]:
    places: dict[tuple[int, Value], int] = {}
    for partition, log in logs.items():
        for offset, value in log.items():
            places[partition, value] = min(offset, places.get((partition, value), offset))
    acknowledged = _acknowledged_by(history)
    for event in history.sent:
        place = places.get((event.partition, event.value))
        current = _known(acknowledged, event.partition, event.at_s)
        if place is not None and current is not None and place < current:
            yield Problem(
                "order against time",
                f"partition {event.partition}: {event.value} was sent {_when(history, event.at_s)} and is at"
                f" offset {place}, though offset {current} was acknowledged before",
            )


def _acknowledged_by(history: History) -> Marks:
    """By partition: moments, and the highest offset that was acknowledged by then."""
    marks: Marks = {}
    for event in sorted(history.acknowledged, key=lambda event: event.at_s):
        if event.offset is not None:
            _note(marks, event.partition, event.at_s, event.offset)
    return marks


def _note(marks: Marks, partition: int, at_s: float, offset: int) -> None:
    times, offsets = marks.setdefault(partition, ([], []))
    times.append(at_s)
    offsets.append(max(offset, offsets[-1]) if offsets else offset)


def _known(marks: Marks, partition: int, before_s: float) -> int | None:
    """The highest offset of a partition before (not at) that moment."""
    times, offsets = marks.get(partition, ([], []))
    place = bisect_left(times, before_s)
    return offsets[place - 1] if place else None


def _check_watermarks(history: History, logs: Mapping[int, Log]) -> Iterator[Problem]:
    acknowledged = _acknowledged_by(history)
    answered = _answered_by(history)
    latest: dict[tuple[str, int], int] = {}
    for event in sorted(history.watermarks, key=lambda event: event.at_s):
        end = max(logs.get(event.partition, {}), default=-1) + 1
        what = (
            f"partition {event.partition}: the latest offset was {event.offset}"
            f" {_when(history, event.at_s)}, as {event.broker} said"
        )
        if event.offset > end:
            yield Problem("high watermark above the log", f"{what}; the log ends at {end}")
        current = _known(acknowledged, event.partition, event.asked_s - NEWS_S)
        if current is not None and event.offset <= current:
            yield Problem(
                "high watermark below an acknowledged record",
                f"{what}, though offset {current} had long been acknowledged",
            )
        # One client asks each broker, one question after the other.
        before = latest.get((event.broker, event.partition), 0)
        elsewhere = _known(answered, event.partition, event.asked_s - NEWS_S)
        if event.offset < max(before, elsewhere or 0):
            yield Problem("high watermark went back", f"{what}, after {max(before, elsewhere or 0)}")
        latest[event.broker, event.partition] = event.offset


def _answered_by(history: History) -> Marks:
    """By partition: moments, and the highest latest offset that was answered by then."""
    marks: Marks = {}
    for event in sorted(history.watermarks, key=lambda event: event.at_s):
        _note(marks, event.partition, event.at_s, event.offset)
    return marks


def _when(history: History, at_s: float, verb: str = "") -> str:
    """`at +3.412 s, 0.391 s after "kill -9 of leader 2"`, counted from the first event."""
    begun_s = history.sent[0].at_s if history.sent else 0.0
    text = f"{verb} at +{at_s - begun_s:.3f} s".lstrip()
    earlier = [fault for fault in history.faults if fault.at_s <= at_s]
    if earlier:
        return f'{text}, {at_s - earlier[-1].at_s:.3f} s after "{earlier[-1].name}"'
    if history.faults:
        return f'{text}, before "{history.faults[0].name}"'
    return text
