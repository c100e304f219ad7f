"""The five acts that can't be taken back, and what has to be seen before each. Pure.

Deleting a pod, deleting a volume claim, lowering the number of brokers, deleting a topic, moving offsets:
`kubernetes/client.py` and `brokers/admin.py` do each only for a proof, and only this module makes proofs,
from a snapshot that is fresh. Code that decides on such an action in another way still has to pass here.
In doubt the answer is no, with a reason that a person can read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.topics import TopicSpec
from mainstem_operator.snapshot import Component, Pod, Snapshot

LOST_NODE_WAIT: Final = dt.timedelta(minutes=5)  # a machine that restarts, or is replaced under its name


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an act is not done now."""

    reason: str


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """This pod can be deleted without a loss of availability."""

    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimDeletion:
    """This claim can go: its volume is lost, and all that was on it is elsewhere."""

    namespace: str
    name: str
    uid: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScaleDown:
    """The StatefulSet can do with `replicas` pods, one fewer than now: the last one holds nothing.

    Or the request for fewer brokers includes their replicas.
    """

    namespace: str
    name: str
    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """This topic, in this life of it, is to go with its Topic."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """These offsets of an idle group are to be set: topic and partition to offset, each of them in range.

    `record` is stored with them and says that the request has been carried out (`groups/reset_record.py`).
    """

    group: str
    request_id: str
    offsets: Mapping[tuple[str, int], int]
    record: tuple[str, ...]


def prove_broker_deletion(
    cluster: ClusterSpec, snapshot: Snapshot, pod: Pod, reason: str
) -> PodDeletion | Refusal:
    """Whether a broker's pod can be deleted: it stops and comes back with what is new.

    A pod whose broker does not answer and is not ready serves no client, so its deletion costs nothing. One
    that serves goes only when every other broker is there, has caught up, and it says itself that it may.
    """
    if pod.deleting:
        return Refusal(f"{pod.name} is being deleted already.")
    if gap := _lost_with(snapshot.brokers, pod):
        return Refusal(gap)
    report = snapshot.reports.get(pod.index)
    if report is None and not pod.ready:
        return _proof(cluster, pod, reason)
    if not pod.scheduled:
        return Refusal(
            f"{pod.name} waits for a node: {pod.unschedulable or 'the scheduler has not chosen yet'}"
        )
    if gap := _gap(snapshot.brokers, pod):
        return Refusal(gap)
    if not snapshot.quorum:
        return Refusal("ZooKeeper has no quorum, so no broker could take over.")
    for other in snapshot.brokers.pods.values():
        their = snapshot.reports.get(other.index)
        if their is None or not their.running:
            return Refusal(f"{other.name} does not report its state.")
        if their.catching_up:
            replicas = "replica is" if their.catching_up == 1 else "replicas are"
            return Refusal(f"{their.catching_up} {replicas} still catching up on {other.name}.")
    if report is None or not report.may_stop:
        blockers = "; ".join(report.blockers[:3]) if report else "it does not answer"
        return Refusal(f"{pod.name} may not stop now: {blockers or 'partitions would lose by it'}.")
    return _proof(cluster, pod, reason)


def prove_server_deletion(
    cluster: ClusterSpec, snapshot: Snapshot, pod: Pod, reason: str
) -> PodDeletion | Refusal:
    """Whether a ZooKeeper server's pod can be deleted: a quorum is left, and the leader goes last."""
    if pod.deleting:
        return Refusal(f"{pod.name} is being deleted already.")
    if gap := _lost_with(snapshot.zookeeper, pod):
        return Refusal(gap)
    if pod.index not in snapshot.modes and not pod.ready:
        return _proof(cluster, pod, reason)
    if not pod.scheduled:
        return Refusal(
            f"{pod.name} waits for a node: {pod.unschedulable or 'the scheduler has not chosen yet'}"
        )
    if gap := _gap(snapshot.zookeeper, pod):
        return Refusal(gap)
    for other in snapshot.zookeeper.pods.values():
        if other.index not in snapshot.modes:
            return Refusal(f"{other.name} does not serve.")
    return _proof(cluster, pod, reason)


def _proof(cluster: ClusterSpec, pod: Pod, reason: str) -> PodDeletion:
    return PodDeletion(cluster.namespace, pod.name, pod.uid, reason)


