"""Members of groups as people see them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from mainstem.kafka.client import Broker, Cluster
from mainstem.kafka.groups import Group, GroupMember, list_groups


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


def test_brokers_that_do_not_list_their_groups_are_reported_with_the_groups_of_others() -> None:
    """confluent_kafka documents KafkaException, and has KafkaError where a broker does not answer."""
    error = KafkaError(KafkaError._TIMED_OUT)
    stable, classic = SimpleNamespace(name="STABLE"), SimpleNamespace(name="CLASSIC")
    found = SimpleNamespace(group_id="g", state=stable, type=classic)
    listing: Future[Any] = Future()
    listing.set_result(SimpleNamespace(valid=[found], errors=[error, KafkaException(error)]))
    cluster = Cluster("127.0.0.1:1")
    cluster.__dict__["admin"] = SimpleNamespace(list_consumer_groups=lambda **_: listing)
    groups, troubles = list_groups(cluster)
    assert list(groups) == ["g"]
    assert troubles == ["Timed out."]
