"""The values of a scrape, taken on the event loop; their text is in `test_health_server.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.messages import Message
from tests.support.record_batches import encode_batch
from tests.unit.broker.api.brokers import NOW_MS, LocalBroker
from tests.unit.broker.replica.replicas import LAG_MS_MAX, LIFE, state_of, valid_lease
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster.replication_status import ReplicationCounts
from mainstem_broker.cluster.view import Topic
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.replica.client_batches import append_batch
from mainstem_broker.runtime.turns import ITEMS_PER_TURN
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.metrics import Metrics, SnapshotCollector
from mainstem_broker.server.request_times import RequestTimes


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    return LocalBroker(tmp_path)


@pytest.fixture
def health(broker: LocalBroker) -> Health:
    health = Health(broker.context, valid_lease())
    health.phase = Phase.RUNNING
    return health


@pytest.fixture
def metrics(broker: LocalBroker, health: Health) -> Metrics:
    return Metrics(broker.context, health, broker.replicas.logs, {}, dict, dict, RequestTimes())


async def test_a_scrape_has_the_numbers_of_each_replica(broker: LocalBroker, metrics: Metrics) -> None:
    """R37."""
    broker.create("t", (1, 1))
    broker.append("t", [b"a", b"b"])
    first, second = (await metrics.snapshot()).partitions
    assert first.size_bytes == broker.partition("t").log.size_bytes > 0
    assert (first.topic, first.partition, first.is_leader, first.log_end_offset) == ("t", "0", True, 2)
    assert (second.partition, second.size_bytes, second.log_end_offset) == ("1", 0, 0)


async def test_in_sync_sets_that_shrink_and_grow_are_counted(
    broker: LocalBroker, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R37: what an operator looks at first when producers with acks=all wait."""
    broker.view.set_topic(TopicAssignment("t", UUID(int=1), {0: (1, 2), 1: (1, 2)}), {})
    broker.set_state("t", 0, state_of(1, 0, (1,)))
    broker.set_state("t", 1, state_of(1, 0, (1, 2)))
    joining, lagging = broker.partition("t", 0), broker.partition("t", 1)
    joining.read_as_follower(
        2, LIFE, 0, -1, 10, leader_epoch=0, min_one_batch=True, now_ms=NOW_MS + LAG_MS_MAX
    )
    broker.append("t", [b"a"], index=1)
    monkeypatch.setattr(broker.replicas, "_now_ms", lambda: NOW_MS + LAG_MS_MAX + 1)
    await broker.replicas.consider_all_isrs()
    await until(lambda: len(broker.coordination.written) == 2)
    await until(lambda: joining.is_in_sync(2) and not lagging.is_in_sync(2))
    snapshot = await metrics.snapshot()
    assert (snapshot.isr_shrinks, snapshot.isr_expansions) == (1, 1)
    await broker.replicas.stop()


async def test_flushes_and_producers_are_counted(broker: LocalBroker, metrics: Metrics) -> None:
    """R37."""
    broker.create("t")
    broker.append("t", [b"a"])
    await broker.replicas.flusher.flush(broker.partition("t").log)
    append_batch(
        broker.partition("t"),
        encode_batch([Message(b"b")], producer_id=7, producer_epoch=0, base_sequence=0),
        acks=1,
        produce_version=9,
        now_ms=NOW_MS,
    )
    snapshot = await metrics.snapshot()
    assert (snapshot.flushes, snapshot.producers) == (1, 1)
    assert snapshot.flush_s > 0
    families = {family.name: family for family in SnapshotCollector(snapshot).collect()}
    count, total = families["mainstem_flush_duration_seconds"].samples
    assert (count.value, total.value) == (1, snapshot.flush_s)
    await broker.replicas.stop()


async def test_the_partitions_of_a_large_cluster_are_looked_at_in_turns(
    broker: LocalBroker, health: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: probes and Prometheus come every few seconds, and clients do not wait for them."""
    count = 3 * ITEMS_PER_TURN
    broker.view.set_topic(TopicAssignment("t", UUID(int=1), dict.fromkeys(range(count), (2, 3))), {})
    for index in range(count):
        broker.view.set_state("t", index, state_of(2, 0, (2,)))
    counted = most = 0
    add = ReplicationCounts.add

    def note(counts: ReplicationCounts, topic: Topic, index: int, min_insync_replicas: int) -> None:
        nonlocal counted, most
        counted += 1
        most = max(most, counted)
        add(counts, topic, index, min_insync_replicas)

    async def others() -> None:
        nonlocal counted
        while True:
            counted = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(ReplicationCounts, "add", note)
    task = asyncio.create_task(others())
    standing = await health.standing()
    task.cancel()
    assert most == ITEMS_PER_TURN
    assert standing.under_replicated == count


async def test_partitions_that_go_while_they_are_counted_do_no_harm(
    broker: LocalBroker, metrics: Metrics
) -> None:
    for number in range(2 * ITEMS_PER_TURN):
        broker.view.set_topic(TopicAssignment(f"t{number}", UUID(int=number), {0: (2,)}), {})
    broker.create("t")
    scrape = asyncio.create_task(metrics.snapshot())
    await asyncio.sleep(0)
    broker.delete("t")
    assert (await scrape).partitions == ()
