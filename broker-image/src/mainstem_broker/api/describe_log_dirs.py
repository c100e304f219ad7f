"""DescribeLogDirs (key 35), versions 1 to 4: what lies in this broker's data directories, in bytes.

Null for topics means all. A directory whose disk failed is named with KAFKA_STORAGE_ERROR and
nothing in it. The lag is that of a replica behind its high watermark. v2 flexible; v3 an error for all; v4
the size of the file system and what is free of it (KIP-827), -1 if it does not say.

AlterReplicaLogDirs (key 34), which moves a replica between directories, is not served: a replica goes where
there is space when it is made (`log/placement.py`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mainstem_broker.api.context import BrokerContext, RequestContext
from mainstem_broker.errors import StorageError
from mainstem_broker.protocol.wire import Body

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest

Replicas = Mapping[str, list[Body]]


async def handle(broker: BrokerContext, request: DescribeLogDirsRequest, _context: RequestContext) -> Body:
    requested_partitions: set[tuple[str, int]] | None = None
    if request.topics is not None:
        requested_partitions = {
            (topic.topic, index) for topic in request.topics for index in topic.partitions
        }
    logs = broker.replicas.logs
    replicas: dict[Path, dict[str, list[Body]]] = {directory: {} for directory in logs.directories}
    for partition in broker.replicas:
        if (
            requested_partitions is not None
            and (partition.topic, partition.index) not in requested_partitions
        ):
            continue
        log = partition.log
        replicas[log.directory.parent].setdefault(partition.topic, []).append(
            {
                "partition_index": partition.index,
                "partition_size": log.size_bytes,
                "offset_lag": max(partition.high_watermark - log.log_end_offset, 0),
                "is_future_key": False,
            }
        )
    # A disk that hangs must not hold up the loop.
    sizes = await asyncio.to_thread(lambda: [_file_system_bytes(directory) for directory in replicas])
    return {
        "throttle_time": 0,
        "error_code": 0,
        "results": [
            _result(directory, directory in logs.failed, by_topic, size)
            for (directory, by_topic), size in zip(replicas.items(), sizes, strict=True)
        ],
    }


def _file_system_bytes(directory: Path) -> tuple[int, int]:
    """(size, what is free for us) of the file system that `directory` is on."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return -1, -1
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _result(directory: Path, failed: bool, replicas: Replicas, size: tuple[int, int]) -> Body:
    total_bytes, usable_bytes = (-1, -1) if failed else size
    return {
        "error_code": StorageError.code if failed else 0,
        "log_dir": str(directory),
        "topics": [
            {"name": topic, "partitions": partitions} for topic, partitions in sorted(replicas.items())
        ],
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
    }
