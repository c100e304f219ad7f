"""Starts moves of replicas within the limit of a BrokerCluster, and removes the throttles afterwards.

This is the only place where the operator sets throttles: the reconciles of a BrokerCluster and of its Topics
both come here, and one waits for the other. `throttles/plan.py` decides which throttles are set.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

import structlog

from mainstem_operator.api import names
from mainstem_operator.api.clusters import ClusterSpec
from mainstem_operator.api.fields import Object
from mainstem_operator.brokers.admin import Brokers
from mainstem_operator.brokers.errors import BrokersRefused
from mainstem_operator.brokers.topic_state import MoveState, Replicas, TopicPartition
from mainstem_operator.cluster.throttles.plan import (
    ALL_BROKERS,
    Change,
    Changes,
    Copies,
    Noted,
    Operation,
    Settings,
    copies_of,
    copies_to,
    partitions_in,
    plan_throttles,
)
from mainstem_operator.kubernetes.client import Kube, Refused, whose
from mainstem_operator.kubernetes.manifests import manifest
from mainstem_operator.snapshot import is_orphan, is_orphan_of

logger = structlog.get_logger(__name__)

_KEY: Final = "throttles.json"
_PAIR: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_LOOKS: Final = 40
_NOT_SHOWN: Final = "Brokers do not show its throttles yet."


class LimitedMoves:
    """The moves of one BrokerCluster.

    The operator's own throttles are recorded in a ConfigMap of the BrokerCluster, in `throttles.json`, by
    topic and setting; the empty name stands for all brokers:
    `{"clicks": {"leader.replication.throttled.replicas": ["0:1"]}, "": {...}}`. The ConfigMap exists only
    while something is limited, so a reconcile of the BrokerCluster, which lists all ConfigMaps, finds it
    without a further request. The status would not do: what a watch reports of it may be out of date.
    Without a limit, and with nothing recorded, there is no request and no waiting.

    The controller is asked, which answers a move when its own view shows it: so one that was begun is not
    missed, and its throttles are not taken for left over. Nor is it begun before them, as all brokers hear of
    changes in one order.
    """

    def __init__(
        self,
        kube: Kube,
        brokers: Brokers,
        may_act: Callable[[], Awaitable[bool]],
        wait_seconds: float = 0.05,
    ) -> None:
        self._kube = kube
        self._brokers = brokers
        self._may_act = may_act
        self._wait_seconds = wait_seconds
        self._lock = asyncio.Lock()
        self.is_noted = False
        """Whether something was noted, when that was last seen."""
        self.noted: Noted = {}
        """What was, as far as this process has seen or written it."""
        self.rates_of_others: Mapping[str, str] = {}
        """The defaults of all brokers, set by others, that bind our moves instead of the limit."""

    async def carry_out(
        self,
        cluster: ClusterSpec,
        targets: Mapping[TopicPartition, Replicas],
        under_way: Collection[TopicPartition] = (),
        *,
        may_put: bool = True,
    ) -> dict[TopicPartition, str]:
        """Begin moves to `targets`, limited first, and see to the limits of those under way; the refusals.

        Args:
            under_way: moves that the operator has begun, also at a time when there was no limit yet.
            may_put: whether throttles may be put; if not, what has no use any more is taken away still.

        Raises:
            BrokersUnreachable: no broker answers.
        """
        is_limited = cluster.move_bytes_per_second is not None and bool(targets or under_way)
        if not is_limited and not self.is_noted:
            self.rates_of_others = {}
            return await self._brokers.move(targets) if targets else {}
        async with self._lock:
            moves = await self._brokers.moves()
            copies = await self._copies(targets, moves)
            refused = dict.fromkeys(targets.keys() - copies.keys(), "Its replicas are not reported yet.")
            not_limited = await self._try_limit(cluster, moves, copies, under_way, may_put=may_put)
            if cluster.move_bytes_per_second is not None:
                for key, copy in copies.items():
                    reason = not_limited.get(key[0]) or not_limited.get(ALL_BROKERS)
                    if reason and copy.receivers:
                        refused[key] = f"Its move can't be limited: {reason}"
            begun = {key: targets[key] for key in copies.keys() - refused.keys()}
            if begun:
                refused |= await self._brokers.move(begun)
            return refused  # their throttles go with the next look, which finds no such moves

    async def _copies(
        self, targets: Mapping[TopicPartition, Replicas], moves: Mapping[TopicPartition, MoveState]
    ) -> dict[TopicPartition, Copies]:
        topics = await self._brokers.topics({topic for topic, _ in targets})
        return {
            (topic, number): copies_to(
                target, topics[topic].partitions[number].replicas, moves.get((topic, number))
            )
            for (topic, number), target in targets.items()
            if topic in topics and number in topics[topic].partitions
        }

    async def _try_limit(
        self,
        cluster: ClusterSpec,
        moves: Mapping[TopicPartition, MoveState],
        beginning: Mapping[TopicPartition, Copies],
        under_way: Collection[TopicPartition],
        *,
        may_put: bool,
    ) -> Mapping[str, str]:
        """As `_limit`; what can't be noted is refused for all. What is noted is tried again later."""
        try:
            refused = await self._limit(cluster, moves, beginning, under_way, may_put=may_put)
        except (BrokersRefused, Refused) as error:
            refused = {ALL_BROKERS: str(error)}
        if refused:
            logger.warning("moves are not limited as they should be", refused=dict(refused))
        return refused

    async def _limit(
        self,
        cluster: ClusterSpec,
        moves: Mapping[TopicPartition, MoveState],
        beginning: Mapping[TopicPartition, Copies],
        under_way: Collection[TopicPartition],
        *,
        may_put: bool,
    ) -> Mapping[str, str]:
        """Put the throttles of the moves that are beginning or under way, and take away those of others.

        Answers why that could not be, by topic or ALL_BROKERS.
        """
        name = names.throttles(cluster.name)
        live = await self._kube.get("v1", "ConfigMap", cluster.namespace, name)
        if live is not None and not is_note_of(cluster.name, live):
            self.is_noted, self.noted = False, {}
            text = (
                f"The ConfigMap {name} belongs to {whose(live)}, and the operator needs that name for its"
                " record of limits: rename it, or remove moveBytesPerSecond."
            )
            return {ALL_BROKERS: text}
        self.noted = noted = _read(live)
        self.is_noted = bool(noted)
        ours = partitions_in(noted) | set(under_way)
        copies = {key: copies_of(move) for key, move in moves.items() if key in ours} | dict(beginning)
        topics = {topic for topic, _ in (*copies, *noted)} - {ALL_BROKERS}
        present = await self._brokers.throttles(topics)
        plan = plan_throttles(cluster.move_bytes_per_second, copies, noted, present, may_put=may_put)
        self.rates_of_others = plan.rates_of_others
        is_as_noted = plan.before == plan.after == noted and bool(noted) == (live is not None)
        is_as_noted &= live is None or not is_orphan(live)
        if is_as_noted and not plan.puts and not plan.takes:
            return {}
        if not await self._may_act():
            return {ALL_BROKERS: "Another replica of the operator acts now."}
        live = await self._note(cluster, plan.before, live)
        if plan.puts or plan.takes:
            of = sorted({*plan.puts, *plan.takes})
            logger.info("throttles of moves change", cluster=cluster.name, of=of)
        refused = {**await self._put(plan.puts), **await self._put(plan.takes)}
        after = {
            key: items
            for key in {**plan.before, **plan.after}
            if (items := (plan.before if key[0] in refused else plan.after).get(key))
        }
        await self._note(cluster, after, live)
        return refused

    async def _put(self, changes: Changes) -> dict[str, str]:
        """Make these changes and wait until brokers tell of them; why some are not, by topic or ALL_BROKERS.

        Who reads what was before may take ours for another's. A list that has become empty is taken away.
        """
        if not changes:
            return {}
        refused = await self._brokers.put_throttles(changes)
        present, hidden = await self._shown({key: changes[key] for key in changes.keys() - refused.keys()})
        refused |= dict.fromkeys(hidden, _NOT_SHOWN)
        emptied: dict[str, dict[str, Change]] = {}
        for where, settings in changes.items():
            for setting, change in settings.items():
                if change.operation is Operation.SUBTRACT and present.get(where, {}).get(setting) == "":
                    emptied.setdefault(where, {})[setting] = Change(Operation.DELETE)
        return {**refused, **await self._put(emptied)}

    async def _shown(self, changes: Changes) -> tuple[Settings, set[str]]:
        """What brokers tell once they tell of these changes; those that they don't within some looks."""
        present: Settings = {}
        hidden: set[str] = set()
        for _ in range(_LOOKS if changes else 0):
            present = await self._brokers.throttles(changes.keys() - {ALL_BROKERS})
            hidden = {
                where
                for where, settings in changes.items()
                if where in present  # with a topic its settings have gone
                and not all(it.is_shown_by(present[where].get(name)) for name, it in settings.items())
            }
            if not hidden:
                break
            await asyncio.sleep(self._wait_seconds)
        return present, hidden

    async def _note(self, cluster: ClusterSpec, noted: Noted, live: Object | None) -> Object | None:
        """Note just this; the ConfigMap, or None if there is nothing to note."""
        self.noted = noted
        self.is_noted = bool(noted) or live is not None
        name = names.throttles(cluster.name)
        config_map = manifest("v1", "ConfigMap", cluster, names.BROKER, name, data={_KEY: _written(noted)})
        if noted:
            return await self._kube.apply(config_map, live, unchanged=True)
        if live is not None:
            owned = {**live, "apiVersion": "v1", "kind": "ConfigMap"}
            await self._kube.delete_owned(owned, unchanged=True)
            self.is_noted = False
        return None


