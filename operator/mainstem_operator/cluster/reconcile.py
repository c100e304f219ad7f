"""One reconcile of a BrokerCluster: observe, plan, act, write the status once.

Read `reconcile` as a table of contents.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.api.conditions import Condition
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.objects import annotations_of, decisions_in, identity_of, key_of, removed_users
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.certificates.apply import NotUsable, put_certificates, renew_certificates
from mainstem_operator.cluster.broker_manifests import (
    ADVERTISED_LISTENERS,
    Placement,
    broker_manifests,
    broker_services,
    brokers_at_other_ports,
    config_hash,
    racks_of,
    settings_filed,
    settings_of,
)
from mainstem_operator.cluster.disks import (
    claims_to_create,
    other_ensemble,
    plan_disks,
    plan_growth,
    still_growing,
)
from mainstem_operator.cluster.irreversible_steps import IrreversibleSteps
from mainstem_operator.cluster.load_policies import load_policies, load_policy_names
from mainstem_operator.cluster.moves import Drain, plan_drain, plan_removal
from mainstem_operator.cluster.rolling_restart import (
    Roll,
    plan_broker_roll,
    plan_zookeeper_roll,
    unless_blocked,
)
from mainstem_operator.cluster.security_steps import (
    Step,
    at_step,
    gone_users,
    plan_step,
    refusal,
    step_filed,
    step_of,
    steps_running,
    users_in_the_way,
)
from mainstem_operator.cluster.settings.apply import (
    ask_files,
    observe_settings,
    put_settings,
    take_back_settings,
)
from mainstem_operator.cluster.settings.plan import (
    SettingsPlan,
    brokers_behind,
    live_settings,
    managed_settings,
    plan_settings,
    plan_unset,
)
from mainstem_operator.cluster.status import Work, certificate_conditions, cluster_status, ignored_settings
from mainstem_operator.cluster.throttles.limited_moves import is_note_of
from mainstem_operator.cluster.zookeeper_manifests import zookeeper_manifests
from mainstem_operator.kubernetes.client import ForeignObject, Refused, whose
from mainstem_operator.kubernetes.manifests import Manifest, disruption_budget
from mainstem_operator.kubernetes.observe import Look
from mainstem_operator.proofs import (
    Refusal,
)
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.snapshot import Claim, Component, Snapshot, belongs_to

logger = structlog.get_logger(__name__)

_BUSY_SECONDS: Final = 5.0  # while something without events is in progress: replicas that catch up
_SOON_SECONDS: Final = 1.0
_NO_DRY_RUN: Final = "does not support dry run"  # says the API server where an admission webhook has effects
_REFUSED_SECONDS: Final = 60.0  # its causes, such as a quota, send no events


async def reconcile_cluster(context: Context, manifest: Object) -> float | None:
    """Bring a BrokerCluster a step nearer to its manifest; return in how many seconds to continue.

    Args:
        manifest: as it is now, with the status that the last pass wrote.
    """
    try:
        cluster = cluster_of(manifest)
    except InvalidSpec as error:
        await context.say(
            manifest,
            Condition("Ready", False, "InvalidSpec", str(error)),
            Condition("Stable", False, "InvalidSpec", str(error)),
            *await _renew_certificates(context, manifest),
        )
        return None
    if cluster.identity.deleting:  # what belongs to it goes with it, by its owner references
        with Alone()(cluster.identity.key):
            await context.say_deleting(
                manifest, Condition("Ready", None, "Deleting"), Condition("Stable", False, "Deleting")
            )
        return None
    return await _Pass(context, manifest, cluster).reconcile()


async def _renew_certificates(context: Context, manifest: Object) -> tuple[Condition, ...]:
    """Renew the certificates that are due though the manifest is not followed, unless an annotation forbids
    changes; the condition that says when they end.
    """
    held_by = _held_by(manifest)
    may_write = not held_by and await context.may_act()
    try:
        expiry = await renew_certificates(context.kube, identity_of(manifest), may_write=may_write)
    except Refused as error:
        if not error.by_content:
            raise
        logger.warning("certificates not read", key=key_of(manifest), error=str(error))
        return ()
    return _report_certificates(context, manifest, expiry)


def _report_certificates(
    context: Context, manifest: Object, expiry: dt.datetime | None
) -> tuple[Condition, ...]:
    """Set the gauge of the certificates' end; the condition that says so."""
    context.metrics.set_certificate_expiry(*key_of(manifest), expiry)
    return certificate_conditions(expiry, dt.datetime.now(dt.UTC), _held_by(manifest))


