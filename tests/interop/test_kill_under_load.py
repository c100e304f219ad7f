"""kill -9 of a broker under load: what was acknowledged is there, once, at its offset (R6, R17).

Precisely: the producers never send a message twice (no retries), so that the broker alone answers for
doubles. After each restart, for every message acknowledged so far, with acks=1 as with acks=all, the record
at its acknowledged offset of its partition is that message, and no other record of the topic has its value.
A message that was not acknowledged may be there once or not at all. Each producer's messages are in the
order they were sent, offsets have no holes, and the indexes agree with the log.

(With retries and without idempotence a producer may store an unacknowledged message twice: that is the
client's doing, and R11's business. A SIGKILL spares the page cache, so acks=1 loses nothing, either.)
"""

from __future__ import annotations

import itertools
import random
from typing import Final

from tests.support.clusters import Cluster, StartCluster, partition_directory
from tests.support.load import Load, read_all
from tests.support.log_checks import problems_in
from tests.support.topics import TopicFactory
from tests.support.waiting import let_pass

KILLS: Final = 10
REFERENCE_KILLS: Final = 2  # Apache Kafka takes half a minute to come back
PARTITIONS: Final = 2


def test_nothing_acknowledged_is_lost_moved_or_doubled_by_ten_kills(
    own_stack: StartCluster, reference: bool
) -> None:
    """The moments of the kills come from pytest's random seed, which the run's header shows."""
    cluster = own_stack()
    with TopicFactory(cluster) as new_topic:
        # Segments of 1 MB: some kills fall on a roll.
        topics = {acks: new_topic(PARTITIONS, {"segment.bytes": "1048576"}) for acks in ("1", "all")}
        servers = cluster.bootstrap_servers
        with (
            Load(servers, topics["1"], PARTITIONS, "one", "1") as one,
            Load(servers, topics["all"], PARTITIONS, "all", "all") as all_in_sync,
        ):
            loads = (one, all_in_sync)
            for kill in range(1, (REFERENCE_KILLS if reference else KILLS) + 1):
                for load in loads:
                    load.resume()
                for load in loads:
                    load.wait_for_progress(1_000)
                let_pass(random.uniform(0, 0.4), "the moment of the kill is what varies")
                cluster.kill_broker(1)
                cluster.start_broker(1)
                for load in loads:
                    load.wait_for_progress(100)  # the clients come back by themselves
                    load.pause()
                for load in loads:
                    _check(cluster, load, f"after kill {kill}", check_files=not reference)
            assert all(load.failed_count > 0 for load in loads), "no kill met a message on its way"


def _check(cluster: Cluster, load: Load, when: str, *, check_files: bool) -> None:
    for partition in range(PARTITIONS):
        where = f"{when}, acks of {load.name}, partition {partition}"
        records = read_all(cluster.bootstrap_servers, load.topic, partition)
        assert sorted(records) == list(range(len(records))), f"{where}: offsets have holes"
        numbers = [int(value.rpartition(b"-")[2]) for _, value in sorted(records.items())]
        assert all(before < after for before, after in itertools.pairwise(numbers)), (
            f"{where}: messages are doubled or out of order"
        )
        wrong = [
            (offset, number)
            for offset, number in load.acknowledged(partition)
            if records.get(offset) != f"{load.name}-{number}".encode()
        ]
        assert not wrong, (
            f"{where}: {len(wrong)} acknowledged records are not at their offset, first {wrong[0]}"
        )
        if check_files:
            problems = problems_in(partition_directory(cluster, load.topic, partition))
            assert not problems, f"{where}: {problems}"
