"""TxnOffsetCommit, and OffsetFetch while a transaction is open (R11; KIP-98, KIP-447, KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.broker.api.brokers import LocalBroker

from mainstem_broker.errors import (
    CoordinatorLoadInProgress,
    IllegalGeneration,
    InvalidGroupId,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotCoordinator,
    ProducerFenced,
    ProtocolError,
    TransactionAbortable,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from mainstem_broker.group.coordinator import OFFSETS_TOPIC
from mainstem_broker.group.messages import ConsumerHeartbeat

PRODUCER_ID = 7
LEAVES = -1


@dataclass
class Requests:
    """Requests to a broker that coordinates all groups; "a" is the only member of "g", in epoch 1."""

    broker: LocalBroker

    async def heartbeat(self, member_id: str, epoch: int) -> int:
        request = {"group_id": "g", "member_id": member_id, "member_epoch": epoch}
        if epoch == 0:
            request |= {"rebalance_timeout": 1_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        body = await self.broker.answer("ConsumerGroupHeartbeat", 0, request)
        assert body["error_code"] == 0
        return int(body["member_epoch"])

    def leave_at_once(self, member_id: str) -> None:
        """Without a way through the codec, between two steps of another request."""
        last = ConsumerHeartbeat(0, member_id, LEAVES, None, None, None, None, None, None, None, "c", "/h")
        self.broker.context.groups.consumer_heartbeat("g", last)

    async def commit(
        self,
        offset: int,
        *,
        member_id: str = "a",
        epoch: int = 1,
        version: int = 5,
        producer_epoch: int = 0,
        group_id: str = "g",
    ) -> int:
        request = {
            "transactional_id": "id",
            "group_id": group_id,
            "producer_id": PRODUCER_ID,
            "producer_epoch": producer_epoch,
            "member_id": member_id,
            "generation_id": epoch,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
        }
        body = await self.broker.answer("TxnOffsetCommit", version, request)
        return int(body["topics"][0]["partitions"][0]["error_code"])

    async def end(self, *, committed: bool) -> None:
        marker = {
            "producer_id": PRODUCER_ID,
            "producer_epoch": 0,
            "transaction_result": committed,
            "topics": [{"name": OFFSETS_TOPIC, "partition_indexes": [0]}],
            "coordinator_epoch": 0,
        }
        body = await self.broker.answer("WriteTxnMarkers", 1, {"markers": [marker]})
        assert body["markers"][0]["topics"][0]["partitions"][0]["error_code"] == 0

    async def fetched(self, *, stable: bool = True, version: int = 9) -> tuple[int, int]:
        """Offset and error code."""
        topics = [{"name": "t", "partition_indexes": [0]}]
        if version < 8:
            request = {"group_id": "g", "topics": topics, "require_stable": stable}
            group = await self.broker.answer("OffsetFetch", version, request)
        else:
            asked: dict[str, Any] = {"group_id": "g", "topics": topics}
            if version >= 9:
                asked |= {"member_id": "a", "member_epoch": 1}
            request = {"groups": [asked], "require_stable": stable}
            (group,) = (await self.broker.answer("OffsetFetch", version, request))["groups"]
        (partition,) = group["topics"][0]["partitions"]
        return partition["committed_offset"], partition["error_code"]


@pytest.fixture
async def requests(coordinator: LocalBroker) -> Requests:
    requests = Requests(coordinator)
    assert await requests.heartbeat("a", 0) == 1
    return requests


@pytest.mark.parametrize("version", [7, 8, 9])
@pytest.mark.parametrize(("committed", "expected"), [(True, 5), (False, -1)])
async def test_a_new_owner_waits_for_the_end_of_the_transaction(
    requests: Requests, version: int, committed: bool, expected: int
) -> None:
    assert await requests.commit(5) == 0
    assert await requests.fetched(version=version) == (-1, UnstableOffsetCommit.code)
    assert await requests.fetched(version=version, stable=False) == (-1, 0)
    await requests.end(committed=committed)
    assert await requests.fetched(version=version) == (expected, 0)


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 0, IllegalGeneration),
        ("a", 2, IllegalGeneration),
        ("b", 1, UnknownMemberId),
        ("b", -1, UnknownMemberId),
    ],
)
async def test_only_the_member_in_its_present_epoch_commits(
    requests: Requests, member_id: str, epoch: int, error: type[ProtocolError]
) -> None:
    assert await requests.commit(5, member_id=member_id, epoch=epoch) == error.code
    assert requests.broker.context.verifier.requested == []  # type: ignore[attr-defined]  # of the played one
    assert await requests.fetched() == (-1, 0)


async def test_a_group_without_a_name_takes_no_offsets_in_a_transaction(requests: Requests) -> None:
    """As in Apache Kafka 4.4."""
    code = await requests.commit(5, group_id="", member_id="", epoch=-1)
    assert code == InvalidGroupId.code


async def test_a_member_that_is_removed_during_the_verification_commits_nothing(requests: Requests) -> None:
    requests.broker.context.verifier.meanwhile = lambda: requests.leave_at_once("a")  # type: ignore[attr-defined]
    assert await requests.commit(5) == UnknownMemberId.code
    assert list(requests.broker.context.groups.unstable("g")) == []


@pytest.mark.parametrize(
    ("answered", "version", "expected"),
    [
        (ProducerFenced, 5, InvalidProducerEpoch),
        (InvalidProducerEpoch, 3, InvalidProducerEpoch),
        (InvalidTxnState, 3, InvalidTxnState),
        (InvalidTxnState, 4, TransactionAbortable),
        (TransactionAbortable, 5, TransactionAbortable),
        (NotCoordinator, 5, CoordinatorLoadInProgress),
    ],
)
async def test_offsets_that_are_not_part_of_the_open_transaction_are_refused(
    requests: Requests, answered: type[ProtocolError], version: int, expected: type[ProtocolError]
) -> None:
    """Of a transaction that has timed out too, which its coordinator no longer knows."""
    codes = requests.broker.context.verifier.codes  # type: ignore[attr-defined]
    codes[OFFSETS_TOPIC, 0] = answered.code
    assert await requests.commit(5, version=version) == expected.code
    assert await requests.fetched() == (-1, 0)
