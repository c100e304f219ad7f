"""Names and addresses that the operator makes (R23)."""

from __future__ import annotations

import pytest

from mainstem_operator.api.names import (
    BROKER,
    LOADER,
    RESIDENT_LOADER,
    ZOOKEEPER,
    address,
    broker_of_external,
    external,
    headless,
    workload,
)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("events.example.com", "events.example.com:9092"),
        ("10.0.0.7", "10.0.0.7:9092"),
        ("fd00::7", "[fd00::7]:9092"),
    ],
)
def test_an_address_of_ipv6_is_in_brackets(host: str, text: str) -> None:
    """Clients take what follows the last colon for the port, and URLs have no other form."""
    assert address(host, 9092) == text


@pytest.mark.parametrize("length", [1, 36, 37, 40])
def test_names_of_the_longest_cluster_fit_into_labels_and_host_names(length: int) -> None:
    """Kubernetes labels pods with the name of their StatefulSet and eleven characters; no pod would come."""
    for cluster in ("c" * length, "c" * (length - 1) + "d"):
        for component in (BROKER, ZOOKEEPER, LOADER, RESIDENT_LOADER):
            assert len(workload(cluster, component)) <= 52
            assert len(headless(cluster, component)) <= 63
            assert workload(cluster, component).endswith(f"-{component}")
        assert len(external(cluster, 99)) <= 63
    assert workload("c" * length, RESIDENT_LOADER) != workload("c" * (length - 1) + "d", RESIDENT_LOADER)


def test_names_that_fit_are_not_cut() -> None:
    assert workload("events", RESIDENT_LOADER) == "events-resident-loader"
    assert workload("c" * 40, ZOOKEEPER) == "c" * 40 + "-zookeeper"


@pytest.mark.parametrize(
    ("service", "broker"),
    [
        ("events-broker-0-external", 0),
        ("events-broker-12-external", 12),
        ("events-broker-012-external", None),
        ("events-broker-x-external", None),
        ("events-clients-external", None),
        ("other-broker-0-external", None),
    ],
)
def test_the_service_of_a_broker_is_known_by_its_name(service: str, broker: int | None) -> None:
    assert broker_of_external("events", service) == broker
