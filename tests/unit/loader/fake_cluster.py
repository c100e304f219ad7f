"""Brokers that answer what a loader asks, from lists of batches, and misbehave when told to.

Real sockets on loopback and kio's schemas, so that everything from `connection` up runs as it does for real.
"""

from __future__ import annotations

import io
import socket
import socketserver
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from uuid import UUID, uuid4

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.unit.loader.batch_bytes import HEADER, Record, batch_bytes

from mainstem_loader.kafka.connection import build

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH = 1, 2, 3, 18, 21, 23
EARLIEST = -2
NEWEST = {
    FETCH: (4, 17),
    LIST_OFFSETS: (2, 7),
    METADATA: (4, 12),
    API_VERSIONS: (0, 3),
    DELETE_RECORDS: (0, 2),
    OFFSET_FOR_LEADER_EPOCH: (2, 4),
}

Misbehave = Callable[[socket.socket], None]


@dataclass
class FakePartition:
    """Batches in order.

    Offsets below `log_start` are gone. `stable` is the last stable offset. New batches get `epoch`.
    """

    batches: list[bytes] = field(default_factory=list)
    log_start: int = 0
    end: int = 0
    stable: int | None = None
    aborted: list[tuple[int, int]] = field(default_factory=list)
    leader: int = 1
    epoch: int = 0

    def truncate(self, end: int) -> None:
        """Lose the batches from `end` on, as in an unclean election, which begins a new epoch."""
        self.batches = [batch for batch in self.batches if HEADER.unpack_from(batch)[0] < end]
        self.end = end
        self.epoch += 1

    def end_of_epoch(self, epoch: int) -> int:
        """Where the batches of an epoch end, as KIP-101 defines it."""
        later = [HEADER.unpack_from(batch) for batch in self.batches]
        return next((header[0] for header in later if header[2] > epoch), self.end)

    def append(self, records: Sequence[Record], **how: Any) -> None:
        self.add(batch_bytes(records, **how))

    def add(self, batch: bytes) -> None:
        self.batches.append(batch[:12] + struct.pack(">i", self.epoch) + batch[16:])
        header = HEADER.unpack_from(batch)
        self.end = header[0] + header[6] + 1

    def offset_at(self, timestamp_ms: int, latest: int) -> int:
        """The answer to ListOffsets, by the largest timestamps of batches."""
        if timestamp_ms < 0:
            return self.log_start if timestamp_ms == EARLIEST else latest
        later = [header[0] for header in map(HEADER.unpack_from, self.batches) if header[8] >= timestamp_ms]
        return max(later[0], self.log_start) if later else -1

    def read(self, offset: int, bytes_max: int, end: int) -> bytes:
        result = bytearray()
        for batch in self.batches:
            header = HEADER.unpack_from(batch)
            if header[0] >= end:
                break
            if header[0] + header[6] >= offset:
                if result and len(result) + len(batch) > bytes_max:
                    break
                result += batch
        return bytes(result)


@dataclass
class FakeTopic:
    partitions: dict[int, FakePartition]
    topic_id: UUID | None = field(default_factory=uuid4)


