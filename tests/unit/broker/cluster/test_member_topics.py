from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from kazoo.client import KazooClient
from tests.unit.broker.cluster.members import Member, joined

from mainstem_broker.replica.partition_state import NO_LEADER

pytestmark = pytest.mark.processes


async def lead_alone(leader: Member, other: Member) -> None:
    """Partition 0 of topic `t` has two replicas, of which one is in sync."""
    await other.until(lambda: leader.broker_id in other.view.brokers)
    await other.create_replicated("t", [(leader.broker_id, other.broker_id)])
    await leader.until(lambda: leader.knows("t"))
    alone = replace(leader.states_of("t")[0], isr=(leader.broker_id,), partition_epoch=1)
    assert await leader.states.change_state("t", 0, alone, {}) == alone


async def test_elections_that_settings_for_all_brokers_allow_are_held_at_once(
    one: Member, servers: str
) -> None:
    async with joined(2, servers) as two:
        await lead_alone(two, one)
    await one.until(lambda: one.states_of("t")[0].leader == NO_LEADER)
    allowed = {"unclean.leader.election.enable": "true"}
    await one.administration.change_config("brokers/<default>", lambda _: allowed)
    await one.until(lambda: one.states_of("t")[0].leader == 1)
    assert one.states_of("t")[0].recovering


async def test_elections_go_by_settings_for_all_brokers_that_were_read_in_the_same_pass(
    one: Member, servers: str
) -> None:
    """Else records are lost by an election that was forbidden before it was held."""
    change = one.administration.change_config
    await change("brokers/<default>", lambda _: {"unclean.leader.election.enable": "true"})
    await one.until(lambda: one.unclean)
    async with joined(2, servers) as two:
        await lead_alone(two, one)
        await one.until(lambda: one.states_of("t")[0].isr == (2,))
        await one.hold_back()
        await change("brokers/<default>", lambda _: {"unclean.leader.election.enable": "false"})
    one.let_go()
    await one.until(lambda: 2 not in one.view.brokers)
    assert one.states_of("t")[0].leader == NO_LEADER


async def test_a_lone_broker_that_restarts_leads_on_at_once_under_a_new_epoch(
    servers: str, shell: KazooClient
) -> None:
    async with joined(1, servers) as member:
        await member.create("t", [1])
        await member.until(lambda: member.knows("t"))
    async with joined(1, servers) as member:
        await member.until(lambda: member.states_of("t")[0].leader_epoch == 1)
        await member.catch_up(8000)
        assert member.states_of("t")[0].leader == 1
        stat = shell.get("/brokers/topics/t/partitions/0/state")[1]
        assert stat.version == 1, "one write: it was never without a leader"


async def test_wishes_made_while_nobody_leads_are_carried_out_by_the_next_controller(servers: str) -> None:
    async with joined(2, servers) as two:
        async with joined(1, servers) as one:
            gone = await one.create("gone", [2])
            await one.until(lambda: one.knows("gone"))
            await two.hold_back()
            await one.create("t", [2])
            await one.administration.delete_topic("gone", gone)
        two.let_go()
        await two.until(lambda: two.knows("t") and "gone" not in two.view.topics)


async def test_quotas_and_settings_of_groups_are_heard_of_and_found_at_the_start(servers: str) -> None:
    entities = ("users/alice", "users/bob/clients/app", "clients/<default>", "groups/g")
    expected = {entity: {"a": str(number)} for number, entity in enumerate(entities)}

    def take(config: Mapping[str, str], _: Mapping[str, str]) -> Mapping[str, str]:
        return config

    async with joined(1, servers) as one:
        for entity, config in expected.items():
            await one.administration.change_config(entity, partial(take, config))
        await one.until(lambda: one.view.entity_configs == expected)
        assert set(entities) <= {entity for delta in one.news for entity in delta.configs}
        async with joined(2, servers) as two:
            assert two.view.entity_configs == expected, "they were there before it came"
            await one.administration.change_config("users/alice", lambda _: {})
            await two.until(lambda: "users/alice" not in two.view.entity_configs)
