"""A broker's metrics for Prometheus: a snapshot of values taken on the event loop, rendered elsewhere.

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
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from mainstem_broker.api.api_table import APIS
from mainstem_broker.api.context import BrokerContext
from mainstem_broker.cluster.replication_status import ReplicationStatus
from mainstem_broker.log.log_manager import LogManager
from mainstem_broker.runtime.turns import in_turns
from mainstem_broker.server.client_software import ClientSoftware
from mainstem_broker.server.health import Health, Phase
from mainstem_broker.server.request_memory import RequestMemory
from mainstem_broker.server.request_times import BUCKET_ENDS_S, RequestTimes

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_PARTITION: Final = ("topic", "partition")


class PartitionNumbers(NamedTuple):
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
    standing: ReplicationStatus
    is_controller: bool
    live_brokers: int
    zookeeper_silence_s: float
    topics: int
    offline_replicas: int
    failed_directories: int
    connections: Mapping[str, int]
    software: Mapping[ClientSoftware, int]
    request_bytes: int
    connections_awaiting_memory: int
    fetch_sessions: int
    fetch_session_partitions: int
    disk_loads: int
    disk_loaded_bytes: int
    isr_shrinks: int
    isr_expansions: int
    flushes: int
    flush_s: float
    producers: int
    """Producer ids that the logs here know."""
    times: tuple[tuple[str, tuple[int, ...], float], ...]
    loop_lag: tuple[tuple[int, ...], float]
    """Bucket counts, sum in seconds."""
    partitions: tuple[PartitionNumbers, ...]


class Metrics:
    """`snapshot` on the event loop, `text` anywhere. `times` is by API key, and filled by the routers."""

    def __init__(
        self,
        broker: BrokerContext,
        health: Health,
        logs: LogManager,
        times: Mapping[int, RequestTimes],
        connections: Callable[[], Mapping[str, int]],
        software: Callable[[], Mapping[ClientSoftware, int]],
        loop_lag: RequestTimes,
        request_memory: RequestMemory | None = None,
    ) -> None:
        self._broker = broker
        self._health = health
        self._logs = logs
        self._times = times
        self._connections = connections
        self._software = software
        self._loop_lag = loop_lag
        self._request_memory = request_memory
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    async def snapshot(self) -> Snapshot:
        """Take the numbers; those of partitions in turns, as there may be ten thousand."""
        broker, memory = self._broker, self._request_memory
        standing = await self._health.standing()
        partitions: list[PartitionNumbers] = []
        producers = 0
        async for partition in in_turns(broker.replicas):
            log = partition.log
            producers += len(log.producers.states)
            partitions.append(
                PartitionNumbers(
                    partition.topic,
                    str(partition.index),
                    partition.is_leader,
                    log.log_start_offset,
                    log.log_end_offset,
                    partition.high_watermark,
                    log.size_bytes,
                    partition.produced_bytes,
                )
            )
        return Snapshot(
            broker_id=broker.broker_id,
            is_ready=not self._health.unready(standing),
            phase=self._health.phase,
            standing=standing,
            is_controller=broker.view.controller_id == broker.broker_id,
            live_brokers=len(broker.view.brokers),
            zookeeper_silence_s=self._health.zookeeper_silence_s(),
            topics=len(broker.view.topics),
            offline_replicas=len(broker.replicas.offline),
            failed_directories=len(self._logs.failed),
            connections=self._connections(),
            software=self._software(),
            request_bytes=0 if memory is None else memory.used_bytes,
            connections_awaiting_memory=0 if memory is None else memory.waiting,
            fetch_sessions=len(broker.consumer_sessions),
            fetch_session_partitions=broker.consumer_sessions.partitions,
            disk_loads=broker.disk.loads,
            disk_loaded_bytes=broker.disk.loaded_bytes,
            isr_shrinks=broker.replicas.isr_shrinks,
            isr_expansions=broker.replicas.isr_expansions,
            flushes=broker.replicas.flusher.flushes,
            flush_s=broker.replicas.flusher.flush_s,
            producers=producers,
            times=tuple(
                (APIS[key].name, tuple(times.buckets), times.sum_s) for key, times in self._times.items()
            ),
            loop_lag=(tuple(self._loop_lag.buckets), self._loop_lag.sum_s),
            partitions=tuple(partitions),
        )

    def text(self, snapshot: Snapshot) -> bytes:
        """In Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(SnapshotCollector(snapshot))
        return generate_latest(registry) + generate_latest(self._process)


