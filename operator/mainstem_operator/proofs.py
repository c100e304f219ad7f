"""The five acts that can't be taken back, and what has to be seen before each. Pure.

Deleting a pod, deleting a volume claim, lowering the number of brokers, deleting a topic, moving offsets:
`kube.py` and `admin.py` do each only for a proof, and only this module makes proofs, from a snapshot that
is fresh. Whoever comes to the idea of such an act by another way still has to pass here. In doubt the
answer is no, with a reason that a person can read.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mainstem_operator import names
from mainstem_operator.observed import Component, Pod, Snapshot
from mainstem_operator.resources import ClusterSpec, TopicSpec

LOST_NODE_WAIT: Final = dt.timedelta(minutes=5)  # a machine that restarts, or is replaced under its name


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an act is not done now."""

    reason: str


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """This pod can go: nobody loses by it."""

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

    Or whoever asked for fewer brokers has said that they go with what they hold.
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
    """These offsets of an idle group are to be put: topic and partition to offset, each of them in range."""

    group: str
    request_id: str
    offsets: Mapping[tuple[str, int], int]


def prove_broker_deletion(
    cluster: ClusterSpec, seen: Snapshot, pod: Pod, reason: str
) -> PodDeletion | Refusal:
    """Whether a broker's pod can be deleted: it stops and comes back with what is new.

    A pod whose broker does not answer and is not ready serves no one, so nobody loses by its deletion. One
    that serves goes only when every other broker is there, has caught up, and it says itself that it may.
    """
    if pod.deleting:
        return Refusal(f"{pod.name} is being deleted already.")
    report = seen.reports.get(pod.index)
    if report is None and not pod.ready:
        return _proof(cluster, pod, reason)
    if not pod.scheduled:
        return Refusal(
            f"{pod.name} waits for a node: {pod.unschedulable or 'the scheduler has not chosen yet'}"
        )
    if gap := _gap(seen.brokers, pod):
        return Refusal(gap)
    if not seen.quorum:
        return Refusal("ZooKeeper has no quorum, so nobody could take over from a broker.")
    for other in seen.brokers.pods.values():
        their = seen.reports.get(other.index)
        if their is None or not their.running:
            return Refusal(f"{other.name} does not say how it is.")
        if their.catching_up:
            replicas = "replica is" if their.catching_up == 1 else "replicas are"
            return Refusal(f"{their.catching_up} {replicas} still catching up on {other.name}.")
    if report is None or not report.may_stop:
        blockers = "; ".join(report.blockers[:3]) if report else "it does not answer"
        return Refusal(f"{pod.name} may not stop now: {blockers or 'partitions would lose by it'}.")
    return _proof(cluster, pod, reason)


def prove_server_deletion(
    cluster: ClusterSpec, seen: Snapshot, pod: Pod, reason: str
) -> PodDeletion | Refusal:
    """Whether a ZooKeeper server's pod can be deleted: a quorum is left, and the leader goes last."""
    if pod.deleting:
        return Refusal(f"{pod.name} is being deleted already.")
    if pod.index not in seen.modes and not pod.ready:
        return _proof(cluster, pod, reason)
    if not pod.scheduled:
        return Refusal(
            f"{pod.name} waits for a node: {pod.unschedulable or 'the scheduler has not chosen yet'}"
        )
    if gap := _gap(seen.zookeeper, pod):
        return Refusal(gap)
    for other in seen.zookeeper.pods.values():
        if other.index not in seen.modes:
            return Refusal(f"{other.name} does not serve.")
    return _proof(cluster, pod, reason)


def _proof(cluster: ClusterSpec, pod: Pod, reason: str) -> PodDeletion:
    return PodDeletion(cluster.namespace, pod.name, pod.uid, reason)


def _gap(component: Component, besides: Pod) -> str | None:
    """What is wrong with the other pods of a component, if anything is."""
    if missing := component.missing():
        return f"Pod {missing[0]} is not there yet."
    for pod in component.pods.values():
        if pod.name == besides.name:
            continue
        if pod.deleting:
            return f"{pod.name} is on its way out."
        if not pod.scheduled:
            return f"{pod.name} has no node."
        if not pod.ready:
            return f"{pod.name} is not ready."
    return None


