"""Who in a group a request is from; the same in groups of both kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mainstem_broker.errors import FencedInstanceId, UnknownMemberId

AnyMember = TypeVar("AnyMember")


def find_member(
    members: Mapping[str, AnyMember],
    static_ids: Mapping[str, str],
    member_id: str,
    instance_id: str | None,
) -> AnyMember:
    """The member that a request is from. `static_ids` are the member ids of static members (KIP-345).

    Raises:
        UnknownMemberId: there is none.
        FencedInstanceId: it was replaced by another one with the same instance id.
    """
    if instance_id is not None:
        known = static_ids.get(instance_id)
        if known is None:
            raise UnknownMemberId(f"The group has no member with the instance id '{instance_id}'.")
        if known != member_id:
            raise FencedInstanceId(f"Another process has taken the instance id '{instance_id}'.")
    member = members.get(member_id)
    if member is None:
        raise UnknownMemberId("The group has no such member.")
    return member
