from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient
from tests.unit.broker.server.peers import until

from mainstem_broker.cluster import producer_ids, znodes
from mainstem_broker.cluster.producer_ids import (
    BLOCK_IDS,
    INVENTED_IDS_MIN,
    PREFETCH_IDS,
    ProducerIds,
    next_block,
)
from mainstem_broker.cluster.restores import IDS_PER_RESTORE
from mainstem_broker.cluster.zookeeper import ZooKeeper
from mainstem_broker.errors import CoordinatorLoadInProgress, UnknownServerError

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "WAIT_S_MAX", 120)


@asynccontextmanager
async def ids_of(servers: str, broker_id: int = 1) -> AsyncIterator[ProducerIds]:
    zookeeper = ZooKeeper(servers, 30_000, lambda _: None)
    await zookeeper.start(120)
    await zookeeper.ensure_paths([znodes.CHANGES])
    try:
        yield ProducerIds(zookeeper, broker_id)
    finally:
        await zookeeper.stop()


def block_in(shell: KazooClient) -> dict[str, object]:
    result = json.loads(shell.get(znodes.PRODUCER_ID_BLOCK)[0])
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("last", "largest_used", "start"),
    [
        (range(0), -1, 0),
        (range(7000, 8000), 7999, 8000),
        (range(7000, 8000), 8000, 8000 + IDS_PER_RESTORE),  # given since a backup
        (range(0), 41, 41 + IDS_PER_RESTORE),  # given by Apache Kafka
        (range(7000, 8000), INVENTED_IDS_MIN, 8000),  # by a client
    ],
)
def test_r43_a_block_leaves_a_gap_to_ids_that_zookeeper_does_not_know(
    last: range, largest_used: int, start: int
) -> None:
    assert next_block(last, largest_used) == range(start, start + BLOCK_IDS)


async def test_the_first_ids_come_from_the_first_block_written_as_kafka_writes_it(
    servers: str, shell: KazooClient
) -> None:
    async with ids_of(servers, broker_id=3) as ids:
        assert [await ids.take() for _ in range(3)] == [0, 1, 2]

    assert block_in(shell) == {"version": 1, "broker": 3, "block_start": "0", "block_end": "999"}


async def test_ids_go_on_after_the_block_given_last(servers: str, shell: KazooClient) -> None:
    given = b'{"version":1,"broker":9,"block_start":"7000","block_end":"7999"}'
    shell.create(znodes.PRODUCER_ID_BLOCK, given)

    async with ids_of(servers) as ids:
        assert await ids.take() == 8000

    assert (block_in(shell)["block_start"], block_in(shell)["block_end"]) == ("8000", "8999")


async def test_the_next_block_is_taken_at_ninety_percent(servers: str, shell: KazooClient) -> None:
    async with ids_of(servers) as ids:
        for _ in range(BLOCK_IDS - PREFETCH_IDS):
            await ids.take()
        assert block_in(shell)["block_start"] == "0"
        await ids.take()
        await until(lambda: block_in(shell)["block_start"] == "1000")
        rest = [await ids.take() for _ in range(PREFETCH_IDS + 4)]
        assert rest == list(range(BLOCK_IDS - PREFETCH_IDS + 1, BLOCK_IDS + 5))


async def test_brokers_that_ask_at_once_get_blocks_of_their_own(servers: str) -> None:
    async with ids_of(servers, 1) as one, ids_of(servers, 2) as two, ids_of(servers, 3) as three:
        result = await asyncio.gather(*(ids.take() for ids in (one, two, three) * 400))
        assert len(set(result)) == 1200
        blocks = [{number // BLOCK_IDS for number in result[first::3]} for first in range(3)]
        assert all(len(block) == 1 for block in blocks)
        assert set.union(*blocks) == {0, 1, 2}


async def test_without_zookeeper_clients_have_to_retry_and_then_get_ids(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_ids, "WAIT_S_MAX", 0.05)

    async with ids_of(servers) as ids:
        zookeeper = ids._zookeeper
        answer = asyncio.Event()
        get = zookeeper.get

        async def late(path: str) -> object:
            await answer.wait()
            return await get(path)

        monkeypatch.setattr(zookeeper, "get", late)
        for _ in range(2):
            with pytest.raises(CoordinatorLoadInProgress, match="try again"):
                await ids.take()
        answer.set()
        await until(lambda: ids._next is not None)
        assert await ids.take() == 0
    # Its session has ended; what is left of the block is still good.
    assert [await ids.take() for _ in range(BLOCK_IDS - 1)] == list(range(1, BLOCK_IDS))
    with pytest.raises(CoordinatorLoadInProgress):
        await ids.take()


async def test_the_last_id_there_is(servers: str, shell: KazooClient) -> None:
    end = 2**63 - 500
    given = f'{{"version":1,"broker":9,"block_start":"0","block_end":"{end}"}}'
    shell.create(znodes.PRODUCER_ID_BLOCK, given.encode())

    async with ids_of(servers) as ids:
        with pytest.raises(UnknownServerError, match="no producer ids left"):
            await ids.take()
