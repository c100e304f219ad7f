"""Logs that copy another log, and the size of the batches in their tests."""

from __future__ import annotations

from tests.support.record_batches import encode_batch
from tests.unit.broker.log.logs import NOW_MS, messages

from mainstem_broker.log.partition_log import AppendInfo, PartitionLog

SIZE_BYTES = len(encode_batch(messages([b"x"])))


def follow(log: PartitionLog, base_offset: int, count: int, leader_epoch: int = 0) -> AppendInfo:
    records = encode_batch(messages([b"x"] * count), base_offset=base_offset, leader_epoch=leader_epoch)
    return log.append_as_follower(records, NOW_MS)
