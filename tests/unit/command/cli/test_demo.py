"""What the demo sends when some of it is in the topic already."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainstem.cli.demo import Unsent
from mainstem.records.lines import Record
from mainstem.records.partitioner import partition_of

PARTITIONS = 3
KEYS = [b"UA", b"AA", b"B6", b"DL", b"EV"]
Events = st.lists(st.sampled_from(KEYS).map(lambda key: (b"flight", key, 0)), max_size=50)


def _number(events: list[tuple[bytes, bytes, int]], start: int = 0) -> list[Record]:
    """The same events with a time of their own each, so that they can be distinguished."""
    return [(value, key, start + number) for number, (value, key, _) in enumerate(events)]


@given(st.data(), Events, Events)
def test_what_was_stored_and_what_is_sent_are_all_events_in_order(
    data: st.DataObject, first: list[tuple[bytes, bytes, int]], second: list[tuple[bytes, bytes, int]]
) -> None:
    batches = [_number(first), _number(second, start=len(first))]
    in_partition: dict[int, list[Record]] = {partition: [] for partition in range(PARTITIONS)}
    for event in batches[0] + batches[1]:
        in_partition[partition_of(event[1] or b"", PARTITIONS)].append(event)
    stored = {
        partition: data.draw(st.integers(0, len(events)), label=f"stored in {partition}")
        for partition, events in in_partition.items()
    }
    unsent = Unsent(stored)
    sent = [event for batch in batches for event in unsent.of(batch)]
    for partition, events in in_partition.items():
        there = [event for event in sent if partition_of(event[1] or b"", PARTITIONS) == partition]
        assert events[: stored[partition]] + there == events


def test_from_an_empty_topic_on_all_is_sent_and_days_are_counted() -> None:
    day_ms = 86_400_000
    events: list[Record] = [(b"a", b"UA", 0), (b"b", b"UA", day_ms - 1), (b"c", b"UA", 5 * day_ms)]
    unsent = Unsent(Counter(dict.fromkeys(range(PARTITIONS), 0)))
    assert list(unsent.of(events)) == events
    assert unsent.days == {0, 5}
    assert unsent.stored_count == 0
