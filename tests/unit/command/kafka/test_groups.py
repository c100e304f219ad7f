"""Members of groups as people see them."""

from __future__ import annotations

import pytest

from mainstem.kafka.client import Broker
from mainstem.kafka.groups import Group, GroupMember


def member(member_id: str, client_id: str, instance_id: str | None = None) -> GroupMember:
    return GroupMember(member_id, instance_id, client_id, "127.0.0.1", [])


@pytest.mark.parametrize(
    ("one", "label"),
    [
        (member("web-8f99beb3-1ab2-4c3d", "web"), "web-8f99beb3"),
        (member("web-8f99beb3-1ab2-4c3d", "web", instance_id="shelf-1"), "shelf-1"),
        (member("a1b2c3", "web"), "a1b2c3"),
    ],
    ids=["of its client's name", "static", "of an id without it"],
)
def test_a_member_has_a_short_name(one: GroupMember, label: str) -> None:
    assert one.label == label


@pytest.mark.parametrize(
    ("state", "at_rest"),
    [("empty", True), ("dead", True), ("stable", False), ("rebalancing", False), ("assigning", False)],
)
def test_offsets_may_be_changed_only_while_nobody_reads(state: str, at_rest: bool) -> None:
    assert Group("g", state, "classic", "", Broker(1, "127.0.0.1", 9092, None), []).at_rest == at_rest
