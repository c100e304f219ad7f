"""One look at all Topics of a BrokerCluster, in batches: finalizers, deletions, topics, statuses."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import cluster_of
from mainstem_operator.api.conditions import LOADED, Condition, absence_of, not_measured
from mainstem_operator.api.fields import InvalidSpec, Object
from mainstem_operator.api.objects import key_of
from mainstem_operator.api.timestamps import moment, written
from mainstem_operator.api.topics import TopicSpec, claim_of_topic, topic_of
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused, BrokersUnreachable
from mainstem_operator.brokers.topic_state import Replicas, TopicPartition
from mainstem_operator.kubernetes.client import Refused
from mainstem_operator.proofs import Refusal, prove_topic_deletion
from mainstem_operator.runtime.alone import Alone
from mainstem_operator.runtime.context import Context
from mainstem_operator.topics.apply import TopicsOutcome, bring_about_topics
from mainstem_operator.topics.loads.apply import (
    bring_about_loads,
    delete_gone_loads,
    stop_resident,
    suspend_orphaned_loads,
)
from mainstem_operator.topics.loads.plan import names_freshness
from mainstem_operator.topics.loads.runs import LoadStatus
from mainstem_operator.topics.loads.unseen import loads_not_seen
from mainstem_operator.topics.plan import NOT_ITS_TOPIC, topic_status

logger = structlog.get_logger(__name__)

_MOVING_SECONDS: Final = 5.0
_REFUSED_SECONDS: Final = 60.0
_GIVE_UP: Final = dt.timedelta(minutes=5)
_WRITES_AT_ONCE: Final = 8
_GONE_LOOKS: Final = 40
_GONE_SECONDS: Final = 0.1


async def reconcile_topics(
    context: Context, namespace: str, cluster: str, manifests: Sequence[Object], there: Object | None
) -> float | None:
    """Reconcile the topics of a BrokerCluster; return in how many seconds to continue.

    Args:
        there: the BrokerCluster, or None if there is none.
    """
    alone = Alone()
    pairs: list[tuple[Object, TopicSpec]] = []
    for manifest in manifests:
        with alone(key_of(manifest)):
            try:
                pairs.append((manifest, topic_of(manifest)))
            except InvalidSpec as error:
                if manifest["metadata"].get("deletionTimestamp"):
                    await _release_kept(context, manifest, f"Its manifest is not valid: {error}")
                else:
                    await context.say_invalid(manifest, str(error))
    pause = await _reconcile_valid(context, (namespace, cluster), pairs, manifests, there, alone)
    await context.say_defects(manifests, alone)
    if alone.refused:
        return _MOVING_SECONDS if pause is None else min(pause, _MOVING_SECONDS)
    return pause


async def _reconcile_valid(
    context: Context,
    cluster: tuple[str, str],
    pairs: Sequence[tuple[Object, TopicSpec]],
    manifests: Sequence[Object],
    there: Object | None,
    alone: Alone,
) -> float | None:
    """The same for those that make sense, `pairs`, among all that name the BrokerCluster."""
    absence = absence_of(cluster[1], cluster[0], there)
    if absence is not None:
        await _without_cluster(context, absence, pairs, alone)
        with alone((cluster[0], f"Loads of {cluster[1]}")):
            await suspend_orphaned_loads(context, *cluster, manifests)
        return None
    assert there is not None
    await delete_gone_loads(context, there, manifests, alone)
    is_ready = bool((there.get("status") or {}).get("brokersReady"))
    if not pairs:
        if is_ready:
            await bring_about_loads(context, there, (), manifests, alone)
        elif not any(map(names_freshness, manifests)):
            await stop_resident(context, there, alone)
        _measure(context, there, manifests, (), {})
        return None
    if not is_ready:
        await _not_ready(context, cluster[1], pairs, alone)
        return _MOVING_SECONDS
    return await _Batch(context, context.brokers(*cluster), pairs, there, manifests).reconcile()


async def _without_cluster(
    context: Context, absence: Condition, pairs: Sequence[tuple[Object, TopicSpec]], alone: Alone
) -> None:
    for manifest, spec in pairs:
        with alone(spec.identity.key):
            if spec.identity.deleting:
                await _release(context, manifest)  # what was to be deleted went with the BrokerCluster
                await context.say_deleting(manifest)
            else:
                conditions = {item.type: item for item in not_measured(manifest, absence.message)}
                if spec.warehouse is not None:  # its CronJob goes with the BrokerCluster, or is suspended
                    without = f"{absence.message} Loads run again when there is one."
                    conditions[LOADED] = Condition(LOADED, False, "ClusterNotFound", without)
                await context.say(manifest, absence, *conditions.values())


async def _not_ready(
    context: Context, cluster: str, pairs: Sequence[tuple[Object, TopicSpec]], alone: Alone
) -> None:
    """Say so without asking brokers that are not there: each such question takes half a minute."""
    for manifest, spec in pairs:
        with alone(spec.identity.key):
            text = f"No broker of the BrokerCluster {cluster} is ready."
            if spec.identity.deleting and names.FINALIZER not in spec.identity.finalizers:
                await context.say_deleting(manifest)
            elif spec.identity.deleting and overdue(manifest):
                await _release_kept(context, manifest, text)
                await context.say_deleting(manifest)
            else:
                await context.say_unseen(manifest, _not_reached(manifest, "ClusterNotReady", text))


async def _release_kept(context: Context, manifest: Object, why: str) -> None:
    """Let a Topic go whose topic is not deleted with it, and say so: nobody owns the topic then."""
    if names.FINALIZER in (manifest["metadata"].get("finalizers") or ()):
        text = f"{why} The topic is kept: delete it with `mainstem topic delete`, or create the Topic again."
        await _say_kept(context, manifest, text)
    await _release(context, manifest)


async def _say_kept(context: Context, manifest: Object, text: str) -> None:
    await context.event(manifest, "TopicKept", text, warning=True)
    logger.warning("topic kept", topic=manifest["metadata"]["name"], reason=text)


def _not_reached(manifest: Object, reason: str, text: str) -> Condition:
    """The condition while brokers cannot be asked; for a Topic that is being deleted, until when."""
    if not manifest["metadata"].get("deletionTimestamp"):
        return Condition("Ready", None, reason, text)
    text = f"{text} The deletion waits for a broker until {_until(manifest)}. After that the topic is kept."
    return Condition("Ready", None, "DeletionWaits", text)


def _until(manifest: Object) -> str:
    """When the deletion of a topic is given up."""
    return written(moment(manifest["metadata"]["deletionTimestamp"]) + _GIVE_UP)


async def _release(context: Context, manifest: Object) -> None:
    """Take our finalizer away, so that the object can go.

    Where only its status has changed since it was read, it is read anew: no other look follows such a change.
    """
    read: Object | None = manifest
    while read is not None and _decided(read) == _decided(manifest):
        finalizers = list(read["metadata"].get("finalizers") or ())
        if names.FINALIZER not in finalizers:
            return
        try:
            await context.kube.set_finalizers(read, [name for name in finalizers if name != names.FINALIZER])
            return
        except Refused as refused:
            if not (refused.missing or refused.conflict):
                if refused.by_content:
                    await context.say_held(manifest, names.FINALIZER, refused)
                raise
        metadata = manifest["metadata"]
        read = await context.kube.get(names.API_VERSION, "Topic", metadata["namespace"], metadata["name"])


def _decided(manifest: Object) -> tuple[str, int]:
    """Changes with all that a person decides of an object."""
    return manifest["metadata"]["uid"], manifest["metadata"]["generation"]


def overdue(manifest: Object) -> bool:
    """Whether a deletion has waited for long enough: it has to end in every state of the world."""
    return dt.datetime.now(dt.UTC) - moment(manifest["metadata"]["deletionTimestamp"]) > _GIVE_UP


def _measure(
    context: Context,
    cluster: Object,
    topics: Sequence[Object],
    alive: Sequence[TopicSpec],
    loads: Mapping[tuple[str, str], LoadStatus],
) -> None:
    """What alerts need: how fresh tables are, by data, so that one fires whatever has stopped; and which
    loads reject too many records.

    Args:
        topics: all Topics that name the BrokerCluster.
        alive: those that make sense and are not being deleted.
        loads: those at whose loads this look has come.
    """
    measured: dict[str, tuple[float, int]] = {}
    rejecting: dict[str, bool] = {}
    valid = {spec.identity.key for spec in alive}
    unknown = {  # an alert does not end because a manifest is no longer valid
        topic["metadata"]["name"]
        for topic in topics
        if key_of(topic) not in valid
        and not topic["metadata"].get("deletionTimestamp")
        and (topic.get("spec") or {}).get("warehouse")
    }
    for spec in alive:
        status, warehouse = loads.get(spec.identity.key), spec.warehouse
        if warehouse is None:
            continue
        if status is None:  # something of it was refused this time
            unknown.add(spec.identity.name)
            continue
        rejecting[spec.identity.name] = status.is_rejecting
        limit_s = warehouse.freshness_seconds or warehouse.fresh_within_seconds
        if limit_s is not None and status.newest is not None:
            measured[spec.identity.name] = status.newest.timestamp(), limit_s
    metadata = cluster["metadata"]
    context.metrics.set_freshness(metadata["namespace"], metadata["name"], measured, unknown)
    context.metrics.set_rejecting(metadata["namespace"], metadata["name"], rejecting, unknown)


class _Batch:
    """One pass over the Topics of one BrokerCluster."""

    def __init__(
        self,
        context: Context,
        brokers: Brokers,
        pairs: Sequence[tuple[Object, TopicSpec]],
        cluster: Object,
        topics: Sequence[Object],
    ) -> None:
        """`topics` are all that name the BrokerCluster, `pairs` those that make sense."""
        self._context = context
        self._topics = topics
        self._cluster = cluster
        self._brokers = brokers
        self._moves = context.moves(cluster["metadata"]["namespace"], cluster["metadata"]["name"])
        self._manifests = {spec.identity.key: manifest for manifest, spec in pairs}
        self._specs = [spec for _, spec in pairs]
        self._invalid_claims = [
            claim_of_topic(manifest)
            for manifest in topics
            if key_of(manifest) not in self._manifests and not manifest["metadata"].get("deletionTimestamp")
        ]
        self._alone = Alone()
        """Has the Topics of which something was refused; they wait."""
        self._not_deleted: dict[tuple[str, str], Condition] = {}
        """Topics that are being deleted, and what brokers have against it."""

    async def reconcile(self) -> float | None:
        await self._set_finalizers()
        alive = [spec for spec in self._specs if not spec.identity.deleting]
        statuses = {key: manifest.get("status") or {} for key, manifest in self._manifests.items()}
        limited = self._moves.noted.keys()
        try:
            await self._delete()
            if not await self._context.may_act():  # another replica of the operator acts now
                return _MOVING_SECONDS
            claims = self._claims(alive)
            outcome = await bring_about_topics(self._brokers, claims, statuses, self._move, limited)
            loads = await self._bring_about_loads(alive, statuses, outcome)
        except BrokersUnreachable as error:
            await self._tell_unreachable(str(error))
            raise
        _measure(self._context, self._cluster, self._topics, alive, loads)
        await self._tell(outcome, loads)
        missing = any(spec.topic not in outcome.seen.topics for spec in alive)
        if outcome.seen.moves or missing or limited or self._moves.is_noted or self._alone.refused:
            return _MOVING_SECONDS
        limits = [
            spec.warehouse.freshness_seconds
            for spec in alive
            if spec.warehouse is not None and spec.warehouse.freshness_seconds is not None
        ]
        pauses = [max(min(limits) / 2, _MOVING_SECONDS)] if limits else []
        if (
            self._not_deleted
            or any(item.refusals for item in outcome.outcomes)
            or any(load.waits for load in loads.values())
        ):
            pauses.append(_REFUSED_SECONDS)
        return min(pauses, default=None)

    async def _bring_about_loads(
        self,
        alive: Sequence[TopicSpec],
        statuses: Mapping[tuple[str, str], Object],
        outcome: TopicsOutcome,
    ) -> dict[tuple[str, str], LoadStatus]:
        loads = await bring_about_loads(
            self._context,
            self._cluster,
            [
                (spec, statuses[spec.identity.key])
                for spec in alive
                if spec.managed and spec.identity.key not in self._alone.refused
            ],
            self._topics,
            self._alone,
            {
                item.spec.identity.key: refusal.message
                for item in outcome.outcomes
                for refusal in (item.plan.refusals if item.plan is not None else ())
                if refusal.reason in NOT_ITS_TOPIC
            },
        )
        unmanaged = f"Loads are left alone, because of {names.MANAGED}."
        return loads | {
            spec.identity.key: loads_not_seen(statuses[spec.identity.key], "Unmanaged", unmanaged)
            for spec in alive
            if not spec.managed
        }

    def _claims(self, alive: Sequence[TopicSpec]) -> list[TopicSpec]:
        """The Topics as they claim topics.

        One that Kubernetes has refused keeps its claim while it waits, as does one whose manifest is not
        valid (`claim_of_topic`).
        """
        valid = [
            replace(spec, paused=True) if spec.identity.key in self._alone.refused else spec for spec in alive
        ]
        return [*valid, *self._invalid_claims]

    async def _move(
        self, targets: Mapping[TopicPartition, Replicas], under_way: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, str]:
        """Begin moves within the BrokerCluster's limit.

        While its manifest makes no sense they begin if it names no limit: none can be meant then. Where it
        names one, nobody knows which, so they wait.
        """
        try:
            cluster = cluster_of(self._cluster)
        except InvalidSpec as error:
            if not _names_limit(self._cluster):
                return await self._brokers.move(targets) if targets else {}
            text = f"Replicas do not move until the manifest of their BrokerCluster is valid: {error}"
            return dict.fromkeys(targets, text)
        return await self._moves.carry_out(cluster, targets, under_way)

    async def _set_finalizers(self) -> None:
        """A finalizer only where the topic is to go with the object: else nothing has to be waited for."""
        for spec in self._specs:
            with self._alone(spec.identity.key):
                await self._set_finalizer(spec)

    async def _set_finalizer(self, spec: TopicSpec) -> None:
        manifest = self._manifests[spec.identity.key]
        # A protected one has it too: protection may be taken off, and the Topic deleted, in one breath.
        needs_finalizer = (
            spec.delete_topic and spec.managed and not (spec.identity.deleting and spec.protected)
        )
        has = names.FINALIZER in spec.identity.finalizers
        if has and not needs_finalizer and spec.identity.deleting and spec.protected:
            await _release_kept(self._context, manifest, "The Topic is protected from deletion.")
        elif has and not needs_finalizer:
            await _release(self._context, manifest)
        elif needs_finalizer and not has and not spec.identity.deleting:
            finalizers = [*spec.identity.finalizers, names.FINALIZER]
            try:
                await self._context.kube.set_finalizers(manifest, finalizers)
            except Refused as refused:
                if refused.by_content:
                    text = (
                        f"Kubernetes refuses the finalizer {names.FINALIZER}, which deletion needs: {refused}"
                    )
                    refusal = Condition("Ready", False, "FinalizerRefused", text)
                    await self._context.say_unseen(manifest, refusal)
                raise

    async def _delete(self) -> None:
        for spec in self._specs:
            if spec.identity.deleting and names.FINALIZER in spec.identity.finalizers:
                try:
                    with self._alone(spec.identity.key):
                        await self._delete_one(spec)
                except BrokersUnreachable:
                    await self._give_up_in_time(spec)
                    raise

    async def _delete_one(self, stale: TopicSpec) -> None:
        """Delete a topic whose Topic is being deleted: both are read anew."""
        manifest = await self._context.kube.get(
            names.API_VERSION, "Topic", stale.identity.namespace, stale.identity.name
        )
        if manifest is None:
            return
        spec = topic_of(manifest)
        present = (await self._brokers.topics([spec.topic])).get(spec.topic)
        if present is not None:
            known_topic_id = (manifest.get("status") or {}).get("topicId")
            proof = prove_topic_deletion(
                spec, known_topic_id, present.topic_id, [*self._specs, *self._invalid_claims]
            )
            if isinstance(proof, Refusal):
                await _say_kept(self._context, manifest, proof.reason)
            elif not await self._context.may_act():
                return
            else:
                try:
                    await self._brokers.delete_topic(proof)
                except BrokersRefused as refused:
                    await _say_kept(self._context, manifest, str(refused))
                    if not overdue(manifest):
                        text = (
                            f"The topic is not deleted: {refused} The deletion is tried until"
                            f" {_until(manifest)}. After that the topic is kept."
                        )
                        self._not_deleted[spec.identity.key] = Condition(
                            "Ready", False, names.BROKERS_REFUSED, text
                        )
                        return
                else:
                    self._context.metrics.steps.labels("delete_topic").inc()
                    logger.info("topic deleted", topic=spec.topic, id=present.topic_id)
                    await self._until_gone(spec.topic)
        await _release(self._context, manifest)

    async def _until_gone(self, topic: str) -> None:
        """Wait until brokers don't know the topic: whoever makes it next must not meet the old one."""
        for _ in range(_GONE_LOOKS):
            if not await self._brokers.topics([topic]):
                return
            await asyncio.sleep(_GONE_SECONDS)

    async def _give_up_in_time(self, spec: TopicSpec) -> None:
        manifest = self._manifests[spec.identity.key]
        if overdue(manifest):
            with self._alone(spec.identity.key):
                await _release_kept(self._context, manifest, "No broker answers.")

    async def _tell_unreachable(self, sentence: str) -> None:
        for spec in self._specs:
            manifest = self._manifests[spec.identity.key]
            with self._alone(spec.identity.key):
                has_finalizer = names.FINALIZER in spec.identity.finalizers
                if spec.identity.deleting and (overdue(manifest) or not has_finalizer):
                    await self._context.say_deleting(manifest)  # it has been let go
                else:
                    condition = _not_reached(manifest, "Unreachable", sentence)
                    await self._context.say_unseen(manifest, condition)

    async def _tell(self, outcome: TopicsOutcome, loads: Mapping[tuple[str, str], LoadStatus]) -> None:
        now = dt.datetime.now(dt.UTC)
        limit = asyncio.Semaphore(_WRITES_AT_ONCE)
        waiting = frozenset(self._alone.refused)

        async def tell(spec: TopicSpec, status: dict[str, Any]) -> None:
            async with limit:
                with self._alone(spec.identity.key):
                    await self._context.put_status(self._manifests[spec.identity.key], status)

        for spec in self._specs:
            if spec.identity.deleting and spec.identity.key not in waiting:
                with self._alone(spec.identity.key):
                    await self._say_deleting(spec)
        writes = []
        for item in outcome.outcomes:
            if item.spec.identity.key in waiting or item.spec.identity.key not in self._manifests:
                continue
            manifest = self._manifests[item.spec.identity.key]
            present = manifest.get("status") or {}
            with self._alone(item.spec.identity.key):
                status = topic_status(
                    item.spec,
                    item.plan,
                    item.refusals,
                    outcome.seen,
                    present,
                    now,
                    loads.get(item.spec.identity.key),
                )
                writes.append(tell(item.spec, status))
            if item.plan is not None and item.plan.recreated:
                text = f"The topic {item.spec.topic} was deleted by someone else; its records are lost."
                await self._context.event(manifest, "TopicRecreated", text, warning=True)
        await asyncio.gather(*writes)
        await self._context.say_defects(self._manifests.values(), self._alone)

    async def _say_deleting(self, spec: TopicSpec) -> None:
        manifest = self._manifests[spec.identity.key]
        refusal = self._not_deleted.get(spec.identity.key)
        if refusal is not None:
            await self._context.say_unseen(manifest, refusal)
        else:
            await self._context.say_deleting(manifest)


def _names_limit(cluster: Object) -> bool:
    """Whether a BrokerCluster's manifest may hold a limit on moves, whatever else is wrong with it."""
    rolling = (cluster.get("spec") or {}).get("rolling")
    return rolling is not None and not (isinstance(rolling, Mapping) and "moveBytesPerSecond" not in rolling)
