from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run
from tests.unit.broker.api.topic_requests import create, grow, topic

from mainstem_broker.api.topics import PARTITIONS_PER_TOPIC_MAX


async def test_a_dead_broker_of_an_old_partition_does_not_hold_up_growth(broker: LocalBroker) -> None:
    await create(broker, topic("t", assignments={0: [3]}))
    broker.set_live(1, 2)
    broker.view.topics["t"].states.clear()
    broker.cluster.controller_is_down = True
    assert (await grow(broker, "t", 2))[0] == "request_timed_out"
    broker.cluster.controller_is_down = False
    broker.elect("t")
    assert (await grow(broker, "t", 3))[0] == "none"


async def test_the_answer_waits_until_the_logs_that_this_broker_leads_are_open(broker: LocalBroker) -> None:
    broker.create("t", (2,))
    broker.context.opening.add(("t", 1))
    assert await grow(broker, "t", 2, [[1]]) == (
        "request_timed_out",
        "The logs of the new partitions are being created.",
    )
    broker.context.opening.add(("t", 2))
    assert (await grow(broker, "t", 3, [[2]]))[0] == "none"


@pytest.mark.parametrize(
    ("count", "assignments", "error", "message"),
    [
        (2, None, "invalid_partitions", "has 2 partitions, and a topic can only grow: 2 is not more"),
        (1, None, "invalid_partitions", "can only grow"),
        (-1, None, "invalid_partitions", "can only grow"),
        (PARTITIONS_PER_TOPIC_MAX + 3, None, "policy_violation", "At most 10000"),
        (4, [[1]], "invalid_replica_assignment", "grows by 2 partitions, but 1 assignments"),
        (3, [[1, 2]], "invalid_replica_assignment", "the same number of replicas"),
        (3, [[7]], "invalid_replica_assignment", "no live brokers"),
        (3, [[]], "invalid_replica_assignment", "are none"),
    ],
)
def test_growth_that_cannot_be_is_refused_with_the_reason(
    broker: LocalBroker, count: int, assignments: list[list[int]] | None, error: str, message: str
) -> None:
    broker.create("t", (1, 2))
    got = run(grow(broker, "t", count, assignments))
    assert got[0] == error
    assert message in got[1]
    assert len(broker.view.topics["t"].assignment.replicas) == 2


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("validate_only", [False, True])
def test_r15_a_topic_whose_partitions_say_where_groups_are_kept_does_not_grow(
    broker: LocalBroker, name: str, validate_only: bool
) -> None:
    """With one partition more, what groups have committed would be looked for where it is not (R12, R15)."""
    broker.create(name, (1, 2))
    error, message = run(grow(broker, name, 3, validate_only=validate_only))
    assert error == "invalid_partitions"
    assert message == (
        f"Topic '{name}' cannot grow: the number of its partitions says where each group or transactional id"
        " is kept, and what is stored of them would no longer be found."
    )
    assert len(broker.view.topics[name].assignment.replicas) == 2


def test_growth_by_hand_is_taken_as_it_is(broker: LocalBroker) -> None:
    broker.create("t", (1,))
    assert run(grow(broker, "t", 3, [[3], [2]]))[0] == "none"
    assert broker.view.topics["t"].assignment.replicas == {0: (1,), 1: (3,), 2: (2,)}


def test_growth_that_is_only_validated_changes_nothing(broker: LocalBroker) -> None:
    broker.create("t", (1,))
    assert run(grow(broker, "t", 3, validate_only=True))[0] == "none"
    assert len(broker.view.topics["t"].assignment.replicas) == 1


async def test_topics_grow_together_and_a_bad_one_fails_alone(broker: LocalBroker) -> None:
    for name in ("a", "b", "c", "twice"):
        broker.create(name, (2,))
    counts = [("a", 3), ("b", 1), ("nowhere", 2), ("c", 2), ("twice", 2), ("twice", 3)]
    request = {
        "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts],
        "timeout": 20,
        "validate_only": False,
    }
    body = await broker.answer("CreatePartitions", 3, request)
    assert [(result["name"], ErrorCode(result["error_code"]).name) for result in body["results"]] == [
        ("a", "none"),
        ("b", "invalid_partitions"),
        ("nowhere", "unknown_topic_or_partition"),
        ("c", "none"),
        ("twice", "invalid_request"),
        ("twice", "invalid_request"),
    ]
    assert broker.cluster.topics_per_call == [2]
    sizes = {name: len(topic.assignment.replicas) for name, topic in broker.view.topics.items()}
    assert sizes == {"a": 3, "b": 1, "c": 2, "twice": 1}
