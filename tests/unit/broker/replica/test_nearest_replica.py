from __future__ import annotations

import pytest

from mainstem_broker.replica.nearest_replica import Candidate, nearest_replica

FOLLOWERS = [
    Candidate(2, "b", 10, 5),
    Candidate(3, "b", 12, 1),
    Candidate(4, "b", 12, 3),
    Candidate(5, "c", 99, 9),
]


@pytest.mark.parametrize(
    ("rack", "leader_rack", "chosen"),
    [
        pytest.param("b", "a", 4, id="the one that has most, and was caught up last"),
        pytest.param("c", "a", 5, id="the only one there"),
        pytest.param("a", "a", None, id="the leader is there"),
        pytest.param("d", "a", None, id="nobody is there"),
        pytest.param("", None, None, id="the client names no rack"),
        pytest.param("b", None, 4, id="the leader has no rack"),
    ],
)
def test_a_consumer_reads_in_its_rack(rack: str, leader_rack: str | None, chosen: int | None) -> None:
    assert nearest_replica(rack, leader_rack, FOLLOWERS) == chosen
