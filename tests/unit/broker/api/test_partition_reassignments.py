"""The answers to requests that move replicas (R20); `tests/interop/test_reassignment.py` has the moves."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.cluster.reassignment import move_of


async def test_a_partition_that_is_named_twice_is_answered_for_each_target(broker: LocalBroker) -> None:
    """A move that was written must not be answered as refused: nobody would take it back."""
    broker.create("t", (1,))
    targets = [[2], [7], [3], []]
    body = await broker.answer(
        "AlterPartitionReassignments",
        1,
        {
            "timeout": 20,
            "topics": [
                {
                    "name": "t",
                    "partitions": [{"partition_index": 0, "replicas": target} for target in targets],
                }
            ],
        },
    )
    (answer,) = body["responses"]
    assert [ErrorCode(result["error_code"]).name for result in answer["partitions"]] == [
        "none",
        "invalid_replica_assignment",
        "none",
        "invalid_replica_assignment",
    ]
    assert move_of(broker.view.topics["t"].assignment, 0).target == (3,)
