"""The topics that a DataFrame reads, as brokers answer: names, ids, and the offsets there are.

Must not live here: what is read of them (`offsets`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mainstem_loader.errors import SettingsError, TopicUnknownError
from mainstem_loader.kafka.fetch import TopicReader
from mainstem_loader.kafka.leaders import topic_names
from mainstem_loader.spark.source.offsets import Positions, TopicNow, TopicsNow
from mainstem_loader.spark.source.options import ReadOptions


def topics_now(
    options: ReadOptions, positions: Sequence[Positions] = (), missing_is_loss: bool = True
) -> TopicsNow:
    """Ask brokers for all topics of a read.

    Args:
        options: what is read.
        positions: whose times are looked up.
        missing_is_loss: whether a named topic that does not exist is an error; else it is left out.

    Raises:
        LoaderError: of the loader's Kafka client; SettingsError where an assigned partition does not exist.
    """
    names: Sequence[str] = options.topics
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        names = [name for name in topic_names(options.brokers) if pattern.fullmatch(name)]
    times_ms = {time_ms for position in positions for time_ms in position.times_ms()}
    now: dict[str, TopicNow] = {}
    for name in names:
        try:
            with TopicReader(options.brokers, name, options.isolation) as reader:
                bounds = reader.offsets()
                offset_at = {time_ms: reader.offsets_at(time_ms) for time_ms in times_ms}
                now[name] = TopicNow(reader.topic_id, bounds, offset_at)
        except TopicUnknownError:
            # A topic that matched the pattern was deleted meanwhile.
            if missing_is_loss and options.pattern is None:
                raise
            continue
        if options.assigned is not None:
            now[name] = _assigned(name, now[name], options.assigned[name])
    return now


def _assigned(name: str, topic: TopicNow, partitions: frozenset[int]) -> TopicNow:
    if unknown := partitions - topic.bounds.keys():
        raise SettingsError(
            f"Topic {name} has no partition {min(unknown)}, which assign names; it has {len(topic.bounds)},"
            " beginning with 0."
        )
    return replace(topic, bounds={number: topic.bounds[number] for number in partitions})
