"""What a ConsumerGroupHeartbeat may contain, and what it changes of a member. Pure.

Belongs here: what depends on the request and its member alone. What depends on the group is `group.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from mainstem_broker.errors import FencedMemberEpoch, InvalidRequest, UnsupportedAssignor
from mainstem_broker.group.consumer.records import ConsumerMemberMetadata, CurrentAssignment
from mainstem_broker.group.messages import (
    JOINING_EPOCH,
    LEAVING_FOR_A_WHILE_EPOCH,
    ConsumerHeartbeat,
)


def check_heartbeat(request: ConsumerHeartbeat, assignors: Collection[str]) -> None:
    """Check what no member may send, whatever its group is like; `assignors` are the known names.

    Raises:
        InvalidRequest, UnsupportedAssignor: the request is not allowed.
    """
    if not request.member_id:
        raise InvalidRequest("A member needs an id, which it makes itself from version 1 on.")
    if request.instance_id == "":
        raise InvalidRequest("An instance id cannot be empty: leave it out.")
    if request.rack_id == "":
        raise InvalidRequest("A rack cannot be empty: leave it out.")
    if request.member_epoch < LEAVING_FOR_A_WHILE_EPOCH:
        raise InvalidRequest(f"There is no member epoch {request.member_epoch}.")
    if request.member_epoch == LEAVING_FOR_A_WHILE_EPOCH and request.instance_id is None:
        raise InvalidRequest("Only members with an instance id can leave for a while.")
    if request.member_epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms is None:
            raise InvalidRequest("A member that joins has to send its rebalance timeout.")
        if request.owned is None or request.owned:
            raise InvalidRequest("A member that joins has to send an empty list of partitions.")
        if request.topics is None and not request.topic_regex:
            raise InvalidRequest("A member that joins has to send its subscription.")
    if request.assignor is not None and request.assignor not in assignors:
        raise UnsupportedAssignor(
            f"There is no assignor '{request.assignor}': use one of {', '.join(assignors)}."
        )


def check_epoch(request: ConsumerHeartbeat, current: CurrentAssignment) -> None:
    """Check that the member is in its current epoch, or that the answer with that epoch was lost.

    In the second case the member is in the epoch before and owns nothing that it may not have (KIP-848).

    Raises:
        FencedMemberEpoch: neither is so. The member gives up its partitions and joins again.
    """
    epoch, sent_epoch = current.epoch, request.member_epoch
    if sent_epoch == epoch:
        return
    has_lost_the_answer = (
        sent_epoch < epoch
        and sent_epoch == current.previous_epoch
        and request.owned is not None
        and request.owned <= current.assigned
    )
    if not has_lost_the_answer:
        raise FencedMemberEpoch(
            f"The member is in epoch {epoch}, not {sent_epoch}: it has to give up its partitions and join"
            " again."
        )


def is_full(request: ConsumerHeartbeat) -> bool:
    """Whether the request leaves out nothing, as when a member joins or reconnects.

    Such a member may have lost earlier answers, so its answer contains its assignment even if that is the
    same as before.
    """
    return request.member_epoch == JOINING_EPOCH or (
        request.rebalance_timeout_ms is not None
        and (request.topics is not None or request.topic_regex is not None)
        and request.owned is not None
    )


def updated_metadata(
    request: ConsumerHeartbeat, metadata: ConsumerMemberMetadata | None
) -> ConsumerMemberMetadata:
    """A member's metadata after this heartbeat; `metadata` is from before, None for a new member."""
    if metadata is None or request.member_epoch == JOINING_EPOCH:
        metadata = ConsumerMemberMetadata(request.instance_id, None, "", "", (), None, -1, None)
    return ConsumerMemberMetadata(
        metadata.instance_id,
        metadata.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        metadata.topics if request.topics is None else tuple(sorted(set(request.topics))),
        metadata.topic_regex if request.topic_regex is None else request.topic_regex or None,
        metadata.rebalance_timeout_ms
        if request.rebalance_timeout_ms is None
        else request.rebalance_timeout_ms,
        metadata.assignor if request.assignor is None else request.assignor,
    )
