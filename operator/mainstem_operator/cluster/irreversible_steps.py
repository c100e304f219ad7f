"""The steps of a pass over a BrokerCluster that cannot be undone: pods, volumes and brokers that go.

Each needs a proof (`proofs`) from the snapshot that was taken just before, and a pass takes at most one of
them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.api.timestamps import written
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.cluster.disks import plan_disks
from mainstem_operator.cluster.moves import Drain, replicas_held
from mainstem_operator.cluster.status import Work
from mainstem_operator.cluster.throttles.limited_moves import LimitedMoves
from mainstem_operator.kubernetes.client import Refused
from mainstem_operator.kubernetes.manifests import Manifest
from mainstem_operator.proofs import (
    ClaimDeletion,
    PodDeletion,
    Refusal,
    prove_broker_deletion,
    prove_scale_down,
    prove_server_deletion,
)
from mainstem_operator.runtime.context import Context
from mainstem_operator.snapshot import Claim, Component, Snapshot

logger = structlog.get_logger(__name__)

_TURN: Final = dt.timedelta(minutes=2)
"""In which an operator that has begun a deletion has ended it, or does not: a request takes at most 30 s."""


class IrreversibleSteps:
    """What one pass may do about `snapshot`; `manifest` is the BrokerCluster that events are about.

    Attributes:
        refused: what Kubernetes refuses of it, as an admission policy does; empty if nothing.
    """

    def __init__(
        self,
        context: Context,
        manifest: Object,
        cluster: ClusterSpec,
        brokers: Brokers,
        moves: LimitedMoves,
        snapshot: Snapshot,
    ) -> None:
        self._context = context
        self._kube = context.kube
        self._manifest = manifest
        self._cluster = cluster
        self._brokers = brokers
        self._moves = moves
        self._snapshot = snapshot
        self.refused = ""

    async def take(self, work: Work) -> str:
        """Take at most one step, in the order of their weight.

        Returns:
            Why a drain does not go on, such as moves of a limited one that were refused; empty if it does.
        """
        await self._mark_lost_volumes()
        try:
            return await self._take(work)
        except Refused as refused:
            self._note_refusal("a step of the plan", refused)
            return ""

    def _note_refusal(self, what: str, refused: Refused) -> None:
        """Go on without what is refused for its content, until it is allowed; other errors are raised."""
        if not refused.by_content:
            raise refused
        self.refused = self.refused or f"Kubernetes refuses {what}, and it is tried again: {refused}"
        logger.warning("step refused", what=what, error=str(refused))

    async def _take(self, work: Work) -> str:
        for volume in work.lost:
            if isinstance(volume.step, ClaimDeletion):
                await self._replace_volume(volume.claim, volume.step)
                return ""
        if work.lost:
            return ""
        snapshot = self._snapshot
        for roll, component in ((work.servers, snapshot.zookeeper), (work.brokers, snapshot.brokers)):
            if isinstance(roll.step, PodDeletion):
                await self._delete_pod(roll.step, component)
            if roll.restarts:
                return ""
        return await self._drain(work.drain) if isinstance(work.drain, Drain) else ""

    async def _delete_pod(self, proof: PodDeletion, component: Component) -> None:
        if not (await self._context.may_act() and await self._may_begin(component, proof.uid)):
            return
        await self._context.event(self._manifest, "RestartingPod", proof.reason)
        self._context.metrics.steps.labels("delete_pod").inc()
        await self._kube.delete_pod(proof)

    async def _may_begin(self, component: Component, uid: str) -> bool:
        """Whether this operator is the one that deletes, of all that act now.

        Without a Lease two may, for as long as the machine of one is cut off. Each would delete a pod that
        can go, and together they would take two. So a deletion is noted at the StatefulSet before it, which
        succeeds only if the StatefulSet and its pods are as the snapshot has them; and another one that is
        noted there is waited for.
        """
        workload, now = component.workload, self._snapshot.now
        if workload is None:
            return False
        if workload.deletion_begun is not None:
            other, at = workload.deletion_begun
            left = {pod.uid for pod in component.pods.values() if not pod.deleting}
            left |= {claim.uid for claim in component.claims.values() if not claim.deleting}
            if other in left - {uid} and now - at < _TURN:
                return False
        metadata = {
            "namespace": self._cluster.namespace,
            "name": workload.name,
            "resourceVersion": workload.version,
        }
        stateful_set = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata}
        note = {names.DELETION_BEGUN: f"{uid} {written(now)}"}
        try:
            await self._kube.annotate(stateful_set, note, unchanged=True)
        except Refused as refused:
            if not (refused.conflict or refused.missing):
                raise
            logger.info("not deleted, since its workload has changed", workload=workload.name)
            return False
        return True

    async def _mark_lost_volumes(self) -> None:
        snapshot = self._snapshot
        for component in (snapshot.zookeeper, snapshot.brokers):
            disks = plan_disks(self._cluster, snapshot, component)
            for claim, mark in [
                *((claim, written(snapshot.now)) for claim in disks.missed),
                *((claim, None) for claim in disks.found),
            ]:
                manifest = _claim_manifest(self._cluster, claim)
                try:
                    await self._kube.annotate(manifest, {names.LOST_SINCE: mark})
                except Refused as refused:
                    if not refused.missing:
                        what = f"the annotation {names.LOST_SINCE} of the PersistentVolumeClaim {claim.name}"
                        self._note_refusal(what, refused)

    async def _replace_volume(self, claim: Claim, proof: ClaimDeletion) -> None:
        snapshot = self._snapshot
        of_brokers = claim in snapshot.brokers.claims.values()
        component = snapshot.brokers if of_brokers else snapshot.zookeeper
        if not (await self._context.may_act() and await self._may_begin(component, proof.uid)):
            return
        pod = component.pods.get(claim.index)
        prove = prove_broker_deletion if of_brokers else prove_server_deletion
        await self._context.event(
            self._manifest, "ReplacingVolume", f"{claim.name}: {proof.reason}", warning=True
        )
        self._context.metrics.steps.labels("delete_claim").inc()
        await self._kube.delete_claim(proof)
        if pod is not None:  # the claim goes once no pod names it
            dispensable = prove(self._cluster, snapshot, pod, f"{claim.name} is replaced")
            if isinstance(dispensable, PodDeletion):
                await self._kube.delete_pod(dispensable)

    async def _drain(self, drain: Drain) -> str:
        if drain.targets:
            refused = await self._moves.carry_out(self._cluster, drain.targets, drain.under_way)
            brokers = ", ".join(map(str, drain.brokers))
            if begun := len(drain.targets) - len(refused):
                text = f"{begun} partitions move off brokers {brokers}."
                await self._context.event(self._manifest, "Draining", text)
            if refused:
                topic, partition = min(refused)
                more = f" And {len(refused) - 1} more." if len(refused) > 1 else ""
                text = f"{topic}-{partition} is not moved: {refused[topic, partition]}{more}"
                await self._context.event(self._manifest, "MoveRefused", text, warning=True)
                if self._cluster.move_bytes_per_second is not None:  # else it passes, and the event is enough
                    return text
            return ""
        held: Mapping[int, int] = {}
        moving: set[int] = set()
        anyway = self._cluster.scale_down_anyway
        if not anyway:
            try:
                held = replicas_held(await self._brokers.topics(await self._brokers.topic_names()))
                moves = await self._brokers.moves()
            except (BrokersRefused, BrokersUnreachable) as error:
                return str(error)
            moving = {broker for move in moves.values() for broker in move.involved}
        proof = prove_scale_down(self._cluster, self._snapshot, held, moving)
        if isinstance(proof, Refusal):
            return proof.reason
        if await self._context.may_act():
            text = f"Broker {proof.replicas} is removed: {proof.reason}."
            await self._context.event(self._manifest, "RemovingBroker", text, warning=anyway)
            self._context.metrics.steps.labels("lower_replicas").inc()
            await self._kube.lower_replicas(proof)
        return ""


def _claim_manifest(cluster: ClusterSpec, claim: Claim) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": cluster.namespace, "name": claim.name},
    }
