"""The images alone, in a restricted namespace: they serve clients inside and outside, and outlive a node.

Holds until the operator makes the same objects; its tests then say all of this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.e2e import nodes
from tests.e2e.kubectl import Namespace
from tests.e2e.plain_cluster import CLIENT_PORT, SERVERS, servers, services

CLIENT_IMAGE: Final = "mainstem/e2e-client:dev"
TOPIC: Final = "numbers"
RECORDS: Final = 2000
_ROUND_TRIP: Final = Path(__file__).parent / "client-image" / "round_trip.py"


@pytest.fixture(scope="module")
def outside(namespace: Namespace) -> str:
    """The bootstrap address for clients outside, of three brokers that are ready."""
    address = nodes.address_of(nodes.workers()[0])
    namespace.apply(*services())
    ports = [
        namespace.get("service", f"broker-{number}-external")["spec"]["ports"][0]["nodePort"]
        for number in range(SERVERS)
    ]
    namespace.apply(*servers(address, ports))
    namespace.wait_ready("statefulset/zookeeper")
    namespace.wait_ready("statefulset/broker")
    return ",".join(f"{address}:{port}" for port in ports)


def test_stock_clients_inside_and_outside_share_a_topic_that_outlives_a_node(
    namespace: Namespace, outside: str
) -> None:
    """R24, R27: one story, since each step needs the one before: inside, outside, a node gone, and back."""
    inside = [f"bootstrap:{CLIENT_PORT}", TOPIC, "0", str(RECORDS)]
    told = json.loads(namespace.run_pod("client-inside", CLIENT_IMAGE, inside))
    assert told == {"acknowledged": RECORDS, "read": RECORDS}

    told = outside_round_trip(outside, first=RECORDS, end=2 * RECORDS)
    assert told == {"acknowledged": RECORDS, "read": 2 * RECORDS}

    victim = node_of(namespace, "broker-2")
    if victim == nodes.workers()[0]:  # the address that clients outside know
        victim = node_of(namespace, "broker-1")
    nodes.power_off(victim)
    try:
        told = outside_round_trip(outside, first=2 * RECORDS, end=3 * RECORDS)
        assert told == {"acknowledged": RECORDS, "read": 3 * RECORDS}
        nodes.wait_for_ready(victim, ready=False)
    finally:
        nodes.start(victim)
    nodes.wait_for_ready(victim)
    namespace.wait_ready("statefulset/zookeeper")
    namespace.wait_ready("statefulset/broker")
    told = outside_round_trip(outside, first=3 * RECORDS, end=4 * RECORDS)
    assert told == {"acknowledged": RECORDS, "read": 4 * RECORDS}


def outside_round_trip(bootstrap: str, first: int, end: int) -> dict[str, int]:
    """What the client's program says when it runs on this machine, outside the cluster."""
    finished = subprocess.run(
        [sys.executable, str(_ROUND_TRIP), bootstrap, TOPIC, str(first), str(end)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    told: dict[str, int] = json.loads(finished.stdout)
    return told


def node_of(namespace: Namespace, pod: str) -> str:
    """The node that a pod runs on."""
    return str(namespace.get("pod", pod)["spec"]["nodeName"])
