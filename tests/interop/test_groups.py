"""Groups of stock clients on real brokers: who gets which partitions, what is read how often (R14, R15)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import confluent_kafka
import pytest
from tests.support.clusters import ReachableCluster, SharedCluster
from tests.support.group_members import PYTHON_KINDS, Member, share_evenly
from tests.support.topics import ANSWER_SECONDS, TopicFactory
from tests.support.waiting import wait_until

PARTITIONS = 6
RECORDS = 600
ALL_KINDS = (*PYTHON_KINDS, "java")


class StartMember(Protocol):
    def __call__(self, kind: str, group: str, topic: str, **how: Any) -> Member: ...


@pytest.fixture
def member(group_stack: SharedCluster) -> Iterator[StartMember]:
    """Starts members whose processes end with the test."""
    with ExitStack() as started:
        yield lambda kind, group, topic, **how: started.enter_context(
            Member(kind, group_stack.bootstrap_servers, group, topic, **how)
        )


@pytest.fixture
def topic(group_topic: TopicFactory) -> str:
    return group_topic(PARTITIONS)


def produce(
    cluster: ReachableCluster, topic: str, count: int = RECORDS, partitions: int = PARTITIONS
) -> None:
    """Records, as many in each partition."""
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"record", partition=number % partitions)
    assert producer.flush(ANSWER_SECONDS) == 0


def committed(factory: TopicFactory, group: str, topic: str, partitions: int = PARTITIONS) -> dict[int, int]:
    """What the group has committed, by partition; -1001 for nothing."""
    request = [
        confluent_kafka.ConsumerGroupTopicPartitions(
            group, [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
        )
    ]
    (answer,) = factory.admin.list_consumer_group_offsets(request).values()
    return {one.partition: one.offset for one in answer.result(ANSWER_SECONDS).topic_partitions}


def processed(members: Iterable[Member]) -> Counter[tuple[int, int]]:
    """How often each record was processed, by partition and offset."""
    return Counter(record for member in members for record in tuple(member.records))


def everything(per_partition: int, partitions: int = PARTITIONS) -> set[tuple[int, int]]:
    return {(number, offset) for number in range(partitions) for offset in range(per_partition)}


def wait_for_records(members: list[Member], per_partition: int) -> None:
    expected = everything(per_partition)
    wait_until(lambda: expected <= processed(members).keys(), "every record was processed")


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
@pytest.mark.parametrize("kind", PYTHON_KINDS)
def test_members_share_the_partitions_and_process_each_record_once(
    kind: str,
    assignor: str,
    member: StartMember,
    group: str,
    topic: str,
    group_stack: SharedCluster,
    group_topic: TopicFactory,
) -> None:
    members = [member(kind, group, topic, assignor=assignor) for _ in range(2)]
    share_evenly(members, PARTITIONS)
    produce(group_stack, topic)
    wait_for_records(members, RECORDS // PARTITIONS)
    for one in members:
        assert {partition for partition, _ in one.records} <= one.owned
    for one in members:
        one.stop()
    assert set(processed(members).values()) == {1}
    assert committed(group_topic, group, topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_group_that_comes_back_goes_on_where_it_stopped(
    kind: str,
    member: StartMember,
    group: str,
    topic: str,
    group_stack: SharedCluster,
    group_topic: TopicFactory,
) -> None:
    produce(group_stack, topic)
    first = member(kind, group, topic)
    wait_for_records([first], RECORDS // PARTITIONS)
    first.stop()
    assert committed(group_topic, group, topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
    produce(group_stack, topic)
    second = member(kind, group, topic)
    wait_until(lambda: len(second.records) >= RECORDS, "the new records were processed")
    second.stop()
    assert set(second.records) == everything(2 * RECORDS // PARTITIONS) - everything(RECORDS // PARTITIONS)


@pytest.mark.parametrize("kind", PYTHON_KINDS)
def test_what_a_killed_member_had_goes_to_the_other_one_and_nothing_is_left_out(
    kind: str, member: StartMember, group: str, topic: str, group_stack: SharedCluster
) -> None:
    members = [member(kind, group, topic) for _ in range(2)]
    share_evenly(members, PARTITIONS)
    produce(group_stack, topic)
    wait_until(lambda: all(one.records for one in members), "both process records")
    members[1].kill()
    produce(group_stack, topic)
    wait_for_records(members, 2 * RECORDS // PARTITIONS)
    assert members[0].owned == set(range(PARTITIONS))


def test_clients_of_all_kinds_form_one_group(
    member: StartMember, group: str, topic: str, group_stack: SharedCluster
) -> None:
    members = [member(kind, group, topic, session_ms=6_000) for kind in ALL_KINDS]
    wait_until(
        lambda: (
            sum(len(one.owned) for one in members[:-1]) == 4
            and all(1 <= len(one.owned) <= 2 for one in members[:-1])
        ),
        "the members in Python leave the Java member its share",
    )
    produce(group_stack, topic)
    wait_for_records(members, RECORDS // PARTITIONS)
    assert all(one.records for one in members)
    for one in members:
        one.stop()


def test_each_group_gets_all_records(
    member: StartMember, topic: str, group_stack: SharedCluster, group: str
) -> None:
    """Publish-subscribe between groups, point-to-point within one."""
    produce(group_stack, topic)
    members = [member(kind, f"{group}-{kind}", topic) for kind in PYTHON_KINDS]
    for one in members:
        wait_for_records([one], RECORDS // PARTITIONS)


@pytest.mark.parametrize("count", [2, 3])
def test_in_a_cooperative_rebalance_members_keep_what_stays_theirs(
    count: int, member: StartMember, group: str, topic: str, group_stack: SharedCluster
) -> None:
    """Counted: a member never has to give up more than the newcomers get (KIP-429)."""
    members = [member("confluent", group, topic, assignor="cooperative-sticky")]
    share_evenly(members, PARTITIONS)
    while len(members) < count:
        before = [one.owned for one in members]
        times = [len(one.told("revoked")) for one in members]
        newcomer = member("confluent", group, topic, assignor="cooperative-sticky")
        share_evenly([*members, newcomer], PARTITIONS)
        for one, owned, reported in zip(members, before, times, strict=True):
            given_up = {number for some in one.told("revoked")[reported:] for number in some}
            assert given_up == owned - one.owned
            assert one.owned <= owned
        assert sum(len(owned - one.owned) for one, owned in zip(members, before, strict=True)) == len(
            newcomer.owned
        )
        members.append(newcomer)
    produce(group_stack, topic)
    wait_for_records(members, RECORDS // PARTITIONS)
    assert set(processed(members).values()) == {1}


def test_a_static_member_that_comes_back_within_its_session_disturbs_nobody(
    member: StartMember, group: str, topic: str, group_stack: SharedCluster
) -> None:
    """KIP-345: its partitions wait for it, and the others notice nothing."""
    other = member("confluent", group, topic, instance_id="other", session_ms=20_000)
    away = member("confluent", group, topic, instance_id="away", session_ms=20_000)
    share_evenly([other, away], PARTITIONS)
    owned, events = away.owned, list(other.events)
    away.kill()
    produce(group_stack, topic)
    back = member("confluent", group, topic, instance_id="away", session_ms=20_000)
    wait_for_records([other, back], RECORDS // PARTITIONS)
    assert back.owned == owned
    assert [event for event in other.events[len(events) :] if "assigned" in event or "revoked" in event] == []
