"""The operator's own metrics, in Prometheus' words; units are in the names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """One set per operator; tests have many."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "mainstem_operator_kubernetes_requests_total",
            "Requests to the API server, besides the watches.",
            ["method", "status"],
            registry=self.registry,
        )
        self.reconciles = Counter(
            "mainstem_operator_reconcile_total",
            "Looks at Clusters, and at their Topics and ConsumerGroups.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.duration = Histogram(
            "mainstem_operator_reconcile_duration_seconds",
            "How long a look took.",
            ["kind"],
            registry=self.registry,
        )
        self.queue = Gauge(
            "mainstem_operator_queue_length", "Keys that are to be looked at.", registry=self.registry
        )
        self.last_success = Gauge(
            "mainstem_operator_last_success_timestamp_seconds",
            "When a look last ended well.",
            ["kind", "namespace", "cluster"],
            registry=self.registry,
        )
        self.steps = Counter(
            "mainstem_operator_steps_total",
            "Acts that can't be taken back.",
            ["step"],
            registry=self.registry,
        )
        self.stuck = Gauge(
            "mainstem_operator_progress_stuck",
            "1 while a Cluster has made no progress for rolling.stuckAfterSeconds.",
            ["namespace", "cluster"],
            registry=self.registry,
        )
        self.leading = Gauge(
            "mainstem_operator_leading", "1 in the replica that acts.", registry=self.registry
        )
