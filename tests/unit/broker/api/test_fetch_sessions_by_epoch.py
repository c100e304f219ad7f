"""The epoch alone says what a fetch is about: the session id of a full one does not matter (KIP-227)."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker, run
from tests.unit.broker.api.test_fetch import request

NO_SUCH_SESSION = 77


def fetch(session_id: int, epoch: int, *, names_topic: bool = True) -> dict[str, Any]:
    named = request({0: 0}, session_id=session_id, session_epoch=epoch)
    return named if names_topic else {**named, "topics": []}


@pytest.fixture
def filled(broker: LocalBroker) -> LocalBroker:
    broker.create("t")
    broker.append("t", [b"a"])
    return broker


@pytest.mark.parametrize("session_id", [0, -1, NO_SUCH_SESSION])
@pytest.mark.parametrize(("epoch", "opens"), [(-1, False), (0, True)])
@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_full_fetch_is_answered_whatever_session_it_names(
    filled: LocalBroker, session_id: int, epoch: int, opens: bool, version: int
) -> None:
    """kafka-go sends -1 for both."""
    body = run(filled.answer("Fetch", version, fetch(session_id, epoch)))
    assert body["error_code"] == 0
    (topic,) = body["responses"]
    (partition,) = topic["partitions"]
    assert (partition["error_code"], partition["high_watermark"]) == (0, 1)
    assert (body["session_id"] > 0) is opens
    assert body["session_id"] != session_id or session_id == 0
    assert len(filled.context.consumer_sessions) == int(opens)


@pytest.mark.parametrize(("epoch", "left"), [(-1, 0), (0, 1)])
async def test_a_full_fetch_closes_the_session_that_it_names(
    filled: LocalBroker, epoch: int, left: int
) -> None:
    session_id = (await filled.answer("Fetch", 11, fetch(0, 0)))["session_id"]
    body = await filled.answer("Fetch", 11, fetch(session_id, epoch))
    assert body["error_code"] == 0
    assert body["session_id"] != session_id
    assert len(filled.context.consumer_sessions) == left
    body = await filled.answer("Fetch", 11, fetch(session_id, 1, names_topic=False))
    assert ErrorCode(body["error_code"]).name == "fetch_session_id_not_found"


@pytest.mark.parametrize("session_id", [0, -1, NO_SUCH_SESSION])
def test_only_an_incremental_fetch_needs_a_session(filled: LocalBroker, session_id: int) -> None:
    body = run(filled.answer("Fetch", 11, fetch(session_id, 1)))
    assert ErrorCode(body["error_code"]).name == "fetch_session_id_not_found"
