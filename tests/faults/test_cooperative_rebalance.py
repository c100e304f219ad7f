"""In a cooperative rebalance members that keep their partitions never stop (R14, KIP-429): counted.

The rebalance is held open: a newcomer joins while another member is stopped, so the coordinator waits for
the stopped one, and all others are in the middle of it. A keeper's records in that time are counted. The same
with an eager assignor shows that the count tells the difference. Members do not wait for their commits: those
go over the connection on which the join is not answered yet, and answers come in order.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.results import Figures
from tests.support.clusters import Cluster, RunCluster
from tests.support.group_members import HEARTBEAT_MS_MAX, Member, share_evenly
from tests.support.load import Load
from tests.support.waiting import PATIENCE_SECONDS, wait_until

PARTITIONS: Final = 6
PER_SECOND: Final = 1_000
SESSION_MS: Final = 60_000  # one member is stopped for a while, and shall not be thrown out
WATCHED_MS: Final = 3 * HEARTBEAT_MS_MAX  # the first heartbeat tells a member that there is a rebalance
SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}


@pytest.fixture(scope="module")
def cluster(run_cluster: RunCluster) -> Iterator[Cluster]:
    with run_cluster(1, SETTINGS) as running:
        yield running


class HeldRebalance:
    """Two members share a topic under load; one is stopped while a third joins."""

    def __init__(self, cluster: Cluster, kind: str, assignor: str, started: ExitStack) -> None:
        self._admin: Any = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self._group, topic = f"group-{uuid4().hex[:8]}", f"topic-{uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=PATIENCE_SECONDS)[
            topic
        ].result(PATIENCE_SECONDS)

        def member() -> Member:
            return started.enter_context(
                Member(
                    kind,
                    cluster.bootstrap_servers,
                    self._group,
                    topic,
                    assignor=assignor,
                    session_ms=SESSION_MS,
                    commit_waits=False,
                )
            )

        self.keeper, self.stopped = member(), member()
        share_evenly([self.keeper, self.stopped], PARTITIONS)
        self.load = started.enter_context(
            Load(cluster.bootstrap_servers, topic, PARTITIONS, "load", "all", per_second=PER_SECOND)
        )
        self.load.resume()
        wait_until(
            lambda: all(one.told("committed") for one in (self.keeper, self.stopped)), "both work", seconds=30
        )
        self._signal(signal.SIGSTOP)
        self.newcomer = member()
        wait_until(self.is_open, "the newcomer's join has begun a rebalance", seconds=40)
        self.opened_at = len(self.keeper.events)

    def is_open(self) -> bool:
        """Whether the coordinator waits for members to join."""
        answer = self._admin.describe_consumer_groups([self._group])[self._group].result(PATIENCE_SECONDS)
        return bool(answer.state == ConsumerGroupState.PREPARING_REBALANCING)

    def span_ms(self) -> int:
        """How long the keeper has reported events since the rebalance began."""
        events = self.keeper.events[self.opened_at :]
        span: int = events[-1]["at"] - events[0]["at"] if events else 0
        return span

    def let_end(self) -> None:
        self._signal(signal.SIGCONT)
        share_evenly([self.keeper, self.stopped, self.newcomer], PARTITIONS)

    def _signal(self, number: signal.Signals) -> None:
        process = psutil.Process(self.stopped.process.pid)
        for one in (process, *process.children(recursive=True)):  # the Java client has a JVM below it
            one.send_signal(number)


def longest_gap_ms(events: list[dict[str, Any]], partitions: set[int]) -> int:
    """The longest time in which one of the partitions gave nothing, between the first and the last event."""
    gaps = [0]
    last = dict.fromkeys(partitions, events[0]["at"])
    for event in events:
        for partition in {number for number, _ in event.get("records", ())} & partitions:
            gaps.append(event["at"] - last[partition])
            last[partition] = event["at"]
    result: int = max(gaps + [events[-1]["at"] - at for at in last.values()])
    return result


@pytest.mark.parametrize("kind", ["confluent", "java"])
def test_who_keeps_partitions_never_stops(kind: str, cluster: Cluster, figures: Figures) -> None:
    with ExitStack() as started:
        held = HeldRebalance(cluster, kind, "cooperative-sticky", started)
        keeper, before = held.keeper, held.keeper.owned
        wait_until(lambda: held.span_ms() >= WATCHED_MS, "the keeper goes on all the while", seconds=40)
        assert held.is_open(), "all of that was in the middle of the rebalance"
        events = keeper.events[held.opened_at :]
        assert not [event for event in events if {"revoked", "lost", "assigned"} & event.keys()]
        gap_ms = longest_gap_ms(events, before)
        span_ms, within = held.span_ms(), sum(len(event.get("records", ())) for event in events)
        held.let_end()
        kept = before & keeper.owned
        assert kept and before - kept == before & held.newcomer.owned | before & held.stopped.owned
        after = keeper.events[held.opened_at :]
        touched = {
            number for event in after for name in ("revoked", "lost") for number in event.get(name, ())
        }
        assert touched == before - kept, "only what goes is named"
        assert not {number for event in after for number in event.get("assigned", ())} & kept
        held.load.pause()
        expected = held.load.acknowledged_places()
        everyone = (keeper, held.stopped, held.newcomer)
        wait_until(
            lambda: expected <= {record for one in everyone for record in tuple(one.records)},
            "every record was processed",
            seconds=40,
        )
        of_kept = [record for record in keeper.records if record[0] in kept]
        assert len(of_kept) == len(set(of_kept)), "of what it kept it processed nothing twice"
    figures.add(
        f"cooperative, {kind}: {within:,} records by the keeper within"
        f" {span_ms:,} ms of an open rebalance, longest gap of a partition {gap_ms} ms"
    )
    assert gap_ms < 2 * HEARTBEAT_MS_MAX, "far less than the rebalance"


def test_with_an_eager_assignor_the_same_member_stands_still(cluster: Cluster, figures: Figures) -> None:
    with ExitStack() as started:
        held = HeldRebalance(cluster, "confluent", "range", started)
        keeper, before = held.keeper, held.keeper.owned
        wait_until(
            lambda: any("revoked" in event for event in keeper.events[held.opened_at :]),
            "the keeper gives everything up",
            seconds=30,
        )
        given_up = max(place for place, event in enumerate(keeper.events) if "revoked" in event)
        assert set(keeper.events[given_up]["revoked"]) == before
        count = held.load.acknowledged_count
        held.load.wait_for_progress(PER_SECOND * WATCHED_MS // 1_000)
        assert held.is_open()
        assert not [event for event in keeper.events[given_up:] if "records" in event]
        came = held.load.acknowledged_count - count
        held.let_end()
    figures.add(f"eager: 0 records by the keeper in an open rebalance, while {came:,} came in")
