"""ZooKeeper is restarted, and nobody notices (R20). Longer outages: `test_zookeeper_outage.py`."""

from __future__ import annotations

import time
from typing import Final

import pytest
from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.results import Result, result_of
from tests.faults.trial import PARTITIONS, WARM_UP_MESSAGES, settle_and_judge
from tests.faults.workload import Workload
from tests.support.waiting import let_pass

SHORT_S: Final = 3.0
SILENCE_S_MAX: Final = 0.75  # measured: 0.19 and 0.25 s, on two cores that were busy with other work


@pytest.mark.parametrize("kill", [False, True], ids=["SIGTERM", "kill -9"])
def test_a_restart_shorter_than_a_session_is_not_noticed(
    plain_cluster: FaultCluster, results: list[Result], kill: bool
) -> None:
    name = "ZooKeeper killed and restarted" if kill else "ZooKeeper restarted"
    result = _restart(plain_cluster, SHORT_S, name, kill=kill)
    results.append(result)
    assert result.failed == 0
    assert result.silence_s < SILENCE_S_MAX


def _restart(cluster: FaultCluster, away_s: float, name: str, *, kill: bool) -> Result:
    cluster.controller()
    topic = cluster.create_topic(BROKERS, PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        struck_s = load.note(name)
        if kill:
            cluster.stack.kill_zookeeper()
        else:
            cluster.stack.stop_zookeeper()
        let_pass(away_s, "ZooKeeper is away")
        load.note("start of ZooKeeper")
        cluster.stack.start_zookeeper()
        back_s = time.monotonic()
        load.wait_for_acknowledgements(back_s, 30.0)
        ended_s = settle_and_judge(cluster, load, topic)
    resumed_s = max(load.history.first_acknowledgement_after_s(back_s).values())
    note = f"acknowledged {resumed_s:.2f} s after it served again"
    return result_of(load.history, name, "", struck_s, ended_s, note)