def _lost_with(component: Component, pod: Pod) -> str | None:
    """Why a pod may not go that alone keeps a deleted claim."""
    claim = component.lost_with(pod)
    if claim is None:
        return None
    return (
        f"{claim.name} is being deleted, and its data would go with {pod.name}: copy the data, or delete the"
        " pod yourself if it may go."
    )


def _gap(component: Component, besides: Pod) -> str | None:
    """What is wrong with the other pods of a component, if anything is."""
    if missing := component.missing():
        return f"Pod {missing[0]} is not there yet."
    for pod in component.pods.values():
        if pod.name == besides.name:
            continue
        if pod.deleting:
            return f"{pod.name} is being deleted."
        if not pod.scheduled:
            return f"{pod.name} has no node."
        if not pod.ready:
            return f"{pod.name} is not ready."
    return None


def prove_claim_deletion(
    cluster: ClusterSpec, snapshot: Snapshot, component: Component, index: int
) -> ClaimDeletion | Refusal:
    """Whether a claim can be deleted because the node of its volume is gone for good.

    Only one at a time, only while nothing else is in doubt, and only when every partition has a leader
    without it: two lost machines at once are for a person to judge.
    """
    claim, pod = component.claims.get(index), component.pods.get(index)
    if claim is None or claim.deleting:
        return Refusal("The claim does not exist, or is being deleted.")
    if snapshot.nodes is None:
        return Refusal("The operator may not list nodes, so the node may still be there.")
    if not claim.machine:
        return Refusal(f"{claim.name} is on a volume that is not tied to a machine.")
    if not claim.is_lost(snapshot.nodes):
        return Refusal(f"The node {claim.machine} of {claim.name} still exists.")
    if pod is not None and pod.ready:
        return Refusal(f"{pod.name} serves.")
    if pod is not None and pod.node in snapshot.nodes:
        return Refusal(f"{pod.name} is on the node {pod.node}, so its volume is there too.")
    for other in component.held:
        if other.index == index:
            continue
        if other.deleting or not other.bound:
            return Refusal(f"{other.name} is without a volume: one replacement at a time.")
        if other.is_lost(snapshot.nodes):
            return Refusal(f"{other.name} has lost its node too: a person has to decide.")
    if claim.lost_since is None or snapshot.now - claim.lost_since < LOST_NODE_WAIT:
        minutes = int(LOST_NODE_WAIT.total_seconds() // 60)
        return Refusal(
            f"The node {claim.machine} of {claim.name} is gone: it has {minutes} minutes to return."
        )
    for place in range(component.workload.replicas if component.workload else 0):
        healthy = component.pods.get(place)
        if place != index and (healthy is None or not healthy.ready or healthy.deleting):
            return Refusal(f"Pod {place} is not ready: no volume is given up while another pod is in doubt.")
    if component is snapshot.zookeeper:
        if (gap := _ensemble_gap(cluster, snapshot, index)) is not None:
            return gap
    elif (held := _held_elsewhere(snapshot, index)) is not None:
        return held
    return ClaimDeletion(
        cluster.namespace, claim.name, claim.uid, f"the node {claim.machine} is gone for good"
    )


def _ensemble_gap(cluster: ClusterSpec, snapshot: Snapshot, index: int) -> Refusal | None:
    """A refusal unless all other ZooKeeper servers serve, one of them as the leader, and are a quorum.

    Then every acknowledged write is on a majority that does not include server `index`.
    """
    if index in snapshot.modes:
        return Refusal(f"ZooKeeper server {index} serves.")
    others = [place for place in range(cluster.zookeeper.replicas) if place != index]
    for place in others:
        if place not in snapshot.modes:
            return Refusal(f"ZooKeeper server {place} does not serve.")
    if "leader" not in snapshot.modes.values() or len(others) * 2 <= cluster.zookeeper.replicas:
        return Refusal("The ensemble has no quorum without this server's data.")
    return None


def _held_elsewhere(snapshot: Snapshot, index: int) -> Refusal | None:
    """A refusal unless all other brokers agree that every partition has a leader without broker `index`."""
    others = {broker: report for broker, report in snapshot.reports.items() if broker != index}
    expected = {broker for broker in snapshot.brokers.pods if broker != index}
    if not others or others.keys() != expected:
        return Refusal("Not every other broker reports its state.")
    for broker, report in sorted(others.items()):
        if report.offline:
            return Refusal(
                f"{report.offline} partitions have no leader: their last data may be on that volume."
            )
        if report.catching_up:
            return Refusal(f"Broker {broker} is still catching up.")
        if index in report.live_brokers:
            return Refusal(f"Broker {broker} reports broker {index} as alive.")
    return None


def prove_scale_down(
    cluster: ClusterSpec, snapshot: Snapshot, held: Mapping[int, int], moving: Iterable[int]
) -> ScaleDown | Refusal:
    """Whether the last broker can be taken away.

    Args:
        held: how many replicas each broker holds, as the cluster's metadata says now.
        moving: the brokers that take part in moves of replicas.
    """
    workload = snapshot.brokers.workload
    if workload is None or workload.replicas <= cluster.brokers.replicas:
        return Refusal("There are no more brokers than requested.")
    last = workload.replicas - 1
    if last < 1:
        return Refusal("The last broker is never removed.")
    if cluster.scale_down_anyway:
        reason = f"the BrokerCluster is annotated {names.SCALE_DOWN_ANYWAY}, regardless of its replicas"
        return ScaleDown(cluster.namespace, workload.name, last, reason)
    if count := held.get(last, 0):
        return Refusal(f"Broker {last} still holds {count} replicas.")
    if last in set(moving):
        return Refusal(f"Broker {last} takes part in a move.")
    for pod in snapshot.brokers.pods.values():
        if pod.index != last and (pod.deleting or not pod.ready):
            return Refusal(f"{pod.name} is not ready.")
    report = snapshot.reports.get(last)
    if report is not None and report.replicas:
        return Refusal(f"Broker {last} reports {report.replicas} replicas.")
    if report is None and last in {
        broker for other in snapshot.reports.values() for broker in other.live_brokers
    }:
        return Refusal(f"Broker {last} is alive but does not report its state.")
    return ScaleDown(cluster.namespace, workload.name, last, "it holds nothing")


def prove_topic_deletion(
    spec: TopicSpec,
    known_id: str | None,
    present_id: str,
    others: Iterable[TopicSpec],
) -> TopicDeletion | Refusal:
    """Whether a topic is to go with its Topic.

    Args:
        spec: read anew from the API server.
        known_id: the id of the topic that this Topic made or took over, from its status.
        present_id: the id of the topic that is there.
        others: the other Topics of the same BrokerCluster, and the claims of those that are not valid.
    """
    if not spec.identity.deleting:
        return Refusal("The Topic is not being deleted.")
    if not spec.managed or not spec.delete_topic:
        return Refusal("The Topic is set to keep its topic.")
    if spec.protected:
        return Refusal("deletionProtection is on: the topic is kept.")
    if spec.topic.startswith("__"):
        return Refusal("Internal topics are not deleted.")
    if not known_id:
        return Refusal("This Topic has never owned the topic.")
    if known_id != present_id:
        return Refusal("The existing topic is another one of the same name: it is kept.")
    for other in others:
        same = (other.cluster, other.topic) == (spec.cluster, spec.topic)
        if same and other.identity.key != spec.identity.key and not other.identity.deleting:
            return Refusal(f"The Topic {other.identity.name} claims the same topic: it is kept.")
    return TopicDeletion(spec.topic, present_id)


def prove_offset_move(
    group: str,
    request_id: str,
    state: str,
    members: int,
    after: Mapping[tuple[str, int], int],
    bounds: Mapping[tuple[str, int], tuple[int, int]],
    record: Sequence[str],
    *,
    is_done: bool,
) -> OffsetMove | Refusal:
    """Whether a group's offsets can be put elsewhere.

    Args:
        state: of the group, just read.
        after: the offsets to set.
        bounds: the first offset and the end of each partition, as brokers reported them just now.
        record: what is stored with the offsets.
        is_done: whether the present record of the group, read just now, has the request already.
    """
    if is_done:
        return Refusal("This request has been carried out.")
    if members or state not in ("EMPTY", "DEAD"):
        return Refusal(f"The group has {members} members, which would overwrite its offsets: stop them.")
    if not after:
        return Refusal("There is nothing to set.")
    for (topic, partition), offset in sorted(after.items()):
        if (topic, partition) not in bounds:
            return Refusal(f"There is no partition {partition} of {topic}.")
        first, end = bounds[topic, partition]
        if not first <= offset <= end:
            return Refusal(f"{topic}-{partition} has offsets from {first} to {end}: {offset} is outside.")
    return OffsetMove(group, request_id, dict(after), tuple(record))
