"""Which offsets batches and micro-batches read (R34)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem_loader.errors import OffsetsLostError, SettingsError, TopicRecreatedError
from mainstem_loader.spark.source.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    Positions,
    Split,
    StreamOffset,
    TopicNow,
    TopicOffset,
    at_end_of,
    batch_splits,
    divide_splits,
    stream_end,
    stream_splits,
    stream_start,
    up_to,
)

NOW = {"t": TopicNow("id", {0: (0, 100), 1: (20, 50)})}
ALL = (Positions(EARLIEST), Positions(LATEST))


def at(*offsets: int, topic_id: str | None = "id") -> StreamOffset:
    return StreamOffset({"t": TopicOffset(topic_id, dict(enumerate(offsets)))})


def test_a_batch_reads_each_partition_between_its_positions() -> None:
    assert batch_splits(NOW, *ALL, True) == [Split("t", "id", 0, 0, 100), Split("t", "id", 1, 20, 50)]
    named = Positions(None, {("t", 0): 90, ("t", 1): LATEST})
    assert batch_splits(NOW, named, Positions(LATEST), True) == [Split("t", "id", 0, 90, 100)]


def test_a_time_is_the_first_record_as_new_and_the_end_where_there_is_none() -> None:
    now = {"t": TopicNow("id", {0: (0, 100), 1: (20, 50)}, {7: {0: 40, 1: None}})}
    assert batch_splits(now, Positions(EARLIEST), Positions(AtTime(7, or_latest=True)), True) == [
        Split("t", "id", 0, 0, 40),
        Split("t", "id", 1, 20, 50),
    ]
    with pytest.raises(SettingsError, match="Partition 1 of topic t has no record with timestamp 7"):
        batch_splits(now, Positions(AtTime(7)), Positions(LATEST), True)


def test_an_offset_that_does_not_exist_fails_a_batch_or_is_moved_to_one_that_does() -> None:
    named = Positions(None, {("t", 0): 5, ("t", 1): 5})
    with pytest.raises(OffsetsLostError, match="start at offset 5 of partition 1 of topic t"):
        batch_splits(NOW, named, Positions(LATEST), True)
    beyond = Positions(None, {("t", 0): 500, ("t", 1): 30})
    assert batch_splits(NOW, named, beyond, False) == [
        Split("t", "id", 0, 5, 100),
        Split("t", "id", 1, 20, 30),
    ]


@pytest.mark.parametrize(
    ("positions", "reason"),
    [({("t", 0): 1}, "partition 1 of topic t they are missing"), ({("u", 0): 1}, "partition 0 of topic u")],
)
def test_offsets_must_name_the_partitions_that_there_are(
    positions: dict[tuple[str, int], int], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        batch_splits(NOW, Positions(None, {**positions}), Positions(LATEST), True)


def test_a_stream_offset_survives_json_and_equal_ones_have_equal_texts() -> None:
    offset = StreamOffset({"t": TopicOffset("id", {10: 1, 2: 7}), "a": TopicOffset("b", {0: 0})})
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset
    shuffled = StreamOffset({"a": TopicOffset("b", {0: 0}), "t": TopicOffset("id", {2: 7, 10: 1})})
    assert json.dumps(shuffled.to_json()) == json.dumps(offset.to_json())


def test_offsets_of_sparks_connector_are_read_and_others_refused() -> None:
    assert StreamOffset.from_json({"t": {"0": 23, "1": 45}}) == at(23, 45, topic_id=None)
    with pytest.raises(SettingsError, match="new checkpoint"):
        StreamOffset.from_json({"t": 5})
    with pytest.raises(SettingsError, match="new checkpoint"):
        StreamOffset.from_json({"t": {"zero": 5}})


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_stream_continues_the_checkpoint_of_sparks_own_connector(fail_on_data_loss: bool) -> None:
    """Its offsets name no topic ids."""
    start = at(90, 40, topic_id=None)
    assert stream_end(start, NOW, 10, fail_on_data_loss) == at(95, 45)
    assert stream_splits(start, at(95, 50, topic_id=None), NOW, fail_on_data_loss) == [
        Split("t", "id", 0, 90, 95),
        Split("t", "id", 1, 40, 50),
    ]


def test_a_stream_begins_where_it_is_named_and_reads_on_to_what_there_is() -> None:
    start = stream_start(NOW, Positions(LATEST))
    assert start == at(100, 50)
    now = {"t": TopicNow("id", {0: (0, 120), 1: (20, 50)})}
    end = stream_end(start, now, None, True)
    assert end == at(120, 50)
    assert stream_splits(start, end, now, True) == [Split("t", "id", 0, 100, 120)]
    assert stream_splits(end, end, now, True) == []


def test_a_limit_is_shared_among_partitions_and_none_starves() -> None:
    now = {"t": TopicNow("id", {0: (0, 1_000_000), 1: (0, 3), 2: (0, 0)})}
    assert stream_end(at(0, 0, 0), now, 100, True) == at(97, 3, 0)
    assert stream_end(at(0, 0, 0), now, 10_000_000, True) == at(1_000_000, 3, 0)


def test_a_partition_that_is_added_later_is_read_from_its_beginning() -> None:
    now = {"t": TopicNow("id", {0: (0, 10), 1: (0, 5)}), "new": TopicNow("n", {0: (0, 2)})}
    end = stream_end(at(10), now, None, True)
    assert stream_splits(at(10), end, now, True) == [Split("new", "n", 0, 0, 2), Split("t", "id", 1, 0, 5)]


def test_records_that_retention_deleted_are_a_loss() -> None:
    with pytest.raises(OffsetsLostError, match="Offsets 10 to 19 of partition 1 of topic t were deleted"):
        stream_end(at(0, 10), NOW, None, True)
    end = stream_end(at(0, 10), NOW, None, False)
    assert stream_splits(at(0, 10), end, NOW, False)[1] == Split("t", "id", 1, 20, 50)


def test_a_new_partition_whose_first_records_are_gone_is_a_loss() -> None:
    with pytest.raises(OffsetsLostError, match="Offsets 0 to 19 of partition 1"):
        stream_end(at(0), NOW, None, True)


def test_a_truncated_partition_is_a_loss() -> None:
    with pytest.raises(OffsetsLostError, match="ends at offset 50, and the stream has reached 60"):
        stream_end(at(0, 60), NOW, None, True)
    assert stream_end(at(0, 60), NOW, None, False) == at(100, 50)
    with pytest.raises(OffsetsLostError, match="ends at offset 100, and the stream has reached 110"):
        stream_splits(at(0, 50), at(110, 50), NOW, True)
    assert stream_splits(at(0, 50), at(110, 50), NOW, False) == [Split("t", "id", 0, 0, 100)]


def test_a_topic_that_is_created_anew_is_a_loss_and_then_read_from_its_beginning() -> None:
    start = at(100, 50, topic_id="old")
    with pytest.raises(TopicRecreatedError, match="Topic t was deleted, or deleted and created anew"):
        stream_end(start, NOW, None, True)
    end = stream_end(start, NOW, None, False)
    assert stream_splits(start, end, NOW, False) == [Split("t", "id", 0, 0, 100), Split("t", "id", 1, 20, 50)]
    with pytest.raises(TopicRecreatedError):
        stream_splits(start, at(200, 60, topic_id="old"), NOW, True)
    assert stream_splits(start, at(200, 60, topic_id="old"), NOW, False) == []


def test_a_topic_that_is_gone_is_a_loss() -> None:
    with pytest.raises(TopicRecreatedError):
        stream_end(at(1, 20), {}, None, True)
    assert stream_end(at(1, 20), {}, None, False) == StreamOffset({})


def test_a_trigger_that_ends_reads_nothing_that_comes_later() -> None:
    last = at_end_of(NOW)
    later = {"t": TopicNow("id", {0: (0, 500), 1: (45, 50), 2: (0, 9)}), "u": TopicNow("u", {0: (0, 1)})}
    assert stream_end(at(0, 45), up_to(later, last), None, True) == at(100, 50)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=8),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(1, 2000),
)
def test_divided_splits_cover_the_same_offsets_in_order(
    ranges: list[tuple[int, int]], count_min: int | None, records_max: int | None
) -> None:
    splits = [
        Split("t", "id", partition, start, start + size)
        for partition, (start, size) in enumerate(ranges)
        if size
    ]
    divided = divide_splits(splits, count_min, records_max)
    for whole in splits:
        parts = [part for part in divided if part.partition == whole.partition]
        assert [part.start for part in parts] == [whole.start, *(part.end for part in parts[:-1])]
        assert parts[-1].end == whole.end
    total = sum(split.end - split.start for split in splits)
    assert len(divided) >= min(total, count_min or 0)
    assert all(0 < part.end - part.start <= (records_max or total) for part in divided)
