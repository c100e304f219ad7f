"""The reference of metrics, from the collectors: of a broker (an example), the operator and a registry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from mainstem_broker.cluster.replication_status import ReplicationStatus
from mainstem_broker.server.client_software import ClientSoftware
from mainstem_broker.server.health import Phase
from mainstem_broker.server.metrics import PartitionNumbers, Snapshot, SnapshotCollector
from mainstem_broker.server.request_times import BUCKET_ENDS_S
from mainstem_operator.runtime.metrics import Metrics as OperatorMetrics
from mainstem_registry.metrics import Metrics as RegistryMetrics
from scripts.documentation.markdown import code, escaped, table, with_facts

_INTRODUCTION: Final = """# Metrics

Brokers serve metrics for Prometheus at `/metrics` on `http.port` (9404 on Kubernetes); the operator and the
schema registry serve their own at `/metrics`. Names carry their unit. Brokers and the operator also serve the
usual metrics of a Python process (`process_*`, and on brokers `python_*`).
"""
_EXAMPLE: Final = Snapshot(
    broker_id=1,
    is_ready=True,
    phase=next(iter(Phase)),
    standing=ReplicationStatus(0, 0, 0, 0, 0, 0, 0, 0, ()),
    is_controller=True,
    live_brokers=1,
    zookeeper_silence_s=0.0,
    topics=1,
    offline_replicas=0,
    failed_directories=0,
    connections={"PLAINTEXT": 1},
    software={ClientSoftware("librdkafka", "2.11.0"): 1},
    request_bytes=0,
    connections_awaiting_memory=0,
    fetch_sessions=0,
    fetch_session_partitions=0,
    disk_loads=0,
    disk_loaded_bytes=0,
    isr_shrinks=0,
    isr_expansions=0,
    flushes=0,
    flush_s=0.0,
    producers=0,
    times=(("Fetch", (0,) * (len(BUCKET_ENDS_S) + 1), 0.0),),
    loop_lag=((0,) * (len(BUCKET_ENDS_S) + 1), 0.0),
    partitions=(PartitionNumbers("clicks", "0", True, 0, 0, 0, 0, 0),),
)
"""A broker with one of each, so that every metric has its labels."""


def page() -> str:
    return "\n".join(
        [
            _INTRODUCTION,
            "## Brokers\n",
            _table((family, _labels(family)) for family in SnapshotCollector(_EXAMPLE).collect()),
            "## Operator\n",
            _table(_of(OperatorMetrics())),
            "## Schema registry\n",
            _table(_of(RegistryMetrics())),
        ]
    )


def _of(metrics: object) -> Iterator[tuple[Metric, set[str]]]:
    """A metric that has counted nothing has no samples, so labels are read from the metric itself."""
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            labels = set(metric._labelnames)  # noqa: SLF001  # the library shows them nowhere else
            yield from ((family, labels) for family in metric.describe())


def _labels(family: Metric) -> set[str]:
    return {name for sample in family.samples for name in sample.labels} - {"le"}


def _table(families: Iterable[tuple[Metric, set[str]]]) -> str:
    rows = []
    for one, names in families:
        labels = "labels " + ", ".join(code(name) for name in sorted(names)) if names else ""
        rows.append((code(_name(one)), with_facts(escaped(one.documentation), (one.type, labels))))
    return table(("metric", "meaning"), sorted(rows))


def _name(family: Metric) -> str:
    """As Prometheus shows it: counters end in `_total`."""
    return f"{family.name}_total" if family.type == "counter" else family.name
