from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from tests.unit.broker.cluster.members import Member, joined

from mainstem_broker.replica.partition_state import NO_LEADER

pytestmark = pytest.mark.processes


async def test_states_that_another_wrote_first_are_read_and_planned_anew(
    one: Member, servers: str, shell: KazooClient
) -> None:
    await one.create("t", [1])
    await one.until(lambda: one.knows("t"))
    async with joined(2, servers):
        await one.create("u", [2])
        await one.until(lambda: one.knows("u"))
        path = "/brokers/topics/u/partitions/0/state"
        shell.set(path, shell.get(path)[0])  # its version is now another than the controller knows
    await one.until(lambda: one.states_of("u")[0].leader == NO_LEADER)
    assert one.states_of("u")[0].partition_epoch == 2


async def test_a_deletion_goes_on_where_a_controller_died(servers: str, shell: KazooClient) -> None:
    """With the partitions' nodes gone and the topic's own still there."""

    async with joined(2, servers) as two:
        async with joined(1, servers) as one:
            topic_id = await one.create("t", [1, 1])
            await two.until(lambda: two.knows("t"))
            await two.hold_back()
            await one.administration.delete_topic("t", topic_id)
            shell.delete("/brokers/topics/t/partitions/1", recursive=True)
        two.let_go()
        await two.until(lambda: "t" not in two.view.topics)
        assert shell.exists("/brokers/topics/t") is None
        assert shell.exists("/admin/delete_topics/t") is None
        assert await two.administration.deleted_topics() == {topic_id: "t"}
