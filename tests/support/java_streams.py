"""A Kafka Streams application with `processing.guarantee=exactly_once_v2`, driven from Python over py4j.

Its topology has no function of its own, so nothing has to be compiled: orders are copied to
`enriched-orders`, and counted by key, past a repartition topic and in a state store with a changelog, to
`order-counts`.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

from py4j.java_gateway import GatewayParameters, JavaGateway
from tests.support.jvm import launch_jvm
from tests.support.kafka_tools import jars_of
from tests.support.orders import ENRICHED, ORDERS

HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent / ".cache" / "kafka-streams"
APPLICATION_ID: Final = "enricher"
COUNTS: Final = "order-counts"


@cache
def streams_jars() -> Path:
    """The folder of jars."""
    return jars_of(HERE / "kafka_streams_pom.xml", CACHE)


class StreamsApplication:
    """One instance in a JVM of its own; what that logs is in `directory`/output."""

    def __init__(self, bootstrap_servers: str, directory: Path) -> None:
        self._servers = bootstrap_servers
        self._directory = directory
        self._streams: Any = None
        self._jvm: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the JVM and the application, which joins its group meanwhile."""
        self._directory.mkdir(exist_ok=True)
        with (self._directory / "output").open("ab") as output:
            port, self._jvm = launch_jvm(str(streams_jars()), output)
        # The few objects that Python holds are not released one by one: their JVM may have been killed.
        parameters = GatewayParameters(port=port, auto_convert=True, enable_memory_management=False)
        gateway = JavaGateway(gateway_parameters=parameters)
        kafka = gateway.jvm.org.apache.kafka
        properties = gateway.jvm.java.util.Properties()
        for name, value in self._properties().items():
            properties.setProperty(name, value)
        self._streams = kafka.streams.KafkaStreams(_topology(kafka), properties)
        self._streams.start()

    def _properties(self) -> dict[str, str]:
        serde = "org.apache.kafka.common.serialization.Serdes$StringSerde"
        return {
            "application.id": APPLICATION_ID,
            "bootstrap.servers": self._servers,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(self._directory / "state"),
            "replication.factor": "3",
            "num.stream.threads": "2",
            "default.key.serde": serde,
            "default.value.serde": serde,
            "auto.offset.reset": "earliest",
            # Every count is written, not only the last of each commit.
            "statestore.cache.max.bytes": "0",
            # An instance that was killed is missed after this time.
            "consumer.session.timeout.ms": "6000",
            "consumer.heartbeat.interval.ms": "1000",
        }

    @property
    def state(self) -> str:
        """Its own word: CREATED, REBALANCING, RUNNING, ERROR and so on."""
        return str(self._streams.state().toString())

    def log(self) -> str:
        return (self._directory / "output").read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm.wait()
            self._jvm = None


def _topology(kafka: Any) -> Any:
    builder = kafka.streams.StreamsBuilder()
    orders = builder.stream(ORDERS)
    orders.to(ENRICHED)
    serdes = kafka.common.serialization.Serdes
    # Two methods have names that are words of Python.
    materialized = getattr(kafka.streams.kstream.Materialized, "as")("counts")
    produced = getattr(kafka.streams.kstream.Produced, "with")(serdes.String(), serdes.Long())
    orders.repartition().groupByKey().count(materialized).toStream().to(COUNTS, produced)
    return builder.build()
