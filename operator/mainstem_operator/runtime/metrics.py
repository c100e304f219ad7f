"""The operator's own metrics, in Prometheus' words; units are in the names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from mainstem_operator.runtime.work_queue import Kind


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
            "Reconciliations of BrokerClusters with their Topics and ConsumerGroups.",
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
            "mainstem_operator_queue_length", "Resources waiting for reconciliation.", registry=self.registry
        )
        self.last_success = Gauge(
            "mainstem_operator_last_success_timestamp_seconds",
            "When a look last ended well.",
            ["kind", "namespace", "cluster"],
            registry=self.registry,
        )
        self.steps = Counter(
            "mainstem_operator_steps_total",
            "Irreversible actions.",
            ["step"],
            registry=self.registry,
        )
        self.stuck = Gauge(
            "mainstem_operator_progress_stuck",
            "1 while a BrokerCluster has made no progress for rolling.stuckAfterSeconds.",
            ["namespace", "cluster"],
            registry=self.registry,
        )
        self.brokers_ready = Gauge(
            "mainstem_operator_brokers_ready",
            "Brokers of a BrokerCluster that are ready.",
            ["namespace", "cluster"],
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "mainstem_certificate_expiry_timestamp_seconds",
            "When the first certificate that the operator has issued to brokers or itself ends.",
            ["namespace", "cluster"],
            registry=self.registry,
        )
        self.loaded_up_to = Gauge(
            "mainstem_topic_loaded_up_to_timestamp_seconds",
            "The time up to which all records of a Topic are in its table.",
            ["namespace", "cluster", "topic"],
            registry=self.registry,
        )
        self.freshness_limit = Gauge(
            "mainstem_topic_freshness_limit_seconds",
            "How old a record of a Topic may be that is not in its table.",
            ["namespace", "cluster", "topic"],
            registry=self.registry,
        )
        self.rejecting = Gauge(
            "mainstem_topic_records_rejected",
            "1 while the last load of a Topic that read records rejected more than maxRejectedPercent.",
            ["namespace", "cluster", "topic"],
            registry=self.registry,
        )
        self._loaded: dict[tuple[str, str], set[str]] = {}
        self._fresh: dict[tuple[str, str], set[str]] = {}
        self.leading = Gauge(
            "mainstem_operator_leading", "1 in the replica that acts.", registry=self.registry
        )

    def set_certificate_expiry(self, namespace: str, cluster: str, expiry: dt.datetime | None) -> None:
        """When the first certificate of a BrokerCluster ends; None if it has none."""
        if expiry is None:
            _remove(self.certificate_expiry, namespace, cluster)
        else:
            self.certificate_expiry.labels(namespace, cluster).set(expiry.timestamp())

    def set_freshness(
        self,
        namespace: str,
        cluster: str,
        up_to_and_limit: Mapping[str, tuple[float, int]],
        unknown: Collection[str] = (),
    ) -> None:
        """Up to which time, in seconds since 1970, the Topics of a BrokerCluster are loaded, and how old that
        may be. Those of `unknown` Topics stay as they are; others of it have no such gauges any more.
        """
        kept = self._fresh.get((namespace, cluster), set()).intersection(unknown)
        for topic in self._fresh.get((namespace, cluster), set()) - up_to_and_limit.keys() - kept:
            _remove(self.loaded_up_to, namespace, cluster, topic)
            _remove(self.freshness_limit, namespace, cluster, topic)
        for topic, (up_to_s, limit_s) in up_to_and_limit.items():
            self.loaded_up_to.labels(namespace, cluster, topic).set(up_to_s)
            self.freshness_limit.labels(namespace, cluster, topic).set(limit_s)
        _keep(self._fresh, (namespace, cluster), {*up_to_and_limit, *kept})

    def set_rejecting(
        self,
        namespace: str,
        cluster: str,
        is_rejecting: Mapping[str, bool],
        unknown: Collection[str] = (),
    ) -> None:
        """Whether loads of the Topics of a BrokerCluster reject too many records. The gauges of `unknown`
        Topics stay as they are; others of it have no such gauge any more.
        """
        kept = self._loaded.get((namespace, cluster), set()).intersection(unknown)
        for topic in self._loaded.get((namespace, cluster), set()) - is_rejecting.keys() - kept:
            _remove(self.rejecting, namespace, cluster, topic)
        for topic, holds in is_rejecting.items():
            self.rejecting.labels(namespace, cluster, topic).set(holds)
        _keep(self._loaded, (namespace, cluster), {*is_rejecting, *kept})

    def forget(self, namespace: str, cluster: str) -> None:
        """Remove the gauges of a BrokerCluster that is gone: their last values would be reported for ever."""
        for kind in get_args(Kind):
            _remove(self.last_success, kind, namespace, cluster)
        _remove(self.stuck, namespace, cluster)
        _remove(self.brokers_ready, namespace, cluster)
        _remove(self.certificate_expiry, namespace, cluster)
        self.set_freshness(namespace, cluster, {})
        self.set_rejecting(namespace, cluster, {})


def _keep(topics: dict[tuple[str, str], set[str]], cluster: tuple[str, str], now: set[str]) -> None:
    """Remember which Topics of a BrokerCluster have gauges; of one that has none, nothing."""
    topics.pop(cluster, None)
    if now:
        topics[cluster] = now


def _remove(gauge: Gauge, *labels: str) -> None:
    try:
        gauge.remove(*labels)
    except KeyError:  # it was never set
        pass
