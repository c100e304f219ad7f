"""The acts that can't be taken back are refused in every doubt, however the doubt came about (R25)."""

from __future__ import annotations

import ast
import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.operator.snapshots import (
    NOW,
    claim,
    cluster,
    component,
    pod,
    snapshot,
    with_claim,
    with_pod,
    with_report,
    without_report,
)

from mainstem_operator.api.topics import TopicSpec, topic_of
from mainstem_operator.cluster.disks import plan_disks
from mainstem_operator.kubernetes.node_affinity import HOSTNAME
from mainstem_operator.proofs import (
    ClaimDeletion,
    OffsetMove,
    PodDeletion,
    Refusal,
    ScaleDown,
    TopicDeletion,
    prove_broker_deletion,
    prove_claim_deletion,
    prove_offset_move,
    prove_scale_down,
    prove_server_deletion,
    prove_topic_deletion,
)
from mainstem_operator.snapshot import Component, Snapshot

PACKAGE = Path(__file__).parents[3] / "operator" / "mainstem_operator"
PROOFS = ("PodDeletion", "ClaimDeletion", "ScaleDown", "TopicDeletion", "OffsetMove")


def test_only_this_module_makes_proofs() -> None:
    for path in PACKAGE.rglob("*.py"):
        calls = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PROOFS
        ]
        assert not calls or path.name == "proofs.py", f"{path.name} makes {calls}"


def reason(result: Any) -> str:
    assert isinstance(result, Refusal), result
    return result.reason


@pytest.mark.parametrize("serves", [True, False])
def test_no_pod_goes_whose_deleted_claim_it_holds_by_itself(serves: bool) -> None:
    """Kubernetes deletes the claim, and often the volume, as soon as no pod uses it: a roll that goes on
    would take the disks one after the other.
    """
    for kind, prove in (("broker", prove_broker_deletion), ("zookeeper", prove_server_deletion)):
        parts = with_claim(component(kind), 1, deleting=True)
        if not serves:
            parts = with_pod(parts, 1, ready=False)
        modes = {0: "leader", 1: "follower", 2: "follower"} if serves else {0: "leader", 2: "follower"}
        seen = replace(snapshot(), modes=modes)
        seen = replace(seen, brokers=parts) if kind == "broker" else replace(seen, zookeeper=parts)
        seen = seen if serves else without_report(seen, 1)
        assert reason(prove(cluster(), seen, parts.pods[1], "restart")) == (
            f"data-events-{kind}-1 is being deleted, and its data would go with events-{kind}-1: copy the"
            " data, or delete the pod yourself if it may go."
        )


def test_a_pod_without_a_node_holds_no_claim() -> None:
    parts = with_pod(with_claim(component("broker"), 1, deleting=True), 1, node=None, ready=False)
    seen = without_report(snapshot(), 1)
    result = prove_broker_deletion(cluster(), replace(seen, brokers=parts), parts.pods[1], "restart")
    assert isinstance(result, PodDeletion)


