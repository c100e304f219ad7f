"""Three hundred Topics at once, and what the operator does when nothing is left to do (R25)."""

from __future__ import annotations

import re
import time
from typing import Final

from tests.e2e.installation import OPERATOR, RESYNC_SECONDS, Installation, wait_until
from tests.e2e.kubectl import apply, kubectl

TOPICS: Final = 300
READY_SECONDS_MAX: Final = 120.0
LABEL: Final = "mainstem.dev/e2e=many"


def test_e19_three_hundred_topics_are_ready_in_two_minutes_and_then_nothing_is_written(
    mainstem: Installation,
) -> None:
    key, value = LABEL.split("=")
    manifests = [
        {
            "apiVersion": "mainstem.dev/v1beta1",
            "kind": "Topic",
            "metadata": {"name": f"many-{number}", "labels": {key: value}},
            "spec": {"clusterRef": {"name": "events"}, "partitions": 1, "deletionPolicy": "Delete"},
        }
        for number in range(TOPICS)
    ]
    try:
        began = time.monotonic()
        apply(*manifests, namespace=mainstem.namespace.name)
        applied = time.monotonic()
        wait_until(lambda: ready(mainstem) == TOPICS, f"{TOPICS} Topics are ready", READY_SECONDS_MAX)
        took = time.monotonic() - began
        print(f"{TOPICS} Topics: applied in {applied - began:.0f} s, ready after {took:.0f} s")  # noqa: T201
        mainstem.settled()
        before, cpu = versions(mainstem), cpu_seconds(mainstem)
        time.sleep(2 * RESYNC_SECONDS)  # what is to be seen is that nothing happens
        assert versions(mainstem) == before
        used = (cpu_seconds(mainstem) - cpu) / (2 * RESYNC_SECONDS)
        print(f"idle: no write in two looks at everything, {used:.3f} CPU")  # noqa: T201
    finally:
        mainstem.namespace.kubectl(
            "delete", "topics.mainstem.dev", f"--selector={LABEL}", "--timeout=120s", timeout_seconds=150
        )


def ready(mainstem: Installation) -> int:
    path = '--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    return mainstem.namespace.kubectl("get", "topics.mainstem.dev", f"--selector={LABEL}", path).count("True")


def versions(mainstem: Installation) -> str:
    """The resource version of every object that the operator writes."""
    kinds = "topics.mainstem.dev,clusters.mainstem.dev,statefulsets,services,configmaps,poddisruptionbudgets"
    return mainstem.namespace.kubectl(
        "get", kinds, "--output=jsonpath={range .items[*]}{.metadata.name}={.metadata.resourceVersion} {end}"
    )


def cpu_seconds(mainstem: Installation) -> float:
    """What the operator's process has used so far, by its own metrics."""
    pod = next(iter(mainstem.pods(OPERATOR)))
    path = f"/api/v1/namespaces/{mainstem.namespace.name}/pods/{pod}:8080/proxy/metrics"
    found = re.search(r"^process_cpu_seconds_total (\S+)$", kubectl("get", "--raw", path), re.MULTILINE)
    return float(found[1]) if found else float("nan")
