from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import pytest
from kazoo.client import KazooClient
from tests.unit.broker.cluster.members import Member, joined

from mainstem_broker.cluster import znodes
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.errors import (
    InvalidConfig,
)

pytestmark = pytest.mark.processes


# --- Deletion ---


async def test_a_deleted_topic_is_noted_until_every_holder_has_removed_its_files(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        topic_id = await one.create("t", [1, 2])
        await two.until(lambda: two.knows("t"))
        await one.administration.delete_topic("t", topic_id)
        await two.until(lambda: "t" not in two.view.topics)
        assert await two.administration.deleted_topics() == {topic_id: "t"}

        waiting = asyncio.create_task(one.administration.wait_removed(topic_id, lambda: {1, 2}, 8000))
        await two.administration.forget_deleted_topic(topic_id)
        await two.administration.forget_deleted_topic(topic_id)
        assert await one.administration.deleted_topics() == {topic_id: "t"}
        await one.administration.wait_removed(topic_id, lambda: {2}, 8000)
        await one.administration.forget_deleted_topic(topic_id)
        assert await one.administration.deleted_topics() == {}
        await waiting
        await one.administration.forget_deleted_topic(topic_id)


async def test_holders_that_forget_at_the_same_time_leave_nothing(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two, joined(3, servers) as three:
        for _ in range(5):
            topic_id = uuid4()
            path = f"{znodes.DELETED_TOPICS}/{znodes.encode_uuid(topic_id)}"
            data = znodes.encode_deleted_topic("t", frozenset({1, 2, 3}))
            assert await one._zookeeper.create(path, data)
            await asyncio.gather(
                *(member.administration.forget_deleted_topic(topic_id) for member in (one, two, three))
            )
            assert await one.administration.deleted_topics() == {}


async def test_to_wait_for_a_holder_that_does_nothing_ends_with_the_time(one: Member) -> None:
    topic_id = await one.create("t", [1])
    await one.until(lambda: one.knows("t"))
    await one.administration.delete_topic("t", topic_id)
    await one.until(lambda: "t" not in one.view.topics)
    await one.administration.wait_removed(topic_id, lambda: {1}, 20)
    await one.administration.wait_removed(topic_id, set, 8000)


# --- Settings ---


async def test_settings_changed_by_many_at_once_lose_nothing(servers: str) -> None:
    async with joined(1, servers) as one, joined(2, servers) as two:
        await one.create("t", [1])

        def adding(name: str) -> object:
            def change(settings: Mapping[str, str]) -> Mapping[str, str]:
                return {**settings, name: "1"}

            return change

        names = ["retention.ms", "segment.ms", "flush.ms"]
        await asyncio.gather(
            *(
                member.administration.change_config("topics/t", adding(name))  # type: ignore[arg-type]  # it is one
                for member, name in zip((one, two, one), names, strict=True)
            )
        )
        await two.until(lambda: "t" in two.view.topics and two.view.topics["t"].config.keys() == set(names))


async def test_settings_that_others_change_without_end_are_given_up_with_a_word(
    one: Member, shell: KazooClient
) -> None:
    shell.create("/config/brokers/1", znodes.encode_config({}))

    def change(settings: Mapping[str, str]) -> Mapping[str, str]:
        shell.set("/config/brokers/1", znodes.encode_config({}))
        return settings

    with pytest.raises(InvalidConfig, match="settings of brokers/1 are being changed by others"):
        await one.administration.change_config("brokers/1", change)


async def test_what_is_written_is_what_zookeeper_shell_shows(one: Member, shell: KazooClient) -> None:
    """R18."""

    topic_id = await one.create("t", [1], {"retention.ms": "5"})
    await one.until(lambda: one.knows("t"))
    data, stat = shell.get("/brokers/topics/t")
    assert TopicAssignment.decode("t", data, stat.version).topic_id == topic_id
    assert shell.get("/config/topics/t")[0] == b'{"version":1,"config":{"retention.ms":"5"}}'
    assert shell.get("/brokers/topics/t/partitions/0/state")[0] == (
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1],"incarnations":{"1":0}}'
    )
