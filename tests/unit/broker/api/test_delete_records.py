from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import BROKER_ID, NOW_MS, LocalBroker
from tests.unit.broker.replica.replicas import LIFE, state_of

from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import RequestTimedOut


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_up_to_an_offset(broker: LocalBroker, version: int) -> None:
    """R4; -1 is the high watermark."""
    broker.create("t", (1, 1, 1, 2))
    for index in range(3):
        broker.append("t", [b"a", b"b", b"c"], index=index)

    offsets = {0: 2, 1: -1, 2: 4, 3: 0, 9: 0}
    request = {
        "topics": [
            {
                "name": "t",
                "partitions": [{"partition_index": i, "offset": offset} for i, offset in offsets.items()],
            }
        ],
        "timeout": 1000,
    }
    (answer,) = (await broker.answer("DeleteRecords", version, request))["topics"]
    assert [
        (p["partition_index"], p["low_watermark"], ErrorCode(p["error_code"]).name)
        for p in answer["partitions"]
    ] == [
        (0, 2, "none"),
        (1, 3, "none"),
        (2, -1, "offset_out_of_range"),
        (3, -1, "not_leader_or_follower"),
        (9, -1, "unknown_topic_or_partition"),
    ]
    assert broker.partition("t", 0).log.log_start_offset == 2


@pytest.mark.parametrize(
    ("topic", "policy", "error"),
    [
        ("__consumer_offsets", "compact", "invalid_topic_exception"),
        ("__transaction_state", "delete", "invalid_topic_exception"),
        ("t", "compact", "policy_violation"),
        ("t", "compact,delete", "none"),
        ("t", "", "none"),
    ],
)
async def test_records_that_must_stay_are_not_deleted(
    broker: LocalBroker, topic: str, policy: str, error: str
) -> None:
    """R4: what coordinators keep, and the last record of each key. The codes are Apache Kafka's."""
    broker.create(topic)
    broker.append(topic, [b"a", b"b"])
    log = broker.partition(topic).log
    log.update_config(replace(log.config, cleanup_policy=policy))
    partitions = [{"partition_index": 0, "offset": 1}]
    request = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000}
    (answer,) = (await broker.answer("DeleteRecords", 2, request))["topics"]
    assert ErrorCode(answer["partitions"][0]["error_code"]).name == error
    assert log.log_start_offset == (1 if error == "none" else 0)


# --- Followers ---


class WatchedCluster:
    """Waits for changes of the view as the member does: `changed` is to be called after each."""

    def __init__(self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = asyncio.Event()
        monkeypatch.setattr(broker.cluster, "wait_until", self._wait_until)

    def changed(self) -> None:
        self._changed.set()

    async def _wait_until(self, reached: Callable[[], bool], timeout_ms: float) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RequestTimedOut("It was not carried out.") from None


@pytest.fixture
def cluster(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> WatchedCluster:
    return WatchedCluster(broker, monkeypatch)


def _replicated(broker: LocalBroker, partitions: int = 1) -> None:
    """Topic `t` with four records in each partition, led here, with followers 2 and 3 that have them."""
    replicas = dict.fromkeys(range(partitions), (BROKER_ID, 2, 3))
    broker.view.set_topic(TopicAssignment("t", uuid4(), replicas), {})
    broker.elect("t")
    for index in range(partitions):
        broker.append("t", [b"a", b"b", b"c", b"d"], index=index)
        for follower in (2, 3):
            _fetch(broker, follower, log_start_offset=0, index=index)


def _fetch(broker: LocalBroker, follower: int, *, log_start_offset: int, index: int = 0) -> None:
    """A follower that has everything fetches, and says where its log starts."""
    broker.partition("t", index).read_as_follower(
        follower,
        LIFE,
        4,
        0,
        1000,
        leader_epoch=0,
        min_one_batch=True,
        now_ms=NOW_MS,
        log_start_offset=log_start_offset,
    )


def _delete(
    broker: LocalBroker, offset: int, timeout_ms: int = 30_000, partitions: int = 1
) -> asyncio.Task[list[tuple[int, str]]]:
    async def delete() -> list[tuple[int, str]]:
        requested = [{"partition_index": index, "offset": offset} for index in range(partitions)]
        request = {"topics": [{"name": "t", "partitions": requested}], "timeout": timeout_ms}
        (answer,) = (await broker.answer("DeleteRecords", 2, request))["topics"]
        return [(p["low_watermark"], ErrorCode(p["error_code"]).name) for p in answer["partitions"]]

    return asyncio.create_task(delete())


async def _turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_deletion_is_answered_when_the_last_follower_has_moved(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4, R19: a follower that is elected earlier would bring deleted records back."""
    _replicated(broker)
    deletion = _delete(broker, 3)
    await _turns()
    assert broker.partition("t").log.log_start_offset == 3

    _fetch(broker, 2, log_start_offset=3)
    _fetch(broker, 3, log_start_offset=2)
    await _turns()
    assert not deletion.done()

    _fetch(broker, 3, log_start_offset=3)
    assert await deletion == [(3, "none")]


async def test_a_deletion_that_a_follower_does_not_follow_times_out_and_stands(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4: the low watermark is the lowest start of the logs."""
    _replicated(broker)
    _fetch(broker, 2, log_start_offset=1)
    _fetch(broker, 3, log_start_offset=2)

    assert await _delete(broker, 3, timeout_ms=20) == [(1, "request_timed_out")]
    assert await _delete(broker, 3, timeout_ms=0) == [(1, "request_timed_out")]
    assert await _delete(broker, 1, timeout_ms=0) == [(1, "none")]
    assert broker.partition("t").log.log_start_offset == 3


async def test_a_deletion_does_not_wait_for_brokers_that_are_gone(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4: a dead broker is out of the in-sync set before it can lead."""
    _replicated(broker)
    broker.set_live(1, 2)
    deletion = _delete(broker, -1)
    await _turns()
    assert not deletion.done()

    broker.set_live(1)
    cluster.changed()
    assert await deletion == [(4, "none")]


async def test_a_deletion_does_not_wait_for_replicas_that_are_moved_away(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4, R20."""
    _replicated(broker)
    _fetch(broker, 2, log_start_offset=4)
    deletion = _delete(broker, -1)
    await _turns()
    assert not deletion.done()

    partition = broker.partition("t")
    assert partition.state is not None
    partition.update_state(partition.state, (BROKER_ID, 2), NOW_MS)
    assert await deletion == [(4, "none")]


async def test_a_leader_that_is_replaced_does_not_confirm_a_deletion(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4, R19: the next leader may not know of it."""
    _replicated(broker)
    deletion = _delete(broker, 3)
    await _turns()

    broker.set_state("t", 0, state_of(2, 1, (1, 2, 3), 1))
    assert await deletion == [(-1, "not_leader_or_follower")]


async def test_partitions_of_a_deletion_are_waited_for_together(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R4: those whose followers have moved are confirmed though others time out."""
    _replicated(broker, partitions=3)
    deletion = _delete(broker, 2, timeout_ms=1_000, partitions=3)
    await _turns()
    for follower in (2, 3):
        _fetch(broker, follower, log_start_offset=2, index=1)

    assert await deletion == [(0, "request_timed_out"), (2, "none"), (0, "request_timed_out")]


async def test_a_client_that_hangs_up_leaves_nothing_waiting(
    broker: LocalBroker, cluster: WatchedCluster
) -> None:
    """R40."""
    _replicated(broker)
    deletion = _delete(broker, 3)
    await _turns()
    deletion.cancel()
    await asyncio.gather(deletion, return_exceptions=True)

    assert broker.partition("t")._listeners == {}
