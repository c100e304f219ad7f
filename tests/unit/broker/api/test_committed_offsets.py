"""OffsetCommit with a retention time, which versions 2 to 4 have (R15)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.unit.broker.api.brokers import LocalBroker
from tests.unit.broker.server.test_router import handle, response

from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.server.connection import Hold, Later

INT64_MAX = 2**63 - 1
NOW_MS = 1_700_000_000_000
TIMEDELTA_MS_MAX = 86_399_999_999_999_999
"""More is no duration for Python, and one for Kafka."""


async def committed(broker: LocalBroker, version: int, retention_ms: int) -> Any:
    """What the broker answers to a commit of t-0 by group g."""
    head = struct.pack(">hhih", 8, version, 5, -1)
    group = struct.pack(">h1sih", 1, b"g", -1, 0)
    offset = struct.pack(">ih1siiqh", 1, 1, b"t", 1, 0, 7, -1)
    answer = handle(broker, head + group + struct.pack(">q", retention_ms) + offset)
    if isinstance(answer, Hold):
        await answer.ready
        answer = answer.then()
    if isinstance(answer, Later):
        answer = answer.encode(await answer.body)
    return response(8, version, answer)


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("retention_ms", "expire_ms"),
    [
        (-(2**63), None),
        (-1, None),
        (0, NOW_MS),
        (1_001, NOW_MS + 1_001),
        (TIMEDELTA_MS_MAX, NOW_MS + TIMEDELTA_MS_MAX),
        (TIMEDELTA_MS_MAX + 1, NOW_MS + TIMEDELTA_MS_MAX + 1),
        (INT64_MAX - NOW_MS, INT64_MAX),
        (INT64_MAX, INT64_MAX),
    ],
)
async def test_a_retention_time_may_be_as_long_as_its_field(
    broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    retention_ms: int,
    expire_ms: int | None,
) -> None:
    """Kafka's own sum overflows, and its offsets expire at once; here they stay for ever."""
    monkeypatch.setattr(type(broker.context), "now_ms", lambda _: NOW_MS)
    broker.create("t")
    broker.create(OFFSETS_TOPIC)
    shards = broker.context.groups.shards
    shards.follow(0)
    await shards.loading(0)
    answer = await committed(broker, version, retention_ms)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none
    offset = broker.context.groups.committed("g", [("t", 0)])[("t", 0)]
    assert (offset.offset, offset.expire_ms) == (7, expire_ms)
    await shards.stop()
