"""More brokers and fewer, while records flow (R25)."""

from __future__ import annotations

from typing import Final

import pytest
from confluent_kafka.admin import ConfigResource, ConfigSource
from tests.e2e.installation import CLUSTER, OPERATOR, Installation, wait_until
from tests.e2e.traffic import Traffic

NEW: Final = 3
"""The broker that comes and goes."""
LIMIT: Final = 50_000_000


@pytest.mark.long
def test_e30_e31_a_fourth_broker_takes_part_and_is_drained_before_it_goes(
    mainstem: Installation, topic: str, name: str
) -> None:
    """E31's blocked scale-down as well: a topic of four replicas cannot do with three brokers.

    Replicas move within a limit, of which nothing is left.
    """
    with Traffic(mainstem, topic):
        mainstem.patch_cluster({"rolling": {"moveBytesPerSecond": LIMIT}})
        scale(mainstem, 4)
        mainstem.settled()
        assert NEW in mainstem.admin.list_topics(timeout=30).brokers
        mainstem.apply("Topic", name, partitions=4, replicas=3, deletionPolicy="Delete")
        mainstem.until("topic", name, "Ready")
        mainstem.apply("Topic", name, partitions=4, replicas=4, deletionPolicy="Delete")
        wait_until(lambda: replicas_on(mainstem, name, NEW) == 4, "each partition has a fourth replica")
        mainstem.until("topic", name, "Reassigning", "False")
        log = mainstem.namespace.kubectl("logs", f"--selector={OPERATOR}", "--tail=-1")
        assert "throttles of moves change" in log
        with Traffic(mainstem, name) as on_four:
            pass
        scale(mainstem, 3)
        reported = mainstem.until("brokercluster", CLUSTER, "ScaleDownBlocked")
        assert name in reported["message"], reported
        assert len(mainstem.pods()) == 4
        mainstem.apply("Topic", name, partitions=4, replicas=3, deletionPolicy="Delete")
        mainstem.settled(240)
        assert sorted(mainstem.pods()) == [f"{CLUSTER}-broker-{number}" for number in range(3)]
        with Traffic(mainstem, name, first=1_000_000) as on_three:
            pass
        assert on_four.acknowledged <= on_three.consumed
    assert replicas_on(mainstem, name, NEW) == 0
    wait_until(lambda: NEW not in mainstem.admin.list_topics(timeout=30).brokers, "broker 3 is forgotten")
    wait_until(lambda: throttles(mainstem, name) == {}, "the limit has gone with the moves")
    noted = mainstem.namespace.kubectl("get", "configmap", f"{CLUSTER}-throttles", "--ignore-not-found")
    assert noted == ""
    mainstem.patch_cluster({"rolling": {"moveBytesPerSecond": None}})


def scale(mainstem: Installation, brokers: int) -> None:
    mainstem.namespace.kubectl("scale", "brokercluster.mainstem.dev", CLUSTER, f"--replicas={brokers}")


def throttles(mainstem: Installation, topic: str) -> dict[str, str]:
    """What is set of a topic's throttles, and of the rates that brokers go by."""
    request = [(ConfigResource.Type.TOPIC, topic), (ConfigResource.Type.BROKER, "0")]
    return {
        name: entry.value
        for kind, of in request
        for answer in mainstem.admin.describe_configs([ConfigResource(kind, of)]).values()
        for name, entry in answer.result().items()
        if ".replication.throttled." in name and entry.source != ConfigSource.DEFAULT_CONFIG.value
    }


def replicas_on(mainstem: Installation, topic: str, broker: int) -> int:
    return sum(broker in part.replicas for part in mainstem.topics()[topic].partitions.values())
