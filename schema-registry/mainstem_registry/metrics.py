"""The registry's metrics, in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from mainstem_registry.registry import Registry


class Metrics:
    """Counts requests as they end; the rest is read at each scrape."""

    def __init__(self) -> None:
        self._collector = CollectorRegistry()
        self._requests = Counter(
            "mainstem_registry_requests",
            "HTTP requests by route and status",
            ("method", "route", "status"),
            registry=self._collector,
        )
        self._durations = Histogram(
            "mainstem_registry_request_duration_seconds",
            "Time from a request to its answer",
            ("method", "route"),
            registry=self._collector,
        )
        self._is_leader = self._gauge("mainstem_registry_is_leader", "1 on the instance that leads")
        self._is_loaded = self._gauge("mainstem_registry_is_loaded", "1 when the topic has been read")
        self._subjects = self._gauge("mainstem_registry_subjects", "Subjects, soft-deleted ones included")
        self._highest_id = self._gauge("mainstem_registry_highest_id", "The highest schema id ever used")
        self._offset = self._gauge("mainstem_registry_next_offset", "Offset of the next record to be applied")

    def _gauge(self, name: str, description: str) -> Gauge:
        return Gauge(name, description, registry=self._collector)

    def count_request(self, method: str, route: str, status: int, duration_s: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(method, route).observe(duration_s)

    def text(self, registry: Registry) -> tuple[str, bytes]:
        """The content type and the metrics."""
        self._is_leader.set(registry.election.is_leader)
        self._is_loaded.set(registry.store.loaded.is_set())
        self._subjects.set(len(registry.store.state.subjects()))
        self._highest_id.set(registry.store.state.highest_id)
        self._offset.set(registry.store.next_offset)
        return CONTENT_TYPE_LATEST, generate_latest(self._collector)
