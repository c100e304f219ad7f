"""One trial: a workload runs, a fault strikes a broker in some role, is undone, and the history is judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.faults.checker import check, describe
from tests.faults.fault_cluster import BROKERS, FaultCluster
from tests.faults.history import History
from tests.faults.results import Result, result_of
from tests.faults.workload import Workload
from tests.support.waiting import let_pass, wait_until

PARTITIONS: Final = 4
WARM_UP_MESSAGES: Final = 400
SETTLED_MESSAGES: Final = 200


class Role(Enum):
    """Whom a fault strikes. The topic's partitions are placed so that it is nothing else."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CONTROLLER = "controller"
    BOTH = "leader and controller"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """What to do to a broker, how long that lasts, and how to undo it."""

    name: str
    strike: Callable[[FaultCluster, int], None]
    mend: Callable[[FaultCluster, int], None]
    hold_s: float

    @property
    def title(self) -> str:
        return f"{self.name} for {self.hold_s:.0f} s" if self.hold_s else self.name


KILL: Final = FaultKind("kill -9", FaultCluster.kill, FaultCluster.start, 0.0)
TERMINATE: Final = FaultKind("SIGTERM", FaultCluster.terminate, FaultCluster.start, 0.0)
PAUSE: Final = FaultKind("SIGSTOP", FaultCluster.pause, FaultCluster.resume, 30.0)
CUT_FROM_ZOOKEEPER: Final = FaultKind(
    "cut from ZooKeeper", FaultCluster.cut_from_zookeeper, FaultCluster.mend_to_zookeeper, 8.0
)
CUT_FROM_PEERS: Final = FaultKind(
    "cut from its peers", FaultCluster.cut_from_peers, FaultCluster.mend_to_peers, 8.0
)
ISOLATE: Final = FaultKind("isolation", FaultCluster.isolate, FaultCluster.end_isolation, 8.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed, besides that no promise was broken.

    - `result`: its line in the table.
    - `leader`: who led all partitions before the fault, in which `victim` was struck.
    - `leaders`: who led the topic just before the fault was undone, as another broker than `victim` knows.
    - `after_mend_s`: as `Result.first_s`, from when the fault was undone.
    """

    result: Result
    history: History
    victim: int
    leader: int
    leaders: set[int]
    after_mend_s: float


def run_trial(
    cluster: FaultCluster,
    kind: FaultKind,
    role: Role,
    *,
    recovers_alone: bool = True,
    patience_s: float = 40.0,
) -> Outcome:
    """Run one fault; `recovers_alone` says that acknowledgements are to come back before it is undone.

    Raises:
        AssertionError: a promise to a client was broken, or the cluster did not come back.
    """
    controller = cluster.controller()
    leader, follower = (broker_id for broker_id in BROKERS if broker_id != controller)
    replicas = (controller, leader, follower) if role is Role.BOTH else (leader, follower, controller)
    victim = {
        Role.LEADER: leader,
        Role.FOLLOWER: follower,
        Role.CONTROLLER: controller,
        Role.BOTH: controller,
    }[role]
    topic = cluster.create_topic(replicas, PARTITIONS)
    with Workload(cluster.bootstrap_servers, topic, PARTITIONS) as load:
        load.wait_for_messages(WARM_UP_MESSAGES)
        struck_s = load.note(f"{kind.name} of {role.value} {victim}")
        try:
            kind.strike(cluster, victim)
            if recovers_alone:
                load.wait_for_acknowledgements(struck_s, patience_s)
            let_pass(max(struck_s + kind.hold_s - time.monotonic(), 0), "the fault lasts")
            # While the fault lasts, of another broker: the victim may not know what has become of it.
            leaders = cluster.leaders(topic, broker_id=follower if victim != follower else leader)
        finally:
            mended_s = load.note(f"end of {kind.name}")
            kind.mend(cluster, victim)
        load.wait_for_acknowledgements(mended_s, patience_s)
        ended_s = settle_and_judge(cluster, load, topic)
    return Outcome(
        result_of(load.history, kind.title, role.value, struck_s, ended_s),
        load.history,
        victim,
        replicas[0],
        leaders,
        max(load.history.first_acknowledgement_after_s(mended_s).values()),
    )


def settle_and_judge(cluster: FaultCluster, load: Workload, topic: str) -> float:
    """Wait until the topic is whole, end the workload, judge its history; answers when all was well again.

    Raises:
        AssertionError: a promise to a client was broken; the message says which, and after which fault.
    """
    cluster.wait_until_whole(topic)
    load.wait_for_messages(SETTLED_MESSAGES)
    ended_s = time.monotonic()
    problems = check(load.history, load.finish())
    assert not problems, describe(problems)
    require_equal_files(cluster, topic)
    cluster.delete_topic(topic)
    return ended_s


def require_equal_files(cluster: FaultCluster, topic: str) -> None:
    """All replicas of a topic that nobody writes to any more are the same, byte for byte (R19)."""

    def different() -> list[str]:
        return [
            f"{topic}-{partition}"
            for partition in range(PARTITIONS)
            if len({cluster.log_path(broker_id, topic, partition).read_bytes() for broker_id in BROKERS}) != 1
        ]

    wait_until(lambda: not different(), f"all replicas of {topic} are alike", 10.0, step_seconds=0.2)
