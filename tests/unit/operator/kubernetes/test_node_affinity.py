"""Where a volume can be mounted, by the rules of Kubernetes (R25)."""

from __future__ import annotations

from typing import Any

import pytest

from mainstem_operator.kubernetes.node_affinity import NodeAffinity, affinity_of

NODE = {"kubernetes.io/hostname": "machine-7", "zone": "a", "generation": "3"}


def volume(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}}}


def labels(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def affinity(*terms: dict[str, Any]) -> NodeAffinity:
    result = affinity_of(volume(*terms))
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([labels("zone", "In", "a", "b")], True),
        ([labels("zone", "In", "b")], False),
        ([labels("rack", "In", "a")], False),
        ([labels("zone", "NotIn", "b")], True),
        ([labels("zone", "NotIn", "a")], False),
        ([labels("rack", "NotIn", "a")], True),
        ([labels("zone", "Exists")], True),
        ([labels("rack", "Exists")], False),
        ([labels("rack", "DoesNotExist")], True),
        ([labels("zone", "DoesNotExist")], False),
        ([labels("generation", "Gt", "2")], True),
        ([labels("generation", "Gt", "3")], False),
        ([labels("generation", "Lt", "4")], True),
        ([labels("zone", "Lt", "4")], False),
        ([labels("rack", "Gt", "2")], False),
        ([labels("generation", "Gt", "0_1")], False),
        ([labels("generation", "Gt")], False),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-7"]}]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-7"]}]}], False),
        ([labels("zone", "In", "b"), labels("zone", "In", "a")], True),
        ([{"matchExpressions": [*labels("zone", "In", "a")["matchExpressions"],
                                *labels("rack", "Exists")["matchExpressions"]]}], False),
        ([{}], False),
        ([], False),
    ],
)  # fmt: skip
def test_terms_are_alternatives_and_all_expressions_of_a_term_count(
    terms: list[dict[str, Any]], allowed: bool
) -> None:
    assert affinity(*terms).allows("node-7", NODE) is allowed


def test_a_volume_without_affinity_is_never_lost() -> None:
    assert affinity_of({"spec": {}}) is None
    assert affinity_of({"spec": {"nodeAffinity": {}}}) is None


TIED, ZONED = labels("kubernetes.io/hostname", "In", "machine-7"), labels("zone", "In", "a")
UNKNOWN = {
    "matchExpressions": TIED["matchExpressions"] + labels("zone", "Matches", "a.*")["matchExpressions"]
}


@pytest.mark.parametrize(
    ("terms", "nodes", "is_lost"),
    [
        ([TIED], {"ip-10-0-0-7": NODE}, False),
        ([TIED], {"ip-10-0-0-8": {"kubernetes.io/hostname": "machine-8"}}, True),
        # Somebody has changed its label: the volume cannot be mounted, and its data are still there.
        ([TIED], {"machine-7": {"kubernetes.io/hostname": "renamed"}}, False),
        ([ZONED], {}, False),
        ([TIED, ZONED], {}, False),
        ([UNKNOWN], {"node-7": NODE}, False),
        ([labels("kubernetes.io/hostname", "NotIn", "machine-7")], {}, False),
    ],
    ids=[
        "there",
        "gone",
        "renamed",
        "of a zone",
        "of a machine or a zone",
        "an unknown operator",
        "elsewhere",
    ],
)
def test_a_volume_is_lost_with_the_only_machine_on_which_it_can_be(
    terms: list[dict[str, Any]], nodes: dict[str, dict[str, str]], is_lost: bool
) -> None:
    """Whatever its node is called."""
    assert affinity(*terms).is_lost(nodes) is is_lost
