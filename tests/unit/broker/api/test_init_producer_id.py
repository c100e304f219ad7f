from __future__ import annotations

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.errors import CoordinatorLoadInProgress


@pytest.mark.parametrize("epoch", [-1, 4, 2**15 - 1])
async def test_a_request_that_names_an_id_gets_a_new_one(broker: LocalBroker, epoch: int) -> None:
    """Anybody can name any id. The next epoch of an id would fence the producer that owns it."""
    request = {"transactional_id": None, "producer_id": 7, "producer_epoch": epoch}
    answer = await broker.answer("InitProducerId", 5, request)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (0, 1000, 0)


async def test_without_ids_the_client_is_to_ask_again(broker: LocalBroker) -> None:
    broker.cluster.failure = CoordinatorLoadInProgress("Ask again.")
    answer = await broker.answer("InitProducerId", 5, {"transactional_id": None})
    expected = (CoordinatorLoadInProgress.code, -1, -1)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == expected
