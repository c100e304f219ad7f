"""One look at all Topics of a Cluster, in batches: finalizers, deletions, topics, statuses."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog

from mainstem_operator import names
from mainstem_operator.admin import Brokers, BrokersRefused, BrokersUnreachable
from mainstem_operator.conditions import Condition
from mainstem_operator.context import Context
from mainstem_operator.fields import InvalidSpec, Object
from mainstem_operator.kube import Refused
from mainstem_operator.load_work import bring_about_loads
from mainstem_operator.observed import moment
from mainstem_operator.plan_loads import LoadStatus
from mainstem_operator.plan_topics import topic_status
from mainstem_operator.proofs import Refusal, prove_topic_deletion
from mainstem_operator.resources import TopicSpec, cluster_of, topic_of
from mainstem_operator.topic_state import Replicas, TopicPartition
from mainstem_operator.topic_work import TopicsOutcome, bring_about_topics

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
    """Bring the topics of a Cluster about; `there` is the Cluster, or None. Answers when to look again."""
    pairs: list[tuple[Object, TopicSpec]] = []
    for manifest in manifests:
        try:
            pairs.append((manifest, topic_of(manifest)))
        except InvalidSpec as error:
            if manifest["metadata"].get("deletionTimestamp"):
                await _release(context, manifest)
            else:
                await context.say_invalid(manifest, str(error))
    if there is None or there["metadata"].get("deletionTimestamp"):
        await _without_cluster(context, cluster, pairs)
        return None
    if not pairs:
        return None
    if not (there.get("status") or {}).get("brokersReady"):
        await _not_ready(context, cluster, pairs)
        return _MOVING_SECONDS
    return await _Pass(context, context.brokers(namespace, cluster), pairs, there).reconcile()


async def _without_cluster(context: Context, cluster: str, pairs: Sequence[tuple[Object, TopicSpec]]) -> None:
    for manifest, spec in pairs:
        if spec.identity.deleting:
            await _release(context, manifest)  # what was to be deleted went with the Cluster
        else:
            text = f"There is no Cluster {cluster} in the namespace {spec.identity.namespace}."
            await context.say(manifest, Condition("Ready", False, "ClusterNotFound", text))


async def _not_ready(context: Context, cluster: str, pairs: Sequence[tuple[Object, TopicSpec]]) -> None:
    """Say so without asking brokers that are not there: each such question takes half a minute."""
    for manifest, spec in pairs:
        if spec.identity.deleting and overdue(manifest):
            await _release(context, manifest)
        elif not spec.identity.deleting:
            text = f"No broker of the Cluster {cluster} is ready."
            await context.say(manifest, Condition("Ready", None, "ClusterNotReady", text))


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
                raise
        metadata = manifest["metadata"]
        read = await context.kube.get(names.API_VERSION, "Topic", metadata["namespace"], metadata["name"])


def _decided(manifest: Object) -> tuple[str, int]:
    """Changes with all that a person decides of an object."""
    return manifest["metadata"]["uid"], manifest["metadata"]["generation"]


def overdue(manifest: Object) -> bool:
    """Whether a deletion has waited for long enough: it has to end in every state of the world."""
    return dt.datetime.now(dt.UTC) - moment(manifest["metadata"]["deletionTimestamp"]) > _GIVE_UP


class _Pass:
    """One pass over the Topics of one Cluster."""

    def __init__(
        self, context: Context, brokers: Brokers, pairs: Sequence[tuple[Object, TopicSpec]], cluster: Object
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._brokers = brokers
        self._moves = context.moves(cluster["metadata"]["namespace"], cluster["metadata"]["name"])
        self._manifests = {spec.identity.key: manifest for manifest, spec in pairs}
        self._specs = [spec for _, spec in pairs]

    async def reconcile(self) -> float | None:
        await self._set_finalizers()
        alive = [spec for spec in self._specs if not spec.identity.deleting]
        statuses = {key: manifest.get("status") or {} for key, manifest in self._manifests.items()}
        limited = self._moves.noted.keys()
        try:
            await self._delete()
            outcome = await bring_about_topics(self._brokers, alive, statuses, self._move, limited)
        except BrokersUnreachable as error:
            await self._tell_unreachable(alive, str(error))
            raise
        loads = await bring_about_loads(
            self._context,
            self._cluster,
            [(spec, statuses[spec.identity.key]) for spec in alive if spec.managed],
        )
        await self._tell(outcome, loads)
        missing = any(spec.topic not in outcome.seen.topics for spec in alive)
        if outcome.seen.moves or missing or limited or self._moves.is_noted:
            return _MOVING_SECONDS
        return _REFUSED_SECONDS if any(item.refusals for item in outcome.outcomes) else None

    async def _move(
        self, targets: Mapping[TopicPartition, Replicas], under_way: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, str]:
        """Begin moves within the Cluster's limit.

        While its manifest makes no sense they begin if it names no limit: none can be meant then. Where it
        names one, nobody knows which, so they wait.
        """
        try:
            cluster = cluster_of(self._cluster)
        except InvalidSpec as error:
            if not _names_limit(self._cluster):
                return await self._brokers.move(targets) if targets else {}
            text = f"Replicas move no sooner than the manifest of their Cluster makes sense: {error}"
            return dict.fromkeys(targets, text)
        return await self._moves.carry_out(cluster, targets, under_way)

    async def _set_finalizers(self) -> None:
        """A finalizer only where the topic is to go with the object: else nothing has to be waited for."""
        for spec in self._specs:
            manifest = self._manifests[spec.identity.key]
            # A protected one has it too: protection may be taken off, and the Topic deleted, in one breath.
            wanted = spec.delete_topic and spec.managed and not (spec.identity.deleting and spec.protected)
            has = names.FINALIZER in spec.identity.finalizers
            if spec.identity.deleting:
                if has and not wanted:
                    await _release(self._context, manifest)
            elif wanted and not has:
                await self._context.kube.set_finalizers(
                    manifest, [*spec.identity.finalizers, names.FINALIZER]
                )
            elif has and not wanted:
                await _release(self._context, manifest)

    async def _delete(self) -> None:
        for spec in self._specs:
            if spec.identity.deleting and names.FINALIZER in spec.identity.finalizers:
                try:
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
            known = (manifest.get("status") or {}).get("topicId")
            proof = prove_topic_deletion(spec, known, present.topic_id, self._specs)
            if isinstance(proof, Refusal):
                await self._context.event(manifest, "TopicKept", proof.reason, warning=True)
            elif not await self._context.may_act():
                return
            else:
                try:
                    await self._brokers.delete_topic(proof)
                except BrokersRefused as refused:
                    await self._context.event(manifest, "TopicKept", str(refused), warning=True)
                    if not overdue(manifest):
                        await self._context.say(
                            manifest, Condition("Ready", False, "KafkaError", str(refused))
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
            text = "No broker answers, so the topic is kept."
            await self._context.event(manifest, "TopicKept", text, warning=True)
            await _release(self._context, manifest)

    async def _tell_unreachable(self, specs: Sequence[TopicSpec], sentence: str) -> None:
        for spec in specs:
            condition = Condition("Ready", None, "Unreachable", sentence)
            await self._context.say(self._manifests[spec.identity.key], condition)

    async def _tell(self, outcome: TopicsOutcome, loads: Mapping[tuple[str, str], LoadStatus]) -> None:
        now = dt.datetime.now(dt.UTC)
        limit = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def tell(spec: TopicSpec, status: dict[str, Any]) -> None:
            async with limit:
                try:
                    await self._context.put_status(self._manifests[spec.identity.key], status)
                except Refused as refused:
                    if not refused.missing:
                        raise

        writes = []
        for item in outcome.outcomes:
            manifest = self._manifests[item.spec.identity.key]
            present = manifest.get("status") or {}
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
                text = f"The topic {item.spec.topic} was deleted by someone else; what it held is gone."
                await self._context.event(manifest, "TopicRecreated", text, warning=True)
        await asyncio.gather(*writes)


def _names_limit(cluster: Object) -> bool:
    """Whether a Cluster's manifest may hold a limit on moves, whatever else is wrong with it."""
    rolling = (cluster.get("spec") or {}).get("rolling")
    return rolling is not None and not (isinstance(rolling, Mapping) and "moveBytesPerSecond" not in rolling)
