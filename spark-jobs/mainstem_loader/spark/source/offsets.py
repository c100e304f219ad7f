"""Which offsets a DataFrame or a micro-batch reads. Pure: no brokers, no clock.

Three forms of offsets meet here:

    position    what a person asks for: an offset, an edge of the partition, or a time
    offset      a place in one partition: the next record to read
    `StreamOffset`   where a stream is in all its topics; Spark keeps it in the checkpoint, as JSON

The JSON of a stream names each topic by its id, so that a topic that is created anew under the same name is
not continued at offsets of the one before:

    {"clicks": {"id": "u9ZkmsJZRqOkHlpXJVSrrA", "offsets": {"0": 1200, "1": 1187}}}

The form without ids of Spark's own connector, {"clicks": {"0": 1200}}, is read, too: a checkpoint of a query
that was started with it can be continued.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from mainstem_loader.errors import OffsetsLostError, SettingsError, TopicRecreatedError
from mainstem_loader.ranges import equal_shares

TopicPartition = tuple[str, int]

# As in the JSON of Spark's connector, and in ListOffsets.
LATEST: Final = -1
EARLIEST: Final = -2


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this timestamp or a later one; where there is none, the end of the partition if
    `or_latest`, else an error.
    """

    timestamp_ms: int
    or_latest: bool = False


Position = int | AtTime


