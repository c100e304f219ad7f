"""Which ids of schemas are looked up (R28, R31)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mainstem_loader.columns import ColumnError
from mainstem_loader.payload.schema_ids import REPEATED_IDS_MAX, UNUSABLE_IDS_MAX, SchemasById

GOOD = 1
BURST = range(1000, 1600)


class Lookups:
    """A registry that knows the ids below 10."""

    def __init__(self) -> None:
        self.requested: list[int] = []
        self._schemas = SchemasById(self._look_up)

    def _look_up(self, schema_id: int) -> str:
        self.requested.append(schema_id)
        if schema_id >= 10:
            raise ColumnError(f"{schema_id} is unknown")
        return f"schema {schema_id}"

    def of_block(self, ids: Sequence[int]) -> dict[int, str]:
        return {
            schema_id: str(schema)
            for schema_id, schema in self._schemas.of_block(np.array(ids, dtype=np.int64))
        }


def test_an_id_is_looked_up_once_and_the_first_values_say_the_order() -> None:
    lookups = Lookups()
    for _ in range(2):
        schemas = lookups.of_block([7, 12, 3, 3, 3, 7])
        assert list(schemas.items()) == [(7, "schema 7"), (12, "12 is unknown"), (3, "schema 3")]
    assert sorted(lookups.requested) == [3, 7, 12]
    assert lookups.of_block([]) == {}


@pytest.mark.parametrize(
    "blocks",
    [[[*BURST, *[GOOD] * 100]], [[*BURST], [GOOD] * 100], [[*BURST], [1, 2, *range(5000, 9000), 2, 1]]],
    ids=["same block", "later block", "two ids among more of them"],
)
def test_values_without_ids_cost_no_request_each_and_hide_no_id_that_several_values_have(
    blocks: list[list[int]],
) -> None:
    lookups = Lookups()
    for block in blocks:
        schemas = lookups.of_block(block)
    assert schemas[GOOD] == "schema 1"
    unusable = [schema_id for schema_id in lookups.requested if schema_id in BURST]
    assert len(unusable) == UNUSABLE_IDS_MAX
    assert len(lookups.requested) <= UNUSABLE_IDS_MAX + 2
    assert lookups.of_block([1599])[1599].startswith("the id 1599 of a schema was not looked up")


@pytest.mark.parametrize(
    ("ids", "requests"),
    [
        (lambda block: [10_000 + block], 0),
        (lambda block: [10_000 + block] * 2, 1),
        (lambda block: [*range(10_000, 11_000)] * 2, REPEATED_IDS_MAX),
    ],
    ids=["unique", "one that is repeated", "many that are repeated"],
)
def test_each_block_adds_few_requests_once_the_limit_is_reached(
    ids: Callable[[int], list[int]], requests: int
) -> None:
    lookups = Lookups()
    lookups.of_block(BURST)
    lookups.requested.clear()
    for block in range(10):
        lookups.of_block(ids(block))
    assert len(lookups.requested) == 10 * requests
