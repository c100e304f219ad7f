"""The judge of the paper's consumers: which deliveries are none of the owner's."""

from __future__ import annotations

import pytest
from tests.support.ownership import Delivery, Tenure, deliveries_of_others

TENURES = [
    Tenure(0, "g_a-1-0", 100, 200),
    Tenure(0, "g_b-1-0", 200, 300),
    Tenure(0, "g_a-2-0", 300, float("inf")),
]


@pytest.mark.parametrize(
    ("asked_ms", "given_ms", "is_owners"),
    [
        (90, 99, False),
        (90, 100, True),
        (150, 160, True),
        (190, 250, True),  # it may have been given before 200
        (210, 290, False),
        (250, 310, True),
        (900, 901, True),
    ],
)
def test_a_delivery_is_an_owners_if_it_can_have_been(asked_ms: int, given_ms: int, is_owners: bool) -> None:
    delivery = Delivery(asked_ms, given_ms, 0, 7)
    assert deliveries_of_others([delivery], "g_a-", TENURES) == ([] if is_owners else [delivery])


def test_a_partition_that_one_never_owned_is_anothers() -> None:
    delivery = Delivery(150, 160, 1, 7)
    assert deliveries_of_others([delivery], "g_a-", TENURES) == [delivery]
