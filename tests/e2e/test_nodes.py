"""Machines are drained, lost for a while and lost for good, while records flow (R25). For kind."""

from __future__ import annotations

from typing import Final

import pytest
from tests.e2e import nodes
from tests.e2e.installation import BROKERS, CLUSTER, Installation, wait_until
from tests.e2e.kubectl import KubectlError, kubectl
from tests.e2e.traffic import PodWatch, Traffic

VICTIM: Final = f"{CLUSTER}-broker-1"
REPLACED_SECONDS_MAX: Final = 480.0
"""The operator waits five minutes for a node that is gone; then come a new volume and its replicas."""


def test_e33_a_drained_node_takes_no_second_broker_with_it(mainstem: Installation, topic: str) -> None:
    first, second = mainstem.node_of(VICTIM), mainstem.node_of(f"{CLUSTER}-broker-2")
    options = ["--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={BROKERS}"]
    try:
        with Traffic(mainstem, topic), PodWatch(mainstem) as watch:
            kubectl("drain", first, *options, "--timeout=90s")
            with pytest.raises(KubectlError, match="drain"):
                kubectl("drain", second, *options, "--timeout=15s")
            assert watch.fewest_ready == 2
            kubectl("uncordon", first)
            kubectl("uncordon", second)
            mainstem.settled()
    finally:
        kubectl("uncordon", first)
        kubectl("uncordon", second)


def test_a_node_that_loses_power_comes_back_with_its_broker(mainstem: Installation, topic: str) -> None:
    victim = mainstem.node_of(VICTIM)
    mainstem.expected_log += ["look failed", "lease"]
    with Traffic(mainstem, topic):
        nodes.power_off(victim)
        try:
            nodes.wait_for_ready(victim, ready=False)
            mainstem.until("cluster", CLUSTER, "Healthy", "False")
        finally:
            nodes.start(victim)
        nodes.wait_for_ready(victim)
        mainstem.settled()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_e34_a_node_lost_for_good_is_followed_by_a_new_volume_elsewhere(
    mainstem: Installation, topic: str
) -> None:
    victim = mainstem.node_of(VICTIM)
    old = mainstem.namespace.get("persistentvolumeclaim", f"data-{VICTIM}")["metadata"]["uid"]
    others = {name: uid for name, uid in mainstem.uids().items() if name != VICTIM}
    mainstem.expected_log += ["look failed", "lease"]
    try:
        with Traffic(mainstem, topic):
            nodes.power_off(victim)
            nodes.wait_for_ready(victim, ready=False)
            kubectl("delete", "node", victim)
            wait_until(lambda: claim_of(mainstem) not in ("", old), "a new volume", REPLACED_SECONDS_MAX)
            mainstem.settled(REPLACED_SECONDS_MAX)
            assert mainstem.node_of(VICTIM) != victim
            assert {name: uid for name, uid in mainstem.uids().items() if name != VICTIM} == others
    finally:
        nodes.start(victim)
        wait_until(lambda: f"node/{victim}" in kubectl("get", "nodes", "--output=name"), "the node is back")
        nodes.wait_for_ready(victim)


def claim_of(mainstem: Installation) -> str:
    path = ["--output=jsonpath={.metadata.uid}", "--ignore-not-found"]
    return mainstem.namespace.kubectl("get", "persistentvolumeclaim", f"data-{VICTIM}", *path)