def is_note_of(cluster: str, config_map: Object) -> bool:
    """Whether this ConfigMap is our note for a BrokerCluster of that name, also for one that was deleted and
    has left it behind.
    """
    owners = config_map["metadata"].get("ownerReferences") or ()
    return is_orphan_of(config_map, {names.CLUSTER_LABEL: cluster}) or any(
        (owner.get("kind"), owner.get("name")) == ("BrokerCluster", cluster) for owner in owners
    )


def _written(noted: Noted) -> str:
    replicas_by_topic: dict[str, dict[str, list[str]]] = {}
    for (where, setting), items in sorted(noted.items()):
        replicas_by_topic.setdefault(where, {})[setting] = sorted(items)
    return json.dumps(replicas_by_topic)


def _read(live: Object | None) -> Noted:
    """What a ConfigMap notes; of one that someone has changed, nothing: in doubt a throttle is not ours."""
    text = ((live or {}).get("data") or {}).get(_KEY, "{}")
    try:
        noted = {
            (where, setting): frozenset(map(str, items))
            for where, settings in json.loads(text).items()
            for setting, items in settings.items()
        }
        if not all(
            _PAIR.fullmatch(pair)
            for (where, _), pairs in noted.items()
            if where != ALL_BROKERS
            for pair in pairs
        ):
            raise ValueError
    except (ValueError, AttributeError, TypeError):
        logger.warning("the record of throttles is not valid, and is ignored", text=text)
        return {}
    return noted
