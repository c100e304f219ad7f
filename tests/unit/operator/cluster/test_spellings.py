"""No broker is restarted, and no file written anew, for another spelling of the same settings (R25, R39)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.snapshots import cluster

from mainstem_operator.cluster.broker_manifests import Placement, config_hash, settings_of
from mainstem_operator.cluster.settings.plan import plan_settings


def listeners(*order: str) -> dict[str, Any]:
    known = {
        "tls": {"name": "tls", "port": 9093},
        "internal": {"name": "internal", "port": 9092, "tls": False},
        "outside": {"name": "outside", "port": 9095, "type": "nodeport"},
    }
    return {"clients": [known[name] for name in order]}


def config(**settings: Any) -> dict[str, Any]:
    return {"brokers": {"config": {name.replace("_", "."): value for name, value in settings.items()}}}


def users(*names: str) -> dict[str, Any]:
    return {"listeners": listeners("tls"), "authorization": {"type": "acl", "superUsers": list(names)}}


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (config(controlled_shutdown_enable="False"), config(controlled_shutdown_enable="false")),
    (config(num_partitions="3"), config(num_partitions=3)),
    (config(num_partitions="03"), config(num_partitions=" 3")),
    (config(group_consumer_assignors="range,uniform"), config(group_consumer_assignors="range, uniform")),
    (config(log_cleanup_policy="compact,delete"), config(log_cleanup_policy="delete,compact")),
    (users("alice", "bob"), users("bob", "User:alice")),
    ({"listeners": listeners("tls", "internal")}, {"listeners": listeners("internal", "tls")}),
    (
        {"listeners": listeners("tls", "outside", "internal")},
        {"listeners": listeners("internal", "tls", "outside")},
    ),
]
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (config(num_partitions=3), config(num_partitions=30)),
    (config(group_consumer_assignors="range,uniform"), config(group_consumer_assignors="uniform,range")),
    (config(ssl_key_password="7"), config(ssl_key_password="07")),
    (users("alice"), users("alice", "bob")),
    ({"listeners": listeners("tls", "internal")}, {"listeners": listeners("tls")}),
]


def respelled(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether brokers with the files of `before` are left alone under the manifest `after`."""
    ports = {0: 31_000}
    filed = settings_of(cluster(**before), 0, Placement(ports))
    placement = Placement(ports, filed=filed)
    is_same = settings_of(cluster(**after), 0, placement) == filed
    assert is_same == (
        config_hash(cluster(**before), Placement(ports)) == config_hash(cluster(**after), placement)
        or "log" in str(after)  # which brokers take while they run
    )
    return is_same


@pytest.mark.parametrize(("before", "after"), SAME)
def test_another_spelling_changes_nothing(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert respelled(before, after)


@pytest.mark.parametrize(("before", "after"), OTHER)
def test_another_value_is_taken(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert not respelled(before, after)


def test_a_setting_without_a_restart_that_is_spelled_otherwise_is_not_new() -> None:
    """It would be put again in each look, and files would wait for brokers that do not answer."""
    spec = cluster(**config(num_io_threads="08"))
    plan = plan_settings(spec, None, {"num.io.threads": "8"}, {"num.io.threads": "8"})
    assert not plan.changes
    assert not plan.untested
