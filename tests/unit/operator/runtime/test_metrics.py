"""Metrics of what is gone are gone too (R25)."""

from __future__ import annotations

import datetime as dt
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
        metrics.set_certificate_expiry("prod", name, dt.datetime(2026, 11, 21, tzinfo=dt.UTC))
    metrics.forget("prod", "events")
    metrics.forget("prod", "never-seen")
    text = generate_latest(metrics.registry).decode()
    assert 'cluster="events"' not in text
    assert text.count('cluster="others"') == len(get_args(Kind)) + 3


def test_a_cluster_that_is_not_secured_any_more_has_no_certificate_that_ends() -> None:
    metrics = Metrics()
    for expiry in (dt.datetime(2026, 11, 21, tzinfo=dt.UTC), None, None):
        metrics.set_certificate_expiry("prod", "events", expiry)
    assert 'cluster="events"' not in generate_latest(metrics.registry).decode()
