"""Produce within transactions: the coordinator is asked before one begins in a partition (KIP-890, R11)."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LISTENER, NOW_MS, LocalBroker, PlayedVerifier
from tests.unit.broker.log.transactional import COMMIT, transactional_batch

from mainstem_broker.api import produce
from mainstem_broker.api.context import RequestContext
from mainstem_broker.api.transaction_verification import produce_error
from mainstem_broker.protocol.produce_codec import ProduceData, ProduceRequest, ProduceTopic
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.transaction_markers import append_marker

PRODUCER = 7


def verifier(broker: LocalBroker) -> PlayedVerifier:
    return cast(PlayedVerifier, broker.context.verifier)


async def send(
    broker: LocalBroker,
    *batches: bytes,
    version: int = 11,
    transactional_id: str | None = "orders",
    topic: str = "t",
) -> list[str]:
    """The error of each partition, from 0 on, after a produce as the router handles it."""
    data = [ProduceData(index, memoryview(batch)) for index, batch in enumerate(batches)]
    topics = [ProduceTopic(topic, data)]
    request = ProduceRequest(transactional_id, -1, timedelta(seconds=1), topics)
    context = RequestContext(version, "client", "127.0.0.1:1", LISTENER)
    preparing = produce.prepare(broker.context, request, context)
    prepared = request if preparing is None else await preparing
    body = cast(Body, produce.handle(broker.context, prepared, context))
    (answered,) = body["responses"]
    return [ErrorCode(answer["error_code"]).name for answer in answered["partition_responses"]]


def end(broker: LocalBroker, epoch: int = 0, *, raises_epoch: bool = False) -> None:
    append_marker(broker.partition("t"), PRODUCER, epoch, COMMIT, raises_epoch=raises_epoch, now_ms=NOW_MS)


@pytest.mark.parametrize(("version", "add"), [(9, False), (11, False), (12, True)])
async def test_only_the_first_batch_of_a_transaction_asks_the_coordinator(
    broker: LocalBroker, version: int, add: bool
) -> None:
    broker.create("t", (1, 1))
    first = await send(broker, transactional_batch(PRODUCER), transactional_batch(PRODUCER), version=version)
    assert first == ["none", "none"]
    assert await send(broker, transactional_batch(PRODUCER, 1), version=version) == ["none"]
    assert verifier(broker).requested == [("orders", PRODUCER, 0, [("t", 0), ("t", 1)], add)]
    assert broker.partition("t").last_stable_offset == 0


async def test_partitions_that_are_not_in_the_transaction_fail_one_by_one(broker: LocalBroker) -> None:
    broker.create("t", (1, 1))
    verifier(broker).codes = {("t", 1): ErrorCode.transaction_abortable.value}
    batches = transactional_batch(PRODUCER), transactional_batch(PRODUCER)
    assert await send(broker, *batches, version=11) == ["none", "transaction_abortable"]
    assert broker.partition("t", 1).log.log_end_offset == 0


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        ("transaction_abortable", 10, "invalid_txn_state"),
        ("invalid_txn_state", 11, "transaction_abortable"),
        ("producer_fenced", 11, "invalid_producer_epoch"),
        ("invalid_producer_epoch", 12, "invalid_producer_epoch"),
        ("invalid_producer_id_mapping", 11, "invalid_producer_id_mapping"),
        ("concurrent_transactions", 11, "not_enough_replicas"),
        ("concurrent_transactions", 12, "concurrent_transactions"),
        ("coordinator_not_available", 12, "not_enough_replicas"),
        ("coordinator_load_in_progress", 11, "not_enough_replicas"),
        ("not_coordinator", 11, "not_enough_replicas"),
        ("unknown_topic_or_partition", 11, "unknown_server_error"),
    ],
)
def test_the_coordinators_errors_become_those_that_producers_handle(
    code: str, version: int, expected: str
) -> None:
    error = produce_error(ErrorCode[code].value, version)
    assert ErrorCode(error.code).name == expected


async def test_a_batch_that_passes_its_refused_first_one_has_to_wait(broker: LocalBroker) -> None:
    broker.create("t")
    verifier(broker).codes = {("t", 0): ErrorCode.coordinator_not_available.value}
    assert await send(broker, transactional_batch(PRODUCER)) == ["not_enough_replicas"]
    verifier(broker).codes = {}
    assert await send(broker, transactional_batch(PRODUCER, 1)) == ["out_of_order_sequence_number"]
    assert await send(broker, transactional_batch(PRODUCER)) == ["none"]
    assert await send(broker, transactional_batch(PRODUCER, 1)) == ["none"]


async def test_kip_890_a_marker_during_the_verification_makes_it_void(broker: LocalBroker) -> None:
    broker.create("t")
    await send(broker, transactional_batch(PRODUCER))
    end(broker)
    verifier(broker).meanwhile = lambda: end_once_more(broker)
    assert await send(broker, transactional_batch(PRODUCER, 1)) == ["invalid_txn_state"]
    assert broker.partition("t").last_stable_offset == broker.partition("t").high_watermark


def end_once_more(broker: LocalBroker) -> None:
    marker = COMMIT._replace(coordinator_epoch=1)
    append_marker(broker.partition("t"), PRODUCER, 0, marker, raises_epoch=False, now_ms=NOW_MS)


async def test_r12_a_marker_with_the_epochs_of_the_last_one_makes_a_verification_void(
    broker: LocalBroker,
) -> None:
    """The next transaction of the first protocol is aborted before its first batch is in the log."""
    broker.create("t")
    await send(broker, transactional_batch(PRODUCER))
    end(broker)
    verifier(broker).meanwhile = lambda: end(broker)
    assert await send(broker, transactional_batch(PRODUCER, 1)) == ["invalid_txn_state"]
    assert broker.partition("t").last_stable_offset == broker.partition("t").high_watermark == 2


async def test_r12_a_leader_that_changed_during_the_verification_lets_the_client_send_again(
    broker: LocalBroker,
) -> None:
    """A transaction that is open must not fail because its verification is void."""
    broker.create("t")
    verifier(broker).meanwhile = broker.partition("t").log.producers.void_verifications
    assert await send(broker, transactional_batch(PRODUCER)) == ["not_leader_or_follower"]
    verifier(broker).meanwhile = lambda: None
    assert await send(broker, transactional_batch(PRODUCER)) == ["none"]


async def test_r12_a_repeated_marker_of_the_second_protocol_leaves_the_next_transaction_alone(
    broker: LocalBroker,
) -> None:
    broker.create("t")
    await send(broker, transactional_batch(PRODUCER), version=12)
    end(broker, 1, raises_epoch=True)
    verifier(broker).meanwhile = lambda: end(broker, 1, raises_epoch=True)
    assert await send(broker, transactional_batch(PRODUCER, epoch=1), version=12) == ["none"]


async def test_a_batch_that_is_sent_again_after_its_transaction_is_not_written_again(
    broker: LocalBroker,
) -> None:
    broker.create("t")
    await send(broker, transactional_batch(PRODUCER))
    end(broker)
    assert await send(broker, transactional_batch(PRODUCER)) == ["none"]
    assert len(verifier(broker).requested) == 1
    assert broker.partition("t").log.log_end_offset == 2


async def test_a_transactional_batch_without_a_transactional_id_is_refused(broker: LocalBroker) -> None:
    broker.create("t")
    answered = await send(broker, transactional_batch(PRODUCER), transactional_id=None)
    assert answered == ["invalid_txn_state"]
    assert verifier(broker).requested == []


async def test_no_coordinator_is_asked_about_partitions_that_are_not_led_here(broker: LocalBroker) -> None:
    broker.create("t", (2,))
    assert await send(broker, transactional_batch(PRODUCER)) == ["not_leader_or_follower"]
    assert verifier(broker).requested == []
