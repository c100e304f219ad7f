"""One look at a Cluster: see, plan, act, write the status once. Read `reconcile` as a table of contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from mainstem_operator import names
from mainstem_operator.admin import Brokers, BrokersRefused, BrokersUnreachable
from mainstem_operator.context import Context
from mainstem_operator.fields import InvalidSpec, Object
from mainstem_operator.kube import Refused
from mainstem_operator.limited_moves import is_note_of
from mainstem_operator.manifests import Manifest
from mainstem_operator.observe import Look
from mainstem_operator.observed import Claim, Snapshot, written
from mainstem_operator.plan_brokers import (
    Placement,
    broker_manifests,
    broker_services,
    config_hash,
    racks_of,
    settings_filed,
    settings_of,
)
from mainstem_operator.plan_disks import plan_disks, plan_growth
from mainstem_operator.plan_moves import Drain, plan_drain, plan_removal, replicas_held
from mainstem_operator.plan_roll import Roll, plan_broker_roll, plan_zookeeper_roll, unless_hindered
from mainstem_operator.plan_settings import (
    SettingsPlan,
    brokers_behind,
    live_settings,
    managed_settings,
    plan_farewell,
    plan_settings,
)
from mainstem_operator.plan_status import Work, cluster_status
from mainstem_operator.plan_zookeeper import zookeeper_manifests
from mainstem_operator.proofs import (
    ClaimDeletion,
    PodDeletion,
    Refusal,
    ScaleDown,
    prove_broker_deletion,
    prove_scale_down,
    prove_server_deletion,
)
from mainstem_operator.resources import ClusterSpec, cluster_of
from mainstem_operator.settings_work import ask_files, put_settings, see_settings, take_back_settings

logger = structlog.get_logger(__name__)

_BUSY_SECONDS: Final = 5.0  # while something is under way that tells no events: replicas that catch up
_SOON_SECONDS: Final = 1.0
_NO_REHEARSAL: Final = (
    "does not support dry run"  # says the API server where an admission webhook has effects
)
_REFUSED_SECONDS: Final = 60.0  # what would change Kubernetes' mind, such as a quota, tells no events


async def reconcile_cluster(context: Context, manifest: Object) -> float | None:
    """Bring a Cluster a step nearer to its manifest; answers when to look again, if before the resync."""
    metadata = manifest["metadata"]
    fresh = await context.kube.get(names.API_VERSION, "Cluster", metadata["namespace"], metadata["name"])
    if fresh is None:
        return None
    # What the last pass noted, which the news may not have told yet, must not be forgotten by this one.
    manifest = {**manifest, "status": fresh.get("status")}
    try:
        cluster = cluster_of(manifest)
    except InvalidSpec as error:
        await context.say_invalid(manifest, str(error))
        return None
    if cluster.identity.deleting:
        return None  # what belongs to it goes with it, by its owner references
    return await _Pass(context, manifest, cluster).reconcile()


class _Pass:
    """One pass over one Cluster."""

    def __init__(self, context: Context, manifest: Object, cluster: ClusterSpec) -> None:
        self._context = context
        self._kube = context.kube
        self._manifest = manifest
        self._cluster = cluster
        self._brokers: Brokers = context.brokers(cluster.namespace, cluster.name)
        self._moves = context.moves(cluster.namespace, cluster.name)
        self._objects: Mapping[tuple[str, str], Object] = {}
        self._rehearsing = False
        self._not_moved = ""  # which moves of a limited drain were refused, and why

    async def reconcile(self) -> float | None:
        look = await self._look()
        if self._cluster.paused:
            return await self._finish_early(look.snapshot, Work())
        if words := await self._rehearse(look.snapshot):
            text = f"Kubernetes refuses what the manifest asks for, so none of it was done: {words}"
            return await self._refused(look.snapshot, text)
        try:
            placement = await self._apply_services(look.snapshot)
        except Refused as error:  # node ports are given out by no rehearsal
            if not error.by_content:
                raise
            text = (
                f"Kubernetes refuses a Service that the manifest asks for, and the rest waits for it: {error}"
            )
            return await self._refused(look.snapshot, text)
        await self._apply_zookeeper(look.snapshot)
        there = look.snapshot.brokers.workload
        if there is None and not look.snapshot.quorum:
            await self._finish_early(look.snapshot, Work(waiting="Brokers wait for ZooKeeper's quorum."))
            return _SOON_SECONDS
        settings = await self._put_settings(look.snapshot, placement)
        await self._apply_brokers(look.snapshot, placement, settings)
        await self._prune(look.snapshot)
        unresizable = await self._grow_claims(look.snapshot)
        told = await self._told_files(look.snapshot, settings)
        seen = (await self._look()).snapshot  # what follows can't be taken back: see it fresh
        work = await self._plan(seen, placement, settings, told)
        work = replace(work, unresizable=unresizable, outside=self._outside(seen, placement))
        if self._cluster.plan_only:
            return await self._finish_early(seen, work)
        await self._act(seen, work)  # at once: each question to brokers makes what was seen older
        await self._limit_moves(seen, work)
        work = replace(work, not_moved=self._not_moved, rates_of_others=self._moves.rates_of_others)
        work = replace(work, settings=await self._take_back_settings(work.settings))
        return await self._finish(seen, work)

    async def _look(self) -> Look:
        look = await self._context.observer.look(self._cluster, self._brokers)
        self._objects = look.objects
        note = look.objects.get(("ConfigMap", names.throttles(self._cluster.name)))
        self._moves.is_noted |= note is not None and is_note_of(self._cluster.name, note)
        return look

    # --- What can be repeated ---

    async def _rehearse(self, seen: Snapshot) -> str:
        """Why Kubernetes would refuse an object of this manifest, so that all of it is done or nothing."""
        self._rehearsing = True
        try:
            placement = await self._apply_services(seen)
            await self._apply_zookeeper(seen)
            is_waiting = seen.zookeeper.workload is not None and not seen.quorum
            if seen.brokers.workload is not None or not is_waiting:  # once is enough for what is not made yet
                await self._apply_brokers(seen, placement, SettingsPlan())
        except Refused as error:
            if not error.by_content:
                raise
            return "" if _NO_REHEARSAL in str(error) else str(error)
        finally:
            self._rehearsing = False
        return ""

    def _replicas(self, seen: Snapshot) -> int:
        """As many brokers as are wanted, or as there are if those are more, or if nothing is to be done."""
        there = seen.brokers.workload.replicas if seen.brokers.workload else 0
        if self._cluster.plan_only and there:
            return there
        return max(self._cluster.brokers.replicas, there)

    async def _apply_services(self, seen: Snapshot) -> Placement:
        ports: dict[int, int] = {}
        replicas = self._replicas(seen)
        outside = {names.external(self._cluster.name, broker): broker for broker in range(replicas)}
        for wanted in broker_services(self._cluster, replicas):
            applied = await self._apply(wanted)
            name = wanted["metadata"]["name"]
            if name in outside:
                ports[outside[name]] = applied["spec"]["ports"][0].get("nodePort", 0)
        return Placement(
            {broker: port for broker, port in ports.items() if port},
            racks_of(self._cluster, seen.nodes, self._broker_files()),
        )

    def _broker_files(self) -> Object | None:
        return self._objects.get(("ConfigMap", names.workload(self._cluster.name, names.BROKER)))

    def _outside(self, seen: Snapshot, placement: Placement) -> str:
        """Where clients outside reach the brokers, as `host:port,host:port`."""
        if self._cluster.external is None:
            return ""
        hosts = {index: self._cluster.external.host or pod.host for index, pod in seen.brokers.pods.items()}
        ports = sorted(placement.node_ports.items())
        return ",".join(f"{hosts[broker]}:{port}" for broker, port in ports if hosts.get(broker))

    async def _apply_zookeeper(self, seen: Snapshot) -> None:
        size = seen.zookeeper.workload.template_size if seen.zookeeper.workload else None
        for wanted in zookeeper_manifests(self._cluster, self._context.images, size):
            await self._apply(wanted)

    async def _apply_brokers(self, seen: Snapshot, placement: Placement, settings: SettingsPlan) -> None:
        size = seen.brokers.workload.template_size if seen.brokers.workload else None
        may_be_away = 0 if seen.under_replicated or seen.offline else 1
        for wanted in broker_manifests(
            self._cluster, self._context.images, self._replicas(seen), placement, size, may_be_away
        ):
            if not (settings.hindrance and wanted["kind"] in ("ConfigMap", "StatefulSet")):
                await self._apply(wanted)

    async def _apply(self, wanted: Manifest) -> Object:
        live = self._objects.get((wanted["kind"], wanted["metadata"]["name"]))
        return await self._kube.apply(wanted, live, dry=self._rehearsing)

    async def _prune(self, seen: Snapshot) -> None:
        """Delete what we made for brokers, or for a policy, that are not wanted any more."""
        replicas = self._replicas(seen) if self._cluster.external is not None else 0
        wanted = {names.external(self._cluster.name, broker) for broker in range(replicas)}
        for (kind, name), live in self._objects.items():
            ours = any(
                owner.get("uid") == self._cluster.identity.uid
                for owner in live["metadata"].get("ownerReferences") or ()
            )
            stale_service = kind == "Service" and name.endswith("-external") and name not in wanted
            stale_policy = kind == "NetworkPolicy" and not self._cluster.network_policy
            if ours and (stale_service or stale_policy):
                api_version = "v1" if kind == "Service" else "networking.k8s.io/v1"
                await self._kube.delete_owned({"apiVersion": api_version, "kind": kind, **live})

    async def _grow_claims(self, seen: Snapshot) -> str:
        """Ask for larger volumes where the manifest does; answers why that can't be, or nothing."""
        refused = ""
        for component, storage in (
            (seen.zookeeper, self._cluster.zookeeper.storage),
            (seen.brokers, self._cluster.brokers.storage),
        ):
            growth = plan_growth(storage, component)
            refused = refused or growth.refused
            for claim in () if self._cluster.plan_only else growth.claims:
                refused = await self._grow(claim, storage.size) or refused
        return refused

    async def _grow(self, claim: Claim, size: str) -> str:
        try:
            await self._kube.grow_claim(self._cluster.namespace, claim.name, size)
        except Refused as error:
            if error.status not in (403, 422):
                raise
            return f"{claim.name} can't grow to {size}: {error}"
        return ""

    async def _put_settings(self, seen: Snapshot, placement: Placement) -> SettingsPlan:
        """Put what brokers take while they run; what is left of that. It goes before files and restarts."""
        status = self._manifest.get("status")
        if not (live_settings(self._cluster.brokers.config) or managed_settings(status)):
            return SettingsPlan()
        filed, file = settings_filed(self._broker_files()), settings_of(self._cluster, 0, placement)
        plan = await see_settings(
            self._brokers, seen, partial(plan_settings, self._cluster, status, filed, file)
        )
        if not plan.hindrance:
            await self._note_settings(plan)
        if plan.refused is not None:
            await self._context.event(self._manifest, plan.refused.type, plan.refused.message, warning=True)
        elif plan.changes and not (plan.waiting or self._cluster.plan_only) and await self._context.may_act():
            plan = await put_settings(self._brokers, plan)
            if plan.sent:
                told = replace(plan, leaving=()).told
                await self._context.event(self._manifest, "SettingsChanged", f"{told}, without a restart.")
        return plan

    async def _note_settings(self, plan: SettingsPlan) -> None:
        """Note what is about to be in files and defaults, for whoever takes it back if this operator dies."""
        status = self._manifest.get("status") or {}
        if set(plan.managed) != set(managed_settings(status)):
            status = {**status, "managedSettings": list(plan.managed)}
            await self._context.put_status(self._manifest, status)
            self._manifest = {**self._manifest, "status": status}

    # --- What can't ---

    async def _plan(
        self,
        seen: Snapshot,
        placement: Placement,
        settings: SettingsPlan,
        told: Mapping[int, Mapping[str, str]],
    ) -> Work:
        lost = [
            volume
            for component in (seen.zookeeper, seen.brokers)
            for volume in plan_disks(self._cluster, seen, component).lost
        ]
        behind = brokers_behind(settings.leaving, told, settings_of(self._cluster, 0, placement))
        brokers = plan_broker_roll(
            self._cluster, seen, config_hash(self._cluster, placement), placement.racks, behind
        )
        if settings.leaving:
            # Those that are drained are restarted for nothing, so they may lack what is to hold instead.
            rolling = brokers != Roll((), None) or len(seen.brokers.pods) > self._cluster.brokers.replicas
            settings = plan_farewell(settings, seen.brokers, told, behind, rolling=rolling)
        return Work(
            servers=plan_zookeeper_roll(self._cluster, seen),
            brokers=unless_hindered(brokers, settings.hindrance),
            drain=await self._plan_drain(seen),
            lost=tuple(lost),
            settings=settings,
        )

    async def _told_files(self, seen: Snapshot, settings: SettingsPlan) -> Mapping[int, Mapping[str, str]]:
        """What brokers have from their files of what is leaving; nobody is asked if nothing is."""
        if settings.hindrance or settings.waiting or not (settings.leaving and seen.reachable):
            return {}
        return await ask_files(self._brokers, settings.leaving, seen.brokers.pods)

    async def _plan_drain(self, seen: Snapshot) -> Drain | Refusal | None:
        there = seen.brokers.workload.replicas if seen.brokers.workload else 0
        if there <= self._cluster.brokers.replicas:
            return None
        if self._cluster.scale_down_anyway:
            return plan_removal(self._cluster.brokers.replicas, there)
        try:
            topics = await self._brokers.topics(await self._brokers.topic_names())
            return plan_drain(
                self._cluster.brokers.replicas,
                there,
                topics,
                await self._brokers.moves(),
                await self._brokers.racks(),
            )
        except (BrokersRefused, BrokersUnreachable) as error:
            return Refusal(str(error))

    async def _limit_moves(self, seen: Snapshot, work: Work, *, may_put: bool = True) -> None:
        """See to the limits of moves that are under way, or have ended, whoever of us has begun them."""
        if not seen.brokers.ready:
            return  # a client would look for brokers for half a minute
        under_way = work.drain.under_way if may_put and isinstance(work.drain, Drain) else ()
        try:
            await self._moves.carry_out(self._cluster, {}, under_way, may_put=may_put)
        except (BrokersRefused, BrokersUnreachable) as error:  # what is noted is tried again
            logger.info("moves under way are not told", error=str(error))

    async def _act(self, seen: Snapshot, work: Work) -> None:
        """At most one of the steps that can't be taken back, in the order of their weight."""
        await self._mark_lost_volumes(seen)
        for volume in work.lost:
            if isinstance(volume.step, ClaimDeletion):
                await self._replace_volume(seen, volume.claim, volume.step)
                return
        if work.lost:
            return
        for roll in (work.servers, work.brokers):
            if isinstance(roll.step, PodDeletion):
                await self._delete_pod(roll.step)
            if roll.restarts:
                return
        if isinstance(work.drain, Drain):
            await self._drain(seen, work.drain)

    async def _take_back_settings(self, plan: SettingsPlan | None) -> SettingsPlan | None:
        """Take back what no broker has left in the file that it started with."""
        if plan is None or not plan.leaving or plan.kept or not await self._context.may_act():
            return plan
        left = await take_back_settings(self._brokers, plan)
        if left.leaving and not left.waiting:
            text = f"{replace(left, changes={}).told}: brokers run without it."
            await self._context.event(self._manifest, "SettingsChanged", text)
        return left

    async def _delete_pod(self, proof: PodDeletion) -> None:
        if not await self._context.may_act():
            return
        await self._context.event(self._manifest, "RestartingPod", proof.reason)
        self._context.metrics.steps.labels("delete_pod").inc()
        await self._kube.delete_pod(proof)

    async def _mark_lost_volumes(self, seen: Snapshot) -> None:
        for component in (seen.zookeeper, seen.brokers):
            disks = plan_disks(self._cluster, seen, component)
            for claim, mark in [
                *((claim, written(seen.now)) for claim in disks.missed),
                *((claim, None) for claim in disks.found),
            ]:
                await self._kube.annotate(_claim_manifest(self._cluster, claim), {names.LOST_SINCE: mark})

    async def _replace_volume(self, seen: Snapshot, claim: Claim, proof: ClaimDeletion) -> None:
        if not await self._context.may_act():
            return
        of_brokers = claim in seen.brokers.claims.values()
        pod = (seen.brokers if of_brokers else seen.zookeeper).pods.get(claim.index)
        prove = prove_broker_deletion if of_brokers else prove_server_deletion
        await self._context.event(
            self._manifest, "ReplacingVolume", f"{claim.name}: {proof.reason}", warning=True
        )
        self._context.metrics.steps.labels("delete_claim").inc()
        await self._kube.delete_claim(proof)
        if pod is not None:  # the claim goes once no pod names it
            dispensable = prove(self._cluster, seen, pod, f"{claim.name} is replaced")
            if isinstance(dispensable, PodDeletion):
                await self._kube.delete_pod(dispensable)

    async def _drain(self, seen: Snapshot, drain: Drain) -> None:
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
                    self._not_moved = text
            return
        held: Mapping[int, int] = {}
        moving: set[int] = set()
        anyway = self._cluster.scale_down_anyway
        if not anyway:
            held = replicas_held(await self._brokers.topics(await self._brokers.topic_names()))
            moving = {broker for move in (await self._brokers.moves()).values() for broker in move.involved}
        proof = prove_scale_down(self._cluster, seen, held, moving)
        if isinstance(proof, ScaleDown) and await self._context.may_act():
            text = f"Broker {proof.replicas} goes: {proof.reason}."
            await self._context.event(self._manifest, "RemovingBroker", text, warning=anyway)
            self._context.metrics.steps.labels("lower_replicas").inc()
            await self._kube.lower_replicas(proof)

    # --- The status ---

    async def _refused(self, seen: Snapshot, sentence: str) -> float:
        await self._finish_early(seen, Work(refused=sentence))
        return _BUSY_SECONDS if self._moves.is_noted else _REFUSED_SECONDS

    async def _finish_early(self, seen: Snapshot, work: Work) -> float | None:
        """The end of a pass that takes no step; throttles of moves that have ended go all the same."""
        await self._limit_moves(seen, work, may_put=False)
        return await self._finish(seen, work)

    async def _finish(self, seen: Snapshot, work: Work) -> float | None:
        status = cluster_status(self._cluster, seen, work, self._manifest.get("status"))
        await self._context.put_status(self._manifest, status)
        self._context.watch_progress(self._manifest, status, self._cluster.stuck_after_seconds, seen.now)
        stable = {item["type"]: item["status"] for item in status["conditions"]}["Stable"] == "True"
        if (stable or self._cluster.paused) and not self._moves.is_noted:
            return None
        return _SOON_SECONDS if work.settings and work.settings.sent else _BUSY_SECONDS


def _claim_manifest(cluster: ClusterSpec, claim: Claim) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": cluster.namespace, "name": claim.name},
    }
