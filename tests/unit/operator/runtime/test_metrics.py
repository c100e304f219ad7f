"""Metrics of what is gone are gone too (R25)."""

from __future__ import annotations

from prometheus_client import generate_latest

from mainstem_operator.runtime.metrics import Metrics


def test_the_gauges_of_a_deleted_cluster_are_not_reported_any_more() -> None:
    metrics = Metrics()
    for name in ("events", "others"):
        metrics.last_success.labels("cluster", "prod", name).set(7)
        metrics.stuck.labels("prod", name).set(1)
    metrics.forget("prod", "events")
    metrics.forget("prod", "never-seen")
    text = generate_latest(metrics.registry).decode()
    assert 'cluster="events"' not in text
    assert text.count('cluster="others"') == 2
