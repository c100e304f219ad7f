"""Every fault on every role, under load: what clients were promised holds, service comes back (R19-R22)."""

from __future__ import annotations

from typing import Final

import pytest
from tests.faults.fault_cluster import FaultCluster
from tests.faults.results import Result
from tests.faults.trial import FaultKind, Role, run_trial

KILL: Final = FaultKind("kill -9", FaultCluster.kill, FaultCluster.start, 0.0)
TERMINATE: Final = FaultKind("SIGTERM", FaultCluster.terminate, FaultCluster.start, 0.0)
PAUSE: Final = FaultKind("SIGSTOP", FaultCluster.pause, FaultCluster.resume, 30.0)
CUT_FROM_ZOOKEEPER: Final = FaultKind(
    "cut from ZooKeeper", FaultCluster.cut_from_zookeeper, FaultCluster.mend_to_zookeeper, 10.0
)
CUT_FROM_PEERS: Final = FaultKind(
    "cut from its peers", FaultCluster.cut_from_peers, FaultCluster.mend_to_peers, 8.0
)


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_kill(plain_cluster: FaultCluster, results: list[Result], role: Role) -> None:
    outcome = run_trial(plain_cluster, KILL, role)
    results.append(outcome.result(KILL.name, role.value))


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_terminate(plain_cluster: FaultCluster, results: list[Result], role: Role) -> None:
    outcome = run_trial(plain_cluster, TERMINATE, role)
    results.append(outcome.result(TERMINATE.name, role.value))


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_pause(wired_cluster: FaultCluster, results: list[Result], role: Role) -> None:
    outcome = run_trial(wired_cluster, PAUSE, role)
    results.append(outcome.result(PAUSE.name, role.value))


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_cut_zk(wired_cluster: FaultCluster, results: list[Result], role: Role) -> None:
    outcome = run_trial(wired_cluster, CUT_FROM_ZOOKEEPER, role)
    results.append(outcome.result(CUT_FROM_ZOOKEEPER.name, role.value))


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
def test_cut_peers(wired_cluster: FaultCluster, results: list[Result], role: Role) -> None:
    outcome = run_trial(
        wired_cluster, CUT_FROM_PEERS, role, recovers_alone=role not in (Role.LEADER, Role.BOTH)
    )
    results.append(outcome.result(CUT_FROM_PEERS.name, role.value))
