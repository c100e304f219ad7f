from __future__ import annotations

from datetime import timedelta

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.api.context import milliseconds
from mainstem_broker.errors import NotLeaderOrFollower, StorageError, UnknownTopicOrPartition


def test_a_replica_is_found_or_it_is_said_why_not(broker: LocalBroker) -> None:
    broker.create("t", (1, 2))
    assert broker.context.find_replica("t", 0) is broker.replicas.find("t", 0)
    with pytest.raises(NotLeaderOrFollower, match="t-1 is not on this broker"):
        broker.context.find_replica("t", 1)
    with pytest.raises(UnknownTopicOrPartition, match="There is no t-2"):
        broker.context.find_replica("t", 2)
    with pytest.raises(UnknownTopicOrPartition, match="There is no u-0"):
        broker.context.find_replica("u", 0)


def test_a_replica_on_a_failed_disk_is_offline_until_its_topic_is_deleted(broker: LocalBroker) -> None:
    broker.replicas.begin_offline("t", 0, broker.create("t", (2,)))
    with pytest.raises(StorageError, match="t-0 is offline here"):
        broker.context.find_replica("t", 0)
    broker.delete("t")
    with pytest.raises(UnknownTopicOrPartition):
        broker.context.find_replica("t", 0)
    broker.create("t", (2,))
    with pytest.raises(NotLeaderOrFollower):
        broker.context.find_replica("t", 0)


def test_a_broker_knows_whether_it_leads_all(broker: LocalBroker) -> None:
    broker.create("t", (1, 1, 2))
    assert broker.context.leads_all([])
    assert broker.context.leads_all([("t", 0), ("t", 1)])
    assert not broker.context.leads_all([("t", 0), ("t", 2)])
    assert not broker.context.leads_all([("u", 0)])


def test_a_duration_has_the_milliseconds_that_were_sent() -> None:
    """As floats of seconds, 1001 ms were 1000."""
    for sent_ms in (-(2**31), -1, 0, 1, *range(1_000, 5_000), 2**31 - 1):
        assert milliseconds(timedelta(milliseconds=sent_ms)) == sent_ms
