"""Bringing the loads of Topics about: applies CronJobs, reads what came of their runs. Decides nothing.

Except for CronJobs that are left over, Kubernetes is asked about loads only where a Topic has, or had, a
warehouse.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec, cluster_of
from mainstem_operator.api.conditions import LOADED, Condition
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.objects import key_of
from mainstem_operator.api.secret_data import decoded
from mainstem_operator.api.timestamps import moment
from mainstem_operator.api.topics import LoadRequest, TopicSpec
from mainstem_operator.api.users import AclRule
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.brokers.user_requests import UserRequests
from mainstem_operator.certificates.apply import NotUsable, needs_write, require_owner, secret_of
from mainstem_operator.certificates.issuing import authority_is_usable
from mainstem_operator.certificates.plan import pair_in, trust_in
from mainstem_operator.kubernetes.client import ForeignObject, Refused
from mainstem_operator.proofs import Refusal
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.snapshot import (
    belongs_to,
    controller_of,
    is_member,
    is_orphan,
    is_orphan_of,
    is_out_of_memory,
    lost_with_node,
    trouble_of,
)
from mainstem_operator.topics.loads.gone_loads import (
    gone_loads,
    is_of_earlier_template,
    orphaned_loads,
    outdated_jobs,
)
from mainstem_operator.topics.loads.identity import (
    gone_users,
    identity_data,
    identity_secret,
    kept_acls,
    load_acls,
    load_user,
    plan_load_key,
    resident_acls,
)
from mainstem_operator.topics.loads.maintenance import maintenance_condition, maintenance_manifest
from mainstem_operator.topics.loads.plan import (
    executors_condition,
    load_manifest,
    load_name,
    load_refusal,
    loader_rights,
    logged_in_loads,
    maintenance_name,
    names_freshness,
    request_name,
)
from mainstem_operator.topics.loads.rejections import Rejections, rejection_condition, rejections_of_runs
from mainstem_operator.topics.loads.requests import (
    RequestOutcome,
    done_before,
    is_done,
    outcome_of,
    request_condition,
    request_manifest,
)
from mainstem_operator.topics.loads.resident import (
    TopicPage,
    is_resident,
    kept_entries,
    pages_of,
    resident_loads,
    resident_manifests,
    resident_rejections,
    resident_status,
)
from mainstem_operator.topics.loads.runs import (
    EndedLoad,
    LoadStatus,
    Run,
    ended_loads,
    last_good_load,
    last_load,
    load_conditions,
    loaded_up_to,
    retention_condition,
    rounded_age,
    run_of,
    summary_of,
    waits_in_silence,
    without_pod,
)
from mainstem_operator.topics.loads.unseen import loads_not_seen

logger = structlog.get_logger(__name__)


async def bring_about_loads(
    context: Context,
    there: Object,
    pairs: Sequence[tuple[TopicSpec, Object]],
    topics: Sequence[Object],
    alone: Alone,
    not_theirs: Mapping[tuple[str, str], str] | None = None,
) -> dict[tuple[str, str], LoadStatus]:
    """The loads of those Topics of a BrokerCluster that have a warehouse, or had one.

    Args:
        there: the BrokerCluster.
        pairs: Topics that are not being deleted, and their statuses.
        topics: all Topics that name the BrokerCluster; the ACLs of other loads are removed. Loads of those
            that are not in `pairs` are left as they are.
        alone: has the Topics of which there is nothing to say after it, since something was refused.
        not_theirs: why Topics do not manage the topics that they name; they have no loads.
    """
    concerned = [(spec, status) for spec, status in pairs if spec.warehouse is not None or _had_loads(status)]
    looked_at = {spec.identity.key for spec, _ in pairs}
    # The resident loader is one object for many Topics. Scheduled loads stay of themselves.
    not_looked_at = {
        topic["metadata"]["name"]
        for topic in topics
        if names_freshness(topic) and key_of(topic) not in looked_at
    }
    if not concerned and not not_looked_at:
        await stop_resident(context, there, alone)
    try:
        cluster = cluster_of(there)
    except InvalidSpec:  # the BrokerCluster says so itself
        why = f"The manifest of the BrokerCluster {there['metadata']['name']} is not valid."
        return {
            spec.identity.key: loads_not_seen(status, "ClusterNotReady", why) for spec, status in concerned
        }
    if context.is_still_open(cluster.namespace, cluster.name):  # loads connect as they always did
        cluster = replace(cluster, security=None)
    has_acls = cluster.security is not None and cluster.security.super_users is not None
    if not concerned and not not_looked_at and not has_acls:
        return {}
    requests = context.brokers(cluster.namespace, cluster.name).users() if has_acls else None
    loads = _Loads(context, cluster, requests, not_theirs or {})
    await loads.read_rules()
    await loads.remove_gone_rules(topics)
    if concerned:
        await loads.read()
    if concerned or not_looked_at:
        residents = [spec for spec, _ in concerned if is_resident(spec) and loads.refusal_of(spec) is None]
        kept = await loads.kept_entries(not_looked_at)
        if residents or kept:
            await loads.bring_about_resident(residents, kept)
        else:
            await stop_resident(context, there, alone)
    statuses: dict[tuple[str, str], LoadStatus] = {}
    for spec, status in concerned:
        with alone(spec.identity.key):
            statuses[spec.identity.key] = await loads.bring_about(spec, status)
    return statuses


async def stop_resident(context: Context, cluster: Object, alone: Alone) -> None:
    """Let the resident loader of a BrokerCluster have no pod: no Topic needs it."""
    metadata = cluster["metadata"]
    name = names.workload(metadata["name"], names.RESIDENT_LOADER)
    live = await context.kube.get("apps/v1", "StatefulSet", metadata["namespace"], name)
    made_for = {names.CLUSTER_LABEL: metadata["name"]}
    is_ours = live is not None and belongs_to(live, metadata["uid"], made_for)
    if live is None or not is_ours or not (live["spec"].get("replicas", 1) or is_orphan(live)):
        return
    if await context.may_act():
        with alone((metadata["namespace"], f"StatefulSet {name}")):
            if is_orphan(live):
                await _take_over_resident(context, cluster, live)
            if live["spec"].get("replicas", 1):
                await context.kube.stop_stateful_set(metadata["namespace"], name)


async def _take_over_resident(context: Context, cluster: Object, workload: Object) -> None:
    """Let what a BrokerCluster of the same name has left behind go with this one: the StatefulSet of the
    resident loader, and its ConfigMap.
    """
    metadata = workload["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    config_map = await context.kube.get("v1", "ConfigMap", namespace, name)
    made_for = {names.CLUSTER_LABEL: cluster["metadata"]["name"]}
    if config_map is not None and is_orphan_of(config_map, made_for):
        await context.kube.take_over({**config_map, "apiVersion": "v1", "kind": "ConfigMap"}, cluster)
    # Last, because it is seen by this one that something is left to do.
    await context.kube.take_over({**workload, "apiVersion": "apps/v1", "kind": "StatefulSet"}, cluster)


async def suspend_orphaned_loads(
    context: Context, namespace: str, cluster: str, topics: Sequence[Object]
) -> None:
    """Let no more runs begin of the loads that a BrokerCluster has left behind, which is gone.

    Args:
        topics: all Topics that name it. Those of the loads may be gone as well.
    """
    kube, name = context.kube, names.workload(cluster, names.RESIDENT_LOADER)
    try:
        cron_jobs = orphaned_loads(await _cron_jobs_of(context, namespace, cluster))
        resident = await kube.get("apps/v1", "StatefulSet", namespace, name)
    except Refused as error:
        # In a namespace that is being deleted the rights to read them may be gone before its Topics, which
        # have no part in this.
        if error.status == 403 and topics and not any(map(_concerns_loads, topics)):
            logger.info("loads without a cluster are not read", cluster=cluster, error=str(error))
            return
        raise
    has_resident = (
        resident is not None
        and is_orphan_of(resident, {names.CLUSTER_LABEL: cluster})
        and resident["spec"].get("replicas", 1)
    )
    if not (cron_jobs or has_resident) or not await context.may_act():
        return
    for cron_job in cron_jobs:
        logger.info("suspending a load without a cluster", cron_job=cron_job["metadata"]["name"])
        await kube.suspend(cron_job)
    if has_resident:
        logger.info("stopping the resident loader without a cluster", stateful_set=name)
        await kube.stop_stateful_set(namespace, name)


async def delete_gone_loads(
    context: Context, cluster: Object, topics: Sequence[Object], alone: Alone
) -> None:
    """Delete the CronJobs of Topics that are gone, and with them the runs under way.

    Args:
        cluster: the BrokerCluster.
        topics: all Topics that name it.
        alone: has the CronJobs that are left.
    """
    metadata = cluster["metadata"]
    cron_jobs = await _cron_jobs_of(context, metadata["namespace"], metadata["name"])
    gone = gone_loads(cron_jobs, topics, metadata["uid"])
    if gone and await context.may_act():
        for cron_job in gone:
            with alone((metadata["namespace"], f"CronJob {cron_job['metadata']['name']}")):
                await context.kube.delete_owned(cron_job)


async def _cron_jobs_of(context: Context, namespace: str, cluster: str) -> list[Object]:
    labels = names.pod_labels(cluster, names.LOADER)
    # The items of a list do not say what they are.
    return [
        {**item, "apiVersion": "batch/v1", "kind": "CronJob"}
        for item in await context.kube.find("batch/v1", "CronJob", namespace, labels)
    ]


def _concerns_loads(topic: Object) -> bool:
    """Whether a Topic, which may be invalid, has a warehouse or had one."""
    return bool((topic.get("spec") or {}).get("warehouse")) or _had_loads(topic.get("status") or {})


def _had_loads(status: Object) -> bool:
    return any(item["type"] == LOADED for item in status.get("conditions") or ())


class _Loads:
    """The loads of one BrokerCluster, as they are now."""

    def __init__(
        self,
        context: Context,
        cluster: ClusterSpec,
        requests: UserRequests | None,
        not_theirs: Mapping[tuple[str, str], str],
    ) -> None:
        """`requests` is None where there is no authorization; `not_theirs` as for `bring_about_loads`."""
        self._not_theirs = not_theirs
        self._context = context
        self._cluster = cluster
        self._requests = requests
        self._rules: Mapping[str, frozenset[AclRule]] = {}
        self._no_rules = ""  # why brokers do not say which ACLs there are
        self._cron_jobs: dict[str, Object] = {}
        self._runs: dict[str, list[Run]] = {}
        self._jobs: dict[str, list[Object]] = {}
        self._pods: Mapping[str | None, Object] = {}
        self._has_rights = False
        self._pages: dict[str, TopicPage] = {}
        self._resident_trouble = ""  # why its pod cannot start
        self._resident_refusal: Refusal | None = None
        self._leftovers = Alone()  # has the Topics of which a CronJob is left that should be deleted

    def refusal_of(self, spec: TopicSpec) -> Refusal | None:
        """Why a Topic that has a warehouse cannot be loaded; None if it can."""
        if (reason := self._not_theirs.get(spec.identity.key)) is not None:
            return Refusal(f"It is not loaded. {reason}")
        return load_refusal(spec, self._cluster)

    async def read(self) -> None:
        kube, namespace = self._context.kube, self._cluster.namespace
        labels = names.pod_labels(self._cluster.name, names.LOADER)
        # Anybody can set our labels, so an object counts only under its owner.
        self._cron_jobs = {
            item["metadata"]["name"]: item
            for item in await _cron_jobs_of(self._context, namespace, self._cluster.name)
            if belongs_to(item, self._cluster.identity.uid, labels)
        }
        loads = {item["metadata"]["uid"]: item["metadata"]["name"] for item in self._cron_jobs.values()}
        now = dt.datetime.now(dt.UTC)
        last: dict[str | None, Object] = {}  # the newest pod of each Job, by the Job's uid
        for pod in sorted(await kube.find("v1", "Pod", namespace, labels), key=_created):
            last[controller_of(pod)] = pod
        self._pods = last
        for job in await kube.find("batch/v1", "Job", namespace, labels):
            if (load := loads.get(controller_of(job) or "")) is not None:
                pod = last.get(job["metadata"]["uid"], {})
                lost = lost_with_node(pod, now)
                trouble = lost or (_trouble_of(pod, now) if pod else without_pod(job, now))
                run = run_of(job, _message_of(pod), trouble, is_lost=bool(lost))
                self._runs.setdefault(load, []).append(run)
                # The items of a list do not say what they are.
                self._jobs.setdefault(load, []).append({**job, "apiVersion": "batch/v1", "kind": "Job"})

    async def kept_entries(self, topics: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """What the resident loader has of these Topics; nothing without a warehouse, which its pod needs."""
        if not topics or self._cluster.warehouse is None:
            return {}
        name = names.workload(self._cluster.name, names.RESIDENT_LOADER)
        config_map = await self._context.kube.get("v1", "ConfigMap", self._cluster.namespace, name)
        made_for = {names.CLUSTER_LABEL: self._cluster.name}
        if config_map is None or not belongs_to(config_map, self._cluster.identity.uid, made_for):
            return {}
        return kept_entries(config_map, topics)

    async def bring_about_resident(
        self, topics: Sequence[TopicSpec], kept: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """The resident loader for these Topics, and what it says of them.

        Args:
            kept: its entries of other Topics, which stay.
        """
        try:
            await self._apply_resident(topics, kept)
        except (NotUsable, BrokersRefused, ForeignObject) as error:
            self._resident_refusal = Refusal(str(error))
        except Refused as error:
            self._resident_refusal = Refusal(f"Kubernetes refuses an object of the resident loader: {error}")
        kube, namespace = self._context.kube, self._cluster.namespace
        name = names.workload(self._cluster.name, names.RESIDENT_LOADER)
        workload = await kube.get("apps/v1", "StatefulSet", namespace, name)
        if workload is None or controller_of(workload) != self._cluster.identity.uid:
            return
        labels = names.pod_labels(self._cluster.name, names.RESIDENT_LOADER)
        for pod in await kube.find("v1", "Pod", namespace, labels):
            # Others may use any label, and copy a pod with its owner.
            if controller_of(pod) != workload["metadata"]["uid"] or not is_member(pod, name):
                continue
            now = dt.datetime.now(dt.UTC)
            self._resident_trouble = lost_with_node(pod, now) or _trouble_of(pod, now)
            if is_of_earlier_template(pod, workload) and await self._context.may_act():
                logger.info("deleting a pod of an earlier manifest", pod=pod["metadata"]["name"])
                with Alone()((namespace, f"Pod {pod['metadata']['name']}")):
                    # The items of a list do not say what they are.
                    await kube.delete_owned({**pod, "apiVersion": "v1", "kind": "Pod"})
            pod_ip = (pod.get("status") or {}).get("podIP")
            if pod_ip and not pod["metadata"].get("deletionTimestamp"):
                self._pages = pages_of(await self._context.observer.loads(pod_ip))

    async def _apply_resident(
        self, topics: Sequence[TopicSpec], kept: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Bring the objects of the resident loader about.

        Raises:
            NotUsable, BrokersRefused, Refused: one of them cannot be had. If that is because others have one
                of its name, nothing is granted.
        """
        kube = self._context.kube
        config_map, workload = resident_manifests(
            topics, self._cluster, self._context.images, await self._credentials(), kept
        )
        live_config_map, live = await kube.own(config_map, None), await kube.own(workload, None)
        key = await self._key_of(workload, live)
        present = self._rules.get(load_user(names.RESIDENT_LOADER), ())
        rules = resident_acls(topics) | kept_acls(present, kept.values())
        await self._put_rules(names.RESIDENT_LOADER, rules)
        await kube.apply(config_map, live_config_map)
        await self._put_identity(await kube.apply(workload, live), names.RESIDENT_LOADER, key)

    async def _credentials(self) -> Mapping[str, str] | None:
        """What the Secret of the warehouse holds; None while there is none."""
        location = self._cluster.warehouse
        if location is None or location.credentials_secret is None:
            return None
        secret = await self._context.kube.get(
            "v1", "Secret", self._cluster.namespace, location.credentials_secret
        )
        return None if secret is None else (secret.get("data") or {})

    async def read_rules(self) -> None:
        if self._requests is None:
            return
        try:
            self._rules = await self._requests.acls()
        except BrokersRefused as error:  # as those do that have not been restarted with authorization yet
            self._no_rules = f"Brokers refuse to list the ACLs of its load: {error}"

    async def remove_gone_rules(self, topics: Sequence[Object]) -> None:
        """Remove the ACLs of loads that no Topic asks for any more."""
        gone = sorted(gone_users(self._rules, logged_in_loads(topics)))
        if self._requests is None or not gone or not await self._context.may_act():
            return
        for user in gone:
            try:
                await self._requests.remove_acls(user, self._rules[user])
            except BrokersRefused as error:
                logger.warning("ACLs of a load are not removed", user=user, error=str(error))

    async def bring_about(self, spec: TopicSpec, status: Object) -> LoadStatus:
        """The loads of a Topic and its requests to load again, and what the status says of both."""
        found = await self._bring_about_load(spec, status)
        rejections = self._rejections(spec, status)
        entries = [
            await self._carry_out(request, spec, status)
            for request in (() if spec.warehouse is None else spec.warehouse.requests)
        ]
        more = (
            request_condition(entries),
            await self._bring_about_maintenance(spec),
            retention_condition(spec, status, self._ended_loads(spec)),
            rejection_condition(spec, rejections),
            executors_condition(spec, self._cluster),
        )
        conditions = (*found.conditions, *(condition for condition in more if condition is not None))
        has_leftovers = spec.identity.key in self._leftovers.refused
        return replace(
            found,
            requests=entries,
            conditions=conditions,
            has_leftovers=has_leftovers,
            last_rejection=None if rejections.last is None else rejections.last.status(),
            is_rejecting=rejections.counts,
        )

    def _ended_loads(self, spec: TopicSpec) -> Sequence[EndedLoad]:
        if is_resident(spec):
            return resident_loads(self._pages.get(spec.identity.name))
        return ended_loads(self._runs.get(load_name(spec.identity.name), []))

    def _rejections(self, spec: TopicSpec, status: Object) -> Rejections:
        if spec.warehouse is None:
            return Rejections()
        if is_resident(spec):
            return resident_rejections(status, self._pages.get(spec.identity.name))
        return rejections_of_runs(spec, status, self._runs.get(load_name(spec.identity.name), []))

    async def _delete(self, cron_job: Object, spec: TopicSpec) -> None:
        """Delete a CronJob of a Topic; the rest of its loads goes on if that is refused."""
        with self._leftovers(spec.identity.key):
            await self._context.kube.delete_owned(cron_job)

    async def _bring_about_maintenance(self, spec: TopicSpec) -> Condition | None:
        """The maintenance of a Topic's table, and what became of it; None if it has none."""
        name = maintenance_name(spec.identity.name)
        live = self._cron_jobs.get(name)
        wanted = None
        if spec.identity.key not in self._not_theirs:
            wanted = maintenance_manifest(spec, self._cluster, self._context.images)
        if wanted is None:
            if live is not None:
                await self._delete(live, spec)
            return None
        refusal = await self._apply_cron_job(wanted, live, spec)
        if refusal is not None:
            return maintenance_condition(refusal, ())
        return maintenance_condition(wanted, self._runs.get(name, []))

    async def _carry_out(self, request: LoadRequest, spec: TopicSpec, status: Object) -> dict[str, Any]:
        """See to it that a request is carried out, and return its entry in the status.

        Its CronJob goes only when the status says so, since its runs go with it.
        """
        name = request_name(spec.identity.name, request.field, request.request_id)
        live = self._cron_jobs.get(name)
        if is_done(request, status):
            if live is not None:
                await self._delete(live, spec)
            return done_before(request, status)
        wanted: Mapping[str, Any] | Refusal | None
        wanted = self.refusal_of(spec) or request_manifest(request, spec, self._cluster, self._context.images)
        if isinstance(wanted, Mapping):
            wanted = await self._apply_cron_job(wanted, live, spec) or wanted
        elif live is not None:
            await self._delete(live, spec)
        if isinstance(wanted, Refusal):
            return RequestOutcome(request.field, request.request_id, False, wanted.reason).status()
        return outcome_of(request, self._runs.get(name, [])).status()

    async def _bring_about_load(self, spec: TopicSpec, status: Object) -> LoadStatus:
        name = load_name(spec.identity.name)
        live = self._cron_jobs.get(name)
        wanted: Mapping[str, Any] | Refusal | None
        wanted = load_manifest(spec, self._cluster, self._context.images)
        if spec.warehouse is not None:
            wanted = self.refusal_of(spec) or wanted
        if isinstance(wanted, Mapping):
            wanted = await self._apply_cron_job(wanted, live, spec) or wanted
        elif live is not None:
            await self._delete(live, spec)
        if is_resident(spec) and not isinstance(wanted, Refusal):
            wanted = self._resident_refusal
        if is_resident(spec) and not isinstance(wanted, Refusal):
            page = self._pages.get(spec.identity.name)
            return resident_status(spec, status, page, self._resident_trouble, dt.datetime.now(dt.UTC))
        refusal = wanted if isinstance(wanted, Refusal) else None
        runs, up_to = self._runs.get(name, []), status.get("loadedUpTo")
        if spec.warehouse is None:
            return LoadStatus(None, None, None, ())
        now, newest = dt.datetime.now(dt.UTC), loaded_up_to(runs, up_to)
        return LoadStatus(
            last_load(runs) or status.get("lastLoad"),
            last_good_load(runs, status.get("lastGoodLoad")),
            newest,
            load_conditions(spec, refusal, runs, up_to, now),
            freshness_seconds=None
            if newest is None or spec.warehouse.fresh_within_seconds is None
            else rounded_age(moment(newest), spec.warehouse.fresh_within_seconds, now),
            newest=None if newest is None else moment(newest),
        )

    async def _apply_cron_job(
        self, wanted: Mapping[str, Any], live: Object | None, spec: TopicSpec
    ) -> Refusal | None:
        """Bring a CronJob about, with the rights and the key that its runs need; why one of them cannot be
        had.

        Raises:
            Refused: an object has changed since it was read.
        """
        kube, load = self._context.kube, load_name(spec.identity.name)
        try:
            # If others have a CronJob or a key of its name, nothing is granted.
            live = await kube.own(dict(wanted), live)
            key = await self._key_of(wanted, live)
            await self._give_rights()
            await self._put_rules(load, load_acls(spec))
            await self._put_identity(await kube.apply(dict(wanted), live), load, key)
            await self._delete_outdated(wanted)
            await self._delete_lost(wanted)
        except (NotUsable, BrokersRefused, ForeignObject) as error:
            return Refusal(str(error))
        except Refused as error:
            if error.conflict:
                raise
            return Refusal(f"Kubernetes refuses an object of its runs: {error}")
        return None

    async def _delete_outdated(self, cron_job: Mapping[str, Any]) -> None:
        """Delete runs that wait to start as an earlier manifest says, so that the next one begins."""
        name = cron_job["metadata"]["name"]
        for job in outdated_jobs(dict(cron_job), self._jobs.get(name, ()), self._pods):
            logger.info("deleting a run of an earlier manifest", job=job["metadata"]["name"])
            await self._context.kube.delete_owned(job)
            self._runs[name] = [run for run in self._runs[name] if run.job != job["metadata"]["name"]]

    async def _delete_lost(self, cron_job: Mapping[str, Any]) -> None:
        """Delete runs whose pods do not end, so that the next one begins.

        Such a pod may load on where nobody sees it. Of two loads at once only one brings each record, and so
        it is with requests and maintenance: the commits of tables see to it.
        """
        name = cron_job["metadata"]["name"]
        lost = {run.job for run in self._runs.get(name, ()) if run.is_lost}
        for job in self._jobs.get(name, ()):
            if job["metadata"]["name"] in lost and not job["metadata"].get("deletionTimestamp"):
                logger.warning("deleting a run that does not end", job=job["metadata"]["name"])
                await self._context.kube.delete_owned(job)

    async def _put_rules(self, load: str, rules: frozenset[AclRule]) -> None:
        """Let the load do what `rules` say, and nothing else.

        Raises:
            BrokersRefused: the brokers refuse it.
        """
        if self._requests is None:
            return
        if self._no_rules:
            raise BrokersRefused("REFUSED", self._no_rules)
        user = load_user(load)
        present = self._rules.get(user, frozenset())
        if extra := present - rules:
            await self._requests.remove_acls(user, extra)
        if missing := rules - present:
            await self._requests.add_acls(user, missing)

    async def _key_of(self, workload: Mapping[str, Any], live: Object | None) -> Object | None:
        """The Secret with the key of a load of a secured BrokerCluster; None if there is none.

        Args:
            workload: whose pods log in with it.
            live: the same as it is now, if it is there.

        Raises:
            NotUsable: the name is taken by a Secret of others.
        """
        if self._cluster.security is None:
            return None
        name = workload["metadata"]["name"]
        secret = await self._context.kube.get(
            "v1", "Secret", self._cluster.namespace, names.load_identity(name)
        )
        if secret is not None:
            uid = "" if live is None else live["metadata"]["uid"]
            made_for = {names.CLUSTER_LABEL: self._cluster.name}
            require_owner(secret, uid, f"the {workload['kind']} {name}", made_for)
        return secret

    async def _put_identity(self, workload: Object, load: str, live: Object | None) -> None:
        """Make or renew the key of a load of a secured BrokerCluster, in a Secret that belongs to `workload`,
        whose pods log in with it.

        Args:
            live: the Secret as it is now.

        Raises:
            NotUsable: the authority's Secret is missing.
        """
        if self._cluster.security is None:
            return
        now = dt.datetime.now(dt.UTC)
        kube, cluster = self._context.kube, self._cluster
        brokers_authority = await secret_of(kube, cluster.identity, names.cluster_authority(cluster.name))
        authority = pair_in(await secret_of(kube, cluster.identity, names.clients_authority(cluster.name)))
        if authority is None or not authority_is_usable(authority) or not trust_in(brokers_authority):
            raise NotUsable("The keys of the BrokerCluster are incomplete: they are created again soon.")
        present = {} if live is None else decoded(live)
        pair = plan_load_key(load, present, authority, now)
        data = identity_data(pair, trust_in(brokers_authority))
        wanted = identity_secret(cluster, workload, data)
        if live is None:
            await kube.create(wanted)
        elif needs_write(live, data):
            await kube.apply(wanted, live, unchanged=True)

    async def _give_rights(self) -> None:
        """The service account of loads, once a look."""
        if self._has_rights:
            return
        for wanted in loader_rights(self._cluster):
            metadata = wanted["metadata"]
            live = await self._context.kube.get(
                wanted["apiVersion"], wanted["kind"], metadata["namespace"], metadata["name"]
            )
            await self._context.kube.apply(wanted, live)
        self._has_rights = True


def _created(item: Object) -> str:
    created: str = item["metadata"]["creationTimestamp"]  # in UTC and of one length, so its text sorts
    return created


def _trouble_of(pod: Object, now: dt.datetime) -> str:
    """Why the pod's container can't start, in Kubernetes' words, or where it says why."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or "")
    return trouble_of(status) or waits_in_silence(pod, now)


def _message_of(pod: Object) -> str:
    """What the loader left behind when it ended, or why it was ended, of which it can say nothing itself."""
    status = pod.get("status") or {}
    ended: Object = next(
        (
            (item.get("state") or {}).get("terminated") or {}
            for item in status.get("containerStatuses") or ()
            if item.get("name") == names.LOADER  # others may have added containers of theirs
        ),
        {},
    )
    message = str(ended.get("message") or "")
    if summary_of(message):
        return message
    if is_out_of_memory(ended):
        return (
            "The loader needed more memory than its limit allows (OOMKilled): raise"
            " spec.warehouse.resources.limits.memory."
        )
    if status.get("reason"):  # as of a pod that its node has evicted
        return f"{status['reason']}: {status.get('message') or 'Kubernetes has ended the pod.'}"
    return message
