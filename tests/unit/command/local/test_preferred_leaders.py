"""When leadership returns to preferred leaders."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mainstem.local.preferred_leaders import all_in_sync, all_led_by_preferred


@dataclass
class Partition:
    """The fields of a partition in a Metadata response that are read."""

    leader_id: int
    replica_nodes: tuple[int, ...] = (1, 2, 3)
    isr_nodes: tuple[int, ...] = (1, 2, 3)


@pytest.mark.parametrize(
    ("partitions", "in_sync", "preferred"),
    [
        ([], True, True),
        ([Partition(1), Partition(1, isr_nodes=(3, 2, 1))], True, True),
        ([Partition(1), Partition(2)], True, False),
        ([Partition(1), Partition(1, isr_nodes=(1, 3))], False, True),
        ([Partition(-1, isr_nodes=())], False, False),
    ],
    ids=["no topics", "as it should be", "another leader", "a replica behind", "no leader"],
)
def test_replicas_and_leaders_are_compared_in_all_partitions(
    partitions: list[Partition], in_sync: bool, preferred: bool
) -> None:
    assert all_in_sync(partitions) is in_sync
    assert all_led_by_preferred(partitions) is preferred
