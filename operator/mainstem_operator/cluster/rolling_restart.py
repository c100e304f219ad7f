"""Which pods have to be restarted, in which order, and which one now, if any. Pure.

Work is found by looking at the pods that run: what they started with against what they should have started
with. Nothing is remembered, so an operator that dies in the middle is replaced by one that carries on, and
restarts nothing twice. At most one pod goes in a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.proofs import PodDeletion, Refusal, prove_broker_deletion, prove_server_deletion
from mainstem_operator.snapshot import Component, Pod, Snapshot


@dataclass(frozen=True, slots=True)
class Restart:
    """A pod that has to be restarted, and why."""

    pod: Pod
    reason: str


@dataclass(frozen=True, slots=True)
class Roll:
    """What is left to restart, in order; the next step is a deletion, a wait, or None if nothing is left."""

    restarts: tuple[Restart, ...]
    step: PodDeletion | Refusal | None


Prove = Callable[[ClusterSpec, Snapshot, Pod, str], PodDeletion | Refusal]


def plan_broker_roll(
    cluster: ClusterSpec,
    snapshot: Snapshot,
    config_hash: str,
    racks: Mapping[str, str] | None = None,
    behind: Collection[int] = (),
    at_other_ports: Collection[int] = (),
) -> Roll:
    """The restarts of brokers: those that do not serve first, the controller last.

    Args:
        config_hash: of the settings that brokers should run with.
        racks: of the nodes, as they were just applied for brokers to read when they start, and not as seen
            since: a restart for a rack that they can't read yet would be followed by another.
        behind: the brokers that say that they have a setting from a file that is not in it any more.
        at_other_ports: the brokers that send clients outside to a node port that is not theirs.
    """

    def reason(pod: Pod) -> str:
        if pod.config_hash != config_hash or pod.index in behind:
            return "its settings have changed"
        # No text requests nothing: an annotation that is removed was a request of before.
        if cluster.restart_request and pod.restart_done != cluster.restart_request:
            return "a restart was requested"
        if pod.index in at_other_ports:
            return "its node port has changed"
        rack = (racks or {}).get(pod.node or "")
        if rack and pod.index in snapshot.racks and snapshot.racks[pod.index] != rack:
            return f"its node is in rack {rack}"
        return ""

    def prove(cluster: ClusterSpec, snapshot: Snapshot, pod: Pod, reason: str) -> PodDeletion | Refusal:
        return _kept_off_its_node(cluster, snapshot.brokers, pod) or prove_broker_deletion(
            cluster, snapshot, pod, reason
        )

    controller = next((report.controller for report in snapshot.reports.values()), None)
    return _plan(
        cluster,
        snapshot,
        snapshot.brokers,
        reason,
        prove,
        replicas=cluster.brokers.replicas,
        last=lambda pod: pod.index == controller,
        silent=lambda pod: pod.index not in snapshot.reports,
    )


def _kept_off_its_node(cluster: ClusterSpec, brokers: Component, pod: Pod) -> Refusal | None:
    """Why a broker that serves could not start again on its node. Brokers may share a node since before the
    rule of `spread: Required` held, and a volume may be tied to that node.

    A restart of this pod that a person requests is carried out: it moves a broker whose volume can move.
    """
    if not cluster.brokers.spread_required or not pod.ready or pod.restart_asked:
        return None
    beside = (other.name for other in brokers.pods.values() if other.node == pod.node and other is not pod)
    if (other := next(beside, None)) is None:
        return None
    return Refusal(
        f"{pod.name} is on the node {pod.node} with {other}, and could not start there again with"
        " spread: Required. Move one of them to another node, or set spread: Preferred. If the volume of"
        f" {pod.name} can move, annotate this pod with {names.RESTART}=true."
    )


def unless_blocked(roll: Roll, blocked_by: str) -> Roll:
    """The roll without its next step, if there is a reason to leave all pods as they are."""
    if blocked_by and isinstance(roll.step, PodDeletion):
        return replace(roll, step=Refusal(blocked_by))
    return roll


def plan_zookeeper_roll(cluster: ClusterSpec, snapshot: Snapshot) -> Roll:
    """The restarts of ZooKeeper servers: those that do not serve first, the leader last."""
    return _plan(
        cluster,
        snapshot,
        snapshot.zookeeper,
        lambda _: "",
        prove_server_deletion,
        replicas=cluster.zookeeper.replicas,
        last=lambda pod: snapshot.modes.get(pod.index) == "leader",
        silent=lambda pod: pod.index not in snapshot.modes,
    )


def _plan(
    cluster: ClusterSpec,
    snapshot: Snapshot,
    component: Component,
    reason_of: Callable[[Pod], str],
    prove: Prove,
    *,
    replicas: int,
    last: Callable[[Pod], bool],
    silent: Callable[[Pod], bool],
) -> Roll:
    workload = component.workload
    if workload is None:
        return Roll((), None)
    if not workload.up_to_date:
        return Roll((), Refusal(f"The StatefulSet {workload.name} is being brought up to date."))
    restarts = []
    for pod in component.pods.values():
        if pod.deleting or pod.index >= replicas:  # one that is to go is not worth a restart
            continue
        reason = reason_of(pod)
        if not reason and pod.revision and pod.revision != workload.update_revision:
            reason = "its pod template has changed"
        if not reason and pod.restart_asked:
            reason = f"the pod is annotated {names.RESTART}"
        if reason:
            restarts.append(Restart(pod, reason))
    restarts.sort(key=lambda item: (item.pod.ready, last(item.pod), item.pod.index))
    if not restarts:
        return Roll((), None)
    first = restarts[0]
    outdated = first.pod.revision != workload.update_revision
    if not first.pod.ready and silent(first.pod) and not outdated:
        # It is starting with all that is new; another deletion would only begin that again.
        return Roll(tuple(restarts), Refusal(f"{first.pod.name} is starting."))
    return Roll(tuple(restarts), prove(cluster, snapshot, first.pod, f"{first.pod.name}: {first.reason}"))