def prove_claim_deletion(
    cluster: ClusterSpec, seen: Snapshot, component: Component, index: int
) -> ClaimDeletion | Refusal:
    """Whether a claim can be deleted because the node of its volume is gone for good.

    Only one at a time, only while nothing else is in doubt, and only when every partition has a leader
    without it: two lost machines at once are for a person to judge.
    """
    claim, pod = component.claims.get(index), component.pods.get(index)
    if claim is None or claim.deleting:
        return Refusal("The claim is not there, or is going already.")
    if seen.nodes is None:
        return Refusal("The operator may not list nodes, so it can't tell whether the node is gone for good.")
    if claim.node is None:
        return Refusal(f"{claim.name} is on a volume that any node may mount.")
    if claim.node in seen.nodes:
        return Refusal(f"The node {claim.node} of {claim.name} is there.")
    if pod is not None and pod.ready:
        return Refusal(f"{pod.name} serves.")
    if claim.lost_since is None or seen.now - claim.lost_since < LOST_NODE_WAIT:
        minutes = int(LOST_NODE_WAIT.total_seconds() // 60)
        return Refusal(f"The node {claim.node} of {claim.name} is waited for, {minutes} minutes in all.")
    for other in component.held:
        if other.index == index:
            continue
        if other.deleting or not other.bound:
            return Refusal(f"{other.name} is without a volume: one replacement at a time.")
        if other.node is not None and other.node not in seen.nodes:
            return Refusal(f"{other.name} has lost its node too: a person has to judge that.")
    for place in range(component.workload.replicas if component.workload else 0):
        healthy = component.pods.get(place)
        if place != index and (healthy is None or not healthy.ready or healthy.deleting):
            return Refusal(f"Pod {place} is not ready: nothing is given up while another one is in doubt.")
    if component is seen.zookeeper:
        if not seen.quorum or len(component.held) < 3:
            return Refusal("The ensemble has no quorum without this server's data.")
    elif (held := _held_elsewhere(seen, index)) is not None:
        return held
    return ClaimDeletion(cluster.namespace, claim.name, claim.uid, f"the node {claim.node} is gone for good")


def _held_elsewhere(seen: Snapshot, index: int) -> Refusal | None:
    """A refusal unless all other brokers agree that every partition has a leader without broker `index`."""
    others = {broker: report for broker, report in seen.reports.items() if broker != index}
    expected = {broker for broker in seen.brokers.pods if broker != index}
    if not others or others.keys() != expected:
        return Refusal("Not every other broker says how it is.")
    for broker, report in sorted(others.items()):
        if report.offline:
            return Refusal(
                f"{report.offline} partitions have no leader: their last data may be on that volume."
            )
        if report.catching_up:
            return Refusal(f"Broker {broker} is still catching up.")
        if index in report.live_brokers:
            return Refusal(f"Broker {index} is alive in the eyes of broker {broker}.")
    return None


def prove_scale_down(
    cluster: ClusterSpec, seen: Snapshot, held: Mapping[int, int], moving: Iterable[int]
) -> ScaleDown | Refusal:
    """Whether the last broker can be taken away.

    Args:
        held: how many replicas each broker holds, as the cluster's metadata says now.
        moving: the brokers that take part in moves of replicas.
    """
    workload = seen.brokers.workload
    if workload is None or workload.replicas <= cluster.brokers.replicas:
        return Refusal("There are no more brokers than are asked for.")
    last = workload.replicas - 1
    if last < 1:
        return Refusal("The last broker stays.")
    if cluster.scale_down_anyway:
        reason = f"the Cluster is annotated {names.SCALE_DOWN_ANYWAY}, whatever it holds"
        return ScaleDown(cluster.namespace, workload.name, last, reason)
    if count := held.get(last, 0):
        return Refusal(f"Broker {last} still holds {count} replicas.")
    if last in set(moving):
        return Refusal(f"Broker {last} takes part in a move.")
    for pod in seen.brokers.pods.values():
        if pod.index != last and (pod.deleting or not pod.ready):
            return Refusal(f"{pod.name} is not ready.")
    report = seen.reports.get(last)
    if report is not None and report.replicas:
        return Refusal(f"Broker {last} says that it holds {report.replicas} replicas.")
    if report is None and last in {
        broker for other in seen.reports.values() for broker in other.live_brokers
    }:
        return Refusal(f"Broker {last} is alive and does not say how it is.")
    return ScaleDown(cluster.namespace, workload.name, last, "it holds nothing")


def prove_topic_deletion(
    spec: TopicSpec, known_id: str | None, present_id: str, others: Iterable[TopicSpec]
) -> TopicDeletion | Refusal:
    """Whether a topic is to go with its Topic.

    Args:
        spec: read anew from the API server.
        known_id: the id of the topic that this Topic made or took over, from its status.
        present_id: the id of the topic that is there.
        others: the other Topics of the same Cluster.
    """
    if not spec.identity.deleting:
        return Refusal("The Topic is not being deleted.")
    if not spec.managed or not spec.delete_topic:
        return Refusal("The Topic says that its topic is kept.")
    if spec.protected:
        return Refusal("deletionProtection is on: the topic is kept.")
    if spec.topic.startswith("__"):
        return Refusal("Internal topics are not deleted.")
    if not known_id:
        return Refusal("This Topic has never owned the topic.")
    if known_id != present_id:
        return Refusal("The topic that is there is another one of the same name: it is kept.")
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
    done: str | None,
    after: Mapping[tuple[str, int], int],
    bounds: Mapping[tuple[str, int], tuple[int, int]],
) -> OffsetMove | Refusal:
    """Whether a group's offsets can be put elsewhere.

    Args:
        state: of the group, asked just now.
        done: the request that was carried out last.
        after: the offsets to put.
        bounds: the first offset and the end of each partition, asked just now.
    """
    if done == request_id:
        return Refusal("This request has been carried out.")
    if members or state not in ("EMPTY", "DEAD"):
        return Refusal(f"The group has {members} members, who would overwrite the offsets: stop them first.")
    if not after:
        return Refusal("There is nothing to put.")
    for (topic, partition), offset in sorted(after.items()):
        if (topic, partition) not in bounds:
            return Refusal(f"There is no partition {partition} of {topic}.")
        first, end = bounds[topic, partition]
        if not first <= offset <= end:
            return Refusal(f"{topic}-{partition} goes from {first} to {end}: {offset} lies outside.")
    return OffsetMove(group, request_id, dict(after))
