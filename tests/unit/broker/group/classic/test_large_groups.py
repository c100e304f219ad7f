"""What joins cost in a large group: the work grows as the number of members, not as its square.

Work is counted as calls of Python functions and resumptions of generators, which is the same in every run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from tests.unit.broker.group.classic.played_group import PlayedGroup

MEMBERS = 200
FACTOR = 4
GROWTH_MAX = 1.2
"""How much more work per member there may be in a group that is larger by `FACTOR`; quadratic: `FACTOR`."""


def join_a_new_group(played: PlayedGroup, count: int) -> list[str]:
    """Members join within the initial rebalance delay."""
    numbers = [played.join() for _ in range(count)]
    played.pass_time(20)
    return [played.joined(number).member_id for number in numbers]


def join_with_ids(played: PlayedGroup, count: int) -> list[str]:
    """Members are sent back for their ids first (KIP-394)."""
    ids = [played.joined(played.join(version=4)).member_id for _ in range(count)]
    numbers = [played.join(member_id, version=4) for member_id in ids]
    played.pass_time(20)
    return [played.joined(number).member_id for number in numbers]


def join_a_rebalance(played: PlayedGroup, count: int) -> list[str]:
    """A stable group is joined by one more member, and all others join again."""
    ids = join_a_new_group(played, count)
    played.sync_all(ids)
    newcomer = played.join()
    numbers = [played.join(member_id) for member_id in ids]
    return [played.joined(number).member_id for number in (newcomer, *numbers)]


def count_calls(work: Callable[[], Any]) -> int:
    calls = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("scenario", [join_a_new_group, join_with_ids, join_a_rebalance])
def test_a_join_costs_the_same_in_a_group_of_any_size(
    scenario: Callable[[PlayedGroup, int], list[str]],
) -> None:
    def cost_of_one(count: int) -> float:
        played = PlayedGroup(initial_delay_ms=10, members_max=10 * MEMBERS)
        return count_calls(lambda: scenario(played, count)) / count

    assert cost_of_one(FACTOR * MEMBERS) <= GROWTH_MAX * cost_of_one(MEMBERS)
