"""ZooKeeper's servers go and come back while records flow (R25)."""

from __future__ import annotations

from tests.e2e.installation import CLUSTER, SERVERS, Installation, wait_until
from tests.e2e.traffic import Traffic


def test_e38_servers_that_are_killed_come_back_with_their_data(mainstem: Installation, topic: str) -> None:
    """The leader and a follower at once: brokers serve on without a quorum; nobody is elected meanwhile."""
    identity = mainstem.status("brokercluster", CLUSTER)["clusterId"]
    mainstem.expected_log += ["topic kept"]  # a broker's session may return seconds after the servers
    with Traffic(mainstem, topic, longest_seconds=2.0):
        modes = {name: mode_of(mainstem, name) for name in mainstem.pods(SERVERS)}
        leader = next(name for name, mode in modes.items() if mode == "leader")
        followers = sorted(modes.keys() - {leader})
        victims = [leader, followers[0]]
        old = mainstem.uids(SERVERS)
        mainstem.namespace.kubectl("delete", "pod", *victims, "--grace-period=0", "--force")
        wait_until(
            lambda: all(mainstem.uids(SERVERS).get(name, old[name]) != old[name] for name in victims),
            "others",
        )
        mainstem.settled()
    assert mainstem.status("brokercluster", CLUSTER)["clusterId"] == identity
    assert topic in mainstem.topics()


def mode_of(mainstem: Installation, pod: str) -> str:
    """leader or follower, as the server says."""
    ask = "import socket; s = socket.create_connection(('%s', 2181), 5); s.send(b'srvr'); print(s.recv(4096))"
    address = mainstem.namespace.get("pod", pod)["status"]["podIP"]
    broker = f"{CLUSTER}-broker-0"
    reported = mainstem.namespace.kubectl("exec", broker, "--", "python3", "-c", ask % address)
    return "leader" if "Mode: leader" in reported else "follower"
