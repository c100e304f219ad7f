"""What a ConsumerGroupHeartbeat says, and what has to hold of it whatever its group is like. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mainstem_broker.errors import FencedMemberEpoch, InvalidRequest, UnsupportedAssignor
from mainstem_broker.group.consumer_records import ConsumerMemberMetadata, CurrentAssignment
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    LEAVING_FOR_A_WHILE_EPOCH,
    ConsumerHeartbeat,
)


def require_sound(asked: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    """Raise InvalidRequest or UnsupportedAssignor for what no member may say.

    `assignors` are the names of those that there are.
    """
    if not asked.member_id:
        raise InvalidRequest("A member needs an id, which it makes itself from version 1 on.")
    if asked.instance_id == "":
        raise InvalidRequest("An instance id cannot be empty: leave it out.")
    if asked.rack_id == "":
        raise InvalidRequest("A rack cannot be empty: leave it out.")
    if asked.member_epoch < LEAVING_FOR_A_WHILE_EPOCH:
        raise InvalidRequest(f"There is no member epoch {asked.member_epoch}.")
    if asked.member_epoch == LEAVING_FOR_A_WHILE_EPOCH and asked.instance_id is None:
        raise InvalidRequest("Only members with an instance id can leave for a while.")
    if asked.member_epoch == JOINING_EPOCH:
        if asked.rebalance_timeout_ms is None:
            raise InvalidRequest("A member that joins has to tell its rebalance timeout.")
        if asked.owned is None or asked.owned:
            raise InvalidRequest("A member that joins has to say that it has no partitions.")
        if asked.topics is None and not asked.topic_regex:
            raise InvalidRequest("A member that joins has to say what it subscribes to.")
    if asked.assignor is not None and asked.assignor not in assignors:
        raise UnsupportedAssignor(
            f"There is no assignor '{asked.assignor}': take one of {', '.join(assignors)}."
        )


def require_epoch(asked: ConsumerHeartbeat, current: CurrentAssignment) -> None:
    """Raise FencedMemberEpoch unless the member is in its epoch, or lost the answer that told it of that."""
    epoch, said = current.epoch, asked.member_epoch
    if said == epoch:
        return
    has_lost_the_answer = (
        said < epoch
        and said == current.previous_epoch
        and asked.owned is not None
        and asked.owned <= current.assigned
    )
    if not has_lost_the_answer:
        raise FencedMemberEpoch(
            f"The member is in epoch {epoch}, not {said}: it has to give up its partitions and join again."
        )


def says_all(asked: ConsumerHeartbeat) -> bool:
    """Whether a member begins, or begins again: then it is told all, too."""
    return asked.member_epoch == JOINING_EPOCH or (
        asked.rebalance_timeout_ms is not None
        and (asked.topics is not None or asked.topic_regex is not None)
        and asked.owned is not None
    )


def told_metadata(asked: ConsumerHeartbeat, known: ConsumerMemberMetadata | None) -> ConsumerMemberMetadata:
    """What a member has said of itself, with this heartbeat or before."""
    if known is None or asked.member_epoch == JOINING_EPOCH:
        known = ConsumerMemberMetadata(asked.instance_id, None, "", "", (), None, -1, None)
    return ConsumerMemberMetadata(
        known.instance_id,
        known.rack_id if asked.rack_id is None else asked.rack_id,
        asked.client_id,
        asked.client_host,
        known.topics if asked.topics is None else tuple(sorted(set(asked.topics))),
        known.topic_regex if asked.topic_regex is None else asked.topic_regex or None,
        known.rebalance_timeout_ms if asked.rebalance_timeout_ms is None else asked.rebalance_timeout_ms,
        known.assignor if asked.assignor is None else asked.assignor,
    )
