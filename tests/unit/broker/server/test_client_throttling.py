"""What a request takes of its client's quotas; requests go through the router, as from a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker, batch, make, run
from tests.unit.broker.protocol.schema_strategies import encode_request, request_schema
from tests.unit.broker.server.test_router import response

from mainstem_broker.api.api_table import APIS
from mainstem_broker.quota.client_quotas import DEFAULT, QuotaEntity, QuotaKind
from mainstem_broker.security.principals import ANONYMOUS
from mainstem_broker.server import client_throttling
from mainstem_broker.server.connection import Connection, Hold, Later
from mainstem_broker.server.router import Router

SPAN_SECONDS = 10


class Caller:
    """A connection that notes for how many seconds it was muted."""

    peer = "127.0.0.1:1"
    principal = ANONYMOUS
    login = None

    def __init__(self) -> None:
        self.muted_s: list[float] = []

    def mute(self, duration_s: float) -> None:
        self.muted_s.append(duration_s)


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between two requests, however busy the machine is."""
    monkeypatch.setattr(client_throttling, "monotonic", lambda: 1.0)


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
    while isinstance(answer, Hold):
        await answer.ready
        answer = answer.then()
    if isinstance(answer, Later):
        body = await answer.body
        answer = None if body is None else answer.encode(body)
    if answer is None:
        return None, caller.muted_s
    return response(key, version, answer), caller.muted_s


