"""Records of the audit log in a topic: bounded, and never in the way of what clients ask for (R38)."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.errors import PeerUnavailable
from mainstem_broker.protocol.batches import split_batches
from mainstem_broker.protocol.records import parse_records
from mainstem_broker.security.audit_log import ADMINISTRATION, CATEGORIES, AuditLog
from mainstem_broker.server import audit_topic
from mainstem_broker.server.audit_topic import AuditTopic
from mainstem_broker.server.peers import Peer

BATCH_OVERHEAD = 61
LINE: dict[str, str | int] = {"category": "denied", "principal": "User:alice"}


class PlayedBroker:
    """The leader of the topic `audit`; `codes` are its next answers, `stored` what it has taken."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.stored: list[dict[str, Any]] = []
        self.partitions: list[int] = []
        self.batches = 0
        self.is_reachable = True

    async def ask(self, api_key: int, version: int, body: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        if not self.is_reachable:
            raise PeerUnavailable("It is away.")
        ((partition,),) = [topic["partition_data"] for topic in body["topic_data"]]
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            self.batches += 1
            self.partitions.append(partition["index"])
            for header, batch in split_batches(partition["records"]):
                records = parse_records(batch[BATCH_OVERHEAD:], header.record_count, 0, 0, None)
                self.stored += [json.loads(record.value or b"") for record in records]
        response = SimpleNamespace(error_code=code)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[response])])

    def close(self) -> None:
        """Nothing is open."""


def topic_of(broker: PlayedBroker, partitions: int = 1) -> AuditTopic:
    states = {number: SimpleNamespace(leader=1) for number in range(partitions)}
    topics = {"audit": SimpleNamespace(states=states)} if partitions else {}
    view = cast(ClusterView, SimpleNamespace(topics=topics, brokers={1: None}))
    return AuditTopic("audit", 2, view, lambda _: cast(Peer, broker))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "LINGER_S", 0)
    monkeypatch.setattr(audit_topic, "RETRY_S", 0)


async def until_sent(topic: AuditTopic) -> None:
    if topic._sending is not None:
        await topic._sending


async def test_lines_of_the_audit_log_become_records() -> None:
    broker = PlayedBroker()
    topic = topic_of(broker)
    log = AuditLog(lambda: CATEGORIES)
    log.publish = topic.add
    with capture_logs():
        log.record(ADMINISTRATION, outcome="allowed", principal="User:alice")
    await until_sent(topic)
    (record,) = broker.stored
    assert record.pop("time") > 1_700_000_000_000
    line = {"category": "administration", "outcome": "allowed", "principal": "User:alice"}
    assert record == {"broker": 2, **line}


async def test_records_that_come_together_share_a_batch_and_partitions_take_turns() -> None:
    broker = PlayedBroker()
    topic = topic_of(broker, partitions=3)
    for _ in range(3):
        for number in range(100):
            topic.add({**LINE, "number": number})
        await until_sent(topic)
    assert broker.batches == 3
    assert broker.partitions == [0, 1, 2]
    assert [record["number"] for record in broker.stored] == [*range(100)] * 3


async def test_a_batch_stays_far_below_what_a_topic_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "BATCH_BYTES_MAX", 1_000)
    broker = PlayedBroker()
    topic = topic_of(broker)
    for number in range(20):
        topic.add({**LINE, "number": number, "text": "x" * 400})
    topic.add({**LINE, "number": 20, "text": "x" * 4_000})
    await until_sent(topic)
    assert [record["number"] for record in broker.stored] == [*range(21)]
    assert broker.batches > 10


async def test_a_leader_that_changes_is_tried_again_and_nothing_is_lost() -> None:
    broker = PlayedBroker()
    broker.codes = [6, 19, 6]
    topic = topic_of(broker)
    with capture_logs() as lines:
        topic.add(LINE)
        await until_sent(topic)
    assert len(broker.stored) == 1
    assert [line["event"] for line in lines] == ["audit records wait"]


@pytest.mark.parametrize("trouble", ["no topic", "away", "refused"])
async def test_what_a_broken_topic_does_not_take_is_left_out_and_counted(trouble: str) -> None:
    broker = PlayedBroker()
    broker.is_reachable = trouble != "away"
    broker.codes = [29] * 1_000 if trouble == "refused" else []
    topic = topic_of(broker, partitions=0 if trouble == "no topic" else 1)
    with capture_logs() as lines:
        topic.add(LINE)
        topic.add(LINE)
        await until_sent(topic)
    assert lines[-1]["event"] == "audit records left out of the topic"
    assert lines[-1]["count"] == 2
    broker.codes, broker.is_reachable = [], True
    if trouble != "no topic":
        topic.add(LINE)  # a topic that is well again gets what comes
        await until_sent(topic)
        assert len(broker.stored) == 1


async def test_records_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_topic, "RECORDS_WAITING_MAX", 5)
    broker = PlayedBroker()
    topic = topic_of(broker)
    with capture_logs() as lines:
        for _ in range(8):
            topic.add(LINE)
        await until_sent(topic)
    assert len(broker.stored) == 5
    assert lines[-1]["count"] == 3


async def test_a_stop_sends_what_waits_and_does_not_wait_for_a_broken_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = PlayedBroker()
    topic = topic_of(broker)
    topic.add(LINE)
    await topic.stop()
    assert len(broker.stored) == 1
    monkeypatch.setattr(audit_topic, "STOP_S_MAX", 0.05)
    monkeypatch.setattr(audit_topic, "RETRY_S", 60)
    broker.is_reachable = False
    broken = topic_of(broker)
    broken.add(LINE)
    with capture_logs() as lines:
        await asyncio.wait_for(broken.stop(), 5)
        assert lines[-1]["count"] == 1
        broken.add(LINE)  # of a connection that is closed last
    assert broken._sending is None
