"""More brokers and fewer, while records flow (R25)."""

from __future__ import annotations

import pytest
from tests.e2e.installation import CLUSTER, Installation, wait_until
from tests.e2e.kubectl import KubectlError
from tests.e2e.traffic import Traffic

NEW = 3
"""The broker that comes and goes."""


@pytest.mark.long
def test_e30_e31_a_fourth_broker_takes_part_and_is_drained_before_it_goes(
    mainstem: Installation, topic: str, name: str
) -> None:
    """E31's blocked scale-down as well: a topic of four replicas cannot do with three brokers."""
    with Traffic(mainstem, topic):
        scale(mainstem, 4)
        mainstem.settled()
        assert NEW in mainstem.admin.list_topics(timeout=30).brokers
        mainstem.apply("Topic", name, partitions=4, replicas=4, deletionPolicy="Delete")
        mainstem.until("topic", name, "Ready")
        assert replicas_on(mainstem, name, NEW) == 4
        with Traffic(mainstem, name) as on_four:
            pass
        scale(mainstem, 3)
        told = mainstem.until("cluster", CLUSTER, "ScaleDownBlocked")
        assert name in told["message"], told
        assert len(mainstem.pods()) == 4
        mainstem.apply("Topic", name, partitions=4, replicas=3, deletionPolicy="Delete")
        mainstem.settled(240)
        assert sorted(mainstem.pods()) == [f"{CLUSTER}-broker-{number}" for number in range(3)]
        with Traffic(mainstem, name, first=1_000_000) as on_three:
            pass
        assert on_four.acknowledged <= on_three.consumed
    assert replicas_on(mainstem, name, NEW) == 0
    wait_until(lambda: NEW not in mainstem.admin.list_topics(timeout=30).brokers, "broker 3 is forgotten")


@pytest.mark.long
def test_e31_a_blocked_broker_goes_anyway_if_it_is_asked_for(
    mainstem: Installation, topic: str, name: str
) -> None:
    with Traffic(mainstem, topic):
        scale(mainstem, 4)
        mainstem.settled()
        mainstem.apply("Topic", name, partitions=4, replicas=4, deletionPolicy="Delete")
        mainstem.until("topic", name, "Ready")
        with Traffic(mainstem, name) as on_four:
            pass
        scale(mainstem, 3)
        mainstem.until("cluster", CLUSTER, "ScaleDownBlocked")
        assert len(mainstem.pods()) == 4
        mainstem.annotate("cluster", CLUSTER, "scale-down-anyway", "true")
        wait_until(lambda: len(mainstem.pods()) == 3, "it goes with what it holds")
        mainstem.annotate("cluster", CLUSTER, "scale-down-anyway", None)
        assert replicas_on(mainstem, name, NEW) == 4
        mainstem.apply("Topic", name, partitions=4, replicas=3, deletionPolicy="Delete")
        mainstem.settled(240)
        with Traffic(mainstem, name, first=1_000_000) as on_three:
            pass
        assert on_four.acknowledged <= on_three.consumed
    assert replicas_on(mainstem, name, NEW) == 0


def test_e32_no_broker_at_all_is_refused(mainstem: Installation) -> None:
    with pytest.raises(KubectlError, match="greater than or equal to 1"):
        scale(mainstem, 0)


def scale(mainstem: Installation, brokers: int) -> None:
    mainstem.namespace.kubectl("scale", "cluster.mainstem.dev", CLUSTER, f"--replicas={brokers}")


def replicas_on(mainstem: Installation, topic: str, broker: int) -> int:
    return sum(broker in part.replicas for part in mainstem.topics()[topic].partitions.values())
