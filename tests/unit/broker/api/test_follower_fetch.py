"""Sessions of followers (KIP-227) against a real leader: what is told, and what is not told again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.replica.replicas import LIFE, state_of

from mainstem_broker.api import follower_fetch
from mainstem_broker.cluster.znodes import TopicAssignment
from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.fetch_codec import FetchRequest, ForgottenTopic, ReplicaState
from mainstem_broker.protocol.wire import Body
from mainstem_broker.replica.follower_sessions import FollowerSession

US, FOLLOWER, OTHER = 1, 2, 3
TOPIC_ID = UUID(int=7)
LONG_MS = 5_000


@pytest.fixture
def led(broker: LocalBroker) -> LocalBroker:
    """Two partitions that broker 2 follows, in sync."""
    replicas = (US, FOLLOWER)
    broker.view.set_topic(TopicAssignment("t", TOPIC_ID, {0: replicas, 1: replicas}), {})
    for index in (0, 1):
        broker.set_state("t", index, state_of(US, 0, replicas))
    return broker


class Following:
    """A follower's session; each fetch names `offsets`, of partitions that have changed."""

    def __init__(self, broker: LocalBroker, follower: int = FOLLOWER) -> None:
        self._broker = broker
        self._follower = follower
        self.session_id = self.epoch = 0

    async def fetch(
        self,
        offsets: Mapping[int, int],
        *,
        forgotten: Sequence[int] = (),
        wait_ms: int = 0,
        life: int = LIFE,
        max_bytes: int = 1 << 20,
    ) -> Body:
        partitions: list[dict[str, Any]] = [
            {
                "partition": index,
                "current_leader_epoch": 0,
                "fetch_offset": offset,
                "last_fetched_epoch": 0 if offset else -1,
                "partition_max_bytes": 1 << 20,
            }
            for index, offset in offsets.items()
        ]
        body = await self._broker.answer(
            "Fetch",
            17,
            {
                "replica_state": {"replica_id": self._follower, "replica_epoch": life},
                "max_wait": wait_ms,
                "min_bytes": 1,
                "max_bytes": max_bytes,
                "session_id": self.session_id,
                "session_epoch": self.epoch,
                "topics": [{"topic_id": TOPIC_ID, "partitions": partitions}] if partitions else [],
                "forgotten_topics_data": [{"topic_id": TOPIC_ID, "partitions": list(forgotten)}]
                if forgotten
                else [],
            },
        )
        self.session_id = body["session_id"]
        self.epoch += 1
        return body

    async def told(self, offsets: Mapping[int, int], **more: Any) -> dict[int, tuple[int, int]]:
        """(bytes of records, high watermark) by partition, in the order of the answer."""
        body = await self.fetch(offsets, **more)
        assert body["error_code"] == 0
        return {
            answer["partition_index"]: (size_of(answer["records"]), answer["high_watermark"])
            for topic in body["responses"]
            for answer in topic["partitions"]
        }


def session_of(broker: LocalBroker) -> FollowerSession:
    session = broker.context.follower_sessions.find(FOLLOWER)
    assert session is not None
    return session


def size_of(records: Any) -> int:
    return records.size_bytes if isinstance(records, FileSlice) else len(records)


def error_of(body: Body) -> str:
    name: str = ErrorCode(body["error_code"]).name
    return name


async def test_a_fetch_that_waits_is_answered_by_an_append_and_by_no_other_news(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0, 1: 0})
    led.append("t", [b"a"], 0)
    await session.fetch({})
    waiting = asyncio.ensure_future(session.told({0: 1}, wait_ms=LONG_MS))
    for _ in range(5):
        await asyncio.sleep(0)
    assert led.partition("t", 0).high_watermark == 1
    assert not waiting.done()
    led.append("t", [b"b"], 1)
    reported = await waiting
    assert (reported[0], list(reported)) == ((0, 1), [1, 0]), "what is new of others is told with it"


async def test_a_fetch_that_waits_in_vain_answers_what_has_moved(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0, 1: 0})
    led.append("t", [b"a", b"b"], 0)
    await session.fetch({})
    assert await session.told({0: 2}, wait_ms=20) == {0: (0, 2)}
    led.partition("t", 0).delete_records_before(1)
    (topic,) = (await session.fetch({}, wait_ms=20))["responses"]
    assert [answer["log_start_offset"] for answer in topic["partitions"]] == [1]


async def test_where_the_log_starts_after_retention_is_reported(led: LocalBroker) -> None:
    partition = led.partition("t", 0)
    partition.log.update_config(led.context.config.topic({"segment.bytes": "100", "retention.bytes": "0"}))
    session = Following(led)
    await session.fetch({0: 0})
    for _ in range(2):
        led.append("t", [b"a"], 0)
    await session.fetch({0: 2})
    await session.fetch({})
    assert partition.apply_retention(led.context.now_ms())
    start = partition.log.log_start_offset
    assert start > 0
    (topic,) = (await session.fetch({}))["responses"]
    assert [answer["log_start_offset"] for answer in topic["partitions"]] == [start]