def _held_by(manifest: Object) -> str:
    """The annotation that forbids changes, also if its value is not understood; empty without one."""
    annotations = annotations_of(manifest)
    for name in (names.PAUSE, names.PLAN_ONLY):
        if annotations.get(name, "").strip().lower() not in ("", "false"):
            return name
    return ""


class _Pass:
    """One pass over one BrokerCluster."""

    def __init__(self, context: Context, manifest: Object, cluster: ClusterSpec) -> None:
        self._context = context
        self._kube = context.kube
        self._manifest = manifest
        self._cluster = cluster
        self._brokers: Brokers = context.brokers(cluster.namespace, cluster.name)
        self._moves = context.moves(cluster.namespace, cluster.name)
        self._objects: Mapping[tuple[str, str], Object] = {}
        self._is_dry_run = False
        self._planned_templates: set[str] = set()
        self._users_in_the_way = ""
        self._authorities = ""  # how far their replacement is
        self._certificates: tuple[Condition, ...] = ()
        self._leftover = ""  # why something that is not wanted any more is still there

    async def reconcile(self) -> float | None:
        look = await self._look()
        self._cluster = self._with_restart_of_before()
        if self._cluster.paused:
            self._certificates = await _renew_certificates(self._context, self._manifest)
            return await self._finish_early(look.snapshot, Work())
        if words := await self._take_security_step(look.snapshot):
            return await self._refused(look.snapshot, words)
        if words := other_ensemble(self._cluster, look.snapshot.zookeeper):
            return await self._refused(look.snapshot, words)
        if words := await self._claim_of_others(look.snapshot):
            return await self._refused(look.snapshot, words)
        if words := await self._dry_run(look.snapshot):
            return await self._refused(look.snapshot, words)
        if words := await self._put_certificates(look.snapshot):
            await self._finish_early(look.snapshot, Work(no_keys=words))
            return _REFUSED_SECONDS
        try:
            placement = await self._apply_services(look.snapshot)
        except Refused as error:  # a dry run allocates no node ports
            if not error.by_content:
                raise
            text = f"Kubernetes refused a Service of the manifest, and the rest waits for it: {error}"
            return await self._refused(look.snapshot, text)
        await self._apply_zookeeper(look.snapshot)
        there = look.snapshot.brokers.workload
        if there is None and not look.snapshot.quorum:
            await self._finish_early(look.snapshot, Work(waiting="Brokers wait for ZooKeeper's quorum."))
            return _SOON_SECONDS
        settings = await self._put_settings(look.snapshot, placement)
        await self._apply_brokers(look.snapshot, placement, settings)
        if not self._cluster.plan_only:
            await self._prune(look.snapshot)
        unresizable = await self._grow_claims(look.snapshot)
        reported_files = await self._read_files(look.snapshot, settings)
        at_other_ports = await self._find_other_ports(look.snapshot, placement)
        snapshot = (await self._look()).snapshot  # what follows can't be taken back: see it fresh
        if await self._is_outdated():
            return _SOON_SECONDS
        if not self._cluster.plan_only:  # when brokers have become whole since, no other pass may follow soon
            budget = disruption_budget(
                self._cluster,
                names.BROKER,
                _may_be_away(snapshot),
                may_lose_unready=self._may_lose_unready(snapshot),
            )
            await self._apply(budget)
        snapshot = self._with_planned_templates(snapshot)
        work = await self._plan(snapshot, placement, settings, reported_files, at_other_ports)
        work = replace(work, unresizable=unresizable, outside=self._outside(snapshot, placement))
        waiting = self._users_in_the_way or self._leftover or self._still_growing(snapshot)
        work = replace(work, waiting=waiting, authorities=self._authorities)
        if self._cluster.plan_only:
            return await self._finish_early(snapshot, work)
        if await self._says_unknown_settings():  # before a broker is restarted for others
            await self._finish_early(snapshot, work)
            return _SOON_SECONDS
        # At once: each question to brokers makes what was seen older.
        steps = IrreversibleSteps(
            self._context, self._manifest, self._cluster, self._brokers, self._moves, snapshot
        )
        work = replace(work, not_moved=await steps.take(work), not_taken=steps.refused)
        await self._limit_moves(snapshot, work)
        work = replace(work, rates_of_others=self._moves.rates_of_others)
        work = replace(work, settings=await self._take_back_settings(work.settings))
        return await self._finish(snapshot, work)

    def _with_restart_of_before(self) -> ClusterSpec:
        """The BrokerCluster with the request of the pod template, if its annotation was removed.

        Without it the template would change, and every broker would be restarted for that.
        """
        workload = self._objects.get(("StatefulSet", names.workload(self._cluster.name, names.BROKER)))
        if self._cluster.restart_request or workload is None:
            return self._cluster
        done = annotations_of(workload["spec"]["template"]).get(names.RESTART_DONE, "")
        return replace(self._cluster, restart_request=done)

    async def _is_outdated(self) -> bool:
        """Whether somebody has changed or deleted the BrokerCluster since this pass has read it."""
        identity = self._cluster.identity
        fresh = await self._kube.get(names.API_VERSION, "BrokerCluster", identity.namespace, identity.name)
        return fresh is None or decisions_in(fresh) != decisions_in(self._manifest)

    async def _look(self) -> Look:
        look = await self._context.observer.look(self._cluster, self._brokers)
        self._objects = look.objects
        note = look.objects.get(("ConfigMap", names.throttles(self._cluster.name)))
        self._moves.is_noted |= note is not None and is_note_of(self._cluster.name, note)
        return look

    # --- What can be repeated ---

    async def _dry_run(self, snapshot: Snapshot) -> str:
        """Why Kubernetes would refuse an object of this manifest, so that all of it is done or nothing."""
        self._is_dry_run = True
        try:
            placement = await self._apply_services(snapshot)
            await self._apply_zookeeper(snapshot)
            is_waiting = snapshot.zookeeper.workload is not None and not snapshot.quorum
            if (
                snapshot.brokers.workload is not None or not is_waiting
            ):  # once is enough for what is not made yet
                await self._apply_brokers(snapshot, placement, SettingsPlan())
        except Refused as error:
            if not error.by_content:
                raise
            if isinstance(error, ForeignObject):
                return f"{error} Until then nothing of the BrokerCluster is changed."
            if _NO_DRY_RUN in str(error):
                return ""
            return f"Kubernetes refused objects of the manifest, so nothing was changed: {error}"
        finally:
            self._is_dry_run = False
        return ""

    async def _claim_of_others(self, snapshot: Snapshot) -> str:
        """Why no pod may be created: it would get a volume that others have made; empty if none would."""
        cluster = self._cluster
        needed = claims_to_create(
            cluster.name,
            names.ZOOKEEPER,
            cluster.zookeeper.storage,
            cluster.zookeeper.replicas,
            snapshot.zookeeper,
        ) | claims_to_create(
            cluster.name,
            names.BROKER,
            cluster.brokers.storage,
            self._replicas(snapshot),
            snapshot.brokers,
        )
        if not needed:
            return ""
        for claim in await self._kube.find("v1", "PersistentVolumeClaim", cluster.namespace):
            metadata = claim["metadata"]
            is_ours = (metadata.get("labels") or {}).get(names.CLUSTER_LABEL) == cluster.name
            if metadata["name"] in needed and not is_ours:
                return (
                    f"The PersistentVolumeClaim {metadata['name']} exists and belongs to {whose(claim)}, and"
                    " a pod would use its volume, so nothing of the BrokerCluster is changed: delete the"
                    " claim, take another name for the BrokerCluster, or, if the volume is meant, give the"
                    f" claim the label {names.CLUSTER_LABEL}={cluster.name}."
                )
        return ""

    async def _take_security_step(self, seen: Snapshot) -> str:
        """Go on from here at the step of security that is due; answers why the manifest can't be followed."""
        filed = settings_filed(self._broker_files())
        there, wanted = step_filed(filed), step_of(self._cluster)
        running = steps_running(there, (pod.security_step for pod in seen.brokers.pods.values()))
        if there is None and running:  # somebody has deleted the files
            there = min(running)
        if words := refusal(self._cluster, filed, running):
            return words
        if there == Step.LENIENT and wanted == Step.AUTHORIZED:
            users = await self._kube.find(names.API_VERSION, "User", self._cluster.namespace)
            self._users_in_the_way = users_in_the_way(self._cluster.name, users)
        if there is not None and there >= Step.LENIENT and wanted == Step.AUTHORIZED:
            self._users_in_the_way = self._users_in_the_way or await self._remove_acls_of_gone_users()
        step = plan_step(wanted, there, running, self._users_in_the_way)
        if step not in (there, wanted) and not self._cluster.plan_only and await self._context.may_act():
            text = f"Its listeners and rights change by rolling restarts. The next step is {step.name}."
            await self._context.event(self._manifest, "ChangingSecurity", text)
        self._cluster = at_step(self._cluster, step)
        return ""

    async def _remove_acls_of_gone_users(self) -> str:
        """Remove the ACLs of Users that were deleted while ACLs did not count, before they count again;
        answers why that is not done yet.
        """
        noted = removed_users(self._manifest)
        if not noted:
            return ""
        users = await self._kube.find(names.API_VERSION, "User", self._cluster.namespace)
        gone = gone_users(self._cluster.name, noted, users)
        text = f"The ACLs of deleted Users are removed before ACLs are required: {', '.join(gone[:5])}."
        if self._cluster.plan_only or not await self._context.may_act():
            return text
        try:
            requests = self._brokers.users()
            acls = await requests.acls() if gone else {}
            for user in gone:
                if user in acls:
                    await requests.remove_acls(user, acls[user])
        except (BrokersRefused, BrokersUnreachable) as error:
            return f"{text} {error}"
        # Another User may have been noted since: then it is refused, and the next look goes on.
        await self._kube.annotate(self._manifest, {names.REMOVED_USERS: None}, unchanged=True)
        return ""

    async def _put_certificates(self, snapshot: Snapshot) -> str:
        """Create and renew keys and certificates before pods need them; answers why that cannot be."""
        if self._cluster.security is None:
            self._context.metrics.set_certificate_expiry(*key_of(self._manifest), None)
            return ""
        if self._cluster.plan_only or not await self._context.may_act():
            self._certificates = await _renew_certificates(self._context, self._manifest)
            return ""
        addresses = {pod.host for pod in snapshot.brokers.pods.values() if pod.host}
        try:
            self._authorities, expiry = await put_certificates(
                self._kube, self._cluster, self._cluster.security, addresses, self._context.cluster_domain
            )
        except NotUsable as error:
            words = str(error)
        except Refused as error:
            if not error.by_content:
                raise
            words = f"Kubernetes refuses a Secret with keys or certificates: {error}"
        else:
            self._certificates = _report_certificates(self._context, self._manifest, expiry)
            return ""
        self._certificates = await _renew_certificates(self._context, self._manifest)
        return words

    def _replicas(self, snapshot: Snapshot) -> int:
        """As many brokers as are wanted, or as there are if those are more, or if nothing is to be done."""
        there = snapshot.brokers.workload.replicas if snapshot.brokers.workload else 0
        if self._cluster.plan_only and there:
            return there
        return max(self._cluster.brokers.replicas, there)

    async def _apply_services(self, snapshot: Snapshot) -> Placement:
        ports: dict[int, int] = {}
        replicas = self._replicas(snapshot)
        outside = {names.external(self._cluster.name, broker): broker for broker in range(replicas)}
        for manifest in broker_services(self._cluster, replicas):
            applied = await self._apply(manifest)
            name = manifest["metadata"]["name"]
            if name in outside:
                ports[outside[name]] = applied["spec"]["ports"][0].get("nodePort", 0)
        return Placement(
            {broker: port for broker, port in ports.items() if port},
            racks_of(self._cluster, snapshot.nodes, self._broker_files()),
            replicas,
            self._context.operator_namespace,
            settings_filed(self._broker_files()),
        )

    def _broker_files(self) -> Object | None:
        return self._objects.get(("ConfigMap", names.workload(self._cluster.name, names.BROKER)))

    def _outside(self, snapshot: Snapshot, placement: Placement) -> str:
        """Where clients outside reach the brokers, as `host:port,host:port`."""
        if self._cluster.external is None:
            return ""
        hosts = {
            index: self._cluster.external.host or pod.host for index, pod in snapshot.brokers.pods.items()
        }
        ports = sorted(placement.node_ports.items())
        return ",".join(names.address(host, port) for broker, port in ports if (host := hosts.get(broker)))

    async def _apply_zookeeper(self, snapshot: Snapshot) -> None:
        size = snapshot.zookeeper.workload.template_size if snapshot.zookeeper.workload else None
        for manifest in zookeeper_manifests(
            self._cluster,
            self._context.images,
            size,
            self._context.operator_namespace,
            may_lose_unready=self._has_never_served(snapshot),
        ):
            await self._apply(manifest)

    async def _apply_brokers(self, snapshot: Snapshot, placement: Placement, settings: SettingsPlan) -> None:
        size = snapshot.brokers.workload.template_size if snapshot.brokers.workload else None
        for manifest in broker_manifests(
            self._cluster,
            self._context.images,
            self._replicas(snapshot),
            placement,
            size,
            _may_be_away(snapshot),
            may_lose_unready=self._may_lose_unready(snapshot),
        ):
            if not (settings.blocked_by and manifest["kind"] in ("ConfigMap", "StatefulSet")):
                await self._apply(manifest)
        for manifest in load_policies(self._cluster, self._context.operator_namespace):
            await self._apply(manifest)

    def _has_never_served(self, snapshot: Snapshot) -> bool:
        """Whether no broker has ever been ready, so that there are no data yet."""
        return not snapshot.reports and not (self._manifest.get("status") or {}).get("clusterId")

    def _may_lose_unready(self, snapshot: Snapshot) -> bool:
        """Whether nothing is lost with the data of brokers that are not ready.

        Where every partition has a leader among the brokers that answer, such a leader has all records that
        were acknowledged.
        """
        return snapshot.offline == 0 or self._has_never_served(snapshot)

    async def _apply(self, manifest: Manifest) -> Object:
        live = self._objects.get((manifest["kind"], manifest["metadata"]["name"]))
        dry = self._is_dry_run or self._cluster.plan_only
        applied = await self._kube.apply(manifest, live, dry=dry)
        is_planned = self._cluster.plan_only and manifest["kind"] == "StatefulSet"
        if is_planned and live is not None and applied["spec"]["template"] != live["spec"]["template"]:
            self._planned_templates.add(manifest["metadata"]["name"])
        return applied

    def _with_planned_templates(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot as if the pod templates that are only planned were there, so that the plan shows
        restarts.
        """

        def planned(component: Component) -> Component:
            workload = component.workload
            if (
                not self._cluster.plan_only
                or workload is None
                or workload.name not in self._planned_templates
            ):
                return component
            return replace(component, workload=replace(workload, update_revision="planned"))

        return replace(snapshot, zookeeper=planned(snapshot.zookeeper), brokers=planned(snapshot.brokers))

    async def _prune(self, snapshot: Snapshot) -> None:
        """Delete what we made for brokers, loads, or a policy, that are not wanted any more."""
        replicas = self._replicas(snapshot) if self._cluster.external is not None else 0
        service_names = {names.external(self._cluster.name, broker) for broker in range(replicas)}
        stale_policies: set[str] = set()
        if not self._cluster.network_policy or self._cluster.warehouse is None:
            stale_policies |= {*load_policy_names(self._cluster.name)}
        if not self._cluster.network_policy:
            servers = (names.BROKER, names.ZOOKEEPER)
            stale_policies |= {names.workload(self._cluster.name, one) for one in servers}
        for (kind, name), live in self._objects.items():
            # A copy may have our labels and our owner reference, and only its name is another.
            if not belongs_to(live, self._cluster.identity.uid, {names.CLUSTER_LABEL: self._cluster.name}):
                continue
            broker = names.broker_of_external(self._cluster.name, name)
            stale_service = kind == "Service" and broker is not None and name not in service_names
            stale_policy = kind == "NetworkPolicy" and name in stale_policies
            if stale_service or stale_policy:
                api_version = "v1" if kind == "Service" else "networking.k8s.io/v1"
                try:
                    await self._kube.delete_owned({"apiVersion": api_version, "kind": kind, **live})
                except Refused as error:
                    if not error.by_content:
                        raise
                    self._leftover = f"Kubernetes refuses to delete the {kind} {name}: {error}"

    async def _grow_claims(self, snapshot: Snapshot) -> str:
        """Ask for larger volumes where the manifest does; answers why that can't be, or nothing."""
        refused = ""
        for component, storage in (
            (snapshot.zookeeper, self._cluster.zookeeper.storage),
            (snapshot.brokers, self._cluster.brokers.storage),
        ):
            growth = plan_growth(storage, component)
            refused = refused or growth.refused
            for claim in () if self._cluster.plan_only else growth.claims:
                refused = await self._grow(claim, storage.size) or refused
        return refused

    def _still_growing(self, snapshot: Snapshot) -> str:
        zookeeper, brokers = self._cluster.zookeeper, self._cluster.brokers
        return still_growing(zookeeper.storage, snapshot.zookeeper) or still_growing(
            brokers.storage, snapshot.brokers
        )

    async def _grow(self, claim: Claim, size: str) -> str:
        try:
            await self._kube.grow_claim(self._cluster.namespace, claim.name, size)
        except Refused as error:
            if not error.by_content:
                raise
            return f"{claim.name} can't grow to {size}: {error}"
        return ""

    async def _put_settings(self, snapshot: Snapshot, placement: Placement) -> SettingsPlan:
        """Put what brokers take while they run; what is left of that. It goes before files and restarts."""
        status = self._manifest.get("status")
        if not (live_settings(self._cluster.brokers.config) or managed_settings(status)):
            return SettingsPlan()
        filed, file = settings_filed(self._broker_files()), settings_of(self._cluster, 0, placement)
        plan = await observe_settings(
            self._brokers, snapshot, partial(plan_settings, self._cluster, status, filed, file)
        )
        if not plan.blocked_by and not self._cluster.plan_only:
            await self._note_settings(plan)
        if plan.refused is not None:
            await self._context.event(self._manifest, plan.refused.type, plan.refused.message, warning=True)
        elif plan.changes and not (plan.waiting or self._cluster.plan_only) and await self._context.may_act():
            plan = await put_settings(self._brokers, plan)
            if plan.sent:
                settings_to_put = replace(plan, leaving=()).summary
                await self._context.event(
                    self._manifest, "SettingsChanged", f"{settings_to_put}, without a restart."
                )
        return plan

    async def _note_settings(self, plan: SettingsPlan) -> None:
        """Record what is about to be in files and defaults, so that another operator can remove it."""
        status = self._manifest.get("status") or {}
        if set(plan.managed) != set(managed_settings(status)):
            status = {**status, "managedSettings": list(plan.managed)}
            await self._context.put_status(self._manifest, status)
            self._manifest = {**self._manifest, "status": status}

    # --- What can't ---

    async def _plan(
        self,
        snapshot: Snapshot,
        placement: Placement,
        settings: SettingsPlan,
        reported_files: Mapping[int, Mapping[str, str]],
        at_other_ports: Collection[int],
    ) -> Work:
        lost = [
            volume
            for component in (snapshot.zookeeper, snapshot.brokers)
            for volume in plan_disks(self._cluster, snapshot, component).lost
        ]
        behind = brokers_behind(settings.leaving, reported_files, settings_of(self._cluster, 0, placement))
        brokers = plan_broker_roll(
            self._cluster,
            snapshot,
            config_hash(self._cluster, placement),
            placement.racks,
            behind,
            at_other_ports,
        )
        if settings.leaving:
            # Those that are drained are restarted for nothing, so they may lack what is to hold instead.
            rolling = brokers != Roll((), None) or len(snapshot.brokers.pods) > self._cluster.brokers.replicas
            settings = plan_unset(settings, snapshot.brokers, reported_files, behind, rolling=rolling)
        return Work(
            servers=plan_zookeeper_roll(self._cluster, snapshot),
            brokers=unless_blocked(brokers, settings.blocked_by),
            drain=await self._plan_drain(snapshot),
            lost=tuple(lost),
            settings=settings,
        )

    async def _says_unknown_settings(self) -> bool:
        """Tell of settings that brokers will ignore, in an event; False if the status has them already."""
        condition = ignored_settings(self._cluster)
        told = (self._manifest.get("status") or {}).get("conditions") or ()
        if condition is None or any(item.get("message") == condition.message for item in told):
            return False
        await self._context.event(self._manifest, condition.type, condition.message, warning=True)
        return True

    async def _read_files(
        self, snapshot: Snapshot, settings: SettingsPlan
    ) -> Mapping[int, Mapping[str, str]]:
        """The leaving settings that brokers have from their files; no request if there are none."""
        if settings.blocked_by or settings.waiting or not (settings.leaving and snapshot.reachable):
            return {}
        return await ask_files(self._brokers, settings.leaving, snapshot.brokers.pods)

    async def _find_other_ports(self, snapshot: Snapshot, placement: Placement) -> Collection[int]:
        """The brokers whose Service has been given another node port since they have started."""
        if self._cluster.external is None or not snapshot.reachable:
            return ()
        reported = await ask_files(self._brokers, [ADVERTISED_LISTENERS], snapshot.brokers.pods)
        return brokers_at_other_ports(self._cluster, placement, reported)

    async def _plan_drain(self, snapshot: Snapshot) -> Drain | Refusal | None:
        there = snapshot.brokers.workload.replicas if snapshot.brokers.workload else 0
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

    async def _limit_moves(self, snapshot: Snapshot, work: Work, *, may_put: bool = True) -> None:
        """Update the limits of moves that are in progress or have ended, also those of another operator."""
        if not snapshot.brokers.ready:
            return  # a client would look for brokers for half a minute
        under_way = work.drain.under_way if may_put and isinstance(work.drain, Drain) else ()
        try:
            await self._moves.carry_out(self._cluster, {}, under_way, may_put=may_put)
        except (BrokersRefused, BrokersUnreachable) as error:  # what is noted is tried again
            logger.info("moves in progress are not reported", error=str(error))

    async def _take_back_settings(self, plan: SettingsPlan | None) -> SettingsPlan | None:
        """Take back what no broker has left in the file that it started with."""
        if plan is None or not plan.leaving or plan.kept or not await self._context.may_act():
            return plan
        left = await take_back_settings(self._brokers, plan)
        if left.leaving and not left.waiting:
            text = f"{replace(left, changes={}).summary}: brokers run without it."
            await self._context.event(self._manifest, "SettingsChanged", text)
        return left

    # --- The status ---

    async def _refused(self, snapshot: Snapshot, sentence: str) -> float:
        self._certificates = await _renew_certificates(self._context, self._manifest)
        await self._finish_early(snapshot, Work(refused=sentence))
        return _BUSY_SECONDS if self._moves.is_noted else _REFUSED_SECONDS

    async def _finish_early(self, snapshot: Snapshot, work: Work) -> float | None:
        """The end of a pass that takes no step; throttles of moves that have ended go all the same."""
        await self._limit_moves(snapshot, work, may_put=False)
        return await self._finish(snapshot, work)

    async def _finish(self, snapshot: Snapshot, work: Work) -> float | None:
        work = replace(work, certificates=self._certificates)
        status = cluster_status(self._cluster, snapshot, work, self._manifest.get("status"))
        await self._context.put_status(self._manifest, status)
        self._context.watch_progress(self._manifest, status, self._cluster.stuck_after_seconds, snapshot.now)
        stable = {item["type"]: item["status"] for item in status["conditions"]}["Stable"] == "True"
        if (stable or self._cluster.paused) and not self._moves.is_noted:
            return None
        return _SOON_SECONDS if work.settings and work.settings.sent else _BUSY_SECONDS


def _may_be_away(snapshot: Snapshot) -> int:
    """How many brokers may be missing now: one that a drain of nodes takes, and those that hold nothing.

    Kubernetes counts these among the missing ones: a broker that never starts would hold the nodes of all.
    """
    return 1 + len(snapshot.without_replicas) if snapshot.is_whole else 0
