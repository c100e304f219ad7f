"""What a broker says of its health: alive, ready, may it stop. Values; `health_server.py` serves them.

- Alive: the event loop turns. A broker that recovers logs or catches up is alive, however long it takes:
  killing it would only make it begin again.
- Ready: it is registered, may act on its leaderships, and has been in sync with all that it holds at least
  once since its start. Falling behind later does not make it unready: clients still need its leaderships,
  and one slow disk must not take the cluster's endpoints away. Nor does an outage of ZooKeeper, while leaders
  go on without it; a broker that is cut off alone is not ready when none of its leaderships may be acted on.
- May it stop: see `cluster/replication_status.py`.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.replication_status import ReplicationCounts, ReplicationStatus
from mainstem_broker.replica.lease import Lease
from mainstem_broker.runtime.turns import in_turns


class Phase(StrEnum):
    """The phases of a broker, from start to stop."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Health:
    """To be used on the event loop. `phase` is set by the broker as it starts and stops."""

    def __init__(self, broker: BrokerContext, lease: Lease) -> None:
        self.phase = Phase.STARTING
        self._broker = broker
        self._lease = lease
        self._was_in_sync = False

    async def standing(self) -> ReplicationStatus:
        """Look at every partition of the cluster, in turns: tens of milliseconds for ten thousand of them.

        Each partition counts as the view has it at some time after the call.
        """
        view, configs = self._broker.view, self._broker.topic_configs
        counts = ReplicationCounts(view, self._broker.broker_id)
        partitions = [(topic, index) for topic in view.topics.values() for index in topic.assignment.replicas]
        async for topic, index in in_turns(partitions):
            if index in topic.assignment.replicas:
                counts.add(topic, index, configs.get(topic.name, topic.config).min_insync_replicas)
        return counts.status()

    def unready(self, standing: ReplicationStatus) -> list[str]:
        """Why clients should not be sent here; nothing if they should."""
        if self.phase is Phase.STARTING:
            if not self._broker.member.is_connected:
                return ["starting: waiting for ZooKeeper"]
            return ["starting: logs are being opened or recovered"]
        if self.phase is Phase.STOPPING:
            return ["stopping"]
        reasons = []
        if self._broker.broker_id not in self._broker.view.brokers:
            reasons.append("not registered in ZooKeeper")
        elif not self._lease.is_valid() and self._all_rest():
            reasons.append(
                f"ZooKeeper has not answered {self._lease.silence}, and followers grant no leadership"
            )
        if standing.catching_up == 0 and not reasons:
            self._was_in_sync = True
        if not self._was_in_sync:
            reasons.append(f"{standing.catching_up} replicas are catching up")
        return reasons

    def _all_rest(self) -> bool:
        """Whether none of the leaderships here may be acted on, and there are some."""
        led = [partition for partition in self._broker.replicas.led_here() if partition.is_leader]
        return bool(led) and not any(partition.is_served for partition in led)

    def zookeeper_silence_s(self) -> float:
        """Seconds since ZooKeeper last answered; 0 before the first answer."""
        silence_s = self._lease.silence_s
        return silence_s if math.isfinite(silence_s) else 0.0

    def _stopped_shards(self) -> list[str]:
        shards = (*self._broker.groups.shards, *self._broker.transactions.shards)
        return [
            f"{shard.journal.partition!r}: {shard.stopped}" for shard in shards if shard.stopped is not None
        ]

    async def status(self) -> dict[str, Any]:
        """What `/status` answers, in JSON's types."""
        standing = await self.standing()
        view = self._broker.view
        is_away = self._lease.is_cut_off and self.phase is Phase.RUNNING
        blockers = list(standing.blockers)
        if is_away:
            blockers.insert(0, "ZooKeeper is unreachable: leaderships cannot be handed over")
        return {
            "brokerId": self._broker.broker_id,
            "clusterId": view.cluster_id,
            "state": str(self.phase),
            "notReady": self.unready(standing),
            "controller": None if view.controller_id < 0 else view.controller_id,
            "liveBrokers": sorted(view.brokers),
            "zookeeperSilenceSeconds": round(self.zookeeper_silence_s(), 1),
            "zookeeperAway": is_away,
            "replicas": standing.replicas,
            "leaders": standing.leaders,
            "catchingUp": standing.catching_up,
            "underReplicated": standing.under_replicated,
            "underMinIsr": standing.under_min_isr,
            "offline": standing.offline,
            "mayStop": standing.may_stop and not is_away,
            "blockers": blockers,
            "newerFormats": [*view.newer_formats(), *self._stopped_shards()],
        }
