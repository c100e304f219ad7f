"""Metrics of what is gone are gone too (R25)."""

from __future__ import annotations

from typing import get_args

from prometheus_client import generate_latest

from mainstem_operator.runtime.metrics import Metrics
from mainstem_operator.runtime.work_queue import Kind


def test_the_gauges_of_a_deleted_cluster_are_not_reported_any_more() -> None:
    metrics = Metrics()
    for name in ("events", "others"):
        for kind in get_args(Kind):
            metrics.last_success.labels(kind, "prod", name).set(7)
        metrics.stuck.labels("prod", name).set(1)
        metrics.brokers_ready.labels("prod", name).set(3)
    metrics.forget("prod", "events")
    metrics.forget("prod", "never-seen")
    text = generate_latest(metrics.registry).decode()
    assert 'cluster="events"' not in text
    assert text.count('cluster="others"') == len(get_args(Kind)) + 2