class FakeCluster:
    """Brokers 1 to n; a context manager.

    `errors` holds error codes for the next requests of an API key; `misbehave` what to do with the socket
    instead of answering. `asked` counts requests by API key and version.
    """

    def __init__(self, brokers: int = 1, versions: dict[int, tuple[int, int]] | None = None) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.versions = versions or NEWEST
        self.errors: dict[int, deque[ErrorCode]] = {
            key: deque() for key in (FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS)
        }
        self.misbehave: deque[Misbehave] = deque()
        self.asked: list[tuple[int, int, int]] = []
        self._held: int | None = None
        self._released = threading.Event()
        self._servers = {node: _Server(self, node) for node in range(1, brokers + 1)}

    def __enter__(self) -> Self:
        for server in self._servers.values():
            server.begin()
        return self

    def __exit__(self, *_: object) -> None:
        for node in list(self._servers):
            self.stop_broker(node)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{server.port}" for server in self._servers.values())

    def stop_broker(self, node: int) -> None:
        self._servers.pop(node).end()

    def hold(self, key: int) -> None:
        """Answer no request of an API key until `release`."""
        self._held = key

    def release(self) -> None:
        self._released.set()

    def topic(self, name: str, partitions: int = 1) -> FakeTopic:
        self.topics[name] = FakeTopic({index: FakePartition() for index in range(partitions)})
        return self.topics[name]

    def answer(self, node: int, key: int, version: int, request: Any, schema: Any) -> Any:
        if key == self._held:
            self._released.wait()
        match key:
            case 18:
                return self._api_versions(schema)
            case 3:
                return self._metadata(request, schema)
            case 23:
                return self._offset_for_leader_epoch(node, request, schema)
            case 2:
                return self._list_offsets(node, request, schema)
            case 21:
                return self._delete_records(node, request, schema)
            case _:
                return self._fetch(node, request, schema)

    def _api_versions(self, schema: Any) -> Any:
        keys = tuple(
            schema.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        )
        return build(schema.ApiVersionsResponse, error_code=ErrorCode.none, api_keys=keys)

    def _metadata(self, request: Any, schema: Any) -> Any:
        (expected,) = request.topics
        topic = self.topics.get(expected.name)
        code = self.errors[METADATA].popleft() if self.errors[METADATA] else ErrorCode.none
        partitions = [] if topic is None else sorted(topic.partitions.items())
        return build(
            schema.MetadataResponse,
            throttle_time=timedelta(),
            brokers=tuple(
                build(
                    schema.MetadataResponseBroker, node_id=node, host="127.0.0.1", port=server.port, rack=None
                )
                for node, server in self._servers.items()
            ),
            cluster_id="fake",
            controller_id=1,
            topics=(
                build(
                    schema.MetadataResponseTopic,
                    error_code=ErrorCode.unknown_topic_or_partition if topic is None else code,
                    name=expected.name,
                    topic_id=None if topic is None else topic.topic_id,
                    is_internal=False,
                    partitions=tuple(
                        build(
                            schema.MetadataResponsePartition,
                            error_code=ErrorCode.none,
                            partition_index=index,
                            leader_id=partition.leader,
                            leader_epoch=partition.epoch,
                            replica_nodes=(partition.leader,),
                            isr_nodes=(partition.leader,),
                            offline_replicas=(),
                        )
                        for index, partition in partitions
                    ),
                ),
            ),
        )

    def _list_offsets(self, node: int, request: Any, schema: Any) -> Any:
        (expected,) = request.topics
        answers: list[Any] = []
        for part in expected.partitions:
            partition = self.topics[expected.name].partitions[part.partition_index]
            stable = partition.end if partition.stable is None else partition.stable
            latest = stable if request.isolation_level else partition.end
            answers.append(
                build(
                    schema.ListOffsetsPartitionResponse,
                    partition_index=part.partition_index,
                    error_code=self._error(LIST_OFFSETS, node, partition),
                    timestamp=-1,
                    offset=partition.offset_at(part.timestamp, latest),
                )
            )
        topic = build(schema.ListOffsetsTopicResponse, name=expected.name, partitions=tuple(answers))
        return build(schema.ListOffsetsResponse, throttle_time=timedelta(), topics=(topic,))

    def _fetch(self, node: int, request: Any, schema: Any) -> Any:
        (expected,) = request.topics
        answers: list[Any] = []
        by_id = hasattr(expected, "topic_id")
        named = [
            topic
            for name, topic in self.topics.items()
            if (topic.topic_id == expected.topic_id if by_id else name == expected.topic)
        ]
        for part in expected.partitions:
            partition = named[0].partitions[part.partition] if named else FakePartition()
            code = self._error(FETCH, node, partition) if named else ErrorCode.unknown_topic_id
            if code is ErrorCode.none and -1 < getattr(part, "current_leader_epoch", -1) < partition.epoch:
                code = ErrorCode.fenced_leader_epoch
            if code is ErrorCode.none and not partition.log_start <= part.fetch_offset <= partition.end:
                code = ErrorCode.offset_out_of_range
            stable = partition.end if partition.stable is None else partition.stable
            end = stable if request.isolation_level else partition.end
            records = b"" if code else partition.read(part.fetch_offset, part.partition_max_bytes, end)
            aborted = tuple(
                schema.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in partition.aborted
            )
            answers.append(
                build(
                    schema.PartitionData,
                    partition_index=part.partition,
                    error_code=code,
                    high_watermark=partition.end,
                    last_stable_offset=stable,
                    log_start_offset=partition.log_start,
                    aborted_transactions=aborted if request.isolation_level else None,
                    records=records,
                )
            )
        topic = build(
            schema.FetchableTopicResponse,
            topic=None if by_id else expected.topic,
            topic_id=expected.topic_id if by_id else None,
            partitions=tuple(answers),
        )
        return build(
            schema.FetchResponse,
            throttle_time=timedelta(),
            error_code=ErrorCode.none,
            session_id=0,
            responses=(topic,),
        )

    def _delete_records(self, node: int, request: Any, schema: Any) -> Any:
        (expected,) = request.topics
        answers: list[Any] = []
        for part in expected.partitions:
            partition = self.topics[expected.name].partitions[part.partition_index]
            code = self._error(DELETE_RECORDS, node, partition)
            if code is ErrorCode.none and part.offset > partition.end:
                code = ErrorCode.offset_out_of_range
            if code is ErrorCode.none:
                partition.log_start = max(partition.log_start, part.offset)
            answers.append(
                schema.DeleteRecordsPartitionResult(
                    partition_index=part.partition_index, low_watermark=partition.log_start, error_code=code
                )
            )
        topic = schema.DeleteRecordsTopicResult(name=expected.name, partitions=tuple(answers))
        return build(schema.DeleteRecordsResponse, throttle_time=timedelta(), topics=(topic,))

    def _offset_for_leader_epoch(self, node: int, request: Any, schema: Any) -> Any:
        (expected,) = request.topics
        (part,) = expected.partitions
        partition = self.topics[expected.topic].partitions[part.partition]
        answer = build(
            schema.EpochEndOffset,
            error_code=self._error(OFFSET_FOR_LEADER_EPOCH, node, partition),
            partition=part.partition,
            leader_epoch=part.leader_epoch,
            end_offset=partition.end_of_epoch(part.leader_epoch),
        )
        topic = build(schema.OffsetForLeaderTopicResult, topic=expected.topic, partitions=(answer,))
        return build(schema.OffsetForLeaderEpochResponse, throttle_time=timedelta(), topics=(topic,))

    def _error(self, key: int, node: int, partition: FakePartition) -> ErrorCode:
        if partition.leader != node:
            return ErrorCode.not_leader_or_follower
        return self.errors[key].popleft() if self.errors.get(key) else ErrorCode.none


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.cluster = cluster
        self.node = node
        self.port = int(self.server_address[1])
        self.open: set[socket.socket] = set()
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self.open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # It is closed already.
        self._thread.join()


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    def setup(self) -> None:
        self.server.open.add(self.request)

    def finish(self) -> None:
        self.server.open.discard(self.request)

    def handle(self) -> None:
        stream = self.request.makefile("rb")
        while len(size := stream.read(4)) == 4:
            frame = stream.read(struct.unpack(">i", size)[0])
            key, version, correlation_id = struct.unpack_from(">hhi", frame)
            cluster = self.server.cluster
            cluster.asked.append((self.server.node, key, version))
            if cluster.misbehave and key != API_VERSIONS:
                cluster.misbehave.popleft()(self.request)
                return
            requests = load_payload_module(key, version, EntityType.request)
            request_type = next(
                kind
                for name, kind in vars(requests).items()
                if name.endswith("Request") and hasattr(kind, "__type__")
            )
            _, position = entity_reader(request_type.__header_schema__)(frame, 0)
            request, _ = entity_reader(request_type)(frame, position)
            schema = load_payload_module(key, version, EntityType.response)
            answer = cluster.answer(self.server.node, key, version, request, schema)
            header_type = type(answer).__header_schema__
            out = io.BytesIO()
            entity_writer(header_type)(out, header_type(correlation_id=correlation_id))
            entity_writer(type(answer))(out, answer)
            self.request.sendall(struct.pack(">i", out.tell()) + out.getvalue())


def hang_up(connection: socket.socket) -> None:
    """Close without an answer."""
    connection.shutdown(socket.SHUT_RDWR)


def talk_nonsense(connection: socket.socket) -> None:
    """Answer like a web server that was asked by mistake."""
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def send_half(connection: socket.socket) -> None:
    """Announce more than is sent."""
    connection.sendall(struct.pack(">i", 1000) + b"x" * 10)
    connection.shutdown(socket.SHUT_RDWR)
