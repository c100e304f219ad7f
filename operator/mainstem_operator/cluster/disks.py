"""What to do about volumes that are too small, and about those whose node is gone. Pure.

A volume of one node is lost with it, and its pod can be placed nowhere. The way back: the node is missed,
and waited for; then, if all that was on the volume is elsewhere, the claim goes, and the pod with it, and
the StatefulSet makes both anew on another node. One at a time; in any doubt a person decides. While several
nodes are lost, the wait of each begins anew: when a power cut ends, they return one after another, and the
last one must not be given up because the others are back.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, Storage
from mainstem_operator.api.quantities import quantity
from mainstem_operator.proofs import ClaimDeletion, Refusal, prove_claim_deletion
from mainstem_operator.snapshot import Claim, Component, Snapshot

_MARKED_ANEW_AFTER: Final = dt.timedelta(minutes=1)
"""A mark older than this is renewed while other volumes are lost: at most one write per minute and volume."""


@dataclass(frozen=True, slots=True)
class LostVolume:
    """A volume whose node is gone; `step` gives it up, or says why not yet."""

    claim: Claim
    step: ClaimDeletion | Refusal


@dataclass(frozen=True, slots=True)
class Disks:
    """`missed` are claims to be marked as lost from now on, `found` those marked whose node is back."""

    missed: tuple[Claim, ...]
    found: tuple[Claim, ...]
    lost: tuple[LostVolume, ...]


@dataclass(frozen=True, slots=True)
class Growth:
    """Claims that are to request the manifest's size; `refused` says why another one can't have it, or is
    empty."""

    claims: tuple[Claim, ...]
    refused: str


def plan_growth(storage: Storage, component: Component) -> Growth:
    """The claims of a component that are smaller than its manifest says, and those that request more than it
    says and have not got even that, as after a mistyped size. Kubernetes takes such a request back since 1.32
    (RecoverVolumeExpansionFailure).

    Whether a volume that nodes share can grow is its storage class's business, and the API server's to say.
    """
    size = quantity(storage.size)
    growing, refused = [], ""
    for claim in component.held:
        if storage.type == "ephemeral" or not claim.size or claim.deleting or quantity(claim.size) == size:
            continue
        has = min(claim.capacity or claim.size, claim.size, key=quantity)
        if quantity(has) >= size:
            refused = refused or f"{claim.name} has {has}, and volumes don't shrink."
        elif storage.type == "local":
            refused = refused or f"{claim.name} is on a local volume, which can't grow."
        else:
            growing.append(claim)
    return Growth(tuple(growing), refused)


def still_growing(storage: Storage, component: Component) -> str:
    """Which volume is not as large yet as was requested of it, in words; empty if all are.

    Kubernetes takes the request at once. Then the volume grows, at the latest when its pod is restarted, or
    its driver fails and tries again for ever.
    """
    for claim in component.held:
        if storage.type == "ephemeral" or claim.deleting or not (claim.size and claim.capacity):
            continue
        if quantity(claim.capacity) < quantity(claim.size):
            return (
                f"The volume of {claim.name} has {claim.capacity}, and {claim.size} are requested: if it does"
                f" not grow, `kubectl describe pvc {claim.name}` says why."
            )
    return ""


def claims_to_create(
    cluster: str, kind: str, storage: Storage, replicas: int, component: Component
) -> set[str]:
    """The claims that Kubernetes creates for pods that do not exist, unless there are some of these names."""
    if storage.type == "ephemeral":
        return set()
    missing = set(range(replicas)) - component.claims.keys() - component.pods.keys()
    return {names.claim(cluster, kind, index) for index in missing}


def other_ensemble(cluster: ClusterSpec, zookeeper: Component) -> str:
    """Why no ZooKeeper server may be created: there are volumes of another number of servers; empty if none.

    Servers without the data of an earlier BrokerCluster could be a quorum by themselves, and everything that
    ZooKeeper knew would be lost.
    """
    there = [index for index, claim in zookeeper.claims.items() if not claim.deleting]
    if zookeeper.workload is not None or cluster.zookeeper.storage.type == "ephemeral" or not there:
        return ""
    before = max(there) + 1
    before += before % 2 == 0  # an ensemble has an odd number, and one of its volumes may be lost
    replicas = cluster.zookeeper.replicas
    if before == replicas:
        return ""
    return (
        f"There are volumes of {before} ZooKeeper servers of an earlier BrokerCluster {cluster.name}, and"
        f" {replicas} are requested: servers without their data could lose every topic. Set"
        f" spec.zookeeper.replicas to {before}, or delete the claims of all its servers and brokers to begin"
        " without their data."
    )


def plan_disks(cluster: ClusterSpec, snapshot: Snapshot, component: Component) -> Disks:
    """The volumes of a component that need something done."""
    if snapshot.nodes is None:
        return Disks((), (), ())
    gone = [claim for claim in component.held if claim.is_lost(snapshot.nodes) and not claim.deleting]
    several, oldest = len(gone) > 1, snapshot.now - _MARKED_ANEW_AFTER
    return Disks(
        missed=tuple(
            claim for claim in gone if claim.lost_since is None or (several and claim.lost_since < oldest)
        ),
        found=tuple(
            claim
            for claim in component.claims.values()
            if claim.lost_since is not None and claim not in gone and not claim.deleting
        ),
        lost=tuple(
            LostVolume(claim, prove_claim_deletion(cluster, snapshot, component, claim.index))
            for claim in gone
        ),
    )
