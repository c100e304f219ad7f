"""How a member comes from what it has to what it is to have, without two members having a partition at once.

Lives here: one step of one member, as a pure function. Must not: who is a member, and what they are to have.

    STABLE                 has its target of the member's epoch
    UNREVOKED_PARTITIONS   has to give up some partitions first; it stays in its old epoch until it has
    UNRELEASED_PARTITIONS  is in the target's epoch, and lacks partitions that others have not given up yet

A step is taken with each heartbeat, and says what the member has from then on. What it has to give up counts
as its own until it reports partitions without them; a partition that nobody has is given at once. So a member
never stops reading what it keeps, and the group need not wait for its slowest member.

Source: KIP-848, "Member reconciliation".
"""

from __future__ import annotations

from collections.abc import Callable

from mainstem_broker.group.consumer_records import CurrentAssignment, MemberState, Partition, Partitions


def next_assignment(
    current: CurrentAssignment,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_held: Callable[[Partition], bool],
) -> CurrentAssignment:
    """What the member has after this step; `current` itself if there is none to take.

    Args:
        owned: the partitions that the member says it has; None if it did not say, when it has what it had.
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
