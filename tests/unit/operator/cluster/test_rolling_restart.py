"""Which pods are restarted, in which order, and what they wait for (R25)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.snapshots import cluster, snapshot, with_pod, without_report

from mainstem_operator.cluster.rolling_restart import Roll, plan_broker_roll, plan_zookeeper_roll
from mainstem_operator.proofs import PodDeletion, Refusal

HASH = "hash"


def test_nothing_is_restarted_that_runs_with_what_it_should() -> None:
    roll = plan_broker_roll(cluster(), snapshot(), HASH)
    assert (roll.restarts, roll.step) == ((), None)


def test_the_controller_goes_last() -> None:
    roll = plan_broker_roll(cluster(), snapshot(), "other settings")
    assert [item.pod.index for item in roll.restarts] == [1, 2, 0]
    assert {item.reason for item in roll.restarts} == {"its settings have changed"}
    assert isinstance(roll.step, PodDeletion)
    assert roll.step.name == "events-broker-1"


def test_a_roll_goes_on_where_another_operator_left_it() -> None:
    seen = snapshot()
    half = replace(seen, brokers=with_pod(seen.brokers, 1, config_hash="new settings"))
    roll = plan_broker_roll(cluster(), half, "new settings")
    assert [item.pod.index for item in roll.restarts] == [2, 0]


def test_a_pod_that_can_not_start_does_not_block_its_own_cure() -> None:
    seen = snapshot()
    stuck = with_pod(seen.brokers, 2, ready=False, revision="bad image", trouble="ImagePullBackOff")
    roll = plan_broker_roll(cluster(), without_report(replace(seen, brokers=stuck), 2), HASH)
    assert isinstance(roll.step, PodDeletion)
    assert roll.step.name == "events-broker-2"


def test_a_bad_image_stops_after_one_pod() -> None:
    """The first pod has the new revision and does not start: the others, on the old one, keep serving."""
    seen = snapshot()
    brokers = with_pod(seen.brokers, 1, ready=False, trouble="ImagePullBackOff")
    for index in (0, 2):
        brokers = with_pod(brokers, index, revision="old")
    roll = plan_broker_roll(cluster(), without_report(replace(seen, brokers=brokers), 1), HASH)
    assert roll.step == Refusal("events-broker-1 is not ready.")


def test_nothing_is_restarted_while_a_pod_is_missing_or_without_a_node() -> None:
    seen = snapshot()
    missing = replace(seen.brokers, pods={0: seen.brokers.pods[0], 1: seen.brokers.pods[1]})
    gone = plan_broker_roll(cluster(), replace(seen, brokers=missing), "other")
    assert gone.step == Refusal("Pod 2 is not there yet.")
    homeless = with_pod(seen.brokers, 2, node=None, ready=False, config_hash="other")
    roll = plan_broker_roll(
        cluster(),
        without_report(replace(seen, brokers=with_pod(homeless, 2, config_hash="other")), 2),
        "other",
    )
    assert roll.step == Refusal("events-broker-2 has no node.")


def test_a_restart_can_be_asked_for_of_all_or_of_one() -> None:
    requested = cluster(annotations={"mainstem.dev/restart": "today"})
    assert len(plan_broker_roll(requested, snapshot(), HASH).restarts) == 3
    seen = snapshot()
    one = replace(seen, brokers=with_pod(seen.brokers, 2, restart_asked=True))
    assert [item.pod.index for item in plan_broker_roll(cluster(), one, HASH).restarts] == [2]


def test_a_broker_follows_its_node_to_another_rack() -> None:
    racks = {f"node-{index}": f"z{index}" for index in range(3)}
    seen = snapshot(racks={0: "z0", 1: None, 2: "z2"})
    roll = plan_broker_roll(cluster(), seen, HASH, racks)
    assert [(item.pod.index, item.reason) for item in roll.restarts] == [(1, "its node is in rack z1")]
    assert plan_broker_roll(cluster(), replace(seen, racks={1: "z1"}), HASH, racks).restarts == ()


def test_no_broker_is_restarted_for_a_rack_that_its_next_start_could_not_read() -> None:
    """That of a node which got its label, or came, after the brokers' files were written."""
    nodes = {f"node-{index}": {"zone": "new"} for index in range(3)}
    seen = snapshot(nodes=nodes, racks={0: "old", 1: None, 2: "old"})
    spec = cluster(brokers={"rack": {"nodeLabel": "zone"}})
    for racks in ({"node-0": "old", "node-2": "old"}, {}, None):
        assert plan_broker_roll(spec, seen, HASH, racks).restarts == ()


def test_a_broker_that_is_to_go_is_not_restarted_first() -> None:
    roll = plan_broker_roll(cluster(3), snapshot(4), "other settings")
    assert [item.pod.index for item in roll.restarts] == [1, 2, 0]


def test_nothing_is_restarted_by_a_template_that_is_not_followed_yet() -> None:
    """The revision in the status of a StatefulSet is then still the one before."""
    seen = snapshot()
    for component in (seen.brokers, seen.zookeeper):
        assert component.workload is not None
        behind = replace(component, workload=replace(component.workload, up_to_date=False))
        if component is seen.brokers:
            roll = plan_broker_roll(cluster(), replace(seen, brokers=behind), "other settings")
        else:
            roll = plan_zookeeper_roll(cluster(), replace(seen, zookeeper=behind))
        name = component.workload.name
        assert roll == Roll((), Refusal(f"The StatefulSet {name} is being brought up to date."))


@pytest.mark.parametrize(
    ("spread", "changes", "deleted"),
    [
        ("Required", {}, None),
        ("Required", {"config_hash": "other"}, None),
        ("Required", {"node": "node-1"}, "events-broker-1"),
        ("Required", {"ready": False}, "events-broker-1"),
        ("Required", {"restart_asked": True}, "events-broker-1"),
        ("Preferred", {}, "events-broker-1"),
    ],
)
def test_a_broker_that_could_not_start_again_beside_another_one_is_not_restarted(
    spread: str, changes: dict[str, Any], deleted: str | None
) -> None:
    """They share the node from before the rule, and a local volume cannot move."""
    seen, brokers = snapshot(), snapshot().brokers
    for index in range(3):
        brokers = with_pod(brokers, index, revision="old")
    brokers = with_pod(brokers, 1, **{"node": "node-2", **changes})
    seen = replace(seen, brokers=brokers)
    if not brokers.pods[1].ready:
        seen = without_report(seen, 1)
    roll = plan_broker_roll(cluster(brokers={"spread": spread}), seen, HASH)
    assert [item.pod.index for item in roll.restarts] == [1, 2, 0]
    if deleted is not None:
        assert isinstance(roll.step, PodDeletion)
        assert roll.step.name == deleted
        return
    assert roll.step == Refusal(
        "events-broker-1 is on the node node-2 with events-broker-2, and could not start there again with"
        " spread: Required. Move one of them to another node, or set spread: Preferred. If the volume of"
        " events-broker-1 can move, annotate this pod with mainstem.dev/restart=true."
    )


def test_zookeepers_leader_goes_last() -> None:
    seen = snapshot()
    servers = seen.zookeeper
    for index in range(3):
        servers = with_pod(servers, index, revision="old")
    roll = plan_zookeeper_roll(cluster(), replace(seen, zookeeper=servers))
    assert [item.pod.index for item in roll.restarts] == [0, 2, 1]


def test_a_restart_annotation_that_is_removed_requests_nothing() -> None:
    there = snapshot()
    done = replace(there, brokers=with_pod(there.brokers, 1, restart_done="monday"))
    assert plan_broker_roll(cluster(), done, "hash").restarts == ()
