"""Three brokers, roles to choose victims by, and what can be done to them.

In scope: doing and undoing faults, and knowing when the cluster is whole. What is measured and demanded is in
the tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.network import Network
from tests.support.clusters import LOG_LINES
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.wire import Connection

from mainstem.local.ports import hold_free_ports
from mainstem.local.stack import Stack

ANSWER_SECONDS: Final = PATIENCE_SECONDS
BROKERS: Final = (1, 2, 3)
_DURABLE: Final = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "auto.create.topics.enable": "false",  # clients that end ask for their topic once more
}
# `mainstem up` shortens sessions; what a cluster with the default timeouts shows must not depend on that.
DEFAULT_TIMEOUTS: Final = {**_DURABLE, "zookeeper.session.timeout.ms": "18000"}
# What follows silence takes as long as these two, so that the defaults (18 and 30 s) would make a long run.
SESSION_S: Final = 4
LAG_S: Final = 3
SHORT_TIMEOUTS: Final = {
    **_DURABLE,
    "zookeeper.session.timeout.ms": str(SESSION_S * 1000),
    "replica.lag.time.max.ms": str(LAG_S * 1000),
}
ZOOKEEPER: Final = "zookeeper"


class FaultCluster:
    """A local stack of three brokers that tests may break, and have to mend.

    With `wires`, brokers reach each other by a listener of their own (PEERS) and ZooKeeper through wires that
    can be cut; clients stay connected. Without, as `mainstem up` runs it.
    """

    def __init__(self, data_directory: Path, settings: Mapping[str, str], *, wires: bool = False) -> None:
        self._closing = ExitStack()
        self.data_directory = data_directory
        self.network: Network | None = None
        own_settings: dict[int, dict[str, str]] = {}
        port, held = hold_free_ports(len(BROKERS) * 4)
        for each in held:
            self._closing.enter_context(each)
        if wires:
            self.network = self._closing.enter_context(Network(self._pids))
            for place, broker_id in enumerate(BROKERS):
                clients, peers, to_peers, to_zookeeper = (port + place + 3 * row for row in range(4))
                own_settings[broker_id] = {
                    "listeners": f"PLAINTEXT://127.0.0.1:{clients},PEERS://127.0.0.1:{peers}",
                    "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients},PEERS://127.0.0.1:{to_peers}",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT",
                    "inter.broker.listener.name": "PEERS",
                    "zookeeper.connect": f"127.0.0.1:{to_zookeeper}",
                }
        self.stack = Stack(
            data_directory, len(BROKERS), port, broker_settings=settings, own_settings=own_settings
        )
        if self.network is not None:
            for place, broker_id in enumerate(BROKERS):
                name = broker_name(broker_id)
                peers, to_peers, to_zookeeper = (port + place + 3 * row for row in (1, 2, 3))
                self.network.lay(name, to_peers, partial(int, peers))
                self.network.lay(ZOOKEEPER, to_zookeeper, lambda: self.stack.zookeeper_port, caller=name)
        try:
            self.stack.start()
            self._closing.callback(self.stack.stop)
            self._create_quiet_topics()
        except BaseException:
            self._closing.close()
            raise

    def stop(self) -> None:
        self._closing.close()

    @property
    def bootstrap_servers(self) -> str:
        return self.stack.bootstrap_servers

    def _pids(self) -> dict[str, int]:
        pids = {broker["id"]: broker["pid"] for broker in self.stack.state()["brokers"]}
        return {broker_name(broker_id): pid for broker_id, pid in pids.items() if pid is not None}

    def log_tail(self) -> dict[str, str]:
        """For each broker its last words."""
        return {
            f"Broker {broker_id}": "\n".join(self.stack.broker_log_lines(broker_id, LOG_LINES))
            for broker_id in BROKERS
        }

    # --- What it is like ---

    def controller(self) -> int:
        """The broker that all brokers take for the controller."""
        agreed = wait_until(self._agreed_controller, "all brokers know one controller", 30.0)
        assert agreed is not None
        return agreed

    def _agreed_controller(self) -> int | None:
        controllers = set()
        for broker_id in BROKERS:
            with self.connection(broker_id) as connection:
                answer = connection.ask("metadata", 1, topics=[])
            if len(answer.brokers) != len(BROKERS):
                return None
            controllers.add(int(answer.controller_id))
        return controllers.pop() if len(controllers) == 1 and min(controllers) > 0 else None

    def partitions_of(self, topic: str, broker_id: int) -> list[Any]:
        """A topic's partitions as broker `broker_id` knows them: leader_id, replica_nodes, isr_nodes."""
        with self.connection(broker_id) as connection:
            answer = connection.ask("metadata", 1, topics=[{"name": topic}])
        return list(answer.topics[0].partitions)

    def leaders(self, topic: str, broker_id: int) -> set[int]:
        return {int(partition.leader_id) for partition in self.partitions_of(topic, broker_id)}

    def wait_until_whole(self, topic: str, seconds: float = 30.0) -> None:
        """Wait until all of a topic is led, and every replica in sync, in the eyes of every broker."""

        def is_whole() -> bool:
            return all(
                partition.leader_id >= 0 and set(partition.isr_nodes) == set(partition.replica_nodes)
                for broker_id in BROKERS
                for partition in self.partitions_of(topic, broker_id)
            )

        wait_until(is_whole, f"all replicas of {topic} are in sync", seconds, step_seconds=0.1)

    def connection(self, broker_id: int) -> Connection:
        return Connection(f"127.0.0.1:{self.stack.broker_port(broker_id)}")

    def log_path(self, broker_id: int, topic: str, partition: int = 0) -> Path:
        """The first segment of a replica."""
        directory = self.stack.broker_directory(broker_id) / "data" / f"{topic}-{partition}"
        return directory / "00000000000000000000.log"

    # --- Topics ---

    def _create_quiet_topics(self) -> None:
        """Have every broker lead something that nobody writes to, so that all followers are always waiting.

        A fetch that waits for quiet partitions must not keep those waiting that come to it by a failover.
        """
        for leader in BROKERS:
            self.create_topic([leader, *(broker_id for broker_id in BROKERS if broker_id != leader)])

    def create_topic(
        self, replicas: Sequence[int], partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """A new topic, all of whose partitions are on `replicas`, the first of which leads."""
        name = f"topic-{uuid4().hex[:12]}"
        topic = NewTopic(
            name, partitions, replica_assignment=[list(replicas)] * partitions, config=dict(settings or {})
        )
        admin = self._admin()
        admin.create_topics([topic], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)
        return name

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=ANSWER_SECONDS)[name].result(ANSWER_SECONDS)

    def _admin(self) -> Any:
        """A new client. One that lived through a fault may wait for an answer from before, and librdkafka may
        go on with metadata from before for five minutes. To be kept until it has answered: its end ends its
        requests.
        """
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    # --- What can be done to it ---

    def kill(self, broker_id: int) -> None:
        self.stack.kill_broker(broker_id)

    def terminate(self, broker_id: int) -> None:
        """SIGTERM, and wait for the end."""
        self.stack.stop_broker(broker_id)

    def start(self, broker_id: int) -> None:
        """Start, and wait until it serves."""
        self.stack.start_broker(broker_id)

    def pause(self, broker_id: int) -> None:
        os.kill(self.stack.broker_pid(broker_id), signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        os.kill(self.stack.broker_pid(broker_id), signal.SIGCONT)

    def cut_from_zookeeper(self, broker_id: int) -> None:
        self._wires.cut(broker_name(broker_id), ZOOKEEPER)

    def mend_to_zookeeper(self, broker_id: int) -> None:
        self._wires.mend(broker_name(broker_id), ZOOKEEPER)

    def cut_from_peers(self, broker_id: int) -> None:
        for other in set(BROKERS) - {broker_id}:
            self._wires.cut(broker_name(broker_id), broker_name(other))

    def mend_to_peers(self, broker_id: int) -> None:
        for other in set(BROKERS) - {broker_id}:
            self._wires.mend(broker_name(broker_id), broker_name(other))

    def isolate(self, broker_id: int) -> None:
        """Cut a broker from all but its clients."""
        self.cut_from_zookeeper(broker_id)
        self.cut_from_peers(broker_id)

    def end_isolation(self, broker_id: int) -> None:
        self.mend_to_peers(broker_id)
        self.mend_to_zookeeper(broker_id)

    @property
    def _wires(self) -> Network:
        assert self.network is not None, "this cluster has no wires to cut"
        return self.network


def broker_name(broker_id: int) -> str:
    return f"broker {broker_id}"
