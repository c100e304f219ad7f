from __future__ import annotations

import pytest

from mainstem_broker.config.broker_config import BrokerConfig
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.server.connection_limits import ConnectionLimits, takes_reserve


def limits(**settings: str) -> ConnectionLimits:
    """Underscores stand for dots."""
    static = {"broker.id": "1", "zookeeper.connect": "z:2181"}
    config = BrokerConfig(static | {name.replace("_", "."): value for name, value in settings.items()})
    return ConnectionLimits(lambda: config)


def test_without_settings_nothing_is_limited() -> None:
    free = limits()
    assert [free.open("10.0.0.1") for _ in range(5000)] == [None] * 5000
    assert max(free.charge(0.0) for _ in range(5000)) == 0


def test_all_addresses_together_have_a_limit() -> None:
    two = limits(max_connections="2")
    assert [two.open(address) for address in "abc"] == [None, None, "max.connections"]
    two.close("a")
    assert two.open("c") is None


def test_clients_do_not_lock_brokers_out() -> None:
    """R40, KIP-402: a follower that cannot come back leaves the in-sync sets."""
    one = limits(max_connections="1", max_connections_per_ip="2")
    assert [one.open("a"), one.open("b")] == [None, "max.connections"]
    assert [one.open("b", is_between_brokers=True) for _ in range(3)] == [
        None,
        None,
        "max.connections.per.ip",
    ]


@pytest.mark.parametrize(("descriptors_max", "first_reserved"), [(65_536, 65_280), (1_024, 896), (64, 56)])
def test_the_last_descriptors_are_kept_from_clients(descriptors_max: int, first_reserved: int) -> None:
    """R40"""
    assert not takes_reserve(first_reserved - 1, descriptors_max)
    assert takes_reserve(first_reserved, descriptors_max)


def test_an_address_has_a_limit_which_an_override_replaces() -> None:
    one = limits(max_connections_per_ip="1", max_connections_per_ip_overrides="10.0.0.9:2, ::1:0")
    assert [one.open("10.0.0.1") for _ in range(2)] == [None, "max.connections.per.ip"]
    assert [one.open("10.0.0.9") for _ in range(3)] == [None, None, "max.connections.per.ip"]
    assert one.open("::1") == "max.connections.per.ip"
    assert one.open("10.0.0.2") is None


@pytest.mark.parametrize(
    ("override", "address"),
    [
        ("2001:DB8:0::1:0", "2001:db8::1"),
        ("[2001:db8::1]:0", "2001:db8::1"),
        ("::ffff:10.0.0.1:0", "10.0.0.1"),
        ("10.0.0.1:5,10.0.0.1:0", "10.0.0.1"),
    ],
)
def test_an_override_has_an_address_in_any_form(override: str, address: str) -> None:
    assert limits(max_connections_per_ip_overrides=override).open(address) == "max.connections.per.ip"


def test_an_override_of_a_host_is_that_of_its_addresses_once_they_are_known() -> None:
    """Kafka's own example is "hostName:100,127.0.0.1:200"."""
    named = limits(max_connections_per_ip_overrides="k-1.example:0,127.0.0.1:200")
    assert named.hosts_to_look_up() == ["k-1.example"]
    assert named.open("10.0.0.1") is None
    named.take_addresses("k-1.example", ["10.0.0.1", "2001:DB8::1"])
    assert named.hosts_to_look_up() == []
    assert [named.open(address) for address in ("10.0.0.1", "2001:db8::1", "10.0.0.2")] == [
        "max.connections.per.ip",
        "max.connections.per.ip",
        None,
    ]


@pytest.mark.parametrize("text", ["10.0.0.1", "k:x", "k:-1", "k:1,", "k:1 l:2", "10.0.0.0/8:1"])
def test_other_overrides_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match="must match"):
        limits(max_connections_per_ip_overrides=text)


def test_a_rate_allows_a_second_of_connections_at_once_and_then_spaces_them() -> None:
    ten = limits(max_connection_creation_rate="10")
    assert [ten.charge(0.0) for _ in range(9)] == [0.0] * 9
    assert ten.charge(0.0) == 0.1
    assert ten.charge(0.1) == 0.1
    assert ten.charge(5.0) == 0.0