class SnapshotCollector:
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
        phases = GaugeMetricFamily(
            "mainstem_broker_phase", "1 for the phase that the broker is in.", labels=["phase"]
        )
        for phase in Phase:
            phases.add_metric([phase], phase is now.phase)
        yield phases
        for name, help_text, value in (
            ("broker_ready", "1 if clients may be sent here.", now.is_ready),
            ("controller_active", "1 on the broker that is the controller.", now.is_controller),
            ("cluster_live_brokers", "Brokers registered, as this one knows.", now.live_brokers),
            (
                "broker_zookeeper_silence_seconds",
                "Since ZooKeeper last answered this broker.",
                now.zookeeper_silence_s,
            ),
            ("cluster_topics", "Topics, as this broker knows.", now.topics),
            ("cluster_offline_partitions", "Partitions without a leader.", standing.offline),
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
            (
                "request_memory_bytes",
                "Requests in memory, where queued.max.request.bytes limits them.",
                now.request_bytes,
            ),
            (
                "connections_awaiting_memory",
                "Connections that are not read from, as queued.max.request.bytes is reached.",
                now.connections_awaiting_memory,
            ),
            ("fetch_sessions", "Fetch sessions of consumers (KIP-227).", now.fetch_sessions),
            ("fetch_session_partitions", "Partitions in these sessions.", now.fetch_session_partitions),
            (
                "broker_producers",
                "Producer ids that the logs here know; one counts in each of its partitions.",
                now.producers,
            ),
            ("broker_offline_replicas", "Replicas here whose disk failed.", now.offline_replicas),
            ("broker_failed_log_directories", "Data directories that failed.", now.failed_directories),
        ):
            yield GaugeMetricFamily(f"mainstem_{name}", help_text, value=value)
        for name, help_text, value in (
            ("disk_loads", "Reads that had to wait for the disk, since the start.", now.disk_loads),
            ("disk_loaded_bytes", "What they have read, in bytes.", now.disk_loaded_bytes),
            (
                "isr_shrinks",
                "In-sync sets from which this broker, as leader, took slow followers.",
                now.isr_shrinks,
            ),
            (
                "isr_expansions",
                "In-sync sets into which this broker, as leader, took followers.",
                now.isr_expansions,
            ),
        ):
            yield CounterMetricFamily(f"mainstem_{name}", help_text, value=value)
        yield SummaryMetricFamily(
            "mainstem_flush_duration_seconds",
            "Flushes of logs by `flush.messages` and `flush.ms`, and after a segment was sealed.",
            count_value=now.flushes,
            sum_value=now.flush_s,
        )

    def _requests(self) -> Iterator[Metric]:
        connections = GaugeMetricFamily("mainstem_connections", "Open connections.", labels=["listener"])
        for listener, count in self._snapshot.connections.items():
            connections.add_metric([listener], count)
        yield connections
        clients = GaugeMetricFamily(
            "mainstem_client_connections",
            "Open connections by the software that clients say they are (KIP-511).",
            labels=["software", "version"],
        )
        for software, count in self._snapshot.software.items():
            clients.add_metric(list(software), count)
        yield clients
        durations = HistogramMetricFamily(
            "mainstem_request_duration_seconds",
            "From the whole request to its answer, with the time it waits for data or replicas.",
            labels=["api"],
        )
        for api, buckets, sum_s in self._snapshot.times:
            durations.add_metric([api], _cumulative(buckets), sum_s)
        yield durations
        buckets, sum_s = self._snapshot.loop_lag
        lag = HistogramMetricFamily(
            "mainstem_loop_lag_seconds",
            "How late the event loop ran what was due: all clients waited as long.",
        )
        lag.add_metric([], _cumulative(buckets), sum_s)
        yield lag

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


def _cumulative(buckets: tuple[int, ...]) -> list[tuple[str, int]]:
    """Prometheus' buckets, each of which counts what the ones before it count."""
    ends = [str(end) for end in BUCKET_ENDS_S] + ["+Inf"]
    return list(zip(ends, accumulate(buckets), strict=True))
