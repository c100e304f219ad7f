"""What Prometheus is told of a broker: a snapshot of values taken on the event loop, rendered elsewhere.

Nothing here is on the path of a request: owners count in plain integers, and this reads them. Names carry
their unit, as Prometheus' naming guide asks; sizes are bytes, times seconds. Message rates come from
`mainstem_log_end_offset`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from mainstem_broker.api.context import BrokerContext
from mainstem_broker.api.table import APIS
from mainstem_broker.cluster.standing import Standing
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.request_times import BUCKET_ENDS_S, RequestTimes

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_PARTITION: Final = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class PartitionNumbers:
    """Of one replica here."""

    topic: str
    partition: str
    is_leader: bool
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    size_bytes: int
    produced_bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A broker's numbers at one moment. `times` are (API's name, bucket counts, sum in seconds)."""

    broker_id: int
    is_ready: bool
    phase: Phase
    standing: Standing
    is_controller: bool
    live_brokers: int
    topics: int
    offline_replicas: int
    failed_directories: int
    connections: Mapping[str, int]
    times: tuple[tuple[str, tuple[int, ...], float], ...]
    partitions: tuple[PartitionNumbers, ...]


class Metrics:
    """`snapshot` on the event loop, `text` anywhere. `times` is by API key, and told by the routers."""

    def __init__(
        self,
        broker: BrokerContext,
        health: Health,
        logs: LogManager,
        times: Mapping[int, RequestTimes],
        connections: Callable[[], Mapping[str, int]],
    ) -> None:
        self._broker = broker
        self._health = health
        self._logs = logs
        self._times = times
        self._connections = connections
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    def snapshot(self) -> Snapshot:
        broker = self._broker
        standing = self._health.standing()
        return Snapshot(
            broker_id=broker.broker_id,
            is_ready=not self._health.unready(standing),
            phase=self._health.phase,
            standing=standing,
            is_controller=broker.view.controller_id == broker.broker_id,
            live_brokers=len(broker.view.brokers),
            topics=len(broker.view.topics),
            offline_replicas=len(broker.replicas.offline),
            failed_directories=len(self._logs.failed),
            connections=self._connections(),
            times=tuple(
                (APIS[key].name, tuple(times.buckets), times.sum_s) for key, times in self._times.items()
            ),
            partitions=tuple(
                PartitionNumbers(
                    partition.topic,
                    str(partition.index),
                    partition.is_leader,
                    partition.log.log_start_offset,
                    partition.log.log_end_offset,
                    partition.high_watermark,
                    partition.log.size_bytes,
                    partition.produced_bytes,
                )
                for partition in broker.replicas
            ),
        )

    def text(self, snapshot: Snapshot) -> bytes:
        """In Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Families(snapshot))
        return generate_latest(registry) + generate_latest(self._process)


class _Families:
    """A collector, as prometheus_client calls it, over one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._requests()
        yield from self._logs()

    def _broker(self) -> Iterator[Metric]:
        now, standing = self._snapshot, self._snapshot.standing
        yield InfoMetricFamily(
            "mainstem_build", "Version of the broker.", value={"version": version("mainstem")}
        )
        phases = GaugeMetricFamily("mainstem_broker_phase", "1 for the phase of its life.", labels=["phase"])
        for phase in Phase:
            phases.add_metric([phase], phase is now.phase)
        yield phases
        for name, help_text, value in (
            ("broker_ready", "1 if clients may be sent here.", now.is_ready),
            ("controller_active", "1 on the broker that is the controller.", now.is_controller),
            ("cluster_live_brokers", "Brokers registered, as this one knows.", now.live_brokers),
            ("cluster_topics", "Topics, as this broker knows.", now.topics),
            ("cluster_offline_partitions", "Partitions that nobody leads.", standing.offline),
            (
                "cluster_under_replicated_partitions",
                "Partitions with fewer in-sync replicas than replicas.",
                standing.under_replicated,
            ),
            (
                "cluster_under_min_isr_partitions",
                "Partitions that refuse acks=all.",
                standing.under_min_isr,
            ),
            ("broker_replicas", "Replicas assigned to this broker.", standing.replicas),
            ("broker_leaders", "Partitions that this broker leads.", standing.leaders),
            ("broker_catching_up_replicas", "Replicas here that are not in sync.", standing.catching_up),
            (
                "broker_led_under_replicated_partitions",
                "Partitions led here with fewer in-sync replicas than replicas.",
                standing.led_under_replicated,
            ),
            (
                "broker_stop_blocked_partitions",
                "Partitions that would lose availability if this broker stopped.",
                standing.blocked,
            ),
            ("broker_offline_replicas", "Replicas here whose disk failed.", now.offline_replicas),
            ("broker_failed_log_directories", "Data directories that failed.", now.failed_directories),
        ):
            yield GaugeMetricFamily(f"mainstem_{name}", help_text, value=value)

    def _requests(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("mainstem_connections", "Open connections.", labels=["listener"])
        for listener, count in self._snapshot.connections.items():
            connections.add_metric([listener], count)
        yield connections
        durations = HistogramMetricFamily(
            "mainstem_request_duration_seconds",
            "From the whole request to its answer, with the time it waits for data or replicas.",
            labels=["api"],
        )
        ends = [str(end) for end in BUCKET_ENDS_S] + ["+Inf"]
        for api, buckets, sum_s in self._snapshot.times:
            durations.add_metric([api], list(zip(ends, accumulate(buckets), strict=True)), sum_s)
        yield durations

    def _logs(self) -> Iterator[Metric]:
        produced: Counter[str] = Counter()
        start = GaugeMetricFamily("mainstem_log_start_offset", "First offset.", labels=_PARTITION)
        end = GaugeMetricFamily("mainstem_log_end_offset", "Offset of the next record.", labels=_PARTITION)
        mark = GaugeMetricFamily("mainstem_high_watermark", "What consumers read up to.", labels=_PARTITION)
        size = GaugeMetricFamily("mainstem_log_size_bytes", "Size of the segments.", labels=_PARTITION)
        leader = GaugeMetricFamily("mainstem_partition_leader", "1 where it is led.", labels=_PARTITION)
        for one in self._snapshot.partitions:
            labels = (one.topic, one.partition)
            produced[one.topic] += one.produced_bytes
            start.add_metric(labels, one.log_start_offset)
            end.add_metric(labels, one.log_end_offset)
            mark.add_metric(labels, one.high_watermark)
            size.add_metric(labels, one.size_bytes)
            leader.add_metric(labels, one.is_leader)
        yield from (start, end, mark, size, leader)
        bytes_in = CounterMetricFamily(
            "mainstem_produced_bytes", "Batches that clients appended here.", labels=["topic"]
        )
        for topic, count in produced.items():
            bytes_in.add_metric([topic], count)
        yield bytes_in