async def test_partitions_take_turns_when_not_all_fit_into_an_answer(led: LocalBroker) -> None:
    session = Following(led)
    for index in (0, 1):
        for _ in range(2):
            led.append("t", [bytes(200)], index)
    served = [await session.told({0: 0, 1: 0}, max_bytes=300)]
    served.append(await session.told({0: 1}, max_bytes=300))
    assert [[index for index, (size, _) in reported.items() if size] for reported in served] == [[0], [1]]


async def test_an_error_is_reported_until_the_partition_is_forgotten(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0})
    led.set_state("t", 0, state_of(FOLLOWER, 1, (US, FOLLOWER), 1))
    for _ in range(2):
        ((answer,),) = [topic["partitions"] for topic in (await session.fetch({}))["responses"]]
        assert error_of(answer) == "not_leader_or_follower"
    assert await session.told({}, forgotten=[0]) == {}


async def test_a_new_session_ends_the_one_before_and_whoever_waits_in_it(led: LocalBroker) -> None:
    old, new = Following(led), Following(led)
    await old.fetch({0: 0})
    waiting = asyncio.ensure_future(old.fetch({}, wait_ms=LONG_MS))
    await asyncio.sleep(0)
    await new.fetch({0: 0})
    assert error_of(await waiting) == "fetch_session_id_not_found"
    assert new.session_id not in (0, old.session_id)
    assert len(led.partition("t", 0)._end_listeners) == 1


async def test_the_session_of_a_broker_that_is_gone_ends(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0})
    led.context.follower_sessions.close_absent(led.view.brokers.keys())
    assert await session.told({}) == {}
    led.set_live(US, OTHER)
    led.context.follower_sessions.close_absent(led.view.brokers.keys())
    assert len(led.context.follower_sessions) == 0
    partition = led.partition("t", 0)
    assert (partition._listeners, partition._end_listeners) == ({}, {})


async def test_what_moved_beside_an_error_is_reported_after_it(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0})
    led.append("t", [b"a"], 0)
    await session.fetch({0: 1})
    replicas = led.replicas._partitions
    hidden = replicas.pop(("t", 0))
    state, hidden.state = hidden.state, None
    ((answer,),) = [topic["partitions"] for topic in (await session.fetch({0: 1}))["responses"]]
    assert error_of(answer) == "not_leader_or_follower"
    replicas["t", 0], hidden.state = hidden, state
    assert await session.told({}) == {0: (0, 1)}


async def test_a_session_of_another_life_or_out_of_step_is_refused(led: LocalBroker) -> None:
    session = Following(led)
    await session.fetch({0: 0})
    session_id = session.session_id
    assert error_of(await session.fetch({}, life=LIFE + 1)) == "fetch_session_id_not_found"
    session.session_id, session.epoch = session_id, 2
    assert error_of(await session.fetch({})) == "invalid_fetch_session_epoch"
    session.session_id, session.epoch = session_id + 1, 1
    assert error_of(await session.fetch({})) == "fetch_session_id_not_found"


async def test_a_broker_that_registers_again_has_a_session_meanwhile(led: LocalBroker) -> None:
    """What it grants counts within a session only, and leaders need it after an outage."""
    led.set_live(US, OTHER)
    led.view.absent_incarnations = {FOLLOWER: LIFE}
    body = await Following(led).fetch({0: 0}, life=-1)
    assert body["session_id"] != 0


async def test_a_follower_that_had_everything_until_an_append_is_in_sync_for_the_whole_time_it_is_allowed(
    led: LocalBroker,
) -> None:
    """It is not named in its fetches while nothing happens; that says that it is caught up."""

    session = Following(led)
    await session.fetch({0: 0})
    progress = led.partition("t", 0)._progress[FOLLOWER]
    progress.caught_up_ms = progress.last_fetch_ms = 0
    await session.fetch({})
    assert progress.caught_up_ms == 0, "nothing was looked at"
    led.append("t", [b"a"], 0)
    assert progress.caught_up_ms == session_of(led)._fetched_ms


async def test_a_fetch_grants_nothing_for_a_partition_that_it_forgets(led: LocalBroker) -> None:
    """The follower may have been elected since its last fetch, and answer clients already."""
    lease = led.context.replicas.lease
    lease.lose_session()
    session = Following(led)
    await session.fetch({0: 0, 1: 0})
    assert not led.partition("t", 0).is_served
    request = FetchRequest(
        ReplicaState(FOLLOWER, LIFE, grants=True),
        max_wait=timedelta(),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=[],
        forgotten_topics_data=[ForgottenTopic(TOPIC_ID, (0,))],
        rack_id="",
    )
    follower_fetch.handle(led.context, request)
    assert [led.partition("t", index).is_served for index in (0, 1)] == [False, True]
