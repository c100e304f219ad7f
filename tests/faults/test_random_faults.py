"""Faults at random, one upon the other, on up to all brokers: whatever happens, promises to clients hold.

With two or three brokers struck at once nothing can be acknowledged for a while; it comes back when they do,
and nothing is lost: a kill spares what a broker has written, and a broker that comes back from one says how
far its log reaches before any of them is elected (`cluster/controller.py`).
"""

from __future__ import annotations

import random
import time
from typing import Final

from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.results import Result, result_of
from tests.faults.trial import (
    CUT_FROM_PEERS,
    CUT_FROM_ZOOKEEPER,
    ISOLATE,
    KILL,
    PARTITIONS,
    PAUSE,
    TERMINATE,
    WARM_UP_MESSAGES,
    settle_and_judge,
)
from tests.faults.workload import Workload
from tests.support.waiting import let_pass

ROUNDS: Final = 6
KINDS: Final = (KILL, TERMINATE, PAUSE, CUT_FROM_ZOOKEEPER, CUT_FROM_PEERS, ISOLATE)
STRUCK_AT_ONCE: Final = (1, 1, 2, 3)
BETWEEN_S: Final = (0.0, 0.0, 0.05, 0.3)
HELD_S: Final = (0.0, 0.5, 2.0, 6.0)  # the last is more than a session
BACK_S_MAX: Final = 40.0


def test_faults_upon_faults_break_no_promise(wired_cluster: FaultCluster, results: list[Result]) -> None:
    """What strikes, whom and when comes from pytest's random seed, which the run's header shows."""
    cluster = wired_cluster
    cluster.controller()
    topic = cluster.create_topic(BROKERS, PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        began_s = time.monotonic()
        for _ in range(ROUNDS):
            struck = []
            try:
                for broker_id in random.sample(BROKERS, random.choice(STRUCK_AT_ONCE)):
                    kind = random.choice(KINDS)
                    load.note(f"{kind.name} of {broker_id}")
                    struck.append((kind, broker_id))
                    kind.strike(cluster, broker_id)
                    let_pass(random.choice(BETWEEN_S), "faults overlap in various ways")
                let_pass(random.choice(HELD_S), "the faults last")
            finally:
                random.shuffle(struck)
                # A broker's start waits until it serves, which takes a ZooKeeper that it reaches.
                struck.sort(key=lambda pair: pair[0] in (KILL, TERMINATE))
                for kind, broker_id in struck:
                    load.note(f"end of {kind.name} of {broker_id}")
                    kind.mend(cluster, broker_id)
            load.wait_for_acknowledgements(time.monotonic(), BACK_S_MAX)
        ended_s = settle_and_judge(cluster, load, topic)
    results.append(result_of(load.history, f"{ROUNDS} rounds at random", "all", began_s, ended_s))
