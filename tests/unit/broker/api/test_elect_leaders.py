"""KIP-183, KIP-460"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.cluster.elections import ElectionType
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.replica.partition_state import NO_LEADER, PartitionState

TIMEOUT_MS = 10


@pytest.fixture
def replicated(broker: LocalBroker) -> LocalBroker:
    """The topic "t", whose preferred leader is broker 1, is led by broker 2."""
    topic_id = broker.create("t")
    broker.view.set_topic(TopicAssignment("t", topic_id, {0: (1, 2)}, version=1), {})
    broker.set_state("t", 0, PartitionState(2, 1, (2, 1), 1, 1))
    return broker


async def elect(
    broker: LocalBroker,
    topics: dict[str, Sequence[int]] | None,
    kind: int = ElectionType.PREFERRED,
    version: int = 2,
) -> list[tuple[str, int, str]]:
    """Topic, partition and error of each result."""
    requested = None
    if topics is not None:
        requested = [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
    request = {"topic_partitions": requested, "timeout": TIMEOUT_MS}
    if version >= 1:
        request["election_type"] = kind
    body = await broker.answer("ElectLeaders", version, request)
    assert body["error_code"] == 0
    return [
        (result["topic"], one["partition_id"], ErrorCode(one["error_code"]).name)
        for result in body["replica_election_results"]
        for one in result["partition_result"]
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_preferred_leader_leads_when_the_answer_comes(
    replicated: LocalBroker, version: int
) -> None:
    assert await elect(replicated, {"t": [0, 0]}, version=version) == [("t", 0, "none")]
    assert replicated.view.topics["t"].states[0].leader == 1
    assert replicated.cluster.elections == [(replicated.view.topics["t"].topic_id, 0, 0)]
    assert await elect(replicated, {"t": [0]}, version=version) == [("t", 0, "election_not_needed")]
    assert await elect(replicated, None, version=version) == []
    assert len(replicated.cluster.elections) == 1


async def test_without_partitions_all_that_need_it_get_their_preferred_leader(
    replicated: LocalBroker,
) -> None:
    for topic in ("elsewhere", "doomed"):
        replicated.create(topic, (2,))
    replicated.view.pending_deletions.add("doomed")
    assert await elect(replicated, None) == [("t", 0, "none")]


async def test_an_election_that_takes_too_long_says_so(replicated: LocalBroker) -> None:
    replicated.cluster.controller_is_down = True
    assert await elect(replicated, {"t": [0]}) == [("t", 0, "request_timed_out")]


async def test_an_election_that_becomes_impossible_meanwhile_is_reported_with_the_reason(
    replicated: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_until(reached: Callable[[], bool], _timeout_ms: float) -> None:
        replicated.delete("t")
        assert reached()

    replicated.cluster.controller_is_down = True
    monkeypatch.setattr(replicated.cluster, "wait_until", wait_until)
    assert await elect(replicated, {"t": [0]}) == [("t", 0, "unknown_topic_or_partition")]


async def test_what_cannot_be_elected_is_reported_and_not_asked_for(replicated: LocalBroker) -> None:
    replicated.create("doomed", (2,))
    replicated.view.pending_deletions.add("doomed")
    replicated.set_live(2, 3)
    assert await elect(replicated, {"t": [0, 5], "doomed": [0], "none": [0]}) == [
        ("t", 0, "preferred_leader_not_available"),
        ("t", 5, "unknown_topic_or_partition"),
        ("doomed", 0, "unknown_topic_or_partition"),
        ("none", 0, "unknown_topic_or_partition"),
    ]
    assert replicated.cluster.elections == []


async def test_an_unclean_election_takes_what_is_left_where_nobody_leads(replicated: LocalBroker) -> None:
    unclean = ElectionType.UNCLEAN
    assert await elect(replicated, {"t": [0]}, unclean) == [("t", 0, "election_not_needed")]
    replicated.set_state("t", 0, PartitionState(NO_LEADER, 2, (2,), 1, 2))
    replicated.set_live(3)
    assert await elect(replicated, {"t": [0]}, unclean) == [("t", 0, "eligible_leaders_not_available")]
    replicated.set_live(1, 3)
    assert await elect(replicated, {"t": [0]}) == [("t", 0, "preferred_leader_not_available")]
    assert await elect(replicated, {"t": [0]}, unclean) == [("t", 0, "none")]
    assert replicated.view.topics["t"].states[0].leader == 1


async def test_an_election_of_another_kind_is_refused(replicated: LocalBroker) -> None:
    request = {"topic_partitions": None, "timeout": TIMEOUT_MS, "election_type": 7}
    body = await replicated.answer("ElectLeaders", 2, request)
    assert ErrorCode(body["error_code"]).name == "invalid_request"
