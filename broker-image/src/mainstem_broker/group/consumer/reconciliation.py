"""How a member gets from its current to its target assignment, while no partition has two readers. Pure.

Belongs here: one step of one member. Who is a member belongs to `group.py`, the target to `targets.py`.

    STABLE                 the member has its target of its epoch
    UNREVOKED_PARTITIONS   it has to give up partitions first, and stays in its old epoch until it has
    UNRELEASED_PARTITIONS  it is in the target's epoch; other members have not given up all of its target yet

Each heartbeat takes one step, which sets what the member has from then on. A partition that it has to give up
is its own until it reports its partitions without it; a partition without an owner is assigned at once.
So a member never stops reading what it keeps, and the group does not wait for its slowest member.

Source: KIP-848, "Member reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem_broker.group.consumer.records import CurrentAssignment, MemberState, Partitions
from mainstem_broker.protocol.topic_partition import TopicIdPartition


def next_assignment(
    current: CurrentAssignment,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[TopicIdPartition], bool],
) -> CurrentAssignment:
    """The member's assignment after this step; `current` itself if there is no step to take.

    Args:
        owned: the partitions that the member reports to have; None if it did not report any: no change.
        is_held: whether another member has this partition.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _owns(owned, current.revoking):
        return current
    keeps = current.assigned & target
    revoking = current.assigned - target
    if revoking and _owns(owned, revoking):
        step = CurrentAssignment(
            current.epoch, current.previous_epoch, MemberState.UNREVOKED_PARTITIONS, keeps, revoking
        )
    else:
        missing = target - keeps
        released = frozenset(partition for partition in missing if not is_held(partition))
        step = CurrentAssignment(
            target_epoch,
            current.previous_epoch if current.epoch == target_epoch else current.epoch,
            MemberState.STABLE if released == missing else MemberState.UNRELEASED_PARTITIONS,
            keeps | released,
        )
    return current if step == current else step


def _owns(owned: Partitions | None, partitions: Partitions) -> bool:
    return owned is None or not owned.isdisjoint(partitions)