def produce(size: int, acks: int = 1) -> dict[str, Any]:
    data = [{"index": 0, "records": batch([b"x" * size])}]
    return {"acks": acks, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": data}]}


def fetch(version: int = 12, **more: Any) -> dict[str, Any]:
    request = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topic = {"topic": "t"} if version <= 12 else {"topic_id": more.pop("topic_id")}
    return {"max_wait": 0, "min_bytes": 1, "topics": [{**topic, "partitions": [request]}], **more}


async def test_a_produce_is_charged_with_its_bytes_and_answered_at_once(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.PRODUCER_BYTE_RATE, 1_000)
    answer, muted = await ask(broker, 0, 9, produce(9_000))
    assert (answer.throttle_time.total_seconds(), muted) == (0, []), "ten seconds' worth are saved up"
    answer, muted = await ask(broker, 0, 9, produce(9_000))
    (seconds,) = muted
    assert 8 < seconds < 9
    assert answer.throttle_time.total_seconds() == seconds
    assert broker.partition("t").log.log_end_offset == 2, "nothing is refused"


def test_without_an_answer_the_connection_waits_all_the_same(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.PRODUCER_BYTE_RATE, 10)
    answer, muted = run(ask(broker, 0, 9, produce(9_000, acks=0)))
    assert answer is None
    assert muted


async def test_a_fetch_is_charged_with_the_records_it_gets(broker: LocalBroker) -> None:
    broker.append("t", [b"x" * 5_000])
    size = broker.partition("t").log.size_bytes
    limit(broker, QuotaKind.CONSUMER_BYTE_RATE, size / SPAN_SECONDS)
    answer, muted = await ask(broker, 1, 12, fetch())
    assert (len(answer.responses[0].partitions[0].records), muted) == (size, [])
    _, (seconds,) = await ask(broker, 1, 12, fetch())
    assert seconds == pytest.approx(SPAN_SECONDS, rel=0.1)


async def test_a_fetch_gets_what_it_need_not_wait_for_but_at_least_a_batch(broker: LocalBroker) -> None:
    for _ in range(5):
        broker.append("t", [b"x" * 5_000])
    size = broker.partition("t").log.size_bytes // 5
    for batches, rate in ((2, 2.5 * size), (1, 1)):
        limit(broker, QuotaKind.CONSUMER_BYTE_RATE, rate / SPAN_SECONDS)
        answer, _ = await ask(broker, 1, 12, fetch())
        assert len(answer.responses[0].partitions[0].records) == batches * size


async def test_a_fetch_that_waited_is_charged_when_it_is_answered(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.CONSUMER_BYTE_RATE, 10)
    waiting = asyncio.ensure_future(ask(broker, 1, 12, {**fetch(), "max_wait": 5_000}))
    await settle()
    broker.append("t", [b"x" * 5_000])
    _, muted = await waiting
    assert muted


async def test_followers_are_not_held_back(broker: LocalBroker) -> None:
    broker.append("t", [b"x" * 5_000])
    for kind in (QuotaKind.CONSUMER_BYTE_RATE, QuotaKind.REQUEST_PERCENTAGE):
        limit(broker, kind, 0.000001, DEFAULT)
        topic_id = broker.view.topics["t"].topic_id
        replica = {"replica_id": 2, "replica_epoch": 0}
        requested = fetch(17, topic_id=topic_id, replica_state=replica)
        _, muted = await ask(broker, 1, 17, requested)
        assert muted == []


@pytest.mark.parametrize("waits_ms", [(0, 700, 300), (700, 0, 0), (0, 0, 700)])
def test_a_request_in_slices_answers_the_longest_wait_of_them(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, waits_ms: tuple[int, ...]
) -> None:
    """A client that waited for the first slice only would send its next request while it is muted."""
    limit(broker, QuotaKind.REQUEST_PERCENTAGE, 1_000)
    left = iter(waits_ms)
    monkeypatch.setattr(client_throttling, "_charge", lambda *_: next(left))
    topics = [{"name": f"topic-{number:020}", "partitions": [{"partition_index": 0}]} for number in range(90)]
    answer, muted = run(ask(broker, 2, 9, {"topics": topics}))
    assert len(answer.topics) == 90
    assert not list(left), "each slice was charged"
    assert muted == [wait_ms / 1000 for wait_ms in waits_ms if wait_ms]
    assert answer.throttle_time.total_seconds() == 0.7


def test_any_request_is_charged_with_the_time_that_it_takes(broker: LocalBroker) -> None:
    limit(broker, QuotaKind.REQUEST_PERCENTAGE, 0.000001)
    answer, muted = run(ask(broker, 3, 9, {"topics": None}))
    assert muted == [1.0], "one window is the longest wait"
    assert answer.throttle_time.total_seconds() == 1


@pytest.mark.parametrize(("percentage", "waits"), [(50, False), (49, True)])
async def test_a_handler_that_waits_is_charged_with_its_steps_and_not_with_the_waiting(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, percentage: float, waits: bool
) -> None:
    """R38. Its steps take 2 and 3 s; so they are 50 % of the ten seconds that a client has saved up."""
    now_s = 0.0
    monkeypatch.setattr(client_throttling, "perf_counter", lambda: now_s)
    is_waiting, may_go_on = asyncio.Event(), asyncio.Event()

    async def handler(*_: object) -> dict[str, Any]:
        nonlocal now_s
        now_s += 2
        is_waiting.set()
        await may_go_on.wait()
        now_s += 3
        return {}

    limit(broker, QuotaKind.REQUEST_PERCENTAGE, percentage)
    muted_s: list[float] = []
    answer = asyncio.ensure_future(metered(handler, broker, muted_s))
    await is_waiting.wait()
    now_s += 100
    may_go_on.set()
    await answer
    assert bool(muted_s) is waits


async def test_a_request_that_is_given_up_ends_its_handler(broker: LocalBroker) -> None:
    ended, is_waiting = asyncio.Event(), asyncio.Event()

    async def handler(*_: object) -> dict[str, Any]:
        try:
            is_waiting.set()
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {}

    answer = asyncio.ensure_future(metered(handler, broker, []))
    await is_waiting.wait()
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    assert ended.is_set()


def metered(handler: Any, broker: LocalBroker, muted_s: list[float]) -> Awaitable[Any]:
    """What a Metadata request is answered by `handler`, for the client that `limit` names."""
    api = replace(APIS[3], handler=handler)
    context = cast(Any, SimpleNamespace(principal=ANONYMOUS, client_id="client"))
    answer = client_throttling.metered(api, 0, muted_s.append, broker.context, None, context)
    return cast(Awaitable[Any], answer)


async def test_what_a_handler_makes_its_client_wait_for_holds_for_the_connection(broker: LocalBroker) -> None:
    """KIP-599: of topics that exceed controller_mutation_rate."""
    limit(broker, QuotaKind.CONTROLLER_MUTATION_RATE, 0.01)
    topics = [
        {"name": "big", "num_partitions": 10, "replication_factor": 1, "assignments": [], "configs": []}
    ]
    answer, muted = await ask(broker, 19, 4, {"topics": topics, "timeout": 1000, "validate_only": False})
    (seconds,) = muted
    assert 900 < seconds < 1_000
    assert answer.throttle_time.total_seconds() == seconds
