"""Deleting records that are loaded and old, so that retention can wait for loads (KIP-107).

This is all that the loader ever changes in a topic. Must not live here: which records are loaded, and how old
they have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from mainstem_loader.errors import LoaderError, SettingsError, UnsupportedBrokerError
from mainstem_loader.kafka.connection import DELETE_RECORDS, BrokerConnection
from mainstem_loader.kafka.leaders import FORBIDDEN, BrokerSettings, TopicLeaders, TryAgainError

FOLLOWERS_MS_MAX: Final = 5_000
"""For as long a leader waits for its followers to delete too; those that are away do so when they return."""
_DONE: Final = (
    ErrorCode.none,
    ErrorCode.request_timed_out,  # the leader has deleted, and its followers will
    ErrorCode.offset_out_of_range,  # others have deleted more, or another leader's log ends earlier
)


def delete_records_before(
    brokers: BrokerSettings, topic: str, topic_id: str, offsets: Callable[[], Mapping[int, int]]
) -> Mapping[int, int]:
    """Let partitions begin at some offsets. Brokers free the space of segments that are before them.

    Args:
        brokers: see there.
        topic, topic_id: of the topic; one that was created anew under this name is refused.
        offsets: for each partition the first offset that stays. It is called before each request, because
            what may be deleted can become less while a broker waits for its followers.

    Returns:
        Where each partition was let begin.

    Raises:
        LoaderError: a broker refused, or was away for too long; some partitions may be done.
    """
    done: dict[int, int] = {}
    if not offsets():
        return done
    with TopicLeaders(brokers, topic, topic_id) as leaders:
        leaders.find()
        while left := offsets().keys() - done.keys():
            first = min(left)
            led = {part for part in left if leaders.leader_of(part) == leaders.leader_of(first)}
            done.update(leaders.ask(first, partial(_delete, brokers, topic, led, offsets)))
    return done


def _delete(
    brokers: BrokerSettings,
    topic: str,
    partitions: set[int],
    offsets: Callable[[], Mapping[int, int]],
    connection: BrokerConnection,
) -> Mapping[int, int]:
    """Where the partitions of one leader begin now that were done: at least one, or TryAgainError."""
    offset_of = {part: offset for part, offset in offsets().items() if part in partitions}
    if not offset_of:
        return {}  # nothing of them may be deleted any more
    schema = connection.schema(DELETE_RECORDS)
    response = connection.call(
        DELETE_RECORDS,
        topics=(
            schema.DeleteRecordsTopic(
                name=topic,
                partitions=tuple(
                    schema.DeleteRecordsPartition(partition_index=partition, offset=offset)
                    for partition, offset in offset_of.items()
                ),
            ),
        ),
        timeout=timedelta(milliseconds=min(brokers.request_timeout_ms, FOLLOWERS_MS_MAX)),
    )
    code_of = {
        answer.partition_index: answer.error_code
        for of_topic in response.topics
        for answer in of_topic.partitions
    }
    done = {partition: offset for partition, offset in offset_of.items() if code_of.get(partition) in _DONE}
    if done:
        return done
    code = code_of.get(min(offset_of))
    if code is None:
        raise UnsupportedBrokerError(f"{connection.address} did not answer for partitions of {topic}.")
    if not (code.retriable or code is ErrorCode.not_leader_or_follower):
        raise _refusal(topic, code)
    raise TryAgainError(f"the broker answered {code.name.upper()}")


def _refusal(topic: str, code: ErrorCode) -> LoaderError:
    if code in FORBIDDEN:
        return SettingsError(
            f"Records of topic {topic} may not be deleted without authorization; ask for DELETE on it."
        )
    if code is ErrorCode.policy_violation:
        return SettingsError(
            f"The broker deletes no records of topic {topic}, because its cleanup.policy is not delete; leave"
            " its retention to compaction."
        )
    return UnsupportedBrokerError(
        f"The broker refused to delete records of topic {topic} with {code.name.upper()}; its log says why."
    )
