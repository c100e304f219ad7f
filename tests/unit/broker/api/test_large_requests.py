from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from time import thread_time
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.unit.broker.api.brokers import LocalBroker, make, run
from tests.unit.broker.protocol.schema_strategies import encode_request, request_schema
from tests.unit.broker.server.test_router import response

from mainstem_broker.api.large_requests import LARGE_REQUEST_BYTES, cut, join
from mainstem_broker.log.files import FileSlice
from mainstem_broker.protocol.codec import encode_large_response, encode_response
from mainstem_broker.security.principals import ANONYMOUS
from mainstem_broker.server.client_software import UNKNOWN
from mainstem_broker.server.connection import Connection, Hold, Later
from mainstem_broker.server.router import Router


class Caller:
    def mute(self, _duration_s: float) -> None: ...

    peer = "127.0.0.1:1"
    principal = ANONYMOUS
    login = None
    software = UNKNOWN


NAMES = ("topics", "partition_indexes")


@given(st.lists(st.lists(st.integers(0, 12), max_size=4), max_size=4), st.integers(3, 8))
def test_the_answers_to_the_slices_are_the_answer_to_the_whole(counts: list[list[int]], size: int) -> None:
    """R40"""
    groups = [
        OffsetFetchRequestGroup(
            group_id=str(number),
            topics=tuple(
                OffsetFetchRequestTopics(name=str(topic), partition_indexes=tuple(range(count)))
                for topic, count in enumerate(topics)
            ),
        )
        for number, topics in enumerate(counts)
    ]
    answers: list[dict[str, Any]] = []
    for slice_, depth in cut(groups, NAMES, size):
        assert slice_
        join(answers, [answer(group) for group in slice_], depth, NAMES)
    assert answers == [answer(group) for group in groups]


def test_a_group_whose_offsets_are_all_requested_has_a_slice_of_its_own() -> None:
    """R40: a request of a few bytes may have the largest answer."""
    groups = [OffsetFetchRequestGroup(group_id=str(number), topics=None) for number in range(3)]
    assert [len(slice_) for slice_, _ in cut(groups, NAMES, 64)] == [1, 1, 1]


def test_a_slice_that_failed_as_a_whole_does_not_end_the_next_one() -> None:
    answers: list[dict[str, Any]] = []
    join(answers, [{"name": "t", "partitions": [1]}], 1, NAMES)
    assert answers == [{"name": "t", "partitions": [1]}]


def answer(group: Any) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "topics": [
            {"name": topic.name, "partition_indexes": list(topic.partition_indexes)} for topic in group.topics
        ],
    }


def test_an_error_of_a_part_is_one_of_the_whole() -> None:
    """R40, R9: a partition that is missing would be taken for one without a committed offset."""
    answers = [{"error_code": 0, "topics": [1]}]
    join(answers, [{"error_code": 16, "topics": ()}], 1, ("topics",))
    assert answers == [{"error_code": 16, "topics": [1]}]


def frame_of(key: int, version: int, values: dict[str, Any]) -> bytes:
    return encode_request(make(request_schema(key, version), values), 5, "client")


def of_topics(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{number}", "partitions": [{"partition_index": 0}]} for number in range(count)]


COUNT = 5_000
LARGE: Final[dict[str, tuple[int, int, dict[str, Any]]]] = {
    "ListOffsets": (2, 9, {"topics": of_topics(COUNT)}),
    "Metadata": (3, 1, {"topics": [{"name": f"!{number}"} for number in range(COUNT)]}),
    "OffsetCommit": (
        8,
        9,
        {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": of_topics(COUNT)},
    ),
    "OffsetFetch of a group": (
        9,
        7,
        {"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(COUNT))}]},
    ),
    "OffsetFetch of groups": (
        9,
        8,
        {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(COUNT))}]}]},
    ),
    "DescribeConfigs": (
        32,
        4,
        {"resources": [{"resource_type": 2, "resource_name": f"t{number}"} for number in range(COUNT)]},
    ),
}


