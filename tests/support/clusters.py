"""Running clusters for tests: ours, and Apache Kafka in its place to check the tests themselves.

A test that fails against Apache Kafka too (`pytest --reference`) asks for something that no client
expects. What a test needs of a cluster is `Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bench.apache_kafka import ApacheKafka, fetch

from mainstem.local.stack import Stack

LOG_LINES: Final = 12


class ReachableCluster(Protocol):
    """A coordinator and brokers, on loopback, as clients and readers of their files meet them."""

    @property
    def data_directory(self) -> Path: ...

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def brokers(self) -> dict[int, str]:
        """Broker id to `host:port`, also of those that are down."""
        ...

    def broker_pid(self, broker_id: int) -> int: ...

    def log_tail(self) -> dict[str, str]:
        """For each process its last words: `{"Broker 1": …}`."""
        ...


class Cluster(ReachableCluster, Protocol):
    """A cluster of one test, which may break it; everything ends with `stop`."""

    def stop(self) -> None: ...

    def stop_broker(self, broker_id: int) -> None:
        """SIGTERM, and wait for the end."""
        ...

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL, and wait for the end."""
        ...

    def start_broker(self, broker_id: int) -> None:
        """Start, and wait until it serves."""
        ...


class StartCluster(Protocol):
    """What the fixture `own_stack` is."""

    def __call__(self, brokers: int = 1, settings: Mapping[str, str] | None = None) -> Cluster: ...


SETTINGS: Final = {"log.retention.check.interval.ms": str(24 * 60 * 60 * 1000)}
"""Messages of tests carry fixed times, which retention would delete after the seven days of the default."""


class RunCluster(Protocol):
    """What the fixture `run_cluster` is."""

    def __call__(
        self, brokers: int = 1, settings: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Cluster]: ...


class MainstemCluster:
    """The local stack of `mainstem up`."""

    def __init__(
        self, data_directory: Path, brokers: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self.data_directory = data_directory
        self._stack = Stack(data_directory, brokers, port=0, broker_settings={**SETTINGS, **(settings or {})})
        self._stack.start()

    @property
    def bootstrap_servers(self) -> str:
        return self._stack.bootstrap_servers

    @property
    def brokers(self) -> dict[int, str]:
        return {
            broker_id: f"127.0.0.1:{self._stack.broker_port(broker_id)}"
            for broker_id in self._stack.broker_ids
        }

    def stop(self) -> None:
        self._stack.stop()

    def broker_pid(self, broker_id: int) -> int:
        return self._stack.broker_pid(broker_id)

    def stop_broker(self, broker_id: int) -> None:
        self._stack.stop_broker(broker_id)

    def kill_broker(self, broker_id: int) -> None:
        self._stack.kill_broker(broker_id)

    def start_broker(self, broker_id: int) -> None:
        self._stack.start_broker(broker_id)

    @property
    def zookeeper_port(self) -> int:
        return self._stack.zookeeper_port

    def stop_zookeeper(self, *, kill: bool) -> None:
        """SIGTERM or SIGKILL, and wait for the end."""
        if kill:
            self._stack.kill_zookeeper()
        else:
            self._stack.stop_zookeeper()

    def start_zookeeper(self) -> None:
        """Start it on the port it had, and wait until it serves."""
        self._stack.start_zookeeper()

    def log_tail(self) -> dict[str, str]:
        return {
            f"Broker {broker_id}": "\n".join(self._stack.broker_log_lines(broker_id, LOG_LINES))
            for broker_id in self._stack.broker_ids
        }


class ReferenceCluster:
    """Apache Kafka; one broker, however many are requested."""

    def __init__(
        self, data_directory: Path, brokers: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        self.data_directory = data_directory
        self._kafka = ApacheKafka(data_directory, fetch(), {**SETTINGS, **(settings or {})})
        self._kafka.start()

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.bootstrap_servers

    @property
    def brokers(self) -> dict[int, str]:
        return {1: self._kafka.bootstrap_servers}

    def stop(self) -> None:
        self._kafka.stop()

    def broker_pid(self, broker_id: int) -> int:
        return self._kafka.broker_pid

    def stop_broker(self, broker_id: int) -> None:
        self._kafka.stop()

    def kill_broker(self, broker_id: int) -> None:
        self._kafka.kill()

    def start_broker(self, broker_id: int) -> None:
        self._kafka.start()

    def log_tail(self) -> dict[str, str]:
        output = (self.data_directory / "output").read_text(errors="replace")
        return {"Apache Kafka": "\n".join(output.splitlines()[-LOG_LINES:])}


@dataclass(frozen=True, slots=True)
class SharedCluster:
    """A cluster that many tests use one after the other: all they can do to it is to reach it.

    A test that stops a broker, or changes a setting of brokers, asks for `own_stack`.
    """

    _cluster: Cluster

    @property
    def data_directory(self) -> Path:
        """To be read."""
        return self._cluster.data_directory

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    @property
    def brokers(self) -> dict[int, str]:
        return self._cluster.brokers

    def broker_pid(self, broker_id: int) -> int:
        return self._cluster.broker_pid(broker_id)

    def log_tail(self) -> dict[str, str]:
        return self._cluster.log_tail()

    @property
    def is_reference(self) -> bool:
        """Whether it is Apache Kafka."""
        return isinstance(self._cluster, ReferenceCluster)

    @property
    def zookeeper_port(self) -> int:
        """Where the coordinator listens, which Apache Kafka 4 has none of."""
        assert isinstance(self._cluster, MainstemCluster)
        return self._cluster.zookeeper_port


def is_reference(cluster: ReachableCluster) -> bool:
    """Whether a cluster is Apache Kafka."""
    return (
        cluster.is_reference if isinstance(cluster, SharedCluster) else isinstance(cluster, ReferenceCluster)
    )


def partition_directory(cluster: ReachableCluster, topic: str, partition: int = 0) -> Path:
    """Where the cluster's one replica of a partition lies.

    Raises:
        AssertionError: there is none, or more than one.
    """
    results = [path for path in cluster.data_directory.rglob(f"{topic}-{partition}") if path.is_dir()]
    assert len(results) == 1, f"{topic}-{partition} lies in {results}"
    return results[0]
