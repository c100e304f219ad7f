"""Which volumes are to grow, which can't, and which have not yet (R25).

What becomes of lost ones is in `test_proofs.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.snapshots import cluster, component, with_claim

from mainstem_operator.api.clusters import Storage
from mainstem_operator.cluster.disks import plan_growth, still_growing


def storage(size: str, type_: str = "persistent") -> Storage:
    return cluster(brokers={"storage": {"type": type_, "size": size}}).brokers.storage


def test_volumes_that_are_smaller_than_the_manifest_says_ask_for_more() -> None:
    brokers = with_claim(component("broker"), 1, size="20Gi")
    growth = plan_growth(storage("20Gi"), brokers)
    assert [claim.index for claim in growth.claims] == [0, 2]
    assert growth.refused == ""


@pytest.mark.parametrize("size", ["10Gi", "10240Mi", "10737418240"])
def test_the_same_size_in_other_words_changes_nothing(size: str) -> None:
    growth = plan_growth(storage(size), component("broker"))
    assert (growth.claims, growth.refused) == ((), "")


@pytest.mark.parametrize(
    ("type_", "size", "sentence"),
    [
        ("local", "20Gi", "data-events-broker-0 is on a local volume, which can't grow."),
        ("persistent", "5Gi", "data-events-broker-0 has 10Gi, and volumes don't shrink."),
        ("local", "5Gi", "data-events-broker-0 has 10Gi, and volumes don't shrink."),
        ("ephemeral", "20Gi", ""),
    ],
)
def test_what_can_not_be_is_reported_of_the_first_volume(type_: str, size: str, sentence: str) -> None:
    growth = plan_growth(storage(size, type_), component("broker"))
    assert (growth.claims, growth.refused) == ((), sentence)


@pytest.mark.parametrize(
    ("capacity", "size", "sentence"),
    [
        ("10Gi", "20Gi", ""),
        ("10Gi", "10Gi", "data-events-broker-0 has 10Gi, and volumes don't shrink."),
        ("10Gi", "5Gi", "data-events-broker-0 has 10Gi, and volumes don't shrink."),
        ("", "20Gi", "data-events-broker-0 has 10Ti, and volumes don't shrink."),
    ],
)
def test_a_request_that_was_too_large_is_taken_back_to_more_than_the_volume_has(
    capacity: str, size: str, sentence: str
) -> None:
    brokers = with_claim(component("broker", 1), 0, size="10Ti", capacity=capacity)
    growth = plan_growth(storage(size), brokers)
    assert (len(growth.claims), growth.refused) == (0 if sentence else 1, sentence)


@pytest.mark.parametrize("changes", [{"size": ""}, {"deleting": True}])
def test_a_claim_that_is_not_reported_yet_or_goes_is_left_alone(changes: dict[str, Any]) -> None:
    brokers = with_claim(component("broker", 1), 0, **changes)
    assert plan_growth(storage("20Gi"), brokers).claims == ()


def test_a_volume_that_has_not_grown_yet_is_reported() -> None:
    """Kubernetes takes the request at once, and its driver may fail for ever."""
    brokers = with_claim(with_claim(component("broker"), 0, capacity="10Gi"), 1, size="20Gi", capacity="10Gi")
    assert still_growing(storage("20Gi"), brokers) == (
        "The volume of data-events-broker-1 has 10Gi, and 20Gi are requested: if it does not grow, `kubectl"
        " describe pvc data-events-broker-1` says why."
    )
    assert still_growing(storage("20Gi", "ephemeral"), brokers) == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"size": "1.5Gi", "capacity": "1536Mi"},
        {"size": "10Gi", "capacity": "12Gi"},
        {"size": "10Gi", "capacity": ""},
        {"size": "20Gi", "capacity": "10Gi", "deleting": True},
    ],
    ids=["other words", "more than requested", "not bound yet", "it goes"],
)
def test_a_volume_that_is_as_large_as_requested_is_not_waited_for(changes: dict[str, Any]) -> None:
    assert still_growing(storage("20Gi"), with_claim(component("broker", 1), 0, **changes)) == ""
