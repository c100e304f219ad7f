"""What a broker says of its health: alive, ready, may it stop. Values; `health_server.py` serves them.

- Alive: the event loop turns. A broker that recovers logs or catches up is alive, however long it takes:
  killing it would only make it begin again.
- Ready: it is registered, may act on its leaderships, and has been in sync with all that it holds at least
  once since its start. Falling behind later does not make it unready: clients still need its leaderships,
  and one slow disk must not take the cluster's endpoints away.
- May it stop: see `cluster/standing.py`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.standing import Standing, standing_of
from mainstem_broker.cluster.view import Topic
from mainstem_broker.errors import InvalidSetting
from mainstem_broker.replica.office import Office


class Phase(StrEnum):
    """Where in its life a broker is."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class Health:
    """Asked on the event loop. `phase` is set by the broker as it starts and stops."""

    def __init__(self, broker: BrokerContext, office: Office) -> None:
        self.phase = Phase.STARTING
        self._broker = broker
        self._office = office
        self._was_in_sync = False

    def standing(self) -> Standing:
        """Looks at every partition of the cluster: some milliseconds for ten thousand of them."""
        return standing_of(self._broker.view, self._broker.broker_id, self._min_insync_replicas)

    def unready(self, standing: Standing) -> list[str]:
        """Why clients should not be sent here; nothing if they should."""
        if self.phase is Phase.STARTING:
            return ["starting: logs are being opened or recovered"]
        if self.phase is Phase.STOPPING:
            return ["stopping"]
        reasons = []
        if self._broker.broker_id not in self._broker.view.brokers:
            reasons.append("not registered in ZooKeeper")
        elif not self._office.is_open():
            reasons.append("ZooKeeper has not answered for most of a session: leaderships rest")
        if standing.catching_up == 0 and not reasons:
            self._was_in_sync = True
        if not self._was_in_sync:
            reasons.append(f"{standing.catching_up} replicas are catching up")
        return reasons

    def status(self) -> dict[str, Any]:
        """What `/status` answers, in JSON's types."""
        standing = self.standing()
        view = self._broker.view
        return {
            "brokerId": self._broker.broker_id,
            "clusterId": view.cluster_id,
            "state": str(self.phase),
            "notReady": self.unready(standing),
            "controller": None if view.controller_id < 0 else view.controller_id,
            "liveBrokers": sorted(view.brokers),
            "replicas": standing.replicas,
            "leaders": standing.leaders,
            "catchingUp": standing.catching_up,
            "underReplicated": standing.under_replicated,
            "underMinIsr": standing.under_min_isr,
            "offline": standing.offline,
            "mayStop": standing.may_stop,
            "blockers": list(standing.blockers),
        }

    def _min_insync_replicas(self, topic: Topic) -> int:
        config = self._broker.config
        try:
            value, _ = config.topic_value("min.insync.replicas", topic.config)
        except InvalidSetting:  # written by hand; it does not count anywhere
            value, _ = config.topic_value("min.insync.replicas", {})
        assert isinstance(value, int)
        return value
