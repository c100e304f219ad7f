"""What replicas read and write of the cluster, over a ZooKeeper in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from tests.cluster.simulated_zookeeper import ZooKeeperServer
from tests.unit.broker.cluster.small_clusters import (
    ENDPOINT,
    TOPIC_ID,
    create_topic,
    empty_server,
    feed,
    register,
    session_with,
    view_of,
    written_states,
)
from tests.unit.broker.server.peers import run

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.state_writer import StateWriter
from mainstem_broker.cluster.view import ClusterView
from mainstem_broker.cluster.zookeeper import Create
from mainstem_broker.replica.partition_state import PartitionState

BEFORE = PartitionState(1, 4, (1,), 1, 0, incarnations={1: 0})
AFTER = BEFORE.with_isr((1, 2), {2: 0}, 1)


def server_with_state(partitions: int = 1) -> ZooKeeperServer:
    """All of t is led by broker 1; broker 2 lives its first life."""
    server = empty_server()
    create_topic(server, dict.fromkeys(range(partitions), (1, 2)))
    server.ensure(znodes.partitions_path("t"))
    for partition in range(partitions):
        server.ensure(znodes.partition_path("t", partition))
        server.multi([Create(znodes.state_path("t", partition), znodes.encode_state(BEFORE))], 0)
    register(server, 2, server.open_session())
    return server


async def states_of(server: ZooKeeperServer, view: ClusterView | None = None) -> StateWriter:
    return StateWriter(await session_with(server), 1, view or view_of({1: 0, 2: 0}, {0: (1, 2)}))


async def test_the_living_are_those_who_are_not_about_to_stop() -> None:
    view = view_of({1: 3, 2: 5})
    leaving = znodes.BrokerRegistration(3, (ENDPOINT,), None, incarnation=7, leaving=True)
    view.set_brokers([*view.brokers.values(), leaving])
    assert (await states_of(empty_server(), view)).live_incarnations() == {1: 3, 2: 5}


async def test_a_leaders_proposal_is_written_with_the_feeds_entry_that_carries_it() -> None:
    server = server_with_state()
    states = await states_of(server)
    assert await states.change_state("t", 0, AFTER, {2: 0}) == AFTER
    assert written_states(server) == {0: AFTER}
    assert feed(server)[-1].states == ((TOPIC_ID, 0, AFTER),)
    assert await states.read_state("t", 0) == AFTER


async def test_what_is_proposed_together_is_written_together_and_what_cannot_be_holds_nothing_up() -> None:
    partitions = range(5)
    server = server_with_state(len(partitions))
    states = await states_of(server, view_of({1: 0, 2: 0}, dict.fromkeys(partitions, (1, 2))))
    late = replace(BEFORE, partition_epoch=7)
    proposals = {partition: late if partition == 3 else AFTER for partition in partitions}
    held = await asyncio.gather(
        *(states.change_state("t", partition, state, {2: 0}) for partition, state in proposals.items())
    )
    assert held == [AFTER, AFTER, AFTER, BEFORE, AFTER]
    assert written_states(server) == dict(zip(partitions, held, strict=True))
    assert [len(entry.states) for entry in feed(server)] == [2, 1, 1], "halved until it goes"


async def test_a_proposal_of_a_session_that_is_gone_is_not_written_in_the_next_one() -> None:
    server = server_with_state(2)
    zookeeper = await session_with(server)
    states = StateWriter(zookeeper, 1, view_of({1: 0, 2: 0}, dict.fromkeys((0, 1), (1, 2))))
    under_way = asyncio.create_task(states.change_state("t", 0, AFTER, {}))
    for _ in range(2):
        await asyncio.sleep(0)  # the request is on its way
    waiting = asyncio.create_task(states.change_state("t", 1, AFTER, {}))
    await asyncio.sleep(0)
    zookeeper.cut()
    server.expire(zookeeper.session_id)
    zookeeper.mend()
    assert await under_way is None
    assert await waiting is None
    assert written_states(server)[1] == BEFORE


async def test_a_proposal_that_comes_too_late_changes_nothing_and_gets_what_holds() -> None:
    server = server_with_state()
    states = await states_of(server)
    await states.change_state("t", 0, AFTER, {})
    late = BEFORE.with_isr((1, 3), {3: 0}, 1)
    assert await states.change_state("t", 0, late, {}) == AFTER
    assert written_states(server) == {0: AFTER}
    assert len(feed(server)) == 1


async def test_a_member_whose_life_has_ended_meanwhile_does_not_join() -> None:
    """KIP-903: the new life may have lost what the old one had."""

    server = server_with_state()
    states = await states_of(server)
    assert await states.change_state("t", 0, AFTER, {2: 1}) == BEFORE
    assert written_states(server) == {0: BEFORE}


async def test_without_an_answer_nothing_is_known() -> None:
    zookeeper = await session_with(server_with_state())
    states = StateWriter(zookeeper, 1, view_of({1: 0, 2: 0}, {0: (1, 2)}))
    for ask in (
        states.change_state("t", 0, AFTER, {}),
        states.read_state("t", 0),
        states.announce("t", 0, AFTER),
    ):
        asking = asyncio.create_task(ask)
        for _ in range(2):
            await asyncio.sleep(0)  # the request is on its way
        zookeeper.cut()
        assert await asking is None
        zookeeper.mend()


async def test_what_does_not_exist_is_not_known() -> None:
    states = await states_of(server_with_state(), view_of({1: 0}))
    assert await states.change_state("t", 0, AFTER, {}) is None
    assert await states.read_state("t", 9) is None


async def test_a_claim_is_written_and_a_later_one_takes_its_place() -> None:
    server = server_with_state()
    states = await states_of(server)
    for claim in (znodes.Claim(1, 0, 4, 10), znodes.Claim(1, 1, 4, 8)):
        assert list(await states.claim({("t", 0): claim})) == [("t", 0)]
        node = server.get(znodes.claim_path("t", 0, 1))
        assert node is not None
        assert znodes.Claim.decode(1, node.data) == claim
    assert [entry.claims for entry in feed(server)] == [(("t", 0),)] * 2


async def test_r40_claims_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(znodes, "STATES_PER_MULTI", 2)
    server = server_with_state(3)
    keys = [("t", partition) for partition in range(3)]
    states = await states_of(server)
    assert list(await states.claim({key: znodes.Claim(1, 0, 4, 10) for key in keys})) == keys
    assert [entry.claims for entry in feed(server)] == [tuple(keys[:2]), tuple(keys[2:])]


def test_a_claim_that_cannot_be_written_is_reported_and_holds_up_no_other() -> None:
    async def test() -> None:
        states = await states_of(server_with_state())
        claims = {key: znodes.Claim(1, 0, 4, 10) for key in (("gone", 0), ("t", 0))}
        assert list(await states.claim(claims)) == [("t", 0)]

    with capture_logs() as lines:
        run(test())
    assert [(line["event"], line["first"]) for line in lines] == [("claims not written", ("gone", 0))]