# --- Pods of brokers ---


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Three brokers in any trouble."""
    seen = snapshot()
    brokers = seen.brokers
    for index in range(3):
        brokers = with_pod(
            brokers,
            index,
            ready=draw(st.booleans()),
            deleting=draw(st.sampled_from([False, False, False, True])),
            node=draw(st.sampled_from(["node-0", "node-0", None])),
        )
    if draw(st.booleans()):
        brokers = replace(brokers, pods={key: value for key, value in brokers.pods.items() if key != 2})
    reports = {
        index: replace(
            seen.reports[index],
            catching_up=draw(st.sampled_from([0, 0, 3])),
            may_stop=draw(st.booleans()),
            running=draw(st.sampled_from([True, True, False])),
        )
        for index in brokers.pods
        if draw(st.sampled_from([True, True, False]))
    }
    modes = draw(st.sampled_from([seen.modes, {0: "follower"}, {}]))
    return replace(seen, brokers=brokers, reports=reports, modes=modes)


@given(seen=snapshots(), index=st.integers(0, 2))
def test_a_broker_that_serves_goes_only_when_all_others_serve_and_it_may(seen: Snapshot, index: int) -> None:
    if index not in seen.brokers.pods:
        return
    target = seen.brokers.pods[index]
    proof = prove_broker_deletion(cluster(), seen, target, "because")
    if not isinstance(proof, PodDeletion):
        assert reason(proof)
        return
    assert (proof.name, proof.uid) == (target.name, target.uid)
    assert not target.deleting
    if index not in seen.reports and not target.ready:
        return  # it serves nobody
    assert seen.reports[index].may_stop
    assert seen.quorum
    assert set(seen.brokers.pods) == {0, 1, 2}
    for other in seen.brokers.pods.values():
        assert other.scheduled or other is target
        assert not other.deleting
        if other.index != index:
            assert other.ready
        assert seen.reports[other.index].running
        assert seen.reports[other.index].catching_up == 0


def test_the_broker_that_stands_in_the_way_is_named() -> None:
    seen = snapshot()
    requested = pod("broker", 1)

    def refused(seen: Snapshot) -> str:
        return reason(prove_broker_deletion(cluster(), seen, requested, ""))

    assert (
        refused(with_report(seen, 2, catching_up=3)) == "3 replicas are still catching up on events-broker-2."
    )
    assert refused(without_report(seen, 0)) == "events-broker-0 does not report its state."
    assert refused(replace(seen, modes={})) == "ZooKeeper has no quorum, so no broker could take over."
    starting = replace(seen, brokers=with_pod(seen.brokers, 0, ready=False))
    assert refused(starting) == "events-broker-0 is not ready."
    blocked = with_report(seen, 1, may_stop=False, blockers=("clicks-0: one in-sync replica",))
    assert refused(blocked) == "events-broker-1 may not stop now: clicks-0: one in-sync replica."


def test_a_server_goes_only_while_all_others_serve() -> None:
    seen = snapshot()
    requested = pod("zookeeper", 0)
    assert isinstance(prove_server_deletion(cluster(), seen, requested, "because"), PodDeletion)
    silent = replace(seen, modes={0: "follower", 1: "leader"})
    assert (
        reason(prove_server_deletion(cluster(), silent, requested, ""))
        == "events-zookeeper-2 does not serve."
    )


# --- Claims ---


def lost(minutes: float = 6, component: str = "brokers") -> Snapshot:
    """Broker (or server) 1 has lost its node some minutes ago, and its pod can be placed nowhere."""
    seen = snapshot()
    result: Component = getattr(seen, component)
    result = with_claim(result, 1, lost_since=NOW - dt.timedelta(minutes=minutes))
    result = with_pod(result, 1, ready=False, node=None)
    changes: dict[str, Any] = {component: result, "nodes": {"node-0": {}, "node-2": {}}}
    if component == "brokers":
        others = {
            index: replace(seen.reports[index], live_brokers=frozenset({0, 2}), under_replicated=5)
            for index in (0, 2)
        }
        changes["reports"] = others
    else:
        changes["modes"] = {0: "leader", 2: "follower"}
    return replace(seen, **changes)


def test_a_volume_whose_node_is_gone_for_good_is_given_up() -> None:
    seen = lost()
    proof = prove_claim_deletion(cluster(), seen, seen.brokers, 1)
    assert isinstance(proof, ClaimDeletion)
    assert proof.name == "data-events-broker-1"
    servers = lost(component="zookeeper")
    assert isinstance(prove_claim_deletion(cluster(), servers, servers.zookeeper, 1), ClaimDeletion)


def test_what_a_broker_left_behind_that_is_no_more_holds_nothing_up() -> None:
    """Its volume was on the node that is gone, too."""
    seen = lost()
    claims = {**seen.brokers.claims, 3: claim("broker", 3, node="node-1", bound=False)}
    seen = replace(seen, brokers=replace(seen.brokers, claims=claims))
    assert isinstance(prove_claim_deletion(cluster(), seen, seen.brokers, 1), ClaimDeletion)
    assert [volume.claim.index for volume in plan_disks(cluster(), seen, seen.brokers).lost] == [1]


def test_the_wait_for_a_node_begins_anew_while_another_is_lost_too() -> None:
    """After a power cut the last node to return must not be given up because the others are back."""
    seen = lost(minutes=60)
    assert plan_disks(cluster(), seen, seen.brokers).missed == ()
    brokers = with_claim(seen.brokers, 2, lost_since=NOW - dt.timedelta(seconds=30))
    both = replace(seen, nodes={"node-0": {}}, brokers=brokers)
    assert [claim.index for claim in plan_disks(cluster(), both, brokers).missed] == [1]
    no_mark = with_claim(brokers, 2, lost_since=None)
    assert [claim.index for claim in plan_disks(cluster(), both, no_mark).missed] == [1, 2]


def named_otherwise() -> dict[str, dict[str, str]]:
    """All three machines, whose nodes are not called by their hostnames."""
    return {f"ip-10-0-0-{index}": {HOSTNAME: f"node-{index}"} for index in range(3)}


def two_lost(minutes: float = 6) -> Snapshot:
    seen = lost(minutes)
    return replace(seen, nodes={"node-0": {}})


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (lost(minutes=4), "is gone: it has 5 minutes to return"),
        (replace(lost(), nodes={f"node-{index}": {} for index in range(3)}), "The node node-1"),
        (replace(lost(), nodes=None), "may not list nodes"),
        (two_lost(), "has lost its node too: a person has to decide"),
        (two_lost(minutes=0), "has lost its node too: a person has to decide"),
        (replace(lost(), brokers=with_claim(lost().brokers, 2, bound=False)), "one replacement at a time"),
        (replace(lost(), brokers=with_claim(lost().brokers, 2, deleting=True)), "one replacement at a time"),
        (replace(lost(), brokers=with_claim(lost().brokers, 1, node=None)), "is not tied to a machine"),
        (replace(lost(), brokers=with_pod(lost().brokers, 2, ready=False)), "Pod 2 is not ready"),
        (replace(lost(), brokers=with_pod(lost().brokers, 1, ready=True)), "serves"),
        (with_report(lost(), 0, offline=2), "2 partitions have no leader"),
        (with_report(lost(), 2, catching_up=1), "Broker 2 is still catching up"),
        (with_report(lost(), 0, live_brokers=frozenset({0, 1, 2})), "Broker 0 reports broker"),
        (without_report(lost(), 2), "Not every other broker reports its state"),
        (replace(lost(), nodes=named_otherwise()), "The node node-1 of data-events-broker-1 still exists"),
        (replace(lost(), brokers=with_pod(lost().brokers, 1, node="node-0")), "is on the node node-0"),
    ],
)
def test_a_volume_is_kept_in_every_doubt(seen: Snapshot, sentence: str) -> None:
    assert sentence in reason(prove_claim_deletion(cluster(), seen, seen.brokers, 1))


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        ({"nodes": named_otherwise()}, "The node node-1 of data-events-zookeeper-1 still exists"),
        ({"modes": {0: "follower", 2: "follower"}}, "no quorum without this server's data"),
        ({"modes": {0: "leader"}}, "ZooKeeper server 2 does not serve"),
        ({"modes": {0: "leader", 1: "follower", 2: "follower"}}, "ZooKeeper server 1 serves"),
    ],
)
def test_a_volume_of_zookeeper_is_kept_in_every_doubt(seen: dict[str, Any], sentence: str) -> None:
    there = replace(lost(component="zookeeper"), **seen)
    assert sentence in reason(prove_claim_deletion(cluster(), there, there.zookeeper, 1))


def test_nothing_is_lost_where_nodes_are_not_called_by_their_hostnames() -> None:
    seen = replace(lost(), nodes=named_otherwise())
    assert plan_disks(cluster(), seen, seen.brokers).lost == ()


# --- Fewer brokers ---


def test_the_last_broker_goes_when_it_holds_nothing() -> None:
    seen = with_report(snapshot(4), 3, replicas=0)
    proof = prove_scale_down(cluster(3), seen, {0: 5}, ())
    assert proof == ScaleDown("prod", "events-broker", 3, "it holds nothing")


@given(
    expected=st.integers(1, 5),
    held=st.dictionaries(st.integers(0, 4), st.integers(0, 3)),
    moving=st.sets(st.integers(0, 4)),
    said=st.integers(0, 2),
)
def test_a_broker_that_holds_something_stays(
    expected: int, held: dict[int, int], moving: set[int], said: int
) -> None:
    seen = with_report(snapshot(5), 4, replicas=said)
    proof = prove_scale_down(cluster(expected), seen, held, moving)
    if isinstance(proof, ScaleDown):
        assert proof.replicas == 4  # one at a time, the last one
        assert expected < 5
        assert not held.get(4)
        assert 4 not in moving
        assert said == 0


def test_nobody_takes_the_last_broker_away() -> None:
    seen = snapshot(1)
    forced = cluster(1, {"mainstem.dev/scale-down-anyway": "true"})
    assert reason(prove_scale_down(forced, seen, {}, ())) == "There are no more brokers than requested."


def test_a_broker_that_is_to_go_anyway_goes_with_what_it_holds() -> None:
    forced = cluster(2, {"mainstem.dev/scale-down-anyway": "true"})
    proof = prove_scale_down(forced, snapshot(3), {2: 9}, ())
    assert isinstance(proof, ScaleDown)
    assert "scale-down-anyway, regardless of its replicas" in proof.reason


# --- Topics ---


def topic(name: str = "clicks", *, deleting: bool = True, annotations: Any = None, **spec: Any) -> TopicSpec:
    metadata: dict[str, Any] = {"name": name, "namespace": "prod", "annotations": annotations or {}}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    expected = {"clusterRef": {"name": "events"}, "deletionPolicy": "Delete", **spec}
    return topic_of({"metadata": metadata, "spec": expected})


def test_a_topic_goes_with_the_object_that_owned_it() -> None:
    assert prove_topic_deletion(topic(), "id", "id", [topic()]) == TopicDeletion("clicks", "id")


@pytest.mark.parametrize(
    ("spec", "current", "others", "sentence"),
    [
        (topic(deleting=False), "id", [], "is not being deleted"),
        (topic(deletionPolicy="Retain"), "id", [], "keep its topic"),
        (topic(annotations={"mainstem.dev/managed": "false"}), "id", [], "keep its topic"),
        (topic(deletionProtection=True), "id", [], "deletionProtection is on"),
        (topic(topicName="__consumer_offsets"), "id", [], "Internal topics"),
        (topic(), None, [], "never owned the topic"),
        (topic(), "another", [], "another one of the same name"),
        (topic(), "id", [topic("second", topicName="clicks", deleting=False)], "The Topic second claims"),
    ],
)
def test_a_topic_is_kept_in_every_doubt(
    spec: TopicSpec, current: str | None, others: list[TopicSpec], sentence: str
) -> None:
    assert sentence in reason(prove_topic_deletion(spec, current, "id", others))


# --- Offsets ---

KEY = ("clicks", 0)


@given(
    offset=st.integers(-5, 30),
    first=st.integers(0, 10),
    length=st.integers(0, 10),
    state=st.sampled_from(["EMPTY", "DEAD", "STABLE", "PREPARING_REBALANCING"]),
    members=st.integers(0, 2),
    done=st.booleans(),
)
def test_offsets_move_only_within_the_log_and_without_members(
    offset: int, first: int, length: int, state: str, members: int, done: bool
) -> None:
    bounds = {KEY: (first, first + length)}
    proof = prove_offset_move("g", "r1", state, members, {KEY: offset}, bounds, ["record"], is_done=done)
    allowed = first <= offset <= first + length and state in ("EMPTY", "DEAD") and not members and not done
    assert isinstance(proof, OffsetMove) == allowed


def test_offsets_of_an_unknown_partition_are_not_moved() -> None:
    result = prove_offset_move("g", "r1", "EMPTY", 0, {KEY: 1}, {}, [], is_done=False)
    assert reason(result) == "There is no partition 0 of clicks."
