"""Machines are drained, lost for a while and lost for good, while records flow (R25). For kind."""

from __future__ import annotations

import json
from typing import Final

import pytest
from tests.e2e import nodes
from tests.e2e.installation import (
    BROKERS,
    CLUSTER,
    OPERATOR,
    RESYNC_SECONDS,
    SERVERS,
    Installation,
    wait_until,
)
from tests.e2e.kubectl import KubectlError, kubectl
from tests.e2e.traffic import PodWatch, Traffic
from tests.support.waiting import let_pass

VICTIM: Final = f"{CLUSTER}-broker-1"
REPLACED_SECONDS_MAX: Final = 480.0
"""The operator waits five minutes for a node that is gone; then come a new volume and its replicas."""


@pytest.mark.long
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


@pytest.mark.long
def test_a_node_that_loses_power_comes_back_with_its_broker(mainstem: Installation, topic: str) -> None:
    victim = mainstem.node_of(VICTIM)
    mainstem.expected_log += ["look failed", "lease"]
    with Traffic(mainstem, topic):
        nodes.power_off(victim)
        try:
            nodes.wait_for_ready(victim, ready=False)
            mainstem.until("brokercluster", CLUSTER, "Healthy", "False")
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
        wait_for_return(victim)
        place_anew(mainstem)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_e35_two_nodes_lost_at_once_are_waited_for_and_no_volume_is_given_up(
    mainstem: Installation, topic: str
) -> None:
    """Though both are gone from the API server too, and for longer than one node would be waited for."""
    home = mainstem.node_of(next(iter(mainstem.pods(OPERATOR))))
    victims = [node for node in nodes.workers() if node != home][:2]
    before = volumes(mainstem)
    pods = {**mainstem.pods(), **mainstem.pods(SERVERS)}
    lost = {f"data-{name}" for name, pod in pods.items() if pod["spec"]["nodeName"] in victims}
    mainstem.expected_log += ["look failed", "lease"]
    mainstem.expected_log += ["no broker answers", "brokers answer again"]  # there is no controller
    with Traffic(mainstem, topic, patience_seconds=400):
        try:
            for node in victims:
                nodes.power_off(node)
            for node in victims:
                nodes.wait_for_ready(node, ready=False)
            kubectl("delete", "node", *victims)
            wait_until(lambda: missed(mainstem) == lost, "the volumes of both are missed")
            for claim in lost:
                mainstem.annotate("persistentvolumeclaim", claim, "node-lost-since", "2026-01-01T00:00:00Z")
            wait_until(lambda: "a person has to decide" in whole_status(mainstem), "two are too many")
            let_pass(RESYNC_SECONDS, "nothing must happen in this time")
            assert volumes(mainstem) == before
        finally:
            for node in victims:
                nodes.start(node)
            for node in victims:
                wait_for_return(node)
        mainstem.settled(REPLACED_SECONDS_MAX)
    assert volumes(mainstem) == before
    assert missed(mainstem) == set()


def place_anew(mainstem: Installation) -> None:
    """Give the broker another volume, and so a node without a broker: other tests want one on each."""
    mainstem.settled(REPLACED_SECONDS_MAX)
    old = claim_of(mainstem)
    mainstem.namespace.kubectl("delete", "persistentvolumeclaim", f"data-{VICTIM}", "--wait=false")
    mainstem.namespace.kubectl("delete", "pod", VICTIM)
    wait_until(lambda: claim_of(mainstem) not in ("", old), "a new volume")
    mainstem.settled()


def wait_for_return(node: str) -> None:
    """Wait until a node that was deleted is known again, and ready."""
    # Over 90 s on two busy cores: the node's kubelet registers it anew.
    back = f"node/{node}"
    wait_until(lambda: back in kubectl("get", "nodes", "--output=name").split(), f"{node} is back", 300)
    nodes.wait_for_ready(node)


def volumes(mainstem: Installation) -> dict[str, str]:
    """Every claim and its uid."""
    claims = mainstem.namespace.list("persistentvolumeclaims", f"mainstem.dev/cluster={CLUSTER}")
    return {claim["metadata"]["name"]: claim["metadata"]["uid"] for claim in claims}


def missed(mainstem: Installation) -> set[str]:
    """The claims whose node the operator misses."""
    return {
        claim["metadata"]["name"]
        for claim in mainstem.namespace.list("persistentvolumeclaims")
        if "mainstem.dev/node-lost-since" in claim["metadata"].get("annotations", {})
    }


def whole_status(mainstem: Installation) -> str:
    return json.dumps(mainstem.status("brokercluster", CLUSTER))


def claim_of(mainstem: Installation) -> str:
    path = ["--output=jsonpath={.metadata.uid}", "--ignore-not-found"]
    return mainstem.namespace.kubectl("get", "persistentvolumeclaim", f"data-{VICTIM}", *path)
