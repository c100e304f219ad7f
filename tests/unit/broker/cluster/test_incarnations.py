from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.broker.cluster.members import WAIT_MS, joined
from tests.unit.broker.server.peers import until

pytestmark = pytest.mark.processes


async def test_each_registration_begins_a_new_life_and_an_unclean_stop_is_noted(servers: str) -> None:
    """KIP-903: what a life after an unclean stop says of its logs is not trusted."""

    lives = []
    for stopped_uncleanly in (True, False, True, False):
        async with joined(1, servers, stopped_uncleanly=stopped_uncleanly) as one:
            me = one.view.brokers[1]
            lives.append((me.incarnation, me.last_unclean))
            assert one.lease.is_held_by(me.incarnation)
        assert not one.lease.is_held_by(me.incarnation), "it has left"
    assert lives == [(0, 0), (1, 0), (2, 2), (3, 2)]


async def test_a_broker_that_retires_gives_its_leaderships_away_before_it_goes(servers: str) -> None:
    """R20: controlled shutdown."""

    async with joined(1, servers) as one, joined(2, servers) as two:
        await two.until(lambda: two.view.brokers.keys() == {1, 2})
        await one.until(lambda: one.view.brokers.keys() == {1, 2})
        await one.create_replicated("t", [(2, 1), (1, 2), (2,)])
        await two.until(lambda: two.knows("t"))
        retiring = asyncio.ensure_future(two.retire(WAIT_MS))
        await two.until(lambda: two.view.brokers[2].leaving)
        # What its replicas do then: a leader hands over by itself.
        await two.until(lambda: two.states_of("t")[1].isr == (1,))
        given = replace(two.states_of("t")[0], leader=1, leader_epoch=1, partition_epoch=1)
        assert await two.states.change_state("t", 0, given, {}) == given
        await retiring
        states = two.states_of("t")
        assert {index: (state.leader, state.isr) for index, state in states.items()} == {
            0: (1, (1,)),
            1: (1, (1,)),
            2: (2, (2,)),
        }
        assert [states[index].leader_epoch for index in range(3)] == [1, 0, 0]
        assert two.states.live_incarnations().keys() == {1}


async def test_a_broker_that_was_taken_for_dead_registers_anew_in_a_new_life(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        await one.until(lambda: 2 in one.view.brokers)
        await one.create("t", [2])
        await one.until(lambda: one.knows("t"))
        await one.controllership.fence(2, 0)
        await one.until(lambda: 2 in one.view.brokers and one.view.brokers[2].incarnation == 1)
        await until(lambda: two.lease.is_held_by(1) and two.lease.is_valid())
        assert not two.lease.is_held_by(0)
        await one.until(lambda: one.states_of("t")[0].incarnations == {2: 1})
