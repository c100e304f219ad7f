from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.api.init_producer_id import handle
from mainstem_broker.errors import CoordinatorLoadInProgress, ProtocolError
from mainstem_broker.protocol.wire import Body


class PlayedIds:
    """Gives ids from 100 on, or fails."""

    def __init__(self, failure: ProtocolError | None = None) -> None:
        self._failure = failure
        self._next = 100

    async def take(self) -> int:
        if self._failure is not None:
            raise self._failure
        self._next += 1
        return self._next - 1


def ask(*, ids: PlayedIds | None = None, **request: Any) -> Body:
    broker = SimpleNamespace(member=SimpleNamespace(producer_ids=ids or PlayedIds()), authorizer=None)
    requested = SimpleNamespace(
        **{
            "transactional_id": None,
            "producer_id": -1,
            "producer_epoch": -1,
            "transaction_timeout": 0,
            **request,
        }
    )
    answer = handle(
        cast(BrokerContext, broker), requested, RequestContext(5, "c", "127.0.0.1:1", "PLAINTEXT")
    )
    return asyncio.run(cast(Any, answer))


@pytest.mark.parametrize("epoch", [-1, 4, 2**15 - 1])
def test_a_request_that_names_an_id_gets_a_new_one(epoch: int) -> None:
    """Anybody can name any id. The next epoch of an id would fence the producer that owns it."""
    answer = ask(producer_id=7, producer_epoch=epoch)
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (0, 100, 0)


def test_without_ids_the_client_is_to_ask_again() -> None:
    answer = ask(ids=PlayedIds(CoordinatorLoadInProgress("Ask again.")))
    assert (answer["error_code"], answer["producer_id"], answer["producer_epoch"]) == (
        CoordinatorLoadInProgress.code,
        -1,
        -1,
    )