@dataclass(frozen=True, slots=True)
class Positions:
    """A position for each partition: its own, or `default`, which is None where all must be named."""

    default: Position | None
    by_partition: Mapping[TopicPartition, Position] = field(default_factory=dict)

    def of(self, part: TopicPartition) -> Position:
        """The position of a partition.

        Raises:
            SettingsError: none is named.
        """
        position = self.by_partition.get(part, self.default)
        if position is None:
            raise SettingsError(
                f"Offsets or times are named for some partitions, and for partition {part[1]} of topic"
                f" {part[0]}"
                " they are missing; name all partitions (-2 is the earliest offset, -1 the latest)."
            )
        return position

    def times_ms(self) -> set[int]:
        """All timestamps whose offsets brokers must look up."""
        positions = [self.default, *self.by_partition.values()]
        return {position.timestamp_ms for position in positions if isinstance(position, AtTime)}


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as its brokers know it at one moment.

    Attributes:
        topic_id: see `TopicLeaders.topic_id`.
        bounds: for each partition the first offset it holds, and the end of what may be read, exclusive.
        offset_at: for some timestamps the first offset of each partition that is as new; None for none.
    """

    topic_id: str
    bounds: Mapping[int, tuple[int, int]]
    offset_at: Mapping[int, Mapping[int, int | None]] = field(default_factory=dict)


TopicsNow = Mapping[str, TopicNow]


@dataclass(frozen=True, slots=True)
class Split:
    """What one Spark task reads: the offsets `start` to `end`, exclusive."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Where a stream is in one topic. `topic_id` is None in offsets of Spark's connector."""

    topic_id: str | None
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a stream is: the next offset to read of each partition that it knows."""

    topics: Mapping[str, TopicOffset]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object. Equal offsets have equal texts, because Spark compares texts."""
        return {
            topic: {
                "id": at.topic_id,
                "offsets": {str(partition): at.offsets[partition] for partition in sorted(at.offsets)},
            }
            for topic, at in sorted(self.topics.items())
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StreamOffset:
        """The inverse of `to_json`; also reads the form of Spark's connector.

        Raises:
            SettingsError: it is of neither form.
        """
        topics: dict[str, TopicOffset] = {}
        try:
            for topic, at in fields.items():
                offsets = at.get("offsets", at)
                topics[topic] = TopicOffset(
                    at.get("id"), {int(partition): int(offset) for partition, offset in offsets.items()}
                )
        except (AttributeError, TypeError, ValueError, KeyError) as error:
            raise SettingsError(
                "The checkpoint's offsets are not of this data source; use a new checkpoint location."
            ) from error
        return cls(topics)


def up_to(now: TopicsNow, last: StreamOffset) -> TopicsNow:
    """`now` without what came after `last`: topics, partitions and records."""
    bounded: dict[str, TopicNow] = {}
    for topic, at in now.items():
        if topic in last.topics and last.topics[topic].topic_id == at.topic_id:
            ends = last.topics[topic].offsets
            bounded[topic] = TopicNow(
                at.topic_id,
                {
                    partition: (earliest, max(earliest, min(latest, ends[partition])))
                    for partition, (earliest, latest) in at.bounds.items()
                    if partition in ends
                },
            )
    return bounded


def at_end_of(now: TopicsNow) -> StreamOffset:
    """The end of all topics."""
    return StreamOffset(
        {
            topic: TopicOffset(
                at.topic_id, {partition: latest for partition, (_, latest) in at.bounds.items()}
            )
            for topic, at in now.items()
        }
    )


def batch_splits(
    now: TopicsNow, starting: Positions, ending: Positions, fail_on_data_loss: bool
) -> list[Split]:
    """The reads of a batch, one for each partition that has something to read.

    Raises:
        OffsetsLostError: a named offset does not exist, and that is a failure.
        SettingsError: positions do not name the partitions that there are.
    """
    _check_named(now, starting)
    _check_named(now, ending)
    splits: list[Split] = []
    for part, (earliest, latest) in _partitions(now):
        at = _lookup(now, part)
        start = _resolve(starting.of(part), part, earliest, latest, at)
        end = _resolve(ending.of(part), part, earliest, latest, at)
        for edge, offset in (("start", start), ("end", end)):
            if not earliest <= offset <= latest and fail_on_data_loss:
                raise OffsetsLostError(
                    f"A read is to {edge} at offset {offset} of partition {part[1]} of topic {part[0]},"
                    " which holds"
                    f" offsets {earliest} to {latest}; name others, or set failOnDataLoss to false to read"
                    " what"
                    " there is."
                )
        start, end = max(start, earliest), min(end, latest)
        if start < end:
            splits.append(Split(part[0], now[part[0]].topic_id, part[1], start, end))
    return splits


def stream_start(now: TopicsNow, starting: Positions) -> StreamOffset:
    """Where a new stream begins. A named offset that is gone is found by the first micro-batch.

    Raises:
        SettingsError: positions do not name the partitions that there are.
    """
    _check_named(now, starting)
    offsets: dict[str, dict[int, int]] = {topic: {} for topic in now}
    for part, (earliest, latest) in _partitions(now):
        offset = _resolve(starting.of(part), part, earliest, latest, _lookup(now, part))
        offsets[part[0]][part[1]] = offset
    return StreamOffset({topic: TopicOffset(now[topic].topic_id, offsets[topic]) for topic in now})


def stream_end(
    start: StreamOffset, now: TopicsNow, offsets_max: int | None, fail_on_data_loss: bool
) -> StreamOffset:
    """Where the next micro-batch ends: at what there is now, or `offsets_max` offsets from `start`, with an
    equal share for each partition. Partitions that `start` does not know are new, and are read from their
    beginning.

    Raises:
        OffsetsLostError, TopicRecreatedError: records that were not read are gone, and that is a failure.
    """
    begins = _begins(start, now, fail_on_data_loss)
    ends = {
        topic: {partition: latest for partition, (_, latest) in at.bounds.items()}
        for topic, at in now.items()
    }
    if offsets_max is not None:
        backlog = {part: max(ends[part[0]][part[1]] - begin, 0) for part, begin in begins.items()}
        shares = equal_shares(backlog, offsets_max)
        for part, share in shares.items():
            ends[part[0]][part[1]] = begins[part] + share if backlog[part] else ends[part[0]][part[1]]
    return StreamOffset({topic: TopicOffset(now[topic].topic_id, offsets) for topic, offsets in ends.items()})


def stream_splits(
    start: StreamOffset, end: StreamOffset, now: TopicsNow, fail_on_data_loss: bool
) -> list[Split]:
    """The reads of a micro-batch, the same however often it is planned as long as nothing is deleted.

    Raises:
        OffsetsLostError, TopicRecreatedError: records of the micro-batch are gone, and that is a failure.
    """
    for topic, at in end.topics.items():
        if fail_on_data_loss and (topic not in now or at.topic_id not in (None, now[topic].topic_id)):
            raise _recreated(topic)
    here = {
        topic: at
        for topic, at in now.items()
        if topic in end.topics and end.topics[topic].topic_id in (None, at.topic_id)
    }
    begins = _begins(start, here, fail_on_data_loss)
    splits: list[Split] = []
    for part, begin in begins.items():
        stop = end.topics[part[0]].offsets.get(part[1], 0)
        _, latest = here[part[0]].bounds[part[1]]
        if stop > latest and fail_on_data_loss:
            raise _truncated(part, latest, stop)
        stop = min(stop, latest)
        if begin < stop:
            splits.append(Split(part[0], here[part[0]].topic_id, part[1], begin, stop))
    return splits


def divide_splits(splits: Sequence[Split], count_min: int | None, records_max: int | None) -> list[Split]:
    """The same offsets in at least `count_min` splits of at most `records_max` offsets, as far as there are
    as many offsets. Splits of a partition stay in order and are of about equal size.
    """
    size_max = max((split.end - split.start for split in splits), default=1)
    if count_min is not None:
        size_max = min(size_max, sum(split.end - split.start for split in splits) // count_min)
    if records_max is not None:
        size_max = min(size_max, records_max)
    divided: list[Split] = []
    for split in splits:
        size = split.end - split.start
        pieces = -(-size // max(size_max, 1))
        edges = [split.start + size * number // pieces for number in range(pieces + 1)]
        divided += [
            Split(split.topic, split.topic_id, split.partition, begin, end) for begin, end in pairwise(edges)
        ]
    return divided


def _begins(start: StreamOffset, now: TopicsNow, fail_on_data_loss: bool) -> dict[TopicPartition, int]:
    """For each partition that there is the first offset to read.

    What `start` names and `now` has not, or has anew, is a loss. A partition that `start` does not name is
    new: nothing of it has been read, so it begins at 0, and what retention has deleted by now is a loss.
    """
    if fail_on_data_loss:
        for topic, at in start.topics.items():
            if topic not in now or at.topic_id not in (None, now[topic].topic_id):
                raise _recreated(topic)
    begins: dict[TopicPartition, int] = {}
    for part, (earliest, latest) in _partitions(now):
        topic, partition = part
        at = start.topics.get(topic, TopicOffset(None, {}))
        is_same = at.topic_id in (None, now[topic].topic_id)
        begin = at.offsets.get(partition, 0) if is_same else 0
        if earliest <= begin <= latest:
            begins[part] = begin
            continue
        if fail_on_data_loss:
            raise (_deleted(part, begin, earliest) if begin < earliest else _truncated(part, latest, begin))
        begins[part] = earliest if begin < earliest else latest
    return begins


_CONTINUE: Final = (
    "To continue with the records there are, set failOnDataLoss to false; to begin at the beginning, use a"
    " new"
    " checkpoint location."
)


def _deleted(part: TopicPartition, begin: int, earliest: int) -> OffsetsLostError:
    return OffsetsLostError(
        f"Offsets {begin} to {earliest - 1} of partition {part[1]} of topic {part[0]} were deleted before"
        " they were"
        f" read. {_CONTINUE}"
    )


def _truncated(part: TopicPartition, latest: int, offset: int) -> OffsetsLostError:
    return OffsetsLostError(
        f"Partition {part[1]} of topic {part[0]} ends at offset {latest}, and the stream has reached"
        f" {offset}: it was"
        f" truncated. {_CONTINUE}"
    )


def _recreated(topic: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"Topic {topic} was deleted, or deleted and created anew, since the stream has read it. {_CONTINUE}"
    )


def _partitions(now: TopicsNow) -> Iterator[tuple[TopicPartition, tuple[int, int]]]:
    for topic in sorted(now):
        for partition in sorted(now[topic].bounds):
            yield (topic, partition), now[topic].bounds[partition]


def _check_named(now: TopicsNow, positions: Positions) -> None:
    unknown: Iterable[TopicPartition] = (
        part for part in positions.by_partition if part[0] not in now or part[1] not in now[part[0]].bounds
    )
    for topic, partition in unknown:
        raise SettingsError(
            f"Offsets or times are named for partition {partition} of topic {topic}, which is not read;"
            " leave it out,"
            " or correct its name."
        )


def _lookup(now: TopicsNow, part: TopicPartition) -> Mapping[int, int | None]:
    return {timestamp_ms: offsets.get(part[1]) for timestamp_ms, offsets in now[part[0]].offset_at.items()}


def _resolve(
    position: Position, part: TopicPartition, earliest: int, latest: int, offset_at: Mapping[int, int | None]
) -> int:
    if not isinstance(position, AtTime):
        return {EARLIEST: earliest, LATEST: latest}.get(position, position)
    offset = offset_at[position.timestamp_ms]
    if offset is not None:
        # A transaction that is open may hold younger records than may be read.
        return min(offset, latest)
    if not position.or_latest:
        raise SettingsError(
            f"Partition {part[1]} of topic {part[0]} has no record with timestamp {position.timestamp_ms} or"
            " later;"
            " name an earlier time, or set startingOffsetsByTimestampStrategy to latest."
        )
    return latest