@pytest.mark.trial
@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_is_answered_in_short_turns_of_the_loop(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R40: other clients' requests come between. The time is that of this thread, whatever else runs."""
    key, version, values = LARGE[name]
    frame = frame_of(key, version, values)
    turns_s: list[float] = []

    async def test() -> Any:
        broker = LocalBroker(tmp_path)
        broker.create("t")
        monkeypatch.setattr(broker.context.groups, "committed", lambda *_: {})
        monkeypatch.setattr(broker.context.groups, "check_fetch", lambda *_: None)
        caller = cast(Connection, Caller())
        held = Router(broker.context, "PLAINTEXT", {}).handle(caller, memoryview(frame).toreadonly())
        while isinstance(held, Hold):
            ready = asyncio.ensure_future(held.ready)
            while not ready.done():
                started_s = thread_time()
                await asyncio.sleep(0)
                turns_s.append(thread_time() - started_s)
            held = held.then()
        return held

    gc.collect()
    gc.disable()  # a collection walks all that the tests have imported, which a broker freezes
    try:
        answered = run(test())
    finally:
        gc.enable()
    assert count_of(response(key, version, answered)) == COUNT
    assert max(turns_s) < 0.05


async def test_an_answer_that_is_not_cut_is_written_in_short_turns_too(tmp_path: Path) -> None:
    """R40: CreateTopics yields the loop between topics, and its answer has as many."""
    topics = [{"name": f"!{number}", "num_partitions": 1, "replication_factor": 1} for number in range(2_000)]
    frame = frame_of(19, 5, {"topics": topics, "timeout": 1000})
    broker = LocalBroker(tmp_path)
    held = Router(broker.context, "PLAINTEXT", {}).handle(
        cast(Connection, Caller()), memoryview(frame).toreadonly()
    )
    assert isinstance(held, Hold)
    await held.ready
    later = held.then()
    assert isinstance(later, Later)
    answered = await later.body
    assert isinstance(answered, list), "it is written before the connection takes it"
    assert later.encode(answered) is answered
    assert len(response(19, 5, answered).topics) == 2_000


async def test_a_large_fetch_keeps_its_slices_of_files_also_where_there_are_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: with a quota its answer comes from a coroutine, too."""
    broker = LocalBroker(tmp_path)
    broker.create("t", (1,) * 200)
    broker.append("t", [b"record"])
    monkeypatch.setattr(type(broker.context.quotas), "are_set", True)
    partitions = [{"partition": number, "partition_max_bytes": 1_000} for number in range(200)]
    frame = frame_of(
        1,
        12,
        {
            "max_wait": 20,
            "min_bytes": 900,
            "max_bytes": 1_000,
            "topics": [{"topic": "t", "partitions": partitions}],
        },
    )
    assert len(frame) > LARGE_REQUEST_BYTES
    caller = cast(Connection, Caller())
    answer = Router(broker.context, "PLAINTEXT", {}).handle(caller, memoryview(frame).toreadonly())
    assert isinstance(answer, Later)
    answer = answer.encode(await answer.body)
    assert isinstance(answer, list)
    assert any(isinstance(part, FileSlice) for part in answer)


def count_of(body: Any) -> int:
    for group in getattr(body, "groups", ()):
        return sum(len(topic.partitions) for topic in group.topics)
    if hasattr(body, "results"):
        return len(body.results)
    return sum(len(getattr(topic, "partitions", ())) or 1 for topic in body.topics)


def test_a_topic_that_is_named_a_thousand_times_is_answered_once(tmp_path: Path) -> None:
    """R40: the answer about a topic may be a thousand times as large as its name."""
    broker = LocalBroker(tmp_path)
    broker.create("t", (1,) * 20)
    answered = run(broker.answer("Metadata", 1, {"topics": [{"name": "t"}] * 1_000}))
    assert [len(topic["partitions"]) for topic in answered["topics"]] == [20]


def test_a_large_answer_has_the_same_bytes_as_one_that_is_written_at_once() -> None:
    body = {
        "throttle_time": 3,
        "topics": [
            {
                "name": f"topic {number}",
                "partitions": [
                    {"partition_index": index, "error_code": 0, "timestamp": -1, "offset": index}
                    for index in range(number)
                ],
            }
            for number in range(5)
        ],
    }
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    for version in (1, 4, 9):
        whole = encode_response(2, version, 7, body)
        assert run(encode_large_response(2, version, 7, body, pause)) == whole
    assert pauses == 3 * (5 + 10)
