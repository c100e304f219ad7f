"""Requests that are odd, and valid by their schema, are answered: none closes the connection (R40).

Each variant has one field with a value that programs forget: the ends of integers and times, null where it is
allowed, no element or the same one twice, tagged fields in another form. What is odd is read off the schemas,
so a field of a later version is covered when it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.waiting import settle
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.protocol.odd_requests import TOPIC_ID, Bytes, variants
from tests.unit.broker.protocol.schema_strategies import REQUESTS, request_schema
from tests.unit.broker.server.test_router import handle

from mainstem_broker.api.api_table import APIS
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.protocol.codec import decode_header, decode_request
from mainstem_broker.server.connection import Hold, Later
from mainstem_broker.txn.coordinator import TRANSACTIONS_TOPIC

SERVED: Final = [pytest.param(key, version, id=f"{APIS[key].name}-v{version}") for key, version in REQUESTS]


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_an_odd_request_is_read(key: int, version: int) -> None:
    refused = []
    for variant in variants(key, version):
        frame = memoryview(Bytes(request_schema(key, version), variant).content).toreadonly()
        header, position = decode_header(frame)
        try:
            decode_request(header, frame, position, APIS[key].model_for(version))
        except Exception as error:  # noqa: BLE001  # all that differ are of interest
            refused.append(f"{variant.path} {variant.what}: {error}")
    assert not refused, "\n".join(refused)


def _models() -> Iterator[tuple[int, int]]:
    """Each served version that differs from the one below for a handler: the lowest, and the models."""
    for key, api in APIS.items():
        for version in sorted({api.min_version, *api.models}):
            yield key, version


@pytest.fixture
async def coordinating(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    """A broker that leads a topic, and coordinates all groups and transactions."""
    broker = LocalBroker(tmp_path)
    broker.create("t", topic_id=TOPIC_ID)
    broker.create(OFFSETS_TOPIC)
    broker.create(TRANSACTIONS_TOPIC)
    for shards in (broker.context.groups.shards, broker.context.transactions.shards):
        shards.follow(0)
        await shards.loading(0)
    yield broker
    for shards in (broker.context.groups.shards, broker.context.transactions.shards):
        await shards.stop()


@pytest.mark.parametrize(
    ("key", "version"),
    [pytest.param(key, version, id=f"{APIS[key].name}-v{version}") for key, version in _models()],
)
async def test_an_odd_request_is_answered(coordinating: LocalBroker, key: int, version: int) -> None:
    """Or waits: a longest wait of 24 days is valid, too."""
    refused = []
    for variant in variants(key, version):
        if "t" not in coordinating.view.topics:  # a variant before has deleted it
            coordinating.create("t", topic_id=TOPIC_ID)
        frame = Bytes(request_schema(key, version), variant).content
        try:
            await answer(coordinating, frame)
        except Exception as error:  # noqa: BLE001  # all that differ are of interest
            refused.append(f"{variant.path} {variant.what}: {type(error).__name__} {error}")
    assert not refused, "\n".join(refused)


async def answer(broker: LocalBroker, frame: bytes) -> None:
    """What the connection does with the request, up to where it has to wait."""
    given = handle(broker, frame)
    while isinstance(given, Hold):
        ready = asyncio.ensure_future(given.ready)
        await settle()
        if not ready.done():
            ready.cancel()
            return
        ready.result()
        given = given.then()
    if isinstance(given, Later):
        body = asyncio.ensure_future(given.body)
        await settle()
        if not body.done():
            body.cancel()
            return
        made = body.result()
        if made is not None:
            given.encode(made)
