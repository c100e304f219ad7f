"""What a request takes of its client's quotas; requests go through the router, as from a client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.api.brokers import LocalBroker, batch, make, run
from tests.unit.broker.protocol.schemas import encode_request, request_schema
from tests.unit.broker.server.test_router import response

from mainstem_broker.protocol.wire import Frame
from mainstem_broker.quota.client_quotas import DEFAULT, QuotaEntity, QuotaKind
from mainstem_broker.server import metering
from mainstem_broker.server.connection import Connection, Later
from mainstem_broker.server.router import Router

SPAN_SECONDS = 10


class Caller:
    """A connection that notes for how many seconds it was muted."""

    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.muted_s: list[float] = []

    def mute(self, duration_s: float) -> None:
        self.muted_s.append(duration_s)


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between two requests, however busy the machine is."""
    monkeypatch.setattr(metering, "monotonic", lambda: 1.0)


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    broker = LocalBroker(tmp_path)
    broker.create("t")
    return broker


def limit(broker: LocalBroker, kind: QuotaKind, per_second: float, client_id: str = "client") -> None:
    broker.context.quotas.replace({QuotaEntity(None, client_id): {kind: str(per_second)}})


async def ask(broker: LocalBroker, key: int, version: int, values: dict[str, Any]) -> tuple[Any, list[float]]:
    """(the answer, for how long the connection was muted)."""
    caller = Caller()
    frame = encode_request(make(request_schema(key, version), values), 5, "client")
    answer = Router(broker.context, "PLAINTEXT", {}).handle(
        cast(Connection, caller), memoryview(frame).toreadonly()
    )
    if isinstance(answer, Later):
        body = await answer.body
        answer = None if body is None else answer.encode(body)
    if answer is None:
        return None, caller.muted_s
    return response(key, version, cast(Frame, answer)), caller.muted_s


def produce(size: int, acks: int = 1) -> dict[str, Any]:
    data = [{"index": 0, "records": batch([b"x" * size])}]
    return {"acks": acks, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": data}]}


def fetch(version: int = 12, **more: Any) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topic = {"topic": "t"} if version <= 12 else {"topic_id": more.pop("topic_id")}
    return {"max_wait": 0, "min_bytes": 1, "topics": [{**topic, "partitions": [asked]}], **more}


def test_a_produce_is_charged_with_its_bytes_and_answered_at_once(broker: LocalBroker) -> None:
    async def test() -> None:
        limit(broker, QuotaKind.PRODUCER_BYTE_RATE, 1_000)
        answer, muted = await ask(broker, 0, 9, produce(9_000))
        assert (answer.throttle_time.total_seconds(), muted) == (0, []), "ten seconds' worth are saved up"
        answer, muted = await ask(broker, 0, 9, produce(9_000))
        (seconds,) = muted
        assert 8 < seconds < 9
        assert answer.throttle_time.total_seconds() == seconds
        assert broker.partition("t").log.log_end_offset == 2, "nothing is refused"

    run(test())


def test_without_an_answer_the_connection_waits_all_the_same(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.PRODUCER_BYTE_RATE, 10)
    answer, muted = run(ask(broker, 0, 9, produce(9_000, acks=0)))
    assert answer is None
    assert muted


def test_a_fetch_is_charged_with_the_records_it_gets(broker: LocalBroker) -> None:
    async def test() -> None:
        broker.append("t", [b"x" * 5_000])
        size = broker.partition("t").log.size_bytes
        limit(broker, QuotaKind.CONSUMER_BYTE_RATE, size / SPAN_SECONDS)
        answer, muted = await ask(broker, 1, 12, fetch())
        assert (len(answer.responses[0].partitions[0].records), muted) == (size, [])
        _, (seconds,) = await ask(broker, 1, 12, fetch())
        assert seconds == pytest.approx(SPAN_SECONDS, rel=0.1)

    run(test())


def test_a_fetch_gets_what_it_need_not_wait_for_but_at_least_a_batch(broker: LocalBroker) -> None:
    async def test() -> None:
        for _ in range(5):
            broker.append("t", [b"x" * 5_000])
        size = broker.partition("t").log.size_bytes // 5
        for batches, rate in ((2, 2.5 * size), (1, 1)):
            limit(broker, QuotaKind.CONSUMER_BYTE_RATE, rate / SPAN_SECONDS)
            answer, _ = await ask(broker, 1, 12, fetch())
            assert len(answer.responses[0].partitions[0].records) == batches * size

    run(test())


def test_a_fetch_that_waited_is_charged_when_it_is_answered(broker: LocalBroker) -> None:
    async def test() -> None:
        limit(broker, QuotaKind.CONSUMER_BYTE_RATE, 10)
        waiting = asyncio.ensure_future(ask(broker, 1, 12, {**fetch(), "max_wait": 5_000}))
        await asyncio.sleep(0.01)
        broker.append("t", [b"x" * 5_000])
        _, muted = await waiting
        assert muted

    run(test())


def test_followers_are_not_held_back(broker: LocalBroker) -> None:
    async def test() -> None:
        broker.append("t", [b"x" * 5_000])
        for kind in (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE):
            limit(broker, kind, 0.000001, DEFAULT)
            topic_id = broker.view.topics["t"].topic_id
            replica = {"replica_id": 2, "replica_epoch": 0}
            asked = fetch(17, topic_id=topic_id, replica_state=replica)
            _, muted = await ask(broker, 1, 17, asked)
            assert muted == []

    run(test())


def test_any_request_is_charged_with_the_time_that_it_takes(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.REQUEST_PERCENTAGE, 0.000001)
    answer, muted = run(ask(broker, 3, 9, {"topics": None}))
    assert muted == [1.0], "one window is the longest wait"
    assert answer.throttle_time.total_seconds() == 1


def test_clients_that_no_quota_names_are_not_told_to_wait(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.PRODUCER_BYTE_RATE, 1, "another")
    answer, muted = run(ask(broker, 0, 9, produce(9_000)))
    assert (answer.throttle_time.total_seconds(), muted) == (0, [])
