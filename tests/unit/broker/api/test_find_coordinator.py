"""FindCoordinator creates `__consumer_offsets` with its replication factor, or not at all (KIP-115)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.errors import CoordinatorNotAvailable
from mainstem_broker.group.coordinator import OFFSETS_TOPIC

REQUEST = {"key_type": 0, "coordinator_keys": ["g"]}
VERSION = 4


@pytest.mark.parametrize("live", [(1,), (1, 2)], ids=["one broker", "two brokers"])
async def test_groups_have_no_coordinator_while_fewer_brokers_are_up_than_replicas_are_required(
    tmp_path: Path, live: tuple[int, ...]
) -> None:
    broker = LocalBroker(tmp_path)
    broker.set_live(*live)
    body = await broker.answer("FindCoordinator", VERSION, REQUEST)
    (coordinator,) = body["coordinators"]
    assert coordinator["error_code"] == CoordinatorNotAvailable.code
    assert "offsets.topic.replication.factor is 3" in coordinator["error_message"]
    assert f"that are up is {len(live)}" in coordinator["error_message"]
    assert OFFSETS_TOPIC not in broker.view.topics


async def test_the_offsets_topic_is_created_with_all_its_replicas_once_enough_brokers_are_up(
    tmp_path: Path,
) -> None:
    broker = LocalBroker(tmp_path)
    broker.set_live(1)
    await broker.answer("FindCoordinator", VERSION, REQUEST)
    broker.set_live(1, 2, 3)
    body = await broker.answer("FindCoordinator", VERSION, REQUEST)
    (coordinator,) = body["coordinators"]
    assert coordinator["error_code"] == 0
    replicas = broker.view.topics[OFFSETS_TOPIC].assignment.replicas
    assert all(len(brokers) == 3 for brokers in replicas.values())


async def test_a_single_broker_serves_groups_if_one_replica_is_required(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, {"offsets.topic.replication.factor": "1"})
    broker.set_live(1)
    body = await broker.answer("FindCoordinator", VERSION, REQUEST)
    assert body["coordinators"][0]["error_code"] == 0
