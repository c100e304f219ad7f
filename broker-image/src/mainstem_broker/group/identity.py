"""The member that a request is from; the same rules in groups of both kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from mainstem_broker.errors import FencedInstanceId, UnknownMemberId


class Identified(Protocol):
    """A member of a group of either kind."""

    member_id: str


AnyMember = TypeVar("AnyMember", bound=Identified)


def find_member(
    members: Mapping[str, AnyMember],
    static_members: Mapping[str, AnyMember],
    member_id: str,
    instance_id: str | None,
) -> AnyMember:
    """Find the member that a request names.

    Args:
        members: by member id.
        static_members: those with an instance id (KIP-345), by that id.

    Raises:
        UnknownMemberId: there is no such member.
        FencedInstanceId: another process has taken the instance id, and with it a new member id.
    """
    if instance_id is not None:
        static = static_members.get(instance_id)
        if static is None:
            raise UnknownMemberId(f"The group has no member with the instance id '{instance_id}'.")
        if static.member_id != member_id:
            raise FencedInstanceId(f"Another process has taken the instance id '{instance_id}'.")
    member = members.get(member_id)
    if member is None:
        raise UnknownMemberId("The group has no member with this id.")
    return member
